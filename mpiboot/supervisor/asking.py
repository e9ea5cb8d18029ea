"""Queries to the process that holds the hosts' connections, and ranks that save.

The supervisor itself stays small: what needs more than it has is done by that process
(``answers``). A query that fails or hangs costs its time and nothing else.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from mpiboot.supervisor.processes import send, unread
from mpiboot.system.loop import EventLoop


class Request(str, Enum):
    """What is queried; the words that follow it are behind each."""

    EVIDENCE = "evidence"  # why the job failed: PROGRAM HOST..., a line of JSON for each host
    RANKS = "ranks"  # each host's number of ranks and their MPI libraries, while the job runs
    COUNT = "count"  # what carried the data: STRICT OVER, each 0 or 1
    NOTIFY = "notify"  # how the job ended: ATTEMPT HOLD WHY
    STOP_RANKS = "stop-ranks"  # have ranks save and end: SIGNAL SECONDS


_PIECE: Final = 1 << 16
Heard = Callable[[list[str], bool], None]


class Queries:
    """Queries and their answers, lines of JSON on a socket.

    A query is ``[NUMBER, REQUEST, WORD...]``; more lines may follow it, ``[NUMBER, LINE]``; it is
    cancelled by ``[NUMBER]``. An answer is ``[NUMBER, OVER, LINE...]``.
    """

    def __init__(self, loop: EventLoop, handle: int) -> None:
        """Take the socket over."""
        self._loop, self._handle = loop, handle
        self._heard: dict[int, Heard] = {}
        self._number = 0
        self._rest = self._unsent = b""
        os.set_blocking(handle, False)
        self._listen()

    def begin(self, request: Request, *words: str, heard: Heard) -> int:
        """Send a query, and give its number.

        Args:
            request: what is queried.
            words: what goes with it.
            heard: called with the lines that have come, and whether those were the last.
        """
        self._number += 1
        self._heard[self._number] = heard
        self.send(self._number, request.value, *words)
        return self._number

    def send(self, *message: Any) -> None:  # noqa: ANN401 - what JSON takes
        """Send a message once there is room; nobody there ends all queries, without an answer."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self._write()

    def cancel(self, number: int) -> None:
        """Forget a query, and what still runs for it."""
        if self._heard.pop(number, None):
            self.send(number)

    def wait_for(
        self, request: Request, *words: str, seconds: float, must_end: Callable[[], bool]
    ) -> tuple[str, ...]:
        """Query, and give the lines of the answer, those that came in time.

        Args:
            request: what is queried.
            words: what goes with it.
            seconds: how long is waited.
            must_end: whether this process was told to end, which ends the wait.
        """
        found: list[str] = []
        number = self.begin(request, *words, heard=lambda lines, _: found.extend(lines))
        until = time.monotonic() + seconds
        while number in self._heard and not must_end() and time.monotonic() < until:
            self._loop.wait(until)
        self.cancel(number)
        return tuple(found)

    def close(self) -> None:
        """End all queries, and with them that process."""
        if self._handle >= 0:
            self._loop.off(self._handle)
            os.close(self._handle)
        self._handle = -1
        self._heard.clear()

    def _over(self) -> None:
        for number in tuple(self._heard):
            if heard := self._heard.pop(number, None):
                heard([], True)

    def _listen(self) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._loop.on(self._handle, self._turn, events)

    def _turn(self) -> None:
        if self._unsent:
            self._write()
        with suppress(BlockingIOError):
            self._read()

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._handle, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""
            self._over()
            return
        self._listen()

    def _read(self) -> None:
        data = b""
        with suppress(ConnectionError):
            data = os.read(self._handle, _PIECE)
        if not data:
            self._loop.off(self._handle)
            self._over()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            number, over, *found = json.loads(line)
            heard = self._heard.pop(number, None) if over else self._heard.get(number)
            if heard:
                heard(found, over)


@dataclass(eq=False)
class Question:
    """What is queried now and then while the job runs; one that fails has no lines for an answer.

    Attributes:
        queries: where it is sent.
        request: what is queried.
        answered: called with the lines of the answer, once for each question.
    """

    queries: Queries
    request: Request
    answered: Callable[[list[str]], None]

    def __post_init__(self) -> None:
        self._number = 0

    def ask(self, *words: str) -> None:
        """Send it, instead of what was sent before; ``words`` go with the request."""
        self.stop()
        self._number = self.queries.begin(
            self.request, *words, heard=lambda lines, _: self.answered(lines)
        )

    def stop(self) -> None:
        """Wait for no answer any more."""
        self.queries.cancel(self._number)


_LOOK: Final = 0.1


@dataclass(eq=False)
class Saving:
    """Ranks that save, and an mpirun that is held meanwhile.

    An mpirun that is signalled kills its ranks within a second or two (4.1), or less (5.0), and so
    does one that sees a first rank end badly. So the ranks alone are told (``stop_ranks``), and
    mpirun is stopped meanwhile: it can't order anything. Its daemons go on. What they have to say
    while every rank is still there (output, the barrier of MPI_Finalize) mpirun is let run for;
    once a rank has ended it could only be the order to kill the others.

    Attributes:
        queries: by which the ranks are told, and counted.
        mpiruns: finds the processes that are mpirun.
        changed: called with each number of ranks that are there, and with None where nobody
            knows of any.
        ranks: how many were started, where that is known.
    """

    queries: Queries
    mpiruns: Callable[[], Iterable[int]]
    changed: Callable[[int | None], None]
    ranks: int | None

    def __post_init__(self) -> None:
        self._pids: tuple[int, ...] = ()
        self._number = 0
        self._started = self.ranks or 0
        self._all = False  # every rank is there
        self._found = False  # any rank was
        self._asked = 0  # looks that were wanted, each as mpirun got something to read
        self._answered = 0  # the last of them of which the numbers tell
        self._something = False  # mpirun has something to read
        self._look_at: float | None = None

    @property
    def due(self) -> float | None:
        """When ``look`` has to be called (monotonic clock); None where nothing is held."""
        return self._look_at

    def start(self, number: int, seconds: float) -> None:
        """Hold mpirun and tell the ranks to end."""
        self._pids = tuple(self.mpiruns())
        send([*self._pids], signal.SIGSTOP)
        self._look_at = time.monotonic() + _LOOK
        name = signal.Signals(number).name.removeprefix("SIG")
        limit = str(int(seconds) + 1)
        self._number = self.queries.begin(Request.STOP_RANKS, name, limit, heard=self._heard)

    def look(self) -> None:
        """Let mpirun run while its daemons have something to say and every rank is there."""
        if self._look_at is None or self._look_at > time.monotonic():
            return
        self._look_at = time.monotonic() + _LOOK
        before, self._something = self._something, unread(self._pids)
        if self._something and not before:
            self._asked += 1
            self.queries.send(self._number, "")
        # Only a look that began afterwards tells that it is not about a rank's end.
        free = self._something and self._answered == self._asked and self._all
        send([*self._pids], signal.SIGCONT if free else signal.SIGSTOP)

    def session_over(self, host: str) -> None:
        """Wait for a host's ranks no more: its agent has ended, and its pod may answer no login."""
        if self._look_at is not None:
            self.queries.send(self._number, host)

    def release(self) -> None:
        """Hold mpirun no more, and count ranks no more."""
        if self._look_at is None:
            return
        self._look_at = None
        send([*self._pids], signal.SIGCONT)
        self.queries.cancel(self._number)

    def _heard(self, lines: list[str], over: bool) -> None:  # noqa: FBT001
        for line in lines:
            left, most, asked = map(int, line.split())
            self._count(left, most, asked)
        if over and self._look_at is not None:
            self.changed(0 if self._found else None)

    def _count(self, left: int, most: int, asked: int) -> None:
        self._answered = asked
        self._all = left >= max(most, self._started)
        self._found = self._found or left > 0
        if left and self._look_at is not None:
            self.changed(left)
