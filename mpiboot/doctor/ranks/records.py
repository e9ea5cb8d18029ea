"""What is known of the ranks on a host. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Activity(Enum):
    """What a rank does, as far as that can be seen from outside."""

    BUSY = "busy"
    WAITS = "waits"
    KERNEL = "sleeps in the kernel"
    STOPPED = "stopped"
    TRACED = "held by a debugger"
    ENDED = "ended"


class MpiStage(Enum):
    """How far a rank has come in MPI."""

    BEFORE = "before MPI_Init"
    INSIDE = "in MPI"
    LEFT = "after MPI_Finalize"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class SilentConnection:
    """A TCP connection on which nobody acknowledges: its ends, and how often it was repeated.

    ``new`` tells that it was never made.
    """

    own: str
    far: str
    port: int
    times: int
    new: bool = False


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank: where it is, what it uses, what it does.

    ``job`` names the launch; ``size`` is how many ranks it has, ``local`` how many of them are to
    be on this host (0: not known). ``cpu`` and ``cpu_since`` are shares of one core, between the
    looks and since its start; None where they can't be told. ``memory`` is its resident memory in
    bytes, ``running`` the threads of ``threads`` that run. ``call`` is the system call in which it
    waits and ``file`` what that is for; ``place`` is the kernel's function (wchan). ``devices`` are
    the GPUs and HCAs that it holds open. ``stack`` is a Python rank's, in py-spy's words.
    """

    number: int
    host: str
    pid: int
    job: str = ""
    size: int = 0
    local: int = 0
    program: str = ""
    command: str = ""
    activity: Activity = Activity.BUSY
    stage: MpiStage = MpiStage.UNKNOWN
    cpu: float | None = None
    cpu_since: float | None = None
    memory: int = 0
    threads: int = 0
    running: int = 0
    call: str = ""
    file: str = ""
    place: str = ""
    devices: tuple[str, ...] = ()
    unanswered: tuple[SilentConnection, ...] = ()
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkRates:
    """A link or an RDMA port: bytes a second sent and received, None where that can't be told."""

    name: str
    sent: float | None = None
    received: float | None = None
    state: str = ""


@dataclass(frozen=True, slots=True)
class HostRanks:
    """The ranks of a host, its links, and what could not be read there.

    ``addresses`` are its own as far as they are known; ``seconds`` lay between the two
    looks; ``closed`` names what this user may not read, ``others`` counts processes of other users.
    """

    host: str
    ranks: tuple[Rank, ...] = ()
    links: tuple[LinkRates, ...] = ()
    seconds: float = 0.0
    closed: frozenset[str] = frozenset()
    others: int = 0
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a host: seconds of its clock, /proc/PID/stat by pid, bytes by link and port."""

    uptime: float = 0.0
    stats: Mapping[int, str] = field(default_factory=dict)
    moved: Mapping[str, tuple[int, int]] = field(default_factory=dict)
