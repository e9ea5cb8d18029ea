"""The tools that measure, as rows: the shell by which each rank starts one, and its output. Pure.

Which tool runs is settled where it runs: the launcher's pod may have neither GPUs nor the tool.

What tools print is read as it comes: samples, what each host told, and what is neither. nccl-tests,
OSU and IMB print a header that names the columns; its words are rows here. Lines of other processes
stand in between, and the end may be cut off.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from mpiboot.core.checks import error

# The functions that its lines call.
_FUNCTIONS: Final = __file__.rpartition("/")[0].rpartition("/")[0] + "/libexec/validate"


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: its programs, the best first, and its arguments.

    ``pattern`` matches all its programs. ``by_nccl`` where it needs GPUs, and NCCL or RCCL carries
    the data.
    """

    name: str
    programs: tuple[str, ...]
    pattern: str
    arguments: str
    by_nccl: bool = False


# RCCL-tests have the names, arguments and output of nccl-tests. The sisters of the first program
# run when they are asked for.
TOOLS: Final = (
    Tool(
        "nccl-tests",
        ("all_reduce_perf_mpi", "all_reduce_perf"),
        r"\w+_perf(_mpi)?",
        "-b 1K -e 8G -f 4 -n 20 -w 3 -c 1",
        by_nccl=True,
    ),
    Tool("osu", ("osu_allreduce",), r"osu_\w+", "-m 1024:67108864 -i 20 -x 3"),
    # A number of processes that no job has: else it measures with two, four and so on first.
    Tool("imb", ("IMB-MPI1",), "IMB-MPI1", "-npmin 1000000 -iter 20 -msglog 10:26 Allreduce"),
)


# Of these the busbw is that of each link of a ring over all ranks, or may be judged by it; that of
# others, such as alltoall_perf, is a rank's own.
_RINGS: Final = re.compile(
    r"(.*/)?((all_reduce|all_gather|reduce_scatter|broadcast|reduce)_perf(_mpi)?"
    r"|osu_allreduce|IMB-MPI1)"
)


def is_ring(program: str, arguments: Sequence[str]) -> bool:
    """Whether what it calls bus bandwidth is limited by the sum of a host's ports.

    ``arguments`` are the user's own, which tell IMB what to measure.
    """
    own = program.endswith("IMB-MPI1") and arguments
    return bool(_RINGS.fullmatch(program)) and (not own or "Allreduce" in arguments)


def find(asked: str) -> Tool | None:
    """Find the row of a tool's name, or of a program's name or path; None for no tool's."""
    program = asked.rpartition("/")[2]
    named = (tool for tool in TOOLS if asked == tool.name or re.fullmatch(tool.pattern, program))
    return next(named, None)


def shell(
    asked: str, words: Sequence[str] = (), *, devices: int = 1, before: Sequence[str] = ()
) -> str:
    """Write the shell that finds a tool, becomes it for one rank, and tells what NCCL said.

    Args:
        asked: the tool's name, or a program's name or path; empty for the first that can run.
        words: the user's own arguments, in place of the row's.
        devices: GPUs of each rank.
        before: what starts the ranks of a tool of MPI, where this shell is none.

    Raises:
        MpibootError: ``usage``; there is no such tool.
    """
    one = find(asked)
    if asked and one is None:
        known = ", ".join(tool.name for tool in TOOLS)
        hint = "a program of nccl-tests or OSU can be named too, such as alltoall_perf"
        raise error("usage", f"--tool is {asked!r}: expected one of {known}", hint=hint)
    with open(_FUNCTIONS, encoding="ascii") as file:  # noqa: PTH123 - a word from end to end
        lines = [line for line in file if not line.lstrip().startswith("#")]
    looked_for = []
    for tool in (one,) if one else TOOLS:
        kind, needs = ("nccl", "gpu && " * (not one)) if tool.by_nccl else ("mpi", "")
        for program in (asked,) if asked not in ("", tool.name) else tool.programs:
            line = [program, *(() if tool.by_nccl else before), program]
            line += words or tool.arguments.split()
            line += ["-g", str(devices)] if tool.by_nccl and "-g" not in words else []
            lines.append(f"{needs}measure {kind} {shlex.join(line)}\n")
            looked_for.append(program + " (with a GPU)" * bool(needs))
    return "".join((*lines, f"missing {shlex.quote(', '.join(looked_for))}\n"))


# A line of the shell's own begins so; behind it the host, what it is about, and a text.
_MARK: Final = "mpiboot-validate|"


@dataclass(frozen=True, slots=True)
class Sample:
    """One message size: bytes, microseconds, GB/s, and wrong values; None where not printed."""

    size: int
    time: float | None = None
    algbw: float | None = None
    busbw: float | None = None
    wrong: int | None = None


# A header's words to what they are, and the factor to microseconds, or to GB/s. What nccl-tests
# called `error` up to 2.10 is the largest deviation, not a count.
_COLUMNS: Final = {
    **dict.fromkeys(("size", "bytes"), ("size", 1.0)),
    **dict.fromkeys(("time", "cputime"), ("time", 1.0)),
    **dict.fromkeys(("avg latency(us)", "latency (us)"), ("time", 1.0)),
    **dict.fromkeys(("t_avg[usec]", "t[usec]"), ("time", 1.0)),
    **dict.fromkeys(("bandwidth (mb/s)", "mbytes/sec"), ("algbw", 1e-3)),
    **{name: (name, 1.0) for name in ("algbw", "busbw", "wrong")},
}
# Where NCCL's own lines begin, which may follow a row without a line's end.
_OTHERS: Final = re.compile(r"\S+:\d+:\d+ \[\d+\] |\[\d{4}-\d\d-\d\d ")
_ROW: Final = re.compile(r"\s*\d+\s")
NUMBER: Final = re.compile(r"\d{1,18}(\.\d*)?(e[+-]?\d\d)?", re.ASCII)
# What newer nccl-tests put behind a row on request (-S).
_STAMP: Final = re.compile(r"\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")
_MOST: Final = 1 << 16  # characters of a line


@dataclass(slots=True, eq=False)
class Output:
    """What a run has printed so far.

    ``started`` are the programs by host, ``missing`` where a host looked for one in vain, ``nccl``
    NCCL's own lines by host. ``odd`` is the first row that could not be read; ``heads`` counts the
    processes of nccl-tests that began a run: several, where it is built without MPI.
    """

    samples: list[Sample] = field(default_factory=list)
    started: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    nccl: dict[str, set[str]] = field(default_factory=dict)
    odd: str = ""
    heads: int = 0
    _columns: list[str] = field(default_factory=list)
    _rest: str = ""

    def feed(self, data: bytes) -> Iterator[Sample | str]:
        """Read what came; give new samples, and whole lines that are not the tool's results."""
        *lines, self._rest = (self._rest + data.decode("utf-8", "replace")).split("\n")
        self._rest = self._rest[:_MOST]
        for line in lines:
            yield from self._line(line.rstrip())

    def end(self) -> Iterator[str]:
        """Give the last line where it has no end: a row that was cut off says nothing."""
        if self._rest.strip():
            yield self._rest

    def _line(self, line: str) -> Iterator[Sample | str]:
        line, mark, told = line.partition(_MARK)
        if mark:
            self._told(told)
        words = [word for word in _words(line) if word != "timestamp"]
        known = [_COLUMNS[word][0] for word in words if word in _COLUMNS]
        if known[:1] == ["size"] and len(known) > 1:
            self._columns = words
            return
        self.heads += line.startswith("# nThread ")
        row = _OTHERS.split(_STAMP.sub("", line))[0]
        found = _sample(self._columns, row.split()) if _ROW.match(line) else None
        if found:
            self.samples.append(found)
            yield found
            line = _STAMP.sub("", line)[len(row) :]
        elif _ROW.match(line) and not self.odd:
            self.odd = line.strip()
        if line.strip() and not line.lstrip().startswith("#"):
            yield line

    def _told(self, text: str) -> None:
        host, kind, value = (*text.split("|", 2), "", "")[:3]
        if kind == "nccl":
            self.nccl.setdefault(host, set()).add(value)
        elif kind == "start":
            self.started[host] = value
        elif kind == "missing":
            self.missing[host] = value


def _words(line: str) -> list[str]:
    """Split a header: names may have a blank, and stand two apart, or behind a #."""
    words = re.split(r"\s{2,}|\s(?=#)", line.strip())
    return [word for word in (word.strip("# ").lower() for word in words) if word]


def _sample(columns: list[str], cells: list[str]) -> Sample | None:
    """Read a row; None where a cell is not what its column says, as in one that is cut off.

    Of results out of place and in place, which nccl-tests prints side by side, the first counts,
    and wrong values of both; some of its modes leave the first empty.
    """
    results = next((at for at, word in enumerate(columns) if at and word in _COLUMNS), 0)
    half = (len(columns) - results) // 2
    if len(cells) == len(columns) - half and columns.count("time") > 1:
        columns = [*columns[:results], *columns[results + half :]]
    if not results or len(cells) != len(columns):
        return None
    found: dict[str, float] = {}
    for word, cell in zip(columns, cells, strict=True):
        name, factor = _COLUMNS.get(word, ("", 1.0))
        if not name or cell == "N/A":
            continue
        if not NUMBER.fullmatch(cell):
            return None
        value = float(cell) * factor
        found[name] = value + found.get(name, 0.0) if name == "wrong" else found.get(name, value)
    size, time, algbw, wrong = (found.get(name) for name in ("size", "time", "algbw", "wrong"))
    if algbw is None and time:
        algbw = (size or 0.0) / time / 1e3
    count = None if wrong is None else int(wrong)
    return Sample(int(size or 0), time, algbw, found.get("busbw"), count)
