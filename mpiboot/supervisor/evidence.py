"""Why a job failed: what workers answered afterwards, beside what the gate saw. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mpiboot.core.wording import size_of
from mpiboot.network.counters import CountedPort
from mpiboot.supervisor.state import HostFacts

if TYPE_CHECKING:
    from mpiboot.core.facts import Worker
    from mpiboot.hosts.host_shell import HostAnswer
    from mpiboot.network.records import WorkerNetwork


_UNLIMITED: Final = 1 << 60  # cgroup v1 writes "no limit" as a number near 2^63

_WAYS: Final = {
    "file": "the program {} does not exist",
    "right": "the program {} exists, but is not a file that this user may execute",
    "name": "the program {} is not on PATH",
    "folder": "{}, where ranks are to start, is not there, or this user may not enter it",
}


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """What the gate saw of a host, to compare with.

    ``name`` is what the launch agent is called with; ``dns`` the name to resolve, empty where the
    hostfile has an address,
    ``address`` what it led to; ``oom_kills`` the count of out-of-memory kills, None where unknown;
    ``mpiboot`` whether that runs there. ``here`` marks the launcher itself, of which only the
    memory is compared. ``counted`` are the
    ports and links that show what carried the job's data, with their ``counters``; none where
    they are not read. ``may_idle`` where it may have got no rank.
    """

    name: str
    dns: str = ""
    address: str = ""
    oom_kills: int | None = None
    mpiboot: bool = False
    here: bool = False
    counted: tuple[CountedPort, ...] = ()
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    may_idle: bool = False

    @property
    def reached_as(self) -> str:
        """The name by which the pool reaches it; empty for this pod."""
        return "" if self.here else self.name


def snapshot(worker: Worker, name: str) -> HostSnapshot:
    """Note what is compared with after a failure.

    Args:
        worker: a host as the gate saw it.
        name: the name that mpirun and the launch agent have for it.
    """
    return HostSnapshot(
        name=name,
        dns=worker.dns_name,
        address=worker.address,
        oom_kills=worker.oom_kills,
        mpiboot=worker.runs_mpiboot,
    )


# Subnet managers, ARP and the like; the workers that dial each other before the job.
_IDLE: Final = 1 << 20  # bytes


def counted_ports(
    network: WorkerNetwork, *, rdma: bool, any_device: bool = False
) -> tuple[CountedPort, ...]:
    """List the ports and links of a host whose counters show what carried the data.

    Args:
        network: the host's networks.
        rdma: whether RDMA was planned, and not TCP on the data links.
        any_device: whether the user names devices: then each that the pod can use may carry it.
    """
    if network.facts is None:
        return ()
    fabric = network.facts.fabric
    rails = {rail.name: (rail.device, rail.port, rail.link) for rail in network.rails}
    if any_device:
        links = {link.name: link for link in network.facts.links}
        for device in fabric.devices:
            for port in device.ports if device.usable else ():
                name = f"{device.name}:{port.number}"
                rails.setdefault(name, (device, port, links.get(port.netdev)))

    found = []
    for name, (device, port, link) in rails.items() if rdma else ():
        # A port whose link is in this pod is its own, and so is EFA's; others may be shared.
        own = not device.pci or device.efa or port.netdev or device.pci in fabric.functions
        found.append(
            CountedPort(
                *(name, link.name if link else ""),
                data=True,
                rdma=True,
                rate=port.rate * 1e9,
                shared=network.host_network or not own,
                idle=_IDLE if port.link_layer.value == "InfiniBand" else 0,
                nvlink=network.facts.gpus.imex,
            )
        )
    found += [
        CountedPort(
            *(link.name, link.name),
            data=not rdma and link in network.data,
            rdma=False,
            shared=network.host_network,
            idle=_IDLE,
        )
        for link in filter(None, dict.fromkeys((network.control, *network.data)))
    ]
    return tuple(found)


def moved(before: HostSnapshot, addresses: tuple[str, ...] | None) -> str:
    """Describe a name that leads nowhere or elsewhere; empty where it doesn't, or is unknown.

    Args:
        before: what the gate saw.
        addresses: the name's addresses now; None where unknown.
    """
    if addresses is None or before.address in addresses:
        return ""
    if not addresses:
        # A headless Service drops a pod whose container has ended for good, too.
        return "its name does not resolve any more: its container ended, or its pod is gone"
    now = f"its name now has the address {addresses[0]}, not {before.address}"
    return f"{now}: the pod was replaced"


def facts_of(before: HostSnapshot, answer: HostAnswer) -> HostFacts:
    """Compare what a host answered with what the gate saw."""
    memory = _killed(before, answer)
    lacking = next(
        (_WAYS[way].format(program) for way, program in answer.lacks if way in _WAYS), ""
    )
    return HostFacts(before.name, True, here=before.here, memory=memory, lacks=lacking)


def _killed(before: HostSnapshot, answer: HostAnswer) -> str:
    """Describe memory kills since the gate; empty where none or unknown."""
    if before.oom_kills is None or answer.oom_kills is None or answer.oom_kills <= before.oom_kills:
        return ""
    count = answer.oom_kills - before.oom_kills
    what = "a process" if count == 1 else f"{count} processes"
    sizes = []
    if answer.limit is not None and answer.limit < _UNLIMITED:
        sizes.append(f"limit {size_of(answer.limit)}")
    if answer.peak is not None:
        sizes.append(f"peak {size_of(answer.peak)}")
    shown = f" ({', '.join(sizes)})" if sizes else ""
    return (
        f"out of memory: the kernel killed {what} of this pod{shown} since the hosts were checked"
    )
