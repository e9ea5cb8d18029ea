"""Which ranks, links and hosts of a running job are outliers, the surest first. Pure.

A rank that waits in MPI for another one is busy, as most MPIs poll. So what blocks a job is, as a
rule, what is not busy while the others are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from mpiboot.core.model import Finding, Level
from mpiboot.core.wording import counted, first_few, grouped
from mpiboot.doctor.checks import finding
from mpiboot.doctor.ranks_answer import (
    FILE_SYSTEM_CALLS,
    SLEEPS,
    WITH_FILE,
    Activity,
    HostRanks,
    MpiStage,
    Rank,
)

# Among fewer ranks or hosts there is no outlier.
_GROUP: Final = 3
# Bytes a second that the other hosts move where one that moves nearly none is an outlier.
_MOVING: Final = 1e6
_STILL: Final = 0.01
_SHOWN: Final = 8  # lines of evidence
_STACK: Final = 12  # lines


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks of one launch, and the hosts that could not be asked about theirs.

    ``all_hosts``: every host of the job was asked, not this pod alone.
    """

    ranks: tuple[Rank, ...]
    all_hosts: bool = True
    unasked: tuple[str, ...] = ()

    def having(self, activity: Activity) -> list[Rank]:
        """List the ranks that do this."""
        return [item for item in self.ranks if item.activity is activity]

    def at(self, stage: MpiStage) -> list[Rank]:
        """List the ranks at this stage of MPI."""
        return [item for item in self.ranks if item.stage is stage]

    def others(self, outliers: Sequence[Rank]) -> str:
        """Say what the ranks that are not among these do; empty where there are none."""
        left = [item for item in self.ranks if item not in outliers]
        busy = sum(item.activity is Activity.BUSY for item in left)
        if not left:
            return ""
        several = len(left) > 1
        who = f"the other {len(left)}" if several else "the other one"
        if busy == len(left):
            if several:
                return f"; {who} are busy, as ranks waiting in MPI are"
            return f"; {who} is busy, as a rank waiting in MPI is"
        if not busy:
            return f"; {who} {'wait' if several else 'waits'}"
        return f"; of {who} {busy} {'are' if busy > 1 else 'is'} busy and {len(left) - busy} wait"


def judge(
    hosts: Sequence[HostRanks], *, all_hosts: bool, unasked: tuple[str, ...] = ()
) -> tuple[Finding, ...]:
    """Name the outliers, the surest first.

    Args:
        hosts: those that answered.
        all_hosts: whether every host of the job was asked, or this pod alone.
        unasked: hosts that could not be asked.
    """
    jobs = grouped((rank.job, rank) for host in hosts for rank in host.ranks)
    groups = [RankGroup(tuple(ranks), all_hosts, unasked) for ranks in jobs.values()]
    found = [item for group in groups for item in _of_ranks(group)]
    found += [*_links_down(hosts), *_unanswered(hosts), *_still(hosts)]
    return tuple(sorted(found, key=lambda item: item.level is not Level.FAIL))


def _of_ranks(group: RankGroup) -> Iterator[Finding]:
    """Judge the ranks of a launch; an outlier by one pattern is not named for the next."""
    yield from _missing(group)
    explained: set[Rank] = set()
    for pattern in _PATTERNS:
        left = (rank for rank in pattern.choose(group) if rank not in explained)
        alike = grouped((pattern.message(rank, group), rank) for rank in left)
        for message, ranks in alike.items():
            explained.update(ranks)
            yield _finding(pattern, ranks, message, group)


def _finding(pattern: _Pattern, ranks: Sequence[Rank], message: str, group: RankGroup) -> Finding:
    named = [f"rank {item.number} on {item.host} (pid {item.pid})" for item in ranks]
    hosts = list(dict.fromkeys(item.host for item in ranks))
    if len(ranks) == 1:
        who, evidence = named[0], ranks[0].stack[:_STACK]
        hint = pattern.hint.replace("PID", str(ranks[0].pid))
    else:
        which = numbers(item.number for item in ranks)
        who = f"each of {len(ranks)} ranks ({which}, on {first_few(hosts)})"
        evidence, hint = tuple(named[:_SHOWN]), pattern.hint
    message = f"{who} {message}{group.others(ranks)}"
    return finding(pattern.level, pattern.check, message, evidence, hint, hosts)


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
    if rank.activity not in (Activity.WAITS, Activity.KERNEL):
        return f"is {rank.activity.value}"
    if rank.call in SLEEPS:
        return f"sleeps ({rank.call})"
    if rank.call:
        return f"waits in {rank.call}{f' of {rank.file}' if rank.file else ''}"
    return f"waits{f' ({rank.place})' if rank.place else ''}"


# --- patterns of outliers: which ranks fit, and the message about one ---


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A pattern of outliers; ``PID`` in the hint stands for a rank's."""

    check: str
    level: Level
    choose: Callable[[RankGroup], Iterable[Rank]]
    message: Callable[[Rank, RankGroup], str]
    hint: str


def _at(stage: MpiStage) -> Callable[[RankGroup], Iterable[Rank]]:
    """Choose the ranks at a stage while others are inside MPI."""
    return lambda group: group.at(stage) if group.at(MpiStage.INSIDE) else ()


def _message_before(rank: Rank, group: RankGroup) -> str:
    usual = Counter(item.program for item in group.at(MpiStage.INSIDE))
    most = usual.most_common(1)[0][0] if usual else rank.program
    runs = f"runs {rank.program}, not {most}; it " if most != rank.program and rank.program else ""
    return f"{runs}has not reached MPI_Init: it {doing(rank)}"


def _in_file(rank: Rank) -> bool:
    path = rank.file
    named = path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/sys/"))
    # Where no file is open yet, as in `open`, there is only the call.
    return rank.call in FILE_SYSTEM_CALLS and (named or rank.call not in WITH_FILE)


def _file(group: RankGroup) -> Iterable[Rank]:
    found = [item for item in group.having(Activity.WAITS) if _in_file(item)]
    return found if group.having(Activity.BUSY) or 2 * len(found) <= len(group.ranks) else ()


def _apart(group: RankGroup) -> Iterable[Rank]:
    idle = group.having(Activity.WAITS)
    return idle if len(group.having(Activity.BUSY)) >= len(idle) else ()


def _alone(group: RankGroup) -> Iterable[Rank]:
    busy, waits = group.having(Activity.BUSY), len(group.having(Activity.WAITS))
    return busy if len(group.ranks) >= _GROUP and 2 * len(busy) < waits else ()


def _program(group: RankGroup) -> Iterable[Rank]:
    """Choose the ranks of one host, at most, that run another program than all others."""
    usual = Counter(item.program for item in group.ranks)
    if len(group.ranks) < _GROUP or len(usual) != 2:  # noqa: PLR2004
        return ()
    rare = usual.most_common()[-1][0]
    outliers = [item for item in group.ranks if item.program == rare]
    alone = len({item.host for item in outliers}) == 1 and 2 * len(outliers) < len(group.ranks)
    return outliers if alone else ()


def _message_program(rank: Rank, group: RankGroup) -> str:
    usual = Counter(item.program for item in group.ranks).most_common(1)[0][0]
    return f"runs {rank.program}, the others {usual}"


_PATTERNS: Final = (
    _Pattern(
        "rank-stopped",
        Level.FAIL,
        lambda group: group.having(Activity.STOPPED),
        lambda *_: "is stopped by a signal",
        "`kill -CONT PID` in that pod lets it go on; find who stopped it: SIGSTOP or SIGTSTP, a "
        "debugger, a shell's job control",
    ),
    _Pattern(
        "rank-traced",
        Level.FAIL,
        lambda group: group.having(Activity.TRACED),
        lambda *_: "is held by a debugger",
        "end the debugger (gdb, strace) that is attached to it",
    ),
    _Pattern(
        "rank-before-mpi",
        Level.FAIL,
        _at(MpiStage.BEFORE),
        _message_before,
        "look at what its program does before MPI_Init there: a wrapper script, imports from a "
        "slow volume, a lock, a download",
    ),
    _Pattern(
        "rank-in-kernel",
        Level.FAIL,
        lambda group: group.having(Activity.KERNEL),
        lambda rank, _: f"sleeps in the kernel and takes no signal: it {doing(rank)}",
        "a file system or a device does not answer: look at that volume and its server, and at the "
        "node's kernel log; no signal ends the rank before it answers",
    ),
    _Pattern(
        "rank-in-file",
        Level.FAIL,
        _file,
        lambda rank, _: doing(rank),
        "look at that file, at who is to write it, and at the volume it is on",
    ),
    _Pattern(
        "rank-left-mpi",
        Level.WARN,
        _at(MpiStage.LEFT),
        lambda rank, _: f"has left MPI (MPI_Finalize): it {doing(rank)}",
        "look at what its program does behind MPI_Finalize",
    ),
    _Pattern(
        "rank-program",
        Level.WARN,
        _program,
        _message_program,
        "a wrapper may still be before its program, or that pod has another image; a line for "
        "mpirun with several programs has this too",
    ),
    _Pattern(
        "rank-apart",
        Level.FAIL,
        _apart,
        lambda rank, _: doing(rank),
        "it does not take part in what the others wait for: look at where its program is (py-spy "
        "dump --pid PID for Python, gdb -p PID else)",
    ),
    _Pattern(
        "rank-busy-alone",
        Level.WARN,
        _alone,
        lambda rank, _: doing(rank),
        "the others wait, maybe for it: look at where its program is (py-spy dump --pid PID for "
        "Python, gdb -p PID else)",
    ),
)


def _missing(group: RankGroup) -> Iterator[Finding]:
    """Name the ranks of the launch that are not there; in one pod alone, how many."""
    size = max(item.size for item in group.ranks)
    local, there = max(item.local for item in group.ranks), len(group.ranks)
    left = set(range(size)) - {item.number for item in group.ranks}
    if group.all_hosts and left:
        verb = "is" if len(left) == 1 else "are"
        message = f"rank{'s' * (len(left) > 1)} {numbers(left)} of {size} {verb} missing"
        if group.unasked:  # they may be on these hosts
            message += f"; {counted(len(group.unasked), 'host')} could not be asked"
            message += f" ({first_few(group.unasked)})"
    elif not group.all_hosts and there < local:
        message = f"{there} of this pod's {local} ranks are running"
    else:
        return
    hint = (
        "they have ended, or never began: look at the launcher's log, and whether that pod was "
        "out of memory"
    )
    yield Finding("rank-missing", Level.FAIL, message, hint=hint)


# --- links and connections ---


def _links_down(hosts: Sequence[HostRanks]) -> Iterator[Finding]:
    up = {item.name for one in hosts for item in one.links if item.state == "up"}
    for host in hosts:
        for link in host.links:
            if link.state == "down" and link.name in up:
                message = f"the link {link.name} of {host.host} is down, on other hosts it is up"
                hint = "look at that pod's network, and at its node's"
                yield Finding("link-down", Level.FAIL, message, host.host, hint=hint)


def _unanswered(hosts: Sequence[HostRanks]) -> Iterator[Finding]:
    """Name connections without an answer, by the far end that most of them have in common."""
    names = _names(hosts)
    by_far: dict[str, list[str]] = {}
    count: Counter[str] = Counter()
    for rank in (rank for host in hosts for rank in host.ranks):
        for item in rank.unanswered:
            far = names.get(item.far, item.far)
            what = "asked for a connection" if item.new else "repeated what it sent"
            line = f"rank {rank.number} on {rank.host}: {item.own} -> {item.far} port {item.port}, "
            by_far.setdefault(far, []).append(f"{line}{what} {item.times} times")
            count.update((far, rank.host))
    hint = (
        "packets between these hosts are lost: look at that link on both, at a NetworkPolicy or "
        "firewall between them, and at the MTU of the network"
    )
    for far in sorted(by_far, key=lambda name: (-count[name], name)):
        lines = by_far[far]
        message = f"{far} does not answer {counted(len(lines), 'connection')} of ranks"
        host = far if far in {item.host for item in hosts} else ""
        yield Finding("data-unanswered", Level.FAIL, message, host, tuple(lines[:_SHOWN]), hint)


def _names(hosts: Sequence[HostRanks]) -> Mapping[str, str]:
    """Give the hosts of addresses, as far as they or their connections tell."""
    ends = (
        (end.own, rank.host) for host in hosts for rank in host.ranks for end in rank.unanswered
    )
    return {**dict(ends), **{one: item.host for item in hosts for one in item.addresses}}


def _still(hosts: Sequence[HostRanks]) -> Iterator[Finding]:
    moved = {
        item.host: sum((link.sent or 0) + (link.received or 0) for link in item.links)
        for item in hosts
        if item.ranks and item.links
    }
    for host, rate in moved.items():
        rest = [other for name, other in moved.items() if name != host]
        if len(moved) >= _GROUP and median(rest) >= _MOVING and rate < _STILL * median(rest):
            message = f"{host} moves {rate / 1e6:.3f} MB/s, the others {median(rest) / 1e6:.3f}"
            hint = "look at the ranks of that host, and at its links"
            yield Finding("host-still", Level.WARN, message, host, hint=hint)
