"""An event loop: handles that become readable, and what is called then."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from mpiboot.core import log

# epoll_wait(2) takes milliseconds in a C int, which is 24.8 days.
_MAX_WAIT_S: Final = 86400.0


class EventLoop:
    """Handles, each with what is to be done when it is ready.

    A turn costs as much as what is ready, not as all that is listened to: each host's agent has a
    handle here.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def on(self, handle: int, do: Callable[[], None], *, vital: bool = False) -> None:
        """Call ``do`` whenever a handle is readable; in place of what was called before.

        An exception there ends this process where it is ``vital``; else it is a warning, and
        the handle is no longer watched.
        """
        self.off(handle)
        self._selector.register(handle, selectors.EVENT_READ, (do, vital))

    def off(self, handle: int) -> None:
        """Forget a handle."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(handle)

    def close(self) -> None:
        """Listen to nothing any more."""
        self._selector.close()

    def wait(self, until: float | None) -> None:
        """Sleep until a handle is ready or a time of the monotonic clock has come, or a day."""
        wait = None if until is None else min(max(0.0, until - time.monotonic()), _MAX_WAIT_S)
        for key, _ in self._selector.select(wait):
            if self._selector.get_map().get(key.fd) is not key:
                continue  # forgotten by what was called before
            do, vital = key.data
            try:
                do()
            except Exception as exc:
                if vital:
                    raise
                self.off(key.fd)
                log.failed("an event handler", exc)
