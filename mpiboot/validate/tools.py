"""The tools that measure, as rows, and the shell by which each rank starts one. Pure.

Which tool runs is settled where it runs: the launcher's pod may have neither GPUs nor the tool.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from mpiboot.core.dataclass import dataclass

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


# A line of the shell's own begins so; behind it the host, what it is about (the next three words),
# and a text.
MARK: Final = "mpiboot-validate|"
START, MISSING, NCCL = "start", "missing", "nccl"


def shell(
    asked: str, words: Sequence[str] = (), *, devices: int = 1, before: Sequence[str] = ()
) -> str:
    """Write the shell that finds a tool, becomes it for one rank, and tells what NCCL said.

    Args:
        asked: the tool's name, or a program's name or path; empty for the first that can run.
        words: the user's own arguments, in place of the row's.
        devices: GPUs of each rank.
        before: what starts the ranks of a tool of MPI, where this shell is none.
    """
    one = find(asked) if asked else None
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
