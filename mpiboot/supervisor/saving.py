"""Ranks that save, and an mpirun that is held meanwhile."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mpiboot.core import log
from mpiboot.ssh.commands import HostCommand
from mpiboot.ssh.pool import Pool
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.supervisor.processes import send, unread

_POLL_S: Final = 0.1
_COUNT_EVERY_S: Final = 0.25
# For a login, and for the first answer: half of the grace that jobs have by default. A host that
# gives none has lost its ranks, or they can't be signalled.
_LOGIN_S: Final = 10.0


class StopScript:
    """``host_shell.stop_ranks`` on one host, and how many ranks are left there."""

    def __init__(self, command: HostCommand) -> None:
        self.command = command
        self.left = 0

    @classmethod
    async def start(cls, pool: Pool, host: HostSnapshot, command: str) -> StopScript:
        """Start it there, and wait for its first number, of all ranks that there are."""
        script = cls(await pool.start(host.reached_as, command, _LOGIN_S))
        try:
            await asyncio.wait_for(script._answer(), _LOGIN_S)
        except BaseException:
            script.command.end()
            raise
        return script

    async def count(self) -> None:
        """Count those that are left now; none where the host is lost."""
        if self.left:
            self.left = 0
            self.command.write("")
            await self._answer()

    async def _answer(self) -> None:
        while (line := await self.command.line()) is not None:
            if found := re.fullmatch(
                r"ranks (\d+)", line, re.ASCII
            ):  # a login shell may write more
                self.left = int(found[1])
                return


@dataclass(eq=False)
class Saving:
    """Ranks that save, and an mpirun that is held meanwhile.

    An mpirun that is signalled kills its ranks within a second or two (4.1), or less (5.0), and so
    does one that sees a first rank end badly. So only the ranks are signalled, and mpirun is
    stopped meanwhile: it can't order anything. Its daemons go on. What they send while every rank
    is still there (output, the barrier of MPI_Finalize) mpirun is let run for; once a rank has
    ended it could only be the order to kill the others.

    Attributes:
        scripts: gives what signals each host's ranks, by host, for a signal and seconds.
        mpiruns: finds the processes that are mpirun.
        changed: called with each number of ranks that are left, and with None where none was ever
            seen.
        ranks: how many were started, where that is known.
    """

    scripts: Callable[[int, float], Mapping[str, Coroutine[Any, Any, StopScript]]]
    mpiruns: Callable[[], Iterable[int]]
    changed: Callable[[int | None], None]
    ranks: int | None

    def __post_init__(self) -> None:
        self._pids: list[int] = []
        self._starting: dict[str, asyncio.Task[StopScript]] = {}
        self._task: asyncio.Task[None] | None = None  # None where mpirun is not held
        self._found = False  # any rank was seen

    def start(self, number: int, seconds: float) -> None:
        """Hold mpirun and signal the ranks to end."""
        self._pids = list(self.mpiruns())
        self._signal(signal.SIGSTOP)
        self._task = asyncio.ensure_future(self._run(number, seconds))

    def session_over(self, host: str) -> None:
        """Stop waiting for a host: its agent has ended, and its pod may answer no login."""
        if host in self._starting:
            self._starting[host].cancel()

    def release(self) -> None:
        """Let mpirun run, and count ranks no more."""
        task, self._task = self._task, None
        if task:
            self._signal(signal.SIGCONT)
            task.cancel()

    async def _run(self, number: int, seconds: float) -> None:
        scripts: list[StopScript] = []
        try:
            self._starting = {
                host: asyncio.ensure_future(script)
                for host, script in self.scripts(number, seconds).items()
            }
            # A host that fails has no ranks that can be signalled: the others' save all the same.
            found = await asyncio.gather(*self._starting.values(), return_exceptions=True)
            scripts += (one for one in found if isinstance(one, StopScript))
            await self._wait_for_ranks(scripts)
        except Exception as error:  # noqa: BLE001 - mpirun is let go, and ends its ranks
            log.failed("what lets ranks save", error)
        finally:
            for script in scripts:
                script.command.end()
        if self._task:
            self.changed(0 if self._found else None)

    async def _wait_for_ranks(self, scripts: list[StopScript]) -> None:
        left = sum(script.left for script in scripts)
        everybody = max(self.ranks or 0, left)
        # The first numbers are of different times: they don't show that all are there.
        waiting = free = False
        while left:
            self._found = True
            self.changed(left)
            count_at = time.monotonic() + _COUNT_EVERY_S
            while time.monotonic() < count_at:
                await asyncio.sleep(_POLL_S)
                before, waiting = waiting, unread(self._pids)
                if waiting and not before:
                    break  # only a count that begins now shows that it is not about a rank's end
                self._signal(signal.SIGCONT if waiting and free else signal.SIGSTOP)
            self._signal(signal.SIGSTOP)
            await asyncio.gather(*(script.count() for script in scripts), return_exceptions=True)
            left = sum(script.left for script in scripts)
            free = waiting and left >= everybody
            self._signal(signal.SIGCONT if free else signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        send(self._pids, number)
