"""The child that waits for the hosts and makes the plan, seen from the parent that waits for it.

It hands over one line, and ends when mpirun has started. A signal that comes before that line ends
the launcher: nothing is started yet, so nothing has to be ended but that child. It gets a moment to
tell the hosts that were ready, so that the next launcher can say why this one ended.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Final

from mpiboot.core import log
from mpiboot.core.launch_spec import BY_SIGNAL, Failure, Result, from_line
from mpiboot.supervisor.causes import CODES
from mpiboot.supervisor.processes import wait_gone
from mpiboot.supervisor.signals import ENDING, Signals, by_signal, name
from mpiboot.system.loop import EventLoop
from mpiboot.system.os_calls import reap

_PIECE: Final = 65536
_BUG: Final = 70
# Seconds that a child has to tell the hosts that were ready; after a signal somebody waits.
_TELLS: Final = 2.5
_TELLS_OF_SIGNAL: Final = 1.0
_MEMORY_HINT: Final = (
    "raise resources.limits.memory of the launcher's container; where the hosts are many, a "
    "[launcher-limits] line above has the number"
)


def ended_by(number: int) -> Failure:
    """Say that a signal ends the launcher before mpirun is started; give the judgement."""
    failure = by_signal(number)
    log.info("signal", failure.message.partition(": ")[2].rstrip(), signal=name(number))
    return failure


def died(status: int, oom_kills: int) -> Failure:
    """Judge a child that ended without a result.

    Args:
        status: its wait status.
        oom_kills: the processes that the kernel had killed for memory before it was started.
    """
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        said = f"the process that waits for hosts ended with {code} and without a result"
        log.error("bug", f"[bug] {said}: nothing was started")
        return Failure(_BUG, "bug", f"bug: {said}: nothing was started\n")
    said = f"the process that waits for hosts was killed by {name(-code)}"
    if -code == signal.SIGKILL:
        from mpiboot.system import control_groups  # noqa: PLC0415 - what a good start needs none of

        limit = control_groups.used_up(oom_kills)
        if limit:
            return _out_of_memory(f"{said} as {limit}: nothing was started")
        said += "; the launcher's memory limit?"
    log.error("killed", f"{said}: nothing was started")
    return Failure(BY_SIGNAL - code, "killed", f"killed: {said}: nothing was started\n")


def _out_of_memory(said: str) -> Failure:
    reference = "launcher-memory"
    log.error(reference, f"[{reference}] {said}", hint=_MEMORY_HINT)
    return Failure(CODES[reference][0], reference, f"{reference}: {said}\n-> {_MEMORY_HINT}\n")


class Preparation:
    """The child, its result, and the signals that come meanwhile."""

    def __init__(
        self, pid: int, reader: int, loop: EventLoop, signals: Signals, oom_kills: int
    ) -> None:
        """Take over a child that was started, and the pipe by which its result comes."""
        self.pid = pid
        self._reader = reader
        self._loop = loop
        self._signals = signals
        self._oom_kills = oom_kills
        self._data = b""
        self._result: Result | None = None
        self._told: list[int] = []  # the signals that say that the launcher is to end
        self._ended = False
        os.set_blocking(reader, False)

    def result(self) -> Result:
        """Wait for what the child hands over, or for what comes before that."""
        self._loop.on(self._reader, self._read, vital=True)
        self._loop.on(self._signals.handle, self._read_signals, vital=True)
        self._reap()  # an end from before SIGCHLD had its default action again sends no more signal
        while self._result is None:
            self._loop.wait(None)
        self._loop.off(self._reader)
        return self._result

    def end_child(self) -> int:
        """Let a child that failed tell the hosts that were ready, and end it with what it runs.

        Returns:
            The first signal that has come; 0 without one.
        """
        before = len(self._told)
        if before and not self._ended:
            with suppress(OSError):
                os.kill(self.pid, self._told[0])
        deadline = time.monotonic() + (_TELLS_OF_SIGNAL if before else _TELLS)
        # A signal, or another one, ends it at once.
        while not self._ended and len(self._told) == before and time.monotonic() < deadline:
            self._loop.wait(deadline)
        with suppress(OSError):  # it leads a group of its own
            os.killpg(self.pid, signal.SIGKILL)
        wait_gone([self.pid])
        return next(iter(self._told), 0)

    def let_child_end(self) -> None:
        """Close the pipe, for whose end the child waits."""
        if self._reader >= 0:
            os.close(self._reader)
        self._reader = -1

    def wait_for_child(self) -> None:
        """Let the child end, and wait until it has."""
        self.let_child_end()
        wait_gone([self.pid])

    def _read(self) -> None:
        while self._result is None:
            try:
                data = os.read(self._reader, _PIECE)
            except BlockingIOError:
                return
            if not data:  # its end, and not this one, tells what has become of it
                self._loop.off(self._reader)
                return
            self._data += data
            if data.endswith(b"\n"):
                self._result = from_line(self._data)

    def _read_signals(self) -> None:
        for number, _ in self._signals.read():
            if number == signal.SIGCHLD:
                self._reap()
            elif number not in ENDING:
                said = f"{name(number)} is not forwarded: the program has not started"
                log.info("signal", said)
            else:
                self._told.append(number)
                if not isinstance(self._result, Failure):
                    self._result = ended_by(number)

    def _reap(self) -> None:
        for pid, status in reap():
            if pid == self.pid:
                self._ended = True
                self._read()
                self._result = self._result or died(status, self._oom_kills)
