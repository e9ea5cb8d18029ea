"""Processes of this pod, the TCP ports that they listen on, and what its control groups allow.

psutil costs 12 ms of CPU time and a megabyte, so it is imported on first use: never while a worker
starts its SSH server. Other modules read /proc directly for the bytes a socket received
(``supervisor/processes.py``) and the names of a process's environment variables
(``network/pod.py``). In a cgroup hierarchy (v1 or v2) the lowest visible limit applies: in a
cgroup namespace a container sees its own group as the root, not the pod's above it. Read-only.
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
    """An entry of the process table; ``identity`` differs when a PID is reused.

    It is psutil's hash of the PID and the start time in ticks since boot; its
    ``create_time`` would change with the clock, and reads all of /proc/stat for each process.
    """

    pid: int
    parent: int
    session: int
    identity: int


class Activity(NamedTuple):
    """A sample of a process: psutil's status, parent PID, CPU time and age in seconds."""

    state: str
    parent: int
    cpu: float
    age: float


def text(path: Path) -> str:
    """Content of a file without blanks around it; empty if it can't be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def pids() -> list[int]:
    """List the PIDs of all visible processes."""
    import psutil  # noqa: PLC0415 - see above

    return psutil.pids()


def _of(pid: int, read: Callable[[psutil.Process], T], gone: T) -> T:
    """Query a process with ``read``; ``gone`` if it has ended or access is denied."""
    import psutil  # noqa: PLC0415 - see above

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return read(process)
    except (psutil.Error, OSError):
        return gone


def activity(pid: int) -> Activity | None:
    """Sample a process; None if it has ended."""

    def read(process: psutil.Process) -> Activity:
        used, age = process.cpu_times(), time.time() - process.create_time()
        return Activity(process.status(), process.ppid(), used.user + used.system, age)

    return _of(pid, read, None)


def find(pid: int) -> RunningProcess | None:
    """Look up a live process; None if it has ended (a zombie has)."""

    def read(process: psutil.Process) -> RunningProcess | None:
        if process.status() in ("zombie", "dead"):
            return None
        return RunningProcess(pid, process.ppid(), os.getsid(pid), hash(process))

    return _of(pid, read, None)


def table() -> dict[int, RunningProcess]:
    """Map PIDs to all visible live processes."""
    return {pid: found for pid in pids() if (found := find(pid))}


def ancestors() -> set[int]:
    """Return the PIDs of this process, its ancestors and init: all may adopt its orphans."""
    import psutil  # noqa: PLC0415 - see above

    return {1, os.getpid(), *(process.pid for process in psutil.Process().parents())}


def descendants(pid: int) -> list[tuple[int, int]]:
    """List all descendants as (PID, parent PID), parents first; empty if the process is gone."""
    none: list[psutil.Process] = []
    children = _of(pid, lambda process: process.children(recursive=True), none)
    parents = ((child.pid, parent(child.pid)) for child in children)
    return [(child, above) for child, above in parents if above >= 0]


def parent(pid: int) -> int:
    """Return a process's parent PID; -1 if it is gone."""
    return _of(pid, lambda process: process.ppid(), -1)


def program(pid: int) -> str:
    """Return the path of a process's executable; empty if it is gone or another user's."""
    return _of(pid, lambda process: process.exe().removesuffix(" (deleted)"), "")


def command(pid: int) -> list[str]:
    """Return a process's command line; empty if it has ended or is another user's."""
    return _of(pid, lambda process: process.cmdline(), [])


def environ(pid: int) -> dict[str, str]:
    """Return a process's initial environment; empty if it has ended or is another user's."""
    return _of(pid, lambda process: process.environ(), {})


def environments() -> Iterator[dict[str, str]]:
    """Iterate over the environments of all readable processes."""
    return filter(None, map(environ, pids()))


def link_counters() -> dict[str, dict[str, int]]:
    """Return the bytes received and sent by each network interface."""
    import psutil  # noqa: PLC0415 - see above

    found: dict[str, Any] = {}
    with suppress(OSError):  # /proc/net is hidden, as in a procfs with subset=pid
        found = psutil.net_io_counters(pernic=True)
    return {
        name: {"rx_bytes": item.bytes_recv, "tx_bytes": item.bytes_sent}
        for name, item in found.items()
    }


def sockets(state: str) -> list[Any]:
    """List this network namespace's TCP sockets in ``state``; empty if they are hidden.

    The items are psutil's: ``pid`` is one of the processes that hold the socket, None if they
    are another user's or pod's.
    """
    import psutil  # noqa: PLC0415 - see above

    try:
        found = psutil.net_connections("tcp")
    except (psutil.Error, OSError, RuntimeError):  # table missing, or psutil can't parse it
        return []
    return [item for item in found if item.laddr and item.status == state]


GROUPS: Final = Path("/sys/fs/cgroup")
PROC: Final = Path("/proc")


def cpu_quota(groups: Path = GROUPS, proc: Path = PROC) -> float:
    """Read this process's CPU quota in CPUs; 0 if unlimited."""
    found = []
    for folder in _cgroup_folders(groups, proc, "cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            with suppress(ValueError):  # "max" and -1: unlimited
                words = [word for name in names for word in text(folder / name).split()]
                quota, period = map(int, words)
                if quota > 0 < period:
                    found.append(quota / period)
    return min(found, default=0.0)


def memory_kills(groups: Path = GROUPS, proc: Path = PROC) -> int | None:
    """Count this container's OOM kills; None if unknown."""
    for folder in _cgroup_folders(groups, proc, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            with suppress(KeyError, ValueError):
                rows = text(folder / name).splitlines()
                return int(dict(map(str.split, rows))["oom_kill"])
    return None


def _cgroup_folders(groups: Path, proc: Path, controller: str) -> Iterator[Path]:
    """Iterate over the folders of this process's cgroup and its ancestors, innermost first.

    If the group's path is missing (a container sees the node's path, but has only its own group
    mounted), the mount point itself is the group.
    """
    for line in text(proc / "self/cgroup").splitlines():
        names, found, path = line.partition(":")[2].partition(":")
        if not found or (names and controller not in names.split(",")):
            continue
        root = groups / controller if names else groups
        own = Path(path.lstrip("/"))
        for part in (own, *own.parents):
            if part != Path() and ".." not in part.parts:
                yield root / part
        yield root
