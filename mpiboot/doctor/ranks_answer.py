"""Parses the output of ``libexec/rank_questions``: a host's ranks and the state of each. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from mpiboot.core.wording import grouped


class RankState(Enum):
    """A rank's state, by two samples of proc_pid_stat(5)."""

    RUNNING = "running"
    SLEEPING = "sleeping"
    UNINTERRUPTIBLE = "uninterruptible (D)"
    STOPPED = "stopped (T)"
    TRACED = "traced (t)"
    ENDED = "ended (Z)"


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank and its state.

    ``job`` names the launch; ``size`` is its number of ranks, ``local`` that on this host (0: not
    known). ``cpu`` and ``cpu_avg`` are shares of one core, between the samples and since its start
    (None: not known). ``function`` is the kernel's (wchan), ``call`` the system call in which it
    waits, ``stack`` Python's or C's.
    """

    number: int
    host: str
    pid: int
    job: str = ""
    size: int = 0
    local: int = 0
    program: str = ""
    state: RankState = RankState.RUNNING
    cpu: float | None = None
    cpu_avg: float | None = None
    function: str = ""
    call: str = ""
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostRanks:
    """The ranks of a host.

    ``closed`` names what this user may not read there, ``others`` counts processes of other users.
    """

    host: str
    ranks: tuple[Rank, ...] = ()
    closed: frozenset[str] = frozenset()
    others: int = 0


def _table(text: str) -> dict[int, str]:
    pairs = (item.split() for item in text.split(", "))
    return {int(number): name for number, name in pairs}


# The kernel's tables: arch/x86/entry/syscalls/syscall_64.tbl and, of aarch64, the generic one in
# include/uapi/asm-generic/unistd.h.
_CALLS: Final = {
    "x86_64": _table(
        "0 read, 1 write, 2 open, 3 close, 7 poll, 16 ioctl, 17 pread, 18 pwrite, 19 readv, 20 "
        "writev, 23 select, 24 sched_yield, 34 pause, 35 nanosleep, 42 connect, 43 accept, 44 "
        "sendto, 45 recvfrom, 46 sendmsg, 47 recvmsg, 61 wait4, 72 fcntl, 73 flock, 74 fsync, 75 "
        "fdatasync, 202 futex, 217 getdents, 230 clock_nanosleep, 232 epoll_wait, 247 waitid, 257 "
        "openat, 262 stat, 270 select, 271 poll, 281 epoll_wait, 332 statx"
    ),
    "aarch64": _table(
        "22 epoll_wait, 25 fcntl, 29 ioctl, 32 flock, 56 openat, 57 close, 61 getdents, 63 read, "
        "64 write, 65 readv, 66 writev, 67 pread, 68 pwrite, 72 select, 73 poll, 79 stat, 82 "
        "fsync, 83 fdatasync, 95 waitid, 98 futex, 101 nanosleep, 115 clock_nanosleep, 124 "
        "sched_yield, 202 accept, 203 connect, 206 sendto, 207 recvfrom, 211 sendmsg, 212 "
        "recvmsg, 260 wait4, 291 statx"
    ),
}
# States of Linux that count where a process has them in both samples.
_STATES: Final = {
    "T": RankState.STOPPED,
    "t": RankState.TRACED,
    "D": RankState.UNINTERRUPTIBLE,
    "Z": RankState.ENDED,
    "X": RankState.ENDED,
}
# A rank that sleeps in both samples counts as running above this share of a core.
_RUNNING_SHARE: Final = 0.05
_TICKS: Final = 100.0  # a second: USER_HZ of every architecture with a table above
_NUMBERS: Final = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_SIZES: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LAUNCH: Final = ("MPIBOOT_LAUNCH_ID", "PMIX_NAMESPACE")
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "busybox"})
# Columns of /proc/PID/stat behind the name (proc_pid_stat(5), whose field 3 is our 0).
_STATE, _PARENT, _USER, _SYSTEM, _START = 0, 1, 11, 12, 19
BEGIN: Final = "mpiboot-ranks"
_NUMBER: Final = re.compile(r"\d{1,18}", re.ASCII)
_SECONDS: Final = re.compile(r"\d{1,18}(\.\d*)?", re.ASCII)


@dataclass(slots=True, eq=False)
class _Process:
    """The lines of one process, by their first word; ``environ`` are its variables."""

    pid: int
    lines: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    environ: dict[str, str] = field(default_factory=dict)

    def value(self, word: str) -> str:
        """Give the first line of this word."""
        return next(iter(self.lines.get(word, ())), "")

    def number(self, names: Iterable[str]) -> int | None:
        """Give the first of these variables that is a number."""
        found = filter(_NUMBER.fullmatch, (self.environ.get(name, "") for name in names))
        return next(map(int, found), None)

    @property
    def job(self) -> str:
        """The launch's ID."""
        return " ".join(filter(None, (self.environ.get(name, "") for name in _LAUNCH)))


@dataclass(slots=True, eq=False)
class _Sample:
    """One sample: seconds of the host's clock, and stat's columns by process."""

    uptime: float
    stats: dict[int, list[str]] = field(default_factory=dict)

    def add(self, row: str) -> None:
        """Parse a line of /proc/PID/stat; a broken one is ignored."""
        pid, _, text = row.partition(" ")
        cells = text.rpartition(") ")[2].split()
        if _NUMBER.fullmatch(pid) and len(cells) > _START:
            self.stats[int(pid)] = cells


def read(output: str, host: str) -> HostRanks | None:
    """Parse a host's answer; None where the output has none.

    Args:
        output: the output; what a login shell prints before it is ignored.
        host: the name by which it is shown.
    """
    lines = output.splitlines()
    if BEGIN not in lines:
        return None
    samples: list[_Sample] = []
    processes: list[_Process] = []
    machine, others = "", 0
    for line in lines[lines.index(BEGIN) + 1 :]:
        word, _, rest = line.partition(" ")
        if word == "sample":
            samples.append(_Sample(float(rest) if _SECONDS.fullmatch(rest) else 0.0))
        elif word == "process" and _NUMBER.fullmatch(rest):
            processes.append(_Process(int(rest)))
        elif word == "env" and processes:
            name, _, value = rest.partition("=")
            processes[-1].environ[name] = value
        elif processes:
            processes[-1].lines[word].append(rest)
        elif word == "stat" and samples:
            samples[-1].add(rest)
        elif word == "machine":
            machine = rest
        others += word == "unreadable"
    if len(samples) != 2:  # noqa: PLR2004 - before and after the pause
        return None
    chosen = _one_a_rank(processes, samples[1])
    ranks = (_rank(item, host, samples, _CALLS.get(machine, {})) for item in chosen)
    closed = frozenset(word for item in chosen for word in item.lines["closed"])
    return HostRanks(host, tuple(sorted(ranks, key=lambda item: item.number)), closed, others)


def _one_a_rank(processes: Iterable[_Process], sample: _Sample) -> list[_Process]:
    """Choose one of each rank's processes: the first that has MPI, else the first that is no shell.

    A wrapper's child, a data loader and a shell all have the rank's number.
    """
    groups = grouped(
        ((process.job, process.number(_NUMBERS)), process)
        for process in processes
        if process.number(_NUMBERS) is not None and process.pid in sample.stats
    )
    chosen = []
    for group in groups.values():
        with_mpi = [item for item in group if "mpi" in item.lines]
        left = with_mpi or [item for item in group if item.value("exe") not in _SHELLS] or group
        pids = {str(item.pid) for item in left}
        tops = [item for item in left if sample.stats[item.pid][_PARENT] not in pids]
        chosen.append(min(tops or left, key=lambda item: item.pid))
    return chosen


def _rank(process: _Process, host: str, samples: list[_Sample], calls: Mapping[int, str]) -> Rank:
    first, last = samples
    before, now = first.stats.get(process.pid), last.stats[process.pid]
    seconds, age = last.uptime - first.uptime, last.uptime - _ticks(now, _START)
    used = _ticks(now, _USER, _SYSTEM)
    known = before is not None and seconds > 0
    cpu = (used - _ticks(before or now, _USER, _SYSTEM)) / seconds if known else None
    states = {(before or now)[_STATE], now[_STATE]}
    running = "R" in states or (cpu or 0.0) >= _RUNNING_SHARE
    usual = RankState.RUNNING if running else RankState.SLEEPING
    call = process.value("syscall").partition(" ")[0]
    number = int(call) if _NUMBER.fullmatch(call) else None
    return Rank(
        process.number(_NUMBERS) or 0,
        host,
        process.pid,
        process.job,
        process.number(_SIZES) or 0,
        process.number(("OMPI_COMM_WORLD_LOCAL_SIZE",)) or 0,
        process.value("exe").removesuffix(" (deleted)"),
        _STATES.get(now[_STATE], usual) if len(states) == 1 else usual,
        cpu,
        used / age if age > 0 else None,
        process.value("wchan").removeprefix("0"),
        "" if number is None else calls.get(number, f"system call {number}"),
        tuple(process.lines["stack"]),
    )


def _ticks(cells: list[str], *columns: int) -> float:
    return sum(int(cells[at]) for at in columns if _NUMBER.fullmatch(cells[at])) / _TICKS
