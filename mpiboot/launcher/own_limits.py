"""What bounds this pod: its control groups and its process limits. Read-only."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

from mpiboot.core.model import Identity
from mpiboot.job.launcher_size import LauncherLimits
from mpiboot.system import control_groups
from mpiboot.system.control_groups import GROUPS, PROC

# Who has one of these is not bound by RLIMIT_NPROC (setrlimit(2)).
_CAP_SYS_ADMIN, _CAP_SYS_RESOURCE = 21, 24


def observe(who: Identity, *, groups: Path = GROUPS, proc: Path = PROC) -> LauncherLimits:
    """Look at this process's limits; what can't be read bounds nothing.

    Args:
        who: this process's user and capabilities.
        groups: where control groups are mounted.
        proc: where processes are.
    """
    memory, tasks = control_groups.memory(groups, proc), control_groups.processes(groups, proc)
    soft, hard = map(_limit, resource.getrlimit(resource.RLIMIT_NOFILE))
    bound = not who.capabilities >> _CAP_SYS_ADMIN & 1 and who.uid != 0
    bound = bound and not who.capabilities >> _CAP_SYS_RESOURCE & 1
    own = _limit(resource.getrlimit(resource.RLIMIT_NPROC)[1]) if bound else None
    return LauncherLimits(
        memory.limit,
        memory.used if memory.limit is not None else 0,
        tasks.limit,
        tasks.used if tasks.limit is not None else 0,
        own,
        _processes_of(who.uid, proc) if own is not None else 0,
        (soft, hard),
    )


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _processes_of(uid: int, proc: Path) -> int:
    """Count a user's processes and threads, all of which RLIMIT_NPROC counts, seen from here."""
    found = 0
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if folder.stat().st_uid == uid:
                found += len(os.listdir(folder / "task"))  # noqa: PTH208 - light
    return found
