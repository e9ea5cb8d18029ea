"""A started job: its events and what each means, event x MPI -> actions. Pure.

``Job.step`` takes an event, notes it, and gives what is to be done; ``mpirun`` makes the events and
carries out the actions. It never reads a clock, a process or a file. While mpirun runs only this
ends the job: a signal, an agent that ended badly, a pod that is being terminated, and a launch
timeout of the user's. No sequence of events ends in 0 after a host was lost or a signal came, and
from every loss, signal and end of mpirun timers alone lead to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from signal import SIGCONT, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2, Signals
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.launch_spec import BY_SIGNAL, NOT_FOR_RANKS
from mpiboot.core.model import LaunchAgent, LogLevel, ProveTransport, Source
from mpiboot.core.wording import counted, first_few, took

if TYPE_CHECKING:
    from mpiboot.core.settings import Resolved, Settings
    from mpiboot.job.plan import Plan  # which a launcher loads once signals are handled
    from mpiboot.job.plan_input import LaunchPaths, Observed


@dataclass(frozen=True)
class LaunchSpec:
    """One start of mpirun: its plan, what that was made of, and where its files are."""

    plan: Plan
    observed: Observed
    resolved: Resolved
    where: LaunchPaths

    @property
    def settings(self) -> Settings:
        """The settings of this run."""
        return self.resolved.settings

    @property
    def hosts(self) -> int:
        """How many hosts there are, the launcher too where it runs ranks."""
        return len(self.observed.hostfile.hosts)

    @property
    def all_hosts(self) -> tuple[str, ...]:
        """Their names for mpirun."""
        return (*self.plan.remote_hosts, *sorted(self.observed.local_names))

    @property
    def remote(self) -> str:
        """What the agents run: ssh or kubectl."""
        by_kubectl = self.observed.by_kubectl and not self.plan.user_agent
        return LaunchAgent.KUBECTL.value if by_kubectl else LaunchAgent.SSH.value

    @property
    def prove(self) -> ProveTransport:
        """Whether the hosts' counters are to prove what carried the data between them."""
        proves = self.plan.prove_transport and len(self.all_hosts) > 1
        return self.settings.prove_transport if proves else ProveTransport.OFF

    @property
    def local(self) -> bool:
        """Whether ranks on the launcher would get what only mpirun is to be told."""
        return self.hosts > len(self.plan.remote_hosts) and NOT_FOR_RANKS not in self.plan.argv

    @property
    def free_ports(self) -> Iterable[int]:
        """Ports to listen on, the likeliest to be free first: MPI takes them from the first on."""
        first, _, last = self.settings.port_range.partition("-")
        return range(int(last), int(first) - 1, -1) if last else (0,)


class Timer(str, Enum):
    """What has a time limit, and the event that this is over; ``DELAYS`` has their lengths."""

    LAUNCH = "launch"  # daemons run on all hosts, and ranks on some
    RANKS = "ranks"  # ... no further agent for a while: ranks run where they are to run
    LOST_DAEMON = "lost-daemon"  # mpirun ends by itself after it lost a daemon
    SUSPENSION = "suspension"  # a lost host turns out to be a job that is being suspended
    GRACE = "grace"  # a signalled mpirun ends
    KILL = "kill"  # ... after the second signal
    KILLED = "killed"  # ... after SIGKILL
    AGENTS = "agents"  # the agents follow mpirun
    RANK_ENDED = "rank-ended"  # mpirun ends a job whose rank ended badly


class AgentStarted(NamedTuple):
    """Mpirun has started an agent for a host."""

    host: str
    pid: int


class AgentConnected(NamedTuple):
    """The agent's ssh has logged in."""

    host: str


class AgentEnded(NamedTuple):
    """The agent has ended; ``signalled`` where somebody sent it a signal before.

    ``killed`` where it was killed before it could report its end; ``by_daemon`` where the daemon
    itself ended with ssh's status for a session that failed.
    """

    host: str
    pid: int
    status: int
    words: tuple[str, ...] = ()
    signalled: bool = False
    killed: bool = False
    by_daemon: bool = False

    @property
    def sure(self) -> bool:
        """Whether ssh itself ended, which only a lost host, session or daemon explains.

        Its statuses are 255 and those of signals that were not sent from here. Another one is the
        daemon's own, which some MPIs also give at the end of a failed program, and 4.1's mpirun
        then kills overdue agents (a negative status).
        """
        by_ssh = self.status == SSH_FAILED or self.status - BY_SIGNAL in _ENDING
        return by_ssh and not (self.signalled or self.by_daemon)


class RankEnd(str, Enum):
    """How a rank ended that ended badly, or what else mpirun's own messages report."""

    SIGNAL = "signal"
    ABORT = "abort"  # it called MPI_Abort
    STATUS = "status"  # its exit status isn't 0
    MPI = "mpi"  # MPI itself reports that a call failed, for which it ends the job
    SILENT = "silent"  # with 0, and without MPI_Finalize
    LOST = "lost"  # no rank's end: mpirun has lost the connection to a host's daemon
    LACKS = "lacks"  # no rank's end: mpirun can't find or execute the program on a host
    TIMED_OUT = "timed-out"  # no rank's end: mpirun's own time limit is over


class RankEnded(NamedTuple):
    """Mpirun reports a rank that ended badly, or something else (``how``).

    ``rank`` is None where it doesn't name one; ``host``, ``signal``, the rank's own exit ``code``
    are set where it reports them, ``what`` is the call of MPI that failed, or the program. ``last``
    where this is the report on all ranks that mpirun writes at its end.
    """

    rank: int | None
    how: RankEnd
    host: str = ""
    signal: int = 0
    code: int = 0
    last: bool = False
    what: str = ""


class RanksLeft(NamedTuple):
    """How many of the ranks that got the stop signal are left; None where none was ever seen."""

    ranks: int | None


class RanksCounted(NamedTuple):
    """How many ranks each host has, by its name; one that did not answer is left out.

    None where a worker with mpiboot shows no process of the launch, not even its daemon.
    """

    ranks: Mapping[str, int | None]


class HostEnding(NamedTuple):
    """A worker reports that its pod is being terminated."""

    host: str


class Signalled(NamedTuple):
    """This process got a signal; ``direct`` where the terminal sent it to mpirun as well."""

    number: int
    direct: bool = False


class MpirunEnded(NamedTuple):
    """Mpirun is gone: its exit status, or the signal that ended it."""

    status: int
    signal: int = 0


Event = (
    AgentStarted
    | AgentConnected
    | AgentEnded
    | RankEnded
    | RanksLeft
    | RanksCounted
    | HostEnding
    | Signalled
    | MpirunEnded
    | Timer
)


class SendSignal(NamedTuple):
    """Send a signal to mpirun, which is no longer held; SIGKILL to all that it started here."""

    number: int


class StopRanks(NamedTuple):
    """Send a signal to the ranks alone, and hold mpirun meanwhile.

    ``RanksLeft`` follows; any signal to mpirun releases it, and so does its end.
    """

    number: int


class StartTimer(NamedTuple):
    """Start a timer, again where it runs."""

    timer: Timer
    seconds: float


class CountRanks(NamedTuple):
    """Count the ranks of each host; ``RanksCounted`` follows."""


class LogLine(NamedTuple):
    """Log a line."""

    level: LogLevel
    event: str
    message: str
    host: str = ""


Action = SendSignal | StopRanks | StartTimer | CountRanks | LogLine


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the job ended.

    ``reference`` is a row of ``checks.CHECKS``, or empty where the code is the program's own or
    a signal's; ``failed`` is then what failed: ``program`` where a rank is known to have ended
    badly, ``mpi`` where MPI itself gave up, ``mpirun`` where that is all that is known, or the row
    of checks by which mpirun's own end was warned of.
    ``rank`` and ``signal`` are those of the rank that ended first, where it is known.
    ``by_signal`` where a signal to the launcher ended the job; ``killed`` where the agent of a lost
    host, or its ssh, was ended by SIGKILL; ``gone`` where that host can't be entered: it does not
    answer, or its pod is being terminated. ``reported`` is what the hosts reported, the most likely
    cause first.
    """

    code: int
    reference: str
    message: str
    host: str = ""
    evidence: tuple[str, ...] = ()
    rank: int | None = None
    signal: str = ""
    by_signal: bool = False
    killed: bool = False
    failed: str = "program"
    gone: bool = False
    reported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a host answered after mpirun's end.

    ``answered`` is None where it could not be queried in time, and False where it can't be reached,
    ``why`` in ssh's or the system's words. ``here`` is the launcher itself. The others are
    sentences, empty where there is nothing: processes that the kernel has killed for memory since
    the hosts were checked, what keeps the program from running there, and that its name leads
    nowhere or elsewhere by now.
    """

    name: str
    answered: bool | None = None
    why: str = ""
    here: bool = False
    memory: str = ""
    lacks: str = ""
    gone: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """How one MPI behaves at the end of a job: one row for each family.

    ``daemon`` is its program on the workers. ``lost`` are mpirun's exit statuses after it has lost
    a daemon, ``lacking`` those that may mean that some host can't run the program.
    ``zero_is_success`` where mpirun never returns 0 after a loss, and ``at_end`` are the statuses
    other than 0 that its daemons have at the end of a job that ended well.
    ``daemons_follow`` where daemons that had joined fail over a job that failed, so that their own
    status proves no loss. ``mixes_statuses`` where its status combines those of all ranks in one
    number; it lists them on stdout (``output``). ``drops_output`` where mpirun may drop at
    its end what its stdout or stderr has not taken (docs/reference/open-mpi-output.md), and
    ``reports_on_stderr`` what it reports of hosts.
    """

    daemon: str
    lost: frozenset[int]
    lacking: frozenset[int] = frozenset()
    reports_on_stderr: bool = False
    daemons_follow: bool = False
    mixes_statuses: bool = False
    drops_output: bool = False
    zero_is_success: bool = True
    at_end: frozenset[int] = frozenset()


# A path that can't be executed, a name that isn't found, and a working directory that isn't there.
_LACK_4: Final = frozenset((132, 134, 135))
_LACK_5: Final = frozenset((183, 66, 181))
# A proxy that could not execute the program ends; Intel MPI's mpirun may die of SIGPIPE then.
_LACK_HYDRA: Final = frozenset((255, 141))
# Measured with 4.1.4: 205 is "lost communication with a remote daemon", 255 ssh's.
_OPENMPI_4: Final = Family("orted", frozenset((205, 255)), _LACK_4, drops_output=True)
# 4.0 waits forever after a failed ssh. What an mpirun that was signalled returns (Open MPI 1,
# MPICH 0, 2, 15 or 255) is not taken for the job's status.
_OF_HYDRA: Final = Family(
    "hydra_pmi_proxy",
    frozenset((255,)),  # for whatever went wrong
    _LACK_HYDRA,
    daemons_follow=True,
    mixes_statuses=True,
    reports_on_stderr=True,
)
# By the values of ``model.MpiFamily``.
FAMILIES: Final = {
    "openmpi4": _OPENMPI_4,
    # 5.0.8 and 5.0.11 return 0 or 255 at random after a lost worker. With no_tree_spawn the prted
    # of a host that has only ranks spawned later ends with 255, and prterun with 0 (5.0.7, 15 of
    # 15).
    "openmpi5": Family(
        "prted",
        frozenset((0, 255)),
        _LACK_5,
        reports_on_stderr=True,
        drops_output=True,
        zero_is_success=False,
        at_end=frozenset((255,)),
    ),
    "spectrum": _OPENMPI_4,
    "mpich": _OF_HYDRA,
    "intel": _OF_HYDRA,
}
UNKNOWN: Final = Family("daemon", frozenset((0, 255)), zero_is_success=False)

# Signals by which ssh, or a rank, ends; a shell's status is 128 more.
_ENDING: Final = frozenset((1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 15, 24, 25))
# ssh's own failures, and a remote command that a signal ended.
SSH_FAILED: Final = 255


def signal_name(number: int) -> str:
    """Name a signal."""
    known = number in tuple(Signals)
    return Signals(number).name if known else f"signal {number}"


# Hosts that one sentence names.
LISTED: Final = 8


def verdict_of(
    reference: str, message: str, host: str = "", evidence: tuple[str, ...] = ()
) -> Verdict:
    """Judge by a row of checks."""
    return Verdict(int(BY_REFERENCE[reference].code), reference, message, host, evidence)


# A rank's exit, and the signals by which mpirun itself ends the other ranks after a failure: they
# explain least, the last least of all.
WEAK_ENDS: Final = (0, SIGKILL, SIGTERM)


def how(loss: AgentEnded, remote: str) -> str:
    """Describe how an agent ended, which runs ssh or kubectl."""
    if loss.status < 0:
        return f"its launch agent was killed by {signal_name(-loss.status)}"
    words = f" ({'; '.join(loss.words)})" if loss.words else ""
    who = remote if loss.sure else "agent"
    return f"its {who} ended with {loss.status}{words}"


def rank_name(ended: RankEnded) -> str:
    """Name a rank as far as mpirun does."""
    return "a rank" if ended.rank is None else f"rank {ended.rank}"


def lacks(found: RankEnded) -> str:
    """Describe what mpirun reports of a program."""
    return f"mpirun could not find or execute the program {found.what}"


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
_LAUNCH_GRACE_S: Final = 5.0
_POD_ENDS: Final = "its pod is being terminated (deleted, drained or preempted): the job was ended"
# After its last rank mpirun ends within a second or so, however loaded its host is.
_FOLLOW_S: Final = 5.0
# What is waited for after mpirun has ended.
_WAITS: Final = frozenset((Timer.AGENTS, Timer.SUSPENSION))


class Job:
    """Everything that was observed so far of a job, with its MPI and its remote hosts.

    ``no_agent`` hosts have no agent yet, ``connected`` ones a session. ``agents`` are agents by
    host and pid, of which ``started_again`` hosts may have several. ``ended_well`` hosts' agents
    ended with 0; ``losses`` are the agents that ended badly, ``losses_before_end`` the number of
    them before mpirun's end; ``overdue_agents`` are hosts with agents that did not follow mpirun.
    ``launched`` where ranks were seen, or a session that ended well; ``overdue`` once the launch
    timeout is over.

    ``pending`` timers are running. ``stage`` is how far mpirun's end was forced (1 signalled, 2
    signalled again, 3 killed), ``cause`` the reason, where that isn't a host's loss. ``first_rank``
    is the first that ended badly, ``mpi_failed`` the first call of MPI that failed, ``lost_daemon``
    the first host that was lost, ``lacking`` the first that can't execute the program, and
    ``timed_out`` that mpirun's own time limit is over, each as MPI or mpirun reports it.
    ``saving`` while ranks have the stop signal and mpirun is held; ``ranks_left`` of them are left.
    ``answers`` are what hosts answered after its end, by their names.
    """

    def __init__(self, spec: LaunchSpec) -> None:
        self.spec, self.settings, self.hosts = spec, spec.settings, spec.plan.remote_hosts
        self.stop_signal = Signals[f"SIG{spec.settings.stop_signal}"]
        self.family = FAMILIES.get(spec.observed.mpi.family.value, UNKNOWN)
        self.no_agent, self.connected = set(self.hosts), set[str]()
        self.started_again, self.ended_well = set[str](), set[str]()
        self.agents = set[tuple[str, int]]()
        self.launched, self.overdue, self.finished = not self.hosts, False, False
        self.losses: tuple[AgentEnded, ...] = ()
        self.losses_before_end = 0
        self.overdue_agents: tuple[str, ...] = ()
        self.pending = set[Timer]()
        self.stage = self.signal = 0
        self.cause: Verdict | None = None
        self.first_rank: RankEnded | None = None
        self.lacking: RankEnded | None = None
        self.mpi_failed = self.lost_daemon = ""
        self.timed_out = self.saving = False
        self.ranks_left: int | None = None
        self.ended: MpirunEnded | None = None
        self.answers: Mapping[str, HostFacts] = {}
        self._actions: list[Action] = []

    def begin(self) -> list[Action]:
        """Begin: mpirun is started."""
        if self.hosts:
            self._start(Timer.LAUNCH, self.settings.launch_timeout)
        return self._to_do()

    def step(self, event: Event) -> list[Action]:
        """Handle one event; give what is to be done. Once ``finished`` nothing changes."""
        if not self.finished:
            self._RULES[type(event)](self, event)
            if self.ended is not None and not self.pending & _WAITS:
                self.finished = True
                self.pending.clear()
        return self._to_do()

    def _to_do(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    def _log(self, level: LogLevel, event: str, message: str, host: str = "") -> None:
        self._do(LogLine(level, event, message, host))

    def _start(self, timer: Timer, seconds: float | None = None) -> None:
        """Start a timer, of the length that it has in ``DELAYS`` or another one."""
        self.pending.add(timer)
        self._do(StartTimer(timer, DELAYS[timer] if seconds is None else seconds))

    def answered(self, host: str) -> bool | None:
        """Whether a host can still be reached after mpirun's end; None: unknown."""
        found = self.answers.get(host)
        return found.answered if found else None

    @property
    def status(self) -> int:
        """Mpirun's exit status, 128+n where a signal ended it."""
        ended = self.ended or MpirunEnded(0)
        return BY_SIGNAL + ended.signal if ended.signal else ended.status

    @property
    def returned(self) -> str:
        """What mpirun returned, in words."""
        if self.stage > 2:  # noqa: PLR2004 - killed
            return "mpirun had to be killed"
        return f"mpirun itself returned {self.status}"

    @property
    def agents_follow(self) -> bool:
        """Whether agents' ends follow from mpirun's: it was killed, or its 0 is trusted."""
        trusted = self.status == 0 and self.family.zero_is_success
        return bool(self.ended and not self.stage and (trusted or self.ended.signal))

    @property
    def proven_losses(self) -> tuple[AgentEnded, ...]:
        """The agents that ended badly, without those whose end proves nothing."""
        losses, usual = self.losses, self.family.at_end
        if self.agents_follow:
            losses = losses[: self.losses_before_end]
        if self.status == 0 and not self.lost_daemon:
            losses = tuple(x for x in losses if not x.by_daemon or x.status not in usual)
        return losses

    @property
    def may_have_ranks(self) -> bool:
        """Whether ranks may run: all agents started so far are connected, or nothing is known."""
        return (
            self.launched
            or self.overdue
            or (bool(self.connected) and all(host in self.connected for host, _ in self.agents))
        )

    @property
    def ran(self) -> bool:
        """Whether ranks are known to have run: they were seen, or mpirun reports of them."""
        return bool(self.launched or self.first_rank or self.mpi_failed or self.lost_daemon)

    @property
    def being_ended(self) -> bool:
        """Whether a signal or a verdict is ending mpirun: what follows from that is no event."""
        return bool(self.signal or self.cause or self.stage)

    # Ending a job

    def _force_end(self, seconds: float) -> None:
        """Begin to end mpirun, which has so many seconds."""
        self.stage = 1
        self.pending &= _WAITS
        self._start(Timer.GRACE, seconds)

    def _signal_mpirun(self, number: int, *, direct: bool = False) -> None:
        """Signal mpirun, and give it its grace; ``direct`` where the terminal has signalled it."""
        if not direct:
            self._do(SendSignal(number))
        grace = self.settings.grace or _LAUNCH_GRACE_S
        self._force_end(grace if self.may_have_ranks else min(grace, _LAUNCH_GRACE_S))

    def _save(self) -> None:
        """Signal the ranks alone, and give them the grace; mpirun would kill them in a second."""
        self.saving = True
        self._do(StopRanks(self.stop_signal))
        self._force_end(self.settings.grace)

    def _ranks_left(self, event: RanksLeft) -> None:
        if not self.saving:
            return
        first, ranks, grace = self.ranks_left is None, event.ranks, self.settings.grace
        self.ranks_left, self.saving = ranks, bool(ranks)
        if ranks is None:
            self._do(SendSignal(self.signal or SIGTERM))
            if not self.launched:
                self._start(Timer.GRACE, min(_LAUNCH_GRACE_S, grace))
        elif ranks == 0:
            self._do(SendSignal(SIGCONT))
            self._start(Timer.GRACE, min(_FOLLOW_S, grace))
        elif first:
            sent = f"sent {signal_name(self.stop_signal)} to {counted(ranks, 'rank')}"
            self._log(LogLevel.INFO, "signal", f"{sent}; waiting up to {took(grace)}")

    def _escalate(self, number: int = SIGTERM, *, direct: bool = False) -> None:
        """Signal mpirun again; the third time, kill it.

        Open MPI ignores QUIT, and MPICH's first INT is a request: what every MPI takes is TERM.
        """
        if self.saving:
            left = self.ranks_left
            who = "the ranks" if left is None else counted(left, "rank")
            message = f"{who} did not end in time: mpirun ends what is left"
            self._log(LogLevel.WARNING, "signal", message)
        self.saving = False
        self.pending -= {Timer.GRACE, Timer.KILL}
        self.stage = min(3, self.stage + 1)
        if self.stage == 2:  # noqa: PLR2004 - signalled again
            if not direct:
                self._do(SendSignal(number))
            self._start(Timer.KILL)
        else:
            self._do(SendSignal(SIGKILL))
            self._start(Timer.KILLED)

    def _signalled(self, event: Signalled) -> None:
        """Pass a signal on to mpirun, or end the job by it."""
        if event.number in (SIGUSR1, SIGUSR2):
            self._pass_on(event)
            return
        again = self.signal or not self.saving
        self.signal = self.signal or event.number
        # No host is blamed for the end of a job that is being ended: its workers may have got the
        # signal first.
        self.pending -= _WAITS
        if self.ended is not None:
            return
        if self.stage:
            if again:  # else all pods of the job are terminated, and a worker reported that first
                self._escalate(event.number, direct=event.direct)
        # A terminal has signalled mpirun already, and before all agents are connected no rank runs.
        elif self.may_have_ranks and self.settings.grace and not event.direct:
            self._save()
        else:
            self._signal_mpirun(event.number, direct=event.direct)

    def _pass_on(self, event: Signalled) -> None:
        """Forward a signal of the program's own to mpirun, where it has ranks that can get it."""
        if not self.may_have_ranks:
            # 5.0 takes each daemon that isn't there yet for an error.
            message = f"{signal_name(event.number)} is not forwarded: no rank runs yet"
            self._log(LogLevel.INFO, "signal", message)
        elif not (self.ended is not None or self.saving or event.direct):
            self._do(SendSignal(event.number))

    def _host_ending(self, event: HostEnding) -> None:
        """End a job that is losing a pod while all of its ranks can still save."""
        can_save = event.host in self.hosts and self.may_have_ranks and self.settings.grace
        if can_save and not (self.being_ended or self.losses):
            cause = verdict_of("host-lost", _POD_ENDS, event.host)
            self.cause = replace(cause, gone=True)
            message = "its pod is being terminated: all ranks get time to save"
            self._log(LogLevel.WARNING, "signal", message, event.host)
            self._save()

    # The launch

    def _agent_started(self, event: AgentStarted) -> None:
        if event.host not in self.no_agent:
            self.started_again.add(event.host)
        self.no_agent.discard(event.host)
        self.ended_well.discard(event.host)
        self.agents.add((event.host, event.pid))
        self._count_later()

    def _count_later(self) -> None:
        if not (self.launched or self.being_ended):
            self._start(Timer.RANKS)

    def _agent_connected(self, event: AgentConnected) -> None:
        first, count = event.host not in self.connected, len(self.hosts)
        self.connected.add(event.host)
        self._count_later()
        complete = len(self.connected) >= count and self.connected.issuperset(self.hosts)
        if first and complete and event.host in self.hosts:
            text = f"all {count} remote daemons started"
            self._log(LogLevel.INFO, "launch", text if count > 1 else "the remote daemon started")

    def _ranks_counted(self, event: RanksCounted) -> None:
        """Handle each host's number of ranks: a host without its daemon is warned of, or worse."""
        seen = sum(map(bool, event.ranks.values()))
        news = seen and not (self.launched or self.connected)  # an agent of the user's, or kubectl
        self.launched = self.launched or seen > 0
        if self.being_ended or self.ended is not None:
            return
        if news:
            self._log(LogLevel.INFO, "launch", f"ranks run on {counted(seen, 'host')}")
        # A host whose ranks have ended has no daemon any more.
        over = self.no_agent | (self.ended_well if self.launched else set())
        without = [
            host for host in self.hosts if host not in over and event.ranks.get(host, 0) is None
        ]
        if self.launched and not without:
            self.pending.discard(Timer.LAUNCH)
        elif self.overdue:
            known = bool(without) or event.ranks.keys() >= {*self.hosts}
            self._launch_is_overdue(without, known=known)

    def _launch_is_overdue(self, without: list[str], *, known: bool) -> None:
        """End a job whose daemons took longer than the user allows; else that is a warning.

        ``without`` are the hosts that show no daemon; ``known``: these or all have answered.
        """
        when = f"{took(self.settings.launch_timeout)} after mpirun's start"
        message = f"no rank runs on any host that answers, {when}"
        if without:
            message = f"{first_few(without, LISTED)} ({len(without)} of {len(self.hosts)} remote "
            message += f"hosts): no {self.family.daemon} runs there {when}"
        if known and self.spec.resolved.given["launch_timeout"].source is not Source.DEFAULT:
            self._end(verdict_of("launch-timeout", message))
            return
        if not known:
            message = "not every host reports if mpirun's daemon runs there"
        self._log(LogLevel.WARNING, "launch", f"{message}; the job goes on")

    # Agents that have ended

    def _agent_ended(self, event: AgentEnded) -> None:
        self.agents.discard((event.host, event.pid))
        if not self.agents:
            self.pending.discard(Timer.AGENTS)
        # Some MPIs query a host's shell first: what counts is the host's last agent.
        another = event.host in self.started_again and event.host in dict(self.agents)
        if self.being_ended or another:
            return
        if event.status:
            self._lost(event)
        else:
            self.ended_well.add(event.host)
            self.launched = self.launched or event.host in self.connected

    def _lost(self, event: AgentEnded) -> None:
        """Note an agent that ended badly; mpirun gets time to end over it, and is then ended."""
        before = self.losses
        self.losses = (*before, event)
        self.losses_before_end += self.ended is None
        if event.killed and before and event.host != self.lost_daemon:
            return  # an mpirun that gives up over a lost host kills the other agents
        usual = event.by_daemon and event.status in self.family.at_end
        if self.ended is None and Timer.LOST_DAEMON not in self.pending and not usual:
            self._start(Timer.LOST_DAEMON)
        follows = self.lost_daemon not in ("", event.host)
        sure = event.sure or (event.killed and not follows and self._may_be_lost())
        if sure and not any(item.sure for item in before):
            self._start(Timer.SUSPENSION)
        level = LogLevel.WARNING if sure else LogLevel.DEBUG
        self._log(level, "agent", how(event, self.spec.remote), event.host)

    def _may_be_lost(self) -> bool:
        """Whether a lost host may be behind mpirun's end, as far as its status shows."""
        ended = self.ended
        return ended is None or (not ended.signal and ended.status in self.family.lost)

    # What mpirun reports, and its end

    def _rank_ended(self, event: RankEnded) -> None:
        first = self.first_rank
        if event.last:
            # Where mpirun ended ranks itself, the first failure is the one reported earlier.
            if not (first and event.signal in (SIGKILL, SIGTERM)):
                self.first_rank = event
            return
        if self.being_ended:
            return
        # Of what is no rank's end the first report counts.
        match event.how:
            case RankEnd.MPI:
                self.mpi_failed = self.mpi_failed or event.what
            case RankEnd.LOST:
                self.lost_daemon = self.lost_daemon or event.host
            case RankEnd.TIMED_OUT:
                self.timed_out = True
            case RankEnd.LACKS:
                # Intel MPI's mpirun ends on its own then, MPICH's does not.
                if not self.lacking and self.family.mixes_statuses and self.ended is None:
                    self._start(Timer.RANK_ENDED, _FOLLOW_S)
                self.lacking = self.lacking or event
            case _:
                self._rank_failed(first, event)

    def _rank_failed(self, first: RankEnded | None, event: RankEnded) -> None:
        """Note the rank that explains the others' ends, by those of the first and a later one."""
        # A peer may find a dead rank's connection closed, and abort, before its end is reported.
        follows = (
            first
            and (first.how is not RankEnd.ABORT or event.how is not RankEnd.SIGNAL)
            and (first.rank is not None or event.rank is None)
        )
        self.first_rank = first if follows else event
        # Hydra reports on the stream that ranks write to: a rank's own mpiexec may have written it.
        guessed = self.family.mixes_statuses
        if not (first or guessed or self.spec.plan.tolerates_failure or self.ended):
            self._start(Timer.RANK_ENDED)

    def _goes_on(self) -> None:
        """Warn of an mpirun that goes on without a rank; the others may compute, or wait for it."""
        ended = self.lacking or self.first_rank or RankEnded(None, RankEnd.STATUS)
        what = lacks(ended) if self.lacking else f"{rank_name(ended)} ended badly"
        message = f"{what}, and mpirun goes on without it. Check the others: mpiboot doctor ranks"
        self._log(LogLevel.WARNING, "launch", message, ended.host)

    def _mpirun_ended(self, event: MpirunEnded) -> None:
        if self.ended is not None:
            return
        self.ended = event
        lost = any(loss.sure for loss in self.losses) or self._may_be_lost()
        self.pending &= {Timer.SUSPENSION} if lost else set()
        if self.cause and self.cause.gone and not self.signal:
            # Where all pods of a job are terminated, the launcher's own signal may come after this.
            self._start(Timer.SUSPENSION)
        elif self.signal or self.cause or event.signal:
            self.pending -= _WAITS
        elif self.agents:
            self._start(Timer.AGENTS)

    # Timers

    def _end(self, cause: Verdict | None = None) -> None:
        """Signal mpirun to end; without a ``cause`` a loss is the reason."""
        self.cause = cause or self.cause
        if self.ended is None and not self.stage:
            self._signal_mpirun(SIGTERM)

    def _timer_fired(self, timer: Timer) -> None:
        if timer not in self.pending:
            return
        self.pending.discard(timer)
        match timer:
            case Timer.LAUNCH | Timer.RANKS:
                self.overdue = self.overdue or timer is Timer.LAUNCH
                self._do(CountRanks())
            case Timer.LOST_DAEMON:
                self._end()
            case Timer.RANK_ENDED:
                self._goes_on()
            case Timer.GRACE | Timer.KILL:
                self._escalate()
            case Timer.KILLED:
                self._mpirun_ended(MpirunEnded(0, SIGKILL))
            case Timer.AGENTS:
                self.overdue_agents = tuple(sorted({host for host, _ in self.agents}))
                hosts = first_few(self.overdue_agents, LISTED)
                message = f"{hosts}: its session was still open 5 s after mpirun ended"
                self._log(LogLevel.WARNING, "agent", message)

    _RULES: ClassVar[Mapping[type, Callable[[Job, Any], None]]] = {
        AgentStarted: _agent_started,
        AgentConnected: _agent_connected,
        AgentEnded: _agent_ended,
        RankEnded: _rank_ended,
        RanksCounted: _ranks_counted,
        RanksLeft: _ranks_left,
        HostEnding: _host_ending,
        Signalled: _signalled,
        MpirunEnded: _mpirun_ended,
        Timer: _timer_fired,
    }
