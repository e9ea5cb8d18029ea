"""The ways in which a rank or a host is odd: reference, level, and what to do. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mpiboot.core.model import Level


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to be odd; ``PID`` in the hint stands for a rank's."""

    check: str
    level: Level
    hint: str


STOPPED: Final = Kind(
    "rank-stopped",
    Level.FAIL,
    (
        "`kill -CONT PID` in that pod lets it go on; find who stopped it: SIGSTOP or SIGTSTP, a "
        "debugger, a shell's job control"
    ),
)
TRACED: Final = Kind(
    "rank-traced",
    Level.FAIL,
    ("end the debugger (gdb, strace) that is attached to it"),
)
MISSING: Final = Kind(
    "rank-missing",
    Level.FAIL,
    (
        "they have ended, or never began: look at the launcher's log, and whether that pod was "
        "out of memory"
    ),
)
BEFORE: Final = Kind(
    "rank-before-mpi",
    Level.FAIL,
    (
        "look at what its program does before MPI_Init there: a wrapper script, imports from a "
        "slow volume, a lock, a download"
    ),
)
KERNEL: Final = Kind(
    "rank-in-kernel",
    Level.FAIL,
    (
        "a file system or a device does not answer: look at that volume and its server, and at the "
        "node's kernel log; no signal ends the rank before it answers"
    ),
)
FILE: Final = Kind(
    "rank-in-file",
    Level.FAIL,
    ("look at that file, at who is to write it, and at the volume it is on"),
)
APART: Final = Kind(
    "rank-apart",
    Level.FAIL,
    (
        "it does not take part in what the others wait for: look at where its program is (py-spy "
        "dump --pid PID for Python, gdb -p PID else)"
    ),
)
LEFT: Final = Kind(
    "rank-left-mpi",
    Level.WARN,
    ("look at what its program does behind MPI_Finalize"),
)
ALONE: Final = Kind(
    "rank-busy-alone",
    Level.WARN,
    (
        "the others wait, maybe for it: look at where its program is (py-spy dump --pid PID for "
        "Python, gdb -p PID else)"
    ),
)
PROGRAM: Final = Kind(
    "rank-program",
    Level.WARN,
    (
        "a wrapper may still be before its program, or that pod has another image; a line for "
        "mpirun with several programs has this too"
    ),
)
UNANSWERED: Final = Kind(
    "data-unanswered",
    Level.FAIL,
    (
        "packets between these hosts are lost: look at that link on both, at a NetworkPolicy or "
        "firewall between them, and at the MTU of the network"
    ),
)
LINK: Final = Kind("link-down", Level.FAIL, "look at that pod's network, and at its node's")
HOST: Final = Kind(
    "host-still",
    Level.WARN,
    ("look at the ranks of that host, and at its links"),
)
