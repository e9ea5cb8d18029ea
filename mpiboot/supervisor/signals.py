"""What the launcher's event loop reads: signals, and other descriptors.

Signals are blocked from its first moment, and taken in by one thread: only ``sigwaitinfo`` gives
who sent a signal, and a signal that is blocked waits, also for PID 1 and over exec, where the
kernel would else drop it.
"""

from __future__ import annotations

import _thread
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from mpiboot.core import log

if TYPE_CHECKING:
    from asyncio import TimerHandle

# Signals that end a launcher, in whatever phase it is.
ENDING: Final = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT))
# What the launcher takes in; blocked from its first moment.
SIGNALS: Final = ENDING | {signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD}
# What the kernel writes as the sender of a terminal's signal (siginfo.h: SI_KERNEL).
_SI_KERNEL: Final = 0x80


class Signals:
    """The signals that have come, behind a handle that is readable when there are some."""

    def __init__(self) -> None:
        """Take signals in from now on; they must be blocked."""
        self.handle, self._writer = os.pipe()
        # What was meant for this very thread, before the exec, another one never sees.
        while info := signal.sigtimedwait(SIGNALS, 0):
            self._note(info)
        _thread.start_new_thread(self._wait, ())

    def read(self) -> list[tuple[int, bool]]:
        """Give the signals that have come, each with whether the kernel sent it, as for Ctrl-C.

        Waits where nothing has come.
        """
        data = os.read(self.handle, 512)
        return [(number, bool(by)) for number, by in zip(data[::2], data[1::2])]  # noqa: B905 - always pairs

    def _wait(self) -> None:
        while True:
            self._note(signal.sigwaitinfo(SIGNALS))

    def _note(self, info: signal.struct_siginfo) -> None:
        os.write(self._writer, bytes((info.si_signo, info.si_code == _SI_KERNEL)))


def block() -> set[signal.Signals | int]:
    """Let signals wait until they are taken in; give the mask that programs are to have."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    # Ignored by who started us, children would vanish without a status.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return set(before - SIGNALS)


def has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        return True
    return False


class Handles:
    """Descriptors, each with what is called when it is readable.

    An exception there is a warning, and nobody reads that descriptor any more; where it is vital,
    ``fail`` is called with it, which ends the job.
    """

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        """Listen in the loop that runs."""
        from asyncio import get_running_loop  # noqa: PLC0415 - signals are blocked before it is needed

        self._loop = get_running_loop()
        self.fail = fail

    def on(self, handle: int, do: Callable[[], None], *, vital: bool = False) -> None:
        """Call ``do`` whenever a descriptor is readable; in place of what was called before."""
        self._loop.add_reader(handle, self._call, handle, do, vital)

    def off(self, handle: int) -> None:
        """Forget a descriptor."""
        if handle >= 0:
            self._loop.remove_reader(handle)

    def now(self, do: Callable[[], None]) -> None:
        """Call ``do``; its failure ends the job."""
        self._call(-1, do, vital=True)

    def later(self, seconds: float, do: Callable[[], None]) -> TimerHandle:
        """Call ``do`` after so many seconds; its failure ends the job."""
        return self._loop.call_later(seconds, self._call, -1, do, True)

    def _call(self, handle: int, do: Callable[[], None], vital: bool) -> None:  # noqa: FBT001
        try:
            do()
        except Exception as wrong:  # noqa: BLE001 - the loop would call it again at once
            self.off(handle)
            if vital:
                self.fail(wrong)
            else:
                log.failed("an event handler", wrong)
