"""Writes to stderr, or stdout, without ever waiting for who reads it.

The handle is shared with mpirun and its ranks, so it can't be made non-blocking for this process
alone: a thread writes, and the signals' work goes on while a reader stands still.
"""

from __future__ import annotations

import _thread
import os
from _queue import SimpleQueue
from typing import Final

# Bytes of mpirun's messages that are kept for a reader; then mpirun waits, as it would itself.
_ENOUGH: Final = 1 << 18
# Seconds without a byte written after which the end is told to nobody.
_PATIENCE: Final = 5.0


class OutputWriter:
    """What is still to be written; each piece is one write, in order.

    ``broken`` once nobody can read it any more: what comes then is lost.
    """

    def __init__(self, handle: int = 2) -> None:
        """Start the thread that writes to a handle; ``room`` is readable when there is room."""
        self.broken = False
        self._handle = handle
        self.room, self._tell = os.pipe()
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        # Each is changed by one thread alone.
        self._taken, self._written = 0, 0
        self._awaited = False
        self._flushed = False
        self._over = _thread.allocate_lock()
        self._over.acquire()
        _thread.start_new_thread(self._run, ())

    def write(self, data: bytes) -> None:
        """Take something to be written."""
        self._taken += len(data)
        self._queue.put(data)

    def has_room(self) -> bool:
        """Whether more may come; if not, ``room`` will tell when."""
        self._awaited = True
        if self._taken - self._written >= _ENOUGH:
            return False
        self._awaited = False
        return True

    def flush(self) -> None:
        """Wait until all is written, as long as somebody reads; nothing is written afterwards."""
        if self._flushed:
            return
        self._flushed = True
        self._queue.put(None)
        before = self._written
        while not self._over.acquire(timeout=_PATIENCE) and self._written != before:
            before = self._written

    def _run(self) -> None:
        while (data := self._queue.get()) is not None:
            self._write_all(data)
            self._written += len(data)
            if self._awaited and self._taken - self._written < _ENOUGH:
                self._awaited = False
                os.write(self._tell, b".")
        self._over.release()

    def _write_all(self, data: bytes) -> None:
        try:
            while data and not self.broken:
                data = data[os.write(self._handle, data) :]
        except OSError:
            self.broken = True
