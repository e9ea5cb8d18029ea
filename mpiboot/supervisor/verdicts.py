"""What an event means for a started job: event x MPI x phase -> actions, exit code, sentence.

A pure state machine: ``step`` takes a state and an event, and gives the next state and what to
do. It never reads a clock, a process or a file. No sequence of events ends in 0 after a host was
lost or a signal came, and from every loss, signal and end of mpirun timers alone lead to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from mpiboot.core.choices import LogLevel
from mpiboot.core.wording import first_few
from mpiboot.supervisor import stuck
from mpiboot.supervisor.causes import (
    LISTED,
    launch_timeout,
    not_started,
    pod_ending,
    rank_ended_badly,
)
from mpiboot.supervisor.ending import (
    WAITS,
    Step,
    ask_again,
    client_ended,
    end,
    host_ending,
    ranks_left,
    signalled,
    start,
    stop,
)
from mpiboot.supervisor.events import (
    Action,
    AgentConnected,
    AgentEnded,
    AgentStarted,
    CheckHost,
    ClientEnded,
    DaemonJoined,
    EndSession,
    Event,
    Finish,
    HostChecked,
    HostEnding,
    HostLost,
    JoinsUnseen,
    MpirunEnded,
    RankEnd,
    RankEnded,
    RankSeen,
    RanksInMpi,
    RanksLeft,
    Say,
    SessionOver,
    Signalled,
    StartTimer,
    Timer,
    TimerFired,
    Unanswered,
)
from mpiboot.supervisor.judgement import how, judge
from mpiboot.supervisor.state import SIGKILL, SIGTERM, Job, Loss, Phase, State, by_ssh

# After this many lost hosts one more answer tells nothing new.
_HOST_CHECKS: Final = 16


def initial(job: Job) -> Step:
    """Begin: the state before mpirun runs, and the first timer."""
    hosts = frozenset(job.hosts)
    if not hosts:
        return State(job, Phase.RUNNING, hosts, hosts), ()
    state = State(job, Phase.LAUNCHING, hosts, hosts, pending=frozenset((Timer.LAUNCH,)))
    return state, (StartTimer(Timer.LAUNCH, job.launch_timeout),)


def step(state: State, event: Event) -> Step:
    """Take one event in. After ``Finish`` nothing changes any more."""
    if state.finished:
        return state, ()
    new, actions = _RULES[type(event)](state, event)
    if new.ended is not None and not new.pending & WAITS:
        return replace(new, finished=True, pending=frozenset()), (*actions, Finish(judge(new)))
    return new, actions


def _agent_started(state: State, event: AgentStarted) -> Step:
    spawned = state.spawned.union((event.pid,) if event.spawned else ())
    return replace(state.with_agent(event.host, event.pid), spawned=spawned), ()


def _agent_connected(state: State, event: AgentConnected) -> Step:
    state = replace(state, connected=state.connected | {event.host})
    return _daemon_joined(state, DaemonJoined(event.host)) if state.joins_unseen else (state, ())


def _joins_unseen(state: State, event: JoinsUnseen) -> Step:
    what = f"mpiboot can't see here which daemons have joined mpirun ({event.why}): "
    what += "a connected ssh counts as joined"
    said: tuple[Action, ...] = (Say(LogLevel.WARNING, "launch", what),)
    state = replace(state, joins_unseen=True)
    for host in sorted(state.connected):
        state, more = _daemon_joined(state, DaemonJoined(host))
        said += more
    return state, said


def _daemon_joined(state: State, event: DaemonJoined) -> Step:
    if event.host not in state.no_daemon:
        return state, ()
    said: tuple[Action, ...] = ()
    if event.host in state.no_agent:
        what = "its daemon joined without mpiboot's launch agent: only mpirun will notice its loss"
        said += (Say(LogLevel.WARNING, "launch", what, event.host),)
    no_agent, no_daemon = state.no_agent - {event.host}, state.no_daemon - {event.host}
    state = replace(state, no_agent=no_agent, no_daemon=no_daemon)
    if state.phase is Phase.LAUNCHING and not state.no_daemon:
        state = stop(replace(state, phase=Phase.RUNNING), Timer.LAUNCH)
        count = len(state.job.hosts)
        text = f"all {count} remote daemons joined" if count > 1 else "the remote daemon joined"
        return state, (*said, Say(LogLevel.INFO, "joined", text))
    if state.phase is Phase.LAUNCHING:
        said += (StartTimer(Timer.LAUNCH, state.job.launch_timeout),)
    return state, said


def _agent_ended(state: State, event: AgentEnded) -> Step:
    state = replace(state, agents=state.agents - {(event.host, event.pid)})
    if not state.agents:
        state = stop(state, Timer.AGENTS)
    if state.being_ended:
        waits = state.saving and not state.has_agent(event.host)
        return state, ((SessionOver(event.host),) if waits else ())
    # Some MPIs ask a host's shell first: what counts is the host's last agent. Ranks that were
    # spawned may well end before the others, on any host.
    if state.has_agent(event.host) or (event.status == 0 and event.pid in state.spawned):
        return state, ()
    if event.status == 0:
        return _ended_well(state, event)
    if event.killed and state.losses:
        return state, ()  # an mpirun that gives up over a lost host kills the other agents
    loss = Loss(
        event.host,
        event.status,
        event.words,
        sure=by_ssh(event.status) and not event.signalled,
        joined=event.host not in state.no_daemon,
        after=state.ended is not None,
        remote=state.job.remote,
    )
    before = state.losses
    state = replace(state, losses=(*before, loss))
    actions: tuple[Action, ...] = ()
    if state.ended is None and Timer.LOST_DAEMON not in state.pending and not state.stage:
        state, actions = start(state, Timer.LOST_DAEMON)
    if not loss.sure and not (event.killed and _may_be_lost(state)):
        return state, (*actions, Say(LogLevel.DEBUG, "agent", how(loss), loss.host))
    if not any(item.sure for item in before):
        state, more = start(state, Timer.SUSPENSION)
        actions += more
    if loss.host not in dict(state.given_up):
        actions += (Say(LogLevel.WARNING, "agent", how(loss), loss.host),)
    return _ask(state, (loss.host,) if loss.joined else (), actions)


def _may_be_lost(state: State) -> bool:
    """Whether a lost host may be behind mpirun's end, as far as its status tells."""
    ended = state.ended
    return ended is None or (not ended.signal and ended.status in {0, *state.job.family.lost})


def _ended_well(state: State, event: AgentEnded) -> Step:
    said: tuple[Action, ...] = ()
    if state.job.family.attached:
        # The ranks of a short job may have ended before its connection was looked for.
        state, said = _daemon_joined(state, DaemonJoined(event.host))
    if event.host not in state.job.hosts:
        return state, said
    if event.host in state.no_daemon:
        return replace(state, ended_unjoined=state.ended_unjoined | {event.host}), ()
    state = replace(state, ended_well=state.ended_well | {event.host})
    state, begun = stuck.host_ended(state)
    return state, (*said, *begun)


def _ask(state: State, hosts: tuple[str, ...], actions: tuple[Action, ...]) -> Step:
    asked = {host for host, _, _ in state.checked} | state.being_checked | {*dict(state.given_up)}
    wanted = tuple(host for host in hosts if host not in asked)[: max(0, _HOST_CHECKS - len(asked))]
    if not wanted:
        return state, actions
    state, begun = start(state, Timer.HOST_CHECK)
    state = replace(state, being_checked=state.being_checked | set(wanted))
    return state, (*actions, *begun, *(CheckHost(host) for host in wanted))


def _host_lost(state: State, event: HostLost) -> Step:
    if state.being_ended or state.ended is not None or event.host not in state.job.hosts:
        return state, ()
    state = replace(state, given_up=(*state.given_up, (event.host, event.said)))
    warned = Say(LogLevel.WARNING, "silent", f"{event.said}: it is lost", event.host)
    return state, (warned, EndSession(event.host))


def _rank_seen(state: State, event: RankSeen) -> Step:
    if state.phase is not Phase.LAUNCHING or not state.no_agent:
        return state, ()
    return end(state, not_started(state, event.program))


def _rank_ended(state: State, event: RankEnded) -> Step:
    if event.last:
        # Of ranks that mpirun may have ended itself it tells the first one as it goes.
        own = state.first_rank and event.signal in (SIGKILL, SIGTERM)
        return (state if own else replace(state, first_rank=event)), ()
    if state.being_ended:
        return state, ()
    if event.how is RankEnd.MPI:
        return replace(state, mpi_failed=state.mpi_failed or event.call), ()
    # A peer may find a dead rank's connection closed, and abort, before that rank's end is told.
    first = state.first_rank
    later = (
        first
        and (first.how is not RankEnd.ABORT or event.how is not RankEnd.SIGNAL)
        and (first.rank is not None or event.rank is None)
    )
    state = replace(state, first_rank=first if later else event)
    job = state.job
    # Hydra tells of ranks where they write, too: a rank's own mpiexec may have said it.
    guessed = job.family.mixes_statuses and not job.end_stuck
    if first or guessed or job.goes_on or state.ended is not None:
        return state, ()
    return start(state, Timer.RANK_ENDED)


def _mpirun_ended(state: State, event: MpirunEnded) -> Step:
    if state.ended is not None:
        return state, ()
    state = replace(state, ended=event, phase=Phase.ENDING)
    lost = any(loss.sure for loss in state.losses) or _may_be_lost(state)
    kept = state.pending & ({Timer.SUSPENSION, Timer.HOST_CHECK} if lost else frozenset())
    state = replace(state, pending=kept, being_checked=state.being_checked if lost else frozenset())
    if state.cause and not state.signal and state.cause == pod_ending(state.cause.host):
        # Where all pods of a job are told to end, the launcher's own signal may come after this.
        return start(stop(state, *WAITS), Timer.SUSPENSION)
    if state.signal or state.cause or event.signal:
        return stop(state, *WAITS), ()
    return start(state, Timer.AGENTS) if state.agents else (state, ())


def _host_checked(state: State, event: HostChecked) -> Step:
    if event.host not in state.being_checked:
        return state, ()
    state = replace(
        state,
        being_checked=state.being_checked - {event.host},
        checked=(*state.checked, (event.host, event.reachable, event.said)),
    )
    return (state if state.being_checked else stop(state, Timer.HOST_CHECK)), ()


def _launch_over(state: State) -> Step:
    if state.losses:
        return end(state, None)
    if not state.joins_unseen or state.no_agent or state.ended_unjoined:
        return end(state, launch_timeout(state))
    # Agents that aren't ssh never tell that they are connected: nothing here can judge them.
    said = "it is not known whether every daemon joined: mpiboot only waits for mpirun"
    running = replace(state, phase=Phase.RUNNING, no_daemon=frozenset())
    return running, (Say(LogLevel.WARNING, "launch", said),)


def _agents_late(state: State) -> Step:
    late = tuple(sorted({host for host, _ in state.agents}))
    said = f"{first_few(late, LISTED)}: its agent did not follow mpirun's end in 5 s"
    return _ask(replace(state, late_agents=late), late, (Say(LogLevel.WARNING, "agent", said),))


def _no_answer(state: State) -> Step:
    unknown = tuple((host, None, "") for host in sorted(state.being_checked))
    return replace(state, being_checked=frozenset(), checked=(*state.checked, *unknown)), ()


def _ask_again(state: State) -> Step:
    # Open MPI ignores QUIT, and MPICH's first INT only asks: what every MPI takes is TERM.
    return ask_again(state, SIGTERM, direct=False)


_TIMES_UP: Final[Mapping[Timer, Callable[[State], Step]]] = {
    Timer.LAUNCH: _launch_over,
    Timer.LOST_DAEMON: lambda state: end(state, None),
    Timer.DAEMONS_ENDED: stuck.daemons_ended,
    Timer.HOST_DONE: stuck.host_done,
    Timer.RANK_ENDED: lambda state: end(state, rank_ended_badly(state)),
    Timer.GRACE: _ask_again,
    Timer.KILL: _ask_again,
    Timer.KILLED: lambda state: _mpirun_ended(state, MpirunEnded(0, 9)),
    Timer.AGENTS: _agents_late,
    Timer.HOST_CHECK: _no_answer,
    Timer.SUSPENSION: lambda state: (state, ()),
}


def _timer_fired(state: State, event: TimerFired) -> Step:
    if event.timer not in state.pending:
        return state, ()
    return _TIMES_UP[event.timer](stop(state, event.timer))


_RULES: Final[Mapping[type[Event], Callable[[State, Any], Step]]] = {
    AgentStarted: _agent_started,
    AgentConnected: _agent_connected,
    AgentEnded: _agent_ended,
    DaemonJoined: _daemon_joined,
    JoinsUnseen: _joins_unseen,
    RankSeen: _rank_seen,
    RankEnded: _rank_ended,
    HostLost: _host_lost,
    HostEnding: host_ending,
    ClientEnded: client_ended,
    RanksLeft: lambda state, event: ranks_left(state, event.ranks),
    RanksInMpi: stuck.ranks_in_mpi,
    Unanswered: stuck.unanswered,
    HostChecked: _host_checked,
    Signalled: signalled,
    MpirunEnded: _mpirun_ended,
    TimerFired: _timer_fired,
}
