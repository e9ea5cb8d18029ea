"""Programs that are run for some seconds at most, which MPI one is, and whose end is whose."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from mpiboot.core.model import Mpi, MpiFamily
from mpiboot.system import programs, spawn
from mpiboot.system.programs import ProgramEnd, detect_mpi, has_ipv6, recognise
from tests.fakes.programs import program
from tests.waiting import until


def environ(*folders: Path, **more: str) -> dict[str, str]:
    return {"PATH": ":".join((*map(str, folders), "/usr/bin", "/bin")), **more}


@pytest.mark.parametrize(
    ("text", "family", "version"),
    [
        ("mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to x\n", "openmpi4", "4.1.4"),
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to x\n", "openmpi4", "4.1.4"),
        ("mpirun (Open MPI) 5.0.11\n", "openmpi5", "5.0.11"),
        ("mpirun (Open MPI) 5.0.0rc12\n", "openmpi5", "5.0.0rc12"),
        ("mpirun (Open MPI) 6.1.0a1\n", "openmpi5", "6.1.0a1"),
        ("warning: x\nmpirun (Open MPI) 3.1.3\n", "openmpi4", "3.1.3"),
        ("HYDRA build details:\n    Version:     4.0.2\n    CC: gcc\n", "mpich", "4.0.2"),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: x)\n",
            "intel",
            "2021.18.1",
        ),
        ("mpirun (IBM Spectrum MPI) 10.3.1.02rtm0\n", "spectrum", "10.3.1.02rtm0"),
        ("mpirun 1.0 by someone\n", "", ""),
        ("", "", ""),
    ],
)
def test_an_mpi_is_known_by_its_own_answer(text: str, family: str, version: str) -> None:
    mpi = recognise("/opt/bin/mpirun", text)

    assert (mpi.family, mpi.version, mpi.path) == (family, version, "/opt/bin/mpirun")
    assert "\n" not in mpi.banner


FIVE, FOUR = "echo 'mpirun (Open MPI) 5.0.8'", "echo 'mpirun (Open MPI) 4.1.4'"
BOTH = {"a/mpirun": FIVE, "b/mpirun": FOUR, "b/mpiexec": "echo 'mpiexec (Open MPI) 4.1.5'"}
INTELS = "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 1 (id: x)"
# It takes mpiexec.hydra from PATH.
SCRIPT = 'exec mpiexec.hydra "$@"'
MPICH = "printf 'HYDRA build details:\\n Version:  5.0.2\\n'"
# Programs, what is called, and of which file, family and version the answer is.
DETECTED = {
    "the first on PATH": (BOTH, "", "a/mpirun openmpi5 5.0.8"),
    "mpiexec": ({"a/mpiexec": MPICH}, "", "a/mpiexec mpich 5.0.2"),
    "called by its path": (BOTH, "{}/b/mpirun", "b/mpirun openmpi4 4.1.4"),
    "called by its name": (BOTH, "mpiexec", "b/mpiexec openmpi4 4.1.5"),
    "called and not there": (BOTH, "/nonexistent/mpirun", ""),
    "none": ({}, "", ""),
    "Intel's script, by a link from elsewhere": (
        {
            "intel/mpirun": SCRIPT,
            "intel/mpiexec.hydra": f"echo '{INTELS}'",
            "a/mpiexec.hydra": MPICH,
            "a/mpirun": "-> intel/mpirun",
        },
        *("", "intel/mpiexec.hydra intel 2021.18.1"),
    ),
    "Intel's script that starts another MPI": (
        *({"a/mpirun": SCRIPT, "b/mpiexec.hydra": MPICH}, "", "a/mpirun mpich 5.0.2"),
    ),
    "its folder is the first on PATH, and HOME is set": (
        {"b/mpirun": 'echo "(Open MPI) 5.0.1-$HOME-${PATH%%:*}"'},
        *("", "b/mpirun openmpi5 5.0.1-/-{}/b"),
    ),
}


@pytest.mark.parametrize(("files", "called", "found"), DETECTED.values(), ids=DETECTED)
def test_whose_mpirun_is_called(
    tmp_path: Path, files: dict[str, str], called: str, found: str
) -> None:
    for name, script in files.items():
        folder, _, base = name.partition("/")
        if script.startswith("-> "):
            (tmp_path / name).symlink_to(tmp_path / script[3:])
        else:
            program(tmp_path / folder, base, script)
    mpi = detect_mpi({"PATH": f"{tmp_path}/a:{tmp_path}/b"}, called.format(tmp_path))
    seen = mpi and f"{Path(mpi.path).relative_to(tmp_path)} {mpi.family.value} {mpi.version}"
    assert (seen or "") == found.format(tmp_path)


@pytest.mark.parametrize(
    ("script", "banner"),
    [
        ("sleep 60 & sleep 60", "it gave no answer within 0.3 s"),
        ("\x7fELF not really", "it can't be run: Exec format error"),
        ("echo 'no help file' >&2", "no help file"),
    ],
)
def test_an_mpi_that_does_not_answer_has_what_happened_as_its_banner(
    tmp_path: Path, script: str, banner: str
) -> None:
    path = program(tmp_path, "mpirun", script)
    if script.startswith("\x7f"):
        path.write_text(script)
    mpi = detect_mpi(environ(tmp_path), patience=0.3 if "sleep" in script else 60)
    assert mpi is not None
    assert (mpi.family, mpi.banner) == ("", banner)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("echo options:mpi1_compat:no; echo options:ipv6:yes", True),
        ("echo options:ipv6:no", False),
        ("echo nothing of that", None),
        ("exit 1", None),
        (None, None),
    ],
)
def test_whether_an_mpi_has_ipv6(tmp_path: Path, body: str | None, *, found: bool | None) -> None:
    mpirun = program(tmp_path, "mpirun", "exit 1")
    if body:
        program(tmp_path, "ompi_info", body)
    assert has_ipv6(Mpi(MpiFamily.OPENMPI5, "5.0.7", str(mpirun), ""), environ(tmp_path)) is found


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_program_gives_what_it_printed_and_how_it_ended(
    monkeypatch: pytest.MonkeyPatch, *, in_memory: bool
) -> None:
    """Also where Python or the kernel has no files in memory."""
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create")
    script = r"printf 'one\377'; echo two >&2; read x; exit 3"
    words = ("/bin/sh", "-c", script)
    assert programs.run(words, 60.0) == ProgramEnd(3, "one\N{REPLACEMENT CHARACTER}", "two\n")
    assert programs.run(words, 60.0, errors="surrogateescape") == ProgramEnd(
        3, "one\udcff", "two\n"
    )
    killed = programs.run(("/bin/sh", "-c", "kill -9 $$"), 60.0)
    assert killed == ProgramEnd(-signal.SIGKILL, "", "")
    with pytest.raises(FileNotFoundError):
        programs.run(("/nowhere/program",), 60.0)
    loud = programs.run(("/bin/sh", "-c", "head -c 3000000 /dev/zero; echo end"), 60.0)
    assert loud is not None
    assert (len(loud.stdout), loud.stdout[-5:]) == (programs.OUTPUT_LIMIT, "\0end\n")
    left = programs.run(("/bin/sh", "-c", "sleep 600 & echo $!"), 60.0)  # is not waited for
    assert left is not None
    os.kill(int(left.stdout), signal.SIGKILL)


def test_a_program_that_takes_too_long_is_killed_with_what_it_started(tmp_path: Path) -> None:
    fifo, began = tmp_path / "alive", tmp_path / "began"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    script = f"exec 3<>{fifo}; echo > {began}; sleep 600 & sleep 600"
    for limit in (0.5, 5.0, 50.0):  # a busy machine may not have come to it within the limit
        assert programs.run(("/bin/sh", "-c", script), limit) is None
        if began.exists():
            break
    assert began.exists()

    def nobody_could_write() -> bool:
        try:
            return os.read(reader, 1) == b""
        except BlockingIOError:
            return False

    until(nobody_could_write)
    os.close(reader)


def test_a_program_that_is_left_by_a_signal_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    script = f"echo $$ > {told}.n; mv {told}.n {told}; sleep 600"
    run = f"from mpiboot.system import programs; programs.run(('/bin/sh', '-c', {script!r}), 600)"
    with subprocess.Popen([sys.executable, "-c", run]) as mine:
        until(told.exists)
        mine.send_signal(signal.SIGINT)
    assert mine.returncode in (-signal.SIGINT, 130)
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


# -- the ends of programs --------------------------------------------------------------------------


@pytest.fixture
def _reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the launcher: each end is heard of by ``reap`` alone."""
    monkeypatch.setattr(programs._TABLE, "reaped", True)


def test_a_program_that_no_thread_can_wait_for_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=RuntimeError("can't start new thread"))
    spawned, pids = spawn.spawn, list[int]()

    def keep(*given: Any, **how: Any) -> int:  # noqa: ANN401 - as it was called
        pids.append(spawned(*given, **how))
        return pids[0]

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", full)
        patched.setattr(spawn, "spawn", keep)
        with pytest.raises(RuntimeError):
            programs.start(("/bin/sleep", "600"), {})
    assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == -signal.SIGKILL


def test_an_end_that_somebody_else_was_told_is_one_here_too() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    try:
        assert programs.start(("/bin/sh", "-c", "exit 3"), {}).wait(60) == 0
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("_reaped")
def test_an_end_that_comes_before_its_program_is_known_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program ends at once, and the loop's thread reaps it, before ``start`` returns."""
    start = spawn.spawn

    def ended(*given: Any, **how: Any) -> int:  # noqa: ANN401 - as it was called
        pid = start(*given, **how)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        programs.reap()
        return pid

    monkeypatch.setattr(spawn, "spawn", ended)
    child = programs.start(("/bin/sh", "-c", "exit 3"), {})
    assert os.waitstatus_to_exitcode(child.wait(60) or 0) == 3
    told: list[int] = []
    child.on_end(told.append)
    assert told == [child.status]
    assert (programs._TABLE.early, child.pid in programs._TABLE.running) == ({}, False)


@pytest.mark.usefixtures("_reaped")
def test_who_is_nobodys_child_is_reaped_too() -> None:
    """PID 1 gets what others have left."""
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    programs.reap()
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)


@pytest.mark.usefixtures("_reaped")
async def test_each_of_many_that_end_at_once_has_its_own_status() -> None:
    started = [programs.start(("/bin/sh", "-c", f"exit {number}"), {}) for number in range(100)]
    ends = [asyncio.ensure_future(child.ended()) for child in started]
    while not all(end.done() for end in ends):
        programs.reap()
        await asyncio.sleep(0.01)
    found = [os.waitstatus_to_exitcode(end.result()) for end in ends]
    assert found == list(range(100))
