"""Values that every process of mpiboot has: roles, sources, decisions and findings.

A worker loads them before it listens; what only plans and facts need is in ``facts``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

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
