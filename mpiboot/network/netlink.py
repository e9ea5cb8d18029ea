"""Dumps of the kernel by netlink, for the launcher's parent, which may not load pyroute2.

The parent stays for the whole job and looks at its connections (``supervisor/host_watch.py``);
links, routes and RDMA devices are read by pyroute2 (``links.py``, ``nldev.py``).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import _socket

# linux/netlink.h
_DONE, _ERROR = 3, 2
_REQUEST_DUMP: Final = 0x1 | 0x300
_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
_ATTRIBUTE: Final = struct.Struct("=HH")  # length, type
_NUMBER: Final = 0x3FFF  # the type without NLA_F_NESTED and NLA_F_NET_BYTEORDER
_ANSWER: Final = 1 << 16  # the kernel makes its datagrams no larger than 32 KiB
_SECONDS: Final = 2.0  # the kernel answers at once; this is for an answer that has no end


class Questions:
    """Questions on one socket, one after the other: a second dump at the same time is refused."""

    def __init__(self, channel: _socket.socket) -> None:
        """Ask by ``channel``; each datagram is waited for no longer than some seconds."""
        self._channel = channel
        self._sequence = 0
        channel.settimeout(_SECONDS)

    def ask(self, kind: int, body: bytes) -> Iterator[bytes]:
        """Ask for a dump, and give what stands behind the header of each message.

        Raises:
            TimeoutError: the answer has no end.
            OSError: it is refused, or the dump fails.
            ValueError: the answer is cut short.
        """
        self._sequence += 1
        length = _HEADER.size + len(body)
        head = _HEADER.pack(length, kind, _REQUEST_DUMP, self._sequence, 0)
        self._channel.send(head + body)
        while True:
            datagram = self._channel.recv(_ANSWER)
            if not datagram:
                raise ValueError("nothing came")
            for answer, sequence, data in _messages(datagram):
                if sequence != self._sequence:
                    continue  # the rest of an answer that was given up
                if answer in {_ERROR, _DONE}:
                    # A dump that fails says so in its end, and nowhere else.
                    _raise_code(data)
                    return
                yield data


def _messages(datagram: bytes) -> Iterator[tuple[int, int, bytes]]:
    offset = 0
    while offset < len(datagram):
        if offset + _HEADER.size > len(datagram):
            raise ValueError(f"{len(datagram) - offset} bytes where a message begins")
        length, kind, _, sequence, _ = _HEADER.unpack_from(datagram, offset)
        if length < _HEADER.size or offset + length > len(datagram):
            raise ValueError(f"a message says {length} bytes of {len(datagram) - offset}")
        yield kind, sequence, datagram[offset + _HEADER.size : offset + length]
        offset += (length + 3) & ~3


def _raise_code(data: bytes) -> None:
    if len(data) < 4:  # noqa: PLR2004 - an old kernel's end of a dump has no code
        return
    (code,) = struct.unpack_from("=i", data)
    if code < 0:
        raise OSError(-code, os.strerror(-code))


def attributes(data: bytes) -> dict[int, bytes]:
    """Cut attributes apart, by their numbers; ``data`` begins with the first one.

    Raises:
        ValueError: their lengths do not fit.
    """
    found, offset, end = {}, 0, len(data)
    while offset < end:
        if offset + _ATTRIBUTE.size > end:
            raise ValueError(f"{end - offset} bytes where an attribute begins")
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        kind &= _NUMBER
        if length < _ATTRIBUTE.size or offset + length > end:
            raise ValueError(f"attribute {kind} says {length} bytes of {end - offset}")
        found[kind] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    return found
