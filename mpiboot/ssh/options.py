"""With what asyncssh logs in for mpiboot: nothing of this machine's or user's, whoever asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import asyncssh
from asyncssh.constants import MSG_IGNORE

NOTHING_ELSE: Final[Mapping[str, Any]] = {
    "config": None,
    # No key is known beforehand, so that the client sees the one that is shown.
    "known_hosts": ([], [], []),
    "x509_trusted_certs": None,
    "agent_path": None,
    "client_host_keys": None,
    "gss_host": None,
    "compression_algs": None,
    # First of all that asyncssh has: the one that is fastest in it, by about two.
    "encryption_algs": "^aes128-gcm@openssh.com,aes256-gcm@openssh.com",
}


def send_no_ignores(connection: asyncssh.SSHClientConnection) -> None:
    """Have a connection leave out the MSG_IGNORE that asyncssh sends before every packet.

    They hide where a packet begins in the stream of a CBC cipher (RFC 4251 9.3.1), which asyncssh
    does not offer by itself; with any other they are half of what is encrypted and sent, a tenth
    of a gate's CPU time. OpenSSH's client sends none.
    """
    send = connection.send_packet

    def without_ignores(
        pkttype: int, *args: bytes, handler: asyncssh.packet.SSHPacketLogger | None = None
    ) -> None:
        if pkttype != MSG_IGNORE:
            send(pkttype, *args, handler=handler)

    connection.send_packet = without_ignores  # type: ignore[method-assign]


def host_key_algorithms(pinned: asyncssh.SSHKey | None) -> list[str]:
    """Give the pinned key's algorithms first, then the others.

    With the pinned key's alone a server without that key would say that there is no common
    algorithm, rather than show the key that it has.
    """
    known = [alg.decode() for alg in asyncssh.public_key.get_default_public_key_algs()]
    own = [alg.decode() for alg in pinned.sig_algorithms] if pinned else []
    first = [alg for alg in own if alg in known] or own
    return [*first, *(alg for alg in known if alg not in first)]
