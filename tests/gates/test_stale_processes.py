"""What an earlier launcher left is ended, by its mark alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from mpiboot import host_shell
from mpiboot.gates import stale_processes
from mpiboot.model import Host, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEY = "ssh-ed25519 AAAA"


@pytest.fixture
def start() -> Iterator[Callable[[str, str], subprocess.Popen[bytes]]]:
    """Start a process with a mark."""
    started = []

    def make(mark: str, script: str) -> subprocess.Popen[bytes]:
        env = {"PATH": os.environ["PATH"], stale_processes.NAME: mark}
        started.append(subprocess.Popen(["sh", "-c", script], env=env, stdout=subprocess.PIPE))
        return started[-1]

    yield make
    for item in started:
        with contextlib.suppress(ProcessLookupError):
            item.kill()
        item.communicate()


def worker(*marks: str) -> Worker:
    return Worker(Host("w-1"), "10.0.0.2", 22, "root", "10.0.0.1", None, marks=marks)


def sweep(*marks: str) -> str:
    script = host_shell.end_processes(marks)
    return subprocess.run(script, shell=True, capture_output=True, text=True, check=True).stdout


def test_marks_of_a_job_are_its_own() -> None:
    first, second = stale_processes.new_mark(KEY), stale_processes.new_mark(KEY)
    assert first != second
    assert first.startswith(stale_processes.job_id(KEY))
    assert not first.startswith(stale_processes.job_id("another key"))


def test_only_marks_of_this_job_whose_launcher_is_gone_count(
    start: Callable[[str, str], subprocess.Popen[bytes]],
) -> None:
    here, gone = stale_processes.new_mark(KEY), stale_processes.new_mark(KEY)
    other = stale_processes.new_mark("another key")
    waiting = start(here, "echo; exec sleep 1000")
    assert waiting.stdout is not None
    waiting.stdout.readline()
    seen = worker(here, gone, other, "$(reboot)", f"{stale_processes.job_id(KEY)}-'; reboot")
    assert stale_processes.of_earlier([seen], KEY) == {"w-1": (gone,)}
    assert stale_processes.of_earlier([worker()], KEY) == {}


def test_marked_processes_are_ended_and_others_are_not(
    start: Callable[[str, str], subprocess.Popen[bytes]],
) -> None:
    old, new = stale_processes.new_mark(KEY), stale_processes.new_mark(KEY)
    first = start(old, "exec sleep 1000")
    stopped = start(old, "exec sleep 1000")
    stopped.send_signal(signal.SIGSTOP)
    kept = start(new, "exec sleep 1000")
    assert "left 0" in sweep(old)
    assert {first.wait(10), stopped.wait(10)} == {-signal.SIGTERM}
    assert kept.poll() is None


def test_what_ignores_a_term_is_killed(
    start: Callable[[str, str], subprocess.Popen[bytes]],
) -> None:
    mark = stale_processes.new_mark(KEY)
    stubborn = start(mark, "trap '' TERM; echo; while :; do sleep 1000; done")
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    sweep(mark)
    assert stubborn.wait(10) == -signal.SIGKILL
