"""Pipes by which this process reads what mpirun writes, and passes it on to its own stream.

They are read no faster than that is: where nobody reads it, mpirun waits as it would itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from mpiboot.parent.events import RankEnded
from mpiboot.parent.loop import EventLoop
from mpiboot.parent.output_writer import OutputWriter

_PIECE: Final = 65536
# A pipe holds one piece; a user may have made it larger.
_LAST: Final = 4


def open_pipe(stream: int) -> tuple[int, int] | None:
    """Open a pipe that can be mpirun's stdout (1) or stderr (2): where to read and where to write.

    None where mpirun keeps this process's own: on a terminal, and where both are the same file,
    in which lines of both would change places.
    """
    try:
        if os.isatty(stream) or os.path.sameopenfile(1, 2):
            return None
        return os.pipe()
    except OSError:  # one of them is closed, or there are too many open files
        return None


class MpirunPipe:
    """One pipe that mpirun writes to; all but NUL bytes goes on."""

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
            if not self.over:
                ends += self.read()
        return ends

    def close(self) -> None:
        """Let mpirun find that nobody reads any more."""
        self.over = True
        os.close(self.reader)

    def _take(self, data: bytes) -> list[RankEnded]:
        # 5.0.7 writes one by itself after the text with which it gives up (PMIx's plog/stdfd);
        # grep takes a log with one for binary. Those of ranks can't be told from it.
        self._write(data.replace(b"\0", b""))
        return []


class MpirunPipes:
    """All pipes of one mpirun that go on to the same stream."""

    def __init__(
        self,
        loop: EventLoop,
        stream: OutputWriter,
        tell: Callable[[list[RankEnded]], None],
        *,
        ends_with_stream: bool = False,
    ) -> None:
        """Read no pipe yet.

        Args:
            loop: where they are waited for.
            stream: where they go on to.
            tell: called with what they tell of ranks.
            ends_with_stream: mpirun is to notice when nobody reads that any more.
        """
        self._loop = loop
        self._stream = stream
        self._ends = ends_with_stream
        self._tell = tell
        self._pipes: list[MpirunPipe] = []

    def add(self, pipe: MpirunPipe) -> None:
        """Read a pipe from now on."""
        self._pipes.append(pipe)
        self._loop.on(self._stream.room, self._read_on)
        self._listen(pipe)

    def read_last(self) -> None:
        """Pass on what is there, whoever reads the stream."""
        for pipe in self._pipes:
            self._tell(pipe.read_last())

    def _listen(self, pipe: MpirunPipe) -> None:
        self._loop.on(pipe.reader, lambda: self._read(pipe))

    def _read(self, pipe: MpirunPipe) -> None:
        # One piece: who writes without end must not keep signals from being heard.
        self._tell(pipe.read())
        if pipe.over:
            self._loop.off(pipe.reader)  # it would be ready for ever
        elif self._ends and self._stream.broken:
            self._loop.off(pipe.reader)
            pipe.close()
        if not self._stream.has_room():
            # All of them: one that asked again, and got room, would have ``room`` tell nobody.
            for each in self._pipes:
                if not each.over:
                    self._loop.off(each.reader)

    def _read_on(self) -> None:
        """Read again: more had come than was read of the stream."""
        os.read(self._stream.room, _PIECE)
        for pipe in self._pipes:
            if not pipe.over:
                self._listen(pipe)
