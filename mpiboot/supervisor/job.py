"""What an event means for a started job: event x MPI -> state and actions. Pure.

``step`` takes a state and an event, and gives the next state and what to do. It never reads a
clock, a process or a file. While mpirun runs only this ends the job: a signal, an agent that ended
badly, a pod that is being terminated, and a launch timeout of the user's. No sequence of events
ends in 0 after a host was lost or a signal came, and from every loss, signal and end of mpirun
timers alone lead to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from mpiboot.core.launch_spec import LaunchSpec
from mpiboot.core.setting_types import LogLevel
from mpiboot.core.wording import counted, first_few, took
from mpiboot.supervisor.state import (
    FAMILIES,
    SIGKILL,
    SIGTERM,
    SIGUSR,
    UNKNOWN,
    Action,
    AgentConnected,
    AgentEnded,
    AgentStarted,
    CountRanks,
    Event,
    Finish,
    HostEnding,
    KillMpirun,
    LogLine,
    Loss,
    MpirunEnded,
    RankEnd,
    RankEnded,
    RanksCounted,
    RanksLeft,
    ReleaseMpirun,
    SendSignal,
    SessionOver,
    Signalled,
    StartTimer,
    State,
    StopRanks,
    Timer,
    TimerFired,
    Verdict,
    by_ssh,
    signal_name,
)
from mpiboot.supervisor.verdict import (
    LISTED,
    how,
    lacks,
    launch_timeout,
    pod_ending,
    rank_name,
)

# Seconds. A second and a half suffices 4.1 to end after a lost daemon; a suspended job's workers
# and launcher get their signals within a second or so; a pod's usual grace is 30 s: 20 + 5 fit.
DELAYS: Final = {
    # Ranks start within a second or so of the last daemon.
    Timer.RANKS: 10.0,
    Timer.LOST_DAEMON: 3.0,
    Timer.SUSPENSION: 2.0,
    Timer.KILL: 5.0,
    Timer.KILLED: 5.0,
    Timer.AGENTS: 5.0,
    # 5.0.7 waits forever where a rank on mpirun's host dies as it starts (measured, 7 of 12).
    Timer.RANK_ENDED: 30.0,
}
# While daemons are launched no rank has anything to save.
_LAUNCH_GRACE: Final = 5.0
# After its last rank mpirun ends within a second or so, however loaded its host is.
_FOLLOW: Final = 5.0
# What is waited for after mpirun has ended.
WAITS: Final = frozenset((Timer.AGENTS, Timer.SUSPENSION))

Step: TypeAlias = tuple[State, tuple[Action, ...]]


def initial(job: LaunchSpec) -> Step:
    """Begin: the state before mpirun runs, and the first timer."""
    family, hosts = FAMILIES.get(job.family, UNKNOWN), job.remote_hosts
    state = State(job, family, hosts, frozenset(hosts), launched=not hosts)
    if not hosts:
        return state, ()
    state = replace(state, pending=frozenset((Timer.LAUNCH,)))
    return state, (StartTimer(Timer.LAUNCH, job.launch_timeout),)


def step(state: State, event: Event) -> Step:
    """Handle one event. After ``Finish`` nothing changes any more."""
    if state.finished:
        return state, ()
    new, actions = _RULES[type(event)](state, event)
    if new.ended is not None and not new.pending & WAITS:
        return replace(new, finished=True, pending=frozenset()), (*actions, Finish())
    return new, actions


def _start(state: State, *timers: Timer) -> Step:
    """Start timers of a known length."""
    begun = tuple(StartTimer(timer, DELAYS[timer]) for timer in timers)
    return replace(state, pending=state.pending | set(timers)), begun


def _stop(state: State, *timers: Timer) -> State:
    return replace(state, pending=state.pending.difference(timers))


# Ending a job


def _end(state: State, cause: Verdict | None) -> Step:
    """Signal mpirun to end; ``cause`` is None where a loss is the reason."""
    state = replace(state, cause=cause or state.cause)
    if state.ended is not None or state.stage:
        return state, ()
    return _signal_mpirun(state, SIGTERM, direct=False)


def _ending(state: State, seconds: float) -> Step:
    pending = (state.pending & WAITS) | {Timer.GRACE}
    return replace(state, stage=1, pending=pending), (StartTimer(Timer.GRACE, seconds),)


def _signal_mpirun(state: State, number: int, *, direct: bool) -> Step:
    """Signal mpirun, and give it its grace; ``direct`` where the terminal has signalled it."""
    grace = state.job.grace
    state, begun = _ending(state, grace if state.may_have_ranks else min(grace, _LAUNCH_GRACE))
    return state, (*(() if direct else (SendSignal(number),)), *begun)


def _save(state: State) -> Step:
    """Signal the ranks alone, and give them the grace; mpirun would kill them in a second."""
    state, begun = _ending(replace(state, saving=True), state.job.grace)
    over = tuple(SessionOver(loss.host) for loss in state.losses)
    return state, (StopRanks(state.job.stop_signal, state.job.grace), *begun, *over)


def _ranks_left(state: State, event: RanksLeft) -> Step:
    if not state.saving:
        return state, ()
    first, ranks = state.ranks_left is None, event.ranks
    state = replace(state, ranks_left=ranks, saving=bool(ranks))
    if ranks is None:
        grace = min(_LAUNCH_GRACE, state.job.grace)
        begun = () if state.launched else (StartTimer(Timer.GRACE, grace),)
        return state, (SendSignal(state.signal or SIGTERM), *begun)
    if ranks == 0:
        return state, (ReleaseMpirun(), StartTimer(Timer.GRACE, min(_FOLLOW, state.job.grace)))
    if not first:
        return state, ()
    sent = f"sent {signal_name(state.job.stop_signal)} to {counted(ranks, 'rank')}"
    message = f"{sent}; waiting up to {took(state.job.grace)}"
    return state, (LogLine(LogLevel.INFO, "signal", message),)


def _escalate(state: State, number: int, *, direct: bool) -> Step:
    """Signal mpirun again; the third time, kill it."""
    overdue: tuple[Action, ...] = ()
    if state.saving:
        who = "one rank" if state.ranks_left == 1 else f"{state.ranks_left} ranks"
        message = f"{who} did not end in time: mpirun ends what is left"
        if state.ranks_left is None:
            message = "no count of the ranks that are left came in time: mpirun ends them"
        overdue = (LogLine(LogLevel.WARNING, "signal", message),)
    state = replace(
        _stop(state, Timer.GRACE, Timer.KILL), stage=min(3, state.stage + 1), saving=False
    )
    if state.stage == 2:  # noqa: PLR2004 - signalled again
        state, begun = _start(state, Timer.KILL)
        return state, (*overdue, *(() if direct else (SendSignal(number),)), *begun)
    state, begun = _start(state, Timer.KILLED)
    return state, (*overdue, KillMpirun(), *begun)


def _signalled(state: State, event: Signalled) -> Step:
    """Pass a signal on to mpirun, or end the job by it."""
    if event.number in SIGUSR:
        return state, _pass_on(state, event)
    again = state.signal or not state.saving
    state = replace(state, signal=state.signal or event.number)
    # No host is blamed for the end of a job that is being ended: its workers may have got the
    # signal first.
    state = _stop(state, *WAITS)
    if state.ended is not None:
        return state, ()
    if not state.stage:
        # A terminal has signalled mpirun already, and before all agents are connected no rank runs.
        if state.may_have_ranks and state.job.grace and not event.direct:
            return _save(state)
        return _signal_mpirun(state, event.number, direct=event.direct)
    if not again:
        return state, ()  # all pods of a job are terminated together, and a worker reported first
    return _escalate(state, event.number, direct=event.direct)


def _pass_on(state: State, event: Signalled) -> tuple[Action, ...]:
    """Forward a signal of the program's own to mpirun, where it has ranks that can get it."""
    if not state.may_have_ranks:
        # 5.0 takes each daemon that isn't there yet for an error.
        message = f"{signal_name(event.number)} is not forwarded: no rank runs yet"
        return (LogLine(LogLevel.INFO, "signal", message),)
    return () if state.ended is not None or event.direct else (SendSignal(event.number),)


def _host_ending(state: State, event: HostEnding) -> Step:
    """End a job that is losing a pod while all of its ranks can still save."""
    known = event.host in state.hosts and state.may_have_ranks and state.job.grace
    if state.being_ended or state.losses or not known:
        return state, ()
    state, actions = _save(replace(state, cause=pod_ending(event.host)))
    message = "its pod is being ended: all ranks of the job get time to save"
    return state, (LogLine(LogLevel.WARNING, "signal", message, event.host), *actions)


# The launch


def _agent_started(state: State, event: AgentStarted) -> Step:
    spawned = state.spawned.union((event.pid,) if event.spawned else ())
    return _count_later(replace(state.with_agent(event.host, event.pid), spawned=spawned))


def _count_later(state: State) -> Step:
    return (state, ()) if state.launched or state.being_ended else _start(state, Timer.RANKS)


def _agent_connected(state: State, event: AgentConnected) -> Step:
    again, hosts = event.host in state.connected, state.hosts
    state, actions = _count_later(replace(state, connected=state.connected | {event.host}))
    count = len(hosts)
    last = not again and len(state.connected) >= count and event.host in hosts
    if not last or not state.connected.issuperset(hosts):
        return state, actions
    text = f"all {count} remote daemons started" if count > 1 else "the remote daemon started"
    return state, (*actions, LogLine(LogLevel.INFO, "launch", text))


def _ranks_counted(state: State, event: RanksCounted) -> Step:
    """Handle each host's number of ranks: a host without its daemon is warned of, or worse."""
    seen = sum(map(bool, event.ranks.values()))
    lines: tuple[Action, ...] = ()
    if seen and not (state.launched or state.connected):  # an agent of the user's, or kubectl
        lines = (LogLine(LogLevel.INFO, "launch", f"ranks run on {counted(seen, 'host')}"),)
    state = replace(state, launched=state.launched or seen > 0)
    if state.being_ended or state.ended is not None:
        return state, ()
    # A host whose ranks have ended has no daemon any more.
    over = state.no_agent | (state.ended_well if state.launched else frozenset())
    without = tuple(
        host for host in state.hosts if host not in over and event.ranks.get(host, 0) is None
    )
    if state.launched and not without:
        return _stop(state, Timer.LAUNCH), lines
    if not state.overdue:
        return state, lines
    cause = launch_timeout(state, without)
    if event.ranks and state.job.end_late:
        return _end(state, cause)
    message = "; ".join((cause.message, *cause.evidence))
    if not event.ranks:
        message = "no host reports whether mpirun's daemons run there"
    return state, (*lines, LogLine(LogLevel.WARNING, "launch", f"{message}; the job goes on"))


# Agents that have ended


def _agent_ended(state: State, event: AgentEnded) -> Step:
    state = replace(state, agents=state.agents - {(event.host, event.pid)})
    if not state.agents:
        state = _stop(state, Timer.AGENTS)
    if state.being_ended:
        waits = state.saving and not state.has_agent(event.host)
        return state, ((SessionOver(event.host),) if waits else ())
    # Some MPIs query a host's shell first: what counts is the host's last agent. Ranks that were
    # spawned may well end before the others, on any host.
    if state.has_agent(event.host) or (event.status == 0 and event.pid in state.spawned):
        return state, ()
    if event.status == 0:
        launched = state.launched or event.host in state.connected
        return replace(state, ended_well=state.ended_well | {event.host}, launched=launched), ()
    return _lost(state, event)


def _lost(state: State, event: AgentEnded) -> Step:
    """Note an agent that ended badly; mpirun gets time to end over it, and is then ended."""
    loss = Loss(
        event.host,
        event.status,
        event.words,
        sure=by_ssh(event.status) and not (event.signalled or event.by_daemon),
        connected=event.host in state.connected,
        after=state.ended is not None,
        by_daemon=event.by_daemon,
        remote=state.job.remote,
    )
    before, state = state.losses, replace(state, losses=(*state.losses, loss))
    if event.killed and before and event.host != state.lost_daemon:
        return state, ()  # an mpirun that gives up over a lost host kills the other agents
    actions: tuple[Action, ...] = ()
    usual = event.by_daemon and event.status in state.family.at_end
    if state.ended is None and Timer.LOST_DAEMON not in state.pending and not usual:
        state, actions = _start(state, Timer.LOST_DAEMON)
    follows = state.lost_daemon not in ("", event.host)
    if not loss.sure and not (event.killed and not follows and _may_be_lost(state)):
        return state, (*actions, LogLine(LogLevel.DEBUG, "agent", how(loss), loss.host))
    if not any(item.sure for item in before):
        state, more = _start(state, Timer.SUSPENSION)
        actions += more
    return state, (*actions, LogLine(LogLevel.WARNING, "agent", how(loss), loss.host))


def _may_be_lost(state: State) -> bool:
    """Whether a lost host may be behind mpirun's end, as far as its status tells."""
    ended = state.ended
    return ended is None or (not ended.signal and ended.status in state.family.lost)


# What mpirun reports, and its end


def _rank_ended(state: State, event: RankEnded) -> Step:
    if event.last:
        # Where mpirun ended ranks itself, the first failure is the one that it reported earlier.
        ended_by_mpirun = state.first_rank and event.signal in (SIGKILL, SIGTERM)
        return (state if ended_by_mpirun else replace(state, first_rank=event)), ()
    if state.being_ended:
        return state, ()
    if event.how in (RankEnd.MPI, RankEnd.LOST, RankEnd.LACKS, RankEnd.TIMED_OUT):
        return _reported(state, event)
    # A peer may find a dead rank's connection closed, and abort, before its end is reported.
    first = state.first_rank
    later = (
        first
        and (first.how is not RankEnd.ABORT or event.how is not RankEnd.SIGNAL)
        and (first.rank is not None or event.rank is None)
    )
    state = replace(state, first_rank=first if later else event)
    # Hydra reports on the stream that ranks write to: a rank's own mpiexec may have written it.
    guessed = state.family.mixes_statuses
    if first or guessed or state.job.tolerates_failure or state.ended is not None:
        return state, ()
    return _start(state, Timer.RANK_ENDED)


def _reported(state: State, event: RankEnded) -> Step:
    """Note what mpirun reports that is no rank's end, the first of each."""
    if event.how is RankEnd.MPI:
        return replace(state, mpi_failed=state.mpi_failed or event.what), ()
    if event.how is RankEnd.LOST:
        return replace(state, lost_daemon=state.lost_daemon or event.host), ()
    if event.how is RankEnd.TIMED_OUT:
        return replace(state, timed_out=True), ()
    first, state = state.lacking is None, replace(state, lacking=state.lacking or event)
    if not first or not state.family.mixes_statuses or state.ended is not None:
        return state, ()
    # Intel MPI's mpirun ends on its own then, MPICH's does not.
    pending = state.pending | {Timer.RANK_ENDED}
    return replace(state, pending=pending), (StartTimer(Timer.RANK_ENDED, _FOLLOW),)


def _goes_on(state: State) -> Step:
    """Warn of an mpirun that goes on without a rank; the others may compute, or wait for it."""
    first, lacking = state.first_rank, state.lacking
    host, what = "", "a rank ended badly"
    if lacking:
        host, what = lacking.host, lacks(lacking)
    elif first:
        host, what = first.host, f"{rank_name(first)} ended badly"
    message = f"{what}, and mpirun goes on without it. Check the others: mpiboot doctor ranks"
    return state, (LogLine(LogLevel.WARNING, "launch", message, host),)


def _mpirun_ended(state: State, event: MpirunEnded) -> Step:
    if state.ended is not None:
        return state, ()
    state = replace(state, ended=event)
    lost = any(loss.sure for loss in state.losses) or _may_be_lost(state)
    state = replace(state, pending=state.pending & {Timer.SUSPENSION} if lost else frozenset())
    if state.cause and not state.signal and state.cause == pod_ending(state.cause.host):
        # Where all pods of a job are terminated, the launcher's own signal may come after this.
        return _start(_stop(state, *WAITS), Timer.SUSPENSION)
    if state.signal or state.cause or event.signal:
        return _stop(state, *WAITS), ()
    return _start(state, Timer.AGENTS) if state.agents else (state, ())


# Timers


def _agents_late(state: State) -> Step:
    hosts = tuple(sorted({host for host, _ in state.agents}))
    message = f"{first_few(hosts, LISTED)}: its session was still open 5 s after mpirun ended"
    return replace(state, late_agents=hosts), (LogLine(LogLevel.WARNING, "agent", message),)


def _escalate_alone(state: State) -> Step:
    # Open MPI ignores QUIT, and MPICH's first INT is a request: what every MPI takes is TERM.
    return _escalate(state, SIGTERM, direct=False)


_TIMES_UP: Final[Mapping[Timer, Callable[[State], Step]]] = {
    Timer.LAUNCH: lambda state: (replace(state, overdue=True), (CountRanks(),)),
    Timer.RANKS: lambda state: (state, (CountRanks(),)),
    Timer.LOST_DAEMON: lambda state: _end(state, None),
    Timer.RANK_ENDED: _goes_on,
    Timer.GRACE: _escalate_alone,
    Timer.KILL: _escalate_alone,
    Timer.KILLED: lambda state: _mpirun_ended(state, MpirunEnded(0, SIGKILL)),
    Timer.AGENTS: _agents_late,
    Timer.SUSPENSION: lambda state: (state, ()),
}


def _timer_fired(state: State, event: TimerFired) -> Step:
    if event.timer not in state.pending:
        return state, ()
    return _TIMES_UP[event.timer](_stop(state, event.timer))


_RULES: Final[Mapping[type[Event], Callable[[State, Any], Step]]] = {
    AgentStarted: _agent_started,
    AgentConnected: _agent_connected,
    AgentEnded: _agent_ended,
    RankEnded: _rank_ended,
    RanksCounted: _ranks_counted,
    RanksLeft: _ranks_left,
    HostEnding: _host_ending,
    Signalled: _signalled,
    MpirunEnded: _mpirun_ended,
    TimerFired: _timer_fired,
}
