"""What mpirun itself says of its ranks, read apart from what the program writes.

Open MPI lets a variable name the handle for its own messages. They get one of their own, and go
on to stderr byte for byte; the program's streams stay where they are. From them it is known which
rank ended first, and by which signal: an exit status tells neither the rank nor its host.
"""

# pathlib, and what it imports, costs the parent a megabyte.
# ruff: noqa: PTH123
from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from mpiboot.core.launch_spec import PLACEMENT
from mpiboot.supervisor.events import RankEnd, RankEnded
from mpiboot.supervisor.mpirun_pipes import MpirunPipe, mpi_failed

# mpirun puts each agent into a group of its own, and so does the agent itself. Where the agent was
# faster mpirun says `plm:rsh: Warning: setpgid` (4.1; 5.0 plm:ssh): nothing follows from it.
_HARMLESS: Final = re.compile(
    rb"^\[[^\]\n]*\] plm:[rs]sh: Warning: setpgid\([^\n]*\n", re.MULTILINE
)
# In mpirun's environment: its agents keep the wish for states from daemons, which have no such
# handle and would write them to the job's stderr.
STATES: Final = "MPIBOOT_RANK_STATES"
# Above what ranks open, for one that gets the variable without the handle writes to that number.
_HANDLE: Final = 200
_PLACED: Final = re.compile(r"^\(rank, host, exe, pid\) = \((\d+), ([^,\n]+), ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MessageHandle:
    """How one MPI is asked; ``inherited`` where ranks on its own host get the variable too."""

    handle: str
    asked: tuple[tuple[str, str], ...] = ()
    inherited: bool = False


HANDLES: Final = {
    # Measured with 4.1.4: "mpirun noticed that process rank 1 with PID 0 on node w-1 exited on
    # signal 9 (Killed)." comes by this handle. Remote ranks don't get the variable.
    "openmpi4": MessageHandle("OPAL_OUTPUT_STDERR_FD", inherited=True),
    # Measured with 5.0.7: that message goes to stderr past it, the states of ranks don't.
    "openmpi5": MessageHandle(
        "PMIX_OUTPUT_STDERR_FD", (("PRTE_MCA_state_base_verbose", "1"), (STATES, "1"))
    ),
}


class MessagePipe(NamedTuple):
    """A pipe for mpirun's own messages, and the variables that lead them there."""

    reader: int
    writer: int
    environ: Mapping[str, str]

    def started(self) -> int:
        """Give the end to read; mpirun has the other one."""
        os.close(self.writer)
        return self.reader


def reserve_handle() -> None:
    """Let the pipe's handle be had later on without a wait; to be called before there are threads.

    For a handle of such a number the kernel makes a larger table of open files, and where threads
    share that it waits until no processor reads the old one (fs/file.c, ``expand_fdtable``):
    20 to 30 ms, as measured, in which all hosts are ready and mpirun could run.
    """
    with suppress(OSError):  # the limit of open files is lower
        os.close(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, _HANDLE))


def open_pipe(family: str, environ: Mapping[str, str], *, local: bool) -> MessagePipe | None:
    """Open a way for mpirun's own messages; None where there is none, or the user has another.

    Args:
        family: the MPI.
        environ: mpirun's environment.
        local: whether ranks may run on mpirun's own host.
    """
    row = HANDLES.get(family)
    if row is None or (local and row.inherited):
        return None
    if any(name in environ for name in (row.handle, *dict(row.asked))):
        return None
    reader, near = os.pipe()
    try:
        writer = fcntl.fcntl(near, fcntl.F_DUPFD, _HANDLE)
    except OSError:  # the limit of open files is lower
        os.close(reader)
        return None
    finally:
        os.close(near)
    return MessagePipe(reader, writer, {row.handle: str(writer), **dict(row.asked)})


# A line: [w:13] [prterun-w-13@0,0] [17.18] ACTIVATE PROC [prterun-w-13@1,1] STATE RUNNING AT ...
_STATES: Final = re.compile(
    rb"^\[[^]\n]*\] \[[^]\n]*@0,0\] \[[0-9.]+\] ACTIVAT(?:E|ING) (?:JOB|PROC) .*\n", re.MULTILINE
)
_ENDS: Final = {
    b"ABORTED BY SIGNAL": RankEnd.SIGNAL,
    b"CALLED ABORT": RankEnd.ABORT,
    b"EXITED WITH NON-ZERO STATUS": RankEnd.STATUS,
    b"TERMINATED WITHOUT SYNC": RankEnd.SILENT,
}
# Job 1 is the one that mpirun was started for. Another one was spawned by a rank: its ranks have
# numbers of their own, and 5.0.7 lets the first job go on without them (measured).
_STATE: Final = re.compile(rb" ACTIVATE PROC \[[^]\n]*@1,(\d+)\] STATE (%s) " % b"|".join(_ENDS))
_NOTICED: Final = re.compile(
    rb"noticed that process rank (\d+) with PID \d+ on node (\S+) exited on\s+signal (\d+)"
)
_ABORTED: Final = re.compile(rb"MPI_ABORT was invoked on rank (\d+) in communicator MPI_COMM_WORLD")
_SILENT: Final = re.compile(
    rb"due to process rank (\d+) with PID \d+ on\s+node (\S+) exiting improperly"
)
# 4.1, before it names one, or instead.
_SOME_STATUS: Final = re.compile(rb"process(?:es)? returned\s+a non-zero exit code")
_STATUS: Final = re.compile(rb"Process name: \[\[\d+,1\],(\d+)\]\s+Exit code: +\d+")


def ranks_ended(text: bytes) -> list[RankEnded]:
    """Find the ranks that some of mpirun's messages name as ones that ended badly, in order."""
    states = [RankEnded(int(found[1]), _ENDS[found[2]]) for found in _STATE.finditer(text)]
    if states:
        return states
    if found := _NOTICED.search(text):
        host = found[2].decode("utf-8", "replace")
        return [RankEnded(int(found[1]), RankEnd.SIGNAL, host, int(found[3]))]
    if found := _SILENT.search(text):
        host = found[2].decode("utf-8", "replace")
        return [RankEnded(int(found[1]), RankEnd.SILENT, host)]
    if found := _ABORTED.search(text):
        return [RankEnded(int(found[1]), RankEnd.ABORT)]
    if found := _STATUS.search(text):
        return [RankEnded(int(found[1]), RankEnd.STATUS)]
    return [RankEnded(None, RankEnd.STATUS)] if _SOME_STATUS.search(text) else []


class MpirunMessages(MpirunPipe):
    """Reads mpirun's own messages as they come, and passes whole lines on."""

    def _parse(self, text: bytes, *, last: bool) -> tuple[bytes, bytes, list[RankEnded]]:
        whole, newline, rest = text.rpartition(b"\n")
        whole += newline
        shown = _HARMLESS.sub(b"", _STATES.sub(b"", whole))
        if last and rest.strip(b"\0"):
            shown, rest = shown + rest + b"\n", b""  # whoever writes next begins a line of its own
        # 5.0.7 ends messages with a NUL byte where a peer aborted; grep takes that for binary.
        told = [*ranks_ended(whole), *mpi_failed(whole)]
        return shown.replace(b"\0", b""), b"" if last else rest, told


def host_of(folder: str, rank: int) -> str:
    """Look a rank's host up in what mpirun wrote; empty where it did not."""
    return _rank_table(folder).get(rank, "")


def hosts_with_ranks(folder: str) -> frozenset[str]:
    """Give the hosts of which mpirun wrote that they have ranks; empty where it wrote nothing."""
    return frozenset(_rank_table(folder).values())


def _rank_table(folder: str) -> dict[int, str]:
    try:
        with open(f"{folder}/{PLACEMENT}", encoding="utf-8", errors="replace") as file:
            return {int(found[1]): found[2] for found in _PLACED.finditer(file.read())}
    except OSError:
        return {}
