"""nccl-tests, and RCCL's alike: the shell that starts one in a rank, and what it prints. Pure.

Which program runs is decided where it runs: the launcher's pod may have neither GPUs nor the tool.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from mpiboot.core.checks import error

NAME: Final = "nccl-tests"
_PROGRAMS: Final = ("all_reduce_perf_mpi", "all_reduce_perf")
_ANY_PROGRAM: Final = re.compile(r"\w+_perf(_mpi)?")
_ARGUMENTS: Final = "-b 1K -e 8G -f 4 -n 20 -w 3 -c 1"
# Of these the bus bandwidth is that of each link of a ring over all ranks; of others, such as
# alltoall_perf, it is a rank's own.
RING: Final = re.compile(r"(all_reduce|all_gather|reduce_scatter|broadcast|reduce)_perf(_mpi)?")
_SHELL: Final = __file__.rpartition("/")[0].rpartition("/")[0] + "/libexec/validate"


def shell(asked: str, words: Sequence[str] = (), devices: int = 1) -> str:
    """Write the shell that finds the tool and runs it in one rank.

    Args:
        asked: the tool's name, or a program's name or path; empty: the tool.
        words: the user's own arguments, in place of the usual ones.
        devices: GPUs of each rank.

    Raises:
        MpibootError: ``usage``; there is no such tool.
    """
    named = asked not in ("", NAME)
    if named and not _ANY_PROGRAM.fullmatch(asked.rpartition("/")[2]):
        hint = "or one of its programs, such as alltoall_perf; OSU's and Intel's benchmarks are "
        hint += "jobs: `mpiboot mpirun osu_allreduce`"
        raise error("usage", f"--tool is {asked!r}: expected {NAME}", hint=hint)
    with open(_SHELL, encoding="ascii") as file:  # noqa: PTH123 - a word from end to end
        lines = [line for line in file if not line.lstrip().startswith("#")]
    programs = (asked,) if named else _PROGRAMS
    for program in programs:
        line = [program, *(words or _ARGUMENTS.split())]
        line += [] if "-g" in words else ["-g", str(devices)]
        lines.append(f"measure {shlex.join(line)}\n")
    return "".join((*lines, f"missing {shlex.quote(', '.join(programs))}\n"))


# A line of the shell's own begins so; behind it the host, what it is about, and a text.
_MARK: Final = "mpiboot-validate|"
_ROW: Final = re.compile(r"\s*\d+\s")
NUMBER: Final = re.compile(r"\d{1,18}(\.\d*)?(e[+-]?\d\d)?", re.ASCII)
_MAX_LINE: Final = 1 << 16  # characters


@dataclass(frozen=True, slots=True)
class Sample:
    """One message size in bytes, its bus bandwidth in GB/s, wrong values (None: not checked)."""

    size: int
    busbw: float
    wrong: int | None = None


@dataclass(slots=True, eq=False)
class Output:
    """What a run has printed so far.

    ``started`` are the programs by host, ``missing`` where a host looked for one in vain, ``nccl``
    NCCL's own lines by host; ``heads`` counts the processes that began a run: several, where the
    tool is built without MPI. ``rest`` is a line without its end.
    """

    samples: list[Sample] = field(default_factory=list)
    started: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    nccl: dict[str, set[str]] = field(default_factory=dict)
    heads: int = 0
    _columns: list[str] = field(default_factory=list)
    rest: str = ""

    def feed(self, data: bytes) -> Iterator[str]:
        """Read what came; give the whole lines of it that are not the shell's own."""
        *lines, self.rest = (self.rest + data.decode("utf-8", "replace")).split("\n")
        self.rest = self.rest[:_MAX_LINE]
        for line in lines:
            shown, mark, told = line.partition(_MARK)
            if mark:
                self._add(told)
            else:
                self._read(shown)
                yield line

    def _add(self, text: str) -> None:
        host, kind, value = (*text.split("|", 2), "", "")[:3]
        if kind == "nccl":
            self.nccl.setdefault(host, set()).add(value)
        elif kind == "start":
            self.started[host] = value
        elif kind == "missing":
            self.missing[host] = value

    def _read(self, line: str) -> None:
        """Read a header, whose words name the columns, or a row: out of place, then in place.

        A row that is cut off says nothing; what follows one is a timestamp (-T), or a line of NCCL.
        """
        words = line.strip("# \r").split()
        if line.lstrip().startswith("#"):
            self.heads += line.startswith("# nThread ")
            self._columns = words if "busbw" in words else self._columns
        elif _ROW.match(line) and self._columns and len(words) >= len(self._columns):
            cells = zip(self._columns, words, strict=False)
            numbers = [(name, float(cell)) for name, cell in cells if NUMBER.fullmatch(cell)]
            rates = [value for name, value in numbers if name == "busbw"]
            wrong = [int(value) for name, value in numbers if name.strip("#") == "wrong"]
            if rates and NUMBER.fullmatch(words[0]):
                count = sum(wrong) if wrong else None
                self.samples.append(Sample(int(words[0]), round(fmean(rates), 4), count))
