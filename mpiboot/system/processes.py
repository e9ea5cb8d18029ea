"""Processes of this pod and the TCP ports that they listen on, by psutil. Read-only.

psutil takes 12 ms of CPU time and a megabyte, so the first call that needs it imports it: never on
a worker's way to its SSH server. Read from /proc instead is elsewhere: how much came for a socket
(``supervisor/processes.py``), and the names of what a process was started with
(``network/pod.py``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    import psutil

T = TypeVar("T")


class RunningProcess(NamedTuple):
    """A line of the process table; ``identity`` tells a process from a later one of that number.

    That is psutil's own hash, of the number and the ticks from boot to the process's start; its
    ``create_time`` would change with the clock, and reads all of /proc/stat for each process.
    """

    pid: int
    parent: int
    session: int
    identity: int


class Activity(NamedTuple):
    """A sample of a process: state (psutil's name), parent, its age and CPU time in seconds."""

    state: str
    parent: int
    cpu: float
    age: float


def pids() -> list[int]:
    """Give the number of every process that can be seen from here."""
    import psutil  # noqa: PLC0415 - see above

    return psutil.pids()


def _of(pid: int, read: Callable[[psutil.Process], T], gone: T) -> T:
    """Read something of a process; ``gone`` where it has ended, or is another user's."""
    import psutil  # noqa: PLC0415 - see above

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return read(process)
    except (psutil.Error, OSError):
        return gone


def activity(pid: int) -> Activity | None:
    """Sample a process; None where it has ended."""

    def read(process: psutil.Process) -> Activity:
        used, age = process.cpu_times(), time.time() - process.create_time()
        return Activity(process.status(), process.ppid(), used.user + used.system, age)

    return _of(pid, read, None)


def find(pid: int) -> RunningProcess | None:
    """Give one living process; None where it has ended (a zombie has)."""

    def read(process: psutil.Process) -> RunningProcess | None:
        if process.status() in ("zombie", "dead"):
            return None
        return RunningProcess(pid, process.ppid(), os.getsid(pid), hash(process))

    return _of(pid, read, None)


def table() -> dict[int, RunningProcess]:
    """Give every living process that can be seen from here."""
    return {pid: found for pid in pids() if (found := find(pid))}


def ancestors() -> set[int]:
    """Give this process, those that it descends from, and init: who may adopt its orphans."""
    import psutil  # noqa: PLC0415 - see above

    return {1, os.getpid(), *(process.pid for process in psutil.Process().parents())}


def descendants(pid: int) -> list[tuple[int, int]]:
    """List all processes below one, parents first, each with its parent; none where it is gone."""
    none: list[psutil.Process] = []
    children = _of(pid, lambda process: process.children(recursive=True), none)
    parents = ((child.pid, parent(child.pid)) for child in children)
    return [(child, above) for child, above in parents if above >= 0]


def parent(pid: int) -> int:
    """Give a process's parent; -1 where it is gone."""
    return _of(pid, lambda process: process.ppid(), -1)


def program(pid: int) -> str:
    """Give the path of what a process runs; empty where it is gone or another user's."""
    return _of(pid, lambda process: process.exe().removesuffix(" (deleted)"), "")


def environ(pid: int) -> dict[str, str]:
    """Give what a process was started with; empty where it has ended or is another user's."""
    return _of(pid, lambda process: process.environ(), {})


def environments() -> Iterator[dict[str, str]]:
    """Give the environment of every process that can be read from here."""
    return filter(None, map(environ, pids()))


def sockets(state: str) -> list[Any]:
    """Give the TCP sockets of this network namespace in a state; none where they are hidden.

    They are psutil's: ``pid`` is one of the processes that have it, None where these are another
    user's or pod's.
    """
    import psutil  # noqa: PLC0415 - see above

    try:
        found = psutil.net_connections("tcp")
    except (psutil.Error, OSError, RuntimeError):  # no such table, or one that psutil can't read
        return []
    return [item for item in found if item.laddr and item.status == state]
