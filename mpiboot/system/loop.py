"""What the parent sleeps on: handles that become ready, and hosts that are asked for an answer.

It waits in one place and calls back; it decides nothing.
"""

# socket costs the parent half a megabyte for names of constants.
from __future__ import annotations

import _socket as socket
import errno
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from mpiboot.core import log

PATIENCE: Final = 2.0

Answer = Callable[[str, "bool | None", str], None]


class EventLoop:
    """Handles, each with what is to be done when it is ready.

    A turn costs as much as what is ready, not as all that is listened to: each host's agent has a
    handle here.
    """

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._vital: set[int] = set()

    def on(
        self,
        handle: int,
        do: Callable[[], None],
        events: int = select.EPOLLIN,
        *,
        vital: bool = False,
    ) -> None:
        """Call ``do`` whenever a handle is ready; in place of what was called before.

        An exception there ends this process where it is ``vital``; else it is a warning, and
        nobody listens to that handle any more.
        """
        self._handlers[handle] = do
        (self._vital.add if vital else self._vital.discard)(handle)
        try:
            self._poll.register(handle, events)
        except FileExistsError:
            self._poll.modify(handle, events)

    def off(self, handle: int) -> None:
        """Forget a handle."""
        if self._handlers.pop(handle, None):
            with suppress(OSError):  # what was closed is listened to no more
                self._poll.unregister(handle)

    def close(self) -> None:
        """Listen to nothing any more."""
        self._poll.close()

    def wait(self, until: float | None) -> None:
        """Sleep until a handle is ready or a time of the monotonic clock has come."""
        wait = None if until is None else max(0.0, until - time.monotonic())
        for handle, _ in self._poll.poll(wait):
            do = self._handlers.get(handle)
            if do is None:
                continue
            try:
                do()
            except Exception as wrong:
                if handle in self._vital:
                    raise
                self.off(handle)
                log.failed("what listened to a handle", wrong)


class HostChecks:
    """Hosts that are being asked whether their SSH port answers."""

    def __init__(self, loop: EventLoop, answer: Answer) -> None:
        """Give answers to ``answer``: the host, whether it answers, and what the system says."""
        self._loop = loop
        self._answer = answer
        self._asked: dict[str, tuple[socket.socket, float]] = {}

    def ask(self, host: str, address: str, port: int) -> None:
        """Ask; the answer comes by the callback, which may be called before this returns.

        Nobody knows (None) where this pod can't ask: it has no such protocol, or no descriptors,
        or the host has no SSH port.
        """
        if host in self._asked:
            return
        if not port:
            self._answer(host, None, "")
            return
        try:
            version = socket.AF_INET6 if ":" in address else socket.AF_INET
            asking = socket.socket(version, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:
            self._answer(host, None, "")
            return
        self._asked[host] = (asking, time.monotonic() + PATIENCE)
        try:
            code = asking.connect_ex((address, port))
        except OSError:  # it is no address
            self._over(host, None)
            return
        if code == errno.EINPROGRESS:
            self._loop.on(asking.fileno(), lambda: self._ready(host, asking), select.EPOLLOUT)
        else:
            self._over(host, code)

    def deadlines(self) -> list[float]:
        """Say when the hosts that were asked are given up."""
        return [until for _, until in self._asked.values()]

    def give_up(self, now: float) -> None:
        """Answer for those whose time is over."""
        for host, (_, until) in list(self._asked.items()):
            if until <= now:
                self._over(host, errno.ETIMEDOUT)

    def _ready(self, host: str, asking: socket.socket) -> None:
        self._over(host, asking.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def _over(self, host: str, code: int | None) -> None:
        asking, _ = self._asked.pop(host)
        self._loop.off(asking.fileno())
        asking.close()
        if code is None:
            self._answer(host, None, "")
        else:
            self._answer(host, code == 0, os.strerror(code))
