"""Questions to the kernel by netlink, and its answers cut into messages and attributes.

Own code: a library for it costs a pod's start a quarter of a second and ten megabytes for what is
asked here, runs an event loop for each request (which fails inside a running one), waits for ever
for an answer without an end, and hides the error in the end of a failed dump.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import _socket
    import socket

# linux/netlink.h
_DONE, _ERROR = 3, 2
REQUEST, _MULTI = 0x1, 0x2
DUMP: Final = 0x300
_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
_ATTRIBUTE: Final = struct.Struct("=HH")  # length, type
_NUMBER: Final = 0x3FFF  # the type without NLA_F_NESTED and NLA_F_NET_BYTEORDER
_ANSWER: Final = 1 << 16  # the kernel makes its datagrams no larger than 32 KiB
SECONDS: Final = 2.0  # the kernel answers at once; this is for an answer that has no end


def connect(protocol: int) -> socket.socket:
    """Open a socket to a part of the kernel.

    Raises:
        OSError: the kernel has no such part (EPROTONOSUPPORT), or it is refused here.
    """
    import socket  # noqa: PLC0415 - costs the launcher's parent half a megabyte, which has its own

    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)


class Questions:
    """Questions on one socket, one after the other: a second dump at the same time is refused."""

    def __init__(self, channel: _socket.socket, seconds: float = SECONDS) -> None:
        """Ask by ``channel``; each datagram is waited for no longer than ``seconds``."""
        self._channel = channel
        self._sequence = 0
        channel.settimeout(seconds)

    def ask(self, kind: int, body: bytes = b"", *, flags: int = DUMP) -> Iterator[bytes]:
        """Ask, and give what stands behind the header of each message of the answer.

        Raises:
            TimeoutError: the answer has no end.
            OSError: it is refused, or the dump fails.
            ValueError: the answer is cut short.
        """
        self._sequence += 1
        length = _HEADER.size + len(body)
        self._channel.send(_HEADER.pack(length, kind, REQUEST | flags, self._sequence, 0) + body)
        while True:
            datagram = self._channel.recv(_ANSWER)
            if not datagram:
                raise ValueError("nothing came")
            for answer, more, sequence, data in _messages(datagram):
                if sequence != self._sequence:
                    continue  # the rest of an answer that was given up
                if answer in {_ERROR, _DONE}:
                    # A dump that fails says so in its end, and nowhere else.
                    _raise_code(data)
                    return
                yield data
                if not more:
                    return


def _messages(datagram: bytes) -> Iterator[tuple[int, bool, int, bytes]]:
    offset = 0
    while offset < len(datagram):
        if offset + _HEADER.size > len(datagram):
            raise ValueError(f"{len(datagram) - offset} bytes where a message begins")
        length, kind, flags, sequence, _ = _HEADER.unpack_from(datagram, offset)
        if length < _HEADER.size or offset + length > len(datagram):
            raise ValueError(f"a message says {length} bytes of {len(datagram) - offset}")
        body = datagram[offset + _HEADER.size : offset + length]
        yield kind, bool(flags & _MULTI), sequence, body
        offset += (length + 3) & ~3


def _raise_code(data: bytes) -> None:
    if len(data) < 4:  # noqa: PLR2004 - an old kernel's end of a dump has no code
        return
    (code,) = struct.unpack_from("=i", data)
    if code < 0:
        raise OSError(-code, os.strerror(-code))


def split(head: struct.Struct, data: bytes) -> tuple[tuple[int, ...], dict[int, bytes]]:
    """Take apart what stands before a message's attributes, and these.

    Raises:
        ValueError: the lengths do not fit.
    """
    if len(data) < head.size:
        raise ValueError(f"{len(data)} bytes instead of the {head.size} before the attributes")
    return head.unpack_from(data), attributes(data[head.size :])


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


def attribute(kind: int, value: int | str) -> bytes:
    """Write an attribute: a number of four bytes, or text."""
    data = struct.pack("=I", value) if isinstance(value, int) else value.encode() + b"\0"
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(data), kind) + data + bytes(-len(data) % 4)


def number(value: bytes) -> int:
    """Read an attribute that is a number."""
    return int.from_bytes(value, sys.byteorder)


def text(value: bytes) -> str:
    """Read an attribute that is text; what is no UTF-8 is written with backslashes."""
    return value.rstrip(b"\0").decode("utf-8", "backslashreplace")
