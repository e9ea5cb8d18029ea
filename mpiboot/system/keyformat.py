"""Key files as they are written: which key a file holds, without a cryptographic library. Pure.

Reads only what the files say of the public half; never computes with a key.

Here because a worker's way to its sshd leads through it: importing asyncssh costs 170 ms, and an
image may have no ``ssh-keygen``. Formats that are not read here are left to asyncssh.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

_BEGIN: Final = b"-----BEGIN "
_SEQUENCE, _INTEGER, _OCTETS, _OID, _BITS = 0x30, 0x02, 0x04, 0x06, 0x03
_CONTEXT: Final = (0xA0, 0xA1)
_RSA: Final = bytes.fromhex("2a864886f70d010101")
_EC: Final = bytes.fromhex("2a8648ce3d0201")
# RFC 5656, section 10.1: the curves' names in SSH.
_CURVES: Final = {
    bytes.fromhex("2a8648ce3d030107"): b"nistp256",
    bytes.fromhex("2b81040022"): b"nistp384",
    bytes.fromhex("2b81040023"): b"nistp521",
}


def fingerprint(blob: bytes) -> str:
    """SHA-256 of a public key blob, written as OpenSSH does."""
    import hashlib  # noqa: PLC0415 - loads OpenSSL: 5 ms that sshd's start need not wait for

    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def _string(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _take(data: bytes, at: int) -> tuple[bytes, int]:
    """One length-prefixed string of SSH's wire format, and where the next begins."""
    end = at + 4 + int.from_bytes(data[at : at + 4], "big")
    if end > len(data):
        raise ValueError("cut short")
    return data[at + 4 : end], end


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The elements of a DER value: tag and content."""
    at = 0
    while at + 2 <= len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            octets = length & 0x7F
            length = int.from_bytes(data[at : at + octets], "big")
            at += octets
        if at + length > len(data):
            raise ValueError("cut short")
        yield tag, data[at : at + length]
        at += length


def _rsa(content: bytes) -> bytes:
    # RFC 8017, A.1.2: version, modulus, public exponent, ...; DER and SSH write integers alike.
    numbers = [value for tag, value in _elements(content) if tag == _INTEGER]
    return _string(b"ssh-rsa") + _string(numbers[2]) + _string(numbers[1])


def _ec(content: bytes, curve: bytes = b"") -> bytes:
    # RFC 5915: version, key, [0] curve, [1] public point.
    point = b""
    for tag, value in _elements(content):
        if tag in _CONTEXT:
            kind, inner = next(_elements(value))
            if kind == _OID:
                curve = inner
            elif kind == _BITS:
                point = inner[1:]
    if not point:
        raise ValueError("no public half")
    name = _CURVES[curve]
    return _string(b"ecdsa-sha2-" + name) + _string(name) + _string(point)


def _pkcs8(content: bytes) -> bytes:
    # RFC 5958: version, algorithm with its parameters, the key itself.
    (_, _), (_, algorithm), (_, inner) = list(_elements(content))[:3]
    parts = [value for tag, value in _elements(algorithm) if tag == _OID]
    key = next(_elements(inner))[1]
    if parts[0] == _RSA:
        return _rsa(key)
    if parts[0] == _EC:
        return _ec(key, parts[1])
    raise ValueError("another algorithm")


def _openssh(data: bytes) -> bytes:
    magic = b"openssh-key-v1\0"
    if not data.startswith(magic):
        raise ValueError("not an OpenSSH key")
    cipher, at = _take(data, len(magic))
    if cipher != b"none":
        raise PermissionError
    for _ in range(2):  # the key derivation's name and options
        _, at = _take(data, at)
    return _take(data, at + 4)[0]


_FORMATS: Final[Mapping[bytes, Callable[[bytes], bytes]]] = {
    b"OPENSSH PRIVATE KEY": _openssh,
    b"RSA PRIVATE KEY": lambda data: _rsa(next(_elements(data))[1]),
    b"EC PRIVATE KEY": lambda data: _ec(next(_elements(data))[1]),
    b"PRIVATE KEY": lambda data: _pkcs8(next(_elements(data))[1]),
}


def public_blob(text: bytes) -> bytes | None:
    """The public half that a private key file holds; None where only a library can tell.

    Raises:
        ValueError: this is not a private key, with what it is instead.
        PermissionError: the key is locked with a passphrase.
    """
    start = text.find(_BEGIN)
    if start < 0:
        raise ValueError("empty" if not text.strip() else "not a private key")
    head, _, rest = text[start + len(_BEGIN) :].partition(b"-----")
    if head.startswith(b"ENCRYPTED") or b"Proc-Type: 4,ENCRYPTED" in rest:
        raise PermissionError
    if not head.endswith(b"PRIVATE KEY"):
        raise ValueError("a " + head.decode("ascii", "replace").lower())
    body, found, _ = rest.partition(b"-----END")
    if not found:
        raise ValueError("cut short")
    read = _FORMATS.get(head)
    if read is None:
        return None
    try:
        return read(binascii.a2b_base64(b"".join(body.split())))
    except (ValueError, IndexError, StopIteration, KeyError):  # binascii.Error is a ValueError
        return None


def _blob_of_line(line: str) -> bytes | None:
    """The key of a line of authorized_keys or a .pub file: it begins with its own type's name."""
    parts = line.split()
    for at, word in enumerate(parts[:-1]):
        with contextlib.suppress(ValueError):
            blob = base64.b64decode(parts[at + 1], validate=True)
            if _take(blob, 0)[0] == word.encode("utf-8", "replace"):
                return blob
    return None


def blobs_of(text: str) -> tuple[bytes, ...]:
    """Every public key of an authorized_keys or ``.pub`` file."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return tuple(blob for blob in map(_blob_of_line, lines) if blob)


def public_line(blob: bytes) -> str:
    """A public key as a line ``type base64``."""
    kind = _take(blob, 0)[0].decode("ascii", "replace")
    return f"{kind} {base64.b64encode(blob).decode()}"


def blob_of(line: str) -> bytes:
    """The blob of a line that ``public_line`` made."""
    return base64.b64decode(line.split()[1])
