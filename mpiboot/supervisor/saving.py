"""An mpirun that is held while its ranks save."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final

from mpiboot.core import log
from mpiboot.supervisor.processes import send, unread
from mpiboot.supervisor.stop_ranks import LookRequests

_LOOK: Final = 0.1


Counted = Callable[[int, int, int], None]
Stop = Callable[[int, float, LookRequests, Counted], Coroutine[Any, Any, None]]


@dataclass(eq=False)
class Saving:
    """Ranks that save, and an mpirun that is held meanwhile.

    An mpirun that is signalled kills its ranks within a second or two (4.1), or less (5.0), and so
    does one that sees a first rank end badly. So only the ranks are signalled (``stop_ranks``), and
    mpirun is stopped meanwhile: it can't order anything. Its daemons go on. What they have to say
    while every rank is still there (output, the barrier of MPI_Finalize) mpirun is let run for;
    once a rank has ended it could only be the order to kill the others.

    Attributes:
        stop: has the ranks end, and counts them: gets the signal, their seconds, the looks that
            are wanted, and what is called with the numbers.
        mpiruns: finds the processes that are mpirun.
        changed: called with each number of ranks that are there, and with None where nobody
            knows of any.
        ranks: how many were started, where that is known.
    """

    stop: Stop
    mpiruns: Callable[[], Iterable[int]]
    changed: Callable[[int | None], None]
    ranks: int | None

    def __post_init__(self) -> None:
        self._pids: tuple[int, ...] = ()
        self._started = self.ranks or 0
        self._all = False  # every rank is there
        self._found = False  # any rank was
        self._something = False  # mpirun has something to read
        # Looks are wanted as mpirun gets something to read; the last of them that was answered.
        self._wanted, self._answered = LookRequests(), 0
        self._tasks: tuple[asyncio.Task[None], ...] = ()  # empty where nothing is held

    def start(self, number: int, seconds: float) -> None:
        """Hold mpirun and signal the ranks to end."""
        self._pids = tuple(self.mpiruns())
        send([*self._pids], signal.SIGSTOP)
        work = self._stop(number, seconds), self._look_on()
        self._tasks = tuple(map(asyncio.ensure_future, work))

    async def _stop(self, number: int, seconds: float) -> None:
        try:
            await self.stop(number, seconds, self._wanted, self._count)
        except Exception as wrong:  # noqa: BLE001 - mpirun is let go, and ends its ranks
            log.failed("what lets ranks save", wrong)
        if self._tasks:
            self.changed(0 if self._found else None)

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            try:
                self.look()
            except Exception as wrong:  # noqa: BLE001 - no mpirun stays held
                log.failed("what lets ranks save", wrong)
                self.release()
                return

    def look(self) -> None:
        """Let mpirun run while its daemons have something to say and every rank is there."""
        before, self._something = self._something, unread(self._pids)
        if self._something and not before:
            self._wanted.look()
        # Only a look that began afterwards shows that it is not about a rank's end.
        free = self._something and self._answered == self._wanted.number and self._all
        send([*self._pids], signal.SIGCONT if free else signal.SIGSTOP)

    def session_over(self, host: str) -> None:
        """Wait for a host's ranks no more: its agent has ended, and its pod may answer no login."""
        if self._tasks:
            self._wanted.give_up(host)

    def release(self) -> None:
        """Hold mpirun no more, and count ranks no more."""
        tasks, self._tasks = self._tasks, ()
        if tasks:
            send([*self._pids], signal.SIGCONT)
        for task in tasks:
            task.cancel()

    def _count(self, left: int, most: int, looks: int) -> None:
        self._answered = looks
        self._all = left >= max(most, self._started)
        self._found = self._found or left > 0
        if left and self._tasks:
            self.changed(left)
