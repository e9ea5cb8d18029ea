"""Logins of mpiboot's own SSH client: the job's key alone, the host key that is pinned."""

from __future__ import annotations

import asyncio
from typing import Final

import asyncssh

from mpiboot.ssh.config import SshTimeouts
from mpiboot.ssh.options import NOTHING_ELSE, host_key_algorithms, send_no_ignores
from mpiboot.ssh.start import ClientHost

# A handshake is some milliseconds of work; more at once only makes each of them slow.
_AT_ONCE: Final = 32


class HostKeyCheck(asyncssh.SSHClient):
    """Trusts one host key, or any where none is pinned."""

    def __init__(self, pinned: asyncssh.SSHKey | None) -> None:
        self._pinned = pinned

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        """Begin."""
        send_no_ignores(conn)

    def validate_host_public_key(
        self,
        host: str,  # noqa: ARG002 - asyncssh's signature
        addr: str,  # noqa: ARG002
        port: int,  # noqa: ARG002
        key: asyncssh.SSHKey,
    ) -> bool:
        """Whether the server may be logged in to."""
        return self._pinned is None or key == self._pinned


class HostLogins:
    """Logs in to the hosts of a launch, some at once."""

    def __init__(self, key: str, patience: SshTimeouts) -> None:
        """Read the job's key.

        Raises:
            OSError: it can't be read.
            ValueError: it is no key.
        """
        self._key = asyncssh.read_private_key(key)
        self._patience = patience
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def log_in(
        self, remote: ClientHost, user: str, once: int = 0
    ) -> asyncssh.SSHClientConnection:
        """Log in to a host, as often as the settings say, or once within so many seconds.

        Raises:
            OSError, ValueError, asyncio.TimeoutError, asyncssh.Error: it doesn't let us in.
        """
        async with self._free:
            return await self._log_in(remote, user, once)

    async def _log_in(
        self, remote: ClientHost, user: str, once: int
    ) -> asyncssh.SSHClientConnection:
        left = 1 if once else max(1, self._patience.attempts)
        limit = once or self._patience.timeout or None
        while True:
            left -= 1
            try:
                return await asyncio.wait_for(self._open(remote, user), limit)
            except (OSError, asyncssh.ConnectionLost, asyncio.TimeoutError) as wrong:
                # The gate has just seen the host answer: a dropped SYN, or a full queue.
                # `wait_for` says nothing; the system's own time-out has words.
                silent = isinstance(wrong, asyncio.TimeoutError) and not str(wrong)
                if not left and not silent:
                    raise
                if not left:
                    where = f"{remote.address} port {remote.port}"
                    raise TimeoutError(f"no login at {where} within {limit} s") from None
            await asyncio.sleep(1)

    async def _open(self, remote: ClientHost, user: str) -> asyncssh.SSHClientConnection:
        pinned = asyncssh.import_public_key(remote.key) if remote.key else None
        return await asyncssh.connect(
            remote.address,
            remote.port,
            client_factory=lambda: HostKeyCheck(pinned),
            server_host_key_algs=host_key_algorithms(pinned),
            username=user,
            client_keys=[self._key],
            preferred_auth="publickey",
            **NOTHING_ELSE,
            keepalive_interval=self._patience.interval,
            keepalive_count_max=self._patience.probes,
            login_timeout=self._patience.timeout,
        )
