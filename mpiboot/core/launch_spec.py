"""A launch: what is started once hosts are ready, and the names of its files and variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

EVENTS: Final = "events"
# The FIFO on which agents ask for a session.
REQUESTS: Final = "requests"
# The folder of their FIFOs.
SESSIONS: Final = "sessions"
# What mpirun writes on request: which rank is where.
PLACEMENT: Final = "placement"
# The launch's copy of the job's key, in its folder.
KEY: Final = "key"
# A word of 4.1's line: mpirun's own messages have a handle (``mpirun_messages``), ranks have 2.
NOT_FOR_RANKS: Final = "OPAL_OUTPUT_STDERR_FD=2"
LAUNCH_DIR: Final = "MPIBOOT_LAUNCH_DIR"
# In the environment of all that one launch starts, on every host; no two launches share it.
LAUNCH_ID: Final = "MPIBOOT_LAUNCH_ID"
# Of a host's answer (``HostRecord``); raised when a field changes its meaning.
RECORD_VERSION: Final = 1
# In the environment of its daemons: the port on which the launcher hears of a worker's end, and
# what it calls that worker.
NOTICE: Final = "MPIBOOT_NOTICE"
# In the environment of a launcher whose time another process keeps: SIGHUP is the job's good end.
TIMED: Final = "MPIBOOT_TIMED"
# A shell's exit status of signal n is 128 + n.
BY_SIGNAL: Final = 128
# What workers call the launcher; in the environment of a command, whose launches are one attempt.
ATTEMPT: Final = "MPIBOOT_ATTEMPT"
# The private folder of a command that is no launch, in its environment; and the file there in which
# each launch below it writes how it ended.
COMMAND_DIR: Final = "MPIBOOT_COMMAND_DIR"
LAUNCHES: Final = "launches"
# The file there by which an agent reports that it was called by another mpirun than mpiboot's.
PASSED_BY: Final = "passed_by"
# The FIFO there by which its ssh asks for the gate, and the file that is there once the gate is
# over, with the reason where it failed.
WANTED: Final = "wanted"
# The folder there of what its ssh reads once a host is ready.
LOGINS: Final = "logins"
OVER: Final = "over"


def outside_launch(environ: Mapping[str, str]) -> dict[str, str]:
    """Drop what marks a launch's processes: without it none is ended with them."""
    return {name: value for name, value in environ.items() if name not in (LAUNCH_DIR, LAUNCH_ID)}


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One start of mpirun.

    ``remote_hosts`` are the names that the agents are called with, as in the hostfile that mpirun
    gets; ``folder`` is the launch folder; ``set_env`` is what mpirun's environment has other than
    this pod's.
    ``hosts`` counts the launcher too where it runs ranks; ``obstacles`` are variables or flags
    that could hide the hostfile or the launch agent from mpirun, each with the reason;
    ``attempt`` is what workers call this launcher, empty where they are not notified of its end;
    ``earlier`` is what they report of the attempt before; ``program`` is what ranks run, empty
    where that isn't known; ``tolerates_failure`` tells that the job may be meant to go on
    without a rank that ended badly; ``stop_signal`` tells ranks to save and end; ``addresses`` are
    this pod's on the control link, and ``ports`` the range that a NetworkPolicy leaves open, empty
    for any;
    ``end_late`` where a job is ended whose daemons are not there after ``launch_timeout``.
    ``exit_codes`` where mpiboot asked mpirun for every rank's exit code, so that those lines are
    not the user's. ``remote`` is what the agents run: ssh or kubectl.
    ``all_hosts`` has the launcher too where it is one, ``transport`` is planned for the data
    between them; ``prove`` is the setting where their counters are compared, else empty. ``times``
    are when the hosts' last name resolved and when all were ready, on the monotonic clock.
    ``warned`` are the warnings before the start that explain a bad end, by their row of checks.
    """

    argv: tuple[str, ...]
    family: str
    remote_hosts: tuple[str, ...]
    hosts: int
    ranks: int | None
    launch_timeout: float
    grace: float
    folder: str
    set_env: Mapping[str, str] = field(default_factory=dict)
    obstacles: tuple[tuple[str, str], ...] = ()
    attempt: str = ""
    earlier: str = ""
    program: str = ""
    tolerates_failure: bool = False
    stop_signal: int = 15
    addresses: tuple[str, ...] = ()
    ports: str = ""
    end_late: bool = True
    exit_codes: bool = False
    remote: str = "ssh"
    all_hosts: tuple[str, ...] = ()
    transport: str = "none"
    prove: str = ""
    times: tuple[float, ...] = ()
    warned: Mapping[str, str] = field(default_factory=dict)

    @property
    def local(self) -> bool:
        """Whether ranks on the launcher would get what only mpirun is to be told."""
        return self.hosts > len(self.remote_hosts) and NOT_FOR_RANKS not in self.argv

    @property
    def free_ports(self) -> Iterable[int]:
        """Ports to listen on, the likeliest to be free first: MPI takes them from the first on."""
        first, _, last = self.ports.partition("-")
        return range(int(last), int(first) - 1, -1) if last else (0,)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why mpirun is not started: the exit code, the reference and the termination message.

    ``held`` where the launcher may be held for a look inside; never after a signal. ``host`` is the
    one that failed, or the first of several; empty where it was none.
    """

    code: int
    reference: str
    message: str
    held: bool = True
    host: str = ""
