"""What watches a job's hosts while it runs.

``ConnectionWatch`` looks for ranks whose connections nobody answers, ``Notices`` hears of workers
that are ending, and ``unused_hosts`` names hosts without a rank.
"""

from __future__ import annotations

import _socket as socket
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from mpiboot.core import log
from mpiboot.core.wording import counted, first_few
from mpiboot.supervisor.asking import FarEnd, Queries, Question, Request
from mpiboot.system.loop import EventLoop

# Times the setting: by the default, what begins in the first four minutes is not missed.
_WHEN: Final = (1, 2, 3, 4)
# How often at most, with the looks that are for what was found before.
_LOOKS: Final = 8
# Seconds between two looks for the same connection, and until one that was told is looked for.
_APART: Final = 60.0
_AGAIN: Final = 3600.0


@dataclass(eq=False)
class ConnectionWatch:
    """Looks for ranks that try to connect to somebody who never answers.

    Open MPI waits in silence where a firewall drops what one worker sends to another. The workers'
    kernels know of it while they try, which is two minutes (tcp_syn_retries in the kernel's
    ip-sysctl.rst): they are asked some time after the start, and three times more for programs that
    take longer to come to MPI_Init. How often a kernel has tried tells nothing: newer ones try six
    times in the first seven seconds (tcp_syn_linear_timeouts). So only a connection that two looks
    find, a minute apart, is told, and its far host is asked first: a listener whose queue is full
    does not answer either, and no network is to blame for that.

    Attributes:
        queries: by which the workers are asked.
        seconds: after how long the workers are asked; 0 for never.
        dropped: called with a sentence where what a rank sends to another host of the job seems
            to be dropped, and with an empty one where that is over.
    """

    queries: Queries
    seconds: float
    dropped: Callable[[str], None]

    def __post_init__(self) -> None:
        self._question = Question(self.queries, Request.CONNECTING, self._heard)
        self._seen: dict[str, float] = {}  # connections, and when they were found first
        self._told = False
        self._looks = _LOOKS
        now = time.monotonic()
        self._times = [now + self.seconds * times for times in _WHEN] if self.seconds else []

    @property
    def due(self) -> float | None:
        """When ``look`` has to be called (monotonic clock)."""
        return self._times[0] if self._times else None

    def look(self) -> None:
        """Ask where it is time; a question that hangs ends with the next one or with the job."""
        now = time.monotonic()
        if self._times and self._times[0] <= now:
            del self._times[0]
            self._looks -= 1
            self._question.ask(*(key for key, at in self._seen.items() if now - at >= _APART))

    def stop(self) -> None:
        """Ask no more."""
        self._question.stop()

    def _heard(self, lines: list[str]) -> None:
        now = time.monotonic()
        found = [line.split(" ", 2) for line in lines]
        self._seen = {key: self._seen.get(key, now) for _, key, *_ in found}
        texts = [(kind, words[0]) for kind, _, *words in found if words]
        dropped = [text for kind, text in texts if kind == FarEnd.DROPPED]
        others = [text for kind, text in texts if kind in (FarEnd.SLOW, FarEnd.ELSEWHERE)]
        for text in (*dropped[1:], *others):
            log.warning("unanswered", text)
        if dropped:
            self.dropped(dropped[0])
            self._looks, self._times = _LOOKS, [now + _AGAIN]
        elif found and self._looks > 0:
            later = (when for when in self._times if when > now + _APART)
            self._times = [now + _APART, *later]
        if self._told and not found:
            self.dropped("")
        self._told = bool(dropped) or (self._told and bool(found))


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


@dataclass(eq=False)
class Notices:
    """A port on which workers tell that their pod is ending, before its first rank ends.

    A worker whose node is drained has no other way to say so: its SSH connections belong to
    mpirun's daemons. Messages without the launch ID are ignored; a message is one short line.
    """

    loop: EventLoop
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
                server = _bound(address, port)
                if server is not None:
                    self._servers.append(server)
                    port = int(server.getsockname()[1])  # noqa: PLW2901 - 0 was any
            if self._servers:
                for server in self._servers:
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
            # The module socket itself costs half a megabyte.
            handle, _ = server._accept()  # type: ignore[attr-defined] # noqa: SLF001
            os.set_blocking(handle, False)
            self._open.append(handle)
            self.loop.on(handle, lambda: self._read(handle))
        if len(self._open) > _SILENT:
            self._drop(self._open[0])

    def _drop(self, handle: int) -> None:
        self._open.remove(handle)
        self.loop.off(handle)
        os.close(handle)

    def _read(self, handle: int) -> None:
        data = b""
        with suppress(OSError):
            data = os.read(handle, _LINE)
        words = data.decode("utf-8", "replace").split()
        if len(words) == _WORDS and words[:2] == ["ending", self.mark]:
            self.heard(words[2])
        self._drop(handle)  # only now: that is the answer


def unused_hosts(
    hosts: Collection[str], ranks: Mapping[str, int], without_agent: Collection[str]
) -> str:
    """Name the job's hosts on which mpirun runs nothing: a job of many hosts may run on few.

    Args:
        hosts: the job's remote ones.
        ranks: how many each has, as far as that is known; empty where no host was asked, and then
            hosts without a launch agent are meant.
        without_agent: hosts for which mpirun started none.
    """
    if ranks and not any(ranks.values()):  # none has started yet, or all have ended
        return ""
    unused = [name for name in hosts if not ranks.get(name, name not in without_agent)]
    what = "no rank runs on" if ranks else "mpirun started no daemon on"
    which = f"{what} {len(unused)} of {counted(len(hosts), 'host')}: {first_few(unused)}"
    return which if unused else ""
