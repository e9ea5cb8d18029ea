"""What the parent gets: a few settings at its start, and what to launch once hosts are ready.

Stdlib only, for the parent imports it. What is to be launched comes by a pipe and is never a file:
the environment's changes are in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from mpiboot.core.launch_names import NOT_FOR_RANKS
from mpiboot.core.records_json import read_record, write_records
from mpiboot.core.setting_types import LogFormat, LogLevel


class ParentTask(str, Enum):
    """The first word of the process's arguments; what it starts stands behind its options."""

    LAUNCH = "launch"  # the child that waits for the hosts, then what that hands over
    COMMAND = "command"  # one that is no mpirun, and may call mpirun itself


@dataclass(frozen=True, slots=True)
class ParentOptions:
    """The settings that hold from the parent's start to its end.

    ``job_record`` is the file for the job's end, - for the log, empty for none;
    ``oom_kills`` are the processes that the kernel had killed here for memory before the launcher
    began. A launch has its ``line`` where it is below a command: mpirun's name, and what is the
    same for the same words.

    For a command that is no launch: ``grace`` in seconds; its private ``folder``, and ``gate``,
    what runs beside it once its ssh asks for hosts; ``notifier``, what tells the workers of its end
    where that does not run, in front of a launch folder; ``last_launches``, the folder of the
    launches below, whose workers are told of its end, empty where they aren't; and ``hint``, how
    its words would be started as ranks, empty where no hosts are known.
    """

    log_level: LogLevel = LogLevel.INFO
    log_format: LogFormat = LogFormat.HUMAN
    termination_log: str = ""
    hold_on_failure: float = 0.0
    grace: float = 0.0
    last_launches: str = ""
    oom_kills: int = 0
    job_record: str = ""
    line: tuple[str, ...] = ()
    folder: str = ""
    gate: tuple[str, ...] = ()
    notifier: tuple[str, ...] = ()
    hint: str = ""

    def to_json(self) -> str:
        """Write the record as JSON."""
        return write_records(self)

    @classmethod
    def from_json(cls, text: str) -> ParentOptions:
        """Read what ``to_json`` wrote.

        Raises:
            TypeError: a field is missing or not known.
            ValueError: it isn't JSON.
        """
        return read_record(cls, json.loads(text))


@dataclass(frozen=True, slots=True)
class RemoteHost:
    """A remote host of a job.

    ``name`` is what the agent is called with, as in the hostfile that mpirun gets; ``address``
    and ``port`` are those of its SSH server (0 where kubectl enters its pod).
    """

    name: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One start of mpirun.

    ``folder`` is the launch folder; ``set_env`` and ``unset_env`` are what mpirun's environment
    has other than the parent's.
    ``hosts`` counts the launcher too where it runs ranks; ``obstacles`` are variables or flags
    that could hide the hostfile or the launch agent from mpirun, each with the reason;
    ``attempt`` is what workers call this launcher, empty where they are not notified of its end;
    ``earlier`` is what they report of the attempt before; ``program`` is what ranks run, empty
    where that isn't known; ``tolerates_failure`` tells that the job may be meant to go on
    without a rank that ended badly; ``stop_signal`` tells ranks to save and end; ``addresses`` are
    this pod's on the control link, and ``ports`` the range that a NetworkPolicy leaves open, empty
    for any;
    without ``supervise`` the parent becomes mpirun.
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
    remote_hosts: tuple[RemoteHost, ...]
    hosts: int
    ranks: int | None
    launch_timeout: float
    grace: float
    folder: str
    set_env: Mapping[str, str] = field(default_factory=dict)
    unset_env: tuple[str, ...] = ()
    obstacles: tuple[tuple[str, str], ...] = ()
    attempt: str = ""
    earlier: str = ""
    program: str = ""
    tolerates_failure: bool = False
    stop_signal: int = 15
    addresses: tuple[str, ...] = ()
    ports: str = ""
    supervise: bool = True
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

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Make mpirun's environment of the parent's."""
        kept = {name: value for name, value in environ.items() if name not in self.unset_env}
        return {**kept, **self.set_env}


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


Result: TypeAlias = LaunchSpec | Failure


def to_line(result: Result) -> bytes:
    """Write the child's result as one line."""
    return write_records({type(result).__name__: result}).encode() + b"\n"


def from_line(line: bytes) -> Result:
    """Read what ``to_line`` wrote.

    Raises:
        TypeError: a field is missing or not known.
        ValueError: it isn't JSON, or no result.
    """
    record = json.loads(line)
    kinds: tuple[type[Result], ...] = (LaunchSpec, Failure)
    for kind in kinds:
        if kind.__name__ in record:
            return read_record(kind, record[kind.__name__])
    raise ValueError("no result")
