"""Looks, while a job runs, for ranks that try to connect to somebody who never answers.

Open MPI waits in silence where a firewall drops what one worker sends to another. The workers'
kernels know of it while they try, which is two minutes (tcp_syn_retries in the kernel's
ip-sysctl.rst): they are asked some time after the start, and twice more for programs that take
longer to come to MPI_Init. It is told and nothing is ended: a program may try a host that it can
do without.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from mpiboot import log
from mpiboot.after_job.request import Request
from mpiboot.parent.asking import ASK_WORKERS, AskingChild
from mpiboot.parent.loop import EventLoop

# Times the setting: by the default, what begins in the first four minutes is not missed.
_WHEN: Final = (1, 2, 4)
_HINT: Final = (
    "is TCP between the workers dropped? A NetworkPolicy or firewall must allow the job's pods all "
    "ports among each other, or the range of MPIBOOT_PORT_RANGE"
)


class ConnectionWatch:
    """Asks three times at most, and no more once something was found."""

    def __init__(
        self, loop: EventLoop, folder: str, environ: Mapping[str, str], seconds: float
    ) -> None:
        """Begin to wait.

        Args:
            loop: where the child is listened to.
            folder: the launch folder.
            environ: mpirun's environment.
            seconds: after how long the workers are asked; 0 for never.
        """
        self._loop = loop
        self._folder = folder
        self._environ = environ
        now = time.monotonic()
        self._times = [now + seconds * times for times in _WHEN] if seconds else []
        self._child: AskingChild | None = None

    @property
    def due(self) -> float | None:
        """When ``look`` has to be called (monotonic clock)."""
        return self._times[0] if self._times else None

    def look(self) -> None:
        """Ask where it is time; a child that hangs is ended by the next one or by the end."""
        if self._times and self._times[0] <= time.monotonic():
            del self._times[0]
            self.stop()
            self._child = AskingChild(
                self._loop,
                ASK_WORKERS,
                self._folder,
                self._environ,
                Request.CONNECTING.value,
                heard=self._heard,
            )

    def stop(self) -> None:
        """End the child; it is reaped with all others."""
        if self._child:
            self._child.end()
            self._child = None

    def _heard(self) -> None:
        child = self._child
        if child is None or not child.over:
            return
        found = child.take_lines()
        self.stop()
        for line in found:
            log.warning("unanswered", line)
        if found:
            self._times.clear()
            log.warning("unanswered", _HINT)
