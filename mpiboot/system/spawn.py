"""Starts programs by posix_spawn and becomes them by exec, with the signals that they expect.

Light: a process that stays has no more than this. argv is a list from end to end; no shell is run.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NoReturn

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Python ignores these at its start, and what is ignored stays so over exec.
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)


def take_out_locale() -> None:
    """Take LC_CTYPE out of the environment, unless this process was started with it.

    A program that mpiboot starts, and its ranks, would else have a variable that nobody set, and
    the launcher's log would name it as one of the pod's. Python keeps the locale that it chose.
    """
    if "LC_CTYPE" in os.environ:
        with contextlib.suppress(OSError), open("/proc/self/environ", "rb") as given:  # noqa: PTH123 - light
            if not any(item.startswith(b"LC_CTYPE=") for item in given.read().split(b"\0")):
                del os.environ["LC_CTYPE"]


def spawn(
    argv: Sequence[str],
    environ: Mapping[str, str],
    mask: Iterable[int] = (),
    *,
    path: str = "",
    streams: Mapping[int, int | None] | None = None,
    own_group: bool = False,
    own_session: bool = False,
) -> int:
    """Start a program; give its process number.

    One call in C: no Python runs in the child, and no copy of this process is made.

    Args:
        argv: the program and its arguments; a name is looked for on this process's PATH.
        environ: its whole environment.
        mask: the signals that it finds blocked.
        path: the program's file, where that is not its name.
        streams: the child's descriptors that are not this process's own; None is /dev/null.
        own_group: whether it leads a process group of its own.
        own_session: whether it leads a session of its own.

    Raises:
        OSError: it can't be executed.
    """
    start = os.posix_spawn if path or "/" in argv[0] else os.posix_spawnp
    start = partial(start, setpgroup=0) if own_group else start
    return start(
        path or argv[0],
        list(argv),
        environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0)
            if its is None
            else (os.POSIX_SPAWN_DUP2, its, number)
            for number, its in (streams or {}).items()
        ],
        setsid=own_session,
        setsigmask=mask,
        setsigdef=_IGNORED_BY_PYTHON,
    )


def replace(
    argv: Sequence[str],
    environ: Mapping[str, str],
    mask: Iterable[int] | None = None,
    *,
    path: str = "",
) -> NoReturn:
    """Become a program, whose name is looked for on the PATH of its own environment.

    Args:
        argv: the program and its arguments.
        environ: its whole environment.
        mask: the signals that it finds blocked; None for those that are.
        path: the program's file, where that is not its name.

    Raises:
        OSError: it can't be executed; this process goes on.
    """
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if path:
        os.execve(path, list(argv), environ)  # noqa: S606 - no shell is the point
    os.execvpe(argv[0], list(argv), environ)  # noqa: S606 - as above


def reap() -> list[tuple[int, int]]:
    """Take every child that has ended off the process table: (pid, wait status)."""
    found = []
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(ended)
    return found
