"""Programs that this process starts, and the end of each.

``wait`` for any child takes every status, so nobody else may wait: as PID 1 the launcher reaps what
is left to it, and asyncio's child watchers and ``subprocess`` beside that lose statuses (4 of 20 on
Python 3.11.2). In the launcher ``reap`` is called at each SIGCHLD; elsewhere a thread waits for
each program.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from mpiboot.system import spawn


class Child:
    """A program that was started; ``status`` is its wait status once it has ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        self._callbacks: list[Callable[[int], None]] = []
        self._ended = threading.Event()

    def on_end(self, callback: Callable[[int], None]) -> None:
        """Call ``callback`` with the status, in the thread that reaps it; at once if it ended."""
        with _LOCK:
            if self.status is None:
                self._callbacks.append(callback)
                return
        callback(self.status)

    def wait(self, seconds: float) -> int | None:
        """Wait for the end in a thread; give the status, None after so many seconds."""
        self._ended.wait(seconds)
        return self.status

    async def ended(self) -> int:
        """Wait for the end in an event loop; give the status."""
        import asyncio  # noqa: PLC0415 - who calls this has it; a worker has not
        from concurrent.futures import Future  # noqa: PLC0415 - as asyncio

        found = Future[int]()
        found.set_running_or_notify_cancel()
        self.on_end(found.set_result)
        return await asyncio.wrap_future(found)

    def end_with(self, status: int) -> None:
        """Note its end."""
        with _LOCK:
            self.status = status
            callbacks, self._callbacks = self._callbacks, []
        self._ended.set()
        for callback in callbacks:
            callback(status)


_LOCK: Final = threading.Lock()


class _Table:
    """The programs that run, and whether ``reap`` is called for them."""

    def __init__(self) -> None:
        self.running: dict[int, Child] = {}
        self.reaped = False
        # A program may end before it is known here; meanwhile other statuses are nobody's, or its.
        self.starting = 0
        self.early: dict[int, int] = {}


_TABLE: Final = _Table()


def reap_from_now_on() -> None:
    """Promise that ``reap`` is called at each SIGCHLD."""
    _TABLE.reaped = True


def start(argv: Sequence[str], environ: Mapping[str, str], **how: Any) -> Child:  # noqa: ANN401 - as spawn has them
    """Start a program as ``spawn.spawn`` does.

    Raises:
        OSError: it can't be executed.
    """
    with _LOCK:
        _TABLE.starting += 1
    child = None
    try:
        child = Child(spawn.spawn(argv, environ, **how))
    finally:
        with _LOCK:
            _TABLE.starting -= 1
            status = _TABLE.early.pop(child.pid, None) if child is not None else None
            if child is not None and status is None:
                _TABLE.running[child.pid] = child
            if not _TABLE.starting:
                _TABLE.early.clear()
    if status is not None:
        child.end_with(status)
    elif not _TABLE.reaped:
        try:
            threading.Thread(target=_wait, args=(child,), daemon=True).start()
        except BaseException:  # a limit, or Ctrl-C: nobody would wait for it
            os.kill(child.pid, signal.SIGKILL)
            raise
    return child


def _wait(child: Child) -> None:
    status = 0  # as far as is known where somebody else, as a worker's own loop, was faster
    with suppress(ChildProcessError):
        _, status = os.waitpid(child.pid, 0)
    _TABLE.running.pop(child.pid, None)
    child.end_with(status)


def reap() -> None:
    """Take every child that has ended off the process table."""
    for pid, status in spawn.reap():
        with _LOCK:
            child = _TABLE.running.pop(pid, None)
            if child is None and _TABLE.starting:
                _TABLE.early[pid] = status
        if child:
            child.end_with(status)
