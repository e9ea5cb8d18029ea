"""What bounds this pod: its control groups (version 1 and 2) and its process limits. Read-only.

Of a hierarchy the lowest bound counts, as far as it can be seen: a container that has a cgroup
namespace sees its own group as the root, and not its pod's above it.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpiboot.job.launcher_size import LauncherLimits
from mpiboot.model import Identity

GROUPS: Final = Path("/sys/fs/cgroup")
PROC: Final = Path("/proc")
# Version 1 writes "no limit" as a number near 2^63, and no machine has as many bytes as this.
_UNLIMITED: Final = 1 << 60
# Who has one of these is not bound by RLIMIT_NPROC (setrlimit(2)).
_CAP_SYS_ADMIN, _CAP_SYS_RESOURCE = 21, 24


def observe(who: Identity, *, groups: Path = GROUPS, proc: Path = PROC) -> LauncherLimits:
    """Look at this process's limits; what can't be read bounds nothing.

    Args:
        who: this process's user and capabilities.
        groups: where control groups are mounted.
        proc: where processes are.
    """
    memory, memory_used = _lowest(
        _folders(groups, proc, "memory"),
        ("memory.max", "memory.limit_in_bytes"),
        ("memory.current", "memory.usage_in_bytes"),
    )
    processes, processes_used = _lowest(
        _folders(groups, proc, "pids"), ("pids.max",), ("pids.current",)
    )
    soft, hard = map(_limit, resource.getrlimit(resource.RLIMIT_NOFILE))
    bound = not who.capabilities >> _CAP_SYS_ADMIN & 1 and who.uid != 0
    bound = bound and not who.capabilities >> _CAP_SYS_RESOURCE & 1
    own = _limit(resource.getrlimit(resource.RLIMIT_NPROC)[1]) if bound else None
    return LauncherLimits(
        memory,
        memory_used,
        processes,
        processes_used,
        own,
        _processes_of(who.uid, proc) if own is not None else 0,
        (soft, hard),
    )


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


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


def _lowest(
    folders: Iterator[Path], limits: tuple[str, ...], used: tuple[str, ...]
) -> tuple[int | None, int]:
    """Find the lowest limit, and what is in use of it."""
    found: tuple[int | None, int] = (None, 0)
    for folder in folders:
        limit = _number(folder, limits)
        if limit is not None and limit < _UNLIMITED and (found[0] is None or limit < found[0]):
            found = limit, max(0, (_number(folder, used) or 0) - _reclaimable(folder, used))
    return found


def _number(folder: Path, names: tuple[str, ...]) -> int | None:
    for name in names:
        try:
            text = (folder / name).read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text.isdigit():
            return int(text)
    return None


def _reclaimable(folder: Path, used: tuple[str, ...]) -> int:
    """Read how much memory is cache of files that nobody has used lately, as a kubelet does."""
    if "memory.current" not in used:
        return 0
    try:
        text = (folder / "memory.stat").read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return 0
    values = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)  # noqa: PLR2004
    return int(values.get("total_inactive_file", values.get("inactive_file", "0")))


def _processes_of(uid: int, proc: Path) -> int:
    """Count a user's processes and threads, all of which RLIMIT_NPROC counts, seen from here."""
    found = 0
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if folder.stat().st_uid == uid:
                found += len(os.listdir(folder / "task"))  # noqa: PTH208 - light
    return found
