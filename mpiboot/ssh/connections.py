"""Logins that stay open, what the pool of a launch's connections is made of, and commands in it.

The pool itself (``pool.py``) and asyncssh are never loaded here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from mpiboot.core.records_json import read_record
from mpiboot.ssh.attempt import WORKER
from mpiboot.ssh.config import LaunchHost, SshTimeouts
from mpiboot.system.programs import read_end

if TYPE_CHECKING:
    from asyncio import StreamReader, WriteTransport

    import asyncssh

    from mpiboot.core.facts import Worker
    from mpiboot.ssh.attempt import Target

# An agent's FIFO and its three streams, and the connection to the host; beside these the process's
# own, and those of logins that are tried again.
_FILES_A_HOST: Final = 5
_FILES: Final = 64


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """The hosts of a pool by mpirun's names, the path of the key, and how long logins are tried.

    ``folder`` is the launch folder, ``ssh`` the program for hosts that asyncssh can't log in to.
    """

    hosts: tuple[LaunchHost, ...]
    key: str
    patience: SshTimeouts
    folder: str
    ssh: str = ""

    @classmethod
    def from_json(cls, text: str) -> PoolConfig:
        """Read what ``write_records`` wrote."""
        return read_record(cls, json.loads(text))


def short_of_files(hosts: int, most: int) -> str:
    """Say that connections to so many hosts can't be held; empty where they can. Pure.

    Args:
        hosts: how many hosts have sessions at once.
        most: how many files this process may have open.
    """
    needed = hosts * _FILES_A_HOST + _FILES
    if most < needed:
        return (
            f"SSH sessions on {hosts} hosts need {needed} open files, "
            f"and this pod's hard limit is {most}"
        )
    return ""


# Each has an address, a port and a user.
Place: TypeAlias = "Worker | Target | LaunchHost"


class Connections:
    """SSH connections that stay open, by address, port and user: hosts may share all of these."""

    def __init__(self, patience: SshTimeouts) -> None:
        """Begin with none; ``patience`` says after what time a silent host is lost."""
        self._patience = patience
        self._open: dict[tuple[str, int, str], list[asyncssh.SSHClientConnection]] = {}
        self._taken: set[asyncssh.SSHClientConnection] = set()
        self._commands: Counter[asyncssh.SSHClientConnection] = Counter()
        self._retired: set[asyncssh.SSHClientConnection] = set()

    def keep(
        self, place: Place, connection: asyncssh.SSHClientConnection, *, taken: bool = False
    ) -> None:
        """Take one over; ``taken`` as by ``take``."""
        if taken:
            self._taken.add(connection)
        connection.set_keepalive(self._patience.interval, self._patience.probes)
        self._open.setdefault(_key(place), []).append(connection)

    def take(self, place: Place) -> asyncssh.SSHClientConnection | None:
        """Give a session one of its own, until ``give_back``; None where none is free."""
        found = next((one for one in self._alive(place) if one not in self._taken), None)
        if found is not None:
            self._taken.add(found)
        return found

    def give_back(self, connection: asyncssh.SSHClientConnection) -> None:
        """Let other sessions have it again."""
        self._taken.discard(connection)

    def retire(self, connection: asyncssh.SSHClientConnection) -> None:
        """Close it once no command runs over it; nobody gets it any more."""
        self._retired.add(connection)
        self._close_unused(connection)

    def count(self, connection: asyncssh.SSHClientConnection, commands: int) -> None:
        """Note that so many commands more (or fewer) run over it beside a session."""
        self._commands[connection] += commands
        self._close_unused(connection)

    def _close_unused(self, connection: asyncssh.SSHClientConnection) -> None:
        if not self._commands[connection]:
            del self._commands[connection]
            if connection in self._retired:
                self._retired.discard(connection)
                connection.close()

    def all(self, place: Place) -> list[asyncssh.SSHClientConnection]:
        """Give those for a command beside a session, free ones first.

        One with a session is shared at mpiboot's own servers alone: others may take one at a time.
        """
        alive = self._alive(place)
        free = [one for one in alive if one not in self._taken]
        own = [one for one in alive if WORKER in str(one.get_extra_info("server_version"))]
        return [*free, *(one for one in own if one not in free)]

    def _alive(self, place: Place) -> list[asyncssh.SSHClientConnection]:
        before = self._open.get(_key(place), [])
        found = [one for one in before if not (one.is_closed() or one in self._retired)]
        if found != before:
            self._taken -= set(before) - set(found)
            self._open[_key(place)] = found
        return found


def _key(place: Place) -> tuple[str, int, str]:
    return (place.address, place.port, place.user)


@dataclass(frozen=True)
class HostCommand:
    """A command that runs on a host; ``wait`` gives its exit status, None where that is unknown."""

    stdin: WriteTransport | asyncssh.SSHWriter[bytes]
    stdout: StreamReader | asyncssh.SSHReader[bytes]
    wait: Callable[[], Awaitable[int | None]]
    end: Callable[[], None]

    async def output(self) -> str | None:
        """Read to the end; None where the command failed."""
        text = await read_end(self.stdout.read)
        return text.decode("utf-8", "replace") if await self.wait() == 0 else None

    async def line(self) -> str | None:
        """Read the next line; None at the end."""
        line = await self.stdout.readline()
        return line.decode("utf-8", "replace").strip() if line else None

    def write(self, line: str) -> None:
        """Write a line; it is lost where nobody reads any more."""
        with suppress(OSError):
            self.stdin.write(f"{line}\n".encode())
