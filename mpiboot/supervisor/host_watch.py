"""A port for workers whose pods are being terminated, and the names of hosts without a rank."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from mpiboot.core.wording import counted, first_few
from mpiboot.supervisor.handles import Handles

_MAX_LINE_BYTES: Final = 512
_WORDS_OF_NOTICE: Final = 3
# Connections that send nothing.
_MAX_SILENT: Final = 16


@dataclass(eq=False)
class Notices:
    """A port on which workers report that their pod is ending, before its first rank ends.

    A worker whose node is drained has no other way to report it: its SSH connections belong to
    mpirun's daemons. Messages without the launch ID are ignored; a message is one short line.
    """

    loop: Handles
    mark: str
    heard: Callable[[str], None]

    def __post_init__(self) -> None:
        self._servers: list[socket.socket] = []
        self._open: list[int] = []

    def listen(self, addresses: Iterable[str], ports: Iterable[int] = (0,)) -> int:
        """Listen on the first port that is free, 0 for any; give it, or 0 where that can't be.

        ``addresses`` are this pod's on the control link, by which the workers' daemons were
        started; nothing listens on any other link. All of them have the one port.
        """
        for port in ports:
            for address in addresses:
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                with suppress(OSError):
                    server = socket.create_server((address, port), family=family)
                    self._servers.append(server)
                    port = int(server.getsockname()[1])  # noqa: PLW2901 - 0 was any
            if self._servers:
                for server in self._servers:
                    server.setblocking(False)
                    self.loop.on(server.fileno(), partial(self._accept, server))
                return port
        return 0

    def close(self) -> None:
        """Listen no more."""
        for server in self._servers:
            self.loop.off(server.fileno())
            server.close()
        self._servers.clear()
        for handle in self._open[:]:
            self._drop(handle)

    def _accept(self, server: socket.socket) -> None:
        with suppress(OSError):
            handle = server.accept()[0].detach()
            os.set_blocking(handle, False)
            self._open.append(handle)
            self.loop.on(handle, lambda: self._read(handle))
        if len(self._open) > _MAX_SILENT:
            self._drop(self._open[0])

    def _drop(self, handle: int) -> None:
        self._open.remove(handle)
        self.loop.off(handle)
        os.close(handle)

    def _read(self, handle: int) -> None:
        data = b""
        with suppress(OSError):
            data = os.read(handle, _MAX_LINE_BYTES)
        words = data.decode("utf-8", "replace").split()
        if len(words) == _WORDS_OF_NOTICE and words[:2] == ["ending", self.mark]:
            self.heard(words[2])
        self._drop(handle)  # only now: that is the answer


def unused_hosts(
    hosts: Collection[str], ranks: Mapping[str, int | None], without_agent: Collection[str]
) -> str:
    """Name the job's hosts on which mpirun runs nothing: a job of many hosts may run on few.

    Args:
        hosts: the job's remote ones.
        ranks: how many each has, as far as that is known; empty where no host was queried, and then
            hosts without a launch agent are meant.
        without_agent: hosts for which mpirun started none.
    """
    if ranks and not any(ranks.values()):  # none has started yet, or all have ended
        return ""
    unused = [name for name in hosts if not ranks.get(name, name not in without_agent)]
    what = "no rank runs on" if ranks else "mpirun started no daemon on"
    which = f"{what} {len(unused)} of {counted(len(hosts), 'host')}: {first_few(unused)}"
    return which if unused else ""
