"""The job's SSH key: where it is mounted, its public half, its private copy.

Reads the mount and never changes it; the name of a key file is no sign of its type.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.wording import lasting
from mpiboot.system import files, programs

# In this order: what ssh itself prefers, then the keys of a Kubernetes Secret of type ssh-auth.
NAMES: Final = ("id_rsa", "id_ecdsa", "id_ed25519", "ssh-privatekey")
# Where a node has the volumes of all its pods: none of them is mounted for this process.
_OF_OTHERS: Final = re.compile(r"/pods/[0-9a-f-]{32,36}/volumes/")
# Between two lines about what is waited for.
_LOG_S: Final = 28.0
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.05, 1.0  # between two searches for the key


class JobKey(NamedTuple):
    """The job's key: the private file, and the public half as a line ``type base64``."""

    path: Path
    public: str

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public half, written as OpenSSH does."""
        import hashlib  # noqa: PLC0415 - loads OpenSSL: 5 ms that sshd's start need not wait for

        digest = hashlib.sha256(base64.b64decode(self.public.split()[1])).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def mounts(table: str) -> tuple[str, ...]:
    """Mount points that may be a folder of SSH keys, from /proc/self/mountinfo.

    The operator's ``sshAuthMountPath`` may lie anywhere, such as in the home of a user that a
    random uid isn't; a Volcano job mounts the files one by one.
    """
    rows = [line.split(" ") for line in table.split("\n")]  # names may have other blanks
    points = [row[4] for row in rows if len(row) > 4 and not _OF_OTHERS.search(row[4])]  # noqa: PLR2004
    # Blanks, tabs, line breaks and backslashes are octal there (proc_pid_mountinfo(5)).
    paths = [Path(re.sub(r"\\(\d{3})", lambda n: chr(int(n[1], 8)), p)) for p in points]
    found = [path.parent if path.name in NAMES else path for path in paths]
    named = (path for path in found if path.name == ".ssh" or path.name.startswith("ssh-auth"))
    return tuple(dict.fromkeys(map(str, named)))


def folders(homes: tuple[str, ...], uid: int) -> tuple[Path, ...]:
    """Folders in which the job's key may be mounted, the likeliest first."""
    likely = [Path("/etc/mpiboot/ssh"), *(Path(home) / ".ssh" for home in homes if home)]
    likely += [Path(point) for point in mounts(files.mount_table())]
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


def unreadable_key(wanted: str, uid: int) -> MpibootError | None:
    """Name the folder or file that keeps this user from a mounted key; None where none does.

    Args:
        wanted: a file or folder that the user named, or nothing: then what is mounted counts.
        uid: this user.
    """
    for place in map(Path, (wanted,) if wanted else mounts(files.mount_table())):
        for path in (*(place / name for name in NAMES), place):
            folders = filter(os.path.isdir, reversed(path.parents))
            closed = [folder for folder in folders if not os.access(folder, os.X_OK)]
            if os.path.isfile(path) and not os.access(path, os.R_OK):  # noqa: PTH113 - raises nothing
                closed.append(path)
            if closed:
                return _closed(path, closed[0], uid)
    return None


def _closed(path: Path, by: Path, uid: int) -> MpibootError:
    found = by.stat()
    mode = f"mode {stat.S_IMODE(found.st_mode):04o} of uid {found.st_uid}"
    if by in (path, path.parent):
        fix = "set securityContext.fsGroup in the pod, and defaultMode: 0440 for the key's Secret"
    else:
        fix = f"mount the key elsewhere (sshAuthMountPath: /etc/mpiboot/ssh), or open {by}"
    return error("ssh-key", f"uid {uid} can't reach the key {path}: {by} has {mode}", hint=fix)


def load(path: Path) -> JobKey:
    """Read a key and find its public half; nothing is written.

    Raises:
        MpibootError: ``ssh-key``; it can't be read, or is no private key without passphrase.
    """
    text = _read(path)
    return JobKey(path, _by_openssh(text) or _by_library(path, text))


def _by_openssh(text: bytes) -> str:
    """Have ssh-keygen give the public half; empty where it isn't there or can't read the key."""
    program = shutil.which("ssh-keygen", path=programs.search_path(os.environ))
    # From a pipe: it refuses a file that others can read, as a mounted key often is. An empty
    # passphrase: it would prompt on a terminal.
    argv = (program or "", "-y", "-P", "", "-f", "/dev/stdin")
    try:
        done = programs.run(argv, programs.SHORT, stdin=text) if program else None
    except OSError:
        return ""
    return " ".join(done.stdout.split()[:2]) if done and done.status == 0 else ""


def _by_library(path: Path, text: bytes) -> str:
    """Have asyncssh give the public half: it reads a few kinds more, and its errors are clear."""
    import asyncssh  # noqa: PLC0415 - costs 170 ms, and hardly any job needs it

    try:
        found = asyncssh.import_private_key(text).export_public_key()
    except ValueError as exc:
        message = f"the key {path} is not a private key: {exc}"
        hint = None
        if "assphrase" in str(exc):
            message = f"the key {path} is locked with a passphrase"
            hint = "use a key without passphrase: nobody can type it in a pod"
        raise error("ssh-key", message, hint=hint) from None
    return " ".join(found.decode().split()[:2])


def _read(path: Path) -> bytes:
    """Read a key file; ssh and sshd refuse one whose lines end as Windows has them."""
    try:
        return path.read_bytes().replace(b"\r\n", b"\n")
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


def missing(wanted: str, homes: tuple[str, ...], uid: int) -> MpibootError:
    """Name what keeps this user from the job's key, or where it was searched for."""
    places = wanted or ", ".join(map(str, folders(homes, uid)))
    refused = unreadable_key(wanted, uid)
    return refused or error("ssh-key", f"no private SSH key in {places}")


def wait(
    wanted: str,
    homes: tuple[str, ...],
    uid: int,
    patience: float,
    pause: Callable[[float], object] = time.sleep,
) -> Path:
    """Find the key, waiting for a Secret that is mounted a moment later.

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
    deadline, pause_s, log_at = time.monotonic() + patience, _MIN_PAUSE_S, 0.0
    while (found := find(wanted, homes, uid)) is None:
        left = deadline - (now := time.monotonic())
        if left <= 0 or unreadable_key(wanted, uid):
            raise missing(wanted, homes, uid)
        if now >= log_at:
            log_at = now + _LOG_S
            places = wanted or ", ".join(map(str, folders(homes, uid)))
            message = f"waiting for the job's SSH key in {places}; gives up in {lasting(left)}"
            log.info("ssh-key", message, gives_up_in=round(left, 1))
        pause(min(pause_s, left))
        pause_s = min(pause_s * 2, _MAX_PAUSE_S)
    return found
