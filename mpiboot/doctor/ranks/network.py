"""What is odd of the hosts' links and connections while ranks run. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final

from mpiboot.core.model import Finding
from mpiboot.core.wording import counted
from mpiboot.doctor.ranks import kinds
from mpiboot.doctor.ranks.records import HostRanks

# Fewer hosts say nothing of who is the odd one among them.
_CROWD: Final = 3
# Bytes a second that the other hosts move where one that moves nearly none is odd.
_MOVING: Final = 1e6
_STILL: Final = 0.01
_SHOWN: Final = 8  # lines of evidence


def judge(hosts: Sequence[HostRanks]) -> Iterator[Finding]:
    """Name links that are down, ends that do not answer, and hosts that move nothing."""
    kind = kinds.LINK
    for host in hosts:
        for link in host.links:
            up = any(
                item.name == link.name and item.state == "up" for one in hosts for item in one.links
            )
            if link.state == "down" and up:
                said = f"the link {link.name} of {host.host} is down, on other hosts it is up"
                yield Finding(kind.check, kind.level, said, host.host, hint=kind.hint)
    yield from _unanswered(hosts)
    yield from _still(hosts)


def _unanswered(hosts: Sequence[HostRanks]) -> Iterator[Finding]:
    """Tell of connections that nobody answers, by the far end that most of them have in common."""
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
    kind = kinds.UNANSWERED
    for far in sorted(by_far, key=lambda name: (-count[name], name)):
        lines = by_far[far]
        said = f"{far} does not answer {counted(len(lines), 'connection')} of ranks"
        host = far if far in {item.host for item in hosts} else ""
        yield Finding(kind.check, kind.level, said, host, tuple(lines[:_SHOWN]), kind.hint)


def _names(hosts: Sequence[HostRanks]) -> Mapping[str, str]:
    """Give the hosts of addresses, as far as they or their connections tell."""
    ends = (
        (end.own, rank.host) for host in hosts for rank in host.ranks for end in rank.unanswered
    )
    return {**dict(ends), **{one: item.host for item in hosts for one in item.addresses}}


def _still(hosts: Sequence[HostRanks]) -> Iterator[Finding]:
    kind = kinds.HOST
    moved = {
        item.host: sum((link.sent or 0) + (link.received or 0) for link in item.links)
        for item in hosts
        if item.ranks and item.links
    }
    for host, rate in moved.items():
        rest = [other for name, other in moved.items() if name != host]
        if len(moved) >= _CROWD and median(rest) >= _MOVING and rate < _STILL * median(rest):
            said = f"{host} moves {rate / 1e6:.3f} MB/s, the others {median(rest) / 1e6:.3f}"
            yield Finding(kind.check, kind.level, said, host, hint=kind.hint)
