"""A port for workers whose pods are being terminated, and the names of hosts without a rank."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from mpiboot.core.wording import counted, first_few

_WORDS_OF_NOTICE: Final = 3
# A worker sends its line at once; who sends nothing takes no descriptor for long.
_MAX_SILENCE_S: Final = 10.0


class _Notice(asyncio.Protocol):
    """A connection of a worker's; what is sent there is one short line."""

    def __init__(self, mark: str, heard: Callable[[str], None]) -> None:
        self._mark, self._heard = mark, heard

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        asyncio.get_running_loop().call_later(_MAX_SILENCE_S, transport.close)

    def data_received(self, data: bytes) -> None:
        words = data.decode("utf-8", "replace").split()
        if len(words) == _WORDS_OF_NOTICE and words[:2] == ["ending", self._mark]:
            self._heard(words[2])
        self._transport.close()  # only now: that is the answer


def listen(
    mark: str, heard: Callable[[str], None], addresses: Iterable[str], ports: Iterable[int]
) -> list[socket.socket]:
    """Open a port on which workers report that their pod is ending, before its first rank ends.

    A worker whose node is drained has no other way to report it: its SSH connections belong to
    mpirun's daemons.

    Args:
        mark: the launch ID; messages without it are ignored.
        heard: gets the worker's name.
        addresses: this pod's on the control link, by which the workers' daemons were started;
            nothing listens on any other link. All of them have the one port.
        ports: of these the first that is free, 0 for any.

    Returns:
        What listens; nothing where no port can be opened.
    """
    loop, servers = asyncio.get_running_loop(), list[socket.socket]()
    for port in ports:
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with suppress(OSError):
                servers.append(socket.create_server((address, port), family=family))
                port = int(servers[0].getsockname()[1])  # noqa: PLW2901 - 0 was any
        if servers:
            break
    serving = (loop.create_server(lambda: _Notice(mark, heard), sock=each) for each in servers)
    asyncio.gather(*serving).add_done_callback(asyncio.Future.result)  # the loop keeps the servers
    return servers


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
