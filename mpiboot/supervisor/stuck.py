"""What looks like a job that is stuck, and may be a healthy one: a warning, or its end. Pure.

None of this is proof: a rank may compute, or write its results, for as long as it likes. So a guess
is told, again once an hour while it holds, and explains a bad end later; it ends a job only where
MPIBOOT_STUCK says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mpiboot.core.choices import LogLevel
from mpiboot.core.wording import counted
from mpiboot.supervisor.causes import in_order, no_answer, not_ended, ranks_waiting
from mpiboot.supervisor.ending import Step, end, save, start
from mpiboot.supervisor.events import (
    AskForRanksInMpi,
    RanksInMpi,
    Say,
    StartTimer,
    Timer,
    Unanswered,
    Verdict,
)
from mpiboot.supervisor.state import WAITING_LOOKS, Phase, State

# Seconds until a guess that still holds is told again.
_AGAIN: Final = 3600.0
_DROPPED: Final = (
    "is TCP between the workers dropped? A NetworkPolicy or firewall must allow the job's pods all "
    "ports among each other, or the range of MPIBOOT_PORT_RANGE"
)


def host_ended(state: State) -> Step:
    """Watch a job one of whose hosts has ended well."""
    over = state.phase is Phase.RUNNING and state.ended_well.issuperset(state.job.hosts)
    if over and not state.agents:
        # Ranks in this pod have no agent, and may run for long after MPI_Finalize.
        return (state, ()) if state.job.own_ranks else start(state, Timer.DAEMONS_ENDED)
    waits = state.job.family.daemons_follow and not state.job.goes_on
    if waits and state.agents and state.waiting_looks < WAITING_LOOKS:
        return start(state, Timer.HOST_DONE)
    return state, ()


def daemons_ended(state: State) -> Step:
    """Take in that mpirun outlives its daemons: it hangs, or what reads its output is slow."""
    cause = not_ended(state)
    return _guess(state, cause, cause.said, Timer.DAEMONS_ENDED)


def host_done(state: State) -> Step:
    """Ask for ranks that are still in MPI after those of a host have all ended."""
    return state, ((AskForRanksInMpi(),) if state.agents else ())


def ranks_in_mpi(state: State, event: RanksInMpi) -> Step:
    """Take in the answer: twice so, they may wait for ranks that left without MPI_Finalize.

    With ch4:ofi, MPICH's MPI_Finalize waits for nobody: there they may as well compute.
    """
    if state.being_ended or state.ended is not None or not state.ended_well:
        return state, ()
    if not event.ranks:
        told = state.waiting_looks == WAITING_LOOKS
        return replace(state, waiting_looks=0, suspected="" if told else state.suspected), ()
    state = replace(state, waiting_looks=min(state.waiting_looks + 1, WAITING_LOOKS))
    if state.waiting_looks < WAITING_LOOKS:
        return start(state, Timer.HOST_DONE)
    cause = ranks_waiting(state)
    host = in_order(state, state.ended_well)[0]
    many = f"{counted(event.ranks, 'rank')} elsewhere {'is' if event.ranks == 1 else 'are'}"
    said = f"{host}: its ranks have all ended, and {many} still in MPI, perhaps waiting for them"
    return _guess(state, cause, said, Timer.HOST_DONE)


def unanswered(state: State, event: Unanswered) -> Step:
    """Take in a rank that has tried to connect to another host for more than a minute."""
    over = state.being_ended or state.ended is not None
    if over or state.losses or state.phase is not Phase.RUNNING:
        return state, ()
    if not event.said:
        return replace(state, suspected=""), ()
    state, actions = _guess(state, no_answer(event.said), event.said)
    return state, (*actions, Say(LogLevel.WARNING, "stuck", _DROPPED))


def _guess(state: State, cause: Verdict, said: str, again: Timer | None = None) -> Step:
    """Warn, and look again by a timer; or, where that is wanted, end the job."""
    if state.job.end_stuck and not state.job.goes_on:
        warned = Say(LogLevel.WARNING, "stuck", f"{said}: the job is ended (MPIBOOT_STUCK=end)")
        # A signal of its own would end mpirun before it tells with what codes ranks ended.
        state = replace(state, cause=cause)
        state, actions = save(state) if state.job.grace else end(state, cause)
        return state, (warned, *actions)
    state = replace(state, suspected=said)
    how = "would end it" if not state.job.end_stuck else "ends none that may do without a rank"
    said += f"; the job goes on (MPIBOOT_STUCK=end {how})"
    warned = Say(LogLevel.WARNING, "stuck", f"{said}. Look closer: mpiboot doctor ranks")
    if again is None:
        return state, (warned,)
    state = replace(state, pending=state.pending | {again})
    return state, (warned, StartTimer(again, _AGAIN))
