"""Which ranks are the odd ones, and why: the surest first. Pure.

A rank that waits in MPI for another one is busy, as most MPIs ask again and again. So what blocks a
job is, as a rule, what is not busy while the others are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from mpiboot.core.model import Finding, Level
from mpiboot.core.wording import counted, first_few
from mpiboot.doctor.ranks import calls, kinds, network
from mpiboot.doctor.ranks.kinds import Kind
from mpiboot.doctor.ranks.records import Activity, HostRanks, MpiStage, Rank

# Fewer say nothing of who is the odd one among them.
_CROWD: Final = 3
_SHOWN: Final = 8  # lines of evidence
_STACK: Final = 12  # lines


@dataclass(frozen=True, slots=True)
class Crowd:
    """The ranks of one launch, and the hosts that could not be asked about theirs.

    ``all_hosts`` tells whether every host of the job was asked, or this pod alone.
    """

    ranks: tuple[Rank, ...]
    all_hosts: bool = True
    unasked: tuple[str, ...] = ()

    def others(self, odd: Sequence[Rank]) -> str:
        """Say what the ranks that are not among these do; empty where there are none."""
        left = [item for item in self.ranks if item not in odd]
        busy = sum(item.activity is Activity.BUSY for item in left)
        if not left:
            return ""
        who = f"the other {len(left)}" if len(left) > 1 else "the other one"
        if busy == len(left):
            are = "are busy, as ranks are" if len(left) > 1 else "is busy, as a rank is"
            return (
                f"; {who} {are} that waits in MPI"
                if len(left) == 1
                else (f"; {who} {are} that wait in MPI")
            )
        if not busy:
            return f"; {who} {'wait' if len(left) > 1 else 'waits'}"
        return f"; of {who} {busy} {'are' if busy > 1 else 'is'} busy and {len(left) - busy} wait"


def judge(
    hosts: Sequence[HostRanks], *, all_hosts: bool, unasked: tuple[str, ...] = ()
) -> tuple[Finding, ...]:
    """Name what is odd, the surest first.

    Args:
        hosts: those that answered.
        all_hosts: whether every host of the job was asked, or this pod alone.
        unasked: hosts that could not be asked.
    """
    jobs: dict[str, list[Rank]] = {}
    for host in hosts:
        for rank in host.ranks:
            jobs.setdefault(rank.job, []).append(rank)
    crowds = [Crowd(tuple(ranks), all_hosts, unasked) for ranks in jobs.values()]
    found = [item for crowd in crowds for item in _of_ranks(crowd)]
    found += network.judge(hosts)
    order = {Level.FAIL: 0, Level.WARN: 1}
    return tuple(sorted(found, key=lambda item: order[item.level]))


def _of_ranks(crowd: Crowd) -> Iterator[Finding]:
    """Judge the ranks of a launch; who is odd in one way is not told again for the next."""
    yield from _missing(crowd)
    explained: set[Rank] = set()
    for kind, choose, said in _WAYS:
        odd = [item for item in choose(crowd) if item not in explained]
        explained.update(odd)
        for alike in _alike(odd, said, crowd):
            yield _finding(kind, alike, said(alike[0], crowd), crowd)


def _alike(
    odd: Sequence[Rank], said: Callable[[Rank, Crowd], str], crowd: Crowd
) -> Iterable[list[Rank]]:
    groups: dict[str, list[Rank]] = {}
    for item in odd:
        groups.setdefault(said(item, crowd), []).append(item)
    return groups.values()


def _finding(kind: Kind, ranks: Sequence[Rank], said: str, crowd: Crowd) -> Finding:
    hint = kind.hint
    first = ranks[0]
    hosts = tuple(dict.fromkeys(item.host for item in ranks))
    if len(ranks) == 1:
        who = f"rank {first.number} on {first.host} (pid {first.pid})"
        hint = hint.replace("PID", str(first.pid))
    else:
        who = f"each of {len(ranks)} ranks ({numbers(item.number for item in ranks)}, on "
        who += f"{first_few(hosts)})"
    evidence = () if len(ranks) > 1 else first.stack[:_STACK]
    if len(ranks) > 1:
        evidence = tuple(
            f"rank {item.number} on {item.host} (pid {item.pid})" for item in ranks[:_SHOWN]
        )
    return Finding(
        kind.check,
        kind.level,
        f"{who} {said}{crowd.others(ranks)}",
        hosts[0] if len(hosts) == 1 else "",
        evidence,
        hint,
        hosts if len(hosts) > 1 else (),
    )


def numbers(of: Iterable[int]) -> str:
    """Write numbers with runs of them as ranges: ``0, 4-7``."""
    runs: list[list[int]] = []
    for number in sorted(of):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return first_few((str(a) if a == b else f"{a}-{b}" for a, b in runs), _SHOWN)


def doing(rank: Rank) -> str:
    """Say what a rank does, in a few words."""
    if rank.activity is Activity.BUSY:
        return "is busy"
    if rank.activity is not Activity.WAITS and rank.activity is not Activity.KERNEL:
        return f"is {rank.activity.value}"
    verb = "sleeps" if rank.call in calls.SLEEPS else "waits"
    if rank.call in calls.SLEEPS:
        return f"{verb} ({rank.call})"
    if rank.call:
        return f"{verb} in {rank.call}{f' of {rank.file}' if rank.file else ''}"
    return f"{verb}{f' ({rank.place})' if rank.place else ''}"


# --- the ways to be odd: who is, and what is said of one ---


def _by_activity(activity: Activity) -> Callable[[Crowd], Iterable[Rank]]:
    return lambda crowd: (item for item in crowd.ranks if item.activity is activity)


def _before(crowd: Crowd) -> Iterable[Rank]:
    inside = any(item.stage is MpiStage.INSIDE for item in crowd.ranks)
    return (item for item in crowd.ranks if inside and item.stage is MpiStage.BEFORE)


def _said_before(rank: Rank, crowd: Crowd) -> str:
    usual = Counter(item.program for item in crowd.ranks if item.stage is MpiStage.INSIDE)
    most = usual.most_common(1)[0][0] if usual else rank.program
    runs = f"runs {rank.program}, not {most}; it " if most != rank.program and rank.program else ""
    return f"{runs}has not reached MPI_Init: it {doing(rank)}"


def _in_file(rank: Rank) -> bool:
    path = rank.file
    named = path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/sys/"))
    # Where no file is open yet, as in `open`, the call alone tells.
    unnamed = rank.call in calls.OF_FILE_SYSTEMS and rank.call not in calls.WITH_FILE
    waits = rank.activity is Activity.WAITS and rank.call in calls.OF_FILE_SYSTEMS
    return waits and (named or unnamed)


def _file(crowd: Crowd) -> Iterable[Rank]:
    found = [item for item in crowd.ranks if _in_file(item)]
    busy = any(item.activity is Activity.BUSY for item in crowd.ranks)
    return found if busy or 2 * len(found) <= len(crowd.ranks) else ()


def _apart(crowd: Crowd) -> Iterable[Rank]:
    idle = [item for item in crowd.ranks if item.activity is Activity.WAITS]
    busy = sum(item.activity is Activity.BUSY for item in crowd.ranks)
    return idle if busy >= len(idle) else ()


def _left(crowd: Crowd) -> Iterable[Rank]:
    inside = any(item.stage is MpiStage.INSIDE for item in crowd.ranks)
    return (item for item in crowd.ranks if inside and item.stage is MpiStage.LEFT)


def _alone(crowd: Crowd) -> Iterable[Rank]:
    busy = [item for item in crowd.ranks if item.activity is Activity.BUSY]
    waits = sum(item.activity is Activity.WAITS for item in crowd.ranks)
    return busy if len(crowd.ranks) >= _CROWD and 2 * len(busy) < waits else ()


def _program(crowd: Crowd) -> Iterable[Rank]:
    """Choose the ranks of one host, at most, that run another program than all others."""
    usual = Counter(item.program for item in crowd.ranks)
    if len(crowd.ranks) < _CROWD or len(usual) != 2:  # noqa: PLR2004
        return ()
    rare = usual.most_common()[-1][0]
    odd = [item for item in crowd.ranks if item.program == rare]
    alone = len({item.host for item in odd}) == 1 and 2 * len(odd) < len(crowd.ranks)
    return odd if alone else ()


def _said_program(rank: Rank, crowd: Crowd) -> str:
    usual = Counter(item.program for item in crowd.ranks).most_common(1)[0][0]
    return f"runs {rank.program}, the others {usual}"


_Way = tuple[Kind, Callable[[Crowd], Iterable[Rank]], Callable[[Rank, Crowd], str]]
_WAYS: Final[tuple[_Way, ...]] = (
    (kinds.STOPPED, _by_activity(Activity.STOPPED), lambda _rank, _crowd: "is stopped by a signal"),
    (kinds.TRACED, _by_activity(Activity.TRACED), lambda _rank, _crowd: "is held by a debugger"),
    (kinds.BEFORE, _before, _said_before),
    (
        kinds.KERNEL,
        _by_activity(Activity.KERNEL),
        lambda rank, _: f"sleeps in the kernel and takes no signal: it {doing(rank)}",
    ),
    (kinds.FILE, _file, lambda rank, _: doing(rank)),
    (kinds.LEFT, _left, lambda rank, _: f"has left MPI (MPI_Finalize): it {doing(rank)}"),
    (kinds.PROGRAM, _program, _said_program),
    (kinds.APART, _apart, lambda rank, _: doing(rank)),
    (kinds.ALONE, _alone, lambda rank, _: doing(rank)),
)


def _missing(crowd: Crowd) -> Iterator[Finding]:
    """Name the ranks of the launch that are not there; in one pod alone, how many."""
    kind = kinds.MISSING
    size = max(item.size for item in crowd.ranks)
    if not crowd.all_hosts:
        local, there = max(item.local for item in crowd.ranks), len(crowd.ranks)
        if there < local:
            yield Finding(
                kind.check,
                kind.level,
                f"{there} of this pod's {local} ranks are there",
                hint=kind.hint,
            )
        return
    left = set(range(size)) - {item.number for item in crowd.ranks}
    if not left:
        return
    verb = "is" if len(left) == 1 else "are"
    said = f"rank{'s' * (len(left) > 1)} {numbers(left)} of {size} {verb} not there"
    if crowd.unasked:  # they may be where nobody could look
        said += f"; {counted(len(crowd.unasked), 'host')} could not be asked"
        said += f" ({first_few(crowd.unasked)})"
    yield Finding(kind.check, kind.level, said, hint=kind.hint)
