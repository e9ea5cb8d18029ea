"""Which ways between workers are measured, what that costs, and what answers mean."""

from __future__ import annotations

import pytest

from mpiboot.network import paths
from mpiboot.network.paths import PathEnd, PathHost, PathTest

CONTROL, DATA = PathEnd("eth0", "10.0.0.1", 1450), PathEnd("net1", "10.1.0.1", 9000)


def hosts(count: int, networks: int = 1) -> list[PathHost]:
    return [PathHost(f"w-{number}", (CONTROL, DATA)[:networks]) for number in range(count)]


def pairs(count: int) -> set[frozenset[int]]:
    return {frozenset((way.source, way.target)) for way in paths.ways(hosts(count))}


def test_few_hosts_are_measured_each_with_each_both_ways_in_every_network() -> None:
    assert paths.ways(hosts(2, 2)) == (
        PathTest(1, 0, 0, True),
        PathTest(0, 1, 0, True),
        PathTest(1, 0, 1, True),
        PathTest(0, 1, 1, True),
    )
    for count in (1, 3, paths.ALL_PAIRS):
        assert len(pairs(count)) == count * (count - 1) // 2
    # A stream goes between neighbours alone.
    assert sum(way.stream for way in paths.ways(hosts(4))) == 2 * 3


def test_of_more_hosts_a_ring_with_chords_is_measured() -> None:
    for count in (paths.ALL_PAIRS + 1, 64):
        found = pairs(count)
        assert len(found) <= 2 * count
        assert {frozenset((place, place + 1)) for place in range(count - 1)} <= found
        assert frozenset().union(*found) == frozenset(range(count))


def test_hosts_with_fewer_networks_are_measured_in_those_that_both_have() -> None:
    mixed = [*hosts(1, 2), *hosts(1, 1)]
    assert {way.network for way in paths.ways(mixed)} == {0}


@pytest.mark.parametrize(
    ("count", "networks", "seconds"), [(0, 1, 10), (2, 1, 30), (2, 2, 50), (4, 1, 70), (64, 2, 90)]
)
def test_it_takes_a_bounded_time(count: int, networks: int, seconds: float) -> None:
    assert paths.limit(paths.ways(hosts(count, networks)), count) == seconds


def test_it_says_before_what_it_will_cost() -> None:
    listed = hosts(3, 2)
    assert paths.announcement(paths.ways(listed), listed) == (
        "measures 12 ways between 3 hosts on 2 networks: 90 s and 512 MiB at most"
    )


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("connected 120 1450 1000000", ("connected", 120, 1450, 1000000)),
        ("silent - - -", ("silent", None, None, None)),
        ("connected 120 - -", ("connected", 120, None, None)),
        ("", None),
        ("connected 1 2", None),
    ],
)
def test_answers_are_read(
    line: str, found: tuple[str, int | None, int | None, int | None] | None
) -> None:
    assert paths.read(line) == found
