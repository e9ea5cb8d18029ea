"""The time in which ranks save: they are told to end, and mpirun is held until they have.

An mpirun that is signalled kills its ranks within a second or two (4.1), or less (5.0), and so
does one that sees a first rank end badly. So the ranks alone are told, by a child of this
process (``supervisor/stop_ranks.py``), and mpirun is stopped meanwhile: it
can't order anything. Its daemons go on. What they have to say while every rank is still there
(output, the barrier of MPI_Finalize) mpirun is let run for; once a rank has
ended it could only be the order to kill the others.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from mpiboot.supervisor.asking import STOP_RANKS, AskingChild
from mpiboot.supervisor.processes import send
from mpiboot.supervisor.watch import unread
from mpiboot.system.loop import EventLoop

_LOOK: Final = 0.1
# Seconds for a host to take a connection: half of the grace that jobs have by default. A host that
# takes none has lost its ranks, or they can't be told.
_CONNECT: Final = 10


class Saving:
    """Ranks that save, and an mpirun that is held meanwhile."""

    def __init__(
        self,
        loop: EventLoop,
        mpiruns: Callable[[], Iterable[int]],
        changed: Callable[[int | None], None],
        ranks: int | None,
    ) -> None:
        """Hold nothing yet.

        Args:
            loop: where the child is listened to.
            mpiruns: finds the processes that are mpirun.
            changed: called with each number of ranks that are there, and with None where nobody
                knows of any.
            ranks: how many were started, where that is known.
        """
        self._loop = loop
        self._mpiruns = mpiruns
        self._changed = changed
        self._pids: tuple[int, ...] = ()
        self._child: AskingChild | None = None
        self._writer = -1
        self._started = ranks or 0
        self._all = False  # every rank is there
        self._found = False  # any rank was
        self._asked = 0  # looks that were wanted, each as mpirun got something to read
        self._answered = 0  # the last of them of which the numbers tell
        self._something = False  # mpirun has something to read
        self._look_at: float | None = None

    @property
    def due(self) -> float | None:
        """When ``look`` has to be called (monotonic clock); None where nothing is held."""
        return self._look_at

    def start(self, folder: str, environ: Mapping[str, str], number: int, seconds: float) -> None:
        """Hold mpirun and tell the ranks to end."""
        self._pids = tuple(self._mpiruns())
        send([*self._pids], signal.SIGSTOP)
        self._look_at = time.monotonic() + _LOOK
        name = signal.Signals(number).name.removeprefix("SIG")
        limit = str(int(seconds) + 1)
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._child = AskingChild(
            self._loop,
            STOP_RANKS,
            folder,
            environ,
            name,
            limit,
            connect=_CONNECT,
            heard=self._heard,
            stdin=reader,
        )
        os.close(reader)

    def look(self) -> None:
        """Let mpirun run while its daemons have something to say and every rank is there."""
        if self._look_at is None or self._look_at > time.monotonic():
            return
        self._look_at = time.monotonic() + _LOOK
        before, self._something = self._something, unread(self._pids)
        if self._something and not before:
            self._asked += 1
            self._write("")
        # Only a look that began afterwards tells that it is not about a rank's end.
        free = self._something and self._answered == self._asked and self._all
        send([*self._pids], signal.SIGCONT if free else signal.SIGSTOP)

    def session_over(self, host: str) -> None:
        """Tell the child that it need not wait for a host: its agent has ended."""
        if self._look_at is not None:
            self._write(host)

    def _write(self, line: str) -> None:
        with suppress(OSError):  # the child ended: no more numbers come; or it reads nothing
            os.write(self._writer, f"{line}\n".encode())

    def release(self) -> None:
        """Hold mpirun no more, and ask nobody any more."""
        if self._look_at is None:
            return
        self._look_at = None
        send([*self._pids], signal.SIGCONT)
        os.close(self._writer)
        if self._child:
            self._child.end()

    def _heard(self) -> None:
        child = self._child
        if child is None:
            return
        for line in child.take_lines():
            _, left, most, asked = line.split()
            self._count(int(left), int(most), int(asked))
        if child.over and self._look_at is not None:
            self._changed(0 if self._found else None)

    def _count(self, left: int, most: int, asked: int) -> None:
        self._answered = asked
        self._all = left >= max(most, self._started)
        self._found = self._found or left > 0
        if left and self._look_at is not None:
            self._changed(left)
