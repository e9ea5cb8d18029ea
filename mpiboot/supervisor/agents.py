"""What launch agents report on a FIFO, and workers on a port; and whether the agents still run.

An agent reports that it was started, that its ssh is connected and how it ended; of a session over
the pool the pool reports it. One that is killed reports nothing: its process is watched too. A
worker reports that its pod is being terminated.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from mpiboot.core import log
from mpiboot.core.launch_spec import EVENTS
from mpiboot.supervisor.job import SSH_FAILED, AgentConnected, AgentEnded, AgentStarted, Event
from mpiboot.supervisor.signals import Handles
from mpiboot.system.process import process_handle

_KILLED: Final = -signal.SIGKILL
_READ_BYTES: Final = 65536
_MAX_LINES: Final = 3
_TAIL_CHARACTERS: Final = 4096
_NOISE: Final = ("Warning: Permanently added", "debug", "Authenticated to", "Transferred:", "Bytes")


@dataclass(eq=False)
class Agents:
    """Listens to the agents, and makes events of what becomes of them.

    Attributes:
        loop: where the FIFO and the agents' processes are listened to.
        folder: the launch folder.
        hosts: the remote hosts' names.
        running: the agents, by host and pid, whose end is not known yet; ``feed`` changes them.
        feed: called with each event.
    """

    loop: Handles
    folder: str
    hosts: Collection[str]
    running: Collection[tuple[str, int]]
    feed: Callable[[Event], None]

    def __post_init__(self) -> None:
        self._of_pool: set[int] = set()  # agents of which the pool reports how the session ended
        self._short: dict[str, str] = {}
        for host in self.hosts:
            label = host.partition(".")[0]
            # Of several hosts that are called so it could be any.
            self._short[label] = label if label in self._short else host
        self._rest, self._fifo = b"", -1

    def listen(self) -> None:
        """Open the FIFO: one that nobody has open forgets what was written to it."""
        # For writing too: with a writer of its own it is never at its end.
        self._fifo = os.open(f"{self.folder}/{EVENTS}", os.O_RDWR | os.O_NONBLOCK)
        self.loop.on(self._fifo, self.read, vital=True)

    def ignore(self) -> None:
        """Report nothing any more; the FIFO is still read, as nobody is to wait for room there."""
        self.feed = lambda _: None

    def read(self) -> None:
        """Read the agents' reports."""
        while True:
            try:
                data = os.read(self._fifo, _READ_BYTES)
            except BlockingIOError:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._parse(line.decode("utf-8", "replace").split())

    def report(self, line: str) -> None:
        """Take in what the pool reports of a session, behind what its agent has written so far."""
        self.loop.now(partial(self._report, line))

    def _report(self, line: str) -> None:
        self.read()
        self._parse(line.split())

    def _parse(self, words: list[str]) -> None:
        match words:
            case ["started", host, pid, *_] if pid.isdigit():
                self._started(AgentStarted(self.host_of(host), int(pid)))
            case ["running", _, "-", pid] if pid.isdigit():
                self._of_pool.add(int(pid))
            case ["connected", host]:
                self.feed(AgentConnected(self.host_of(host)))
            case ["ended", host, status, pid, *signals] if status.isdigit() and pid.isdigit():
                self._ended(self.host_of(host), int(pid), int(status), bool(signals))
            case _:
                log.debug("agent", f"not understood: {' '.join(words)!r}")

    def host_of(self, name: str) -> str:
        """Find the host that mpirun calls so: some cut names at the first dot."""
        return name if name in self.hosts else self._short.get(name, name)

    def _started(self, event: AgentStarted) -> None:
        self.feed(event)
        host, pid = event.host, event.pid
        try:
            handle = process_handle(pid)
        except ProcessLookupError:  # its end may be among the lines that are just being read
            self.loop.later(0.0, partial(self._has_gone, host, pid))
            return
        if handle is not None:  # else its own report must do
            self.loop.on(handle, partial(self._has_gone, host, pid, handle), vital=True)

    def _has_gone(self, host: str, pid: int, handle: int | None = None) -> None:
        """Note that an agent isn't there any more: killed, where it has not reported its end."""
        if handle is not None:
            self.loop.off(handle)
            os.close(handle)
        self.read()
        if (host, pid) in self.running:
            message = ("its launch agent was killed",)
            self.feed(AgentEnded(host, pid, _KILLED, message, killed=True))

    def _ended(self, host: str, pid: int, status: int, signalled: bool) -> None:  # noqa: FBT001
        words = last_words(f"{self.folder}/stderr/{host}") if status else ()
        # The pool writes why a session failed; where it wrote nothing the daemon had that status.
        by_daemon = pid in self._of_pool and status == SSH_FAILED and not words
        self._of_pool.discard(pid)
        self.feed(AgentEnded(host, pid, status, words, signalled=signalled, by_daemon=by_daemon))


def last_words(path: str) -> tuple[str, ...]:
    """Read ssh's own last messages, without those that it always writes."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file.read()[-_TAIL_CHARACTERS:].splitlines()]
    except OSError:
        return ()
    return tuple(line for line in lines if line and not line.startswith(_NOISE))[-_MAX_LINES:]


# A worker sends its line at once; who sends nothing takes no descriptor for long.
_MAX_SILENCE_S: Final = 10.0


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

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, asyncio.TimeoutError):  # a line may be too long
            line = await asyncio.wait_for(reader.readline(), _MAX_SILENCE_S)
            match line.decode("utf-8", "replace").split():
                case ["ending", launch_id, name] if launch_id == mark:
                    heard(name)
        writer.close()  # only now: that is the answer

    servers = list[socket.socket]()
    for port in ports:
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with suppress(OSError):
                servers.append(socket.create_server((address, port), family=family))
                port = int(servers[0].getsockname()[1])  # noqa: PLW2901 - 0 was any
        if servers:
            break
    serving = (asyncio.start_server(serve, sock=each) for each in servers)
    asyncio.gather(*serving).add_done_callback(asyncio.Future.result)  # the loop keeps the servers
    return servers
