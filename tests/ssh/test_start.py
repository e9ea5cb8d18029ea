from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mpiboot.core.errors import MpibootError
from mpiboot.ssh import connect, start
from mpiboot.ssh.config import SshTimeouts

CONFIG = start.ClientConfig(
    hosts=(
        start.ClientHost("w-0", "10.0.0.1", 2222, "root", "ssh-ed25519 AAAA"),
        start.ClientHost("w-1", "fd00::1", 22, "me", ""),
    ),
    key="/run/key",
    patience=SshTimeouts(3, 30, 10, 4),
    events="/run/events",
    errors="/run/stderr",
    parent=7,
)


def test_what_the_client_is_told_is_read_back_as_it_was_written() -> None:
    assert start.ClientConfig.from_json(CONFIG.to_json()) == CONFIG


def test_the_client_is_started_by_a_private_file(tmp_path: Path) -> None:
    program, *words, path = start.write(tmp_path, CONFIG)
    assert program == sys.executable
    assert "from mpiboot.ssh.client import main; main(" in " ".join(words)
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert json.loads(Path(path).read_text())["parent"] == 7


def test_an_agent_reaches_the_client_by_words_of_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start.words() == f"{sys.executable} -I -S {Path(connect.__file__).resolve()}"
    monkeypatch.setattr(sys, "executable", "/opt/my\tpython/bin/python3")
    with pytest.raises(MpibootError) as caught:
        start.words()
    assert caught.value.finding.check == "runtime-folder"
    assert "'/opt/my\\tpython/bin/python3' has a blank in its path" in caught.value.finding.said
    assert caught.value.finding.hint == "install elsewhere"
