"""Descriptors that are read when a test says so."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable

from mpiboot.supervisor.signals import Handles


class Loop(Handles):
    """The loop of what listens, which runs in ``wait`` alone."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        weakref.finalize(self, self.loop.close)  # at the end of the tests at the latest
        self._wrong: Exception | None = None

        async def begin() -> None:
            super(Loop, self).__init__(self._fail_with)

        self.loop.run_until_complete(begin())

    def _fail_with(self, wrong: Exception) -> None:
        self._wrong = wrong

    def _call(self, handle: int, do: Callable[[], None], vital: bool) -> None:  # noqa: FBT001
        super()._call(handle, do, vital)
        self.loop.stop()

    def wait(self, until: float | None) -> None:
        """Sleep until a descriptor was read, or a time of the monotonic clock has come."""
        timer = None
        if until is not None:
            left = max(0.0, until - time.monotonic())
            timer = self.loop.call_later(left, self.loop.stop)
        self.loop.run_forever()
        if timer:
            timer.cancel()
        wrong, self._wrong = self._wrong, None
        if wrong:
            raise wrong

    def close(self) -> None:
        """Listen to nothing any more."""
        self.loop.close()
