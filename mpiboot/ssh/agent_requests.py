"""Launch agents that ask mpiboot's own SSH client by FIFOs: a shell alone can do it.

An agent writes ssh's words to ``sessions/HOST.request``, each with a zero behind it; who makes
that file has the host's FIFO, ``sessions/HOST``. Then it writes ``start HOST PID`` to the FIFO
``requests`` and reads from its own: ``taken``, and at the end the exit status. ``refused`` means
that it must come by the socket (see ``connect``), which can hand over any kind of stream. With
``end HOST PID`` it gives a session up. A client that is gone is the end of what an agent reads.
The session of an agent that was killed goes on, as an ssh does behind it: an mpirun that gives up
over a lost host kills all agents, and that host's session alone has ended by then. What goes on
ends with this process, which the parent of mpirun lets go at its own end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from mpiboot.core.launch_spec import REQUESTS
from mpiboot.ssh.agent_streams import take
from mpiboot.ssh.session import FAILED

SESSIONS: Final = "sessions"
_PIECE: Final = 1 << 16
_OPEN: Final = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

Run: TypeAlias = Callable[[Sequence[str], object, Sequence[int]], Coroutine[Any, Any, int]]


class AgentRequests:
    """The FIFOs of one launch, and the agents that wait there."""

    def __init__(self, folder: Path, hosts: Iterable[str], tell: Callable[[str], None]) -> None:
        """Make the FIFOs; agents may write from now on.

        Args:
            folder: the launch folder.
            hosts: as mpirun calls them.
            tell: tells the parent of mpirun.

        Raises:
            OSError: they can't be made, or too few files may be open.
        """
        self._folder = folder / SESSIONS
        self._tell = tell
        self._folder.mkdir(mode=0o700)
        # Open for both: an agent that opens its FIFO waits for nobody.
        self._unused = {name: _fifo(self._folder / name) for name in hosts}
        self._given_up: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._rest = b""
        self._requests = _fifo(folder / REQUESTS)

    def serve(self, run: Run) -> None:
        """Listen to agents from now on, and run their sessions."""
        asyncio.get_running_loop().add_reader(self._requests, self._read, run)

    def _read(self, run: Run) -> None:
        with suppress(BlockingIOError):
            self._rest += os.read(self._requests, _PIECE)
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            match os.fsdecode(line).split():
                case ["start", host, pid] if pid.isdecimal():
                    task = asyncio.ensure_future(self._serve(host, int(pid), run))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                case ["end", host, _] if (self._folder / host).exists():
                    # A signal may come before the agent has asked.
                    self._given_up.setdefault(host, asyncio.Event()).set()

    async def _serve(self, host: str, pid: int, run: Run) -> None:
        unused = self._unused.pop(host, None)
        if unused is None:
            return
        try:
            words = _words(self._folder / f"{host}.request")
            streams = take(pid)
        except (OSError, ValueError):
            os.write(unused, b"refused\n")
            os.close(unused)
            return
        # The agent reads already, or is gone: then nobody reads once the other one is closed.
        answers = os.open(self._folder / host, _OPEN)
        os.close(unused)
        try:
            _answer(answers, "taken")
            status = await self._until(host, run(words, pid, streams))
            # The parent must know of it before it sees that the agent ends.
            self._tell(f"closed {host} {pid}\n")
            _answer(answers, str(status))
        finally:
            os.close(answers)

    async def _until(self, host: str, session: Coroutine[Any, Any, int]) -> int:
        """Run a session until it ends, or is given up."""
        given_up = self._given_up.setdefault(host, asyncio.Event())
        running = asyncio.ensure_future(session)
        leaves = asyncio.ensure_future(given_up.wait())
        await asyncio.wait((running, leaves), return_when=asyncio.FIRST_COMPLETED)
        for left in (leaves, running):
            left.cancel()
        ended = (await asyncio.gather(running, return_exceptions=True))[0]
        return ended if isinstance(ended, int) else FAILED


def _fifo(path: Path) -> int:
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _words(path: Path) -> list[str]:
    return [os.fsdecode(word) for word in path.read_bytes().split(b"\0")[:-1]]


def _answer(descriptor: int, word: str) -> None:
    with suppress(OSError):  # it is gone
        os.write(descriptor, f"{word}\n".encode())
