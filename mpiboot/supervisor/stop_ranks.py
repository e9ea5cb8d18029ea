"""Has the ranks of every host save and end, and tells how many are there until all have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from mpiboot.ssh.connections import HostCommand
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.supervisor.host_commands import HostCommands

_PAUSE: Final = 0.25  # seconds between two looks that nobody wants at once
# Seconds for a login, and for the first answer: half of the grace that jobs have by default. A host
# that gives none has lost its ranks, or they can't be told.
_LOGIN: Final = 10.0


class StopScript:
    """``host_shell.stop_ranks`` on one host, and how many ranks it has told of."""

    def __init__(self, command: HostCommand) -> None:
        self.command = command
        self.left = 0

    @classmethod
    async def start(cls, commands: HostCommands, host: HostSnapshot, command: str) -> StopScript:
        """Start it there, and wait for its first number, of all ranks that there are."""
        async with commands.turn():
            script = cls(await commands.start(host, command, _LOGIN))
            try:
                await asyncio.wait_for(script._answer(), _LOGIN)
            except BaseException:
                script.command.end()
                raise
        return script

    async def again(self) -> None:
        """Ask how many are left now."""
        if self.left:
            self.command.write("")
            await self._answer()

    async def _answer(self) -> None:
        self.left = 0
        # A login shell may say more.
        while (line := await self.command.line()) is not None:
            match line.split():
                case ["ranks", number] if number.isdigit():
                    self.left = int(number)
                    return


class LookRequests:
    """What is wanted meanwhile: looks that begin after that, and hosts to give up."""

    def __init__(self) -> None:
        self.number = 0
        self.asking: dict[str, asyncio.Future[StopScript]] = {}
        self._came = asyncio.Event()

    def look(self) -> int:
        """Want a look that begins now; give its number."""
        self.number += 1
        self._came.set()
        return self.number

    def give_up(self, host: str) -> None:
        """Wait no more for a host."""
        if host in self.asking:
            self.asking[host].cancel()

    async def pause(self) -> None:
        """Wait for the next look, or until it is time to look anyway."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._came.wait(), _PAUSE)
        self._came.clear()


async def stop(
    commands: HostCommands,
    hosts: Iterable[HostSnapshot],
    command: str,
    wanted: LookRequests,
    tell: Callable[[int, int, int], None],
) -> None:
    """Tell the ranks of every host, this one's too, until none is left.

    Args:
        commands: runs it.
        hosts: all of the launch's. One that can't be reached has no ranks.
        command: ``host_shell.stop_ranks``.
        wanted: the looks that are wanted, and hosts to give up.
        tell: called whenever all have answered: with how many ranks are left, how many there were,
            and how many looks had been wanted when they were asked.
    """
    wanted.asking = {
        host.name: asyncio.ensure_future(StopScript.start(commands, host, command))
        for host in hosts
    }
    try:
        await asyncio.wait(wanted.asking.values())
        # One that fails is one that can't be asked: the others' ranks save all the same.
        asked = _started(wanted.asking.values())
        # They were counted at different times, and told to end at once: that is no look.
        ranks, number = sum(host.left for host in asked), 0
        left = ranks
        tell(left, ranks, number)
        while left:
            await wanted.pause()
            number = wanted.number
            await asyncio.gather(*(host.again() for host in asked), return_exceptions=True)
            left = sum(host.left for host in asked)
            tell(left, ranks, number)
    finally:
        for task in wanted.asking.values():
            task.cancel()
        for host in _started(wanted.asking.values()):
            host.command.end()


def _started(tasks: Iterable[asyncio.Future[StopScript]]) -> list[StopScript]:
    done = (task for task in tasks if task.done() and not task.cancelled())
    return [task.result() for task in done if task.exception() is None]
