"""A port on which workers tell that their pod is ending, before its first rank ends.

A worker whose node is drained has no other way to say so: its SSH connections belong to mpirun's
daemons. Nobody is believed who doesn't know the launch's mark; what is said is one short line.
"""

from __future__ import annotations

import _socket as socket
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final

from mpiboot.system.loop import EventLoop

_LINE: Final = 512
_WORDS: Final = 3
# Connections that say nothing.
_SILENT: Final = 16


def _bound(address: str, port: int) -> socket.socket | None:
    """Listen on one address; None where that can't be."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        server = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError:  # no such protocol in this kernel
        return None
    with suppress(OSError):
        server.bind((address, port))
        server.listen(_SILENT)
        return server
    server.close()
    return None


class Notices:
    """Workers that tell of their end."""

    def __init__(self, loop: EventLoop, mark: str, heard: Callable[[str], None]) -> None:
        """Call ``heard`` with the name of each host that tells so with this launch's mark."""
        self._loop = loop
        self._mark = mark
        self._heard = heard
        self._servers: list[socket.socket] = []
        self._open: list[int] = []

    def listen(self, addresses: Iterable[str], ports: Iterable[int] = (0,)) -> int:
        """Listen on the first port that is free, 0 for any; give it, or 0 where that can't be.

        ``addresses`` are this pod's on the control link, by which the workers' daemons were
        started; nothing listens on any other link. All of them have the one port.
        """
        for port in ports:
            for address in addresses:
                server = _bound(address, port)
                if server is not None:
                    self._servers.append(server)
                    port = int(server.getsockname()[1])  # noqa: PLW2901 - 0 was any
            if self._servers:
                for server in self._servers:
                    self._loop.on(server.fileno(), partial(self._accept, server))
                return port
        return 0

    def close(self) -> None:
        """Listen no more."""
        for server in self._servers:
            self._loop.off(server.fileno())
            server.close()
        self._servers.clear()
        for handle in self._open[:]:
            self._drop(handle)

    def _accept(self, server: socket.socket) -> None:
        with suppress(OSError):
            # The module socket itself costs half a megabyte.
            handle, _ = server._accept()  # type: ignore[attr-defined] # noqa: SLF001
            os.set_blocking(handle, False)
            self._open.append(handle)
            self._loop.on(handle, lambda: self._read(handle))
        if len(self._open) > _SILENT:
            self._drop(self._open[0])

    def _drop(self, handle: int) -> None:
        self._open.remove(handle)
        self._loop.off(handle)
        os.close(handle)

    def _read(self, handle: int) -> None:
        data = b""
        with suppress(OSError):
            data = os.read(handle, _LINE)
        words = data.decode("utf-8", "replace").split()
        if len(words) == _WORDS and words[:2] == ["ending", self._mark]:
            self._heard(words[2])
        self._drop(handle)  # only now: that is the answer
