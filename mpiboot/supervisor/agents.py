"""The launch agents of one mpirun: what they tell by a FIFO, and whether they are still there.

An agent tells that it was started, that its ssh is connected and how it ended. One that is killed
tells nothing: its process is watched too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from mpiboot.core import log
from mpiboot.core.launch_names import EVENTS
from mpiboot.supervisor.handles import Handles
from mpiboot.supervisor.state import (
    SSH_FAILED,
    AgentConnected,
    AgentEnded,
    AgentStarted,
    Event,
)
from mpiboot.system.os_calls import process_handle

_KILLED: Final = -signal.SIGKILL
# An mpirun that gives up kills its agents: the one whose ssh has ended by itself comes first.
_PATIENCE: Final = 0.5
_PIECE: Final = 65536
_WORDS: Final = 3
_TAIL: Final = 4096
_NOISE: Final = ("Warning: Permanently added", "debug", "Authenticated to", "Transferred:", "Bytes")


@dataclass(eq=False)
class Agents:
    """Listens to the agents, and makes events of what becomes of them.

    Attributes:
        loop: where the FIFO and the agents' processes are listened to.
        folder: the launch folder.
        hosts: the remote hosts' names.
        running: the agents, by host and pid, whose end was not told yet.
        feed: called with each event.
    """

    loop: Handles
    folder: str
    hosts: Collection[str]
    running: Callable[[], Collection[tuple[str, int]]]
    feed: Callable[[Event], None]

    def __post_init__(self) -> None:
        self._handles: dict[int, int] = {}
        self._ssh: dict[int, int] = {}  # the pid of each agent's ssh
        self._carried: set[int] = set()  # agents whose sessions are the pool's, and go on
        self._of_pool: set[int] = set()  # the pool tells of each of these how its session ended
        # When it is known what became of an agent that isn't there any more; the soonest first, a
        # later word of the same agent beside the earlier.
        self._gone: dict[int, tuple[str, float]] = {}
        self._due: list[tuple[float, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._short: dict[str, str] | None = None
        self._rest = b""
        self._fifo = -1

    def listen(self) -> None:
        """Open the FIFO: one that nobody has open forgets what was written to it."""
        self._fifo = open_fifo(f"{self.folder}/{EVENTS}")
        self.loop.on(self._fifo, self.read, vital=True)

    def ignore(self) -> None:
        """Empty the FIFO from now on: no agent is of any use."""
        self.loop.on(self._fifo, self._empty)

    def read(self) -> None:
        """Take in what was told."""
        while True:
            try:
                data = os.read(self._fifo, _PIECE)
            except BlockingIOError:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._told(line.decode("utf-8", "replace").split())

    def settle(self) -> None:
        """Take in that agents were killed: they are gone, and did not report their end."""
        self._timer = None
        if not self._due:
            return
        self.read()
        now = time.monotonic()
        while self._due:
            until, pid = self._due[0]
            host, latest = self._gone.get(pid, ("", -1.0))
            if latest == until > now:
                self._settle_later(until)
                return
            heappop(self._due)
            if latest != until:
                continue
            del self._gone[pid]
            if (host, pid) in self.running():
                message = ("its launch agent was killed",)
                self.feed(AgentEnded(host, pid, _KILLED, message, killed=True))

    def _empty(self) -> None:
        os.read(self._fifo, _PIECE)

    def _told(self, words: list[str]) -> None:
        match words:
            case ["started", host, pid, *spawned] if pid.isdigit():
                self._started(AgentStarted(self.host_of(host), int(pid), bool(spawned)))
            case ["running", _, real, pid] if real.isdigit() and pid.isdigit():
                self._ssh[int(pid)] = int(real)
            case ["running", _, "-", pid] if pid.isdigit():
                self._carried.add(int(pid))
                self._of_pool.add(int(pid))
            case ["closed", _, pid] if pid.isdigit():
                self._session_has_ended(int(pid))
            case ["connected", host]:
                self.feed(AgentConnected(self.host_of(host)))
            case ["ended", host, status, pid, *signals] if status.isdigit() and pid.isdigit():
                self._ended(self.host_of(host), int(pid), int(status), bool(signals))
            case _:
                log.debug("agent", f"not understood: {' '.join(words)!r}")

    def host_of(self, called: str) -> str:
        """Find the host that mpirun calls so: some cut names at the first dot."""
        if called in self.hosts:
            return called
        if self._short is None:
            self._short = {}
            for host in self.hosts:
                label = host.partition(".")[0]
                # Of several hosts that are called so it could be any.
                self._short[label] = label if label in self._short else host
        return self._short.get(called, called)

    def _started(self, event: AgentStarted) -> None:
        self.feed(event)
        host, pid = event.host, event.pid
        try:
            handle = process_handle(pid)
        except ProcessLookupError:
            self._has_gone(host, pid)
            return
        if handle is None:  # the agent's word must do
            return
        self._handles[pid] = handle
        self.loop.on(handle, lambda: self._has_gone(host, pid), vital=True)

    def _has_gone(self, host: str, pid: int) -> None:
        """Take note that an agent isn't there any more; what it told may not be read yet."""
        handle = self._handles.pop(pid, None)
        if handle is not None:
            self.loop.off(handle)
            os.close(handle)
        if (host, pid) not in self.running():  # it has told its end
            self._ssh.pop(pid, None)
            return
        if pid in self._carried:
            self._settle_at(time.monotonic() + _PATIENCE, host, pid)
            return
        try:
            ssh = process_handle(self._ssh.pop(pid))
        except (KeyError, ProcessLookupError):  # it has ended too
            ssh = None
        if ssh is None:
            self._settle_at(time.monotonic(), host, pid)
            return
        self._settle_at(time.monotonic() + _PATIENCE, host, pid)
        self.loop.on(ssh, lambda: self._ssh_has_gone(pid, ssh), vital=True)

    def _ssh_has_gone(self, pid: int, handle: int) -> None:
        self.loop.off(handle)
        os.close(handle)
        self._session_has_ended(pid)

    def _session_has_ended(self, pid: int) -> None:
        """Take note that a session has ended by itself: its agent is not waited for any more."""
        self._carried.discard(pid)
        if pid in self._gone:
            self._settle_at(time.monotonic(), self._gone[pid][0], pid)

    def _settle_at(self, when: float, host: str, pid: int) -> None:
        self._gone[pid] = (host, when)
        heappush(self._due, (when, pid))
        self._settle_later(self._due[0][0])

    def _settle_later(self, when: float) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.later(max(0.0, when - time.monotonic()), self.settle)

    def _ended(self, host: str, pid: int, status: int, signalled: bool) -> None:  # noqa: FBT001
        words = last_words(f"{self.folder}/stderr/{host}") if status else ()
        self._gone.pop(pid, None)
        # The pool writes why a session failed; where it wrote nothing the daemon had that status.
        by_daemon = pid in self._of_pool and status == SSH_FAILED and not words
        self._of_pool.discard(pid)
        self.feed(AgentEnded(host, pid, status, words, signalled=signalled, by_daemon=by_daemon))


def open_fifo(path: str) -> int:
    """Open a FIFO to read without ever waiting, and make it where it isn't there."""
    if not os.path.exists(path):
        os.mkfifo(path, 0o600)
    # For writing too: with a writer of its own it is never at its end.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def last_words(path: str) -> tuple[str, ...]:
    """Read what ssh itself had to say, without what it says every time."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file.read()[-_TAIL:].splitlines()]
    except OSError:
        return ()
    return tuple(line for line in lines if line and not line.startswith(_NOISE))[-_WORDS:]
