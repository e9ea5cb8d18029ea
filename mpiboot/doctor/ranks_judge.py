"""Which ranks of a running job are stopped, traced, in uninterruptible sleep, or missing. Pure.

Nothing else proves that a rank hangs: most MPIs poll, some ranks wait in a sleep, and a manager's
ranks have other work than its workers'. Outliers are only shown first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from mpiboot.core.model import Finding, Level
from mpiboot.core.wording import counted, first_few, grouped
from mpiboot.doctor.checks import finding
from mpiboot.doctor.ranks_answer import HostRanks, Rank, RankState

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


def judge(
    hosts: Sequence[HostRanks], *, all_hosts: bool, unasked: tuple[str, ...] = ()
) -> tuple[Finding, ...]:
    """Report what is proven of each launch's ranks.

    Args:
        hosts: those that answered.
        all_hosts: whether every host of the job was queried, or this pod alone.
        unasked: hosts that could not be queried.
    """
    jobs = grouped((rank.job, rank) for host in hosts for rank in host.ranks)
    stuck = (item for ranks in jobs.values() for item in _stuck(ranks))
    missing = (_missing(ranks, unasked, all_hosts=all_hosts) for ranks in jobs.values())
    return (*stuck, *(item for item in missing if item))


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
            yield finding(
                Level.FAIL, check, text, (), hint.replace("PID", str(one.pid)), (one.host,)
            )
        elif ranks:
            hosts = list(dict.fromkeys(item.host for item in ranks))
            rows = [f"rank {item.number} on {item.host} (pid {item.pid})" for item in ranks]
            numbers = _numbers(item.number for item in ranks)
            yield finding(
                Level.FAIL, check, f"{numbers} are {message}", rows[:_MAX_LINES], hint, hosts
            )


def _numbers(of: Iterable[int]) -> str:
    """Write numbers with runs of them as ranges: ``ranks 0, 4-7``."""
    runs: list[list[int]] = []
    for number in sorted(of):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    several = len(runs) > 1 or runs[0][0] != runs[0][1]
    which = first_few((str(a) if a == b else f"{a}-{b}" for a, b in runs), _MAX_LINES)
    return f"rank{'s' * several} {which}"


def _missing(ranks: Sequence[Rank], unasked: Sequence[str], *, all_hosts: bool) -> Finding | None:
    """Name the missing ranks of a launch; in one pod alone, how many there are."""
    size, local = max(item.size for item in ranks), max(item.local for item in ranks)
    left = set(range(size)) - {item.number for item in ranks}
    if all_hosts and left:
        verb = "is" if len(left) == 1 else "are"
        message = f"{_numbers(left)} of {size} {verb} on none of the hosts that answered"
        if unasked:
            message += f"; {counted(len(unasked), 'host')} did not ({first_few(unasked)})"
    elif not all_hosts and len(ranks) < local:
        message = f"{len(ranks)} of this pod's {local} ranks are running"
    else:
        return None
    hint = (
        "they have ended, or never began: read the launcher's log, and check whether that pod was "
        "out of memory"
    )
    return Finding("rank-missing", Level.WARN, message, hint=hint)
