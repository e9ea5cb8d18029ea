"""How mpirun is brought to its end, by a signal or by us: asked, asked again, killed. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeAlias

from mpiboot.core.choices import LogLevel
from mpiboot.supervisor.causes import client_lost, pod_ending
from mpiboot.supervisor.events import (
    Action,
    ClientEnded,
    HostEnding,
    KillMpirun,
    ReleaseMpirun,
    Say,
    SendSignal,
    SessionOver,
    Signalled,
    StartTimer,
    StopRanks,
    Timer,
    Verdict,
)
from mpiboot.supervisor.state import SIGTERM, SIGUSR, Phase, State, signal_name

# Seconds. A second and a half suffices 4.1 to end after a lost daemon; a suspended job's workers
# and launcher get their signals within a second or so; a pod's usual grace is 30 s: 20 + 5 fit.
DELAYS: Final = {
    Timer.LOST_DAEMON: 3.0,
    Timer.SUSPENSION: 2.0,
    Timer.HOST_CHECK: 3.0,
    Timer.KILL: 5.0,
    Timer.KILLED: 5.0,
    Timer.AGENTS: 5.0,
    Timer.DAEMONS_ENDED: 60.0,
    # 5.0.7 waits for ever where a rank of its own host dies as it starts (measured, 7 of 12).
    Timer.RANK_ENDED: 30.0,
    # Twice. MPI_Finalize lets no rank of MPICH go before all are there (measured with 4.0 and 5.0).
    Timer.HOST_DONE: 15.0,
}
# While daemons are launched no rank has anything to save.
_LAUNCH_GRACE: Final = 5.0
# After its last rank mpirun ends within a second or so, however loaded its host is.
_FOLLOW: Final = 5.0
# What is waited for after mpirun has ended.
WAITS: Final = frozenset((Timer.AGENTS, Timer.HOST_CHECK, Timer.SUSPENSION))

Step: TypeAlias = tuple[State, tuple[Action, ...]]


def start(state: State, *timers: Timer) -> Step:
    """Start timers of a known length."""
    begun = tuple(StartTimer(timer, DELAYS[timer]) for timer in timers)
    return replace(state, pending=state.pending | set(timers)), begun


def stop(state: State, *timers: Timer) -> State:
    """Forget timers."""
    return replace(state, pending=state.pending.difference(timers))


def end(state: State, cause: Verdict | None) -> Step:
    """Ask mpirun to end; ``cause`` None where a loss is the reason."""
    state = replace(state, cause=cause or state.cause)
    if state.ended is not None or state.stage:
        return state, ()
    return ask(state, SIGTERM, direct=False)


def ask(state: State, number: int, *, direct: bool) -> Step:
    """Ask mpirun to end, and give it its grace; ``direct`` where the terminal has asked it."""
    launching = state.phase is Phase.LAUNCHING
    seconds = min(state.job.grace, _LAUNCH_GRACE) if launching else state.job.grace
    state = replace(
        state,
        phase=Phase.ENDING,
        stage=1,
        pending=(state.pending & WAITS) | {Timer.GRACE},
    )
    forward = () if direct else (SendSignal(number),)
    return state, (*forward, StartTimer(Timer.GRACE, seconds))


def save(state: State) -> Step:
    """Tell the ranks alone to end, and give them the grace; mpirun would kill them in a second."""
    state = replace(
        state,
        phase=Phase.ENDING,
        stage=1,
        saving=True,
        pending=(state.pending & WAITS) | {Timer.GRACE},
    )
    seconds = state.job.grace
    over = tuple(SessionOver(loss.host) for loss in state.losses)
    stop_ranks = StopRanks(state.job.stop_signal, seconds)
    return state, (stop_ranks, StartTimer(Timer.GRACE, seconds), *over)


def ranks_left(state: State, ranks: int | None) -> Step:
    """Take in how many of the ranks that were told to end are still there."""
    if not state.saving:
        return state, ()
    first = state.ranks_left is None
    state = replace(state, ranks_left=ranks)
    if ranks is None:
        state = replace(state, saving=False)
        return state, (SendSignal(state.signal or SIGTERM),)
    if ranks == 0:
        state = replace(state, saving=False)
        return state, (ReleaseMpirun(), StartTimer(Timer.GRACE, min(_FOLLOW, state.job.grace)))
    if not first:
        return state, ()
    name, many = signal_name(state.job.stop_signal), ranks > 1
    who = f"{ranks} ranks are" if many else "the rank is"
    said = f"{who} told {name} and {'have' if many else 'has'} {state.job.grace:g} s to end"
    return state, (Say(LogLevel.INFO, "signal", said),)


def ask_again(state: State, number: int, *, direct: bool) -> Step:
    """Ask again, and then kill."""
    late: tuple[Action, ...] = ()
    if state.saving:
        who = "one rank" if state.ranks_left == 1 else f"{state.ranks_left} ranks"
        said = f"{who} did not end in time: mpirun ends what is left"
        if state.ranks_left is None:
            said = "no count of the ranks that are left came in time: mpirun ends them"
        late = (Say(LogLevel.WARNING, "signal", said),)
        state = replace(state, saving=False)
    state = replace(stop(state, Timer.GRACE, Timer.KILL), stage=min(3, state.stage + 1))
    if state.stage == 2:  # noqa: PLR2004 - asked again
        state, begun = start(state, Timer.KILL)
        return state, (*late, *(() if direct else (SendSignal(number),)), *begun)
    state, begun = start(state, Timer.KILLED)
    return state, (*late, KillMpirun(), *begun)


def signalled(state: State, event: Signalled) -> Step:
    """Pass a signal on to mpirun, or end the job by it."""
    if event.number in SIGUSR:
        return state, _pass_on(state, event)
    again = state.signal or not state.saving
    state = replace(state, signal=state.signal or event.number)
    # A job that is being ended blames no host: its workers may well have been told before it.
    state = replace(stop(state, *WAITS), being_checked=frozenset())
    if state.ended is not None:
        return state, ()
    if not state.stage:
        # A terminal has told mpirun already, and before all have joined no rank has begun.
        if state.phase is Phase.RUNNING and state.job.grace and not event.direct:
            return save(state)
        return ask(state, event.number, direct=event.direct)
    if not again:
        return state, ()  # all pods of a job end together, and a worker told first
    return ask_again(state, event.number, direct=event.direct)


def host_ending(state: State, event: HostEnding) -> Step:
    """End a job that loses a pod while all of its ranks can still save."""
    begun = state.being_ended or state.losses
    known = event.host in state.job.hosts
    if begun or not known or state.phase is not Phase.RUNNING or not state.job.grace:
        return state, ()
    state, actions = save(replace(state, cause=pod_ending(event.host)))
    said = "its pod is being ended: all ranks of the job get time to save"
    return state, (Say(LogLevel.WARNING, "signal", said, event.host), *actions)


def _pass_on(state: State, event: Signalled) -> tuple[Action, ...]:
    """Give the program's own signal to mpirun, where it has ranks that can get it."""
    if state.phase is Phase.LAUNCHING and not state.joins_unseen:
        # 5.0 takes each daemon that isn't there yet for an error.
        said = f"{signal_name(event.number)} is not forwarded: no rank runs yet"
        return (Say(LogLevel.INFO, "signal", said),)
    return () if state.ended is not None or event.direct else (SendSignal(event.number),)


def client_ended(state: State, event: ClientEnded) -> Step:
    """End a job whose sessions are all gone: its daemons end, and no host is to blame."""
    if state.being_ended or (state.ended is not None and not state.agents):
        return state, ()
    cause = client_lost(event)
    state, actions = end(state, cause)
    return state, (Say(LogLevel.ERROR, "launch", cause.said), *actions)
