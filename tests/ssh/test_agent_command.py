"""How mpirun is told to call the agent, wherever mpiboot is installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpiboot.core.errors import MpibootError
from mpiboot.ssh import agent_command as command


def test_mpirun_calls_the_agent_by_its_path() -> None:
    path = Path(command.words())
    assert (path.parent.name, path.name) == ("libexec", "agent")
    assert os.access(path, os.X_OK)


def test_an_agent_without_its_execute_bit_is_read_by_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = tmp_path / "agent"
    agent.touch(0o644)
    monkeypatch.setattr(command, "_AGENT", agent)
    assert command.words() == f"/bin/sh {agent}"


@pytest.mark.parametrize("blank", [" ", "\t"])
def test_a_blank_in_mpiboots_own_path_is_told_with_the_path(
    blank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mpirun would split the agent's path there."""
    agent = Path(f"/opt/my{blank}tools/agent")
    monkeypatch.setattr(command, "_AGENT", agent)
    with pytest.raises(MpibootError) as caught:
        command.words()
    assert caught.value.finding.check == "runtime-folder"
    assert repr(str(agent)) in caught.value.finding.said
    assert caught.value.finding.hint == "install mpiboot in a folder without blanks"
