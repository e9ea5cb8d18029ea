"""What RDMA ports and links count: under which names, in what unit, and what it means. Pure.

The names are those of the drivers' tables of counters in the kernel (``counters`` and
``hw_counters`` of a port in sysfs); ``counters`` of ``libexec/environs`` prints them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

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
_TRAFFIC: Final = tuple(name for row in TRAFFIC for name in (*row.sent, *row.received))
# For a host's shell: the function of libexec/environs with its words.
QUESTION: Final = f"counters {' '.join((*_TRAFFIC, *ERRORS))}"

_OF_PORT: Final = re.compile(
    r"/sys/class/infiniband/([^/]+)/ports/(\d+)/(?:hw_)?counters/(\w+):(\d{1,20})", re.ASCII
)
# /proc/net/dev: eight columns of what was received, then those of what was sent.
_OF_LINK: Final = re.compile(
    r"/proc/net/dev:\s*(\S+):\s*(\d{1,20})(?:\s+\d+){7}\s+(\d{1,20})\s", re.ASCII
)


def read(lines: Iterable[str]) -> dict[str, dict[str, int]]:
    """Read what the shell function prints; other lines are passed over."""
    found: dict[str, dict[str, int]] = {}
    for line in lines:
        if port := _OF_PORT.fullmatch(line):
            found.setdefault(f"{port[1]}:{port[2]}", {})[port[3]] = int(port[4])
        elif link := _OF_LINK.match(line):
            found[link[1]] = {"rx_bytes": int(link[2]), "tx_bytes": int(link[3])}
    return found
