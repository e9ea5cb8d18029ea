"""A login that stays open, and commands over it that answer each line with one line.

Whatever goes wrong there is an empty answer: who asks can do without.
"""

from __future__ import annotations

import asyncio
from typing import Final

import asyncssh

_LINE: Final = 1 << 10  # bytes
_WRONG: Final = (asyncssh.Error, OSError, ValueError, asyncio.IncompleteReadError)
_GONE: Final = 1.0


class Connection:
    """An SSH connection after its login."""

    def __init__(self, connection: asyncssh.SSHClientConnection, *, stays: bool = False) -> None:
        """Take over a connection, or commands over one that somebody else keeps (``stays``)."""
        self._connection = connection
        self._stays = stays
        self._processes: list[asyncssh.SSHClientProcess[bytes]] = []

    async def start(self, command: str) -> Dialogue | None:
        """Start a command; None where the host refuses it or is gone."""
        try:
            process = await self._connection.create_process(
                command, encoding=None, stderr=asyncssh.DEVNULL
            )
        except _WRONG:
            return None
        self._processes.append(process)
        return Dialogue(process)

    async def close(self) -> None:
        """Say good-bye, which ends its commands; a host that doesn't hear is left."""
        if not self._stays:
            await closed(self._connection)
        for process in self._processes:
            process.close()
        self._processes.clear()


class Dialogue:
    """A command that runs."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes]) -> None:
        self._process = process
        self._turn = asyncio.Lock()

    async def line(self) -> str:
        """Read the next line; empty at the end."""
        try:
            found = await self._process.stdout.readline()
        except _WRONG:
            return ""
        return found[:_LINE].decode("ascii", "replace").strip()

    async def ask(self, line: str) -> str:
        """Write a line and read its answer, one question at a time; empty at the end."""
        async with self._turn:
            try:
                self._process.stdin.write(f"{line}\n".encode())
            except _WRONG:
                return ""
            return await self.line()


async def closed(connection: asyncssh.SSHClientConnection) -> None:
    """Close a connection: a disconnect message first, so that no log has "reset by peer"."""
    connection.close()
    try:
        await asyncio.wait_for(connection.wait_closed(), _GONE)
    except asyncio.TimeoutError:
        connection.abort()
