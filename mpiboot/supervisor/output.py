"""Mpirun's output: pipes that are read as it comes, and a thread that forwards it.

Nothing in the loop ever waits for the reader of stdout or stderr. The descriptor is shared with
the process that started this one, so it can't be made non-blocking for this process alone: a thread
writes, and signals are handled while a reader stands still. Pipes are read no faster than there is
room for their data: then mpirun blocks, as it would on its own.

Read there is also what mpirun itself reports of its ranks.

Open MPI lets a variable name the descriptor for its own messages. They get a pipe of their own, and
are forwarded to stderr byte for byte; the program's streams stay where they are. They name the rank
that ended first, and its signal: an exit status has neither the rank nor its host.

Hydra reports its ranks on stdout, among their own output (measured with MPICH 4.0.2 and
5.0.2, and Intel MPI 2021.18.1): a block for the first host that reports a rank that a signal
ended, and, by ``-print-all-exitcodes``, at the end every rank's wait status, a line a host. Those
lines are removed where mpiboot had requested them; everything else is forwarded as it comes. Of a
program that a host lacks, its proxy there writes to stderr.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
import stat
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from mpiboot.core import log
from mpiboot.core.launch_spec import PLACEMENT
from mpiboot.supervisor.job import WEAK_ENDS, Job, RankEnd, RankEnded
from mpiboot.supervisor.signals import Handles
from mpiboot.system import process, processes

# Bytes that are held in memory for a reader; then mpirun waits, as it would on its own, and with it
# the ranks where they write. Once it is to end, it is to be held by no reader.
_MAX_HELD_BYTES: Final = 1 << 18
_MAX_HELD_AT_END_BYTES: Final = 1 << 24
_READ_BYTES: Final = 1 << 16


class OutputWriter:
    """Writes a stream in order, by a thread.

    ``broken`` once that has failed by the error ``wrong``: what comes later is lost.
    """

    def __init__(self, handle: int = 2) -> None:
        """Start the thread that writes to a handle.

        It calls ``notify`` when there is room again, and when all is written.
        """
        self.handle, self.broken, self.done = handle, False, False
        self.wrong: OSError | None = None
        self.notify: Callable[[], object] = bool
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()  # None is the end
        self._max_held = _MAX_HELD_BYTES
        # The log is written by any thread; the other number is changed by one alone.
        self._taken, self._written, self._lock = 0, 0, threading.Lock()
        self._awaited = self._ended = False
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def left(self) -> int:
        """How many bytes are not written yet."""
        return 0 if self.broken else self._taken - self._written

    def hurry(self) -> None:
        """Take more in: who writes is to end."""
        self._max_held = _MAX_HELD_AT_END_BYTES
        self.notify()

    def write(self, data: bytes) -> None:
        """Queue something to be written; after the end nothing is."""
        with self._lock:
            if not self._ended:
                self._taken += len(data)
                self._queue.put(data)

    def has_room(self) -> bool:
        """Whether there is room for more; if not, ``notify`` is called later."""
        self._awaited = True  # before the look: room that comes meanwhile is told, maybe twice
        self._awaited = self.left >= self._max_held
        return not self._awaited

    def end(self) -> None:
        """Accept nothing more; ``done`` is set when all is written."""
        if not self._ended:
            self._ended = True
            self._queue.put(None)

    def _run(self) -> None:
        while (data := self._queue.get()) is not None:
            self._write_all(data)
        self.done = True
        self.notify()

    def _write_all(self, data: bytes) -> None:
        size = len(data)
        while data and not self.broken:
            try:
                data = data[os.write(self.handle, data) :]
            except BlockingIOError:  # noqa: PERF203 - by another process that shares it
                poll = select.poll()
                poll.register(self.handle, select.POLLOUT)
                poll.poll()
            except OSError as error:
                self.broken = True
                if error.errno != errno.EPIPE:  # a reader may close the stream when it has enough
                    self.wrong = error
        self._written += size
        if self._awaited and self.left < self._max_held:
            self._awaited = False
            self.notify()


# A pipe holds one piece, or 16 where the kernel's pages have 64 KiB.
_LAST_READS: Final = 16
_OUT, _ERR = 1, 2


def open_pipes(*, mixed: bool, dropped: bool) -> dict[int, tuple[int, int]]:
    """Open the pipes that are mpirun's stdout (1) or stderr (2): where to read, where to write.

    A terminal stays mpirun's own. One pipe is both where both are the same, so that lines keep
    their order.

    Args:
        mixed: mpirun reports ends of ranks on its stdout, and missing programs on stderr.
        dropped: mpirun may drop what a pipe or socket does not take at its end.
    """
    pipes: dict[int, tuple[int, int]] = {}
    with suppress(OSError):  # a stream is closed, or there are too many open files
        same = os.path.sameopenfile(1, 2)
        for stream in (_OUT, _ERR):
            mode, read = os.fstat(stream).st_mode, mixed and not (same or os.isatty(stream))
            if read or (dropped and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))):
                pipes[stream] = pipes[1] if same and pipes else os.pipe()
    return pipes


# Open MPI 4.1 and 5.0, before a rank ends itself for it (MPI_ERRORS_ARE_FATAL).
_MPI_FAILED: Final = re.compile(rb"\*\*\* An error occurred in (MPI_\w+)")
# What both write of a lost daemon; and of a program, with either order of the last two lines.
_LOST: Final = re.compile(
    rb"lost communication with a remote daemon\.\s+HNP daemon .+\n"
    rb" *Remote daemon: \S+ on node (\S+)\n"
)
_NO_PROGRAM = rb"was unable to (?:find|launch) the specified [^-]{,600}?\n *"
_LACKS: Final = (
    re.compile(_NO_PROGRAM + rb"Executable: +(?P<what>.+)\n *Node: +(?P<host>\S+)\n"),
    re.compile(_NO_PROGRAM + rb"Node: +(?P<host>\S+)\n *Executable: +(?P<what>.+)\n"),
    # A proxy of Hydra's (MPICH 4.0.2, 5.0.2, Intel MPI 2021.18.1).
    re.compile(
        rb"\[proxy:[\d:]+@(?P<host>[^]\s]+)\] .+: execvp error on file (?P<what>.+) \([^)\n]+\)\n"
    ),
)
_MAX_MESSAGE_BYTES: Final = 1024  # none is longer


def reports(text: bytes) -> list[RankEnded]:
    """Find what messages of mpirun or ranks report that is no rank's end, the first of each."""
    ends = []
    if found := _MPI_FAILED.search(text):
        ends.append(RankEnded(None, RankEnd.MPI, what=found[1].decode()))
    if found := _LOST.search(text):
        ends.append(RankEnded(None, RankEnd.LOST, found[1].decode("utf-8", "replace")))
    for pattern in _LACKS:
        if found := pattern.search(text):
            host, what = (found[name].decode("utf-8", "replace") for name in ("host", "what"))
            ends.append(RankEnded(None, RankEnd.LACKS, host, what=what))
    return ends


class Parser:
    """What a pipe of mpirun's reports; this one forwards everything."""

    held = b""  # the end of the last text, which is forwarded with the next

    def parse(self, text: bytes, *, last: bool = False) -> tuple[bytes, list[RankEnded]]:  # noqa: ARG002 - other parsers need it
        """Give what to forward of what was held and a text, and the ends of ranks there."""
        return text, []


class StderrMessages(Parser):
    """Reads the stderr of an mpirun, where a message may come in pieces."""

    _recent = b""  # where a message may have begun

    def parse(self, text: bytes, *, last: bool = False) -> tuple[bytes, list[RankEnded]]:  # noqa: ARG002 - other parsers need it
        """Forward everything."""
        recent = self._recent + text
        self._recent = recent[-_MAX_MESSAGE_BYTES:]
        return text, reports(recent)


class MpirunPipe:
    """One pipe that mpirun writes to; its data is forwarded, and ends of ranks are reported."""

    def __init__(self, reader: int, to: OutputWriter, parser: Parser) -> None:
        """Read from ``reader``, and forward to a stream."""
        self.reader, self.to, self.parser = reader, to, parser
        self.over = False  # no process can write there any more
        os.set_blocking(reader, False)

    def read(self) -> list[RankEnded]:
        """Read one piece at most, and forward it; give the ends of ranks that it reports."""
        try:
            data = os.read(self.reader, _READ_BYTES)
        except BlockingIOError:
            return []
        self.over = not data
        return self._take(data) if data else []

    def read_last(self) -> list[RankEnded]:
        """Read all that mpirun had written when it ended, also a line without an end."""
        ends: list[RankEnded] = []
        for _ in range(_LAST_READS):  # another process may still write, and forever
            if not self.over:
                ends += self.read()
        return ends + self._take(b"", last=True)

    def _take(self, data: bytes, *, last: bool = False) -> list[RankEnded]:
        parser, text, ends = self.parser, self.parser.held + data, list[RankEnded]()
        parser.held, shown = b"", text
        try:
            shown, ends = parser.parse(text, last=last)
        except Exception as error:  # noqa: BLE001 - the program's output is forwarded in any case
            log.failed("the parser of mpirun's messages", error)
            self.parser = Parser()
        if shown:
            self.to.write(shown)
        return ends


# Open MPI

# mpirun puts each agent into a group of its own, and so does the agent itself. Where the agent was
# faster mpirun writes `plm:rsh: Warning: setpgid` (4.1; 5.0 plm:ssh): nothing follows from it.
_HARMLESS: Final = re.compile(
    rb"^\[[^\]\n]*\] plm:[rs]sh: Warning: setpgid\([^\n]*\n", re.MULTILINE
)
# In mpirun's environment: its agents keep this option from daemons, which have no such descriptor
# and would write the states to the job's stderr.
STATES: Final = "MPIBOOT_RANK_STATES"
# Above what ranks open: one that gets the variable without the descriptor writes to that number.
_MESSAGES: Final = 200
_VARIABLES: Final = {
    # Measured with 4.1.4: "mpirun noticed that process rank 1 with PID 0 on node w-1 exited on
    # signal 9 (Killed)." comes by this descriptor.
    "openmpi4": {"OPAL_OUTPUT_STDERR_FD": str(_MESSAGES)},
    # Measured with 5.0.7: that message goes to stderr past it, the states of ranks don't.
    "openmpi5": {
        "PMIX_OUTPUT_STDERR_FD": str(_MESSAGES),
        "PRTE_MCA_state_base_verbose": "1",
        STATES: "1",
    },
}
_PLACED: Final = re.compile(r"^\(rank, host, exe, pid\) = \((\d+), ([^,\n]+), ", re.MULTILINE)


def variables(family: str, environ: Mapping[str, str], *, local: bool) -> Mapping[str, str]:
    """Give the variables that lead mpirun's own messages to a descriptor of their own.

    None for an MPI without one, and where the user has set one of them.

    Args:
        family: the MPI.
        environ: mpirun's environment.
        local: whether ranks may run on mpirun's own host, where 4.1 gives them the variable too.
    """
    found = _VARIABLES.get(family, {})
    inherited = local and family == "openmpi4"
    too_few = process.max_open_files() <= _MESSAGES
    return {} if inherited or too_few or not found.keys().isdisjoint(environ) else found


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


_MESSAGES_OF_4: Final = (
    (RankEnd.SIGNAL, _NOTICED),
    (RankEnd.SILENT, _SILENT),
    (RankEnd.ABORT, _ABORTED),
    (RankEnd.STATUS, _STATUS),
)


def ranks_ended(text: bytes) -> list[RankEnded]:
    """Find the ranks that mpirun's messages report as having ended badly, in order."""
    states = [RankEnded(int(found[1]), _ENDS[found[2]]) for found in _STATE.finditer(text)]
    if states:
        return states
    for how, pattern in _MESSAGES_OF_4:
        if found := pattern.search(text):
            rank, *where = found.groups()  # the host, and the signal's number
            host = where[0].decode("utf-8", "replace") if where else ""
            return [RankEnded(int(rank), how, host, int(where[1]) if where[1:] else 0)]
    return [RankEnded(None, RankEnd.STATUS)] if _SOME_STATUS.search(text) else []


class MpirunMessages(Parser):
    """Reads mpirun's own messages as they come, and forwards whole lines."""

    def parse(self, text: bytes, *, last: bool = False) -> tuple[bytes, list[RankEnded]]:
        """Forward all but states of ranks, and what is harmless."""
        whole, newline, rest = text.rpartition(b"\n")
        whole += newline
        shown = _HARMLESS.sub(b"", _STATES.sub(b"", whole))
        if not last:
            self.held = rest
        elif rest.strip(b"\0"):
            shown += rest + b"\n"  # what is written next begins a line of its own
        # 5.0.7 ends messages with a NUL byte where a peer aborted; grep takes that for binary.
        return shown.replace(b"\0", b""), [*ranks_ended(whole), *reports(whole)]


def host_of(folder: str, rank: int) -> str:
    """Give a rank's host by mpirun's own table; empty where it is not there."""
    placed = _PLACED.finditer(processes.text(Path(folder, PLACEMENT)))
    return {int(found[1]): found[2] for found in placed}.get(rank, "")


# Hydra: MPICH and Intel MPI

# "EXIT CODE" is MPICH's name for the wait status; the number of Intel MPI is the signal's.
_BLOCK: Final = re.compile(
    rb"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    rb"=   (?:RANK (\d+) )?PID \d+ RUNNING AT (\S+)\n"
    rb"=   (?:EXIT CODE|KILLED BY SIGNAL): (\d+)[ \n]"
)
_BLOCK_SIZE: Final = 512
# Of MPICH, and of Intel MPI, which writes it amid a line.
_TIMED_OUT: Final = re.compile(
    rb"\] APPLICATION TIMED OUT, TIMEOUT = \d+s\n|I_MPI_JOB_TIMEOUT = \d+ second\(s\): job ending"
)
# A host, behind which Intel MPI writes its number, and its ranks' wait statuses.
_ROW = rb"\[([^\]\s]+?)(?::\d+)?\] (\d+(?:,\d+)*)(?:\n|\Z)"
_STATUSES: Final = re.compile(_ROW)
_LISTING: Final = re.compile(rb"(?:%s)*" % _ROW)
# A wait status: the signal, and whether there is a core file; above them the exit code.
_SIGNAL: Final = 0x7F


def _ended(status: int, host: str) -> RankEnded:
    signal = status & _SIGNAL
    how = RankEnd.SIGNAL if signal else RankEnd.STATUS
    return RankEnded(None, how, host, signal, 0 if signal else status >> 8, last=True)


def first_failure(statuses: Mapping[str, tuple[int, ...]]) -> list[RankEnded]:
    """Find the rank that explains the others' ends, by wait statuses: none, or one."""
    ends = [_ended(status, host) for host, many in statuses.items() for status in many if status]
    weak = WEAK_ENDS
    return sorted(ends, key=lambda end: weak.index(end.signal) if end.signal in weak else 0)[:1]


class HydraMessages(Parser):
    """Reads mpirun's stdout as it comes."""

    def __init__(self, *, take_out: bool) -> None:
        """Get ready; ``take_out`` the lines with statuses, which only mpiboot wanted."""
        self._take_out = take_out
        self._title = f"[mpiexec@{os.uname().nodename}] Exit codes: ".encode()
        self._recent = b""  # where a block may have begun
        self._statuses: dict[str, tuple[int, ...]] = {}

    def parse(self, text: bytes, *, last: bool = False) -> tuple[bytes, list[RankEnded]]:
        """Forward all but the lines with statuses."""
        shown, held = self._without_statuses(text, last=last)
        ends = self._killed(shown)
        if last:
            return shown + held, [*ends, *first_failure(self._statuses)]
        self.held = held
        return shown, ends

    def _killed(self, shown: bytes) -> list[RankEnded]:
        """Find the rank of a block that is whole now, or that the time limit is over."""
        self._recent += shown
        ends = [RankEnded(None, RankEnd.TIMED_OUT)] if _TIMED_OUT.search(self._recent) else []
        found = _BLOCK.search(self._recent)
        self._recent = self._recent[found.end() if found else 0 :][-_BLOCK_SIZE:]
        if not found:
            return ends
        rank, host = int(found[1]) if found[1] else None, found[2].decode("utf-8", "replace")
        return [*ends, RankEnded(rank, RankEnd.SIGNAL, host, int(found[3]) & _SIGNAL)]

    def _without_statuses(self, text: bytes, *, last: bool) -> tuple[bytes, bytes]:
        """Give what to forward, and a listing that may go on, or the beginning of its title."""
        shown = b""
        while self._title in text:
            before, title, rest = text.partition(self._title)
            listing = _LISTING.match(rest)
            listed = listing[0] if listing else b""
            text = rest[len(listed) :]
            if not last and b"\n" not in text:
                return shown + before, title + rest
            for host, numbers in _STATUSES.findall(listed):
                statuses = tuple(map(int, numbers.split(b",")))
                self._statuses[host.decode("utf-8", "replace")] = statuses
            shown += before if self._take_out else before + title + listed
        begun = text.rfind(b"[")  # the title's only one
        if begun < 0 or not self._title.startswith(text[begun:]):
            begun = len(text)
        return shown + text[:begun], text[begun:]


@dataclass(eq=False)
class MpirunStreams:
    """The pipes of one mpirun, from its start to its end.

    Attributes:
        loop: what reads the pipes.
        stderr: where that is forwarded.
        report: gets ends of ranks.
        job: whose mpirun it is.
        stdout: where that is forwarded, if by a pipe.
    """

    loop: Handles
    stderr: OutputWriter
    report: Callable[[list[RankEnded]], None]
    job: Job
    stdout: OutputWriter | None = None
    _pipes: list[MpirunPipe] = field(default_factory=list)
    _opened: dict[int, tuple[int, int]] = field(default_factory=dict)

    def open(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Open this mpirun's pipes; give the variables that it needs for them."""
        spec, family = self.job.spec, self.job.family
        self._opened = open_pipes(mixed=family.mixes_statuses, dropped=family.drops_output)
        more = variables(spec.observed.mpi.family.value, environ, local=spec.local)
        if more:
            self._opened[_MESSAGES] = os.pipe()
        return more

    @property
    def writers(self) -> dict[int, int]:
        """Mpirun's ends of the pipes, by the number that each has there."""
        return {number: writer for number, (_, writer) in self._opened.items()}

    def listen(self) -> None:
        """Close this process's copies of mpirun's ends, and read the others."""
        for writer in set(self.writers.values()):
            os.close(writer)
        readers = {number: reader for number, (reader, _) in self._opened.items()}
        out, err = readers.get(_OUT), readers.get(_ERR)
        if err is not None:
            # What 4.1's mpirun reports has a handle, and here are the ranks' own words alone.
            parsed = self.job.family.reports_on_stderr
            self.add(err, self.stderr, StderrMessages() if parsed else Parser())
        if out is not None and out != err:
            self.stdout = OutputWriter(_OUT)
            hydra = HydraMessages(take_out=self.job.spec.plan.exit_codes)
            self.add(out, self.stdout, hydra if self.job.family.mixes_statuses else Parser())
        if _MESSAGES in readers:
            self.add(readers[_MESSAGES], self.stderr, MpirunMessages())

    def add(self, reader: int, to: OutputWriter, parser: Parser) -> None:
        """Read a pipe from now on, and forward it to a stream."""
        self._pipes.append(MpirunPipe(reader, to, parser))
        loop = asyncio.get_running_loop()
        to.notify = partial(loop.call_soon_threadsafe, self._listen, to)
        self._listen(to)

    def hurry(self) -> None:
        """Take more in than a reader has room for: mpirun is to end."""
        for stream in {pipe.to for pipe in self._pipes}:
            stream.hurry()

    def read_last(self) -> None:
        """Forward what is there, even if the stream's reader is slow."""
        for pipe in self._pipes:
            self._take(pipe.read_last)

    def _listen(self, stream: OutputWriter, *, room: bool = True) -> None:
        """Read all pipes that go to a stream, or none: there is no room for more."""
        for pipe in self._pipes:
            if pipe.to is stream and not pipe.over:
                if room:
                    self.loop.on(pipe.reader, partial(self._read, pipe))
                else:
                    self.loop.off(pipe.reader)

    def _take(self, read: Callable[[], list[RankEnded]]) -> None:
        try:
            self.report(read())
        except Exception as error:  # noqa: BLE001 - the stream is read on
            log.failed("handling rank ends", error)

    def _read(self, pipe: MpirunPipe) -> None:
        # One piece: a writer without end must not keep signals from being handled.
        self._take(pipe.read)
        if pipe.over:
            self.loop.off(pipe.reader)  # it would be ready forever
        elif pipe.to.broken and not isinstance(pipe.parser, MpirunMessages):
            self.loop.off(pipe.reader)
            pipe.over = True
            os.close(pipe.reader)  # mpirun gets EPIPE
        if not pipe.to.has_room():
            # All of them: one that checked again, and got room, would take the others' wake-up.
            self._listen(pipe.to, room=False)
