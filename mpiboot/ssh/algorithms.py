"""The algorithms of SSH that mpiboot offers and accepts, with asyncssh and in its sshd_config.

asyncssh's own defaults hold 1024-bit groups, SHA-1 and ssh.com's variants (2.24). These are the
defaults of OpenSSH 9 without SHA-1, so each peer has some of them: OpenSSH since 7.3, Dropbear
since 2020.79, and builds in FIPS mode, which have NIST's curves and AES alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import asyncssh


def available(parameter: str, *names: str) -> list[str]:
    """Choose the names that asyncssh has here: some need a library, or no FIPS mode.

    Args:
        parameter: the one of asyncssh's that takes them.
        names: the algorithms.
    """
    found = []
    for name in names:
        with suppress(ValueError):
            asyncssh.SSHServerConnectionOptions(**{parameter: [name]})
            found.append(name)
    return found


CONNECTION: Final[Mapping[str, list[str]]] = {
    "kex_algs": available(
        "kex_algs",
        "mlkem768x25519-sha256",
        "sntrup761x25519-sha512@openssh.com",
        "curve25519-sha256",
        "curve25519-sha256@libssh.org",
        *(f"ecdh-sha2-nistp{size}" for size in (256, 384, 521)),
        "diffie-hellman-group16-sha512",
        "diffie-hellman-group18-sha512",
        "diffie-hellman-group14-sha256",
    ),
    # The first is the fastest in asyncssh, by about two.
    "encryption_algs": available(
        "encryption_algs",
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        "chacha20-poly1305@openssh.com",
        *(f"aes{size}-ctr" for size in (128, 192, 256)),
    ),
    "mac_algs": available(
        "mac_algs",
        *(f"hmac-sha2-{size}{kind}" for kind in ("-etm@openssh.com", "") for size in (256, 512)),
    ),
}
# For a host key and for a user's.
SIGNATURES: Final = available(
    "signature_algs",
    *("rsa-sha2-256", "rsa-sha2-512", "ssh-ed25519"),
    *(f"ecdsa-sha2-nistp{size}" for size in (521, 384, 256)),
)
