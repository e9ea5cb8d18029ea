"""What this pod may use: limits, control group, /dev/shm, routing; read from /proc and /sys."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mpiboot.doctor.report import LimitsPart, MemoryPart, MeshPart, RoutingPart, ShmPart
from mpiboot.network import platform_hints
from mpiboot.network.sysfs import text
from mpiboot.system import control_groups

PROC: Final = Path("/proc")
SHM: Final = Path("/dev/shm")  # noqa: S108 - looked at only
# Names of /proc/PID/limits that a job meets.
LIMITS: Final = {
    "locked memory": "Max locked memory",
    "open files": "Max open files",
    "processes": "Max processes",
}
_LIMIT: Final = re.compile(r"^(Max [a-z ]+?) {2,}(\S+)", re.MULTILINE)
_NCCL: Final = "nccl-"
# Files of NCCL that are looked at; a job of 8 ranks a pod has some hundreds.
_MOST: Final = 4096


def limits(server: str, proc: Path = PROC, groups: Path = control_groups.GROUPS) -> LimitsPart:
    """Read the limits of sessions and of the pod's first process.

    Args:
        server: the process whose limits SSH sessions have, as /proc names it; empty where none is.
        proc: where /proc is.
        groups: where control groups are mounted.
    """
    sessions = _limits(proc / server / "limits") if server else {}
    tasks = control_groups.processes(groups, proc)
    return LimitsPart(sessions, _limits(proc / "1/limits"), tasks.used, tasks.limit or 0)


def _limits(path: Path) -> dict[str, int]:
    rows = {match[1]: match[2] for match in _LIMIT.finditer(text(path))}
    known = {name: rows.get(row, "") for name, row in LIMITS.items()}
    return {
        name: -1 if value == "unlimited" else int(value)
        for name, value in known.items()
        if value == "unlimited" or value.isdigit()
    }


def _processes(proc: Path) -> Iterator[Path]:
    return (item for item in proc.iterdir() if item.name.isdigit())


def shm(folder: Path = SHM, proc: Path = PROC) -> ShmPart:
    """Measure /dev/shm, and find NCCL's files that no process of this pod holds."""
    room = os.statvfs(folder)
    size = room.f_blocks * room.f_frsize
    used = size - room.f_bfree * room.f_frsize
    files: dict[str, int] = {}
    names = [name for name in os.listdir(folder) if name.startswith(_NCCL)]  # noqa: PTH208
    for path in (folder / name for name in names[:_MOST]):
        with contextlib.suppress(FileNotFoundError):
            files[str(path)] = path.lstat().st_blocks * 512
    if not files:
        return ShmPart(size, used)
    held, all_seen = _held(str(folder), proc)
    stale = tuple((Path(path).name, size) for path, size in files.items() if path not in held)
    return ShmPart(size, used, stale, all_seen)


def _held(folder: str, proc: Path) -> tuple[set[str], bool]:
    """Give the files of a folder that processes have in memory, and whether all could be asked."""
    held, all_seen = set(), True
    for process in _processes(proc):
        try:
            lines = (process / "maps").read_text("utf-8", "replace").splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            all_seen = False
            continue
        held |= {line.split(None, 5)[5] for line in lines if f" {folder}/{_NCCL}" in line}
    return held, all_seen


def memory(groups: Path = control_groups.GROUPS, proc: Path = PROC) -> MemoryPart | None:
    """Read the container's control group; None where it can't be read."""
    seen = control_groups.memory(groups, proc)
    if not seen.seen:
        return None
    return MemoryPart(seen.limit or 0, seen.used, control_groups.kills(groups, proc))


def routing(proc: Path = PROC) -> RoutingPart:
    """Read rp_filter of each link; of a link's own value and that of all the larger one counts."""
    base = proc / "sys/net/ipv4/conf"
    named = {item.name: text(item / "rp_filter") for item in base.iterdir()}
    numbers = {name: int(value) for name, value in named.items() if value.isdigit()}
    everywhere = numbers.get("all", 0)
    links = {name: value for name, value in numbers.items() if name not in ("all", "default")}
    return RoutingPart({name: max(value, everywhere) for name, value in links.items()})


def mesh() -> MeshPart:
    """Look for a service mesh's proxy."""
    return MeshPart(platform_hints.service_mesh())
