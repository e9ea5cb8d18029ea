"""With what asyncssh logs in for mpiboot: nothing of this machine's or user's, whoever asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import asyncssh

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


def host_key_algorithms(pinned: asyncssh.SSHKey | None) -> list[str]:
    """Give the pinned key's algorithms first, then the others.

    With the pinned key's alone a server without that key would say that there is no common
    algorithm, rather than show the key that it has.
    """
    known = [alg.decode() for alg in asyncssh.public_key.get_default_public_key_algs()]
    own = [alg.decode() for alg in pinned.sig_algorithms] if pinned else []
    first = [alg for alg in own if alg in known] or own
    return [*first, *(alg for alg in known if alg not in first)]
