"""Runs the child that asks or tells the workers after mpirun has ended, for a few seconds.

The parent itself stays small: what needs more than it has is done by that child. A child that
fails or hangs costs its time and nothing else.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from mpiboot.parent.loop import EventLoop
from mpiboot.parent.os_calls import start_asking

_ASK: Final = "ask_workers.py"
_PATIENCE: Final = 5.0
_LIMIT: Final = 1 << 16


def ask(
    folder: str,
    environ: Mapping[str, str],
    loop: EventLoop,
    must_end: Callable[[], bool],
    what: str,
    *words: str,
) -> tuple[str, ...]:
    """Run the child and give the lines that it wrote.

    Args:
        folder: the launch folder.
        environ: mpirun's environment.
        loop: what else is listened to meanwhile: a FIFO that nobody empties would stop the agents.
        must_end: whether this process was told to end, which ends it.
        what: ``evidence``, ``over`` or ``failed``.
        words: more of it, as ``after_job/ask_workers.py`` takes it.
    """
    pid, reader = start_asking(_ASK, folder, environ, what, *words)
    answer = _Answer(reader)
    deadline = time.monotonic() + _PATIENCE
    loop.on(reader, answer.read)
    while not (answer.over or must_end()) and time.monotonic() < deadline:
        loop.wait(deadline)
    loop.off(reader)
    os.close(reader)
    # Its agents are in its group; what has ended already is no matter.
    with suppress(OSError):
        if pid:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    lines = answer.data.decode("utf-8", "replace").splitlines()
    return tuple(line for line in lines if line)


class _Answer:
    """What the child has written so far."""

    def __init__(self, reader: int) -> None:
        self.data = b""
        self.over = False
        self._reader = reader

    def read(self) -> None:
        piece = os.read(self._reader, _LIMIT)
        self.data += piece
        self.over = not piece or len(self.data) >= _LIMIT
