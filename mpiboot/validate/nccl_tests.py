"""nccl-tests and rccl-tests: the shell that starts one in a rank, its output, the verdict. Pure.

Each rank finds the program itself: the launcher's pod may have neither GPUs nor the tool. Ports,
their rates and the planned transport are those of the job's record (``MPIBOOT_JOB_RECORD``); where
it has none, nothing is judged against them, and a note reports that.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final, NamedTuple

from mpiboot import __version__
from mpiboot.core.checks import error, failed
from mpiboot.core.model import Finding, Level
from mpiboot.core.wording import counted, first_few, grouped, lasting, size_of
from mpiboot.network.records import RDMA, Transport

NAME: Final = "nccl-tests"
_PROGRAMS: Final = ("all_reduce_perf_mpi", "all_reduce_perf")
_ANY_PROGRAM: Final = re.compile(r"\w+_perf(_mpi)?")
_ARGUMENTS: Final = "-b 1K -e 8G -f 4 -n 20 -w 3 -c 1"
# Their bus bandwidth is that of each link of a ring over all ranks; that of others, such as
# alltoall_perf, is a rank's.
RING: Final = re.compile(r"(all_reduce|all_gather|reduce_scatter|broadcast|reduce)_perf(_mpi)?")
_SHELL: Final = __file__.rpartition("/")[0].rpartition("/")[0] + "/libexec/validate"


def shell(tool: str, words: Sequence[str] = ()) -> str:
    """Write the shell that finds the tool and runs it in one rank.

    Args:
        tool: the tool's name, or a program's name or path; empty: the tool.
        words: the user's arguments, in place of the default ones.

    Raises:
        MpibootError: ``usage``; there is no such tool.
    """
    named = tool not in ("", NAME)
    if named and not _ANY_PROGRAM.fullmatch(tool.rpartition("/")[2]):
        hint = "or one of its programs; other benchmarks are jobs: `mpiboot mpirun osu_bw`"
        raise error("usage", f"--tool is {tool!r}: expected {NAME}", hint=hint)
    with open(_SHELL, encoding="ascii") as file:  # noqa: PTH123 - a string
        lines = [line for line in file if not line.lstrip().startswith("#")]
    programs = (tool,) if named else _PROGRAMS
    given = words or _ARGUMENTS.split()
    lines += [f"measure {shlex.join((program, *given))}\n" for program in programs]
    missing = shlex.quote(f"{', '.join(programs)} in ")
    return "".join((*lines, f'report missing {missing}"$PATH"\nexit 127\n'))


# A line of the shell for mpiboot: the mark, then host, kind and text.
_MARK: Final = "mpiboot-validate|"
_ROW: Final = re.compile(r"\s*\d{1,18}\s", re.ASCII)
NUMBER: Final = re.compile(r"\d{1,18}(\.\d*)?(e[+-]?\d\d)?", re.ASCII)
_MAX_LINE: Final = 1 << 16  # characters


# Of --json; raised when a field changes its meaning, not for new fields.
JSON_VERSION: Final = 2
FRACTION: Final = 0.8
_LARGE: Final = 16 << 20  # bytes; latency dominates smaller messages
_LARGEST_SIZES: Final = 3  # their average is judged


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """The command line: tool (empty: the first that can run), its arguments, seconds, limits.

    ``busbw`` is in GB/s, ``fraction`` of what the ports carry; None where they are not given.
    """

    tool: str = ""
    arguments: tuple[str, ...] = ()
    seconds: float = 60.0
    busbw: float | None = None
    fraction: float | None = None
    as_json: bool = False


class Sample(NamedTuple):
    """One message size in bytes, its bus bandwidth in GB/s, wrong values (None: not checked)."""

    size: int
    busbw: float
    wrong: int | None = None


@dataclass(slots=True, eq=False)
class Run:
    """A run of the tool: its output so far, the job's record, and how it ended.

    ``started`` are the programs by host, ``missing`` the
    programs and folders by host that has none of them, ``nccl`` NCCL's lines by host; ``heads``
    counts the processes that began to measure: several where the tool is built without MPI.
    ``rest`` is an unfinished line. ``over``: the time limit was reached; ``signal``: what ended it,
    else 0.
    """

    options: ToolOptions = ToolOptions()
    samples: list[Sample] = field(default_factory=list)
    started: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    nccl: dict[str, set[str]] = field(default_factory=dict)
    heads: int = 0
    rest: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)
    code: int = 0
    over: bool = False
    signal: int = 0
    _columns: list[str] = field(default_factory=list)

    def feed(self, data: bytes) -> str:
        """Parse a piece of output; give its whole lines but the shell's."""
        *lines, self.rest = (self.rest + data.decode("utf-8", "replace")).split("\n")
        self.rest = self.rest[:_MAX_LINE]
        return "".join(f"{line}\n" for line in lines if self._read(line))

    def _read(self, line: str) -> bool:
        """Parse a line; false where it is the shell's.

        Of the tool's that is a header, which names the columns, or a row: out of place, then in
        place. A row that is cut off is ignored; what follows one is a timestamp (-T), or a line of
        NCCL.
        """
        _, mark, fields = line.partition(_MARK)
        words = line.strip("# \r").split()
        if mark:
            host, kind, value = (*fields.split("|", 2), "", "")[:3]
            if kind == "nccl":
                self.nccl.setdefault(host, set()).add(value)
            elif kind in ("start", "missing"):
                (self.started if kind == "start" else self.missing)[host] = value
        elif line.lstrip().startswith("#"):
            self.heads += line.startswith("# nThread ")
            self._columns = words if "busbw" in words else self._columns
        elif self._columns and _ROW.match(line) and len(words) >= len(self._columns):
            cells = [
                (name.strip("#"), float(cell))
                for name, cell in zip(self._columns, words, strict=False)
                if NUMBER.fullmatch(cell)
            ]
            wrong = [int(value) for name, value in cells if name == "wrong"]
            if rates := [value for name, value in cells if name == "busbw"]:
                count = sum(wrong) if wrong else None
                self.samples.append(Sample(int(words[0]), round(fmean(rates), 4), count))
        return not mark

    @property
    def transport(self) -> Mapping[str, Any]:
        """The network, by the record."""
        return dict(self.record.get("transport") or {})

    @property
    def largest(self) -> list[Sample]:
        """The samples of the largest sizes, which are judged."""
        every = sorted(self.samples, key=lambda item: item.size)
        return ([item for item in every if item.size >= _LARGE] or every)[-_LARGEST_SIZES:]

    @property
    def networks(self) -> dict[str, list[str]]:
        """The networks in NCCL's log, each with its hosts."""
        start = "Using network "
        return grouped(
            (line.removeprefix(start).strip(), host)
            for host, lines in sorted(self.nccl.items())
            for line in lines
            if line.startswith(start)
        )


class NetworkVerdict(NamedTuple):
    """A finding (OK where the network is fit), and the figures behind it in GB/s.

    ``limit`` is 0 where no rate is known. ``notes`` are lines above the verdict.
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
    """Judge a run: nothing measured, wrong values, wrong network, or slow; the first counts."""
    if nothing := _unmeasured(run):
        return NetworkVerdict(nothing)
    busbw = fmean(item.busbw for item in run.largest)
    limit, why = _limit(run)
    finding = _wrong(run.samples) or _other_network(run) or _speed(run, busbw, limit)
    return NetworkVerdict(finding, busbw, limit, (*filter(None, (why,)), *_notes(run)))


def _unmeasured(run: Run) -> Finding | None:
    """Report why there is nothing to judge; None where there is something."""
    if run.missing:
        programs = next(iter(run.missing.values()))
        message = f"no {NAME} on {first_few(sorted(run.missing))}: looked for {programs}"
        hint = "install it (MPI=1); `mpiboot validate pairs` measures the network without it"
        return failed("program-missing", message, hint=hint)
    if run.heads > 1:
        why = "each rank measured only itself: this tool was built without MPI (make MPI=1)"
    elif run.samples:
        return None
    elif run.over:
        why = f"nothing was measured within {lasting(run.options.seconds)}: the tool hangs"
    elif not run.started and run.record.get("reason"):
        why = str(run.record["reason"])
    else:
        name = next(iter(run.started.values()), "the tool")
        why = f"{name} ended without a result that could be read, exit {run.code}"
    return failed("not-measured", why)


def _wrong(samples: Sequence[Sample]) -> Finding | None:
    count = sum(item.wrong or 0 for item in samples)
    message = f"{counted(count, 'wrong value')} in messages of "
    message += first_few(size_of(item.size) for item in samples if item.wrong)
    return failed("wrong-results", message) if count else None


def _other_network(run: Run) -> Finding | None:
    """Compare NCCL's network and the ports' counters with the plan."""
    planned = run.transport.get("planned")
    if planned in RDMA and (hosts := run.networks.get("Socket")):
        where = f"{len(hosts)} of {len(run.started)} hosts ({first_few(hosts)})"
        return failed("transport", f"{planned} was planned, NCCL used TCP on {where}")
    if planned in RDMA and run.transport.get("verdict") == "unused":
        return failed("transport", str(run.transport.get("message")))
    return None


def _speed(run: Run, busbw: float, limit: float) -> Finding:
    """Compare with what is required, or expected of large messages."""
    sizes = [item.size for item in run.largest]
    span = " to ".join(dict.fromkeys(map(size_of, (sizes[0], sizes[-1]))))
    message = f"{busbw:.4g} GB/s average bus bandwidth at {span}"
    if limit:
        message += f", {busbw / limit:.0%} of the {limit:.4g} GB/s that the ports of a host carry"
    low, share = run.options.busbw or 0.0, run.options.fraction or 0.0
    if not (low or share) and sizes[-1] >= _LARGE:
        share = FRACTION
    wanted = max(low, limit * share)
    if busbw < wanted:
        message += f"; {low:g} GB/s are required" if busbw < low else f"; {share:.0%} are expected"
        return failed("bandwidth", message)
    if run.over and sizes[-1] < _LARGE and not wanted:
        message += f"; time was up before {size_of(_LARGE)}, and smaller ones show no bandwidth"
        return failed("not-measured", message)
    return Finding("bandwidth", Level.OK, message)


def _limit(run: Run) -> tuple[float, str]:
    """Sum the rates of each host's data ports, and take the smallest sum.

    Returns:
        What those carry in GB/s, 0 where that is not known; and why it is not.
    """
    hosts = run.transport.get("hosts", {}).values()
    rates = [[port["rate"] / 8e9 for port in own.values() if port["data"]] for own in hosts]
    known = run.transport.get("planned") in (*RDMA, Transport.TCP) and bool(rates)
    programs = dict.fromkeys(run.started.values())
    others = [name for name in programs if not RING.fullmatch(name.rpartition("/")[2])]
    if len(run.started) < 2:  # noqa: PLR2004 - a network is between two
        why = "inside one pod: no network was involved, and none is judged"
    elif others:
        why = f"{first_few(others)} is no ring over the ports: no fraction"
    elif known and all(own and all(own) for own in rates):
        return min(map(sum, rates)), ""
    else:
        why = "which ports carry the data, or their rates, are not known: no fraction"
    return 0.0, why


def _notes(run: Run) -> Iterator[str]:
    """Yield what is worth knowing though nothing fails."""
    if run.over:
        after = size_of(run.samples[-1].size)
        yield f"time was up ({lasting(run.options.seconds)}) after {after}: the rest is missing"
    for name, hosts in run.networks.items():
        where = "" if len(hosts) == len(run.started) else f" on {first_few(hosts)}"
        yield f"NCCL's network: {name}{where}"
    paths = [line for own in run.nccl.values() for line in own if line.startswith("via NET/")]
    # No counter shows whether GPUDirect is used.
    if any("/Socket" not in line for line in paths) and not any("GDRDMA" in line for line in paths):
        yield "no GPUDirect RDMA: data passes through the host (no nvidia_peermem, no DMA-BUF)"


def as_text(run: Run, verdict: NetworkVerdict, ended: str = "") -> str:
    """Write what follows the tool's output: notes, and the verdict, or why there is none."""
    programs = first_few(sorted(set(run.started.values())))
    where = counted(len(run.started), "host")
    ranks = f", {counted(run.record['ranks'], 'rank')}" if run.record.get("ranks") else ""
    text = "\n" + (f"{programs} on {where}{ranks}\n" if programs else "")
    text += "".join(f"- {line}\n" for line in verdict.notes)
    if ended:
        return text + f"{ended}\n"
    item = verdict.finding
    text += f"verdict: {'fit: ' * verdict.fit}{item.message}\n"
    return text + (f"  -> {item.hint}\n" if item.hint else "")


def record(run: Run, verdict: NetworkVerdict, code: int, *, complete: bool) -> dict[str, object]:
    """Build the record of ``--json``; ``complete`` is false after a signal."""
    return {
        "version": JSON_VERSION,
        "mpiboot": __version__,
        "complete": complete,
        "programs": run.started,
        "samples": [item._asdict() for item in run.samples],
        "busbw": verdict.busbw,
        "limit": verdict.limit,
        "fraction": round(verdict.busbw / verdict.limit, 4) if verdict.limit else None,
        "networks": run.networks,
        "transport": run.transport,
        "ranks": run.record.get("ranks"),
        "verdict": verdict.finding,
        "notes": verdict.notes,
        "exit": code,
    }
