"""Commands on the hosts of a launch: over the pool's connections, by kubectl, or in this pod."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mpiboot.hosts.access import PodAccess, pod_of
from mpiboot.ssh.connections import HostCommand
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.system.programs import start_async

if TYPE_CHECKING:
    from mpiboot.ssh.pool import Pool

# A login is 10 ms of the launcher's own CPU and many times as long of a worker's.
_AT_ONCE: Final = 64

T = TypeVar("T")


async def in_time(work: Iterable[Coroutine[Any, Any, T]], seconds: float) -> list[asyncio.Task[T]]:
    """Run all at once, and give their tasks; whoever is late is cancelled, and all with this."""
    tasks = [asyncio.create_task(item) for item in work]
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
    finally:
        for task in tasks:
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return tasks


class HostCommands:
    """Starts commands on hosts, so many at once.

    ``pool`` is None where no host is reached by SSH, ``pods`` where none is by kubectl; ``environ``
    is mpirun's environment, for commands in this pod.
    """

    def __init__(
        self, pool: Pool | None, pods: PodAccess | None, environ: Mapping[str, str]
    ) -> None:
        self.pool = pool
        self._pods, self._environ = pods, environ
        # mpirun's environment, which is this process's later on, lacks what kubectl reads of a
        # cluster (KUBERNETES_SERVICE_HOST), lest ranks get it.
        self._own = dict(os.environ)
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def run(self, host: HostSnapshot, command: str, seconds: float) -> str | None:
        """Give a command's output; None where it fails, as where the host can't be reached.

        Args:
            host: where it runs.
            command: for a shell.
            seconds: how long a login may take.
        """
        async with self.turn():
            try:
                return await self.output(host, command, seconds)
            except Exception:  # noqa: BLE001 - asyncssh's own errors, which are not loaded here
                return None

    async def output(self, host: HostSnapshot, command: str, seconds: float) -> str | None:
        """Give a command's output, None where that fails there; who calls it has the turn.

        Raises:
            Exception: it can't be started.
        """
        started = await self.start(host, command, seconds)
        try:
            return await started.output()
        finally:
            started.end()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until so many others have ended that one more may be started."""
        async with self._free:
            yield

    async def start(self, host: HostSnapshot, command: str, seconds: float) -> HostCommand:
        """Start a command.

        Raises:
            Exception: it can't be started.
        """
        words: tuple[str, ...] = ("/bin/sh", "-c", command)
        if not host.here and self._pods is not None:
            words = self._pods.run(pod_of(host.name), command, interactive=True)
        elif not host.here:
            if self.pool is None:
                raise ConnectionError
            words = self.pool.by_ssh(host.name, command)
            if not words:
                return await self.pool.start(host.name, command, seconds)
        program = await start_async(words, self._environ if host.here else self._own)

        async def wait() -> int:
            return os.waitstatus_to_exitcode(await program.child.ended())

        return HostCommand(program.stdin, program.stdout, wait, program.end)
