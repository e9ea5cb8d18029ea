"""The gate's logins that stay open: the launch agents' sessions run over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpiboot.ssh.attempt import Target
from mpiboot.ssh.config import SshTimeouts

if TYPE_CHECKING:
    import asyncssh


class KeptConnections:
    """Connections after their login, by address, port and user; hosts may share all of these."""

    def __init__(self, patience: SshTimeouts) -> None:
        """Begin with none; ``patience`` says after what time a silent host is lost."""
        self._patience = patience
        self._all: dict[tuple[str, int, str], list[asyncssh.SSHClientConnection]] = {}

    def keep(self, target: Target, connection: asyncssh.SSHClientConnection) -> None:
        """Take one over."""
        connection.set_keepalive(self._patience.interval, self._patience.probes)
        place = (target.address, target.port, target.user)
        self._all.setdefault(place, []).append(connection)

    def take(self, address: str, port: int, user: str) -> asyncssh.SSHClientConnection | None:
        """Give the latest away; None where there is none that is still open."""
        there = self._all.get((address, port, user), [])
        while there:
            latest = there.pop()
            if not latest.is_closed():
                return latest
        return None

    def close(self) -> None:
        """Close those that nobody took."""
        for there in self._all.values():
            for connection in there:
                connection.close()
        self._all.clear()
