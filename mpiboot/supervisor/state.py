"""What the parent knows of a started job, as an immutable value, and the MPIs' own habits. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from mpiboot.core.launch_spec import BY_SIGNAL
from mpiboot.supervisor.events import MpirunEnded, RankEnded, Timer, Verdict


@dataclass(frozen=True, slots=True)
class Family:
    """How one MPI behaves at the end of a job; a row a family.

    ``daemon`` is its program on the workers. ``lost`` are the statuses with which mpirun itself
    answers to a lost daemon. ``proxies`` are the names of daemons that it runs on its own host;
    its ranks there are their children, else mpirun's. ``lacking`` are its statuses
    where some host can't run the program, and perhaps for other reasons. ``writes_nul`` where it
    writes NUL bytes of its own to stderr. ``daemons_follow`` where daemons that had joined fail
    over a job that failed, so that their own status tells of no loss. ``mixes_statuses`` where
    its status is all ranks' in one number, of which nobody can tell one rank's; on stdout it tells
    of them one by one (``hydra_messages``). ``attached`` where no daemon ever detaches: it ends
    with 0 after its ranks alone. ``drops_output`` where mpirun may drop at its end what its stdout
    or stderr has not taken (docs/reference/open-mpi-output.md).
    """

    daemon: str
    lost: frozenset[int]
    proxies: tuple[str, ...]
    codes: tuple[tuple[int, str], ...] = ()
    lacking: frozenset[int] = frozenset()
    writes_nul: bool = False
    daemons_follow: bool = False
    mixes_statuses: bool = False
    attached: bool = False
    drops_output: bool = False


_HYDRA: Final = ("hydra_pmi_proxy", "hydra_bstrap_pr")
_CODES_4: Final = (
    (110, "the program did not end within mpirun's own --timeout"),
    (132, "a rank was ended by SIGILL, or mpirun could not execute the program on some host"),
    (134, "a rank was ended by SIGABRT, or some host lacks the program"),
    (135, "some host lacks the working directory that mpirun was given"),
)
_CODES_5: Final = (
    (66, "the program exited with code 66, or some host lacks it"),
    (181, "some host lacks the working directory that mpirun was given"),
    (183, "mpirun could not execute the program on some host"),
    (241, "the program did not end within mpirun's own --timeout"),
)
# Hydra's status for whatever went wrong.
_HYDRA_FAILED: Final = frozenset((255,))
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
_OPENMPI_4: Final = Family("orted", frozenset((205, 255)), (), _CODES_4, _LACK_4, drops_output=True)
# 4.0 waits for ever after a failed ssh. What an mpirun that was signalled returns (Open MPI 1,
# MPICH 0, 2, 15 or 255) is not taken for the job's status.
_OF_HYDRA: Final = Family(
    "hydra_pmi_proxy",
    _HYDRA_FAILED,
    _HYDRA,
    _CODES_HYDRA,
    _HYDRA_FAILED,
    daemons_follow=True,
    mixes_statuses=True,
    attached=True,
)
# By the values of ``model.MpiFamily``.
FAMILIES: Final = {
    "openmpi4": _OPENMPI_4,
    # 5.0.8 and 5.0.11 return 0 or 255 at random after a lost worker. NUL bytes: 5.0.7, where a
    # host was lost or a rank aborted.
    "openmpi5": Family(
        "prted",
        frozenset((0, 255)),
        (),
        _CODES_5,
        _LACK_5,
        writes_nul=True,
        drops_output=True,
    ),
    "spectrum": _OPENMPI_4,
    "mpich": _OF_HYDRA,
    "intel": _OF_HYDRA,
}
UNKNOWN: Final = Family("daemon", frozenset((255,)), _HYDRA)

# Signal numbers of Linux, the same on every architecture that runs MPI.
SIGNALS: Final = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
}
SIGKILL: Final = 9
SIGTERM: Final = 15
SIGUSR: Final = (10, 12)
# ssh's own failures, and a remote command that a signal ended.
SSH_FAILED: Final = 255
# So often ranks are to be found in MPI without those of a host until that is told.
WAITING_LOOKS: Final = 2


def signal_name(number: int) -> str:
    """Name a signal."""
    return SIGNALS.get(number, f"signal {number}")


def by_ssh(status: int) -> bool:
    """Whether ssh itself ended; mpirun's daemons have statuses of their own up to 254."""
    return status == SSH_FAILED or status - BY_SIGNAL in SIGNALS


class Phase(str, Enum):
    """Where a job is."""

    LAUNCHING = "launching"  # until every remote daemon has joined
    RUNNING = "running"
    ENDING = "ending"  # signalled, ended by us, or ended


@dataclass(frozen=True, slots=True)
class Job:
    """What doesn't change: the remote hosts in the hostfile's order and the rules' numbers.

    ``goes_on`` where the job may be meant to go on without a rank that ended badly;
    ``stop_signal`` is what tells its ranks to save and end; ``remote`` is what the agents run.
    ``own_ranks`` where this pod has ranks, too; ``end_stuck`` where a guess may end the job.
    """

    family: Family
    hosts: tuple[str, ...]
    launch_timeout: float = 120.0
    grace: float = 20.0
    obstacles: tuple[tuple[str, str], ...] = ()
    goes_on: bool = False
    stop_signal: int = 15
    remote: str = "ssh"
    own_ranks: bool = False
    end_stuck: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """An agent that did not end well.

    ``sure`` where ssh itself ended (255, or a signal that nobody of ours sent), which only a
    lost host, session or daemon explains; another status is the daemon's own, which some MPIs
    also give at the end of a failed program, and 4.1's mpirun then kills agents that are late (a
    negative status). ``joined`` where its daemon had joined; ``after`` where mpirun had ended
    before; ``remote`` as in ``Job``.
    """

    host: str
    status: int
    words: tuple[str, ...]
    sure: bool
    joined: bool
    after: bool
    remote: str = "ssh"


@dataclass(frozen=True, slots=True)
class State:
    """All that was seen so far.

    ``no_agent`` hosts have no agent yet, ``no_daemon`` ones no daemon; ``agents`` are agents by
    host and pid, ``spawned`` those of them for ranks that ranks spawned, ``started_again`` hosts
    may have had several;
    ``ended_unjoined`` hosts' agents ended with 0 before a daemon joined,
    ``ended_well`` ones after it. ``pending`` timers are running. ``stage`` counts how hard mpirun
    is being ended (1 asked, 2 asked again, 3 killed). ``cause`` is why, where a host's loss isn't
    the reason. ``first_rank`` is the first that ended badly, ``mpi_failed`` the first call of MPI
    that failed, as MPI tells it. ``late_agents`` are hosts whose agents did not follow mpirun.
    ``given_up`` are silent hosts that are not there any more, each with the
    proof. ``waiting_looks`` are how often ranks were found in MPI after a host's
    had all ended. ``suspected`` is the last warning of a job that seems stuck.
    ``saving`` ranks were told to end, and mpirun is held; ``ranks_left`` of
    them are still there.
    """

    job: Job
    phase: Phase
    no_agent: frozenset[str]
    no_daemon: frozenset[str]
    connected: frozenset[str] = frozenset()
    agents: frozenset[tuple[str, int]] = frozenset()
    spawned: frozenset[int] = frozenset()
    started_again: frozenset[str] = frozenset()
    ended_unjoined: frozenset[str] = frozenset()
    ended_well: frozenset[str] = frozenset()
    losses: tuple[Loss, ...] = ()
    being_checked: frozenset[str] = frozenset()
    checked: tuple[tuple[str, bool | None, str], ...] = ()
    late_agents: tuple[str, ...] = ()
    given_up: tuple[tuple[str, str], ...] = ()
    pending: frozenset[Timer] = frozenset()
    joins_unseen: bool = False
    stage: int = 0
    signal: int = 0
    cause: Verdict | None = None
    first_rank: RankEnded | None = None
    mpi_failed: str = ""
    ended: MpirunEnded | None = None
    finished: bool = False
    waiting_looks: int = 0
    suspected: str = ""
    saving: bool = False
    ranks_left: int | None = None

    def with_agent(self, host: str, pid: int) -> State:
        """Add an agent that was started."""
        again = () if host in self.no_agent else (host,)
        return replace(
            self,
            no_agent=self.no_agent - {host},
            agents=self.agents | {(host, pid)},
            started_again=self.started_again.union(again),
            ended_unjoined=self.ended_unjoined - {host},
        )

    def has_agent(self, host: str) -> bool:
        """Whether a host whose agent ended has another one; few have had several."""
        return host in self.started_again and any(its == host for its, _ in self.agents)

    @property
    def being_ended(self) -> bool:
        """Whether a signal or a verdict of ours ends mpirun: what follows from that is no news."""
        return bool(self.signal or self.cause or self.stage)
