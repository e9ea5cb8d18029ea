"""Runs the child that asks or tells the workers after mpirun has ended, for a few seconds.

The parent itself stays small: what needs more than it has is done by that child. A child that
fails or hangs costs its time and nothing else.
"""

# pathlib and what it imports would cost the parent a megabyte.
# ruff: noqa: PTH100, PTH118, PTH120
from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

from mpiboot.parent.launch_spec import MARK
from mpiboot.parent.loop import EventLoop

_PATIENCE: Final = 5.0
_LIMIT: Final = 1 << 16
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ASK: Final = os.path.join(_PACKAGE, "after_job", "ask_workers.py")


def ask(
    folder: str,
    environ: Mapping[str, str],
    loop: EventLoop,
    told: Callable[[], bool],
    what: str,
    host: str = "",
    *asked: str,
) -> tuple[str, ...]:
    """Run the child and give the lines that it wrote.

    Args:
        folder: the launch folder.
        environ: mpirun's environment.
        loop: what else is listened to meanwhile: a FIFO that nobody empties would stop the agents.
        told: whether this process was told to end, which ends it.
        what: ``evidence`` or ``let-go``.
        host: which host is to be asked first.
        asked: what hosts are asked for, whether they can run it (empty: they aren't), and the
            signal that ended that host's rank.
    """
    reader, writer = os.pipe()
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", _ASK, folder, what, host, *asked],
            {**environ, MARK: folder},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, writer, 1),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
            setpgroup=0,
            setsigmask=(),
        )
    except OSError:
        os.close(reader)
        return ()
    finally:
        os.close(writer)
    answer = _Answer(reader)
    deadline = time.monotonic() + _PATIENCE
    loop.on(reader, answer.read)
    while not (answer.over or told()) and time.monotonic() < deadline:
        loop.wait(deadline)
    loop.off(reader)
    os.close(reader)
    # Its agents are in its group; what has ended already is no matter.
    try:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except OSError:
        pass
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
