"""Writes to stderr, or stdout, without ever waiting for who reads it.

The handle is shared with whoever started this process, so it can't be made non-blocking for it
alone: a thread writes, and the signals' work goes on while a reader stands still.
"""

# tempfile costs the parent half a megabyte.
# ruff: noqa: PTH108, S108
from __future__ import annotations

import _thread
import errno
import os
import select
from _queue import SimpleQueue
from contextlib import suppress
from typing import Final

# Bytes that are kept in memory for a reader; then mpirun waits, as it would itself, or the rest is
# kept in a file.
_ENOUGH: Final = 1 << 18
# As large as that file gets, in the container's own layer.
_FILE_SIZE: Final = 1 << 28
# Kept over reboots by the Filesystem Hierarchy Standard: a disk, and not the container's memory.
_FOLDER: Final = "/var/tmp"
_PIECE: Final = 1 << 16


class OverflowFile:
    """An unlinked file of what does not fit into memory: written and read in order, then empty.

    Used by two threads: one adds, the other takes.
    """

    def __init__(self, folder: str, size: int) -> None:
        """Make no file yet."""
        self._path = f"{folder}/mpiboot-output-{os.getpid()}-{id(self):x}"
        self._size = size
        self._file = -1
        self._read, self._end = 0, 0
        self._lock = _thread.allocate_lock()

    @property
    def holds(self) -> bool:
        """Whether there is something to take."""
        return self._end > 0

    def add(self, data: bytes) -> tuple[int, bool]:
        """Keep some bytes; give how many there was room for, and whether they are its first."""
        with self._lock:
            first, kept = self._end == 0, 0
            if self._end + len(data) <= self._size:
                with suppress(OSError):  # a full disk, or no folder that can be written
                    if self._file < 0:
                        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                        self._file = os.open(self._path, flags, 0o600)
                        os.unlink(self._path)
                    kept = os.pwrite(self._file, data, self._end)
            self._end += kept
            return kept, first

    def take(self) -> bytes:
        """Give the next bytes; none where it is empty, and takes no room any more.

        Raises:
            OSError: it can't be read.
        """
        with self._lock:
            data = os.pread(self._file, min(_PIECE, self._end - self._read), self._read)
            self._read += len(data)
            if not data:
                os.ftruncate(self._file, 0)
                self._read = self._end = 0
            return data


class OutputWriter:
    """What is still to be written, in order.

    ``broken`` once it can't be written any more, by the error ``wrong``: what comes then is lost.
    """

    def __init__(self, handle: int = 2) -> None:
        """Start the thread that writes to a handle.

        ``room`` is readable when there is room after there was none, and when all is written.
        """
        self.broken = False
        self.wrong: OSError | None = None
        self.handle = handle
        self.room, self._tell = os.pipe()
        # None is the end, and an empty piece stands for all that is in the file.
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._file: OverflowFile | None = None
        # Each is changed by one thread alone.
        self._full = False
        self._taken, self._written = 0, 0
        self._awaited = False
        self._ended = False
        self.done = False
        _thread.start_new_thread(self._run, ())

    @property
    def left(self) -> int:
        """How many bytes are not written yet."""
        return 0 if self.broken else self._taken - self._written

    @property
    def file_full(self) -> bool:
        """Whether who writes has to wait until all is written."""
        return self._full and self.left > 0

    def overflow(self, folder: str = _FOLDER, size: int = _FILE_SIZE) -> None:
        """Keep what is too much for memory in a file."""
        self._file = OverflowFile(folder, size)

    def write(self, data: bytes) -> None:
        """Take something to be written; after the end nothing is."""
        if self._ended:
            return
        file, full = self._file, self.file_full
        self._taken += len(data)
        if data and file and not full and (file.holds or self.left > _ENOUGH):
            kept, first = file.add(data)
            if kept and first:
                self._queue.put(b"")
            data = data[kept:]
            full = bool(data)
        self._full = full
        if data:
            self._queue.put(data)

    def has_room(self) -> bool:
        """Whether more may come; if not, ``room`` will tell when."""
        self._awaited = True
        if not self._room():
            return False
        self._awaited = False
        return True

    def take_note(self) -> None:
        """Take in what ``room`` told."""
        os.read(self.room, 512)

    def end(self) -> None:
        """Take nothing more; ``done`` when all is written."""
        if not self._ended:
            self._ended = True
            self._queue.put(None)

    def _room(self) -> bool:
        return not self.file_full if self._file else self.left < _ENOUGH

    def _run(self) -> None:
        while (data := self._queue.get()) is not None:
            if data:
                self._write_all(data)
            else:
                self._write_file()
        self.done = True
        os.write(self._tell, b".")

    def _write_file(self) -> None:
        assert self._file  # noqa: S101 - where its piece comes from
        try:
            while data := self._file.take():
                self._write_all(data)
        except OSError as wrong:  # what is in it is lost
            self._break(wrong)

    def _write_all(self, data: bytes) -> None:
        size = len(data)
        while data and not self.broken:
            data = data[self._write_some(data) :]
        self._written += size
        if self._awaited and self._room():
            self._awaited = False
            os.write(self._tell, b".")

    def _write_some(self, data: bytes) -> int:
        try:
            return os.write(self.handle, data)
        except BlockingIOError:  # somebody else who has this stream has made it so
            poll = select.poll()
            poll.register(self.handle, select.POLLOUT)
            poll.poll()
        except OSError as wrong:
            self._break(wrong)
        return 0

    def _break(self, wrong: OSError) -> None:
        self.broken = True
        if wrong.errno != errno.EPIPE:  # who reads may go when it has enough
            self.wrong = wrong
