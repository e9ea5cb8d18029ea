from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mpiboot.hosts.pacing import LONGEST, SHORTEST, pause

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
