"""Of several signals and ranks the one that counts, and what is still waited for at the end."""

from __future__ import annotations

import pytest

from mpiboot.supervisor.state import (
    AgentEnded,
    Event,
    MpirunEnded,
    RankEnd,
    RankEnded,
    SendSignal,
    Signalled,
    StartTimer,
    Timer,
)
from tests.supervisor.test_job import INT, TERM, USR1, ended_well, go, judged, running


def test_an_mpirun_that_ends_after_its_agents_is_waited_for_no_more() -> None:
    assert go([*ended_well(), MpirunEnded(0)], running())[0].finished


def test_the_agents_of_an_mpirun_that_a_signal_ended_are_not_waited_for() -> None:
    assert go([MpirunEnded(0, 9)], running())[0].finished


def test_after_a_signal_nothing_is_waited_for() -> None:
    state, _ = go([AgentEnded("w-2", 101, 255)], running())
    assert Timer.SUSPENSION in state.pending
    state, _ = go([Signalled(TERM)], state)
    assert Timer.SUSPENSION not in state.pending


@pytest.mark.parametrize("status", [3, 0])
def test_a_signal_that_explains_a_loss_is_waited_for_where_mpiruns_status_leaves_that_open(
    status: int,
) -> None:
    """A program that failed has its own status, and its end waits for nothing."""
    killed = AgentEnded("w-2", 101, -9, killed=True)
    state, _ = go([killed], running("openmpi5"))
    assert Timer.SUSPENSION in state.pending
    state, _ = go([MpirunEnded(status)], state)
    assert (Timer.SUSPENSION in state.pending) == (status == 0)


@pytest.mark.parametrize(
    ("first", "second", "blamed"),
    [
        (RankEnd.ABORT, RankEnd.SIGNAL, 1),
        (RankEnd.ABORT, RankEnd.STATUS, 0),
        (RankEnd.SIGNAL, RankEnd.SIGNAL, 0),
        (RankEnd.STATUS, RankEnd.SIGNAL, 0),
        (RankEnd.SIGNAL, RankEnd.ABORT, 0),
    ],
)
def test_a_rank_that_ends_later_is_blamed_only_where_it_explains_an_abort(
    first: RankEnd, second: RankEnd, blamed: int
) -> None:
    ends: list[Event] = [RankEnded(0, first, "w-1"), RankEnded(1, second, "w-2")]
    state, done = go(ends, running())
    assert state.first_rank == ends[blamed]
    # How long mpirun may go on without the first is counted once.
    assert [item.timer for item in done if isinstance(item, StartTimer)] == [Timer.RANK_ENDED]


def test_of_two_signals_the_first_is_the_jobs_end() -> None:
    assert judged([Signalled(INT), Signalled(TERM), MpirunEnded(0)], running()).code == 128 + INT


@pytest.mark.parametrize("end", [[], [MpirunEnded(0)]])
def test_the_programs_own_signal_is_sent_once_and_to_an_mpirun_that_runs(end: list[Event]) -> None:
    """Where the terminal has sent it to mpirun too, or mpirun has ended, nothing is sent."""
    state, _ = go(end, running())
    assert go([Signalled(USR1, direct=True)], state)[1] == ()
    sent = go([Signalled(USR1)], state)[1]
    assert sent == (() if end else (SendSignal(USR1),))
