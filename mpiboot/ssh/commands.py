"""A script on a host: what it prints, what it reads, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mpiboot.system.programs import read_end

if TYPE_CHECKING:
    from asyncio import StreamReader, WriteTransport

    import asyncssh


# What reads a script, whatever the login shell is; the rest of its standard input is the script's.
SHELL: Final = ("/bin/sh", "-s")
# The same for a login shell, which runs no path where it is a restricted one (rbash).
BY_LOGIN: Final = "sh -s"


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """The output and exit status of a command.

    ``status`` is negative where a signal ended it, and None where it did not run, or its end is not
    known; ``error`` is the reason then, otherwise the command's standard error. ``timed_out`` where
    its time limit ended it.
    """

    output: str = ""
    status: int | None = None
    error: str = ""
    timed_out: bool = False

    @property
    def answer(self) -> str | None:
        """The output of a command that succeeded; None for any other."""
        return self.output if self.status == 0 else None


@dataclass(frozen=True, eq=False)
class HostCommand:
    """A running command.

    ``wait`` gives the exit status, negative for a signal and None where that is unknown; ``end``
    closes the command's streams, and kills a local one.
    """

    stdin: WriteTransport | asyncssh.SSHWriter[bytes]
    stdout: StreamReader | asyncssh.SSHReader[bytes]
    stderr: StreamReader | asyncssh.SSHReader[bytes]
    wait: Callable[[], Awaitable[int | None]]
    end: Callable[[], None]
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def finish(self) -> CommandEnd:
        """Send the end of its input, and read to the end."""
        self.stdin.write_eof()
        reading = (read_end(stream.read) for stream in (self.stdout, self.stderr))
        texts = [text.decode("utf-8", "replace") for text in await asyncio.gather(*reading)]
        return CommandEnd(texts[0], await self.wait(), texts[1])

    async def line(self) -> str | None:
        """Read the next line; None at the end."""
        line = await self.stdout.readline()
        return line.decode("utf-8", "replace").strip() if line else None

    def write(self, line: str) -> None:
        """Write a line, or a script; it is lost where nobody reads any more."""
        with suppress(OSError):
            self.stdin.write(f"{line}\n".encode("utf-8", "surrogateescape"))

    async def ask(self, line: str) -> str:
        """Write a line and read its answer; empty at the end.

        Answers come in the order of the lines: once an ask is cancelled, no other one may follow.
        """
        self.write(line)
        async with self._turn:
            return await self.line() or ""
