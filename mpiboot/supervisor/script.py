"""A program that calls mpirun itself, and the launcher's process beside it.

Each call below has a parent of its own. This process passes signals on, reaps what is left to it,
and ends with the program's status.
"""

# pathlib, and what it imports, costs the parent a megabyte.
from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Final

from mpiboot.core import log
from mpiboot.core.launch_spec import BY_SIGNAL
from mpiboot.supervisor.signals import ENDING, Signals, name
from mpiboot.system.loop import EventLoop
from mpiboot.system.os_calls import exit_status, has_terminal, reap, spawn

# Between two looks at what a signalled script has left.
_LOOK: Final = 0.1
_NOT_STARTED: Final = 127


class ScriptRun:
    """A program, from its start to the end of all that it started in its process group."""

    def __init__(
        self, program: tuple[str, ...], grace: float, loop: EventLoop, signals: Signals
    ) -> None:
        """Get ready; ``grace`` are the seconds that a signalled program may take to end.

        ``told`` is the signal that this process was told to end by, 0 without one.
        """
        self._program = program
        self._grace = grace
        self._loop = loop
        self._signals = signals
        self._child = 0
        self._code: int | None = None
        self.told, self._deadline = 0, float("inf")
        # A terminal's own signals reach the whole foreground group; else each comes to us alone.
        self._send = os.kill if has_terminal() else os.killpg

    def run(self, mask: set[signal.Signals | int]) -> int:
        """Start the program and stay until it ends.

        Returns:
            Its exit code; 128+n where a signal ended it, or it hid one.
        """
        self._loop.on(self._signals.handle, self._read_signals, vital=True)
        try:
            self._child = spawn(
                self._program, os.environ, mask, own_group=self._send is os.killpg, streams={}
            )
        except OSError as wrong:
            log.error("program-missing", f"[program-missing] {self._program[0]}: {wrong.strerror}")
            return _NOT_STARTED
        # The launches below the script may take their grace, also where it ended at once.
        while self._code is None or (self.told and self._reaches(0)):
            self._loop.wait(time.monotonic() + _LOOK if self.told else None)
            if time.monotonic() >= self._deadline:
                log.warning("killed", f"{self._program[0]} did not end in time and is killed")
                self._reaches(signal.SIGKILL)
                break
        return self._code or (BY_SIGNAL + self.told if self.told else 0)

    def _read_signals(self) -> None:
        for number, _ in self._signals.read():
            if number == signal.SIGCHLD:
                self._reap()
                continue
            log.info("signal", f"got {name(number)}")
            self._reaches(number)
            if number in ENDING:
                self.told = self.told or number
                self._deadline = time.monotonic() + self._grace

    def _reap(self) -> None:
        for pid, status in reap():
            if pid == self._child:
                self._code = exit_status(status)

    def _reaches(self, number: int) -> bool:
        """Signal the program, or its whole group; whether anybody was there."""
        try:
            self._send(self._child, number)
        except ProcessLookupError:
            return False
        return True


def launches(folder: str) -> dict[str, float]:
    """Find the folders of the launches below a script, and when each was made."""
    times: dict[str, float] = {}
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.startswith("launch-"):
                times[entry.path] = entry.stat().st_mtime
    return times


def last_launch(folder: str) -> str:
    """Find the folder of the last launch below a script; empty where there is none."""
    times = launches(folder)
    return max(times, key=times.__getitem__, default="")
