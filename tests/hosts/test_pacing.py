"""Retry intervals, pauses that a found name ends, and how open files are shared."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.hosts import pacing
from mpiboot.hosts.pacing import LONGEST, SHORTEST, Pauses, pause

seconds = st.floats(min_value=0, max_value=1e6)
counts = st.integers(min_value=0, max_value=100_000)
lives = st.none() | st.floats(min_value=0, max_value=1e5)


@given(seconds, counts, lives, st.none() | st.floats(min_value=0, max_value=1e5))
def test_a_pause_is_never_a_busy_loop_and_never_without_an_end(
    waited: float, pending: int, expires: float | None, ceiling: float | None
) -> None:
    assert SHORTEST <= pause(waited, pending, expires, ceiling) <= LONGEST


@given(seconds, st.integers(min_value=1, max_value=16))
def test_the_last_few_hosts_wait_a_second_at_most(waited: float, pending: int) -> None:
    assert pause(waited, pending) <= 1.0


@given(seconds, counts, counts)
def test_more_hosts_never_mean_shorter_pauses(waited: float, one: int, other: int) -> None:
    few, many = sorted((one, other))

    assert pause(waited, few) <= pause(waited, many)


def test_a_wait_of_seconds_is_looked_at_twenty_times_a_second() -> None:
    assert pause(0, 10) == pause(5, 10) == SHORTEST
    assert pause(20, 10) == 0.2


def test_thousands_of_hosts_share_a_budget() -> None:
    assert pause(0, 1000) == 5.0
    assert pause(0, 1_000_000) == LONGEST


def test_the_moment_when_a_negative_answer_expires_is_not_slept_through() -> None:
    assert pause(1000, 600, expires=2.5) == 3.0
    assert pause(1000, 1, expires=0.4) == SHORTEST
    assert pause(1000, 1, expires=1800) == 1.0


def test_the_users_longest_pause_is_a_ceiling() -> None:
    assert pause(1000, 1, ceiling=0.5) == 0.5
    assert pause(0, 1, ceiling=30) == SHORTEST
    assert pause(0, 1, ceiling=0) == SHORTEST


LONG = 600.0


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_name_that_comes_ends_the_next_two_pauses() -> None:
    pauses, ended = Pauses(), list[int]()

    async def one(number: int) -> None:
        await pauses.pause(LONG)
        ended.append(number)

    tasks = [asyncio.ensure_future(one(number)) for number in range(5)]
    await settled()
    pauses.end_some()
    await settled()
    assert ended == [0, 1]
    tasks[2].cancel()  # that host has left the hostfile
    await settled()
    pauses.end_some()
    await settled()
    assert ended == [0, 1, 3, 4]
    pauses.end_some()  # nobody waits


async def test_a_thousand_names_that_come_at_once_are_found_in_a_few_rounds() -> None:
    pauses, there = Pauses(), False

    async def one() -> None:
        while not there:
            await pauses.pause(LONG)
        pauses.end_some()

    tasks = [asyncio.ensure_future(one()) for _ in range(1000)]
    await settled()
    there = True
    pauses.end_some()
    await asyncio.wait_for(asyncio.gather(*tasks), LONG)


async def test_names_that_stay_away_are_not_asked_for_by_each_other() -> None:
    """One comes; the two that are tried for it are missing, and nothing more is asked."""
    pauses, tries = Pauses(), 0

    async def one() -> None:
        nonlocal tries
        while True:
            tries += 1
            await pauses.pause(LONG)

    tasks = [asyncio.ensure_future(one()) for _ in range(100)]
    await settled()
    pauses.end_some()
    await settled()
    assert tries == 102
    for task in tasks:
        task.cancel()


async def test_a_pause_ends_by_itself() -> None:
    await Pauses().pause(0.01)


@pytest.mark.parametrize(
    ("files", "connections", "look_ups"),
    [(1 << 17, 128, 130784), (1024, 128, 736), (320, 128, 32), (318, 127, 32), (128, 32, 32)],
)
def test_logins_and_look_ups_share_the_files_that_may_be_open(
    files: int, connections: int, look_ups: int
) -> None:
    """A login has two of them, and 32 are for all that is neither."""
    assert pacing.most_connections(files) == connections
    assert pacing.lookup_sockets(files) == look_ups
    assert 2 * connections + look_ups + 32 == files


def test_one_host_at_a_time_is_always_tried() -> None:
    assert (pacing.most_connections(10), pacing.lookup_sockets(10)) == (1, 1)
