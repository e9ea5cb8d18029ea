"""What workers answered after a job: why it failed, and what carried its data. Pure.

That a port moved nothing is proof; that it moved much is none where other pods use it too. What
can't be read, was reset or is at its largest value is unknown, and reported as that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from mpiboot.core.facts import HostAnswer
from mpiboot.core.wording import counted, first_few, grouped, size_of
from mpiboot.network.records import BYTES, ERRORS, TRAFFIC, CountedPort, Counters
from mpiboot.supervisor.job import HostFacts

if TYPE_CHECKING:
    from mpiboot.core.facts import Worker
    from mpiboot.network.records import WorkerNetwork


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
    hostfile has an address, ``address`` what it led to; ``answer`` what the host answered then;
    ``mpiboot`` whether that runs there. ``here`` marks the launcher itself, of which only the
    memory is compared. ``counted`` are the ports and links that show what carried the job's data;
    none where they are not read. ``may_idle`` where it may have got no rank.
    """

    name: str
    dns: str = ""
    address: str = ""
    answer: HostAnswer = HostAnswer()  # noqa: RUF009 - it is frozen
    mpiboot: bool = False
    here: bool = False
    counted: tuple[CountedPort, ...] = ()
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
        answer=worker.answer,
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


def moved(before: HostSnapshot, addresses: tuple[str, ...]) -> str:
    """Describe a name that leads nowhere or elsewhere by its addresses now; empty: it doesn't."""
    if before.address in addresses:
        return ""
    if not addresses:
        # A headless Service drops a pod whose container has ended for good, too.
        return "its name no longer resolves: its container ended, or its pod is gone"
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
    then, now = before.answer.oom_kills, answer.oom_kills
    if then is None or now is None or now <= then:
        return ""
    count = now - then
    what = "a process" if count == 1 else f"{count} processes"
    return f"out of memory: the kernel killed {what} of this pod since the hosts were checked"


# A worker that sent less beside the planned ports proves no fallback: name services, logs, the
# bootstrap of NCCL and MPI, a hello world.
_FALLBACK_BYTES: Final = 64 << 20
# Links that sent less are not shown, but for the control link's place in the line.
_SHOWN_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PortTraffic:
    """What went through one port of a host; None is unknown, and ``why`` the reason."""

    host: str
    port: CountedPort
    sent: int | None = None
    received: int | None = None
    unit: str = BYTES
    why: str = ""

    @property
    def total(self) -> int | None:
        """Both directions together."""
        return None if self.sent is None else self.sent + (self.received or 0)


def traffic(snapshot: HostSnapshot, port: CountedPort, now: Counters | None) -> PortTraffic:
    """Compare a port's counters before and after a job; none: the host gave none."""
    host, before = snapshot.name, snapshot.answer.counters.get(port.name, {})
    if not now:
        return PortTraffic(host, port, why="it gave no counters")
    after = now.get(port.name, {})
    both = before.keys() & after.keys()
    row = next((row for row in TRAFFIC if both & {*row.sent} and both & {*row.received}), None)
    if row is None:
        # Without a network namespace of its own for RDMA (netns mode "shared") the kernel shows a
        # pod's devices without these files: is_full_dev in its infiniband/core/sysfs.c.
        return PortTraffic(host, port, why="this pod can't read its counters")
    sums = []
    for names in (row.sent, row.received):
        pairs = [(before[name], after[name]) for name in names if name in both]
        largest = any(last == row.most > 0 for _, last in pairs)
        if largest or any(last < first for first, last in pairs):
            why = "is at its largest value" if largest else "was reset or wrapped meanwhile"
            return PortTraffic(host, port, unit=row.unit, why=f"a counter {why}")
        sums.append(sum(now - then for then, now in pairs) * row.scale)
    return PortTraffic(host, port, sums[0], sums[1], row.unit)


@dataclass(frozen=True, slots=True)
class HostTraffic:
    """What went through the ports of one host.

    ``may_idle`` where it may have had no rank, ``alone`` where it may have had all of them.
    """

    host: str
    ports: Sequence[PortTraffic]
    may_idle: bool
    alone: bool

    @property
    def data(self) -> tuple[PortTraffic, ...]:
        """The ports that were planned for the data."""
        return tuple(item for item in self.ports if item.port.data)

    @property
    def used(self) -> bool:
        """Whether data went as planned."""
        return any((item.total or 0) > item.port.idle for item in self.data)

    @property
    def past(self) -> str:
        """By what ranks may have talked past the ports; empty where by nothing."""
        if any(item.port.nvlink for item in self.data):
            return "NVLink may have carried its data to other hosts (IMEX)"
        return "all ranks may have been there" if self.alone else ""

    def unused(self, *, strict: bool) -> bool:
        """Whether nothing went as planned; with ``strict`` even where little was sent at all."""
        totals = [item.total for item in self.data]
        if self.used or self.past or not totals or None in totals:
            return False
        # What other pods may have sent is evidence, and no proof.
        others = [item for item in self.ports if not item.port.data]
        sent = sum(item.sent or 0 for item in others if not (strict and item.port.shared))
        return sent >= _FALLBACK_BYTES or (strict and not self.may_idle and not any(totals))


def judge_transport(
    hosts: Sequence[HostSnapshot], after: Mapping[str, Counters], *, strict: bool
) -> dict[str, Any]:
    """Judge what carried the data of a job.

    Args:
        hosts: what the gate saw of those whose ports are counted.
        after: the counters at the end, of the hosts that answered.
        strict: whether a worker that sent little at all counts as well.

    Returns:
        What the job's record has: ``verdict`` is whether the data went as planned: ``ok``,
        ``unused``, ``unknown``; ``message`` is its sentence; ``lines`` are for the log alone;
        ``hosts`` has each port's traffic by host and name, and ``moved`` the sums of error
        counters.
    """
    found = []
    busy = [host.name for host in hosts if not host.may_idle]
    for host in hosts:
        ports = [traffic(host, port, after.get(host.name)) for port in host.counted]
        found.append(HostTraffic(host.name, ports, host.may_idle, busy == [host.name]))
    kind = "RDMA" if any(item.port.rdma for host in found for item in host.data) else "TCP"
    grown = {host.name: _grown(host, after.get(host.name, {})) for host in hosts}
    totals = sum(grown.values(), Counter[str]())
    lines = (f"data: {'; '.join(_amounts(found, kind))}", *_explained(grown, totals))
    if unused := [host for host in found if host.unused(strict=strict)]:
        verdict, message = "unused", _why_unused(unused, len(found), kind)
    elif all(host.used for host in found):
        verdict, message = "ok", lines[0]
    else:
        verdict, message = "unknown", _why_unknown(found)
    record = {host.host: {item.port.name: _as_json(item) for item in host.ports} for host in found}
    moved = {name: totals[name] for name in ERRORS if totals[name]}
    return {"verdict": verdict, "message": message, "lines": lines, "hosts": record, "moved": moved}


def _as_json(item: PortTraffic) -> dict[str, Any]:
    port = item.port
    record = {name: getattr(port, name) for name in ("link", "rdma", "data", "shared", "rate")}
    return {**record, "sent": item.sent, "received": item.received, "unit": item.unit}


def _label(ports: Iterable[CountedPort]) -> str:
    """Name ports as people do: a device by its name where that has one port, and its link."""
    listed = list(dict.fromkeys(ports))
    names = first_few(dict.fromkeys(item.name.removesuffix(":1") for item in listed))
    links = {item.link for item in listed if item.link}
    return f"{names} on {links.pop()}" if len(links) == 1 and listed[0].rdma else names


def _amounts(hosts: Sequence[HostTraffic], kind: str) -> Iterable[str]:
    """Give what the planned ports sent, all rails together, and then the other links."""
    planned = [item for host in hosts for item in host.data]
    name = _label(item.port for item in planned)
    known = [item for item in planned if item.sent is not None]
    if known:
        shared = "; at most, other pods may use it too" * any(x.port.shared for x in planned)
        yield f"{name} sent {_sent(known)} ({kind}{shared})"
    for why, names in grouped((item.why, item.host) for item in planned if item.why).items():
        yield f"{name}: unknown on {first_few(dict.fromkeys(names))}: {why}"
    rails = grouped((item.port.link or item.port.name, item.total) for item in planned)
    unmoved = [rail for rail, totals in rails.items() if not any(totals) and None not in totals]
    if 0 < len(unmoved) < len(rails):
        yield f"nothing by {first_few(unmoved)}"
    for link, text in _others(hosts).items():
        yield f"{link} {text}"


def _sent(ports: Sequence[PortTraffic]) -> str:
    """Give the median over workers."""
    sums = grouped((item.host, item.sent or 0) for item in ports).values()
    number, unit = round(median(map(sum, sums))), ports[0].unit
    return f"{size_of(number) if unit == BYTES else f'{number:,} {unit}'} per worker"


def _others(hosts: Iterable[HostTraffic]) -> dict[str, str]:
    """Give what went by other links: those that sent much somewhere, or the only one."""
    others = [item for host in hosts for item in host.ports if not item.port.data]
    shared = {item.port.name for item in others if item.port.shared}
    sent = grouped((item.port.name, item.sent) for item in others if item.sent is not None)
    return {
        name: f"{'at most ' if name in shared else ''}{size_of(round(median(listed)))}"
        for name, listed in sent.items()
        if max(listed) >= _SHOWN_BYTES or len(sent) == 1
    }


def _why_unused(unused: Sequence[HostTraffic], count: int, kind: str) -> str:
    names = [host.host for host in unused]
    data = [item for host in unused for item in host.data]
    units = {item.unit.removesuffix("s") for item in data}
    nothing = f"no {units.pop()}" if not any(item.total for item in data) else "hardly anything"
    where = f"{len(names)} of {counted(count, 'worker')} ({first_few(names)})"
    others = ", ".join(f"{name} sent {text}" for name, text in _others(unused).items())
    text = f"{kind} was planned, but {nothing} went through {_label(item.port for item in data)}"
    return f"{text} on {where}" + (f"; {others}" if others else "")


def _why_unknown(hosts: Sequence[HostTraffic]) -> str:
    def why(host: HostTraffic) -> str:
        few = host.past or "too little was sent to judge"
        few = few if host.data else "no planned port is known there"
        return next((item.why for item in host.data if item.why), few)

    reasons = grouped((why(host), host.host) for host in hosts if not host.used)
    return "; ".join(f"{first_few(names)}: {why}" for why, names in reasons.items())


def _grown(host: HostSnapshot, now: Counters) -> Counter[str]:
    """Count by how much the counters of a host's RDMA ports grew; none shrinks."""
    grown = Counter[str]()
    for port in host.counted:
        if port.rdma and (before := host.answer.counters.get(port.name)):
            # Of a difference what is above 0 counts.
            grown += Counter(now.get(port.name, {})) - Counter(before)
    return grown


def _explained(grown: Mapping[str, Counter[str]], totals: Counter[str]) -> Iterable[str]:
    """Write a line for each error counter that moved."""
    for name, meaning in ERRORS.items():
        if totals[name]:
            most = max(grown, key=lambda host: grown[host][name])
            yield f"data: {name} {totals[name]:,}, most on {most}: {meaning}"
