"""How mpirun is brought to its end, step by step: asked, asked again, killed. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeAlias

from mpiboot.parent.events import (
    Action,
    KillMpirun,
    ReleaseMpirun,
    Say,
    SendSignal,
    StartTimer,
    StopRanks,
    Timer,
    Verdict,
)
from mpiboot.parent.state import SIGTERM, Phase, State, signal_name

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
    return state, (StopRanks(state.job.stop_signal, seconds), StartTimer(Timer.GRACE, seconds))


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
    return state, (Say("info", "signal", said),)


def ask_again(state: State, number: int, *, direct: bool) -> Step:
    """Ask again, and then kill."""
    late: tuple[Action, ...] = ()
    if state.saving:
        who = {None: "the ranks", 1: "one rank"}.get(state.ranks_left, f"{state.ranks_left} ranks")
        said = f"{who} did not end in time: mpirun ends what is left"
        late = (Say("warning", "signal", said),)
        state = replace(state, saving=False)
    state = replace(stop(state, Timer.GRACE, Timer.KILL), stage=min(3, state.stage + 1))
    if state.stage == 2:  # noqa: PLR2004 - asked again
        state, begun = start(state, Timer.KILL)
        return state, (*late, *(() if direct else (SendSignal(number),)), *begun)
    state, begun = start(state, Timer.KILLED)
    return state, (*late, KillMpirun(), *begun)
