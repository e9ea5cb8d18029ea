"""Programs that are started, and whose ends are taken off the process table by one place."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from functools import partial

import pytest

from mpiboot.system import children, spawn
from mpiboot.system.children import Child


@pytest.fixture
def _reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the launcher: each end is heard of by ``reap`` alone."""
    monkeypatch.setattr(children._TABLE, "reaped", True)


def status_of(child: Child) -> int | None:
    found = child.wait(60)
    return None if found is None else os.waitstatus_to_exitcode(found)


def test_elsewhere_a_thread_waits_for_each() -> None:
    assert status_of(children.start(("/bin/sh", "-c", "exit 3"), {})) == 3


def test_a_program_that_no_thread_can_wait_for_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError):
            children.start(("/bin/sleep", "600"), {})
    assert os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1]) == -signal.SIGKILL


@pytest.mark.usefixtures("_reaped")
def test_an_end_that_comes_before_its_program_is_known_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program ends at once, and the loop's thread reaps it, before ``start`` returns."""
    start = spawn.spawn

    def ended(*given: object, **how: object) -> int:
        pid = partial(start, *given, **how)()  # type: ignore[arg-type] # as it was called
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        children.reap()
        return pid

    monkeypatch.setattr(spawn, "spawn", ended)
    child = children.start(("/bin/sh", "-c", "exit 3"), {})
    assert status_of(child) == 3
    told: list[int] = []
    child.on_end(told.append)
    assert told == [child.status]
    assert (children._TABLE.early, child.pid in children._TABLE.running) == ({}, False)


@pytest.mark.usefixtures("_reaped")
def test_who_is_nobodys_child_is_reaped_too() -> None:
    """PID 1 gets what others have left."""
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    children.reap()
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)


@pytest.mark.usefixtures("_reaped")
async def test_each_of_many_that_end_at_once_has_its_own_status() -> None:
    loop = asyncio.get_running_loop()
    looking = loop.create_task(_reap_on())
    started = [children.start(("/bin/sh", "-c", f"exit {number}"), {}) for number in range(100)]
    found = await asyncio.gather(*(child.ended() for child in started))
    looking.cancel()
    assert list(map(os.waitstatus_to_exitcode, found)) == list(range(100))


async def _reap_on() -> None:
    while True:
        children.reap()
        await asyncio.sleep(0.01)
