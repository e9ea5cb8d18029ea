"""Processes of this pod, the TCP ports that they listen on, and what its control groups allow.

psutil takes 12 ms of CPU time and a megabyte, so the first call that needs it imports it: never on
a worker's way to its SSH server. Read from /proc instead is elsewhere: how much came for a socket
(``supervisor/processes.py``), and the names of what a process was started with
(``network/pod.py``). Of a hierarchy of control groups (version 1 and 2) the lowest bound counts, as
far as it can be seen: a container that has a cgroup namespace sees its own group as the root, and
not its pod's above it. All of this is read-only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

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


def command(pid: int) -> list[str]:
    """Give a process's command line; empty where it has ended or is another user's."""
    return _of(pid, lambda process: process.cmdline(), [])


def environ(pid: int) -> dict[str, str]:
    """Give what a process was started with; empty where it has ended or is another user's."""
    return _of(pid, lambda process: process.environ(), {})


def environments() -> Iterator[dict[str, str]]:
    """Give the environment of every process that can be read from here."""
    return filter(None, map(environ, pids()))


def link_counters() -> dict[str, dict[str, int]]:
    """Give what each network link has received and sent."""
    import psutil  # noqa: PLC0415 - see above

    found: dict[str, Any] = {}
    with suppress(OSError):  # /proc/net is hidden, as in a procfs with subset=pid
        found = psutil.net_io_counters(pernic=True)
    return {
        name: {"rx_bytes": item.bytes_recv, "tx_bytes": item.bytes_sent}
        for name, item in found.items()
    }


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


GROUPS: Final = Path("/sys/fs/cgroup")
PROC: Final = Path("/proc")


def cpu_quota(groups: Path = GROUPS, proc: Path = PROC) -> float:
    """Read how many CPUs' time this process may use at once; 0 where nothing limits it."""
    found = []
    for folder in _folders(groups, proc, "cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            with suppress(OSError, ValueError):  # "max" and -1 are no limit
                text = " ".join((folder / name).read_text("ascii") for name in names)
                quota, period = map(int, text.split())
                if quota > 0 < period:
                    found.append(quota / period)
    return min(found, default=0.0)


def memory_kills(groups: Path = GROUPS, proc: Path = PROC) -> int | None:
    """Count the processes of this container that the kernel killed as memory was used up."""
    for folder in _folders(groups, proc, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError, KeyError, ValueError):
                rows = (folder / name).read_text("ascii").splitlines()
                return int(dict(map(str.split, rows))["oom_kill"])
    return None


def _folders(groups: Path, proc: Path, controller: str) -> Iterator[Path]:
    """Give the folders of this process's group and of those above it, its own first.

    Where the group's path isn't there (a container sees the node's, and has only its own group
    mounted), the mount itself is that group.
    """
    try:
        lines = (proc / "self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        names, found, path = line.partition(":")[2].partition(":")
        if not found or (names and controller not in names.split(",")):
            continue
        root = groups / controller if names else groups
        own = Path(path.lstrip("/"))
        for part in (own, *own.parents):
            if part != Path() and ".." not in part.parts:
                yield root / part
        yield root
