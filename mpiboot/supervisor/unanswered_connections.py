"""Looks, while a job runs, for ranks that try to connect to somebody who never answers.

Open MPI waits in silence where a firewall drops what one worker sends to another. The workers'
kernels know of it while they try, which is two minutes (tcp_syn_retries in the kernel's
ip-sysctl.rst): they are asked some time after the start, and three times more for programs that
take longer to come to MPI_Init. How often a kernel has tried tells nothing: newer ones try six
times in the first seven seconds (tcp_syn_linear_timeouts). So only a connection that two looks
find, a minute apart, is told, and its far host is asked first: a listener whose queue is full does
not answer either, and no network is to blame for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from mpiboot.core import log
from mpiboot.supervisor.asking import Question
from mpiboot.supervisor.request import FarEnd, Request
from mpiboot.system.loop import EventLoop

# Times the setting: by the default, what begins in the first four minutes is not missed.
_WHEN: Final = (1, 2, 3, 4)
# How often at most, with the looks that are for what was found before.
_LOOKS: Final = 8
# Seconds between two looks for the same connection, and until one that was told is looked for.
_APART: Final = 60.0
_AGAIN: Final = 3600.0


class ConnectionWatch:
    """Asks a few times, and again where something was found."""

    def __init__(
        self,
        loop: EventLoop,
        folder: str,
        environ: Mapping[str, str],
        seconds: float,
        dropped: Callable[[str], None],
    ) -> None:
        """Begin to wait.

        Args:
            loop: where the child is listened to.
            folder: the launch folder.
            environ: mpirun's environment.
            seconds: after how long the workers are asked; 0 for never.
            dropped: called with a sentence where what a rank sends to another host of the job seems
                to be dropped, and with an empty one where that is over.
        """
        self._question = Question(loop, folder, environ, Request.CONNECTING, self._heard)
        self._dropped = dropped
        self._seen: dict[str, float] = {}  # connections, and when they were found first
        self._told = False
        self._looks = _LOOKS
        now = time.monotonic()
        self._times = [now + seconds * times for times in _WHEN] if seconds else []

    @property
    def due(self) -> float | None:
        """When ``look`` has to be called (monotonic clock)."""
        return self._times[0] if self._times else None

    def look(self) -> None:
        """Ask where it is time; a child that hangs is ended by the next one or by the end."""
        now = time.monotonic()
        if self._times and self._times[0] <= now:
            del self._times[0]
            self._looks -= 1
            self._question.ask(*(key for key, at in self._seen.items() if now - at >= _APART))

    def stop(self) -> None:
        """End what asks."""
        self._question.stop()

    def _heard(self, lines: list[str]) -> None:
        now = time.monotonic()
        found = [line.split(" ", 2) for line in lines]
        self._seen = {key: self._seen.get(key, now) for _, key, *_ in found}
        dropped, *others = [said for kind, _, *said in found if kind == FarEnd.DROPPED] or [[]]
        others += [said for kind, _, *said in found if kind in (FarEnd.SLOW, FarEnd.ELSEWHERE)]
        for said in others:
            log.warning("unanswered", *said)
        if dropped:
            self._dropped(*dropped)
            self._looks, self._times = _LOOKS, [now + _AGAIN]
        elif found and self._looks > 0:
            later = (when for when in self._times if when > now + _APART)
            self._times = [now + _APART, *later]
        if self._told and not found:
            self._dropped("")
        self._told = bool(dropped) or (self._told and bool(found))
