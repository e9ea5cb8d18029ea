"""The ranks of a host and the state of each, from two samples of its processes. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from mpiboot.core.records_json import read_record
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
    (None: not known). ``function`` is the kernel's in which it waits (wchan), ``stack`` Python's or
    C's.
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
    stack: tuple[str, ...] = ()


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
NUMBERS: Final = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_SIZES: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LAUNCH: Final = ("MPIBOOT_LAUNCH_ID", "PMIX_NAMESPACE")
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
        ranks = read_record(HostRanks, found, strict=False)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    named = tuple(replace(rank, host=host) for rank in ranks.ranks)
    return replace(ranks, host=host, ranks=named)


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A process with a rank's number, sampled twice; ``cpu`` and ``cpu_avg`` as a rank has them."""

    pid: int
    parent: int
    environ: Mapping[str, str]
    program: str
    mpi: bool
    states: tuple[str, str]
    cpu: float | None
    cpu_avg: float | None

    @property
    def job(self) -> str:
        """The launch's ID."""
        return " ".join(filter(None, (self.environ.get(name, "") for name in _LAUNCH)))

    def number(self, *names: str) -> int:
        """Give the first of these variables that is a number; 0 where none is."""
        return number_in(self.environ, names) or 0


def number_in(environ: Mapping[str, str], names: Iterable[str]) -> int | None:
    """Give the first of these variables that is a number."""
    found = filter(_NUMBER.fullmatch, (environ.get(name, "") for name in names))
    return next(map(int, found), None)


def one_process_a_rank(found: Iterable[RankProcess]) -> list[RankProcess]:
    """Choose one of each rank's processes: the first that has MPI, else the first that is no shell.

    A wrapper's child, a data loader and a shell all have the rank's number.
    """
    chosen = []
    for group in grouped(((item.job, item.number(*NUMBERS)), item) for item in found).values():
        with_mpi = [item for item in group if item.mpi]
        left = with_mpi or [item for item in group if item.program not in _SHELLS] or group
        pids = {item.pid for item in left}
        tops = [item for item in left if item.parent not in pids]
        chosen.append(min(tops or left, key=lambda item: item.pid))
    return chosen


def rank_of(item: RankProcess, host: str) -> Rank:
    """Give the rank of a process, and its state by both samples."""
    before, now = item.states
    running = "running" in item.states or (item.cpu or 0.0) >= _RUNNING_SHARE
    usual = RankState.RUNNING if running else RankState.SLEEPING
    return Rank(
        item.number(*NUMBERS),
        host,
        item.pid,
        item.job,
        item.number(*_SIZES),
        item.number("OMPI_COMM_WORLD_LOCAL_SIZE"),
        item.program,
        _STATES.get(now, usual) if before == now else usual,
        item.cpu,
        item.cpu_avg,
    )
