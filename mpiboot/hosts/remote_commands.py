"""Commands on workers that have passed the gate: a login each, or kubectl's, some at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mpiboot.core.model import Worker
from mpiboot.core.setting_types import HostKeys
from mpiboot.hosts.access import Access
from mpiboot.hosts.kubectl import Kubectl
from mpiboot.hosts.kubectl_pods import Trouble, pod_of
from mpiboot.hosts.other_launchers import OtherLauncher
from mpiboot.ssh import attempt as ssh_attempt
from mpiboot.ssh.attempt import Attempt, LoginTimeouts, Outcome, Target

if TYPE_CHECKING:
    from mpiboot.ssh.login import Login

_AT_ONCE: Final = 32


class RemoteCommands:
    """Runs commands on workers at the address and port where they let us in before."""

    def __init__(
        self, access: Access, host_keys: HostKeys, limits: LoginTimeouts | None = None
    ) -> None:
        self._access = access
        self._mode = host_keys
        self._limits = limits or LoginTimeouts()
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._login: Login | None = None
        self._pods = Kubectl(access.pods, limit=self._limits.command) if access.pods else None

    async def run(self, worker: Worker, command: str) -> str | None:
        """Give the command's output; None where the worker does not answer or it failed."""
        if self._pods is not None:
            output = await self._pods.run(pod_of(worker.host.name), command)
            return output if isinstance(output, str) else None
        target = Target(worker.host.name, worker.address, worker.port, worker.user)
        async with self._free:
            opened = await ssh_attempt.connect(target, self._limits)
            if isinstance(opened, Attempt):
                return None
            with opened.sock:
                login = self._load()
                attempt = await login.log_in(target, opened.sock, opened.greeting, command)
        return attempt.output if attempt.outcome is Outcome.OK else None

    async def is_there(self, other: OtherLauncher, port: int) -> bool:
        """Tell whether a launcher may still be there: a refused connection is an answer too."""
        if self._pods is not None:
            found = await self._pods.look(pod_of(other.name))
            gone = (Trouble.NO_POD, Trouble.NOT_RUNNING)
            return found.obstacle is None or found.obstacle.trouble not in gone
        opened = await ssh_attempt.connect(Target("", other.address, port, ""), self._limits)
        if isinstance(opened, Attempt):
            return opened.outcome not in (Outcome.TIMEOUT, Outcome.UNREACHABLE)
        opened.sock.close()
        return True

    def _load(self) -> Login:
        if self._login is None:
            from mpiboot.ssh.login import Login  # noqa: PLC0415 - loaded by the gate already

            self._login = Login(
                self._access.key,
                host_key=self._access.host_key,
                mode=self._mode,
                limits=self._limits,
            )
        return self._login
