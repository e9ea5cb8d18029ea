"""What this pod's control groups (version 1 and 2) allow, and what is in use of it. Read-only.

Of a hierarchy the lowest bound counts, as far as it can be seen: a container that has a cgroup
namespace sees its own group as the root, and not its pod's above it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

GROUPS: Final = Path("/sys/fs/cgroup")
PROC: Final = Path("/proc")
# Version 1 writes "no limit" as a number near 2^63, and no machine has as many bytes as this.
_UNLIMITED: Final = 1 << 60


class Usage(NamedTuple):
    """The lowest limit of a group and of those above it (None: none), and what is in use there.

    Without a limit ``used`` is that of the nearest group that has one; it is without the page cache
    that the kernel gives up first. ``seen``: any group could be read.
    """

    limit: int | None = None
    used: int = 0
    seen: bool = False


def memory(groups: Path = GROUPS, proc: Path = PROC) -> Usage:
    """Read the memory, in bytes."""
    limits = ("memory.max", "memory.limit_in_bytes")
    used = ("memory.current", "memory.usage_in_bytes")
    return _lowest(_folders(groups, proc, "memory"), limits, used)


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


def kills(groups: Path = GROUPS, proc: Path = PROC) -> int:
    """Count the processes of this container that the kernel killed as memory was used up."""
    for folder in _folders(groups, proc, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            with suppress(KeyError, ValueError):
                return int(_rows(folder / name)["oom_kill"])
    return 0


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


def _lowest(folders: Iterator[Path], limits: tuple[str, ...], used: tuple[str, ...]) -> Usage:
    """Find the lowest limit, and what is in use of it."""
    found = Usage()
    for folder in folders:
        limit, now = _number(folder, limits), _number(folder, used)
        if limit is not None and limit < _UNLIMITED:
            if found.limit is None or limit < found.limit:
                found = Usage(limit, _in_use(folder, now or 0), seen=True)
        elif now is not None and not found.seen:
            found = Usage(None, _in_use(folder, now), seen=True)
    return found


def _number(folder: Path, names: tuple[str, ...]) -> int | None:
    for name in names:
        with suppress(OSError, ValueError):  # "max" is no limit
            return int((folder / name).read_text("ascii"))
    return None


def _in_use(folder: Path, now: int) -> int:
    """Take off the cache of files that nobody has used lately, as a kubelet does."""
    values = _rows(folder / "memory.stat")
    return max(0, now - int(values.get("total_inactive_file", values.get("inactive_file", "0"))))


def _rows(path: Path) -> dict[str, str]:
    with suppress(OSError, ValueError):
        return dict(map(str.split, path.read_text("ascii").splitlines()))
    return {}
