"""A port on which workers tell that their pod is ending, before its first rank ends.

A worker whose node is drained has no other way to say so: its SSH connections belong to mpirun's
daemons. Nobody is believed who doesn't know the launch's mark; what is said is one short line.
"""

from __future__ import annotations

import _socket as socket
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from mpiboot.parent.loop import EventLoop

_LINE: Final = 512
_WORDS: Final = 3
# Connections that say nothing.
_SILENT: Final = 16


def _bound(port: int) -> socket.socket | None:
    """Listen on a port of every address, IPv6 and IPv4; None where neither can be."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104
        try:
            server = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:  # no such protocol in this kernel
            continue
        with suppress(OSError):
            if family == socket.AF_INET6:
                server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
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
        self._server: socket.socket | None = None
        self._open: list[int] = []

    def listen(self, ports: Iterable[int] = (0,)) -> int:
        """Listen on the first port that is free, 0 for any; give it, or 0 where that can't be."""
        for port in ports:
            server = _bound(port)
            if server is not None:
                self._server = server
                self._loop.on(server.fileno(), self._accept)
                return int(server.getsockname()[1])
        return 0

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._loop.off(self._server.fileno())
            self._server.close()
            self._server = None
        for handle in self._open[:]:
            self._drop(handle)

    def _accept(self) -> None:
        if self._server is None:
            return
        with suppress(OSError):
            # The module socket itself costs half a megabyte.
            handle, _ = self._server._accept()  # type: ignore[attr-defined] # noqa: SLF001
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
        self._drop(handle)
        words = data.decode("utf-8", "replace").split()
        if len(words) == _WORDS and words[:2] == ["ending", self._mark]:
            self._heard(words[2])
