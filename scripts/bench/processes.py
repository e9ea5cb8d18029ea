"""What processes cost: memory, descriptors, CPU time; read from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def pss(pids: Iterable[int]) -> float:
    """Kilobytes of processes, each shared page divided among its users."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += int(text.partition("Pss:")[2].split()[0])
    return float(total)


def private(pid: int) -> float:
    """Kilobytes of a process that no other one has a part in."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return float(sum(int(line.split()[1]) for line in lines if line.startswith("Private_")))


def below(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for number in found:
        with suppress(OSError):  # it has ended
            for task in Path(f"/proc/{number}/task").glob("*/children"):
                found += map(int, task.read_text().split())
    return found


def descriptors(pid: int) -> int:
    """How many files a process has open."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0


def cpu(pid: int) -> float:
    """CPU seconds of a process and of all its children that have ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, words[11:15])) / _TICK
