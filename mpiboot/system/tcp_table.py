"""Addresses as /proc/net/tcp and tcp6 write them (the kernel's proc_net_tcp.rst). Pure."""

# socket costs the launcher's parent half a megabyte for names of constants.
from __future__ import annotations

import _socket as socket
import sys
from typing import Final

_V4_IN_V6: Final = "::ffff:"


def address_of(word: str) -> str:
    """Read an address: 32-bit words in this machine's byte order."""
    raw = bytes.fromhex(word)
    if sys.byteorder == "little":
        raw = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6  # noqa: PLR2004
    return socket.inet_ntop(family, raw).removeprefix(_V4_IN_V6)
