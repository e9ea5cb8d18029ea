"""Mpirun's output: pipes that are read as it comes, and a thread that forwards it.

Nothing in the loop ever waits for the reader of stdout or stderr. The descriptor is shared with
the process that started this one, so it can't be made non-blocking for this process alone: a thread
writes, and signals are handled while a reader stands still. Pipes are read no faster than there is
room for their data: then mpirun blocks, as it would on its own.
"""

from __future__ import annotations

import errno
import os
import re
import select
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

from mpiboot.core import log
from mpiboot.supervisor.handles import Handles
from mpiboot.supervisor.state import RankEnd, RankEnded

# Bytes that are held in memory for a reader; then mpirun waits, as it would on its own, and with it
# the ranks where they write. Once it is to end, it is to be held by no reader.
_MAX_HELD_BYTES: Final = 1 << 18
_MAX_HELD_AT_END_BYTES: Final = 1 << 24
# Seconds without room after which a warning says that the ranks waited.
_LONG_WAIT_S: Final = 10.0
_READ_BYTES: Final = 1 << 16


class OutputWriter:
    """Writes a stream in order, by a thread.

    ``broken`` once that has failed by the error ``wrong``: what comes later is lost.
    """

    def __init__(self, handle: int = 2) -> None:
        """Start the thread that writes to a handle.

        ``room`` becomes readable when there is room again, and when all is written.
        """
        self.handle, self.broken, self.done = handle, False, False
        self.wrong: OSError | None = None
        self.room, self._notify = os.pipe()
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
        os.write(self._notify, b".")

    def write(self, data: bytes) -> None:
        """Queue something to be written; after the end nothing is."""
        with self._lock:
            if not self._ended:
                self._taken += len(data)
                self._queue.put(data)

    def has_room(self) -> bool:
        """Whether there is room for more; if not, ``room`` becomes readable later."""
        self._awaited = True
        if self.left >= self._max_held:
            return False
        self._awaited = False
        return True

    def take_note(self) -> None:
        """Empty ``room``."""
        os.read(self.room, 512)

    def end(self) -> None:
        """Accept nothing more; ``done`` is set when all is written."""
        if not self._ended:
            self._ended = True
            self._queue.put(None)

    def _run(self) -> None:
        while (data := self._queue.get()) is not None:
            self._write_all(data)
        self.done = True
        os.write(self._notify, b".")

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
            os.write(self._notify, b".")


# A pipe holds one piece; a user may have made it larger.
_LAST_READS: Final = 4
_STREAMS: Final = {1: "stdout", 2: "stderr"}


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
        for stream in _STREAMS if mixed and not same else ():
            if not os.isatty(stream):
                pipes[stream] = os.pipe()
        for stream in _STREAMS if dropped else ():
            mode = os.fstat(stream).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
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


class MpirunPipe:
    """One pipe that mpirun writes to; its data is forwarded, and ends of ranks are reported."""

    def __init__(
        self, reader: int, write: Callable[[bytes], None], *, ends_with_stream: bool = False
    ) -> None:
        """Read from ``reader``; forward by ``write``.

        ``ends_with_stream``: close the pipe when the stream's reader is gone: mpirun is to notice.
        """
        self.reader, self.ends_with_stream = reader, ends_with_stream
        self.over = False  # no process can write there any more
        self._write, self._failed = write, False
        self._held = b""  # what was read and is not forwarded yet
        os.set_inheritable(reader, False)
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

    def close(self) -> None:
        """Close it: mpirun gets EPIPE."""
        self.over = True
        os.close(self.reader)

    def _take(self, data: bytes, *, last: bool = False) -> list[RankEnded]:
        text, self._held, ends = self._held + data, b"", list[RankEnded]()
        shown = text
        try:
            if not self._failed:
                shown, ends = self._parse(text, last=last)
        except Exception as error:  # noqa: BLE001 - the program's output is forwarded in any case
            log.failed("the parser of mpirun's messages", error)
            self._failed = True
        if shown:
            self._write(shown)
        return ends

    def _parse(self, text: bytes, *, last: bool) -> tuple[bytes, list[RankEnded]]:
        """Give what to forward, and ends of ranks; ``_held`` is for later, unless it's the last."""
        del last
        return text, []


class ReportsPipe(MpirunPipe):
    """The stderr of an mpirun that writes its own messages there, in several pieces at times."""

    _recent = b""  # where a message may have begun

    def _parse(self, text: bytes, *, last: bool) -> tuple[bytes, list[RankEnded]]:
        del last
        recent = self._recent + text
        self._recent = recent[-_MAX_MESSAGE_BYTES:]
        return text, reports(recent)


class StderrPipe(ReportsPipe):
    """The stderr of an mpirun that ends its own messages with a NUL byte.

    5.0.7 does after the text with which it gives up (PMIx's plog/stdfd); grep takes a log with one
    for binary. They stand behind a newline; other NUL bytes are the ranks'.
    """

    def _parse(self, text: bytes, *, last: bool) -> tuple[bytes, list[RankEnded]]:
        before = self._recent[-1:]
        text = (before + text).replace(b"\n\0", b"\n")[len(before) :]
        return super()._parse(text, last=last)


class MpirunPipes:
    """All pipes of one mpirun that are forwarded to the same stream."""

    def __init__(
        self, loop: Handles, stream: OutputWriter, report: Callable[[list[RankEnded]], None]
    ) -> None:
        """Wait in a loop for pipes; ``report`` gets the ends of ranks that they report."""
        self._loop, self._stream, self._report = loop, stream, report
        self._pipes: list[MpirunPipe] = []
        self._full_since: float | None = None

    def add(self, pipe: MpirunPipe) -> None:
        """Read a pipe from now on."""
        self._pipes.append(pipe)
        self._loop.on(self._stream.room, self._read_on)
        self._listen(pipe)

    def read_last(self) -> None:
        """Forward what is there, even if the stream's reader is slow."""
        for pipe in self._pipes:
            self._take(pipe.read_last)

    def _listen(self, pipe: MpirunPipe) -> None:
        self._loop.on(pipe.reader, lambda: self._read(pipe))

    def _take(self, read: Callable[[], list[RankEnded]]) -> None:
        try:
            self._report(read())
        except Exception as error:  # noqa: BLE001 - the stream is read on
            log.failed("what handles the ends of ranks", error)

    def _read(self, pipe: MpirunPipe) -> None:
        # One piece: a writer without end must not keep signals from being handled.
        self._take(pipe.read)
        if pipe.over:
            self._loop.off(pipe.reader)  # it would be ready forever
        elif pipe.ends_with_stream and self._stream.broken:
            self._loop.off(pipe.reader)
            pipe.close()
        if not self._stream.has_room():
            # All of them: one that checked again, and got room, would take the others' wake-up.
            for each in self._pipes:
                if not each.over:
                    self._loop.off(each.reader)
            self._full_since = self._full_since or time.monotonic()

    def _read_on(self) -> None:
        """Read again: there is room."""
        self._stream.take_note()
        since, self._full_since = self._full_since, None
        if since and (waited := time.monotonic() - since) > _LONG_WAIT_S:
            name = _STREAMS[self._stream.handle]
            log.warning("output", f"nobody read {name} for {waited:.0f} s: the ranks waited")
        for pipe in self._pipes:
            if not pipe.over:
                self._listen(pipe)
