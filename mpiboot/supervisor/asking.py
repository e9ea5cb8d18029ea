"""Children that ask the workers, or tell ranks: ``ask_workers.py`` and ``stop_ranks.py``.

The supervisor itself stays small: what needs more than it has is done by such a child. One that
fails or hangs costs its time and nothing else.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final

from mpiboot.core.launch_names import LAUNCH_DIR
from mpiboot.supervisor.processes import send, unread
from mpiboot.system.loop import EventLoop
from mpiboot.system.spawn import spawn


class Request(str, Enum):
    """What the workers are asked; the words that follow it are behind each."""

    EVIDENCE = "evidence"  # why the job failed: HOST PROGRAM SIGNAL OTHER-HOST...
    CONNECTING = "connecting"  # connections that nobody answers, while the job runs: KNOWN...
    LOOK_FOR = "look-for"  # what is found where silent hosts should be: HOST...
    IN_MPI = "in-mpi"  # how many ranks have not left MPI, while the job runs


class FarEnd(str, Enum):
    """What is known of the far end of a connection that nobody answers: a line's first word."""

    NEW = "new"  # it was not known; the far end was not asked
    SLOW = "slow"  # others wait there to be accepted
    DROPPED = "dropped"  # the far host would answer what reached it
    ELSEWHERE = "elsewhere"  # no host of the job


class Found(str, Enum):
    """What was found where a silent host should be; the first word behind its name."""

    GONE = "gone"  # it isn't there any more, by proof
    NOTHING = "nothing"  # nothing answers, which proves nothing
    ANSWERS = "answers"  # its SSH port answers


ASK_WORKERS: Final = "ask_workers.py"
STOP_RANKS: Final = "stop_ranks.py"
# In the environment of its agents, which then tell the parent of no daemon: the seconds that a host
# has to take the one connection that is tried.
ASKS: Final = "MPIBOOT_ASKS"
# After the job many a pod is gone, and an address without a pod answers nothing: within this a SYN
# that was lost is sent again. While the job runs, hosts are busy and nobody waits.
CONNECT: Final = 2
_CONNECT_BESIDE_THE_JOB: Final = 20
_FOLDER: Final = os.path.dirname(os.path.abspath(__file__))
_PATIENCE: Final = 5.0
# More than this nobody reads.
_LIMIT: Final = 1 << 16


class AskingChild:
    """The child, in a process group of its own with the agents that it starts."""

    def __init__(
        self,
        loop: EventLoop,
        program: str,
        folder: str,
        environ: Mapping[str, str],
        *words: str,
        connect: int = CONNECT,
        heard: Callable[[], None] | None = None,
        stdin: int | None = None,
    ) -> None:
        """Start it; one that can't be started has ended and said nothing.

        Args:
            loop: where it is listened to.
            program: ``ASK_WORKERS`` or ``STOP_RANKS``.
            folder: the launch folder.
            environ: mpirun's environment.
            words: what it is asked for.
            connect: seconds that a host has to take a connection.
            heard: called when it has written something, and at its end.
            stdin: what it reads, where that is not this process's own.
        """
        self.over = False  # nothing more comes
        self._data = b""
        self._loop = loop
        self._heard = heard
        self._reader, writer = os.pipe()
        try:
            self._pid: int = spawn(
                [sys.executable, "-I", "-S", os.path.join(_FOLDER, program), folder, *words],
                {**environ, LAUNCH_DIR: folder, ASKS: str(connect)},
                streams={**({} if stdin is None else {0: stdin}), 1: writer, 2: None},
                own_group=True,
            )
        except OSError:
            self._pid = 0
        finally:
            os.close(writer)
        loop.on(self._reader, self._read)

    def take_lines(self) -> list[str]:
        """Give the lines that came since the last call.

        One without its end is never given: it may be the half of what was written when the limit
        was reached, or the child was killed.
        """
        *lines, self._data = self._data.split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines if line]

    def end(self) -> None:
        """End it, with its agents, and listen no more. Whoever reaps all children reaps it."""
        if self._reader < 0:
            return
        self._loop.off(self._reader)
        os.close(self._reader)
        self._reader = -1
        if self._pid:
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)

    def reap(self) -> None:
        """Wait for it, where nobody else does."""
        with suppress(OSError):
            if self._pid:
                os.waitpid(self._pid, 0)

    def _read(self) -> None:
        piece = os.read(self._reader, _LIMIT)
        self._data += piece
        if not piece or len(self._data) >= _LIMIT:
            self.over = True
            self._loop.off(self._reader)
        if self._heard:
            self._heard()


@dataclass(eq=False)
class Question:
    """What the workers are asked while the job runs; one that fails has no lines for an answer.

    Attributes:
        loop: where the child is listened to.
        folder: the launch folder.
        environ: mpirun's environment.
        request: what is asked.
        answered: called with the lines of the answer, once for each question.
    """

    loop: EventLoop
    folder: str
    environ: Mapping[str, str]
    request: Request
    answered: Callable[[list[str]], None]

    def __post_init__(self) -> None:
        self._child: AskingChild | None = None

    def ask(self, *words: str) -> None:
        """Ask, instead of what was asked before; ``words`` go with the request."""
        self.stop()
        self._child = AskingChild(
            self.loop,
            ASK_WORKERS,
            self.folder,
            self.environ,
            self.request.value,
            *words,
            connect=_CONNECT_BESIDE_THE_JOB,
            heard=self._heard,
        )

    def stop(self) -> None:
        """End the child; it is reaped with all others."""
        if self._child:
            self._child.end()
            self._child = None

    def _heard(self) -> None:
        child = self._child
        if child is None or not child.over:
            return
        lines = child.take_lines()
        self.stop()
        self.answered(lines)


def ask(
    folder: str,
    environ: Mapping[str, str],
    loop: EventLoop,
    must_end: Callable[[], bool],
    *words: str,
) -> tuple[str, ...]:
    """Ask the workers why the job failed, and give the lines of the answer.

    Args:
        folder: the launch folder.
        environ: mpirun's environment.
        loop: what else is listened to meanwhile: a FIFO that nobody empties would stop the agents.
        must_end: whether this process was told to end, which ends it.
        words: what goes with the request.
    """
    child = AskingChild(loop, ASK_WORKERS, folder, environ, Request.EVIDENCE.value, *words)
    deadline = time.monotonic() + _PATIENCE
    while not (child.over or must_end()) and time.monotonic() < deadline:
        loop.wait(deadline)
    child.end()
    child.reap()
    return tuple(child.take_lines())


_LOOK: Final = 0.1
# Seconds for a host to take a connection: half of the grace that jobs have by default. A host that
# takes none has lost its ranks, or they can't be told.
_CONNECT_TO_SAVE: Final = 10


@dataclass(eq=False)
class Saving:
    """Ranks that save, and an mpirun that is held meanwhile.

    An mpirun that is signalled kills its ranks within a second or two (4.1), or less (5.0), and so
    does one that sees a first rank end badly. So the ranks alone are told, by ``stop_ranks.py``,
    and mpirun is stopped meanwhile: it can't order anything. Its daemons go on. What they have to
    say while every rank is still there (output, the barrier of MPI_Finalize) mpirun is let run for;
    once a rank has ended it could only be the order to kill the others.

    Attributes:
        loop: where the child is listened to.
        mpiruns: finds the processes that are mpirun.
        changed: called with each number of ranks that are there, and with None where nobody
            knows of any.
        ranks: how many were started, where that is known.
    """

    loop: EventLoop
    mpiruns: Callable[[], Iterable[int]]
    changed: Callable[[int | None], None]
    ranks: int | None

    def __post_init__(self) -> None:
        self._pids: tuple[int, ...] = ()
        self._child: AskingChild | None = None
        self._writer = -1
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

    def start(self, folder: str, environ: Mapping[str, str], number: int, seconds: float) -> None:
        """Hold mpirun and tell the ranks to end."""
        self._pids = tuple(self.mpiruns())
        send([*self._pids], signal.SIGSTOP)
        self._look_at = time.monotonic() + _LOOK
        name = signal.Signals(number).name.removeprefix("SIG")
        limit = str(int(seconds) + 1)
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._child = AskingChild(
            self.loop,
            STOP_RANKS,
            folder,
            environ,
            name,
            limit,
            connect=_CONNECT_TO_SAVE,
            heard=self._heard,
            stdin=reader,
        )
        os.close(reader)

    def look(self) -> None:
        """Let mpirun run while its daemons have something to say and every rank is there."""
        if self._look_at is None or self._look_at > time.monotonic():
            return
        self._look_at = time.monotonic() + _LOOK
        before, self._something = self._something, unread(self._pids)
        if self._something and not before:
            self._asked += 1
            self._write("")
        # Only a look that began afterwards tells that it is not about a rank's end.
        free = self._something and self._answered == self._asked and self._all
        send([*self._pids], signal.SIGCONT if free else signal.SIGSTOP)

    def session_over(self, host: str) -> None:
        """Tell the child that it need not wait for a host: its agent has ended."""
        if self._look_at is not None:
            self._write(host)

    def _write(self, line: str) -> None:
        with suppress(OSError):  # the child ended: no more numbers come; or it reads nothing
            os.write(self._writer, f"{line}\n".encode())

    def release(self) -> None:
        """Hold mpirun no more, and ask nobody any more."""
        if self._look_at is None:
            return
        self._look_at = None
        send([*self._pids], signal.SIGCONT)
        os.close(self._writer)
        if self._child:
            self._child.end()

    def _heard(self) -> None:
        child = self._child
        if child is None:
            return
        for line in child.take_lines():
            _, left, most, asked = line.split()
            self._count(int(left), int(most), int(asked))
        if child.over and self._look_at is not None:
            self.changed(0 if self._found else None)

    def _count(self, left: int, most: int, asked: int) -> None:
        self._answered = asked
        self._all = left >= max(most, self._started)
        self._found = self._found or left > 0
        if left and self._look_at is not None:
            self.changed(left)
