"""One attempt to reach a host, and a script there: its parts, and how each may end.

What is recorded of an attempt, its TCP connection, the SSH greeting, a running script. Needs no SSH
library, so that connections can open while that is being loaded. Nothing is said to the server or
taken from the socket, which goes on to the login (``login.py``) as it is.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from mpiboot.system.programs import read_end

if TYPE_CHECKING:
    from asyncio import StreamReader, WriteTransport

    import asyncssh


# What reads a script, whatever the login shell is; the rest of its standard input is the script's.
SHELL: Final = ("/bin/sh", "-s")
# The same for a login shell, which runs no path where it is a restricted one (rbash).
BY_LOGIN: Final = "sh -s"
# Bytes of a session that a peer may send ahead: twice as many are kept for a reader that waits.
WINDOW: Final = 1 << 19


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


class Outcome(str, Enum):
    """How far an attempt got, the furthest last; the value is what messages say."""

    NO_SOCKET = "this pod has no socket for the address"
    REFUSED = "connection refused"
    UNREACHABLE = "no route"
    TIMEOUT = "connection timed out"
    SILENT = "connected, but no SSH greeting"
    NOT_SSH = "what answers there is not SSH"
    SSH_FAILED = "ssh failed"
    CLOSED = "connection closed"
    PROTOCOL = "no common SSH protocol"
    SLOW = "SSH login timed out"
    HOST_KEY_DIFFERS = "another host key"
    KEY_REFUSED = "key refused"
    PASSWORD_ASKED = "password asked"  # noqa: S105 - what the server does
    COMMAND_FAILED = "logged in, but the command failed"
    OK = "ready"

    @property
    def rank(self) -> int:
        """Place in this list."""
        return list(Outcome).index(self)

    @property
    def greeted(self) -> bool:
        """Whether an SSH server was seen."""
        return self.rank > Outcome.NOT_SSH.rank


# What mpiboot's own servers have in their greeting, and no other.
WORKER: Final = "mpiboot"


@dataclass(frozen=True, slots=True)
class Target:
    """Where to log in: a host of the hostfile at one of its addresses and one port.

    ``user_by`` is what names the user, empty where it is this pod's own.
    """

    host: str
    address: str
    port: int
    user: str
    user_by: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class LoginTimeouts:
    """How long each step of an attempt may take, in seconds."""

    connect: float = 2.5
    greeting: float = 5.0
    login: float = 20.0
    command: float = 30.0

    @property
    def ssh(self) -> float:
        """That of the image's ssh, which does all of it."""
        return self.login + self.command

    def longer(self, times: int) -> LoginTimeouts:
        """Double them so many times: for a node that is starved of CPU, or a slow directory."""
        by = 1 << times
        return LoginTimeouts(self.connect, self.greeting, self.login * by, self.command * by)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt found.

    ``host_key`` is the public key that the server showed (a line as in known_hosts, without the
    host), ``fingerprint`` that of it. ``welcome`` tells, where that key is not the job's, that the
    server would have let us in with the job's key all the same. ``stalled`` tells that small
    packets came and then nothing more.
    """

    target: Target
    outcome: Outcome
    message: str = ""
    output: str = ""
    greeting: str = ""
    local_address: str = ""
    host_key: str = ""
    fingerprint: str = ""
    welcome: bool = False
    stalled: bool = False


_MAX_COMPLAINT: Final = 400  # characters


def with_end(found: Attempt, end: CommandEnd, seconds: float) -> Attempt:
    """Add the end of the gate's command, which had so many seconds, to a login. Pure."""
    if end.status == 0:
        return replace(found, output=end.output)
    failed = replace(found, outcome=Outcome.COMMAND_FAILED, output=end.output)
    if end.timed_out:
        return replace(failed, message=f"more than {seconds:g} s", stalled=True)
    words = " ".join((end.error or end.output).split())[-_MAX_COMPLAINT:]
    how = "ended by a signal" if (end.status or 0) < 0 else f"exit status {end.status}"
    parts = (words,) if end.status is None else (how, words)
    return replace(failed, message=": ".join(filter(None, parts)))


async def until_ready(descriptor: int, *, to_write: bool = False) -> None:
    """Wait until a descriptor can be read, or written to."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    add, remove = loop.add_reader, loop.remove_reader
    if to_write:
        add, remove = loop.add_writer, loop.remove_writer
    add(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        remove(descriptor)


# RFC 4253 4.2: other lines may come before the identification, as a notice to who logs in.
_GREETING_SIZE: Final = 1 << 16
_SHOWN: Final = 60


async def connect(target: Target, limits: LoginTimeouts) -> tuple[Attempt, socket.socket | None]:
    """Open the connection and look at the greeting, which stays unread.

    Returns:
        What was found, and the socket where a server has greeted; who gets it closes it.
    """
    try:
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        where = socket.getaddrinfo(
            target.address, target.port, type=socket.SOCK_STREAM, flags=numeric
        )
        family, *_, place = where[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as why:  # a kernel without IPv6, no descriptor left, a zone that is not here
        return Attempt(target, Outcome.NO_SOCKET, _words(why)), None
    try:
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await asyncio.wait_for(loop.sock_connect(sock, place), limits.connect)
        except asyncio.TimeoutError:
            outcome, message = Outcome.TIMEOUT, ""
        except ConnectionRefusedError:
            outcome, message = Outcome.REFUSED, ""
        except OSError as why:
            reset = isinstance(why, ConnectionError)
            outcome, message = Outcome.CLOSED if reset else Outcome.UNREACHABLE, _words(why)
        else:
            outcome, message = await _greeting(sock, limits)
    except BaseException:
        sock.close()
        raise
    if outcome is Outcome.OK:
        local = str(sock.getsockname()[0])
        return Attempt(target, outcome, greeting=message, local_address=local), sock
    sock.close()
    return Attempt(target, outcome, message), None


def _words(why: OSError) -> str:
    return (why.strerror or str(why)).lower()


async def _greeting(sock: socket.socket, limits: LoginTimeouts) -> tuple[Outcome, str]:
    """Look at the server's first line without taking it from asyncssh."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limits.greeting
    seen = b""
    while (left := end - loop.time()) > 0:
        try:
            # As a number: asyncio writes a socket out in words, its ends included, to find it.
            await asyncio.wait_for(until_ready(sock.fileno()), left)
            seen = sock.recv(_GREETING_SIZE, socket.MSG_PEEK)
        except asyncio.TimeoutError:
            break
        except OSError as why:
            return Outcome.CLOSED, _words(why)
        if not seen:
            return Outcome.CLOSED, "before its greeting"
        lines = seen.split(b"\n")
        for line in lines[:-1]:
            if line.startswith(b"SSH-"):
                return Outcome.OK, line.strip().decode("utf-8", "replace")
        if len(seen) == _GREETING_SIZE:
            break
        await asyncio.sleep(0.01)  # a part of a line: the socket stays readable meanwhile
    if not seen:
        return Outcome.SILENT, f"within {limits.greeting:g} s"
    return Outcome.NOT_SSH, f"it says {seen[:_SHOWN].decode('utf-8', 'replace')!a}"
