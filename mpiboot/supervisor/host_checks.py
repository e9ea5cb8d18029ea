"""Checks whether the SSH port of a host answers, one TCP connection each."""

# socket costs the parent half a megabyte for names of constants.
from __future__ import annotations

import _socket as socket
import errno
import os
import selectors
import time
from collections.abc import Callable
from typing import Final

from mpiboot.system.loop import EventLoop

PATIENCE: Final = 2.0

Answer = Callable[[str, "bool | None", str], None]


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
            self._loop.on(asking.fileno(), lambda: self._ready(host, asking), selectors.EVENT_WRITE)
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
