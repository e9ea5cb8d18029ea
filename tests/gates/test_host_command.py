from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from mpiboot.gates import host_command

SHELLS = [shell for shell in ("sh", "bash", "dash", "zsh", "fish", "tcsh") if shutil.which(shell)]


def run(shell: str = "sh", **environ: str) -> str:
    done = subprocess.run(
        [shell, "-c", host_command.COMMAND],
        env={"PATH": "/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "with blank"
    made.mkdir()
    return made


@pytest.mark.parametrize("shell", SHELLS)
def test_facts_are_brought_back_through_any_login_shell(shell: str, folder: Path) -> None:
    (folder / "facts.json").write_text('{"a": 1}\n')

    assert run(shell, MPIBOOT_WORKER_DIR=str(folder)).endswith('mpiboot-facts\n{"a": 1}\n')


def test_facts_that_come_late_are_waited_for(folder: Path) -> None:
    def write() -> None:
        (folder / "new").write_text("{}\n")
        (folder / "new").rename(folder / "facts.json")

    timer = threading.Timer(0.3, write)
    timer.start()
    output = run(MPIBOOT_WORKER_DIR=str(folder))
    timer.join()

    assert output.endswith("mpiboot-facts\n{}\n")


def test_a_worker_without_mpiboot_tells_what_plain_programs_know(tmp_path: Path) -> None:
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.8'; echo; echo Report\n")
    program.chmod(0o755)
    output = run(PATH=f"{tmp_path}:/usr/bin:/bin")

    facts, mpi = host_command.read("Welcome to this image\n" + output)

    assert facts is None
    assert mpi is not None
    assert (mpi.family, mpi.version, mpi.path) == ("openmpi5", "5.0.8", str(program))


def test_a_worker_without_mpirun_has_no_mpi(tmp_path: Path) -> None:
    for name in ("uname", "head", "sh"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    output = run(shutil.which("sh") or "sh", PATH=str(tmp_path))

    assert "mpiboot-plain\n" in output
    assert host_command.read(output) == (None, None)


@pytest.mark.parametrize("output", ["", "garbage\n", "mpiboot-plain", "mpiboot-facts\nnot json"])
def test_an_output_that_cannot_be_read_is_no_facts(output: str) -> None:
    assert host_command.read(output) == (None, None)


def test_the_command_is_one_line_without_traps_for_the_login_shell() -> None:
    assert "\n" not in host_command.COMMAND
    assert host_command.COMMAND.count("'") == 2
    assert "!" not in host_command.COMMAND.replace("[ ! -s", "")


def test_the_present_state_comes_before_the_facts() -> None:
    output = (
        "mpiboot-oom 3\nmpiboot-process\nMPIBOOT_JOB_MARK=b\n"
        "mpiboot-process\nMPIBOOT_JOB_MARK=a\nmpiboot-ends\nmpiboot-plain\n"
    )
    assert host_command.notes(output) == host_command.Notes(3, ("a", "b"), ends=True)
    assert host_command.notes("Welcome\n") == host_command.Notes(None, (), ends=False)
