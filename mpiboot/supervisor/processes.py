"""Processes that mpirun has left on this pod: found, signalled, waited for."""

# pathlib, and what it imports, costs the parent a megabyte for nothing.
# ruff: noqa: PTH110, PTH115, PTH208
from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from typing import Final

from mpiboot.core.launch_spec import JOB_MARK, MARK
from mpiboot.supervisor.watch import Processes
from mpiboot.system.os_calls import process_handle, reap

_PATIENCE: Final = 2.0
_STEP: Final = 0.02


def survivors(child: int, folder: str, *, reaped: bool, mark: str = "") -> list[int]:
    """Find what mpirun started on this pod and what is still there.

    That is what stands below it in the process tree, and, once it is gone and its children
    belong to somebody else, whatever was started with this launch's own mark in its environment
    and lives in this pod (two pods that share a process table don't share a mount namespace).
    With the job's ``mark`` a later launch in the same folder is told apart.
    """
    table = Processes()
    found = [] if reaped else list(table.descendants(child))
    wanted = {f"{MARK}={folder}"} | ({f"{JOB_MARK}={mark}"} if mark else set())
    own = _mounts("self")
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (os.getpid(), child):
            continue
        if wanted.issubset(table.environment(int(name))) and _mounts(name) == own:
            found.append(int(name))
    return list(dict.fromkeys(found))


def _mounts(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def send(pids: list[int], number: int) -> None:
    """Send a signal to processes, those of them that are still there."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def end_all(child: int, folder: str, *, mark: str = "") -> int:
    """End what mpirun left here: SIGTERM, and after some time SIGKILL; give their number."""
    left = survivors(child, folder, reaped=True, mark=mark)
    if not left:
        return 0
    count = len(left)
    for number in (signal.SIGTERM, signal.SIGKILL):
        send(left, number)
        wait_gone(left)
        # Those that were ended may have started others; a zombie has no environment any more.
        left = survivors(child, folder, reaped=True, mark=mark)
        if not left:
            break
    return count


def wait_gone(pids: list[int], patience: float = _PATIENCE) -> None:
    """Wait until processes are gone, whoever their parent is; our own are reaped."""
    deadline = time.monotonic() + patience
    poll, handles, unseen = select.poll(), [], []
    for pid in pids:
        with suppress(ProcessLookupError):
            handle = process_handle(pid)
            if handle is None:
                unseen.append(pid)
                continue
            handles.append(handle)
            poll.register(handle, select.POLLIN)
    alive = set(handles)
    while alive and (left := deadline - time.monotonic()) > 0:
        for handle, _ in poll.poll(left * 1000):
            poll.unregister(handle)
            alive.discard(handle)
    for handle in handles:
        os.close(handle)
    reap()
    while time.monotonic() < deadline and any(os.path.exists(f"/proc/{pid}") for pid in unseen):
        time.sleep(_STEP)
        reap()
