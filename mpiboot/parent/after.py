"""Runs the child that asks or tells the workers after mpirun has ended, for a few seconds.

The parent itself stays small: what needs more than it has is done by that child. A child that
fails or hangs costs its time and nothing else.
"""

# pathlib and what it imports would cost the parent a megabyte.
# ruff: noqa: PTH100, PTH118, PTH120
from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from typing import Final

from mpiboot.parent.launch_spec import MARK

_PATIENCE: Final = 5.0
_LIMIT: Final = 1 << 16
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ASK: Final = os.path.join(_PACKAGE, "after_job", "ask_workers.py")


def ask(
    folder: str,
    environ: Mapping[str, str],
    what: str,
    host: str = "",
    *asked: str,
) -> tuple[str, ...]:
    """Run the child and give the lines that it wrote.

    Args:
        folder: the launch folder.
        environ: mpirun's environment.
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
    data = _read(reader, time.monotonic() + _PATIENCE)
    os.close(reader)
    # Its agents are in its group; what has ended already is no matter.
    try:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except OSError:
        pass
    return tuple(line for line in data.decode("utf-8", "replace").splitlines() if line)


def _read(reader: int, deadline: float) -> bytes:
    data = b""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0 and len(data) < _LIMIT:
        if poll.poll(left * 1000):
            piece = os.read(reader, _LIMIT)
            if not piece:
                break
            data += piece
    return data
