"""Whether a network is fit: what was measured against what its ports carry, and who carried it.

Pure. The record of the job (``MPIBOOT_JOB_RECORD``) tells the ports, their rates and what was
planned; where it tells none, nothing is judged against them, and the verdict says so. People read
rows as they come, a picture and the verdict; programs read JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mpiboot import __version__
from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.model import Finding, Level
from mpiboot.core.wording import counted, first_few, grouped, lasting, size_of
from mpiboot.job import render
from mpiboot.network.records import RDMA
from mpiboot.validate.tools import Output, Sample, Tool, is_ring

# Of --json; raised when a field changes its meaning, new fields need no new version.
JSON_VERSION: Final = 1
FRACTION: Final = 0.8
# Below this, latency hides what the ports carry.
_LARGE: Final = 16 << 20
_LAST: Final = 3  # of the largest sizes, which are judged by the best and show the spread
_SPREAD: Final = 0.15

# By transport: bytes of payload in a packet of the usual MTU (RoCE and InfiniBand have a port's
# active one, 1024 on a link of 1500), and what is around them: of Ethernet with its gap, IP, UDP,
# the BTH and two CRCs; of InfiniBand the LRH and BTH in their place.
_PACKETS: Final = {
    "RoCE": (4096, 82),
    "InfiniBand": (4096, 26),
    "EFA": (8192, 100),
    "TCP": (1448, 90),
}
# Of InfiniBand's older speeds the rate is that on the wire (SDR to QDR: 8b/10b, FDR10 and FDR:
# 64b/66b); from EDR on, and of Ethernet, that of the data.
_ENCODING: Final = {10: 0.8, 20: 0.8, 40: 0.8, 41: 64 / 66, 56: 64 / 66}


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """The command line: tool (empty: the first that can run), its arguments, seconds, limits.

    ``busbw`` is in GB/s, ``fraction`` of what the ports carry; None where they are not given. With
    ``before_job`` a job comes next, whose own output stdout is for.
    """

    tool: str = ""
    arguments: tuple[str, ...] = ()
    seconds: float = 60.0
    busbw: float | None = None
    fraction: float | None = None
    as_json: bool = False
    before_job: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """A tool's run: what it printed, on how many hosts, how it ended, and the job's record.

    ``over`` where the time was over before its end; ``inside`` where all was inside one pod;
    ``signal`` where one ended it.
    """

    tool: Tool | None
    output: Output
    record: Mapping[str, Any]
    asked: ToolOptions = ToolOptions()
    code: int = 0
    over: bool = False
    inside: bool = False
    signal: int = 0

    @property
    def transport(self) -> Mapping[str, Any]:
        """What the record says of the network."""
        return dict(self.record.get("transport") or {})

    @property
    def by_nccl(self) -> bool:
        """Whether NCCL or RCCL carried the data."""
        return self.tool is not None and self.tool.by_nccl

    @property
    def hosts(self) -> int:
        """Hosts that measured."""
        return len(self.output.started)


@dataclass(frozen=True, slots=True)
class NetworkVerdict:
    """The end: a finding (its level is OK where the network is fit), and the figures behind it.

    ``busbw`` and ``limit`` are GB/s; ``limit`` is 0 where no rate is known. ``notes`` are lines
    below the verdict.
    """

    finding: Finding
    busbw: float = 0.0
    limit: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def fit(self) -> bool:
        """Whether nothing fails."""
        return self.finding.level is Level.OK


def judge(run: Run) -> NetworkVerdict:
    """Judge a run; the first that holds of: nothing measured, wrong values, wrong network, slow."""
    samples, notes = with_busbw(run), []
    if nothing := _unmeasured(run, samples):
        return NetworkVerdict(nothing)
    if run.over:
        after = f"({lasting(run.asked.seconds)}) after {size_of(samples[-1].size)}"
        notes.append(f"time was up {after}: the rest is missing")
    large = sorted(samples, key=lambda item: item.size)[-_LAST:]
    busbw = max(item.busbw or 0.0 for item in large)
    limit, note = _limit(run)
    notes += [note, *_spread(large), *_of_nccl(run)]
    finding = _wrong(samples) or _other_network(run) or _speed(run, large[-1].size, busbw, limit)
    return NetworkVerdict(finding, busbw, limit, tuple(filter(None, notes)))


def with_busbw(run: Run) -> tuple[Sample, ...]:
    """Give the samples with a bus bandwidth: of an allreduce by MPI it is made of the ranks.

    Of other operations by MPI it is the tool's own bandwidth.
    """
    ranks = int(run.record.get("ranks") or 1)
    factor = 2 * (ranks - 1) / ranks if ranks > 1 and not _no_rings(run) else 1.0
    return tuple(
        replace(item, busbw=item.algbw * factor) if item.busbw is None and item.algbw else item
        for item in run.output.samples
    )


def _fail(reference: str, message: str, evidence: tuple[str, ...] = ()) -> Finding:
    matches = (
        told for line in evidence for cause, told in _CAUSES.items() if re.search(cause, line)
    )
    told = next(matches, reference)
    hint = BY_REFERENCE[told].hint if told in BY_REFERENCE else told
    return Finding(reference, Level.FAIL, message, evidence=evidence, hint=hint)


def _unmeasured(run: Run, samples: Sequence[Sample]) -> Finding | None:
    """Say why there is nothing to judge."""
    output = run.output
    names = set(output.started.values())
    if output.missing:
        programs, _, folders = next(iter(output.missing.values())).partition(" in ")
        what = run.tool.name if run.tool else "tool that can run"
        message = f"no {what} on {first_few(sorted(output.missing))}: looked for {programs}"
        return _fail("program-missing", message, ("in " + folders.replace(":", " "),))
    if len(names) > 1:
        each = "; ".join(f"{host}: {name}" for host, name in sorted(output.started.items())[:4])
        why = f"the hosts chose different tools ({each}): name one with --tool"
    elif output.heads > 1:
        why = "each rank measured only itself: this tool was built without MPI (make MPI=1)"
    elif samples:
        return None
    elif run.over:
        why = f"nothing was measured within {lasting(run.asked.seconds)}: the tool hangs"
    elif output.odd:
        why = f"the tool's output is not understood: {output.odd!r}"
    elif not names and run.record.get("reason"):
        why = str(run.record["reason"])
    else:
        why = f"{next(iter(names), 'the tool')} ended without a result, exit {run.code}"
    return _fail("not-measured", why, _telling(output))


def _wrong(samples: Sequence[Sample]) -> Finding | None:
    count = sum(item.wrong or 0 for item in samples)
    message = f"{counted(count, 'wrong value')} in messages of "
    message += first_few(size_of(item.size) for item in samples if item.wrong)
    return _fail("wrong-results", message) if count else None


_USING: Final = re.compile(r"Using network (.*?)\s*$")


def networks(output: Output) -> dict[str, list[str]]:
    """Give the networks that NCCL says it uses, each with its hosts."""
    said = [(line, host) for host, lines in sorted(output.nccl.items()) for line in sorted(lines)]
    return grouped((named[1], host) for line, host in said if (named := _USING.match(line)))


def _other_network(run: Run) -> Finding | None:
    """Compare with the plan what NCCL said, and what the ports' counters say."""
    planned, message = run.transport.get("planned"), ""
    if planned not in RDMA:
        return None
    if hosts := networks(run.output).get("Socket"):
        where = f"{len(hosts)} of {run.hosts} hosts ({first_few(hosts)})"
        message = f"{planned} was planned, NCCL used TCP on {where}"
    # MPI's own messages may go by another network than NCCL's.
    elif run.by_nccl and run.transport.get("verdict") == "unused":
        message = str(run.transport.get("message"))
    return _fail("transport", message, _telling(run.output)) if message else None


def _speed(run: Run, size: int, busbw: float, limit: float) -> Finding:
    """Compare with what was asked for, or is expected of NCCL's large messages."""
    message = f"{busbw:.4g} GB/s bus bandwidth at {size_of(size)}"
    if limit:
        message += f", {busbw / limit:.0%} of the {limit:.4g} GB/s that the ports of a host carry"
    low, share = run.asked.busbw or 0.0, run.asked.fraction or 0.0
    if not (low or share) and run.by_nccl and size >= _LARGE:
        share = FRACTION
    wanted = max(low, limit * share)
    if busbw < wanted:
        message += f"; {low:g} GB/s are required" if busbw < low else f"; {share:.0%} are expected"
        return _fail("bandwidth", message, _telling(run.output))
    if run.over and size < _LARGE and not wanted:
        message += f"; time was up before {size_of(_LARGE)}, and smaller ones show no bandwidth"
        return _fail("not-measured", message, _telling(run.output))
    return Finding("bandwidth", Level.OK, message)


def _limit(run: Run) -> tuple[float, str]:
    """Add up the ports of each host, less encoding and headers; that of the weakest counts.

    Returns:
        What they carry in GB/s, 0 where that is not known; and a note.
    """
    planned, others = str(run.transport.get("planned", "")), _no_rings(run)
    rates: dict[str, float] = {}
    for host, ports in run.transport.get("hosts", {}).items():
        own = [port for port in ports.values() if port["data"]]
        known = [carries(port["rate"], planned, port["mtu"]) for port in own]
        rates[host] = sum(known) if all(known) else 0.0
    low, most = min(rates.values(), default=0.0), max(rates.values(), default=0.0)
    weakest = first_few(host for host, rate in rates.items() if rate == low)
    if run.inside or run.hosts < 2:  # noqa: PLR2004 - a network is between two
        return 0.0, "inside one pod: no network was involved, and none is judged"
    if others:
        return 0.0, f"{first_few(others)} shares the ports in its own way: no fraction"
    if planned not in _PACKETS or not rates:
        why = "no data network was planned" if run.record else "the job left no record"
        why = "the workers' counters were not read" if planned in _PACKETS else why
        return 0.0, f"{why}: what its ports carry is not judged"
    if not low:
        return 0.0, f"the driver reports no port rate on {weakest}: no fraction is judged"
    note = f"the ports of {weakest} carry {low:.4g} GB/s, others up to {most:.4g}: the least counts"
    return low, note if low < most else ""


def _no_rings(run: Run) -> list[str]:
    names = {*run.output.started.values()}
    return sorted(name for name in names if not is_ring(name, run.asked.arguments))


def carries(rate: float, planned: str, mtu: int = 0) -> float:
    """What a port carries of a program's bytes, in GB/s, of its bits per second and active MTU."""
    payload, around = _PACKETS.get(planned, (1, 0))
    if planned in ("RoCE", "InfiniBand"):
        payload = mtu or payload
    encoded = _ENCODING.get(round(rate / 1e9), 1.0) if planned == "InfiniBand" else 1.0
    return rate * encoded / 8e9 * payload / (payload + around)


def _spread(large: Sequence[Sample]) -> Iterable[str]:
    values = [item.busbw for item in large if item.busbw and item.size >= _LARGE]
    if values and min(values) < max(values) * (1 - _SPREAD):
        span = f"{min(values):.4g} to {max(values):.4g} GB/s"
        yield f"the largest sizes differ, {span}: other traffic, or NCCL changes its algorithm"


def _of_nccl(run: Run) -> Iterable[str]:
    """What NCCL said that a user wants to know, though nothing fails."""
    found = networks(run.output)
    for name, hosts in found.items():
        where = "" if len(hosts) == run.hosts else f" on {first_few(hosts)}"
        yield f"NCCL's network: {name}{where}"
    lines = {line for own in run.output.nccl.values() for line in own}
    ways = [line for line in lines if line.startswith("via NET/") and "Socket" not in line]
    if ways and not any("GDRDMA" in line for line in ways):
        yield "no GPUDirect RDMA: data passes through the host (no nvidia_peermem, no DMA-BUF)"
    if run.by_nccl and not (found or run.inside or run.code):  # a rank that was killed told none
        yield "NCCL reported no network: NCCL_DEBUG or NCCL_DEBUG_FILE is set by the user"


# What the tools' own lines show, with the row of the checks that tells what to do.
_CAUSES: Final = {
    r"NCCL_IB_DISABLE set by environment to [1-9]": "unset NCCL_IB_DISABLE",
    r"NCCL_NET set by environment to Socket": "unset NCCL_NET",
    r"ibv_(reg_mr|create_cq|create_qp)\w* failed.*(Cannot allocate memory|12)": "memlock",
    r"(?i)WARN.*\bp_?key\b": "the pods' ports must be members of one partition: P_Key, "
    "NCCL_IB_PKEY",
    r"(?i)WARN.*(ibv_modify_qp failed|error 12\b|RETRY_EXC|\bGID\b)": "one port does not answer "
    "another: GID index (NCCL_IB_GID_INDEX), routes, switches",
    r"(open|access).* /dev/infiniband|/dev/infiniband.*(No such|denied)": "rdma-node",
    r"[Ff]ailed to open libibverbs|NET/IB : No device found": "rdma-library",
    r"NET/OFI .*(fail|No eligible)|Failed to initialize NET plugin": "efa-library",
}


def _telling(output: Output) -> tuple[str, ...]:
    """Give the lines that tell a cause, each once; else what NCCL warns of."""
    lines = sorted({line for own in output.nccl.values() for line in own})
    found = [line for cause in _CAUSES for line in lines if re.search(cause, line)]
    warned = [line for line in lines if line.startswith("NCCL WARN")]
    return tuple(dict.fromkeys((*found, *warned)))[:4]


_SIZE: Final = 10
HEAD: Final = f"{'size':>{_SIZE}}  {'time us':>10}  {'GB/s':>8}  {'busbw GB/s':>10}  {'wrong':>6}\n"
# A picture's bars without a terminal, and the least that one has.
_WIDTH: Final = 72
_BAR: Final = 20


def row(item: Sample) -> str:
    """Write one size as a line below ``HEAD``."""
    values = (item.time, item.algbw, item.busbw, item.wrong)
    cells = (
        f"{'-' if value is None else format(value, form):>{wide}}"
        for value, wide, form in zip(values, (10, 8, 10, 6), (".1f", ".2f", ".2f", ""), strict=True)
    )
    return "  ".join((f"{size_of(item.size):>{_SIZE}}", *cells)) + "\n"


def picture(samples: Sequence[Sample], limit: float, width: int | None) -> str:
    """Draw bus bandwidth by message size, as a part of what the ports carry where that is known."""
    most = max([limit, *(item.busbw or 0.0 for item in samples)])
    room = max((width or _WIDTH) - _SIZE - 14, _BAR)
    if not most:
        return ""
    lines = []
    for item in samples:
        bar = "#" * round((item.busbw or 0.0) / most * room)
        lines.append(f"{size_of(item.size):>{_SIZE}}  |{bar:<{room}}| {item.busbw or 0.0:.4g}\n")
    ports = f"| {limit:.4g} GB/s, what the ports of a host carry" if limit else "| GB/s"
    return "\nbus bandwidth by message size\n" + "".join(lines) + f"{'':>{_SIZE}}  {ports}\n"


def as_text(run: Run, verdict: NetworkVerdict, width: int | None, ended: str = "") -> str:
    """Write what comes below the rows: the picture, the tool, notes, and last the verdict.

    ``ended`` says in place of a verdict why there is none.
    """
    text = picture(with_busbw(run), verdict.limit, width) + "\n"
    if run.hosts:
        program = first_few(sorted(set(run.output.started.values())))
        where = "this pod" if run.inside else counted(run.hosts, "host")
        ranks = run.record.get("ranks")
        where += f", {counted(ranks, 'rank')}" if ranks else ""
        what = "the data network, by NCCL or RCCL" if run.by_nccl else "MPI's own network"
        text += render.indented("", f"{program} on {where}: measures {what}", width)
    text += "".join(render.indented("- ", line, width) for line in verdict.notes)
    if ended:
        return text + f"{ended}\n"
    item = verdict.finding
    text += render.indented("verdict: ", "fit: " * verdict.fit + item.message, width)
    text += "".join(render.indented("  ", line, width) for line in item.evidence)
    return text + (render.indented("  -> ", item.hint, width) if item.hint else "")


def as_json(run: Run, verdict: NetworkVerdict, code: int, *, complete: bool, host: str) -> str:
    """Write all as JSON.

    Args:
        run: what was measured.
        verdict: what that says.
        code: the exit code.
        complete: false where it was interrupted.
        host: this pod's name.
    """
    return render.as_json(
        {
            "version": JSON_VERSION,
            "mpiboot": __version__,
            "host": host,
            "complete": complete,
            "tool": run.tool.name if run.tool else "",
            "programs": run.output.started,
            "samples": with_busbw(run),
            "busbw": verdict.busbw,
            "limit": verdict.limit,
            "fraction": round(verdict.busbw / verdict.limit, 4) if verdict.limit else None,
            "networks": networks(run.output),
            "nccl": {host: sorted(lines) for host, lines in run.output.nccl.items()},
            "transport": run.transport,
            "ranks": run.record.get("ranks"),
            "verdict": verdict.finding,
            "notes": verdict.notes,
            "exit": code,
        }
    )
