"""The ways between workers that ``mpiboot doctor --network`` measures, and what it costs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mpiboot.core.wording import counted, size_of
from mpiboot.network import worker_pairs
from mpiboot.network.worker_pairs import WORDS, Reached

# So many hosts are measured each with each; of more, a ring with chords, as the gate's pairs.
ALL_PAIRS: Final = 6
SECONDS: Final = 2.0  # for a connection
STREAM: Final = 64 << 20  # bytes at most
_EACH: Final = 10.0  # seconds that one way may take at the worst
_START: Final = 10.0
_MOST: Final = 90.0
_ANSWER: Final = 4  # words


@dataclass(frozen=True, slots=True)
class PathEnd:
    """A worker's end of one network: its link, MTU and address there."""

    link: str
    address: str
    mtu: int


@dataclass(frozen=True, slots=True)
class PathHost:
    """A worker to be measured: its end of the control network, then those of the data networks."""

    name: str
    ends: tuple[PathEnd, ...]


@dataclass(frozen=True, slots=True)
class PathTest:
    """One path to be tested, from one host to another in one network; counted by their places.

    ``stream`` tells whether a stream is sent too: only between neighbours of the ring.
    """

    source: int
    target: int
    network: int
    stream: bool


@dataclass(frozen=True, slots=True)
class PathSeen:
    """What one way is like; what is not known is None.

    ``how`` is None where it was not measured in time; ``wanted`` is the MTU that both links have,
    ``mtu`` the largest packet that came through; ``microseconds`` the round trip; ``rate`` bytes a
    second.
    """

    source: str
    target: str
    link: str
    control: bool
    address: str
    how: Reached | None
    wanted: int
    microseconds: int | None = None
    mtu: int | None = None
    rate: int | None = None


def ways(hosts: Sequence[PathHost]) -> tuple[PathTest, ...]:
    """Choose the ways, both directions of a pair."""
    found = []
    for one in range(len(hosts)):
        others = range(one) if len(hosts) <= ALL_PAIRS else worker_pairs.partners(one)
        for other in others:
            for network in range(min(len(hosts[one].ends), len(hosts[other].ends))):
                ring = other == one - 1
                found += [PathTest(one, other, network, ring), PathTest(other, one, network, ring)]
    return tuple(found)


def limit(chosen: Sequence[PathTest], hosts: int) -> float:
    """Say how many seconds all of it may take; a host has a part in one way at a time."""
    busiest = max(
        (sum(place in (way.source, way.target) for way in chosen) for place in range(hosts)),
        default=0,
    )
    return min(_MOST, _START + _EACH * busiest)


def announcement(chosen: Sequence[PathTest], hosts: Sequence[PathHost]) -> str:
    """Say before it begins what it will do."""
    networks = len({way.network for way in chosen})
    traffic = size_of(STREAM * sum(way.stream for way in chosen))
    seconds = limit(chosen, len(hosts))
    return (
        f"measures {counted(len(chosen), 'way')} between {counted(len(hosts), 'host')} on "
        f"{counted(networks, 'network')}: {seconds:.0f} s and {traffic} at most"
    )


def read(line: str) -> tuple[Reached, int | None, int | None, int | None] | None:
    """Read what ``worker/path_probe.py`` answers; None where it is none."""
    words = line.split()
    if len(words) != _ANSWER or words[0] not in WORDS:
        return None
    trip, mtu, rate = (int(word) if word.isdecimal() else None for word in words[1:])
    return WORDS[words[0]], trip, mtu, rate
