"""What an event means for a started job: event x MPI x phase -> actions, exit code, message.

A pure state machine: ``step`` takes a state and an event, and gives the next state and what to
do. It never reads a clock, a process or a file. No sequence of events ends in 0 after a host was
lost or a signal came, and from every loss, signal and end of mpirun timers alone lead to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from mpiboot.core.setting_types import LogLevel
from mpiboot.core.wording import counted, first_few
from mpiboot.supervisor.judgement import (
    LISTED,
    how,
    in_order,
    judge,
    launch_timeout,
    no_answer,
    pod_ending,
    pool_lost,
    program_missing,
    rank_ended_badly,
    ranks_waiting,
    verdict_of,
)
from mpiboot.supervisor.state import (
    SIGKILL,
    SIGTERM,
    SIGUSR,
    WAITING_LOOKS,
    Action,
    AgentConnected,
    AgentEnded,
    AgentStarted,
    AskForRanksInMpi,
    CheckHost,
    CountRanks,
    DaemonJoined,
    Event,
    Finish,
    HostChecked,
    HostEnding,
    Job,
    JoinsUnseen,
    KillMpirun,
    Loss,
    MpirunEnded,
    Phase,
    PoolEnded,
    RankEnd,
    RankEnded,
    RanksInMpi,
    RanksLeft,
    ReleaseMpirun,
    Say,
    SendSignal,
    SessionOver,
    Signalled,
    StartTimer,
    State,
    StopRanks,
    Timer,
    TimerFired,
    Unanswered,
    Verdict,
    by_ssh,
    signal_name,
)

# Seconds. A second and a half suffices 4.1 to end after a lost daemon; a suspended job's workers
# and launcher get their signals within a second or so; a pod's usual grace is 30 s: 20 + 5 fit.
DELAYS: Final = {
    # Ranks start within a second or so of the last daemon.
    Timer.RANKS: 10.0,
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
    """Signal mpirun to end; ``cause`` is None where a loss is the reason."""
    state = replace(state, cause=cause or state.cause)
    if state.ended is not None or state.stage:
        return state, ()
    return ask(state, SIGTERM, direct=False)


def ask(state: State, number: int, *, direct: bool) -> Step:
    """Signal mpirun, and give it its grace; ``direct`` where the terminal has signalled it."""
    launching = state.phase is Phase.LAUNCHING and not state.launched
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
    """Signal the ranks alone, and give them the grace; mpirun would kill them in a second."""
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
    """Handle the count of ranks that are left."""
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
    sent = f"sent {signal_name(state.job.stop_signal)} to {counted(ranks, 'rank')}"
    message = f"{sent}; waiting up to {state.job.grace:g} s"
    return state, (Say(LogLevel.INFO, "signal", message),)


def ask_again(state: State, number: int, *, direct: bool) -> Step:
    """Signal mpirun again; the third time, kill it."""
    late: tuple[Action, ...] = ()
    if state.saving:
        who = "one rank" if state.ranks_left == 1 else f"{state.ranks_left} ranks"
        message = f"{who} did not end in time: mpirun ends what is left"
        if state.ranks_left is None:
            message = "no count of the ranks that are left came in time: mpirun ends them"
        late = (Say(LogLevel.WARNING, "signal", message),)
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
    # No host is blamed for the end of a job that is being ended: its workers may have got the
    # signal first.
    state = replace(stop(state, *WAITS), being_checked=frozenset())
    if state.ended is not None:
        return state, ()
    if not state.stage:
        # A terminal has signalled mpirun already, and before all daemons have joined no rank runs.
        if state.launched and state.job.grace and not event.direct:
            return save(state)
        return ask(state, event.number, direct=event.direct)
    if not again:
        return state, ()  # all pods of a job are terminated together, and a worker reported first
    return ask_again(state, event.number, direct=event.direct)


def host_ending(state: State, event: HostEnding) -> Step:
    """End a job that is losing a pod while all of its ranks can still save."""
    begun = state.being_ended or state.losses
    known = event.host in state.job.hosts
    if begun or not known or not state.launched or not state.job.grace:
        return state, ()
    state, actions = save(replace(state, cause=pod_ending(event.host)))
    message = "its pod is being ended: all ranks of the job get time to save"
    return state, (Say(LogLevel.WARNING, "signal", message, event.host), *actions)


def _pass_on(state: State, event: Signalled) -> tuple[Action, ...]:
    """Forward a signal of the program's own to mpirun, where it has ranks that can get it."""
    if state.phase is Phase.LAUNCHING and not (state.launched or state.joins_unseen):
        # 5.0 takes each daemon that isn't there yet for an error.
        message = f"{signal_name(event.number)} is not forwarded: no rank runs yet"
        return (Say(LogLevel.INFO, "signal", message),)
    return () if state.ended is not None or event.direct else (SendSignal(event.number),)


def pool_ended(state: State, event: PoolEnded) -> Step:
    """End a job whose sessions are all gone: its daemons end, and no host is to blame."""
    if state.being_ended:
        return state, ()
    # Its end may be heard of after its sessions' and mpirun's, as one process ends after another.
    cause = pool_lost(event)
    state, actions = end(state, cause)
    return state, (Say(LogLevel.ERROR, "launch", cause.message), *actions)


# Jobs that look stuck and may be healthy: none of this is proof, for a rank may compute, or write
# its results, for as long as it likes. So a suspicion is a warning, repeated once an hour while it
# holds, and evidence of a bad end later; it ends a job only where MPIBOOT_STUCK says so.

# Seconds until a warning that still holds is repeated.
_AGAIN: Final = 3600.0
_DROPPED: Final = (
    "is TCP between the workers dropped? A NetworkPolicy or firewall must allow the job's pods all "
    "ports among each other, or the range of MPIBOOT_PORT_RANGE"
)


def host_ended(state: State) -> Step:
    """Watch a job after all ranks of one host have ended well."""
    used = frozenset(state.job.hosts) - state.no_agent
    over = state.launched and state.ended_well >= used
    if over and not state.agents:
        # Ranks in this pod have no agent, and may run for long after MPI_Finalize.
        return (state, ()) if state.job.launcher_ranks else start(state, Timer.DAEMONS_ENDED)
    waits = state.job.family.daemons_follow and not state.job.tolerates_failure
    if waits and state.agents and state.waiting_looks < WAITING_LOOKS:
        return start(state, Timer.HOST_DONE)
    return state, ()


def daemons_ended(state: State) -> Step:
    """Handle an mpirun that outlives its daemons: it hangs, or the reader of its output is slow."""
    message = f"every host's {state.job.family.daemon} has ended, but mpirun goes on"
    return _suspect(state, verdict_of("daemon-failed", message), message, Timer.DAEMONS_ENDED)


def ranks_in_mpi(state: State, event: RanksInMpi) -> Step:
    """Handle that count: twice above 0, they may wait for ranks that left without MPI_Finalize.

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
    message = f"{host}: its ranks have all ended, and {many} still in MPI, perhaps waiting for them"
    return _suspect(state, cause, message, Timer.HOST_DONE)


def unanswered(state: State, event: Unanswered) -> Step:
    """Handle a rank that has tried to connect to another host for more than a minute."""
    over = state.being_ended or state.ended is not None
    if over or state.losses or not state.launched:
        return state, ()
    if not event.message:
        return replace(state, suspected=""), ()
    state, actions = _suspect(state, no_answer(event.message), event.message)
    return state, (*actions, Say(LogLevel.WARNING, "stuck", _DROPPED))


def _suspect(state: State, cause: Verdict, message: str, again: Timer | None = None) -> Step:
    """Warn, and look again by a timer; or end the job, where the user wants that."""
    if state.job.end_stuck and not state.job.tolerates_failure:
        warned = Say(LogLevel.WARNING, "stuck", f"{message}: the job is ended (MPIBOOT_STUCK=end)")
        # A signal of its own would end mpirun before it tells with what codes ranks ended.
        state = replace(state, cause=cause)
        state, actions = save(state) if state.job.grace else end(state, cause)
        return state, (warned, *actions)
    state = replace(state, suspected=message)
    how = "would end it" if not state.job.end_stuck else "ends none that may do without a rank"
    message += f"; the job goes on (MPIBOOT_STUCK=end {how})"
    warned = Say(LogLevel.WARNING, "stuck", f"{message}. Look closer: mpiboot doctor ranks")
    if again is None:
        return state, (warned,)
    state = replace(state, pending=state.pending | {again})
    return state, (warned, StartTimer(again, _AGAIN))


# What follows from each event.

# After this many lost hosts one more answer adds nothing.
_HOST_CHECKS: Final = 16


def initial(job: Job) -> Step:
    """Begin: the state before mpirun runs, and the first timer."""
    hosts = frozenset(job.hosts)
    if not hosts:
        return State(job, Phase.RUNNING, hosts, hosts), ()
    state = State(job, Phase.LAUNCHING, hosts, hosts, pending=frozenset((Timer.LAUNCH,)))
    return state, (StartTimer(Timer.LAUNCH, job.launch_timeout),)


def step(state: State, event: Event) -> Step:
    """Handle one event. After ``Finish`` nothing changes any more."""
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
    actions: tuple[Action, ...] = (Say(LogLevel.WARNING, "launch", what),)
    state = replace(state, joins_unseen=True)
    for host in sorted(state.connected):
        state, more = _daemon_joined(state, DaemonJoined(host))
        actions += more
    return state, actions


def _daemon_joined(state: State, event: DaemonJoined) -> Step:
    if event.host not in state.no_daemon:
        return state, ()
    actions: tuple[Action, ...] = ()
    if event.host in state.no_agent:
        what = "its daemon joined without mpiboot's launch agent: only mpirun will notice its loss"
        actions += (Say(LogLevel.WARNING, "launch", what, event.host),)
    no_agent, no_daemon = state.no_agent - {event.host}, state.no_daemon - {event.host}
    state = replace(state, no_agent=no_agent, no_daemon=no_daemon)
    if state.phase is not Phase.LAUNCHING:
        return state, actions
    state, counting = start(state, Timer.RANKS)
    actions += counting
    if not state.no_daemon:
        state, joined = _launched(state)
        return state, (*actions, *joined)
    return state, (*actions, StartTimer(Timer.LAUNCH, state.job.launch_timeout))


def _launched(state: State) -> Step:
    """End the launch: every daemon that mpirun has started has joined."""
    state = stop(replace(state, phase=Phase.RUNNING), Timer.LAUNCH)
    count = len(state.job.hosts)
    text = f"all {count} remote daemons joined" if count > 1 else "the remote daemon joined"
    if state.no_agent:
        text = f"{count - len(state.no_agent)} remote daemons joined, on {count} remote hosts"
    return state, (Say(LogLevel.INFO, "joined", text),)


def _ranks_started(state: State) -> Step:
    """Have ranks counted, unless a daemon is still to join; mpirun decides which hosts it uses."""
    if state.no_daemon - state.no_agent:
        return state, ()
    launching = state.phase is Phase.LAUNCHING
    state, actions = _launched(state) if launching else (state, ())
    alone = len(state.job.hosts) == 1 and not state.job.launcher_ranks
    return state, (*actions, *(() if alone else (CountRanks(),)))


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
    loss = Loss(
        event.host,
        event.status,
        event.words,
        sure=by_ssh(event.status) and not event.signalled,
        # Of a host that is none of the job's only its session is seen.
        joined=event.host not in state.no_daemon
        and (event.host in state.connected or event.host in state.job.hosts),
        after=state.ended is not None,
        remote=state.job.remote,
    )
    before = state.losses
    state = replace(state, losses=(*before, loss))
    if event.killed and before and event.host != state.lost_daemon:
        return state, ()  # an mpirun that gives up over a lost host kills the other agents
    actions: tuple[Action, ...] = ()
    if state.ended is None and Timer.LOST_DAEMON not in state.pending and not state.stage:
        state, actions = start(state, Timer.LOST_DAEMON)
    follows = state.lost_daemon not in ("", event.host)
    if not loss.sure and not (event.killed and not follows and _may_be_lost(state)):
        return state, (*actions, Say(LogLevel.DEBUG, "agent", how(loss), loss.host))
    if not any(item.sure for item in before):
        state, more = start(state, Timer.SUSPENSION)
        actions += more
    actions += (Say(LogLevel.WARNING, "agent", how(loss), loss.host),)
    return _ask(state, (loss.host,) if loss.joined else (), actions)


def _may_be_lost(state: State) -> bool:
    """Whether a lost host may be behind mpirun's end, as far as its status tells."""
    ended = state.ended
    return ended is None or (not ended.signal and ended.status in state.job.family.lost)


def _ended_well(state: State, event: AgentEnded) -> Step:
    actions: tuple[Action, ...] = ()
    if state.job.family.attached:
        # The ranks of a short job may have ended before its connection was seen.
        state, actions = _daemon_joined(state, DaemonJoined(event.host))
    if event.host not in state.job.hosts:
        return state, actions
    if event.host in state.no_daemon:
        return replace(state, ended_unjoined=state.ended_unjoined | {event.host}), ()
    state = replace(state, ended_well=state.ended_well | {event.host})
    state, begun = host_ended(state)
    return state, (*actions, *begun)


def _ask(state: State, hosts: tuple[str, ...], actions: tuple[Action, ...]) -> Step:
    asked = {host for host, _, _ in state.checked} | state.being_checked
    wanted = tuple(host for host in hosts if host not in asked)[: max(0, _HOST_CHECKS - len(asked))]
    if not wanted:
        return state, actions
    state, begun = start(state, Timer.HOST_CHECK)
    state = replace(state, being_checked=state.being_checked | set(wanted))
    return state, (*actions, *begun, *(CheckHost(host) for host in wanted))


def _reported(state: State, event: RankEnded) -> State:
    """Note what mpirun reports that is no rank's end, the first of each."""
    if event.how is RankEnd.MPI:
        return replace(state, mpi_failed=state.mpi_failed or event.what)
    if event.how is RankEnd.LOST:
        return replace(state, lost_daemon=state.lost_daemon or event.host)
    if event.how is RankEnd.TIMED_OUT:
        return replace(state, timed_out=True)
    return replace(state, lacking=state.lacking or event)


def _rank_over(state: State) -> Step:
    """Handle an mpirun that goes on without a rank; one of Hydra's that never was, too."""
    if not (state.lacking and state.job.family.mixes_statuses):
        return end(state, rank_ended_badly(state))
    cause = program_missing(state.lacking)
    message = f"{cause.host}: {cause.message}: the other ranks may wait for it in MPI_Init for ever"
    return _suspect(state, cause, message, Timer.RANK_ENDED)


def _rank_ended(state: State, event: RankEnded) -> Step:
    if event.last:
        # Where mpirun ended ranks itself, the first failure is the one that it reported earlier.
        own = state.first_rank and event.signal in (SIGKILL, SIGTERM)
        return (state if own else replace(state, first_rank=event)), ()
    if state.being_ended:
        return state, ()
    if event.how in (RankEnd.MPI, RankEnd.LOST, RankEnd.LACKS, RankEnd.TIMED_OUT):
        unheard, state = state.lacking is None, _reported(state, event)
        if not (unheard and state.lacking and state.job.family.mixes_statuses) or state.ended:
            return state, ()
        # Intel MPI's mpirun ends by itself then, MPICH's does not.
        state = replace(state, pending=state.pending | {Timer.RANK_ENDED})
        return state, (StartTimer(Timer.RANK_ENDED, _FOLLOW),)
    # A peer may find a dead rank's connection closed, and abort, before its end is reported.
    first = state.first_rank
    later = (
        first
        and (first.how is not RankEnd.ABORT or event.how is not RankEnd.SIGNAL)
        and (first.rank is not None or event.rank is None)
    )
    state = replace(state, first_rank=first if later else event)
    job = state.job
    # Hydra reports on the stream that ranks write to: a rank's own mpiexec may have written it.
    guessed = job.family.mixes_statuses and not job.end_stuck
    if first or guessed or job.tolerates_failure or state.ended is not None:
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
        # Where all pods of a job are terminated, the launcher's own signal may come after this.
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
        checked=(*state.checked, (event.host, event.reachable, event.message)),
    )
    return (state if state.being_checked else stop(state, Timer.HOST_CHECK)), ()


def _launch_over(state: State) -> Step:
    if state.losses:
        return end(state, None)
    if not state.no_daemon - state.no_agent:
        return _ranks_started(state)
    if not state.joins_unseen or state.ended_unjoined:
        late = launch_timeout(state)
        if state.job.end_late:
            return end(state, late)
        message = "; ".join((late.message, *late.evidence))
        message += "; the job goes on (a MPIBOOT_LAUNCH_TIMEOUT of yours would end it)"
        state = replace(state, pending=state.pending | {Timer.LAUNCH})
        return state, (Say(LogLevel.WARNING, "launch", message), StartTimer(Timer.LAUNCH, _AGAIN))
    # Agents that aren't ssh never report that they are connected: nothing here can judge them.
    message = "it is not known whether every daemon joined: mpiboot only waits for mpirun"
    running = replace(state, phase=Phase.RUNNING, no_daemon=frozenset())
    return running, (Say(LogLevel.WARNING, "launch", message),)


def _agents_late(state: State) -> Step:
    late = tuple(sorted({host for host, _ in state.agents}))
    message = f"{first_few(late, LISTED)}: its agent did not follow mpirun's end in 5 s"
    return _ask(replace(state, late_agents=late), late, (Say(LogLevel.WARNING, "agent", message),))


def _no_answer(state: State) -> Step:
    unknown = tuple((host, None, "") for host in sorted(state.being_checked))
    return replace(state, being_checked=frozenset(), checked=(*state.checked, *unknown)), ()


def _ask_again(state: State) -> Step:
    # Open MPI ignores QUIT, and MPICH's first INT only asks: what every MPI takes is TERM.
    return ask_again(state, SIGTERM, direct=False)


_TIMES_UP: Final[Mapping[Timer, Callable[[State], Step]]] = {
    Timer.LAUNCH: _launch_over,
    Timer.RANKS: _ranks_started,
    Timer.LOST_DAEMON: lambda state: end(state, None),
    Timer.DAEMONS_ENDED: daemons_ended,
    # Ranks of a host have all ended: are others still in MPI?
    Timer.HOST_DONE: lambda state: (state, (AskForRanksInMpi(),) if state.agents else ()),
    Timer.RANK_ENDED: _rank_over,
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
    RankEnded: _rank_ended,
    HostEnding: host_ending,
    PoolEnded: pool_ended,
    RanksLeft: lambda state, event: ranks_left(state, event.ranks),
    RanksInMpi: ranks_in_mpi,
    Unanswered: unanswered,
    HostChecked: _host_checked,
    Signalled: signalled,
    MpirunEnded: _mpirun_ended,
    TimerFired: _timer_fired,
}
