"""The job's SSH key: where it is mounted, its public half, its private copy.

Reads the mount and never changes it; the name of a key file says nothing of its type.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.model import Finding, Level
from mpiboot.core.wording import lasting
from mpiboot.system import files

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


# In this order: what ssh itself prefers, then the keys of a Kubernetes Secret of type ssh-auth.
NAMES: Final = ("id_rsa", "id_ecdsa", "id_ed25519", "ssh-privatekey")
# Where a node has the volumes of all its pods: none of them is mounted for this process.
_OF_OTHERS: Final = re.compile(r"/pods/[0-9a-f-]{32,36}/volumes/")
# Seconds after which a line says again what is waited for.
_SILENCE: Final = 28.0
_LOOK_FIRST, _LOOK_LAST = 0.05, 1.0  # seconds between two looks for the key


class JobKey(NamedTuple):
    """The job's key: the private file, and the public half as a line ``type base64``."""

    path: Path
    public: str

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public half, written as OpenSSH does."""
        return fingerprint(blob_of(self.public))


def mounts(table: str) -> tuple[str, ...]:
    """Mount points that look like a folder of SSH keys, from /proc/self/mountinfo.

    The operator's ``sshAuthMountPath`` may lie anywhere, such as in the home of a user that a
    random uid isn't; a Volcano job mounts the files one by one.
    """
    found = []
    for line in table.splitlines():
        point = line.split()[4] if len(line.split()) > 4 else ""  # noqa: PLR2004
        if _OF_OTHERS.search(point):
            continue
        path = Path(point.encode().decode("unicode_escape", "replace"))
        if path.name in NAMES:
            path = path.parent
        if path.name == ".ssh" or path.name.startswith("ssh-auth"):
            found.append(str(path))
    return tuple(dict.fromkeys(found))


def _mount_table() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text("utf-8", "replace")
    except OSError:
        return ""


def folders(homes: tuple[str, ...], uid: int) -> tuple[Path, ...]:
    """Folders in which the job's key may be mounted, the likeliest first."""
    likely = [Path("/etc/mpiboot/ssh"), *(Path(home) / ".ssh" for home in homes if home)]
    likely += [Path(point) for point in mounts(_mount_table())]
    likely.append(Path("/root/.ssh"))
    with contextlib.suppress(OSError):
        likely += [
            home / ".ssh" for home in sorted(Path("/home").iterdir()) if home.stat().st_uid == uid
        ]
    return tuple(dict.fromkeys(likely))


def find(wanted: str, homes: tuple[str, ...], uid: int) -> Path | None:
    """Where the job's private key lies; None while none is there that can be read.

    Args:
        wanted: a file or folder that the user named, or nothing.
        homes: this user's home folders (of the passwd entry, of HOME).
        uid: this user, whose own homes are searched too.
    """
    places = (Path(wanted),) if wanted else folders(homes, uid)
    for place in places:
        for path in (place, *(place / name for name in NAMES)):
            with contextlib.suppress(OSError):
                if path.is_file() and path.stat().st_size and os.access(path, os.R_OK):
                    return path
    return None


def closed(wanted: str, uid: int) -> MpibootError | None:
    """Name the folder or file that keeps this user from a mounted key; None where none does.

    Args:
        wanted: a file or folder that the user named, or nothing: then what is mounted counts.
        uid: this user.
    """
    places = (wanted,) if wanted else mounts(_mount_table())
    for place in map(Path, places):
        for path in (*(place / name for name in NAMES), place):
            folder = next((item for item in reversed(path.parents) if _refuses(item)), None)
            if folder is not None:
                return _closed(path, folder, uid)
            if os.path.isfile(path) and not os.access(path, os.R_OK):  # noqa: PTH113 - raises nothing
                return _closed(path, path, uid)
    return None


def _refuses(folder: Path) -> bool:
    """Whether a folder is there, and this user may not look into it."""
    return os.path.isdir(folder) and not os.access(folder, os.X_OK)  # noqa: PTH112 - raises nothing


def _closed(path: Path, by: Path, uid: int) -> MpibootError:
    found = by.stat()
    mode = f"mode {stat.S_IMODE(found.st_mode):04o} of uid {found.st_uid}"
    if by in (path, path.parent):
        fix = "set securityContext.fsGroup in the pod, and defaultMode: 0440 for the key's Secret"
    else:
        fix = f"mount the key elsewhere (sshAuthMountPath: /etc/mpiboot/ssh), or open {by}"
    return error("ssh-key", f"uid {uid} can't reach the key {path}: {by} has {mode}", hint=fix)


def _by_library(path: Path) -> bytes | None:
    """Ask asyncssh for the public half, which knows every format."""
    import asyncssh  # noqa: PLC0415 - costs 170 ms, and hardly any job needs it

    try:
        return asyncssh.read_private_key(path).public_data
    except (asyncssh.KeyImportError, OSError):
        return None


def load(path: Path) -> JobKey:
    """Read a key and find its public half; nothing is written.

    Raises:
        MpibootError: ``ssh-key``; it can't be read, or is no private key without passphrase.
    """
    try:
        blob = public_blob(_read(path))
    except PermissionError:
        raise error(
            "ssh-key",
            f"the key {path} is locked with a passphrase",
            hint="use a key without passphrase: nobody can type it in a pod",
        ) from None
    except ValueError as wrong:
        raise error("ssh-key", f"the key {path} is {wrong}; expected a private SSH key") from None
    blob = blob or _by_library(path)
    if blob is None:
        raise error("ssh-key", f"the key {path} is broken, or of a kind that is not known here")
    return JobKey(path, public_line(blob))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise error("ssh-key", f"the key {path} can't be read: {problem.strerror}") from None


def copy(key: JobKey, to: Path) -> JobKey:
    """Copy the key to a private file (mode 0600), which is removed by who uses it.

    The mount may be read-only, open to a group or behind links: ssh and sshd refuse such a file.

    Raises:
        MpibootError: ``ssh-key`` or ``runtime-folder``.
    """
    text = _read(key.path)
    # Some tools refuse a key without the last line's end.
    files.write_private(to, text if text.endswith(b"\n") else text + b"\n")
    return JobKey(to, key.public)


def trust(key: JobKey, mounted: Path) -> Finding | None:
    """Check that authorized_keys beside the mounted key, if it is there, holds the job's key."""
    path = mounted.parent / "authorized_keys"
    try:
        blobs = blobs_of(path.read_text("utf-8", "replace"))
    except OSError:
        return None
    if blob_of(key.public) in blobs:
        return None
    there = ", ".join(fingerprint(blob) for blob in blobs) or "no key at all"
    return Finding(
        "ssh-key",
        Level.WARN,
        f"{path} lacks the job's key {key.fingerprint} of {mounted}, the only one that is "
        f"accepted; it holds {there}",
        hint="launcher and workers must mount the same key Secret",
    )


def missing(wanted: str, homes: tuple[str, ...], uid: int) -> MpibootError:
    """Name what keeps this user from the job's key, or where it was searched for."""
    refused = closed(wanted, uid)
    if refused:
        return refused
    places = wanted or ", ".join(map(str, folders(homes, uid)))
    return error("ssh-key", f"no private SSH key in {places}")


def wait(
    wanted: str,
    homes: tuple[str, ...],
    uid: int,
    patience: float,
    pause: Callable[[float], object] = time.sleep,
) -> Path:
    """Find the key, waiting for a Secret that is mounted a moment late.

    One that is there and that this user can't read is not waited for.

    Args:
        wanted: as for ``find``.
        homes: as for ``find``.
        uid: as for ``find``.
        patience: seconds to wait at most.
        pause: waits for some seconds; what it raises ends the wait.

    Raises:
        MpibootError: ``ssh-key``; there is none, or it can't be reached.
    """
    deadline, look, said_at = time.monotonic() + patience, _LOOK_FIRST, float("-inf")
    while (found := find(wanted, homes, uid)) is None:
        left = deadline - time.monotonic()
        if left <= 0 or closed(wanted, uid):
            raise missing(wanted, homes, uid)
        if time.monotonic() - said_at >= _SILENCE:
            said_at = time.monotonic()
            places = wanted or ", ".join(map(str, folders(homes, uid)))
            message = f"waiting for the job's SSH key in {places}; gives up in {lasting(left)}"
            log.info("ssh-key", message, gives_up_in=round(left, 1))
        pause(min(look, left))
        look = min(look * 2, _LOOK_LAST)
    return found
