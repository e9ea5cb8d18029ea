"""What the parent asks of the system: start mpirun, take in signals, a FIFO, ssh's last words.

Each is one small act without opinion; nothing here waits.
"""

from __future__ import annotations

import _thread
import os
import signal
from collections.abc import Mapping
from typing import Final

from mpiboot.parent.launch_spec import SIGNALS

# What the kernel writes as the sender of a terminal's signal (siginfo.h: SI_KERNEL).
_SI_KERNEL: Final = 0x80
# Python ignores these for itself, and what is ignored stays so over exec.
_IGNORED: Final = (signal.SIGPIPE, signal.SIGXFSZ)
_WORDS: Final = 3
_TAIL: Final = 4096
_NOISE: Final = ("Warning: Permanently added", "debug", "Authenticated to", "Transferred:", "Bytes")


def block_signals() -> set[signal.Signals | int]:
    """Let signals wait until they are taken in; give the mask that mpirun is to have."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    # Ignored by who started us, children would vanish without a status.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return set(before - SIGNALS)


def spawn(
    argv: tuple[str, ...],
    environ: Mapping[str, str],
    mask: set[signal.Signals | int],
    *,
    own_group: bool,
) -> int:
    """Start a program with the streams of this process; give its pid.

    One call in C: no Python runs in the child, and no copy of this process is made.

    Raises:
        OSError: it can't be executed.
    """
    start = os.posix_spawn if "/" in argv[0] else os.posix_spawnp
    if own_group:
        return start(argv[0], argv, environ, setsigmask=mask, setsigdef=_IGNORED, setpgroup=0)
    return start(argv[0], argv, environ, setsigmask=mask, setsigdef=_IGNORED)


def has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def open_fifo(path: str) -> int:
    """Open a FIFO to read without ever waiting, and make it where it isn't there."""
    if not os.path.exists(path):  # noqa: PTH110 - pathlib costs the parent a megabyte
        os.mkfifo(path, 0o600)
    # For writing too: with a writer of its own it is never at its end.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def listen() -> int:
    """Take signals in by a thread, for only sigwaitinfo tells who sent them.

    The handle that is given reads two bytes a signal: its number, and whether the kernel sent
    it. The signals must be blocked; so one for PID 1 waits, where it would else be dropped.
    """
    read, write = os.pipe()

    def tell(info: signal.struct_siginfo) -> None:
        os.write(write, bytes((info.si_signo, info.si_code == _SI_KERNEL)))

    def wait() -> None:
        while True:
            tell(signal.sigwaitinfo(SIGNALS))

    # What was meant for this very thread, before the exec, another one never sees.
    while info := signal.sigtimedwait(SIGNALS, 0):
        tell(info)
    _thread.start_new_thread(wait, ())
    return read


def last_words(path: str) -> tuple[str, ...]:
    """Read what ssh itself had to say, without what it says every time."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - as above
            lines = [line.strip() for line in file.read()[-_TAIL:].splitlines()]
    except OSError:
        return ()
    return tuple(line for line in lines if line and not line.startswith(_NOISE))[-_WORDS:]
