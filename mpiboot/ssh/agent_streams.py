"""The streams of a launch agent that asked by its FIFO: taken by the client without any help of it.

Only a program of its own could hand an open file over. A pipe or a device can be opened anew by who
may; anything else is mostly the launcher's own stdout or stderr, which mpirun hands on, and which
this process has too.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

_OPEN: Final = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FIRST: Final = 3  # the agent has its own from 3 on
_OWN: Final = (1, 2)


def take(pid: int) -> list[int]:
    """Give what an agent has as 3, 4 and 5: its standard input, output and error.

    Raises:
        OSError: one can't be opened here.
        ValueError: one is of a kind that would be another one when opened anew: a file that is not
            the launcher's own has a place in it, and a socket can't be opened.
    """
    found: list[int] = []
    try:
        for number, mode in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), _FIRST):
            found.append(_take(pid, number, mode))
    except (OSError, ValueError):
        for descriptor in found:
            os.close(descriptor)
        raise
    return found


def _take(pid: int, number: int, mode: int) -> int:
    path = f"/proc/{pid}/fd/{number}"
    kind = Path(path).stat().st_mode
    if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
        # The container's own pipes are root's, and no other user may open them.
        with suppress(PermissionError):
            return os.open(path, mode | _OPEN)
    if mode == os.O_WRONLY:
        flags, place = _flags_and_place(pid, number)
        for own in _OWN:
            same = os.path.samestat(os.fstat(own), Path(path).stat())
            if same and _flags_and_place(os.getpid(), own) == (flags, place):
                return os.dup(own)
        if stat.S_ISREG(kind) and flags & os.O_APPEND:
            return os.open(path, mode | os.O_APPEND | os.O_CLOEXEC)
    raise ValueError(f"stream {number} is neither a pipe nor the launcher's own")


def _flags_and_place(pid: int, number: int) -> tuple[int, int]:
    """Give how a descriptor was opened, and where in its file it is; proc_pid_fdinfo(5)."""
    text = Path(f"/proc/{pid}/fdinfo/{number}").read_text("ascii")
    told = dict(line.split(":", 1) for line in text.splitlines())
    return int(told["flags"], 8) & ~os.O_CLOEXEC, int(told["pos"])
