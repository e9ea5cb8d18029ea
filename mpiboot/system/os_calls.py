"""What a process that stays asks of the system: programs, children, a FIFO, handles, files.

Each is one small act without opinion; nothing here waits.
"""

# pathlib, and what it imports, costs the parent a megabyte; socket half of one.
# ruff: noqa: PTH108, PTH110, PTH123
from __future__ import annotations

import _socket as socket
import os
import resource
import signal
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

from mpiboot.core.launch_names import BY_SIGNAL, KEY
from mpiboot.system.executables import IGNORED_BY_PYTHON

_WORDS: Final = 3
_TAIL: Final = 4096
_NOISE: Final = ("Warning: Permanently added", "debug", "Authenticated to", "Transferred:", "Bytes")
_BACKLOG: Final = 4096


def spawn(
    argv: tuple[str, ...],
    environ: Mapping[str, str],
    mask: set[signal.Signals | int],
    *,
    own_group: bool,
    streams: Mapping[int, int],
) -> int:
    """Start a program with the streams of this process, or others for some; give its pid.

    One call in C: no Python runs in the child, and no copy of this process is made.

    Raises:
        OSError: it can't be executed.
    """
    start = os.posix_spawn if "/" in argv[0] else os.posix_spawnp
    do = partial(
        start,
        argv[0],
        argv,
        environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, its, number) for number, its in streams.items()],
        setsigmask=mask,
        setsigdef=IGNORED_BY_PYTHON,
    )
    return do(setpgroup=0) if own_group else do()


def raise_soft_limits(open_files: int) -> None:
    """Let this process and what it starts have enough files and processes for the hosts.

    Args:
        open_files: as many as these; 0: the limit stays. Processes are as many as may be.
    """
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    for which, wanted in ((resource.RLIMIT_NOFILE, open_files), (resource.RLIMIT_NPROC, most)):
        soft, hard = resource.getrlimit(which)
        if soft != resource.RLIM_INFINITY and (wanted > soft or wanted == resource.RLIM_INFINITY):
            with suppress(OSError, ValueError):  # a sandbox may refuse
                resource.setrlimit(which, (wanted, hard))


def replace(
    argv: tuple[str, ...], environ: Mapping[str, str], mask: set[signal.Signals | int]
) -> NoReturn:
    """Become another program, with the signals that a program expects.

    Raises:
        OSError: it can't be executed; this process goes on.
    """
    for number in IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.execvpe(argv[0], argv, environ)  # noqa: S606 - no shell is the point


def start_listening(
    argv: tuple[str, ...], environ: Mapping[str, str], folder: str, name: str
) -> int:
    """Start a program whose standard input is a listening socket of its own; give its pid.

    Who connects before the program has loaded waits until it accepts.

    Raises:
        OSError: the socket can't be made, or the program not be started.
    """
    listener = listen(folder, name)
    try:
        # A session of its own: Ctrl-C at a terminal is mpirun's.
        return os.posix_spawn(
            argv[0],
            argv,
            environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, listener, 0)],
            setsid=True,
            setsigmask=(),
            setsigdef=IGNORED_BY_PYTHON,
        )
    finally:
        os.close(listener)


def listen(folder: str, name: str) -> int:
    """Listen at a socket in a folder; give its descriptor.

    Raises:
        OSError: it can't be made.
    """
    # A socket's path may be 107 bytes long, and the folder's may be longer.
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(f"/proc/self/fd/{here}/{name}")
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener.detach()
    finally:
        os.close(here)


def has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def open_fifo(path: str) -> int:
    """Open a FIFO to read without ever waiting, and make it where it isn't there."""
    if not os.path.exists(path):
        os.mkfifo(path, 0o600)
    # For writing too: with a writer of its own it is never at its end.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def remove_key(folder: str) -> None:
    """Remove a launch's copy of the job's key: no agent logs in any more."""
    with suppress(OSError):
        os.unlink(f"{folder}/{KEY}")


def process_handle(pid: int) -> int | None:
    """Open a handle that is readable once a process has ended; None where there is no such thing.

    Older kernels and sandboxes have none, nor has a Python that was built for them.

    Raises:
        ProcessLookupError: the process has ended.
    """
    opening = getattr(os, "pidfd_open", None)
    if opening is None:
        return None
    try:
        handle: int = opening(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None
    return handle


def reap() -> list[tuple[int, int]]:
    """Take every child that has ended off the process table: (pid, wait status)."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append((pid, status))


def exit_status(status: int) -> int:
    """Give the exit status of a wait status, as shells count it: 128+n for signal n."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else BY_SIGNAL - code


def last_words(path: str) -> tuple[str, ...]:
    """Read what ssh itself had to say, without what it says every time."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file.read()[-_TAIL:].splitlines()]
    except OSError:
        return ()
    return tuple(line for line in lines if line and not line.startswith(_NOISE))[-_WORDS:]


# More than the hosts of any job need; old programs close every number below the limit one by one.
MOST_OPEN_FILES: Final = 1 << 17


def most_open_files() -> int:
    """Tell how many this process may have open once ``allow_most_open_files`` was called."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard):
        return MOST_OPEN_FILES
    return max(soft, min(hard, MOST_OPEN_FILES))


def allow_most_open_files() -> None:
    """Raise the soft limit, for this process and what it starts from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    with suppress(OSError, ValueError):  # a sandbox may refuse; then the limit stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_open_files(), hard))
