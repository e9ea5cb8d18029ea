"""What is decided of one worker's networks: the records, and the settings that are read. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from mpiboot.data_network import rails
from mpiboot.data_network.rails import Rail
from mpiboot.fabric import Fabric
from mpiboot.model import Decision, Link, PodFacts, Source


@dataclass(frozen=True, slots=True)
class DataSettings:
    """The settings that this decision reads; values as the table of settings resolves them.

    ``rdma_device`` holds ``NAME`` or ``NAME:PORT``; ``nccl_version`` is empty where not known.
    """

    data_network: str = "prefer"
    data_ifname: tuple[str, ...] = ()
    rdma_device: tuple[str, ...] = ()
    nccl_socket: str = "auto"
    mpi_network: str = "control"
    nccl_version: str = ""
    control_ifname: str = ""


class Kind(str, Enum):
    """What a worker's data network is made of."""

    ROCE = "RoCE"
    INFINIBAND = "InfiniBand"
    EFA = "EFA"
    TCP = "TCP"
    NONE = "none"
    UNKNOWN = "unknown"


RDMA: Final = (Kind.ROCE, Kind.INFINIBAND, Kind.EFA)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong on one worker; ``check`` is a row's reference, the level is decided later.

    ``always`` makes it a failure whatever is preferred: the user named what isn't there.
    """

    check: str
    said: str
    hint: str | None = None
    always: bool = False


@dataclass(frozen=True, slots=True)
class WorkerNetwork:
    """One worker's networks.

    ``data`` are the links of the data network in order; ``rails`` its RDMA ports; ``plain`` those
    of ``data`` that TCP can use. ``pending`` says what may still come: a port, an address.
    """

    host: str
    facts: PodFacts | None
    slots: int
    control: Link | None
    kind: Kind
    data: tuple[Link, ...] = ()
    rails: tuple[Rail, ...] = ()
    host_network: bool = False
    decisions: tuple[Decision, ...] = ()
    problems: tuple[Problem, ...] = ()
    pending: tuple[str, ...] = ()

    @property
    def plain(self) -> tuple[Link, ...]:
        """The data links that have an address and run."""
        return tuple(link for link in self.data if running(link) and rails.interfaces(link))


@dataclass(frozen=True, slots=True)
class Seen:
    """A worker under decision: what the rules look at, and what they have found so far."""

    facts: PodFacts
    settings: DataSettings
    control: Link | None
    host_network: bool
    problems: list[Problem]
    decisions: list[Decision]

    @property
    def fabric(self) -> Fabric:
        """What the pod sees of the data network."""
        return self.facts.fabric

    def decide(self, name: str, value: str, source: Source, because: str) -> None:
        """Note a decision."""
        self.decisions.append(Decision(name, value, source, because))

    def problem(
        self, check: str, said: str, hint: str | None = None, *, always: bool = False
    ) -> None:
        """Note a problem."""
        self.problems.append(Problem(check, said, hint, always))


def running(link: Link) -> bool:
    """Whether a link is up and has a carrier."""
    return link.up and link.carrier


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Order names as people do: net2 before net10."""
    return tuple(
        (int(part), "") if part.isdigit() and part.isascii() else (-1, part)
        for part in re.split(r"([0-9]+)", name)
    )
