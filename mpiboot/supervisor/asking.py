"""A child that asks the workers, or tells them: ``ask_workers.py``, and what it writes.

The parent itself stays small: what needs more than it has is done by that child. A child that
fails or hangs costs its time and nothing else.
"""

# pathlib, and what it imports, costs the parent a megabyte.
# ruff: noqa: PTH100, PTH118, PTH120
from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from mpiboot.core.launch_spec import MARK
from mpiboot.supervisor.request import Request
from mpiboot.system.loop import EventLoop

ASK_WORKERS: Final = "ask_workers.py"
STOP_RANKS: Final = "stop_ranks.py"
# In the environment of its agents, which then tell the parent of no daemon: the seconds that a host
# has to take the one connection that is tried.
ASKS: Final = "MPIBOOT_ASKS"
# After the job many a pod is gone, and an address without a pod answers nothing: within this a SYN
# that was lost is sent again. While the job runs, hosts are busy and nobody waits.
_CONNECT: Final = 2
_CONNECT_BESIDE_THE_JOB: Final = 20
_FOLDER: Final = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "supervisor"
)
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
        connect: int = _CONNECT,
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
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", os.path.join(_FOLDER, program), folder, *words],
                {**environ, MARK: folder, ASKS: str(connect)},
                file_actions=[
                    *([(os.POSIX_SPAWN_DUP2, stdin, 0)] if stdin is not None else []),
                    (os.POSIX_SPAWN_DUP2, writer, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setpgroup=0,
                setsigmask=(),
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


class Question:
    """What the workers are asked while the job runs; one that fails has no lines for an answer."""

    def __init__(
        self,
        loop: EventLoop,
        folder: str,
        environ: Mapping[str, str],
        request: Request,
        answered: Callable[[list[str]], None],
    ) -> None:
        """Ask nobody yet.

        Args:
            loop: where the child is listened to.
            folder: the launch folder.
            environ: mpirun's environment.
            request: what is asked.
            answered: called with the lines of the answer, once for each question.
        """
        self._loop = loop
        self._folder = folder
        self._environ = environ
        self._request = request
        self._answered = answered
        self._child: AskingChild | None = None

    def ask(self, *words: str) -> None:
        """Ask, instead of what was asked before; ``words`` go with the request."""
        self.stop()
        self._child = AskingChild(
            self._loop,
            ASK_WORKERS,
            self._folder,
            self._environ,
            self._request.value,
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
        self._answered(lines)


def ask(
    folder: str,
    environ: Mapping[str, str],
    loop: EventLoop,
    must_end: Callable[[], bool],
    request: Request,
    *words: str,
) -> tuple[str, ...]:
    """Ask or tell the workers after mpirun has ended, and give the lines of the answer.

    Args:
        folder: the launch folder.
        environ: mpirun's environment.
        loop: what else is listened to meanwhile: a FIFO that nobody empties would stop the agents.
        must_end: whether this process was told to end, which ends it.
        request: what is wanted.
        words: what goes with it.
    """
    child = AskingChild(loop, ASK_WORKERS, folder, environ, request.value, *words)
    deadline = time.monotonic() + _PATIENCE
    while not (child.over or must_end()) and time.monotonic() < deadline:
        loop.wait(deadline)
    child.over = True
    child.end()
    child.reap()
    return tuple(child.take_lines())
