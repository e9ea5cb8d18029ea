"""The event loop of the parent's child, in which a signal ends whatever is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from mpiboot.supervisor.signals import ENDING

T = TypeVar("T")

# Seconds that cancelled work may take to tidy up.
_TIDY: Final = 0.5


class EndedBySignal(Exception):  # noqa: N818 - nothing went wrong
    """A signal says that the launcher is to end; its number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def new_loop() -> asyncio.AbstractEventLoop:
    """Make what waits for hosts; what is left in it ends with this process."""
    # Not asyncio.run: it waits for every thread, also for one that a dead nameserver holds.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


class ChildLoop:
    """Runs one piece of work after the other; what is left in it ends with this process."""

    def __init__(self) -> None:
        """Take signals in from now on; in the main thread alone."""
        self._loop = new_loop()
        self._signal: asyncio.Future[int] = self._loop.create_future()
        # What can wait until mpirun has started.
        self.afterwards: list[Callable[[], Coroutine[Any, Any, None]]] = []
        for number in ENDING:
            self._loop.add_signal_handler(number, self._note, number)

    def _note(self, number: int) -> None:
        if not self._signal.done():
            self._signal.set_result(number)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work to its end.

        Raises:
            EndedBySignal: a signal came before that.
        """
        task = self._loop.create_task(work)
        either: set[asyncio.Future[Any]] = {task, self._signal}
        self._loop.run_until_complete(asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED))
        if task.done():
            return task.result()
        task.cancel()
        self._loop.run_until_complete(asyncio.wait({task}, timeout=_TIDY))
        raise EndedBySignal(self._signal.result())

    def run_last(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what ends this process's work, whatever signal has come."""
        self._loop.run_until_complete(work)
