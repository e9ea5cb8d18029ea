"""What a launch has left in this pod: found by tree and by mark, ended, waited for."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot.core.launch_names import LAUNCH_DIR, LAUNCH_ID
from mpiboot.supervisor import processes
from mpiboot.system import processes as processes_table

# It says when it is ready: its environment and its handlers are what they are to be.
READY = "import signal, sys, time\n{}\nprint('ready', flush=True)\ntime.sleep(1000)"
IGNORES = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


class Launch:
    """Processes with the marks of a launch."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, first: str = "", folder: str = "", mark: str = "this") -> int:
        marks = {LAUNCH_DIR: folder or self.folder, LAUNCH_ID: mark}
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", READY.format(first)],
            env={**os.environ, **marks},
            stdout=subprocess.PIPE,
        )
        self.started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.stdout.close()
        return child.pid

    def close(self) -> None:
        for child in self.started:
            child.kill()
            child.wait()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    made = Launch(str(tmp_path))
    yield made
    made.close()


def test_the_mpi_libraries_of_a_program_are_those_that_it_is_linked_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mpi = b"\x7fELF...\0libmpi.so.12\0libmpich.so.12\0libc.so.6\0my-libmpi.so.40\0"
    for name, data in (("p", mpi), ("script", b"#!/bin/sh\n# \0libmpi.so.12\0")):
        (tmp_path / name).write_bytes(data)
    path, linked = f"/no/folder:{tmp_path}", {"libmpi.so.12", "libmpich.so.12"}
    assert processes.linked_mpi("p", path) == linked
    assert processes.linked_mpi("p", "/no/folder:") == linked  # an empty entry is this folder
    assert processes.linked_mpi(f"{tmp_path}/p", "") == linked
    for other in ("script", "", "gone", f"{tmp_path}/gone"):
        assert processes.linked_mpi(other, path) == frozenset()


def there(pid: int) -> bool:
    """Whether a process runs; nobody has reaped those of these tests that have ended."""
    return processes_table.find(pid) is not None


def test_what_has_the_mark_of_this_launch_is_found_and_nothing_else(launch: Launch) -> None:
    own, later = launch.start(), launch.start(mark="later")
    launch.start(folder=f"{launch.folder}2")
    found = processes.survivors(0, launch.folder, reaped=True)
    assert sorted(found) == sorted((own, later))
    assert processes.survivors(0, launch.folder, reaped=True, launch_id="this") == [own]
    assert processes.survivors(own, launch.folder, reaped=True, launch_id="this") == []


def test_what_stands_below_mpirun_is_found_without_a_mark_until_that_is_reaped(
    launch: Launch,
) -> None:
    script = "sleep 1000 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        below = int(shell.stdout.readline())
        assert processes.survivors(shell.pid, launch.folder, reaped=False) == [below]
        assert processes.survivors(shell.pid, launch.folder, reaped=True) == []
        os.kill(below, signal.SIGKILL)


def test_all_are_asked_to_end_and_those_that_ignore_it_are_killed(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    polite, deaf, other = launch.start(), launch.start(IGNORES), launch.start(mark="later")
    sent: list[tuple[list[int], int]] = []
    send = processes.send

    def note(pids: list[int], number: int) -> None:
        sent.append((sorted(pids), number))
        send(pids, number)
        # Whom this one ends is waited for, whatever time that takes here.
        gone = pids if number == signal.SIGKILL else [polite]
        processes.wait_gone(gone, 60)

    monkeypatch.setattr(processes, "send", note)
    assert processes.end_all(0, launch.folder, launch_id="this") == 2
    assert sent == [(sorted((polite, deaf)), signal.SIGTERM), ([deaf], signal.SIGKILL)]
    assert not there(polite)
    assert not there(deaf)
    assert there(other)
    assert processes.end_all(0, launch.folder, launch_id="this") == 0


def test_who_ends_when_asked_is_not_killed(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    launch.start()
    sent: list[int] = []
    send = processes.send

    def note(pids: list[int], number: int) -> None:
        sent.append(number)
        send(pids, number)
        processes.wait_gone(pids, 60)

    monkeypatch.setattr(processes, "send", note)
    assert processes.end_all(0, launch.folder) == 1
    assert sent == [signal.SIGTERM]


def test_a_signal_reaches_all_that_are_still_there() -> None:
    first = subprocess.Popen(["sleep", "1000"])
    second = subprocess.Popen(["sleep", "1000"])
    first.kill()
    first.wait()
    processes.send([first.pid, second.pid], signal.SIGTERM)
    assert second.wait(60) == -signal.SIGTERM


def test_the_wait_is_no_longer_than_it_may_be_and_ends_with_the_last(launch: Launch) -> None:
    pid = launch.start()
    gc.collect()  # what other tests left would be closed in between
    before = len(list(Path("/proc/self/fd").iterdir()))
    processes.wait_gone([pid], 0.05)
    assert there(pid)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    both = [launch.start(), pid]
    for each in both:
        os.kill(each, signal.SIGKILL)
    processes.wait_gone([*both, 2**22 + 1], 3600)
    assert not any(map(there, both))
