"""Schedules measurements between pairs of hosts, and finds slow hosts, pairs and rails. Pure.

In a round every host has one partner (the circle method of a round-robin tournament): all are busy,
and no host is in two measurements at once. The first of a pair sends, then the second.

Pods of a node share its port, and nodes of a rack its uplinks, so a low rate in a full round proves
nothing. Slow flows are measured again with nothing else running; a host or pair is reported only if
it is slow both times. Paths within a node are shown, but judged only if all hosts are on one node.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, zip_longest
from statistics import median, median_high
from typing import Final, NamedTuple

from mpiboot.core.addresses import short_names
from mpiboot.core.facts import Worker
from mpiboot.core.model import Finding, Level
from mpiboot.core.wording import MAX_LINES, counted, first_few, grouped
from mpiboot.job import render
from mpiboot.network.records import Transport, WorkerNetwork, usable
from mpiboot.network.worker_network import link_of
from mpiboot.validate.nccl_tests import NUMBER

# Version of the JSON record: raised when a field changes its meaning.
JSON_VERSION: Final = 2
# Slow is below this fraction of the median, or of the port's rate.
FRACTION: Final = 0.8
# Up to this many hosts a slow one looks like its peers: only the port's rate counts.
_FEW_HOSTS: Final = 3
# How many flows of a slow host or rail are measured again alone.
_REPEATED_FLOWS: Final = 3
# If a pair's measurements differ by more than this fraction, its limit is multiplied by _RELAX.
_SPREAD: Final = 0.2
_RELAX: Final = 0.75


class PairTool(NamedTuple):
    """A tool that measures the path between two hosts, in Gb/s.

    ``server`` and ``client`` are command templates; ``column`` is the bandwidth's index in the last
    line of numbers that the client prints. A measurement takes at least ``min_s`` seconds, and
    about as long to start.
    """

    name: str
    title: str
    server: str
    client: str
    column: int
    min_s: float

    def bandwidth(self, lines: Sequence[str]) -> float | None:
        """Parse the bandwidth from a client's output; None if there is none."""
        for line in reversed(lines):
            words = line.split()
            if len(words) > self.column and all(map(NUMBER.fullmatch, words)):
                return float(words[self.column])
        return None


# worker/probe.py
_SEND: Final = "send {port} {seconds:g} {args} {peer}"
TCP: Final = PairTool("tcp", "mpiboot's TCP stream", "receive {port} {args}", _SEND, 0, 0.3)
# Messages of 64 KiB fill any link. Output columns: #bytes, #iterations, peak, average.
_WRITE: Final = "ib_write_bw {args} -p {port} -F -s 65536 -D {seconds:.0f} --report_gbits"
IB_WRITE_BW: Final = PairTool("ib_write_bw", "RDMA writes", _WRITE, f"{_WRITE} {{peer}}", 3, 1.0)
TOOLS: Final = {row.name: row for row in (IB_WRITE_BW, TCP)}
_ERROR: Final = re.compile(r"fail|could|cannot|can't|unable|error|mismatch", re.IGNORECASE)


def error_line(lines: Iterable[str]) -> str:
    """Return a program's error message, else its last line."""
    listed = [line.strip() for line in lines if line.strip()]
    return next(filter(_ERROR.search, listed), listed[-1] if listed else "no output")


class End(NamedTuple):
    """A host's end of a rail or link.

    ``args`` are the tool's arguments for it, ``address`` is the address that clients connect to,
    and ``limit`` is the port's rate in Gb/s (0: unknown).
    """

    name: str
    args: str
    address: str
    limit: float = 0.0


def rail_ends(worker: Worker, network: WorkerNetwork) -> tuple[End | None, ...]:
    """List a worker's rails with the planned GID index; None for those perftest can't use."""
    return tuple(
        End(
            rail.name,
            f"-d {rail.device.name} -i {rail.port.number}" + (f" -x {gid.index}" if gid else ""),
            worker.address,
            rail.port.rate,
        )
        if rail.ready and not rail.device.efa and (gid or rail.transport is Transport.INFINIBAND)
        else None
        for rail, gid in zip_longest(network.rails, network.gids.wanted)
    )


def common_rails(
    workers: Mapping[str, Worker], networks: Mapping[str, WorkerNetwork]
) -> tuple[dict[str, tuple[End, ...]], list[str]]:
    """Return the ends of the rails that all hosts can use, by host, and the hosts without one."""
    ends = {host: rail_ends(workers[host], network) for host, network in networks.items()}
    common = [all(rail) for rail in zip(*ends.values(), strict=False)]
    found = {host: tuple(filter(None, compress(rails, common))) for host, rails in ends.items()}
    without = [host for host, rails in ends.items() if not any(rails)]
    return found, without or ([] if any(common) else [*ends])


def link_ends(
    workers: Mapping[str, Worker], networks: Mapping[str, WorkerNetwork]
) -> dict[str, tuple[End, ...]]:
    """Return the ends of the hosts' data links; of control links if a host has only one link."""
    found = {}
    for host, network in networks.items():
        worker = workers[host]
        if control := link_of(worker.address, worker.facts.links if worker.facts else ()):
            data = [(link.name, str(usable(link)[0].ip)) for link in network.plain]
            links = ((control.name, worker.address), *data)
            found[host] = tuple(End(name, address, address) for name, address in links)
    measured = slice(1, None) if all(len(ends) > 1 for ends in found.values()) else slice(1)
    return {host: ends[measured] for host, ends in found.items()}


class Flow(NamedTuple):
    """One direction of a pair of hosts on one rail (its index in ``Measured.rails``)."""

    rail: int
    source: str
    target: str

    @property
    def ends(self) -> tuple[tuple[str, str], ...]:
        """Both hosts, each with its direction."""
        return (self.source, "sends"), (self.target, "receives")


def rounds(hosts: Sequence[str]) -> Iterator[tuple[tuple[str, str], ...]]:
    """Yield rounds of (source, target) pairs; together all pairs in both directions, each once.

    The order is random with a fixed seed, so that the first rounds are a sample of all pairs.
    """
    seats: list[str] = [*hosts, *([""] if len(hosts) % 2 else [])]
    *circle, fixed = seats or [""]
    count = len(circle)
    for at in random.Random(0).sample(range(count), count):  # noqa: S311 - no secret
        pairs = ((circle[at + gap - count], circle[at - gap]) for gap in range(1, count // 2 + 1))
        flows = tuple(pair for pair in ((circle[at], fixed), *pairs) if all(pair))
        yield flows
        yield tuple((target, source) for source, target in flows)


@dataclass(slots=True, eq=False)
class Measured:
    """The results so far, in Gb/s.

    ``rails`` are the names of rails or links, ``limits`` their ports' rates (0: unknown). ``nodes``
    has the known boot IDs of the hosts' kernels. ``values`` are from full rounds, ``alone`` from
    measurements with nothing else running; ``failed`` has the error of a flow. ``left_out`` are
    hosts that could not be measured.
    """

    tool: PairTool
    hosts: tuple[str, ...] = ()
    rails: tuple[str, ...] = ()
    limits: tuple[float, ...] = ()
    left_out: tuple[str, ...] = ()
    nodes: dict[str, str] = field(default_factory=dict)
    values: dict[Flow, list[float]] = field(default_factory=dict)
    alone: dict[Flow, list[float]] = field(default_factory=dict)
    failed: dict[Flow, str] = field(default_factory=dict)

    def select(self, ends: Mapping[str, Sequence[End]], workers: Mapping[str, Worker]) -> None:
        """Set the hosts that are measured, the rails, and what each of these carries."""
        self.hosts = tuple(ends)
        facts = {name: one.facts for name, one in workers.items()}
        self.nodes = {name: one.node for name, one in facts.items() if one and one.node}
        self.left_out = tuple(name for name in workers if name not in ends)
        rails = list(zip(*ends.values(), strict=False))
        self.rails = tuple(first_few(dict.fromkeys(end.name for end in of), 2) for of in rails)
        self.limits = tuple(min(end.limit for end in of) for of in rails)

    def between_nodes(self, rail: int) -> dict[Flow, float]:
        """Best value of each flow between nodes; of all flows if there is only one node."""
        best = {flow: max(values) for flow, values in self.values.items() if flow.rail == rail}
        node = {host: self.nodes.get(host, host) for host in self.hosts}
        across = {
            flow: value for flow, value in best.items() if node[flow.source] != node[flow.target]
        }
        return across or best


class Suspect(NamedTuple):
    """A host, pair or rail that was slow in the rounds, and its flows to measure again alone.

    ``message`` has ``{}`` for the speed; ``speed`` and ``limit`` are in Gb/s.
    """

    check: str
    hosts: tuple[str, ...]
    message: str
    speed: float
    limit: float
    flows: tuple[Flow, ...]

    def speed_alone(self, seen: Measured) -> float | None:
        """Its speed with nothing else running; None if that is fast enough or unknown."""
        alone = [max(seen.alone[flow]) for flow in self.flows if flow in seen.alone]
        if len(alone) < min(2, len(self.flows)):
            return None
        every, limit = [*alone, self.speed], self.limit
        if self.check == "slow-pair" and min(every) < (1 - _SPREAD) * max(every):
            limit *= _RELAX
        return median(alone) if median(alone) < limit else None


def suspects(seen: Measured, fraction: float) -> list[Suspect]:
    """Find what is below ``fraction`` of the median, or of the port's rate; slowest first."""
    found: list[Suspect] = []
    for rail, name in enumerate(seen.rails):
        best = seen.between_nodes(rail)
        if best and len(seen.hosts) > _FEW_HOSTS:
            found += _outliers(best, name, fraction)
        if best:
            found += _below_rate(seen, rail, best, fraction)
    slow = [one for one in found if one.speed < one.limit]
    return sorted(slow, key=lambda one: one.speed / one.limit)


def _outliers(best: Mapping[Flow, float], name: str, fraction: float) -> Iterator[Suspect]:
    """Compare hosts by the medians of what they send and receive, and pairs with their hosts."""
    by_end = grouped((end, flow) for flow in best for end in flow.ends)
    medians = {end: median_high(map(best.__getitem__, flows)) for end, flows in by_end.items()}
    usual = median(medians.values())
    typically = f"typically {usual:.3g} Gb/s"
    # With a single peer, host and peer can't be distinguished.
    known = {end: speed for end, speed in medians.items() if len(by_end[end]) > 1}
    for (host, direction), speed in known.items():
        flows = tuple(sorted(by_end[host, direction], key=best.__getitem__)[-_REPEATED_FLOWS:])
        message = f"{direction} {{}} over {name}, {typically}"
        yield Suspect("slow-host", (host,), message, speed, fraction * usual, flows)
    for flow, speed in best.items():
        limit = fraction * min((known[end] for end in flow.ends if end in known), default=usual)
        message = f"{flow.source} to {flow.target} over {name}: {{}}, {typically}"
        yield Suspect("slow-pair", flow[1:], message, speed, limit, (flow,))


def _below_rate(
    seen: Measured, rail: int, best: Mapping[Flow, float], fraction: float
) -> Iterator[Suspect]:
    """Compare a rail with its port's rate: as a whole, or each pair if there are few hosts."""
    name, limit = seen.rails[rail], fraction * seen.limits[rail]
    against = f"{{}}, port rate {seen.limits[rail]:.3g} Gb/s"
    if len(seen.hosts) > _FEW_HOSTS:
        flows = tuple(sorted(best, key=best.__getitem__)[len(best) // 2 :][:_REPEATED_FLOWS])
        message, usual = f"{name}: {against}", median(best.values())
        yield Suspect("port-rate", seen.hosts, message, usual, limit, flows)
        return
    for flow, speed in best.items():
        message = f"{flow.source} to {flow.target} over {name}: {against}"
        yield Suspect("port-rate", flow[1:], message, speed, limit, (flow,))


_HINTS: Final = {
    "slow-host": "check that node's NIC (speed, errors, cable, PCIe width) and its other workloads",
    "slow-pair": "check the switches between these hosts: uplinks, ECMP hashing, port errors",
    "port-rate": "check flow control (PFC, ECN), MTU and PCIe; if virtual functions are "
    "rate-limited, set --min-fraction",
    "not-measured": "run `mpiboot doctor` on the launcher and on that worker",
}


def finding(check: str, message: str, hosts: Sequence[str], level: Level = Level.FAIL) -> Finding:
    """Make a finding about these hosts, with its hint."""
    return Finding(check, level, message, hint=_HINTS[check]).on(hosts)


def judge(seen: Measured, fraction: float) -> list[Finding]:
    """Report hosts, pairs and rails that were slow in rounds and alone, and failed flows."""
    found = []
    for one in suspects(seen, fraction):
        speed = one.speed_alone(seen)
        if speed is not None:
            found.append(finding(one.check, one.message.format(f"{speed:.3g} Gb/s"), one.hosts))
    reasons = grouped(((why, flow in seen.values), flow) for flow, why in seen.failed.items())
    for (why, sometimes), flows in reasons.items():
        every = [{flow.source, flow.target} for flow in flows]
        hosts = sorted(set.intersection(*every) or set.union(*every))
        first = f"{flows[0].source} to {flows[0].target} over {seen.rails[flows[0].rail]}"
        more = f" and {counted(len(flows) - 1, 'more flow')}" if len(flows) > 1 else ""
        level = Level.WARN if sometimes else Level.FAIL
        found.append(finding("not-measured", f"{first}{more}: {why}", hosts, level))
    if seen.left_out:
        message = "not measured: facts missing, or mpiboot version mismatch"
        found.append(finding("not-measured", message, seen.left_out, Level.UNKNOWN))
    return found


def as_text(seen: Measured, found: Sequence[Finding], *, whole: bool) -> str:
    """Render the matrix (if there are few hosts), the findings, and a summary."""
    matrix = _matrix(seen) if seen.values and len(seen.hosts) <= MAX_LINES else ""
    summary = _summary(seen) + "; interrupted" * (not whole)
    parts = (matrix, render.findings(found), f"{summary}\n")
    return "\n".join(filter(None, parts))


def _summary(seen: Measured) -> str:
    """Summarize the results in one line."""
    if not seen.rails:
        return "nothing was measured"
    count, met = len(seen.hosts), len({frozenset(flow[1:]) for flow in seen.values})
    of = f"{counted(count * (count - 1) // 2, 'pair')} of {counted(count, 'host')}"
    message = f"{met} of {of} measured with {seen.tool.title} over {', '.join(seen.rails)}"
    if medians := [*map(median, seen.values.values())]:
        usual, low, high = (f"{at:.3g}" for at in (median(medians), min(medians), max(medians)))
        message += f": median {usual} Gb/s ({low} to {high})"
    return message


def _matrix(seen: Measured) -> str:
    """Render a table of source by target, with the slowest rail of each pair."""
    short = short_names(seen.hosts)
    by_pair = grouped((flow[1:], median(values)) for flow, values in seen.values.items())
    cells = {pair: f"{min(values):.3g}" for pair, values in by_pair.items()}
    rows = (
        (short[source], *(cells.get((source, target), "-") for target in seen.hosts))
        for source in seen.hosts
    )
    return render.table(("Gb/s", *short.values()), rows)


def record(seen: Measured, found: Sequence[Finding], *, whole: bool) -> dict[str, object]:
    """Build the record of ``--json``."""
    return {
        "version": JSON_VERSION,
        "complete": whole,
        "tool": seen.tool.name,
        "hosts": seen.hosts,
        "nodes": seen.nodes,
        "rails": seen.rails,
        "limits": seen.limits,
        "flows": [
            {
                "rail": seen.rails[flow.rail],
                "from": flow.source,
                "to": flow.target,
                "values": [round(value, 4) for value in seen.values.get(flow, ())],
                "alone": [round(value, 4) for value in seen.alone.get(flow, ())],
                "failed": seen.failed.get(flow, ""),
            }
            for flow in sorted({*seen.values, *seen.failed})
        ],
        "findings": found,
    }
