"""Records of a started job: what can happen, what can be done, and what is known of it. Pure.

``mpirun`` makes the events and carries out the actions; ``job`` decides what an event means. A row
for each MPI has how it behaves at the end of a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from signal import Signals
from typing import Final

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.launch_spec import BY_SIGNAL
from mpiboot.core.model import LogLevel


class Timer(str, Enum):
    """What has a time limit; ``job.DELAYS`` has their lengths."""

    LAUNCH = "launch"  # daemons run on all hosts, and ranks on some
    RANKS = "ranks"  # ... no further agent for a while: ranks run where they are to run
    LOST_DAEMON = "lost-daemon"  # mpirun ends by itself after it lost a daemon
    SUSPENSION = "suspension"  # a lost host turns out to be a job that is being suspended
    GRACE = "grace"  # a signalled mpirun ends
    KILL = "kill"  # ... after the second signal
    KILLED = "killed"  # ... after SIGKILL
    AGENTS = "agents"  # the agents follow mpirun
    RANK_ENDED = "rank-ended"  # mpirun ends a job whose rank ended badly


class Event:
    """What has happened."""


@dataclass(frozen=True, slots=True)
class AgentStarted(Event):
    """Mpirun has started an agent for a host; ``spawned`` for ranks that other ranks spawn."""

    host: str
    pid: int
    spawned: bool = False


@dataclass(frozen=True, slots=True)
class AgentConnected(Event):
    """The agent's ssh has logged in."""

    host: str


@dataclass(frozen=True, slots=True)
class AgentEnded(Event):
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


@dataclass(frozen=True, slots=True)
class RankEnded(Event):
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


@dataclass(frozen=True, slots=True)
class RanksLeft(Event):
    """How many of the ranks that got the stop signal are left; None where none was ever seen."""

    ranks: int | None


@dataclass(frozen=True, slots=True)
class RanksCounted(Event):
    """How many ranks each host has, by its name; one that did not answer is left out.

    None where a worker with mpiboot shows no process of the launch, not even its daemon.
    """

    ranks: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class HostEnding(Event):
    """A worker reports that its pod is being terminated."""

    host: str


@dataclass(frozen=True, slots=True)
class Signalled(Event):
    """This process got a signal; ``direct`` where the terminal sent it to mpirun as well."""

    number: int
    direct: bool = False


@dataclass(frozen=True, slots=True)
class MpirunEnded(Event):
    """Mpirun is gone: its exit status, or the signal that ended it."""

    status: int
    signal: int = 0


@dataclass(frozen=True, slots=True)
class TimerFired(Event):
    """A timer has expired."""

    timer: Timer


class Action:
    """What is to be done."""


@dataclass(frozen=True, slots=True)
class SendSignal(Action):
    """Send a signal to mpirun."""

    number: int


@dataclass(frozen=True, slots=True)
class StopRanks(Action):
    """Send a signal to the ranks alone, and hold mpirun for up to ``seconds`` meanwhile.

    ``RanksLeft`` follows; any signal to mpirun releases it, and so does its end.
    """

    number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SessionOver(Action):
    """A host's agent has ended: do not wait for that host's count of ranks."""

    host: str


@dataclass(frozen=True, slots=True)
class ReleaseMpirun(Action):
    """Hold mpirun no more."""


@dataclass(frozen=True, slots=True)
class CountRanks(Action):
    """Count the ranks of each host; ``RanksCounted`` follows."""


@dataclass(frozen=True, slots=True)
class StartTimer(Action):
    """Start a timer, again where it runs."""

    timer: Timer
    seconds: float


@dataclass(frozen=True, slots=True)
class KillMpirun(Action):
    """Send SIGKILL to mpirun and to everything that it started here."""


@dataclass(frozen=True, slots=True)
class LogLine(Action):
    """Log a line."""

    level: LogLevel
    event: str
    message: str
    host: str = ""


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
class Finish(Action):
    """The job is over; nothing follows."""


@dataclass(frozen=True, slots=True)
class Family:
    """How one MPI behaves at the end of a job: one row for each family.

    ``daemon`` is its program on the workers. ``lost`` are mpirun's exit statuses after it has lost
    a daemon, ``lacking`` those that may mean that some host can't run the program, and ``codes``
    what others mean. ``zero_is_success`` where mpirun never returns 0 after a loss, and ``at_end``
    are the statuses other than 0 that its daemons have at the end of a job that ended well.
    ``daemons_follow`` where daemons that had joined fail over a job that failed, so that their own
    status proves no loss. ``mixes_statuses`` where its status combines those of all ranks in one
    number; it lists them on stdout (``mpirun_messages``). ``drops_output`` where mpirun may drop at
    its end what its stdout or stderr has not taken (docs/reference/open-mpi-output.md), and
    ``writes_nul`` where it writes NUL bytes to stderr.
    """

    daemon: str
    lost: frozenset[int]
    codes: tuple[tuple[int, str], ...] = ()
    lacking: frozenset[int] = frozenset()
    writes_nul: bool = False
    daemons_follow: bool = False
    mixes_statuses: bool = False
    drops_output: bool = False
    zero_is_success: bool = True
    at_end: frozenset[int] = frozenset()


TIME_LIMIT: Final = "the program did not end within mpirun's own time limit"
_CODES_4: Final = (
    (110, TIME_LIMIT),
    (132, "a rank was ended by SIGILL, or mpirun could not execute the program on some host"),
    (134, "a rank was ended by SIGABRT, or some host lacks the program"),
    (135, "some host lacks the working directory that mpirun was given"),
)
_CODES_5: Final = (
    (241, TIME_LIMIT),
    (66, "the program exited with code 66, or some host lacks it"),
    (181, "some host lacks the working directory that mpirun was given"),
    (183, "mpirun could not execute the program on some host"),
)
# Hydra's status for whatever went wrong.
_HYDRA_FAILED: Final = frozenset((255,))
# A proxy that could not execute the program ends; Intel MPI's mpirun may die of SIGPIPE then.
_LACK_HYDRA: Final = frozenset((255, 141))
# A path that can't be executed, and a name that isn't found.
_LACK_4: Final = frozenset((132, 134))
_LACK_5: Final = frozenset((183, 66))
# Measured: a rank that a signal ended is that signal's number (4.0) or 255 (5.0, Intel MPI).
_CODES_HYDRA: Final = (
    (255, "a rank failed, was ended by a signal, or could not be started: see mpirun's own lines"),
    *(
        (number, f"a rank exited with code {number}, or was ended by {name}")
        for number, name in ((6, "SIGABRT"), (9, "SIGKILL"), (11, "SIGSEGV"), (15, "SIGTERM"))
    ),
)
# Measured with 4.1.4: 205 is "lost communication with a remote daemon", 255 ssh's.
_OPENMPI_4: Final = Family("orted", frozenset((205, 255)), _CODES_4, _LACK_4, drops_output=True)
# 4.0 waits forever after a failed ssh. What an mpirun that was signalled returns (Open MPI 1,
# MPICH 0, 2, 15 or 255) is not taken for the job's status.
_OF_HYDRA: Final = Family(
    "hydra_pmi_proxy",
    _HYDRA_FAILED,
    _CODES_HYDRA,
    _LACK_HYDRA,
    daemons_follow=True,
    mixes_statuses=True,
)
# By the values of ``model.MpiFamily``.
FAMILIES: Final = {
    "openmpi4": _OPENMPI_4,
    # 5.0.8 and 5.0.11 return 0 or 255 at random after a lost worker. NUL bytes: 5.0.7, where a
    # host was lost or a rank aborted. With no_tree_spawn the prted of a host that has only ranks
    # spawned later ends with 255, and prterun with 0 (5.0.7, 15 of 15).
    "openmpi5": Family(
        "prted",
        frozenset((0, 255)),
        _CODES_5,
        _LACK_5,
        writes_nul=True,
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


def by_ssh(status: int) -> bool:
    """Whether ssh itself ended; mpirun's daemons have statuses of their own up to 254."""
    return status == SSH_FAILED or status - BY_SIGNAL in _ENDING


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(AgentEnded):
    """The end of an agent that did not end well.

    ``sure`` where ssh itself ended (255, or by a signal that was not sent from here), which only a
    lost host, session or daemon explains; another status is the daemon's own, which some MPIs
    also give at the end of a failed program, and 4.1's mpirun then kills overdue agents (a
    negative status). ``connected`` where its session had begun; ``after`` where mpirun had ended
    before; ``remote`` as in ``LaunchSpec``.
    """

    sure: bool
    connected: bool
    after: bool
    remote: str = "ssh"


# Hosts that one sentence names.
LISTED: Final = 8


def verdict_of(
    reference: str, message: str, host: str = "", evidence: tuple[str, ...] = ()
) -> Verdict:
    """Judge by a row of checks."""
    return Verdict(int(BY_REFERENCE[reference].code), reference, message, host, evidence)


def pod_ending(host: str) -> Verdict:
    """Judge a job of which a pod is being terminated."""
    message = (
        "its pod is being terminated (deleted, drained or preempted), and so the job was ended"
    )
    return replace(verdict_of("host-lost", message, host), gone=True)


def how(loss: Loss) -> str:
    """Describe how an agent ended."""
    if loss.status < 0:
        return f"its launch agent was killed by {signal_name(-loss.status)}"
    words = f" ({'; '.join(loss.words)})" if loss.words else ""
    who = loss.remote if loss.sure else "agent"
    return f"its {who} ended with {loss.status}{words}"


def rank_name(ended: RankEnded) -> str:
    """Name a rank as far as mpirun does."""
    return "a rank" if ended.rank is None else f"rank {ended.rank}"


def lacks(found: RankEnded) -> str:
    """Describe what mpirun reports of a program."""
    return f"mpirun could not find or execute the program {found.what}"
