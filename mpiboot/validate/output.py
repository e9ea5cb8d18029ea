"""Reads what the tools print, as it comes: samples, what each host told, and what is neither. Pure.

nccl-tests, OSU and IMB print a header that names the columns; its words are rows here. Lines of
other processes stand in between, and the end may be cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from mpiboot.core.dataclass import dataclass, field
from mpiboot.validate.tools import MARK, MISSING, NCCL, START


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
_NUMBER: Final = re.compile(r"\d{1,18}(\.\d*)?(e[+-]?\d\d)?")
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
        line, mark, told = line.partition(MARK)
        if mark:
            self._told(told)
        if _is_head(line):
            self._columns = [word for word in _words(line) if word != "timestamp"]
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
        if kind == NCCL:
            self.nccl.setdefault(host, set()).add(value)
        elif kind in (START, MISSING):
            (self.started if kind == START else self.missing)[host] = value


def _words(line: str) -> list[str]:
    """Split a header: names may have a blank, and stand two apart, or behind a #."""
    words = re.split(r"\s{2,}|\s(?=#)", line.strip())
    return [word for word in (word.strip("# ").lower() for word in words) if word]


def _is_head(line: str) -> bool:
    known = [_COLUMNS[word][0] for word in _words(line) if word in _COLUMNS]
    return known[:1] == ["size"] and len(known) > 1


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
        if not _NUMBER.fullmatch(cell):
            return None
        value = float(cell) * factor
        found[name] = value + found.get(name, 0.0) if name == "wrong" else found.get(name, value)
    size, time, algbw, wrong = (found.get(name) for name in ("size", "time", "algbw", "wrong"))
    if algbw is None and time:
        algbw = (size or 0.0) / time / 1e3
    count = None if wrong is None else int(wrong)
    return Sample(int(size or 0), time, algbw, found.get("busbw"), count)
