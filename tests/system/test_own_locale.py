"""A program gets the environment of its pod, without the variable that Python itself sets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.cli import environment, mpiboot

RANK = {
    **{f"OMPI_COMM_WORLD_{name}": "0" for name in ("RANK", "LOCAL_RANK")},
    **{f"OMPI_COMM_WORLD_{name}": "1" for name in ("SIZE", "LOCAL_SIZE")},
    "MASTER_ADDR": "rank-0",
    "MASTER_PORT": "1",
}


def test_python_sets_it_where_there_is_no_locale(tmp_path: Path) -> None:
    line = [sys.executable, "-c", "import os; print(os.environ['LC_CTYPE'])"]
    assert subprocess.check_output(line, env=environment(tmp_path), text=True) == "C.UTF-8\n"


@pytest.mark.parametrize("words", ["env", "rank -- env"])
@pytest.mark.parametrize("given", ["", "C.UTF-8"])
def test_a_program_gets_it_only_where_it_was_set(tmp_path: Path, words: str, given: str) -> None:
    locale = {"LC_CTYPE": given} if given else {}
    done = mpiboot(tmp_path, *words.split(), env={"MPIBOOT_ROLE": "none", **RANK, **locale})
    assert done.returncode == 0
    assert ("LC_CTYPE" in done.stdout) == bool(given)


def test_a_launchers_command_gets_it_no_more(tmp_path: Path) -> None:
    done = mpiboot(tmp_path, "launcher", "--", "env")
    assert "PATH=" in done.stdout
    assert "LC_CTYPE" not in done.stdout
