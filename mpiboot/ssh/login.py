"""What is done by asyncssh at both ends: algorithms, keys, one login, the streams of a session.

Each way a login can fail has an ``Outcome``, and asyncssh's exceptions end here. Nothing is
retried, and whether a failure is final is for the gate to decide.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import select
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Final

import asyncssh

from mpiboot.core.checks import error
from mpiboot.ssh.attempt import WINDOW, Attempt, Outcome, until_ready

# asyncssh's own defaults (2.18 to 2.24) without SHA-1, ssh.com's variants, groups that the server
# chooses, RSA and what ssh-audit does not know. Each pattern matches a name in any build, also in
# FIPS mode, as asyncssh wants it. So each peer has some: OpenSSH since 7.3, Dropbear since 2020.79.
CONNECTION: Final[Mapping[str, str]] = {
    "kex_algs": "-*sha1,*@ssh.com,*exchange*,gss*,rsa*,*nistp???-sha???,*1.3.132*",
    # The first is the fastest in asyncssh, by about two.
    "encryption_algs": "^aes128-gcm@openssh.com,aes256-gcm@openssh.com",
    "mac_algs": "hmac-sha2-???-etm@openssh.com,hmac-sha2-???",
}


def available(*names: str) -> list[str]:
    """Choose the signatures that asyncssh has here: some need a library, or no FIPS mode."""
    found = []
    for name in names:
        with suppress(ValueError):
            asyncssh.SSHServerConnectionOptions(signature_algs=[name])
            found.append(name)
    return found


# For a host key and for a user's.
SIGNATURES: Final = available(
    *("rsa-sha2-256", "rsa-sha2-512", "ssh-ed25519"),
    *(f"ecdsa-sha2-nistp{size}" for size in (521, 384, 256)),
)


def host_key_algorithms(pinned: asyncssh.SSHKey) -> list[str]:
    """Give the pinned key's algorithms first, then the others.

    With the pinned key's alone a server without that key would say that there is no common
    algorithm, rather than show the key that it has. Certificates, which asyncssh prefers, are left
    out: nothing here could check them.
    """
    own = pinned.get_algorithm()
    first = "rsa-" if own == "ssh-rsa" else own
    return sorted(SIGNATURES, key=lambda name: not name.startswith(first))


def read_private(path: Path) -> asyncssh.SSHKey:
    """Read the job's key.

    Raises:
        MpibootError: ``ssh-key``; it can't be read, or is none.
    """
    try:
        return asyncssh.read_private_key(path)
    except OSError as why:
        raise error("ssh-key", f"the job's key {path} can't be read: {why.strerror}") from None
    except ValueError as why:
        raise error("ssh-key", f"the job's key {path} is no private SSH key: {why}") from None


@functools.cache
def read_public(line: str) -> asyncssh.SSHKey:
    """Read a host's public key, a line as in a .pub file.

    Raises:
        MpibootError: ``ssh-key``; it is none.
    """
    try:
        return asyncssh.import_public_key(line)
    except ValueError as why:
        raise error("ssh-key", f"the pinned host key is no public SSH key: {why}") from None


# A handshake is some milliseconds of work here; more at once only makes each of them slow enough to
# be cut off by a server's patience. One that takes longer than its turn waits for a slow server.
_MAX_HANDSHAKES, _TURN_S = 32, 1.0
_REFUSED: Final = asyncssh.PermissionDenied, asyncssh.IllegalUserName
# Of what ends a handshake, the peer or this end does not speak SSH as the other one does.
_PROTOCOL: Final = (
    *(asyncssh.KeyExchangeFailed, asyncssh.CompressionError, asyncssh.MACError),
    *(asyncssh.ProtocolError, asyncssh.ProtocolNotSupported),
)


def outcome_of(exception: Exception) -> Outcome:
    """Name what an exception of a handshake means; what can't be read is no SSH as we know it."""
    if isinstance(exception, _REFUSED):
        return Outcome.KEY_REFUSED
    closed = isinstance(exception, (OSError, asyncssh.DisconnectError))
    return Outcome.CLOSED if closed and not isinstance(exception, _PROTOCOL) else Outcome.PROTOCOL


def _abort(opening: asyncio.Future[asyncssh.SSHClientConnection]) -> None:
    """Close the connection of a login that was cancelled too late."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().abort()


def _key_line(key: asyncssh.SSHKey) -> str:
    return " ".join(key.export_public_key().decode("ascii", "replace").split()[:2])


class _LoginRecord(asyncssh.SSHClient):
    """Offers one key, and records what the server shows and requests."""

    def __init__(self, key: asyncssh.SSHKey) -> None:
        self._keys = [key]
        self.shown: asyncssh.SSHKey | None = None
        self.offered = False

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

    def failure(self, problem: Exception) -> tuple[Outcome, str]:
        """Name what an exception of the handshake means, and describe it."""
        if isinstance(problem, asyncssh.PermissionDenied) and not self.offered:
            return Outcome.PASSWORD_ASKED, "it does not accept public keys"
        return outcome_of(problem), " ".join(str(problem).split())


class Login:
    """Logs in with the job's key.

    ``public_line`` is what the worker's authorized_keys must hold, ``fingerprint`` that of it;
    ``host_line`` the host key of the job's workers, ``host_fingerprint`` that of it.
    """

    def __init__(self, key: Path, host_key: str = "") -> None:
        """Read the keys.

        Args:
            key: path of the job's private key.
            host_key: the pinned public key as a line; empty for the public half of ``key``.

        Raises:
            MpibootError: ``ssh-key``.
        """
        self._key = read_private(key)
        self._free = asyncio.Semaphore(_MAX_HANDSHAKES)
        self.public_line = _key_line(self._key)
        self.fingerprint = self._key.get_fingerprint()
        self.host_line = host_key or self.public_line
        pinned = read_public(self.host_line)
        self.host_fingerprint = pinned.get_fingerprint()
        self._algorithms = host_key_algorithms(pinned)

    async def authenticate(
        self, found: Attempt, sock: socket.socket, seconds: float, host_key: str
    ) -> tuple[Attempt, asyncssh.SSHClientConnection | None]:
        """Log in over an open connection, which is used up.

        Args:
            found: what ``connect`` has found.
            sock: the connection.
            seconds: the time limit of the login.
            host_key: the one that the server must have, as a line; empty: any.

        Returns:
            What was found, and the connection where the login is good.
        """
        client, outcome, message = _LoginRecord(self._key), Outcome.OK, ""
        opening: asyncio.Future[asyncssh.SSHClientConnection] | None = None
        connection: asyncssh.SSHClientConnection | None = None
        try:
            async with self._free:
                opening = asyncio.ensure_future(self._open(found.target.user, sock, client))
                await asyncio.wait((opening,), timeout=min(_TURN_S, seconds))
            connection = await asyncio.wait_for(opening, seconds)
        except asyncio.TimeoutError:
            outcome, message = Outcome.SLOW, f"more than {seconds:g} s"
        except (asyncssh.Error, OSError, ValueError) as problem:
            outcome, message = client.failure(problem)
        finally:
            sock.close()  # asyncssh has a duplicate of its own, and closes that
            if opening is not None and connection is None:
                opening.add_done_callback(_abort)
                opening.cancel()
        shown = client.shown
        found = replace(
            found,
            outcome=outcome,
            message=message,
            host_key=_key_line(shown) if shown else "",
            fingerprint=shown.get_fingerprint() if shown else "",
            # The server's half of the key exchange is the first that doesn't fit a small packet.
            stalled=outcome is Outcome.SLOW and shown is None,
        )
        # Whatever a server says that is not the job's: first of all, it is another one.
        if host_key and shown and shown != read_public(host_key):
            if connection:
                connection.close()
            welcome = connection is not None
            return replace(found, outcome=Outcome.HOST_KEY_DIFFERS, welcome=welcome), None
        return found, connection

    async def _open(
        self, user: str, sock: socket.socket, client: _LoginRecord
    ) -> asyncssh.SSHClientConnection:
        own = sock.dup()  # asyncssh takes it over; the caller's must stay valid to be closed
        try:
            return await asyncssh.connect(
                sock=own,
                client_factory=lambda: client,
                server_host_key_algs=self._algorithms,
                username=user,
                client_keys=None,
                preferred_auth="publickey",
                config=None,
                # None is trusted, so that the client is asked about the one that is shown.
                known_hosts=([], [], []),
                x509_trusted_certs=None,
                agent_path=None,
                client_host_keys=None,
                gss_host=None,
                compression_algs=None,
                **CONNECTION,
                login_timeout=0,  # the limit of the whole is the caller's
            )
        except BaseException:
            own.close()
            raise


# All that can have come. asyncssh (2.24) opens the window with the first part that it hands on:
# whoever reads less lets in more than goes out.
_ALL: Final = 8 * WINDOW
_CHUNK: Final = 1 << 16
_MAX_WORDS: Final = 400  # bytes


async def send(source: FileIO, writer: asyncssh.SSHWriter[bytes]) -> None:
    """Send what a stream has, to its end, as fast as the peer takes it; the stream is closed.

    Raises:
        OSError: the session has ended.
    """
    with source:
        while (data := _read_part(source)) != b"":
            if data is None:
                await until_ready(source.fileno())
            else:
                writer.write(data)
                await writer.drain()


def _read_part(source: FileIO) -> bytes | None:
    try:
        return source.read(_CHUNK)
    except OSError:
        return b""  # a terminal of another session: as if it were at its end


async def receive(
    reader: asyncssh.SSHReader[bytes], target: FileIO, words: bytearray | None = None
) -> str:
    """Write what a session sends to a stream, which is closed at the end.

    Args:
        reader: the session's.
        target: the stream; what comes once nobody reads it is dropped.
        words: gets the beginning.

    Returns:
        Why a part is missing that was to be read, such as a full disk; empty where none is.

    Raises:
        OSError, asyncssh.Error: the connection is lost.
    """
    failure = ""
    with target:
        while data := await reader.read(_ALL):
            if words is not None:
                words += data[: _MAX_WORDS - len(words)]
            try:
                await _write(target, data)
            except OSError as exc:
                if exc.errno not in (errno.EPIPE, errno.ECONNRESET):  # else nobody reads it
                    failure = exc.strerror or ""
                target.close()
    return failure


async def _write(target: FileIO, data: bytes) -> None:
    rest = memoryview(b"" if target.closed else data)
    # One that blocks is shared with others, and stays so: once it is ready it takes this much
    # without blocking, pipe(7); a socket more.
    blocks, poll = bool(rest) and os.get_blocking(target.fileno()), select.poll()
    if blocks:
        poll.register(target, select.POLLOUT)
    while rest:
        size = select.PIPE_BUF if blocks else len(rest)
        written = None if blocks and not poll.poll(0) else target.write(rest[:size])
        rest = rest[written or 0 :]
        if written is None:
            await until_ready(target.fileno(), to_write=True)
