"""Which processes belong to a worker's SSH session, as the process table and their marks tell."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MARK: Final = "MPIBOOT_SESSION"


@dataclass(frozen=True, slots=True)
class Process:
    """A line of the process table; ``start`` tells a process from a later one of that number."""

    pid: int
    parent: int
    session: int
    start: int


def process(pid: int) -> Process | None:
    """One living process; None where it has ended (a zombie has)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name in parentheses may hold anything, parentheses too.
    words = text[text.rindex(b")") + 2 :].split()
    if words[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(words[1]), int(words[3]), int(words[19]))


def table() -> dict[int, Process]:
    """Every living process that can be seen from here."""
    names = os.listdir("/proc")  # noqa: PTH208 - a Path for each process is half of the cost
    found = (process(int(name)) for name in names if name.isdigit())
    return {item.pid: item for item in found if item}


def mark_of(pid: int) -> str:
    """Read the mark of the session that a process belongs to; empty where it has none."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""  # ended, or another user's
    key = MARK.encode() + b"="
    at = 0 if environ.startswith(key) else environ.find(b"\0" + key) + 1
    if at == 0 and not environ.startswith(key):
        return ""
    return environ[at + len(key) :].partition(b"\0")[0].decode("ascii", "replace")


@dataclass(slots=True)
class Session:
    """A session: its mark, its leader, and the process that stands for its connection."""

    mark: str
    leader: int
    start: int
    connection: int = -1  # pidfd, where the system has any
    detach: bool = False
    ending: bool = False
    quiet: bool = False  # nobody was found at the last look
    deadline: float | None = None
    victims: dict[int, int] = field(default_factory=dict)  # pid -> pidfd (-1: none to be had)


def family(session: Session, running: Mapping[int, Process], marks: Mapping[int, str]) -> set[int]:
    """Processes of a session: marked ones, its POSIX session, and all that descend from these."""
    leader = running.get(session.leader)
    # A later process may have got the leader's number, and then its session is another one.
    reused = leader is not None and leader.start != session.start
    members = {
        pid
        for pid, item in running.items()
        if marks.get(pid) == session.mark or (item.session == session.leader and not reused)
    }
    grown = True
    while grown:
        more = {
            pid for pid, item in running.items() if item.parent in members and pid not in members
        }
        grown = bool(more)
        members |= more
    return members
