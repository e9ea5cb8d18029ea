"""Pipes by which this process reads what mpirun writes, and passes it on to stderr.

They are read no faster than stderr is: where nobody reads that, mpirun waits as it would itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from mpiboot.parent.events import RankEnded
from mpiboot.parent.loop import EventLoop
from mpiboot.parent.stderr import Stderr

_PIECE: Final = 65536
# A pipe holds one piece; a user may have made it larger.
_LAST: Final = 4


def open_stderr() -> tuple[int, int] | None:
    """Open a pipe that can be mpirun's stderr: where to read and where to write.

    None where mpirun keeps this process's own: on a terminal, and where stdout is the same file,
    in which lines of both would change places.
    """
    try:
        if os.isatty(2) or os.path.sameopenfile(1, 2):
            return None
        return os.pipe()
    except OSError:  # one of them is closed, or there are too many open files
        return None


class MpirunPipe:
    """One pipe that mpirun writes to; all but NUL bytes goes on to stderr."""

    def __init__(self, reader: int, write: Callable[[bytes], None]) -> None:
        """Read from ``reader``; pass on by ``write``."""
        self.reader = reader
        self.over = False  # nobody can write there any more
        self._write = write
        os.set_inheritable(reader, False)
        os.set_blocking(reader, False)

    def read(self) -> list[RankEnded]:
        """Take in what is there, as far as it fits into one piece; give what it tells."""
        try:
            data = os.read(self.reader, _PIECE)
        except BlockingIOError:
            return []
        self.over = not data
        return self._take(data) if data else []

    def read_last(self) -> list[RankEnded]:
        """Take in all that mpirun had written when it ended."""
        ends: list[RankEnded] = []
        for _ in range(_LAST):  # somebody else may still write, and for ever
            ends += self.read()
        return ends

    def _take(self, data: bytes) -> list[RankEnded]:
        # 5.0.7 writes one by itself after the text with which it gives up (PMIx's plog/stdfd);
        # grep takes a log with one for binary. Those of ranks can't be told from it.
        self._write(data.replace(b"\0", b""))
        return []


class MpirunPipes:
    """All pipes of one mpirun."""

    def __init__(
        self, loop: EventLoop, stderr: Stderr, tell: Callable[[list[RankEnded]], None]
    ) -> None:
        """Wait for them in ``loop``; what they tell of ranks goes to ``tell``."""
        self._loop = loop
        self._stderr = stderr
        self._tell = tell
        self._pipes: list[MpirunPipe] = []

    def add(self, pipe: MpirunPipe) -> None:
        """Read a pipe from now on."""
        self._pipes.append(pipe)
        self._loop.on(self._stderr.room, self._read_on)
        self._listen(pipe)

    def read_last(self) -> None:
        """Pass on what is there, whoever reads stderr."""
        for pipe in self._pipes:
            self._tell(pipe.read_last())

    def _listen(self, pipe: MpirunPipe) -> None:
        self._loop.on(pipe.reader, lambda: self._read(pipe))

    def _read(self, pipe: MpirunPipe) -> None:
        # One piece: who writes without end must not keep signals from being heard.
        self._tell(pipe.read())
        if pipe.over:
            self._loop.off(pipe.reader)  # it would be ready for ever
        if not self._stderr.has_room():
            # All of them: one that asked again, and got room, would have ``room`` tell nobody.
            for each in self._pipes:
                self._loop.off(each.reader)

    def _read_on(self) -> None:
        """Read again: more had come than stderr was read."""
        os.read(self._stderr.room, _PIECE)
        for pipe in self._pipes:
            if not pipe.over:
                self._listen(pipe)
