"""Says how far the gate is, in the log and on a terminal: only what is new, and not too often."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Final

from mpiboot.core import log
from mpiboot.core.wording import lasting
from mpiboot.hosts import progress
from mpiboot.hosts.progress import HostState

# A line a second while things move quickly, and fewer the longer it takes: a pod's log is kept, and
# all of a wait of ten minutes is to be read on one screen.
_OFTEN, _SELDOM, _SHARE = 1.0, 28.0, 0.2
# Where nothing moves, a line so often all the same: a silent log looks like a program that hangs.
_SILENCE, _LONGEST_SILENCE, _SILENT_SHARE = 28.0, 120.0, 0.5
_LIVE: Final = 0.1


class Reporter:
    """One gate's lines; the states are looked at when a line is due.

    Args:
        live: draw on the terminal as well.
        left: gives the seconds after which the gate gives up.
    """

    def __init__(self, *, live: bool, left: Callable[[], float]) -> None:
        self._changed = asyncio.Event()
        self._left = left
        self._said = ""
        self._live = live

    def changed(self) -> None:
        """Note that a host is at another point; cheap, as thousands of hosts call it."""
        self._changed.set()

    async def lines(self, states: Sequence[HostState]) -> None:
        """Log a line whenever something changed, and now and then where nothing does."""
        started = said_at = time.monotonic()
        while True:
            # A cluster that is ready needs no line: the first waits as all do.
            waited = time.monotonic() - started
            await asyncio.sleep(min(_SELDOM, max(_OFTEN, waited * _SHARE)))
            silence = min(_LONGEST_SILENCE, max(_SILENCE, (said_at - started) * _SILENT_SHARE))
            silent = said_at + silence - time.monotonic()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), max(0.0, silent))
            self._changed.clear()
            text = progress.line(states)
            if text != self._said or time.monotonic() - said_at >= silence:
                self._said, said_at = text, time.monotonic()
                left = self._left()
                self.clear()
                log.info(
                    "gate",
                    f"{text}; gives up in {lasting(left)}",
                    **progress.fields(states),
                    gives_up_in=round(left, 1),
                )

    async def drawing(self, states: Sequence[HostState]) -> None:
        """Draw the line on a terminal; the cursor goes back, so that any other line covers it."""
        drawn = ""
        while self._live:
            await asyncio.sleep(_LIVE)
            try:
                width = os.get_terminal_size(2).columns or log.COLUMNS
            except OSError:
                return
            text = progress.line(states)[: width - 1]
            if text != drawn:
                drawn = text
                os.write(2, f"\r\x1b[K{text}\r".encode())

    def clear(self) -> None:
        """Take the drawn line away."""
        if self._live:
            os.write(2, b"\r\x1b[K")
