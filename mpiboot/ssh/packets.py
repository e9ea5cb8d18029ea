"""What asyncssh does with every packet and login, and mpiboot's client and server leave out."""

from __future__ import annotations

from typing import Any, Final

import asyncssh
from asyncssh.constants import MSG_IGNORE
from asyncssh.logging import SSHLogger


def send_no_ignores(connection: asyncssh.connection.SSHConnection) -> None:
    """Have a connection leave out the MSG_IGNORE that asyncssh sends before every packet.

    They hide where a packet begins in the stream of a CBC cipher (RFC 4251 9.3.1), which asyncssh
    does not offer by itself; with any other they are half of what is encrypted and sent, a tenth
    of a gate's CPU time. OpenSSH sends none.
    """
    send = connection.send_packet

    def without_ignores(
        pkttype: int, *args: bytes, handler: asyncssh.packet.SSHPacketLogger | None = None
    ) -> None:
        if pkttype != MSG_IGNORE:
            send(pkttype, *args, handler=handler)

    connection.send_packet = without_ignores  # type: ignore[method-assign]


class _SignedAtOnce(asyncssh.auth._ClientPublicKeyAuth):  # noqa: SLF001
    """Logs in by key without first asking whether the server would take it.

    The question saves a signature that may need a person or a token (RFC 4252 7); the job's key
    needs none, and the question is a round trip of each login.
    """

    async def _start(self) -> None:
        self._keypair = await self._conn.public_key_auth_requested()
        if self._keypair is None:
            self._conn.try_next_auth(next_method=True)
        else:
            await self._send_signed_request()


_LOG: Final = SSHLogger.log


def _log_what_is_read(self: SSHLogger, level: int, msg: object, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
    if self.isEnabledFor(level):
        _LOG(self, level, msg, *args, **kwargs)


# asyncssh puts together what it would log before it looks whether anybody reads that, a fortieth of
# a gate's CPU time. Here lines that nobody reads are not put together, and packets never logged.
SSHLogger.log = _log_what_is_read  # type: ignore[method-assign]
asyncssh.packet.SSHPacketLogger._log_packet = lambda *_: None  # type: ignore[method-assign] # noqa: SLF001
asyncssh.auth._client_auth_handlers[b"publickey"] = _SignedAtOnce  # noqa: SLF001
