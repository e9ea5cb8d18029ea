"""The workers that a launcher has reached, and what is said to them where it ends before mpirun.

They keep it for the next attempt, as what they are told after a job (``after_job``). A launcher
that reached nobody, as with a bad setting, tells nobody: no worker knows that it was there.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from mpiboot import host_shell, log
from mpiboot.gates.remote_commands import RemoteCommands
from mpiboot.job import attempts
from mpiboot.launcher.setup import LauncherPod, access
from mpiboot.model import Worker
from mpiboot.parent.launch_spec import Failure

# Seconds; one worker that has heard it is enough for the next launcher to know.
_PATIENCE: Final = 2.0


@dataclass(slots=True)
class ReachedWorkers:
    """Who was ready so far, and what was said of the attempts before this one.

    ``launcher`` is None before it is known; ``earlier`` is empty where this is the first attempt.
    """

    launcher: LauncherPod | None = None
    workers: list[Worker] = field(default_factory=list)
    earlier: str = ""

    def say_attempt(self) -> str:
        """Say once which attempt this is, and how the last one ended; empty for the first one."""
        name = self.launcher.attempt if self.launcher else ""
        before = None if self.earlier else attempts.earlier(self.workers, name)
        if before:
            self.earlier = before.said
            log.info("attempt", before.said, attempt=before.number + 1, ended=before.ended)
        return self.earlier

    async def tell(self, failure: Failure, *, goes_on: bool) -> None:
        """Tell them why mpirun is not started; who does not listen in time is left out.

        Args:
            failure: why.
            goes_on: whether this launch is a part of a script, which may go on.
        """
        told = [worker for worker in self.workers if worker.runs_mpiboot]
        if self.launcher is None or not self.launcher.attempt or not told:
            return
        settings = self.launcher.resolved.settings
        hold = settings.hold_on_failure if failure.held else 0.0
        why = f"{failure.message.partition(chr(10))[0]}, exit {failure.code}"
        order = host_shell.job_failed(self.launcher.attempt, None if goes_on else hold, why)
        commands = RemoteCommands(access(self.launcher), settings.host_keys)
        telling = (commands.run(worker, order) for worker in told)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*telling, return_exceptions=True), _PATIENCE)
