"""Every host against every other one: rounds, what is measured, and what the results mean. Pure.

In a round every host has one partner (the circle method of a round-robin tournament): all are busy,
and no host is in two measurements at once. The first of a pair sends, then the other one.

A host is named where nearly all that it sends, or that is sent to it, is slow; a pair where neither
of its hosts is. Both have to be far from the median by the spread of these very measurements: a
busy machine has no slow host.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, compress, zip_longest
from math import ceil, exp, log
from statistics import median
from typing import Final, NamedTuple

from mpiboot.core.addresses import short_names
from mpiboot.core.model import Finding, Level
from mpiboot.core.wording import MOST_LINES, counted, grouped
from mpiboot.job import render
from mpiboot.network.records import Transport, WorkerNetwork
from mpiboot.validate.tools import NUMBER
from mpiboot.validate.verdict import JSON_VERSION, carries


@dataclass(frozen=True, slots=True)
class Measure:
    """A row: what is measured between two hosts.

    ``arguments`` are those of perftest's program of that name, and ``column`` is where the result
    stands in its last line; without arguments it is the TCP stream of ``worker/probe.py``.
    ``fraction`` of what is usual, or of the port's rate, is enough; ``least`` makes no difference.
    """

    name: str
    what: str
    unit: str
    arguments: str = ""
    column: int = 0
    is_rate: bool = True
    fraction: float = 0.8
    least: float = 1e-9

    def command(self, rail: RailEnd, port: int, seconds: float) -> str:
        """Write one end's command; behind a client's stands the server's address."""
        timed = self.arguments.format(seconds=round(seconds))
        return f"{self.name} {rail.options} -p {port} -F {timed}"

    def read(self, lines: Sequence[str]) -> float | None:
        """Find the result in what the program wrote; None where it has none."""
        for line in reversed(lines):
            words = line.split()
            if len(words) > self.column and all(map(NUMBER.fullmatch, words)):
                return float(words[self.column])
        return None

    def speed(self, value: float) -> float:
        """Give what is the larger the better."""
        return max(value, self.least) if self.is_rate else 1 / (value + self.least)

    def shown(self, value: float) -> str:
        """Write a value with its unit."""
        return f"{value:.3g} {self.unit}"

    def told(self, speed: float) -> str:
        """Write what ``speed`` was made of."""
        return self.shown(speed if self.is_rate else 1 / speed - self.least)


# A minute of one size of message each: 64 KiB fills any link, and 2 bytes show the path's latency.
_WRITE: Final = Measure(
    "ib_write_bw", "RDMA writes", "Gb/s", "-s 65536 -D {seconds} --report_gbits", column=3
)
# Hosts behind another switch are a little farther away: only what is far off is named.
_READ: Final = Measure(
    "ib_read_lat", "RDMA reads", "us", "-n 1000", column=4, is_rate=False, fraction=0.5
)
TCP: Final = Measure("tcp", "mpiboot's own TCP stream", "Gb/s")
MEASURES: Final = {row.name: row for row in (_WRITE, _READ, TCP)}
# What is counted beside the stream.
_LOSS: Final = replace(
    TCP, unit="% of the packets sent again", is_rate=False, fraction=0.5, least=0.5
)
# What perftest complains in, of all that it writes.
_COMPLAINT: Final = re.compile(r"fail|could|unable|error|mismatch", re.IGNORECASE)


def complaint(lines: Iterable[str]) -> str:
    """Find the line in which a program says why it failed; empty where it says nothing."""
    listed = [line.strip() for line in lines if line.strip()]
    return next(filter(_COMPLAINT.search, listed), listed[-1] if listed else "")


@dataclass(frozen=True, slots=True)
class RailEnd:
    """A host's end of one rail: perftest's options for it, and what it carries in Gb/s."""

    name: str
    options: str
    limit: float


def rail_ends(network: WorkerNetwork) -> tuple[RailEnd | None, ...]:
    """Give each rail's end with the delivered GID index; None where perftest can't use it."""
    return tuple(
        RailEnd(
            rail.name,
            f"-d {rail.device.name} -i {rail.port.number}" + (f" -x {gid.index}" if gid else ""),
            8 * carries(rail.port.rate * 1e9, rail.transport.value, rail.port.mtu),
        )
        if rail.ready and not rail.device.efa and (gid or rail.transport is Transport.INFINIBAND)
        else None
        for rail, gid in zip_longest(network.rails, network.gids.wanted)
    )


def common_rails(
    networks: Mapping[str, WorkerNetwork],
) -> tuple[dict[str, tuple[RailEnd, ...]], list[str]]:
    """Give the ends of the rails that all hosts can use, by host; and who has none."""
    ends = {host: rail_ends(network) for host, network in networks.items()}
    usable = [all(own) for own in zip(*ends.values(), strict=False)]
    found = {host: tuple(filter(None, compress(own, usable))) for host, own in ends.items()}
    without = [host for host, own in ends.items() if not any(own)]
    return found, without or ([] if any(usable) else [*ends])


class Flow(NamedTuple):
    """One direction of a pair on one rail, which is counted from 0."""

    rail: int
    source: str
    target: str

    @property
    def ends(self) -> tuple[tuple[str, bool], ...]:
        """Give the host that sends, and the one that does not."""
        return (self.source, True), (self.target, False)


def rounds(hosts: Sequence[str]) -> Iterator[tuple[tuple[str, str], ...]]:
    """Give who sends to whom, round by round; together all pairs in both directions, each once.

    Their order is one by chance, always the same: where there is no time for all of them, a few are
    spread over the pairs.
    """
    seats: list[str] = [*hosts, *([""] if len(hosts) % 2 else [])]
    *circle, fixed = seats or [""]
    count = len(circle)
    for at in random.Random(0).sample(range(count), count):  # noqa: S311 - no secret
        pairs = ((circle[at + far - count], circle[at - far]) for far in range(1, count // 2 + 1))
        flows = tuple(pair for pair in ((circle[at], fixed), *pairs) if all(pair))
        yield flows
        yield tuple((target, source) for source, target in flows)


@dataclass(slots=True, eq=False)
class Measured:
    """What was measured so far; ``names`` are the rails' or links' names, by the hosts that differ.

    ``values`` are in the measure's unit, ``resent`` the percentage of TCP's packets that had to be
    sent again, ``failed`` is why a flow has no value. ``limits`` are what
    each rail carries, 0: not known. ``left_out`` are hosts that took no part.
    """

    measure: Measure
    hosts: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    limits: tuple[float, ...] = ()
    left_out: tuple[str, ...] = ()
    values: dict[Flow, list[float]] = field(default_factory=dict)
    resent: dict[Flow, list[float]] = field(default_factory=dict)
    failed: dict[Flow, str] = field(default_factory=dict)


# So many spreads (MAD) below the median something is slow: noise names nobody. The spread counts as
# so much at least, and as more by few values, which can be alike by chance.
_FAR: Final = 6
_QUIET, _FEW_VALUES = 0.02, 0.15
_MANY: Final = 6  # values for each host
_ENOUGH: Final = 4  # values by which a host can be named
_MOSTLY: Final = 0.9  # of a host's values are slow where it is named
_HINTS: Final = {
    "slow-host": "look at that node's NIC (speed, errors, cable, PCIe width), and at what else "
    "runs there",
    "slow-pair": "look at the switches between these hosts: an uplink, its hashing, its errors",
    "slow-rail": "look at the switches of that rail, and at its ports on all nodes",
    "port-rate": "look at flow control (PFC, ECN), the MTU and PCIe; where virtual functions are "
    "limited to less, --min-fraction says what is enough",
    "lost-packets": "look at that node's cable, optics and port (`ethtool -S`), and at its switch",
    "not-measured": "`mpiboot doctor` on the launcher and on that worker looks for the reason",
}


class _Judged(NamedTuple):
    """One rail: the usual speed, and what is slow: a host that sends (or receives), a flow."""

    usual: float
    ends: Mapping[tuple[str, bool], float]
    flows: Mapping[Flow, float]


def _judge_rail(speeds: Mapping[Flow, Sequence[float]], measure: Measure) -> _Judged:
    by_end = grouped((end, flow) for flow in speeds for end in flow.ends)
    values = {end: sorted(chain(*map(speeds.__getitem__, of))) for end, of in by_end.items()}
    # What a host reaches: it has slow partners, too, and may be busy for a while.
    best = {end: own[ceil(_MOSTLY * (len(own) - 1))] for end, own in values.items()}
    usual = median(best.values())
    # How far values are from what both ends reach, as ratios: a slow host is no noise.
    ratios = [
        log(speed / min(best[end] for end in flow.ends))
        for flow, listed in speeds.items()
        for speed in listed
    ]
    middle = median(ratios)
    spread = median(abs(ratio - middle) for ratio in ratios)
    least = _QUIET if len(ratios) >= _MANY * len({host for host, _ in best}) else _FEW_VALUES
    slow = usual * min(measure.fraction, exp(-_FAR * max(spread, least)))
    ends = {
        end: reached
        for end, reached in best.items()
        # By one partner alone nobody knows whose fault it is.
        if reached < slow and len(by_end[end]) > 1 and len(values[end]) >= _ENOUGH
    }
    # A pair by two values, as no host is named by a single one.
    flows = {
        flow: max(listed)
        for flow, listed in speeds.items()
        if max(listed) < slow and len(listed) > 1 and ends.keys().isdisjoint(flow.ends)
    }
    return _Judged(usual, ends, flows)


def judge(seen: Measured, enough: float | None = None) -> tuple[Finding, ...]:
    """Name a rail, a host or a pair that is slow or loses packets, and what was not measured.

    Args:
        seen: what was measured.
        enough: the fraction of what is usual, and of a port's rate; None: the measure's own.
    """
    measure = replace(seen.measure, fraction=enough or seen.measure.fraction)
    judged = _judge_rails(measure, seen.values)
    return (
        *_rails(seen, measure, judged),
        *_outliers(seen, measure, judged),
        *_outliers(seen, _LOSS, _judge_rails(_LOSS, seen.resent)),
        *_not_measured(seen),
    )


def _judge_rails(measure: Measure, values: Mapping[Flow, list[float]]) -> dict[int, _Judged]:
    rails = grouped(
        (flow.rail, (flow, [*map(measure.speed, listed)])) for flow, listed in values.items()
    )
    return {rail: _judge_rail(dict(speeds), measure) for rail, speeds in sorted(rails.items())}


def finding(check: str, message: str, hosts: Sequence[str], level: Level = Level.FAIL) -> Finding:
    """Make a finding of these hosts with its hint."""
    one, several = ("", tuple(hosts)) if len(hosts) > 1 else ("".join(hosts), ())
    return Finding(check, level, message, one, (), _HINTS[check], several)


def _rails(seen: Measured, measure: Measure, judged: Mapping[int, _Judged]) -> Iterator[Finding]:
    """Compare the rails with each other, each by its port's rate where that is known."""
    limits = seen.limits
    known = measure.is_rate and bool(limits) and all(limits)
    shares = {rail: one.usual / (limits[rail] if known else 1) for rail, one in judged.items()}
    for rail, share in shares.items():
        name, usual = seen.names[rail], measure.told(judged[rail].usual)
        if share < measure.fraction * median(shares.values()):
            message = f"{name} is slow between all hosts: {usual} as a rule"
            yield finding("slow-rail", message, seen.hosts)
        elif known and share < measure.fraction:
            limit = measure.shown(limits[rail])
            message = f"{name} carries {usual} as a rule: {share:.0%} of the {limit} of its port"
            yield finding("port-rate", message, seen.hosts)


def _outliers(seen: Measured, measure: Measure, judged: Mapping[int, _Judged]) -> Iterator[Finding]:
    """Write what stands out on each rail, the slowest first."""
    told, lost = measure.told, measure is _LOSS
    level = Level.WARN if lost else Level.FAIL
    for rail, one in judged.items():
        name, usual = seen.names[rail], f"the others {told(one.usual)}"
        for (host, sends), speed in sorted(one.ends.items(), key=lambda item: item[1]):
            message = f"{told(speed)} {'from' if sends else 'to'} it by {name}, {usual}"
            yield finding("lost-packets" if lost else "slow-host", message, [host], level)
        for flow, speed in sorted(one.flows.items(), key=lambda item: item[1]):
            message = f"{flow.source} to {flow.target} by {name}: {told(speed)}, {usual}"
            yield finding("lost-packets" if lost else "slow-pair", message, flow[1:], level)


def _not_measured(seen: Measured) -> Iterator[Finding]:
    """Say of which flows there is no value, or not always, once for each reason; and of whom."""
    reasons = grouped(((why, flow in seen.values), flow) for flow, why in seen.failed.items())
    for (why, sometimes), flows in reasons.items():
        every = [{flow.source, flow.target} for flow in flows]
        whose = sorted(set.intersection(*every) or set.union(*every))
        first = f"{flows[0].source} to {flows[0].target} by {seen.names[flows[0].rail]}"
        more = f" and {counted(len(flows) - 1, 'more flow')}" if len(flows) > 1 else ""
        message = f"{first}{more}: {why}{', and at other times a result' if sometimes else ''}"
        level = Level.WARN if sometimes else Level.FAIL
        yield finding("not-measured", message, whose, level)
    if seen.left_out:
        message = "took no part: no facts, another mpiboot, or no login"
        yield finding("not-measured", message, seen.left_out, Level.UNKNOWN)


def summary(seen: Measured, width: int | None, *, whole: bool) -> str:
    """Say in one line what was measured, and what is usual."""
    count, message = len(seen.hosts), "nothing was measured"
    if seen.names:
        met = len({frozenset(flow[1:]) for flow in seen.values})
        of = f"{counted(count * (count - 1) // 2, 'pair')} of {counted(count, 'host')}"
        message = f"{met} of {of} measured by {seen.measure.what} over {', '.join(seen.names)}"
    if middles := [*map(median, seen.values.values())]:
        usual, *ends = map(seen.measure.shown, (median(middles), min(middles), max(middles)))
        message += f": median {usual}, {' to '.join(ends)}"
    return render.indented("", message + "; interrupted before its end" * (not whole), width)


def as_text(seen: Measured, found: Sequence[Finding], width: int | None, *, whole: bool) -> str:
    """Write the matrix of a few hosts, what was found, and a summary."""
    matrix = _matrix(seen, width) if seen.values and len(seen.hosts) <= MOST_LINES else ""
    parts = (matrix, render.findings(found, width), summary(seen, width, whole=whole))
    return "\n".join(filter(None, parts))


def _matrix(seen: Measured, width: int | None) -> str:
    """Lay out what each host sends to each other one, by its slowest rail."""
    short, pick = short_names(seen.hosts), min if seen.measure.is_rate else max
    by_pair = grouped((flow[1:], median(values)) for flow, values in seen.values.items())
    slowest = ", of the slowest rail" if len(seen.names) > 1 else ""
    head = (f"{seen.measure.unit}{slowest}", *(short[host] for host in seen.hosts))
    cells = {pair: f"{pick(values):.3g}" for pair, values in by_pair.items()}
    rows = (
        (short[source], *(cells.get((source, target), "-") for target in seen.hosts))
        for source in seen.hosts
    )
    return render.table(head, rows, width=width)


def record(seen: Measured, found: Sequence[Finding], *, whole: bool) -> dict[str, object]:
    """Give what ``--json`` prints."""
    return {
        "version": JSON_VERSION,
        "complete": whole,
        "tool": seen.measure.name,
        "unit": seen.measure.unit,
        "hosts": seen.hosts,
        "rails": seen.names,
        "limits": seen.limits,
        "flows": [
            {
                "rail": seen.names[flow.rail],
                "from": flow.source,
                "to": flow.target,
                "values": [round(value, 4) for value in seen.values.get(flow, ())],
                "resent": [round(share / 100, 6) for share in seen.resent.get(flow, ())],
                "failed": seen.failed.get(flow, ""),
            }
            for flow in sorted({*seen.values, *seen.failed})
        ],
        "findings": found,
    }
