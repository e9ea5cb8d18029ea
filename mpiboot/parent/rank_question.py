"""Asks the workers, while a job runs, which ranks have not left MPI, after a host's have all ended.

A rank of MPICH that ends without MPI_Finalize leaves the others waiting, and mpirun, which knows,
says nothing until all have ended. So does Intel MPI where the rank ended with 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mpiboot.after_job.request import Request
from mpiboot.parent.asking import ASK_WORKERS, AskingChild
from mpiboot.parent.loop import EventLoop


class RankQuestion:
    """The question, and the child that asks it; nobody's answer is that there are none."""

    def __init__(
        self,
        loop: EventLoop,
        folder: str,
        environ: Mapping[str, str],
        tell: Callable[[int], None],
    ) -> None:
        """Ask nobody yet.

        Args:
            loop: where the child is listened to.
            folder: the launch folder.
            environ: mpirun's environment.
            tell: called with the number of ranks, each time that all have answered.
        """
        self._loop = loop
        self._folder = folder
        self._environ = environ
        self._tell = tell
        self._child: AskingChild | None = None

    def ask(self) -> None:
        """Ask, instead of what was asked before."""
        self.stop()
        self._child = AskingChild(
            self._loop,
            ASK_WORKERS,
            self._folder,
            self._environ,
            Request.IN_MPI.value,
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
        lines = child.take_lines()
        self.stop()
        self._tell(sum(int(line.rpartition(" ")[2]) for line in lines))
