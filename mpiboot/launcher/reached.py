"""The workers that a launcher has reached, and what is said to them where it ends before mpirun.

They keep it for the next attempt, as what they are told after a job
(``supervisor.ask_workers``). A launcher that reached nobody, as with a bad setting, tells nobody:
no worker knows that it was there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mpiboot.core import log
from mpiboot.core.errors import MpibootError
from mpiboot.core.launch_spec import Failure
from mpiboot.core.model import SshKind, Worker
from mpiboot.hosts import host_shell
from mpiboot.hosts.remote_commands import RemoteCommands
from mpiboot.job import attempts
from mpiboot.launcher import launch_folder
from mpiboot.launcher.logins import Logins
from mpiboot.launcher.setup import LauncherPod, access
from mpiboot.ssh import config as sshconfig
from mpiboot.system import executables

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
        if goes_on:
            _leave_logins(self.launcher, told)
        commands = RemoteCommands(access(self.launcher), settings.host_keys)
        telling = (commands.run(worker, order) for worker in told)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*telling, return_exceptions=True), _PATIENCE)


def _leave_logins(launcher: LauncherPod, workers: Sequence[Worker]) -> None:
    """Leave what the script's own process needs, which tells workers of the script's end.

    A launch that was started has left it already, with more hosts. mpiboot's own client can't be
    used there: such workers wait for another launcher.
    """
    environ, settings = launcher.environ, launcher.resolved.settings
    ssh = executables.find("ssh", environ.get("PATH", "")) or ""
    source = launcher.resolved.given["ssh_client"].source
    kind = sshconfig.client(settings.ssh_client, source, ssh, launcher.identity)
    if kind.value == SshKind.EMBEDDED or any(launcher.folder.glob("launch-*")):
        return
    if launcher.key is None:  # who is reached by kubectl does not run mpiboot's worker
        return
    folder = Path(launch_folder.paths(launcher.folder, launcher.pid).launch_dir)
    hosts = {worker.host.name: worker for worker in workers}
    logins = Logins(folder, hosts, {}, launcher.key, settings)
    with suppress(MpibootError):  # as on a full disk; why the launch failed is said already
        logins.make_folder()
        logins.write(ssh=ssh, per_host={})
        logins.write_baselines(workers)
