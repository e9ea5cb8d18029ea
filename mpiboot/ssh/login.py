"""One SSH login at one address: how far it got, and the output of the gate's command.

Each way to fail has an ``Outcome``, and asyncssh's exceptions end here. Nothing is retried, and
whether a failure is final is for the gate to decide. Where asyncssh can't log in by protocol or
authentication, or can't do what ssh is set to do, the image's own ssh tries (``client.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import asyncssh

from mpiboot.core.checks import error
from mpiboot.core.setting_types import HostKeys
from mpiboot.ssh.algorithms import CONNECTION, SIGNATURES
from mpiboot.ssh.attempt import SHOWN, Attempt, LoginTimeouts, OpenConnection, Outcome
from mpiboot.ssh.client import OpensshClient
from mpiboot.ssh.connections import Connections
from mpiboot.system.programs import read_end

NOTHING_ELSE: Final[Mapping[str, Any]] = {
    "config": None,
    # None is trusted, so that the client is asked about the one that is shown.
    "known_hosts": ([], [], []),
    "x509_trusted_certs": None,
    "agent_path": None,
    "client_host_keys": None,
    "gss_host": None,
    "compression_algs": None,
    **CONNECTION,
}


def host_key_algorithms(pinned: asyncssh.SSHKey | None) -> list[str]:
    """Give the pinned key's algorithms first, then the others.

    With the pinned key's alone a server without that key would say that there is no common
    algorithm, rather than show the key that it has. Certificates, which asyncssh prefers, are left
    out: nothing here could check them.
    """
    own = pinned.get_algorithm() if pinned else ""
    first = "rsa-" if own == "ssh-rsa" else own
    return sorted(SIGNATURES, key=lambda name: not name.startswith(first))


def read_private(path: Path) -> asyncssh.SSHKey:
    """Read the job's key.

    Raises:
        MpibootError: ``ssh-key``; it can't be read, is none, or has a passphrase.
    """
    try:
        return asyncssh.read_private_key(path)
    except OSError as why:
        raise error("ssh-key", f"the job's key {path} can't be read: {why.strerror}") from None
    except ValueError as why:
        # asyncssh has no exception of its own for this, and without bcrypt another text.
        if not re.search("passphrase|encrypt", str(why), re.IGNORECASE):
            raise error("ssh-key", f"the job's key {path} is no private SSH key: {why}") from None
        raise error(
            "ssh-key",
            f"the job's key {path} has a passphrase, and nobody is there to type it",
            hint="make a key without one: ssh-keygen -N ''",
        ) from None


def read_public(line: str) -> asyncssh.SSHKey:
    """Read the pinned host key, a line as in a .pub file.

    Raises:
        MpibootError: ``ssh-key``; it is none.
    """
    try:
        return asyncssh.import_public_key(line)
    except ValueError as why:
        raise error("ssh-key", f"the pinned host key is no public SSH key: {why}") from None


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
        """Disconnect, which ends its commands; a host that doesn't answer is not waited for."""
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
        self._asked: list[str] = []

    async def line(self) -> str:
        """Read the next line; empty at the end."""
        try:
            found = await self._process.stdout.readline()
        except _WRONG:
            return ""
        return found[:_LINE].decode("ascii", "replace").strip()

    def end(self) -> None:
        """Write a line that nobody answers: a program of ``host_shell.measure`` ends by it."""
        with contextlib.suppress(*_WRONG):
            self._process.stdin.write(b"end\n")

    async def ask(self, line: str) -> str:
        """Write a line and read its answer; empty at the end.

        Lines asked in the same turn of the event loop go out as one packet, and answers come in
        their order: once an ask is cancelled, no other one may follow it.
        """
        if self._process.stdin.is_closing():
            return ""
        if not self._asked:
            asyncio.get_running_loop().call_soon(self._write)
        self._asked.append(line)
        async with self._turn:
            return await self.line()

    def _write(self) -> None:
        lines = "".join(f"{line}\n" for line in self._asked)
        self._asked.clear()
        with contextlib.suppress(*_WRONG):
            self._process.stdin.write(lines.encode())


async def closed(connection: asyncssh.SSHClientConnection) -> None:
    """Close a connection: a disconnect message first, so that no log has "reset by peer"."""
    connection.close()
    try:
        await asyncio.wait_for(connection.wait_closed(), _GONE)
    except asyncio.TimeoutError:
        connection.abort()


# In the greeting of tinysshd, which does not answer what asyncssh sends at once after a login.
_TINYSSH: Final = "tinyssh"
# What ssh may do, and asyncssh can't: other algorithms, certificates, an agent's keys.
_SSH_MAY_KNOW: Final = frozenset((Outcome.PROTOCOL, Outcome.KEY_REFUSED, Outcome.PASSWORD_ASKED))
_COMPLAINT: Final = 400  # characters
# A handshake is some milliseconds of work here; more at once only makes each of them slow enough to
# be cut off by a server's patience. A server that says nothing has its turn for so many seconds.
_LOGINS: Final = 32
_TURN: Final = 1.0
T = TypeVar("T")


class Turns:
    """Lets so many handshakes begin at once."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_LOGINS)

    async def run(self, handshake: Callable[[], Coroutine[Any, Any, T]], limit: float | None) -> T:
        """Run a handshake in its turn, and give its result.

        Raises:
            asyncio.TimeoutError: it took longer than ``limit`` seconds.
            Exception: what the handshake raises.
        """
        running: asyncio.Future[T] | None = None
        try:
            async with self._free:
                running = asyncio.ensure_future(handshake())
                turn = min(_TURN, limit or _TURN)
                await asyncio.wait({running}, timeout=turn)
            return await asyncio.wait_for(running, limit and limit - turn)
        finally:
            if running is not None:
                running.cancel()


# Each kind of asyncssh.Error; the nearest ancestor counts. Other exceptions that an attempt can
# meet are OSError (the connection) and ValueError (what the server sent can't be read).
ERRORS: Final[dict[type[BaseException], Outcome]] = {
    asyncssh.ConnectionLost: Outcome.CLOSED,
    asyncssh.ServiceNotAvailable: Outcome.CLOSED,
    asyncssh.HostKeyNotVerifiable: Outcome.HOST_KEY_DIFFERS,
    asyncssh.PermissionDenied: Outcome.KEY_REFUSED,
    asyncssh.IllegalUserName: Outcome.KEY_REFUSED,
    asyncssh.KeyExchangeFailed: Outcome.PROTOCOL,
    asyncssh.CompressionError: Outcome.PROTOCOL,
    asyncssh.MACError: Outcome.PROTOCOL,
    asyncssh.ProtocolError: Outcome.PROTOCOL,
    asyncssh.ProtocolNotSupported: Outcome.PROTOCOL,
    asyncssh.DisconnectError: Outcome.CLOSED,
    asyncssh.ChannelOpenError: Outcome.COMMAND_FAILED,
    asyncssh.ProcessError: Outcome.COMMAND_FAILED,
    asyncssh.SFTPError: Outcome.COMMAND_FAILED,
    asyncssh.Error: Outcome.PROTOCOL,
    OSError: Outcome.CLOSED,
    ValueError: Outcome.PROTOCOL,
}


def _longer(limit: float) -> str:
    return f"more than {limit:g} s, now trying with {2 * limit:g} s"


def outcome_of(exception: BaseException) -> Outcome:
    """Name what an exception of an attempt means."""
    return next(ERRORS[kind] for kind in type(exception).__mro__ if kind in ERRORS)


def _key_line(key: asyncssh.SSHKey) -> str:
    return " ".join(key.export_public_key().decode("ascii", "replace").split()[:2])


class _LoginRecord(asyncssh.SSHClient):
    """Offers one key, records what the server shows and requests, answers no prompt."""

    def __init__(self, key: asyncssh.SSHKey) -> None:
        self._keys = [key]
        self.shown: asyncssh.SSHKey | None = None
        self.offered = False
        self.password = False
        self.banner = ""

    def validate_host_public_key(
        self,
        host: str,  # noqa: ARG002 - asyncssh's signature
        addr: str,  # noqa: ARG002
        port: int,  # noqa: ARG002
        key: asyncssh.SSHKey,
    ) -> bool:
        # A foreign key is let through up to the login and no further (see Login.log_in): only
        # so can a worker with a host key of its own be told from the node's own sshd. A public
        # key login gives the server nothing that it could use elsewhere: the signature is bound
        # to this connection (RFC 4252 7).
        self.shown = key
        return True

    def public_key_auth_requested(self) -> asyncssh.SSHKey | None:
        self.offered = True
        return self._keys.pop() if self._keys else None

    def password_auth_requested(self) -> str | None:
        self.password = True
        return None

    def kbdint_auth_requested(self) -> str | None:
        self.password = True
        return None

    def auth_banner_received(self, msg: str, lang: str) -> None:  # noqa: ARG002 - its signature
        self.banner = " ".join(msg.split())[:SHOWN]


class Login:
    """Logs in with the job's key and runs one command; ``mode`` is the setting ``host_keys``.

    ``public_line`` is what the worker's authorized_keys must hold, ``fingerprint`` that of it,
    ``host_fingerprint`` that of the host key which is pinned: the job's own where none is given.
    ``kept`` takes over the connection of each attempt that is a success; ``client`` is None where
    the image has no ssh that can run.
    """

    def __init__(
        self,
        key: Path,
        *,
        host_key: str = "",
        mode: HostKeys = HostKeys.JOB,
        limits: LoginTimeouts | None = None,
        kept: Connections | None = None,
        client: OpensshClient | None = None,
    ) -> None:
        self._kept, self._client = kept, client
        self._key = read_private(key)
        self._pinned = read_public(host_key) if host_key else self._key.convert_to_public()
        self._strict = mode is HostKeys.JOB
        self._limits = limits or LoginTimeouts()
        self._turns = Turns()
        self.public_line = _key_line(self._key)
        self.fingerprint = self._key.get_fingerprint()
        self.host_fingerprint = self._pinned.get_fingerprint()

    async def log_in(
        self,
        opened: OpenConnection,
        command: str,
        *,
        keep: Callable[[Connection], None] | None = None,
        limits: LoginTimeouts | None = None,
    ) -> Attempt:
        """Log in over an open connection and run the command; the socket is closed at the end.

        Args:
            opened: the connection.
            command: for the login shell there.
            keep: gets what can run more commands beside this one. It is to be closed where the
                attempt is a success, and is closed here otherwise.
            limits: instead of those of all attempts.
        """
        limits, target, client = limits or self._limits, opened.target, self._client
        if client is None or not client.usable:
            return await self._by_asyncssh(opened, command, keep, limits)
        found, why = None, ""
        if _TINYSSH in opened.greeting:
            why = "its server has one session for each connection"
        elif not (target.host in client.carried or client.known(target.host).only_ssh):
            found = await self._by_asyncssh(opened, command, keep, limits)
            why = found.message
            if found.outcome not in _SSH_MAY_KNOW:
                return found
        opened.sock.close()
        by_ssh = await client.log_in(target, command, limits, why)
        by_ssh = replace(by_ssh, greeting=opened.greeting, local_address=opened.local_address)
        if found is None:
            return by_ssh
        if by_ssh.outcome is Outcome.OK:
            return replace(by_ssh, host_key=by_ssh.host_key or found.host_key)
        if by_ssh.outcome in _SSH_MAY_KNOW:
            # The key that asyncssh was shown tells whose server this is.
            return replace(found, outcome=by_ssh.outcome, message=by_ssh.message)
        return replace(found, message=f"{found.message}; {client.program}: {by_ssh.message}")

    async def _by_asyncssh(
        self,
        opened: OpenConnection,
        command: str,
        keep: Callable[[Connection], None] | None,
        limits: LoginTimeouts,
    ) -> Attempt:
        target = opened.target
        found = Attempt(
            target, Outcome.OK, greeting=opened.greeting, local_address=opened.local_address
        )
        client = _LoginRecord(self._key)
        try:
            opening = partial(self._open, target.user, opened.sock, client)
            connection = await self._turns.run(opening, limits.login)
        except asyncio.TimeoutError:
            message = _longer(limits.login)
            # The server's half of the key exchange is the first that doesn't fit a small packet.
            stalled = client.shown is None
            return replace(found, outcome=Outcome.SLOW, message=message, stalled=stalled)
        except (asyncssh.Error, OSError, ValueError) as why:
            return self._failed(found, client, why)
        finally:
            opened.sock.close()  # asyncssh has a duplicate of its own, and closes that
        found = self._with_key(found, client)
        kept = False
        try:
            if self._is_foreign(client):
                return replace(found, outcome=Outcome.HOST_KEY_DIFFERS, welcome=True)
            if keep is not None:
                keep(Connection(connection, stays=self._kept is not None))
            done = await asyncio.wait_for(self._run(found, connection, command), limits.command)
            if done.outcome is Outcome.OK:
                kept = keep is not None or self._kept is not None
                if self._kept is not None:
                    self._kept.keep(target, connection)
        except asyncio.TimeoutError:
            message = _longer(limits.command)
            return replace(found, outcome=Outcome.COMMAND_FAILED, message=message, stalled=True)
        except (asyncssh.Error, OSError, ValueError) as why:
            message = " ".join(str(why).split())
            return replace(found, outcome=Outcome.COMMAND_FAILED, message=message)
        else:
            return done
        finally:
            if not kept:
                await closed(connection)

    def _is_foreign(self, client: _LoginRecord) -> bool:
        return self._strict and client.shown is not None and client.shown != self._pinned

    def _with_key(self, found: Attempt, client: _LoginRecord) -> Attempt:
        if client.shown is None:
            return found
        line, fingerprint = _key_line(client.shown), client.shown.get_fingerprint()
        return replace(found, host_key=line, fingerprint=fingerprint)

    def _failed(self, found: Attempt, client: _LoginRecord, why: Exception) -> Attempt:
        outcome, message = outcome_of(why), " ".join(str(why).split())
        if outcome is Outcome.KEY_REFUSED and client.password and not client.offered:
            outcome, message = Outcome.PASSWORD_ASKED, "it does not accept public keys"
        if outcome.denied and client.banner:
            message += f" ({client.banner})"
        # Whatever a server says that is not the job's: first of all, it is another one.
        if self._is_foreign(client):
            outcome = Outcome.HOST_KEY_DIFFERS
        return self._with_key(replace(found, outcome=outcome, message=message), client)

    async def _open(
        self, user: str, sock: socket.socket, client: _LoginRecord
    ) -> asyncssh.SSHClientConnection:
        own = sock.dup()  # asyncssh takes it over; the caller's must stay valid to be closed
        try:
            return await asyncssh.connect(
                sock=own,
                client_factory=lambda: client,
                server_host_key_algs=host_key_algorithms(self._pinned),
                username=user,
                client_keys=None,
                preferred_auth="publickey,keyboard-interactive,password",
                **NOTHING_ELSE,
                keepalive_interval=5,
            )
        except BaseException:
            own.close()
            raise

    async def _run(
        self, found: Attempt, connection: asyncssh.SSHClientConnection, command: str
    ) -> Attempt:
        process = await connection.create_process(command, encoding=None, stdin=asyncssh.DEVNULL)
        streams = (process.stdout, process.stderr)
        output, complaint = await asyncio.gather(*(read_end(stream.read) for stream in streams))
        await process.wait_closed()
        text = output.decode("utf-8", "replace")
        if process.exit_status == 0:
            return replace(found, output=text)
        words = " ".join((complaint or output).decode("utf-8", "replace").split())[-_COMPLAINT:]
        how = (
            f"exit status {process.exit_status}"
            if process.exit_signal is None
            else f"signal {process.exit_signal[0]}"
        )
        message = f"{how}: {words}" if words else how
        return replace(found, outcome=Outcome.COMMAND_FAILED, message=message, output=text)
