"""Looks, while a job runs, for ranks that try to connect to somebody who never answers.

Open MPI waits in silence where a firewall drops what one worker sends to another. The workers'
kernels know of it while they try, which is two minutes (tcp_syn_retries in the kernel's
ip-sysctl.rst): they are asked some time after the start, and twice more for programs that take
longer to come to MPI_Init. What was found is told and looked at again: the job is ended where a
rank has tried one of its hosts for more than a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from mpiboot import log
from mpiboot.after_job.request import Request
from mpiboot.parent.asking import Question
from mpiboot.parent.loop import EventLoop

# Times the setting: by the default, what begins in the first four minutes is not missed.
_WHEN: Final = (1, 2, 4)
# Seconds until the next look at what was found, and how many. The kernel waits twice as long before
# each try (RFC 6298): the sixth is made after 63 s, and the last one given up after 127 s.
_PAUSE: Final = 30.0
_LOOKS: Final = 4
_ENOUGH: Final = 6
_NO_HOST: Final = "-"
_HINT: Final = (
    "is TCP between the workers dropped? A NetworkPolicy or firewall must allow the job's pods all "
    "ports among each other, or the range of MPIBOOT_PORT_RANGE"
)


class ConnectionWatch:
    """Asks three times at most, and where something was found until that can be judged."""

    def __init__(
        self,
        loop: EventLoop,
        folder: str,
        environ: Mapping[str, str],
        seconds: float,
        given_up: Callable[[str], None],
    ) -> None:
        """Begin to wait.

        Args:
            loop: where the child is listened to.
            folder: the launch folder.
            environ: mpirun's environment.
            seconds: after how long the workers are asked; 0 for never.
            given_up: called with a sentence where a rank waits in vain for a host of the job.
        """
        self._question = Question(loop, folder, environ, Request.CONNECTING, self._heard)
        self._given_up = given_up
        self._told = False
        now = time.monotonic()
        self._times = [now + seconds * times for times in _WHEN] if seconds else []

    @property
    def due(self) -> float | None:
        """When ``look`` has to be called (monotonic clock)."""
        return self._times[0] if self._times else None

    def look(self) -> None:
        """Ask where it is time; a child that hangs is ended by the next one or by the end."""
        if self._times and self._times[0] <= time.monotonic():
            del self._times[0]
            self._question.ask()

    def stop(self) -> None:
        """End what asks."""
        self._question.stop()

    def _heard(self, lines: list[str]) -> None:
        found = [line.split(" ", 2) for line in lines]
        of_the_job = [(int(again), said) for again, host, said in found if host != _NO_HOST]
        again, said = max(of_the_job, default=(0, ""))
        if found and not self._told:
            self._told = True
            for *_, line in found:
                log.warning("unanswered", line)
            log.warning("unanswered", _HINT)
            now = time.monotonic()
            self._times = [now + _PAUSE * (look + 1) for look in range(_LOOKS)]
        if again >= _ENOUGH or (self._told and not of_the_job):
            self._times.clear()
        if again >= _ENOUGH:
            self._given_up(said)
