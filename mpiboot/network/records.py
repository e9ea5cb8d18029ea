"""Records of the data network: a worker's links, ports and entries, and what its ports count. Pure.

The counters' names are those of the drivers' tables in the kernel (``counters`` and ``hw_counters``
of a port in sysfs); ``worker/answer.py`` reads them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from mpiboot.core import addresses
from mpiboot.core.addresses import Interface
from mpiboot.core.facts import (
    Gid,
    Link,
    LinkLayer,
    NoFacts,
    PodFacts,
    PortState,
    RdmaDevice,
    RdmaPort,
)
from mpiboot.core.model import Decision, Source

PCI_FUNCTION: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
PKEY: Final = re.compile(r"0x[0-9a-f]{1,4}")


def usable(link: Link) -> tuple[Interface, ...]:
    """Give the addresses that a peer can use: no loopback and no link-local ones."""
    unusable = {*link.tentative, *link.duplicate}
    return routable(tuple(item for item in link.addresses if item not in unusable))


class Owned(NamedTuple):
    """A value of the user's, None where only its name is known; and by what it is set."""

    value: str | None
    source: Source
    by: str


def owned_in_pod(facts: PodFacts | None) -> dict[str, Owned]:
    """Give the variables that a pod sets for its ranks, in its environment or NCCL's files."""
    if facts is None:
        return {}
    files, values = facts.fabric.nccl_files, dict(facts.fabric.settings)
    found = {item.variable: Owned(item.value, Source.ENVIRONMENT, item.path) for item in files}
    for name in facts.environment:
        found[name] = Owned(values.get(name), Source.ENVIRONMENT, "the worker's pod")
    return found


def has_carrier(link: Link) -> bool:
    """Whether a link is up and its other end is there."""
    return link.up and link.carrier


def carries_tcp(link: Link) -> bool:
    """Whether a link has an address and a carrier."""
    return has_carrier(link) and bool(usable(link))


@functools.lru_cache(maxsize=1 << 16)  # every rule calls this for every worker's links
def routable(texts: tuple[str, ...]) -> tuple[Interface, ...]:
    """Give those of addresses that lead to other hosts."""
    found = map(addresses.interface, texts)
    return tuple(
        item
        for item in found
        if item and not (item.is_loopback or item.is_link_local or item.is_unspecified)
    )


class Transport(str, Enum):
    """What carries the data of a worker, or of the job."""

    ROCE = "RoCE"
    INFINIBAND = "InfiniBand"
    EFA = "EFA"
    TCP = "TCP"
    NONE = "none"
    UNKNOWN = "unknown"


RDMA: Final = (Transport.ROCE, Transport.INFINIBAND, Transport.EFA)


class RdmaState(str, Enum):
    """Whether a worker has RDMA that is its own; unknown sets nothing and rules nothing out."""

    KNOWN = "known"
    NONE = "none"
    UNKNOWN = "unknown"


class Problem(NamedTuple):
    """Something wrong on one worker; ``check`` is a row's reference, the level is decided later.

    ``always`` makes it a failure whatever is preferred: the user named what isn't there.
    """

    check: str
    message: str
    hint: str | None = None
    always: bool = False


def port_name(device: RdmaDevice, port: RdmaPort) -> str:
    """Write a port as NCCL and UCX do, such as ``mlx5_3:1``."""
    return f"{device.name}:{port.number}"


def ports(devices: Iterable[RdmaDevice]) -> tuple[tuple[RdmaDevice, RdmaPort], ...]:
    """List all ports with their devices, without EFA's."""
    return tuple((device, port) for device in devices if not device.efa for port in device.ports)


class Rail(NamedTuple):
    """A port of an RDMA device that is this pod's, the link above it if there is one, and why."""

    device: RdmaDevice
    port: RdmaPort
    link: Link | None
    reason: str
    source: Source = Source.DETECTED

    @property
    def name(self) -> str:
        """The port as NCCL and UCX write it, such as ``mlx5_3:1``."""
        return port_name(self.device, self.port)

    @property
    def transport(self) -> Transport:
        """What this port can carry."""
        if self.device.efa:
            return Transport.EFA
        infiniband = self.port.link_layer is LinkLayer.INFINIBAND
        return Transport.INFINIBAND if infiniband else Transport.ROCE

    @property
    def ready(self) -> bool:
        """Whether the device can be used and the port is active."""
        return self.device.usable and self.port.state is PortState.ACTIVE


class GidChoice(NamedTuple):
    """What one worker's RoCE ports need.

    ``wanted`` has one entry a rail, None where the table holds none of ours; ``values`` are the
    variables to set, empty where the libraries choose right by themselves. ``used`` names the ports
    that have such an entry, or need none.
    """

    wanted: tuple[Gid | None, ...]
    values: Mapping[str, str]
    reason: str
    problems: tuple[Problem, ...] = ()
    used: tuple[str, ...] = ()


NOT_CHOSEN: Final = GidChoice((), {}, "")


@dataclass(frozen=True, slots=True)
class WorkerNetwork:
    """One worker's networks.

    ``data`` are the links of the data network in order; ``rails`` its RDMA ports; ``plain`` those
    of ``data`` that TCP can use. ``pending`` lists what may still come: a port, an address.
    ``no_facts`` is why ``facts`` are None. ``unseen`` names what could not be seen of RDMA, empty
    where kernel and sysfs show all; ``foreign`` are RoCE ports that open although all of their
    addresses are other pods' or the node's. ``gids`` is decided last, with what the user has set
    for the ranks.
    """

    host: str
    facts: PodFacts | None
    slots: int
    control: Link | None
    transport: Transport
    data: tuple[Link, ...] = ()
    rails: tuple[Rail, ...] = ()
    host_network: bool = False
    decisions: tuple[Decision, ...] = ()
    problems: tuple[Problem, ...] = ()
    pending: tuple[str, ...] = ()
    unseen: str = ""
    foreign: tuple[str, ...] = ()
    gids: GidChoice = NOT_CHOSEN
    no_facts: NoFacts = NoFacts.NO_MPIBOOT

    @property
    def plain(self) -> tuple[Link, ...]:
        """The data links that have an address and a carrier."""
        return tuple(filter(carries_tcp, self.data))

    @property
    def rdma(self) -> RdmaState:
        """Whether a port of its own can carry data, there is none, or that could not be seen."""
        if self.usable:
            return RdmaState.KNOWN
        return RdmaState.UNKNOWN if self.facts is None or self.unseen else RdmaState.NONE

    @property
    def only_own_ports(self) -> bool:
        """Whether NCCL finds no other ports than those that it is to use."""
        others = {
            port_name(device, port)
            for device, port in ports(self.facts.fabric.devices if self.facts else ())
            if device.opens and port.state is PortState.ACTIVE
        }
        named = any(rail.source is Source.ENVIRONMENT for rail in self.rails)
        return not named and others <= set(self.gids.used)

    @property
    def usable(self) -> bool:
        """Whether at least one port can carry data: open, active and, for RoCE, with an entry.

        With another pod's or the node's entry the data would leave under their address: a port
        for which NCCL can't be told the right one is not used.
        """
        roce = self.transport is Transport.ROCE
        return any(
            rail.ready or (self.transport is Transport.EFA and rail.device.usable)
            for rail, gid in zip(self.rails, self.gids.wanted, strict=True)
            if gid is not None or not roce
        )


def natural_order(name: str) -> tuple[tuple[int, str], ...]:
    """Order names as people do: net2 before net10."""
    return tuple(
        (int(part), "") if part.isdigit() and part.isascii() else (-1, part)
        for part in re.split(r"([0-9]+)", name)
    )


# By port (mlx5_1:1) or link (eth0), and by name.
Counters: TypeAlias = "Mapping[str, Mapping[str, int]]"

BYTES: Final = "bytes"


class Traffic(NamedTuple):
    """Counters of what went through a port: their names, and what one of them is worth.

    ``most`` is where a counter stays instead of beginning anew; 0 where it never gets there.
    """

    sent: tuple[str, ...]
    received: tuple[str, ...]
    unit: str = BYTES
    scale: int = 1
    most: int = 0


# The first row whose counters a port has is the one that counts.
TRAFFIC: Final = (
    # InfiniBand's PortCounters, in words of four bytes (Documentation/ABI/stable/
    # sysfs-class-infiniband). A port without the extended ones has 32 bits, which saturate.
    Traffic(("port_xmit_data",), ("port_rcv_data",), scale=4, most=(1 << 32) - 1),
    Traffic(("tx_bytes",), ("rx_bytes",)),  # efa, bnxt_re, and each link
    Traffic(("ip4OutOctets", "ip6OutOctets"), ("ip4InOctets", "ip6InOctets")),  # irdma
    Traffic(("sent_pkts",), ("rcvd_pkts",), "packets"),  # rxe
)


@dataclass(frozen=True, slots=True)
class CountedPort:
    """A port or link whose counters are compared before and after a job.

    ``name`` is mlx5_1:1 or eth0, ``link`` the one above a port; ``data`` where the job's data was
    planned to go; ``rate`` in bits per second, 0 where not known; ``shared`` where it counts other
    pods' traffic too; ``idle`` are bytes that it may move while no job uses it; ``nvlink`` where
    GPUs may reach other hosts without it, by NVLink.
    """

    name: str
    link: str
    data: bool
    rdma: bool
    rate: float = 0.0
    shared: bool = False
    idle: int = 0
    nvlink: bool = False


# Counters that explain a slow or failed job, and what they mean; a healthy network counts none.
# mlx5's (drivers/infiniband/hw/mlx5/counters.c), and two of InfiniBand's PortCounters.
ERRORS: Final = {
    "out_of_sequence": "packets to it were lost on the way (PFC or ECN of switches and node, MTU)",
    "packet_seq_err": "packets that it sent were lost on the way",
    "local_ack_timeout_err": "the far end did not answer in time: lost packets, or a dead path",
    "rnr_nak_retry_err": "a rank at the far end was slow to take what came",
    "port_xmit_discards": "the port dropped packets: a full queue, or a link that was down",
    "symbol_error": "the cable, its transceiver or the switch port",
}
# What is read of a port.
COUNTERS: Final = (*(name for row in TRAFFIC for name in (*row.sent, *row.received)), *ERRORS)
