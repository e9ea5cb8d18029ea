"""What can happen to a started job, and what can be done about it: records without behaviour.

Pure. The parent makes the events and carries out the actions; ``verdicts`` says what an event
means.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from mpiboot.core.choices import LogLevel


class Timer(str, Enum):
    """What is waited for with an end; ``verdicts.DELAYS`` says how long."""

    LAUNCH = "launch"  # every daemon has joined
    LOST_DAEMON = "lost-daemon"  # mpirun ends by itself after it lost a daemon
    SUSPENSION = "suspension"  # a lost host turns out to be a job that is being suspended
    HOST_CHECK = "host-check"  # a host answers
    GRACE = "grace"  # a signalled mpirun ends
    KILL = "kill"  # ... after the second signal
    KILLED = "killed"  # ... after SIGKILL
    AGENTS = "agents"  # the agents follow mpirun
    DAEMONS_ENDED = "daemons-ended"  # mpirun follows its daemons
    HOST_DONE = "host-done"  # the job goes on though a host's ranks have all ended
    RANK_ENDED = "rank-ended"  # mpirun ends a job whose rank ended badly


@dataclass(frozen=True, slots=True)
class AgentStarted:
    """Mpirun has started an agent for a host; ``spawned`` for ranks that other ranks spawn."""

    host: str
    pid: int
    spawned: bool = False


@dataclass(frozen=True, slots=True)
class AgentConnected:
    """The agent's ssh has logged in."""

    host: str


@dataclass(frozen=True, slots=True)
class AgentEnded:
    """The agent has ended; ``signalled`` where somebody sent it a signal before.

    ``killed`` where it couldn't tell its end.
    """

    host: str
    pid: int
    status: int
    words: tuple[str, ...] = ()
    signalled: bool = False
    killed: bool = False


@dataclass(frozen=True, slots=True)
class DaemonJoined:
    """A host's daemon has a connection to mpirun."""

    host: str


@dataclass(frozen=True, slots=True)
class JoinsUnseen:
    """Connections can't be looked at here: a connected ssh has to do."""

    why: str


@dataclass(frozen=True, slots=True)
class RankSeen:
    """Mpirun runs a program on this pod, and no agent is on its way to report."""

    program: str


class RankEnd(str, Enum):
    """How a rank ended that ended badly."""

    SIGNAL = "signal"
    ABORT = "abort"  # it called MPI_Abort
    STATUS = "status"  # its exit status isn't 0
    MPI = "mpi"  # MPI itself says that a call failed, for which it ends the job
    SILENT = "silent"  # with 0, and without MPI_Finalize


@dataclass(frozen=True, slots=True)
class RankEnded:
    """Mpirun says that a rank ended badly.

    ``rank`` is None where it doesn't say which one; ``host``, ``signal`` and the rank's own exit
    ``code`` where it says these too, and the ``call`` of MPI that failed. ``last`` where it has
    told of all ranks, at its end.
    """

    rank: int | None
    how: RankEnd
    host: str = ""
    signal: int = 0
    code: int = 0
    last: bool = False
    call: str = ""


@dataclass(frozen=True, slots=True)
class RanksLeft:
    """So many ranks that were told to end are still there; None where nobody knows of any."""

    ranks: int | None


@dataclass(frozen=True, slots=True)
class RanksInMpi:
    """So many ranks have not left MPI, as the workers tell."""

    ranks: int


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A rank has tried one of the job's hosts by TCP for more than a minute.

    ``said`` is the sentence; empty where that is over.
    """

    said: str


@dataclass(frozen=True, slots=True)
class HostLost:
    """A silent host isn't there any more; ``said`` is what proves it."""

    host: str
    said: str


@dataclass(frozen=True, slots=True)
class HostEnding:
    """A worker tells that its pod was told to end."""

    host: str


@dataclass(frozen=True, slots=True)
class ClientEnded:
    """The process that has all agents' sessions is gone; ``killed`` by SIGKILL.

    ``out_of_memory``: the container's limit was reached, for which the kernel kills.
    """

    how: str
    killed: bool = False
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class HostChecked:
    """A host was asked once more; ``reachable`` is None where nobody knows how to ask."""

    host: str
    reachable: bool | None
    said: str = ""


@dataclass(frozen=True, slots=True)
class Signalled:
    """This process got a signal; ``direct`` where the terminal sent it to mpirun as well."""

    number: int
    direct: bool = False


@dataclass(frozen=True, slots=True)
class MpirunEnded:
    """Mpirun is gone: its exit status, or the signal that ended it."""

    status: int
    signal: int = 0


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A time is up."""

    timer: Timer


Event: TypeAlias = (
    AgentStarted
    | AgentConnected
    | AgentEnded
    | DaemonJoined
    | JoinsUnseen
    | RankSeen
    | RankEnded
    | RanksLeft
    | RanksInMpi
    | Unanswered
    | HostLost
    | HostEnding
    | ClientEnded
    | HostChecked
    | Signalled
    | MpirunEnded
    | TimerFired
)


@dataclass(frozen=True, slots=True)
class SendSignal:
    """Send a signal to mpirun."""

    number: int


@dataclass(frozen=True, slots=True)
class StopRanks:
    """Send a signal to the ranks alone, and hold mpirun for as long as they have: ``seconds``.

    ``RanksLeft`` tells of them; any signal to mpirun, and its end, is the end of the hold.
    """

    number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SessionOver:
    """A host's agent has ended: do not wait for that host to tell how many ranks it has."""

    host: str


@dataclass(frozen=True, slots=True)
class ReleaseMpirun:
    """Hold mpirun no more."""


@dataclass(frozen=True, slots=True)
class AskForRanksInMpi:
    """Ask the workers which ranks have not left MPI; ``RanksInMpi`` is the answer."""


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Start a timer, again where it runs."""

    timer: Timer
    seconds: float


@dataclass(frozen=True, slots=True)
class KillMpirun:
    """Send SIGKILL to mpirun and to everything that it started here."""


@dataclass(frozen=True, slots=True)
class CheckHost:
    """Ask whether a host's SSH port answers; ``HostChecked`` is the answer."""

    host: str


@dataclass(frozen=True, slots=True)
class EndSession:
    """End a host's SSH session here; ``AgentEnded`` follows."""

    host: str


@dataclass(frozen=True, slots=True)
class Say:
    """Log a line."""

    level: LogLevel
    event: str
    said: str
    host: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the job ended.

    ``reference`` is a row of ``checks.CHECKS``, or empty where the code is the program's own or
    a signal's; ``failed`` then says what failed: ``program`` where a rank is known to have ended
    badly, ``mpi`` where MPI itself gave up, ``mpirun`` where that is all that is known.
    ``rank`` and ``signal`` are those of the rank that ended first, where it is known.
    ``by_signal`` where the launcher itself was told to end; ``killed`` where the agent of a lost
    host, or its ssh, was ended by SIGKILL; ``gone`` where nobody can look inside that host, which
    does not answer or was told to end.
    """

    code: int
    reference: str
    said: str
    host: str = ""
    evidence: tuple[str, ...] = ()
    rank: int | None = None
    signal: str = ""
    by_signal: bool = False
    killed: bool = False
    failed: str = "program"
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """End; nothing follows."""

    verdict: Verdict


Action: TypeAlias = (
    SendSignal
    | StopRanks
    | SessionOver
    | ReleaseMpirun
    | AskForRanksInMpi
    | StartTimer
    | KillMpirun
    | CheckHost
    | EndSession
    | Say
    | Finish
)
