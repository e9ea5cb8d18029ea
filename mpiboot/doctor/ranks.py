"""The ranks of a job: their state by two samples, and what is proven of them. Pure.

A rank that is stopped, traced, in uninterruptible sleep or missing is reported. Nothing else proves
that one hangs: most MPIs poll, some ranks wait in a sleep, and a manager's ranks have other work
than its workers'. Outliers are only shown first.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from mpiboot.core.model import Finding, Level, read_record
from mpiboot.core.wording import first_few, grouped


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

    ``job`` names the launch; ``size`` is its number of ranks (0: not known). ``cpu`` and
    ``cpu_avg`` are shares of one core, between the samples and since its start (None: not known).
    ``function`` is the kernel's in which it waits (wchan), ``stack`` Python's or C's. ``mpi`` is
    whether it has loaded MPI's library.
    """

    number: int
    host: str
    pid: int
    job: str = ""
    size: int = 0
    program: str = ""
    state: RankState = RankState.RUNNING
    cpu: float | None = None
    cpu_avg: float | None = None
    function: str = ""
    stack: tuple[str, ...] = ()
    parent: int = 0
    mpi: bool = False


@dataclass(frozen=True, slots=True)
class HostRanks:
    """The ranks of a host; ``others`` counts processes of other users, which can't be read."""

    host: str
    ranks: tuple[Rank, ...] = ()
    others: int = 0


# psutil's names of states that count where a process has them in both samples.
_STATES: Final = {
    "stopped": RankState.STOPPED,
    "tracing-stop": RankState.TRACED,
    "disk-sleep": RankState.UNINTERRUPTIBLE,
    "zombie": RankState.ENDED,
}
# A rank that sleeps in both samples counts as running above this share of a core.
_RUNNING_SHARE: Final = 0.05
SIZES: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "busybox"})
_NUMBER: Final = re.compile(r"\d{1,18}", re.ASCII)


def read(output: str, host: str) -> HostRanks | None:
    """Read the report of a worker's own ``mpiboot doctor ranks --json``; None where it is none.

    Args:
        output: what was printed; what a login shell prints before it is ignored.
        host: the name by which the launcher shows it.
    """
    try:
        (found,) = json.loads(output[output.index("{\n") :])["hosts"]
        ranks = read_record(HostRanks, found)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    named = tuple(replace(rank, host=host) for rank in ranks.ranks)
    return replace(ranks, host=host, ranks=named)


def number_in(environ: Mapping[str, str], names: Iterable[str]) -> int | None:
    """Give the first of these variables that is a number."""
    found = filter(_NUMBER.fullmatch, (environ.get(name, "") for name in names))
    return next(map(int, found), None)


def one_process_a_rank(found: Iterable[Rank]) -> list[Rank]:
    """Choose one of each rank's processes: the first that has MPI, else the first that is no shell.

    A wrapper's child, a data loader and a shell all have the rank's number.
    """
    chosen = []
    for group in grouped(((item.job, item.number), item) for item in found).values():
        with_mpi = [item for item in group if item.mpi]
        left = with_mpi or [item for item in group if item.program not in _SHELLS] or group
        pids = {item.pid for item in left}
        tops = [item for item in left if item.parent not in pids]
        chosen.append(min(tops or left, key=lambda item: item.pid))
    return chosen


def state_of(before: str, now: str, cpu: float) -> RankState:
    """Give a rank's state by both samples and its share of a core between them."""
    running = "running" in (before, now) or cpu >= _RUNNING_SHARE
    usual = RankState.RUNNING if running else RankState.SLEEPING
    return _STATES.get(now, usual) if before == now else usual


_MAX_LINES: Final = 8  # of evidence
# By state: reference, message and hint, in which PID stands for the rank's.
_PROOFS: Final = {
    RankState.STOPPED: (
        "rank-stopped",
        "stopped by a signal",
        (
            "`kill -CONT PID` in that pod lets it go on; find who stopped it: SIGSTOP or SIGTSTP, "
            "a debugger, a shell's job control"
        ),
    ),
    RankState.TRACED: (
        "rank-traced",
        "held by a debugger",
        "detach the debugger (gdb, strace) from it",
    ),
    RankState.UNINTERRUPTIBLE: (
        "rank-in-kernel",
        "in uninterruptible sleep (D): no signal ends it",
        (
            "a file system or a device does not answer: check that volume and its server, and "
            "the node's kernel log"
        ),
    ),
}


def judge(hosts: Sequence[HostRanks], *, all_hosts: bool) -> Iterator[Finding]:
    """Report what is proven of each launch's ranks.

    Args:
        hosts: those that answered.
        all_hosts: whether every host of the job was queried, or this pod alone.
    """
    jobs = grouped((rank.job, rank) for host in hosts for rank in host.ranks).values()
    for ranks in jobs:
        yield from _stuck(ranks)
    for ranks in jobs if all_hosts else ():
        yield from _missing(ranks)


def differing_first(ranks: Iterable[Rank]) -> list[tuple[Rank, bool]]:
    """Order the ranks: first those whose state differs from that of most others, and whether."""
    listed = sorted(ranks, key=lambda item: (item.job, item.number))
    usual = {
        job: Counter(item.state for item in own).most_common(1)[0][0]
        for job, own in grouped((item.job, item) for item in listed).items()
    }
    pairs = [(item, item.state is not usual[item.job]) for item in listed]
    return sorted(pairs, key=lambda pair: not pair[1])


def _stuck(of_job: Sequence[Rank]) -> Iterator[Finding]:
    for state, (check, message, hint) in _PROOFS.items():
        ranks = [item for item in of_job if item.state is state]
        if len(ranks) == 1:
            (one,) = ranks
            in_kernel = state is RankState.UNINTERRUPTIBLE and one.function
            where = f", in {one.function}" if in_kernel else ""
            text = f"rank {one.number} (pid {one.pid}) is {message}{where}"
            yield Finding(check, Level.FAIL, text, one.host, (), hint.replace("PID", str(one.pid)))
        elif ranks:
            hosts = list(dict.fromkeys(item.host for item in ranks))
            rows = [f"rank {item.number} on {item.host} (pid {item.pid})" for item in ranks]
            text = f"{_numbers(item.number for item in ranks)} are {message}"
            yield Finding(check, Level.FAIL, text, "", tuple(rows[:_MAX_LINES]), hint).on(hosts)


def _numbers(of: Iterable[int]) -> str:
    listed = sorted(of)
    return f"rank{'s' * (len(listed) > 1)} {first_few(map(str, listed), _MAX_LINES)}"


def _missing(ranks: Sequence[Rank]) -> Iterator[Finding]:
    """Name the missing ranks of a launch."""
    size = max(item.size for item in ranks)
    if left := set(range(size)) - {item.number for item in ranks}:
        verb = "is" if len(left) == 1 else "are"
        message = f"{_numbers(left)} of {size} {verb} on none of the hosts that answered"
        hint = (
            "they have ended, or never began: read the launcher's log, and check whether that pod "
            "was out of memory"
        )
        yield Finding("rank-missing", Level.WARN, message, hint=hint)
