"""One run of kubectl, with a time limit; what it means is ``pods``' to tell."""

from __future__ import annotations

import asyncio
from typing import Final

from mpiboot.hosts import kubectl_pods as pods
from mpiboot.hosts.kubectl_pods import Obstacle, PodAccess, PodState
from mpiboot.system import programs
from mpiboot.system.programs import ProgramEnd

# kubectl costs a tenth of a second of a core and 40 MB each.
_AT_ONCE: Final = 16
_LOOK: Final = 20.0
_FAILED: Final = 1


class Kubectl:
    """Asks the API server for pods, and runs commands in them."""

    def __init__(self, access: PodAccess, *, limit: float = 30.0) -> None:
        """Begin; ``limit`` is how many seconds a command may take."""
        self._access = access
        self._limit = limit
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def look(self, pod: str) -> PodState:
        """Ask what a pod is doing."""
        done = await self._run(self._access.get(pod), _LOOK)
        if done.status == 0:
            return pods.state(done.text, self._access)
        return PodState(obstacle=pods.failure(done.said, self._access))

    async def run(self, pod: str, command: str) -> str | Obstacle:
        """Give a command's output, or why there is none."""
        done = await self._run(self._access.run(pod, command), self._limit)
        return done.text if done.status == 0 else pods.failure(done.said, self._access)

    async def _run(self, words: tuple[str, ...], limit: float) -> ProgramEnd:
        async with self._free:
            try:
                done = await programs.run_async(words, limit)
            except OSError as why:
                return ProgramEnd(_FAILED, "", f"{words[0]}: {why.strerror}")
        late = f"no end of `kubectl {words[-1][:20]}` within {limit:g} s"
        return done or ProgramEnd(_FAILED, "", late)
