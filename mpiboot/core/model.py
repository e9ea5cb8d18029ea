"""Values that every process of mpiboot has: roles, settings' words, findings; records as JSON.

A worker loads them before it listens; what only plans and facts need is in ``facts``. Records may
come from another mpiboot: what isn't known is overlooked, and a broken text is no record.
"""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Any, Final, TypeAlias

from mpiboot.core.wording import first_few

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class Role(str, Enum):
    """What this pod is in the job."""

    LAUNCHER = "launcher"
    WORKER = "worker"
    NONE = "none"


class SshKind(str, Enum):
    """Whose SSH a pod uses, as client or as server: the image's OpenSSH, or mpiboot's own."""

    OPENSSH = "openssh"
    EMBEDDED = "embedded"


class MpiFamily(str, Enum):
    """An MPI, as far as they differ: what one of them honours may end another."""

    OPENMPI4 = "openmpi4"
    OPENMPI5 = "openmpi5"
    SPECTRUM = "spectrum"
    MPICH = "mpich"
    INTEL = "intel"
    UNKNOWN = ""


class Source(str, Enum):
    """Where a value came from, strongest first."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    PLATFORM = "platform"
    FILE = "file"
    DETECTED = "detected"
    DEFAULT = "default"


class Level(str, Enum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Decision:
    """A value in the plan, its source and the reason for it."""

    name: str
    value: str
    source: Source
    reason: str


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of one host.

    ``check`` is a reference of the table in ``checks``; ``host`` is empty for this pod itself.
    ``hosts`` are those of a finding that several have in common; ``host`` is empty then.
    """

    check: str
    level: Level
    message: str
    host: str = ""
    evidence: tuple[str, ...] = ()
    hint: str = ""
    hosts: tuple[str, ...] = ()

    def on(self, hosts: Sequence[str]) -> Finding:
        """The same of one host, or of several."""
        several = tuple(hosts) if len(hosts) > 1 else ()
        return replace(self, host="" if several else "".join(hosts), hosts=several)

    @property
    def where(self) -> str:
        """Name the host or hosts as a line begins with them; empty for this pod itself."""
        several = f"{len(self.hosts)} hosts ({first_few(self.hosts)})" if self.hosts else ""
        return self.host or several


@dataclass(frozen=True, slots=True)
class Identity:
    """The user of this process.

    Without a passwd entry ``known`` is false, and ``user`` and ``home`` are made up.
    ``capabilities`` is the effective set as a bit mask; with ``own_users`` it counts in the pod's
    own user namespace (``hostUsers: false``).
    """

    uid: int
    gid: int
    user: str
    home: str
    shell: str
    known: bool
    capabilities: int
    own_users: bool = False


@dataclass(frozen=True, slots=True)
class Mpi:
    """An installed MPI, from its own ``--version``.

    ``path`` is the first mpirun on PATH; ``banner`` the line by which it was recognised.
    """

    family: MpiFamily
    version: str
    path: str
    banner: str


class HostKeys(str, Enum):
    """Which host keys are accepted: the job's, any at first contact, or all."""

    JOB = "job"
    ACCEPT_NEW = "accept-new"
    OFF = "off"


class DataNetworkUse(str, Enum):
    """Whether a job requires its data network, prefers or only reports it, or has none."""

    REQUIRE = "require"
    PREFER = "prefer"
    REPORT = "report"
    OFF = "off"


class NcclSocket(str, Enum):
    """Over which link NCCL's sockets go; ``AUTO``: the data link where every worker reaches it."""

    AUTO = "auto"
    DATA = "data"
    CONTROL = "control"


class MpiNetwork(str, Enum):
    """Over which network MPI's own messages go; a decision of ``auto`` leaves that to the MPI."""

    AUTO = "auto"
    CONTROL = "control"
    DATA = "data"


class Auto(str, Enum):
    """The value of a setting that leaves the choice to mpiboot."""

    AUTO = "auto"


AUTO: Final = Auto.AUTO


class ByIndex(str, Enum):
    """The role of a pod that is one of several alike: number 0 is the launcher, others workers."""

    BY_INDEX = "by-index"


BY_INDEX: Final = ByIndex.BY_INDEX


class LaunchAgent(str, Enum):
    """How a launcher reaches the job's hosts."""

    SSH = "ssh"
    KUBECTL = "kubectl"


class Switch(str, Enum):
    """Whether something is done."""

    OFF = "off"
    ON = "on"


class ProveTransport(str, Enum):
    """What follows where RDMA was planned and carried nothing: a warning, or a failed job."""

    WARN = "warn"
    FAIL = "fail"
    OFF = "off"


class WorkerExit(str, Enum):
    """After which end of the job a worker exits: a good one, any, or none."""

    WITH_JOB = "with-job"
    AFTER_JOB = "after-job"
    NEVER = "never"


class LogFormat(str, Enum):
    """In which form lines are logged."""

    HUMAN = "human"
    JSON = "json"


class LogLevel(str, Enum):
    """The level of a log line, the lowest first."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


T = typing.TypeVar("T")


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[object, bool]]:  # noqa: ANN401 - a dataclass
    """Name a record's fields, each with its type and whether it must be given."""
    hints = typing.get_type_hints(kind)
    return {
        item.name: (hints[item.name], item.default is item.default_factory is MISSING)
        for item in fields(kind)
    }


def read_record(kind: type[T], value: Json) -> T:
    """Make a record of what ``write_records`` made of one; what it doesn't have is overlooked.

    Args:
        kind: the record's class; its fields may be records, tuples, mappings and enumerations.
        value: the JSON value.

    Raises:
        TypeError: a field is missing, or of another type.
        ValueError: an enumeration has no such member.
    """
    if not isinstance(value, dict):
        raise TypeError(f"{kind.__name__} is not an object")
    known, given = _fields(kind), {}  # type: ignore[arg-type] # a class is hashable
    for name, (form, required) in known.items():
        if name in value:
            given[name] = _read(form, value[name])
        elif required:
            raise TypeError(f"{kind.__name__} has no {name}")
    return kind(**given)


def _read(kind: object, value: Json) -> object:
    if kind is float and type(value) is int:
        value = float(value)
    # True is an int to Python, and would be one bit of a mask or a port here.
    if type(value) is kind:
        return value
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError("not a list")
        return tuple(_read(arguments[0], item) for item in value)
    if origin is Mapping:
        if not isinstance(value, dict):
            raise TypeError("not an object")
        return {name: _read(arguments[1], item) for name, item in value.items()}
    if origin in (types.UnionType, typing.Union):
        absent = value is None and type(None) in arguments
        return None if absent else _read(arguments[0], value)
    if isinstance(kind, type) and is_dataclass(kind):
        return read_record(kind, value)
    if isinstance(value, str) and isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    raise TypeError(f"{value!r} is not {kind}")


def values(record: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    """Name a record's values without copying what they hold, as ``asdict`` would."""
    return {item.name: getattr(record, item.name) for item in fields(record)}


def write_records(value: object) -> str:
    """Write what has records in it as JSON."""
    return json.dumps(value, default=values)
