"""What mpiboot's own client is told, and how mpirun and agents are told to call it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mpiboot.core.checks import MpibootError
from mpiboot.ssh import client_start, connect
from mpiboot.ssh.config import LaunchHost, SshTimeouts

CONFIG = client_start.ClientConfig(
    hosts=(
        LaunchHost("w-0", "10.0.0.1", 2222, "root", "ssh-ed25519 AAAA"),
        LaunchHost("w-1", "fd00::1", 22, "me", ""),
    ),
    key="/run/key",
    patience=SshTimeouts(3, 30, 10, 4),
    events="/run/events",
    errors="/run/stderr",
    parent=7,
)


def test_the_client_is_started_by_a_private_file(tmp_path: Path) -> None:
    program, *words, path = client_start.write(tmp_path, CONFIG)
    assert program == sys.executable
    assert "from mpiboot.ssh.client import main; main(" in " ".join(words)
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert client_start.ClientConfig.from_json(Path(path).read_text()) == CONFIG


def test_an_agent_reaches_the_client_by_words_of_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        client_start.client_words() == f"{sys.executable} -I -S {Path(connect.__file__).resolve()}"
    )
    monkeypatch.setattr(sys, "executable", "/opt/my\tpython/bin/python3")
    with pytest.raises(MpibootError) as caught:
        client_start.client_words()
    assert caught.value.finding.check == "runtime-folder"
    assert "'/opt/my\\tpython/bin/python3' has a blank in its path" in caught.value.finding.message
    assert caught.value.finding.hint == "install elsewhere"


def test_mpirun_calls_the_agent_by_its_path() -> None:
    path = Path(client_start.agent_words())
    assert (path.parent.name, path.name) == ("libexec", "agent")
    assert os.access(path, os.X_OK)


def test_an_agent_without_its_execute_bit_is_read_by_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = tmp_path / "agent"
    agent.touch(0o644)
    monkeypatch.setattr(client_start, "_AGENT", agent)
    assert client_start.agent_words() == f"/bin/sh {agent}"


@pytest.mark.parametrize("blank", [" ", "\t"])
def test_a_blank_in_mpiboots_own_path_is_told_with_the_path(
    blank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mpirun would split the agent's path there."""
    agent = Path(f"/opt/my{blank}tools/agent")
    monkeypatch.setattr(client_start, "_AGENT", agent)
    with pytest.raises(MpibootError) as caught:
        client_start.agent_words()
    assert caught.value.finding.check == "runtime-folder"
    assert repr(str(agent)) in caught.value.finding.message
    assert caught.value.finding.hint == "install mpiboot in a folder without blanks"
