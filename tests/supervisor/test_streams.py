"""Standard streams that are closed, full, or read by nobody."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import cli
from tests.fakes.cli import message

# Few words, many words, and words behind which the command fails.
LOOKS = {"--help": 0, "settings": 0, "doctor --check ssh-key": 1}


def run(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell, in which ``mpiboot`` is this one."""
    script = f'mpiboot() {{ "{sys.executable}" -m mpiboot "$@"; }}; {line}'
    return cli.run(folder, ["bash", "-c", script], {"MPIBOOT_TIMEOUT": "0"})


@pytest.mark.parametrize("command", LOOKS)
def test_output_that_has_no_room_is_an_error_of_two_lines(tmp_path: Path, command: str) -> None:
    done = run(tmp_path, f"mpiboot {command} > /dev/full")
    assert done.returncode == 73
    assert done.stderr.splitlines()[-2:] == [
        "mpiboot: error: [output] standard output can't be written: No space left on device",
        "mpiboot:   -> free space where standard output goes, or send it elsewhere",
    ]
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert bool(message(tmp_path)) == (command == "--help")


@pytest.mark.parametrize(("command", "code"), LOOKS.items())
def test_output_that_is_closed_is_written_to_nobody(
    tmp_path: Path, command: str, code: int
) -> None:
    done = run(tmp_path, f"mpiboot {command} >&-")
    assert (done.returncode, done.stderr) == (code, "")


def test_where_errors_go_may_be_closed(tmp_path: Path) -> None:
    done = run(tmp_path, "mpiboot settings --json <&- 2>&-")
    assert (done.returncode, done.stdout[:1]) == (0, "[")
    launcher = "mpiboot launcher -- mpirun true"
    code = run(tmp_path, launcher).returncode
    assert code == 66  # no hostfile is there
    assert run(tmp_path, f"{launcher} <&- >&- 2>&-").returncode == code
