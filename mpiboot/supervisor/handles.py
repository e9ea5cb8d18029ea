"""Descriptors that the launcher's event loop reads, and what their failure means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mpiboot.core import log


class Handles:
    """Descriptors, each with what is called when it is readable.

    An exception there is a warning, and nobody reads that descriptor any more; where it is vital,
    ``fail`` is called with it, which ends the job.
    """

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        """Listen in the loop that runs."""
        self._loop = asyncio.get_running_loop()
        self.fail = fail

    def on(self, handle: int, do: Callable[[], None], *, vital: bool = False) -> None:
        """Call ``do`` whenever a descriptor is readable; in place of what was called before."""
        self._loop.add_reader(handle, self._call, handle, do, vital)

    def off(self, handle: int) -> None:
        """Forget a descriptor."""
        if handle >= 0:
            self._loop.remove_reader(handle)

    def now(self, do: Callable[[], None]) -> None:
        """Call ``do``; its failure ends the job."""
        self._call(-1, do, vital=True)

    def later(self, seconds: float, do: Callable[[], None]) -> asyncio.TimerHandle:
        """Call ``do`` after so many seconds; its failure ends the job."""
        return self._loop.call_later(seconds, self._call, -1, do, True)

    def _call(self, handle: int, do: Callable[[], None], vital: bool) -> None:  # noqa: FBT001
        try:
            do()
        except Exception as wrong:  # noqa: BLE001 - the loop would call it again at once
            self.off(handle)
            if vital:
                self.fail(wrong)
            else:
                log.failed("an event handler", wrong)
