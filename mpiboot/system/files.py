"""Private runtime folders of the launcher and worker roles, and atomic writes.

Never writes to a mount, /etc or a home folder. Shared by the launcher and the worker.
"""

from __future__ import annotations

import binascii
import contextlib
import fcntl
import os
import re
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.wording import counted
from mpiboot.system import processes

# What the kubelet mounts into every container: the pod's hosts file and the container's
# termination message, from folders named by the pod's UID (a static pod's has no dashes).
_MOUNTED: Final = re.compile(
    r"(?m)^(?:\S+ ){3}\S*/pods/([0-9a-f-]{32,36})/(?:etc-hosts |containers/([^/ ]+)/)"
)
# Host name limit: MPI creates sockets below this folder, and socket paths max out at 107 bytes.
_MAX_CHARS: Final = 24
_RUN: Final = Path("/run/mpiboot")
_PROBE: Final = "probe"
# More than a small job's files need; a folder without this much space counts as full.
_PROBE_BYTES: Final = 64 << 10


def _make_private(path: Path, uid: int) -> None:
    """Make ``path`` a folder of this user with mode 0700, or reuse an existing one.

    Raises:
        OSError: it can't be made.
        ValueError: it is something else, or another user's.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise ValueError(f"{path} is a symbolic link")
    if not stat.S_ISDIR(found.st_mode):
        raise ValueError(f"{path} is not a folder")
    if found.st_uid != uid:
        raise ValueError(f"{path} belongs to uid {found.st_uid}, not to uid {uid}")
    if stat.S_IMODE(found.st_mode) != 0o700:  # noqa: PLR2004 - rwx for the owner alone
        path.chmod(0o700)


def _replacement_risk(path: Path) -> str:
    """Explain how another user could replace a path; empty if none could.

    Users who can write to a parent folder can rename its entries unless it is sticky; an
    emptyDir has mode 0777.
    """
    for folder in Path(os.path.realpath(path)).parents:
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(folder.stat().st_mode)
            if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
                why = f"{folder} has mode {mode:04o}, not sticky"
                return f"another user of this pod could replace it: {why}"
    return ""


def mount_table(proc: Path = Path("/proc")) -> str:
    """Read this process's mountinfo; empty if it is unreadable."""
    try:
        return os.fsdecode((proc / "self/mountinfo").read_bytes())
    except OSError:
        return ""


def container_name(proc: Path = Path("/proc")) -> str:
    """Return a name for this container that is unique among those sharing a volume.

    It survives container restarts. It is derived from the host name, pod UID and container name,
    or, if the kubelet's mounts don't show these (sandboxed, or not a pod), from the host name and
    boot ID.
    """
    found = _MOUNTED.findall(mount_table(proc))
    unique = next((uid.replace("-", "") for uid, _ in found), "")
    container = next((name for _, name in found if name), "")
    unique = unique or processes.text(proc / "sys/kernel/random/boot_id")
    host = socket.gethostname()
    number = binascii.crc32(f"{host}/{unique}/{container}".encode("utf-8", "replace"))
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', host)[:_MAX_CHARS]}-{number:08x}"


def _role_folder(base: Path, uid: int, role: str, *, named: bool, split: bool) -> Path:
    """Make the folder of ``role`` under ``base``.

    A user-named folder may be a volume's root, owned by root and world-writable.

    Raises:
        MpibootError: as for OSError.
        OSError: it can't be made, or not be written to.
        ValueError: it can't be used.
    """
    # mpirun splits the path at blanks, and ssh_config can't escape ${.
    if split and ("${" in str(base) or any(map(str.isspace, str(base)))):
        raise ValueError(f"'{base}' has a blank or ${{ in its path")
    if named and not base.is_absolute():
        raise ValueError("it is not an absolute path")
    if named:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = base.stat().st_uid
        if owner not in (0, uid):
            raise ValueError(f"it belongs to uid {owner}, not to uid {uid} or root")
    else:
        _make_private(base, uid)
    folder = base / container_name() / role
    for path in (folder.parent, folder):
        _make_private(path, uid)
    # A full disk or a read-only mount shows only when something is written.
    write_private(folder / _PROBE, b"\0" * _PROBE_BYTES)
    # Another launcher of this pod may have just removed it.
    (folder / _PROBE).unlink(missing_ok=True)
    return folder


def _bases(uid: int, temporary: str) -> tuple[Path, ...]:
    """List the default base folders, in order of preference."""
    named = (Path(temporary) / f"mpiboot-{uid}",) if temporary.startswith("/") else ()
    return (_RUN, *named, Path(f"/tmp/mpiboot-{uid}"), Path(f"/dev/shm/mpiboot-{uid}"))  # noqa: S108


def find_role(wanted: str, uid: int, role: str, tmpdir: str) -> Path | None:
    """Find the existing private folder of a role in this container; None if there is none."""
    for base in (Path(wanted),) if wanted else _bases(uid, tmpdir):
        folder = base / container_name() / role
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == uid:
                return folder
    return None


def remove_role(folder: Path) -> None:
    """Remove a role's folder recursively, and the container's folder if that is then empty."""
    import shutil  # noqa: PLC0415 - heavy, and no job needs it

    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def runtime_dir(
    wanted: str, uid: int, role: str, *, tmpdir: str | None = None, split: bool = False
) -> Path:
    """Make and return the private folder (0700) of a role.

    Without ``wanted`` it is below the first that works of /run/mpiboot, ``TMPDIR`` or
    /tmp/mpiboot-UID, and /dev/shm/mpiboot-UID. Bases that no other user of the pod can replace
    are preferred. Leftovers of an earlier attempt are harmless.
    Any base may be a volume shared by pods: each container has its own folder there.

    Args:
        wanted: the folder that the user named, or nothing.
        uid: the owner that the folder must have.
        role: the folder's own name under the base.
        tmpdir: the value of ``TMPDIR``; by default this process's.
        split: whether a program that gets the path splits it at blanks.

    Raises:
        MpibootError: ``runtime-folder``; no folder can be used, with the reason of each.
    """
    temporary = os.environ.get("TMPDIR", "") if tmpdir is None else tmpdir
    bases = (Path(wanted),) if wanted else _bases(uid, temporary)
    reasons: list[str] = []
    for base in sorted(bases, key=lambda base: bool(_replacement_risk(base))):
        try:
            with writing():
                folder = _role_folder(base, uid, role, named=bool(wanted), split=split)
        except (MpibootError, ValueError) as exc:  # noqa: PERF203 - four at most
            reasons.append(str(exc))
        else:
            if why := _replacement_risk(folder):
                message = f"the private folder is {folder}: {why}"
                log.info("runtime-folder", message, folder=str(folder))
            return folder
    if wanted:
        message = f"the runtime folder {wanted} can't be used: {reasons[0]}"
        raise error("runtime-folder", message)
    message = "no folder for private files can be written"
    raise error("runtime-folder", message, evidence=tuple(reasons))


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file so that readers see the old one or the whole new one, never a part.

    Raises:
        MpibootError: ``runtime-folder``; the file can't be written.
    """
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    # The name has the PID, and PIDs repeat when a container restarts: a half-written file of an
    # earlier attempt may still be there.
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.unlink(missing_ok=True)
        # O_EXCL also refuses a symbolic link: open(2).
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            os.fchmod(file.fileno(), 0o600)  # whatever the umask is
            file.write(data)
        part.replace(path)
    except OSError as exc:
        with contextlib.suppress(OSError):
            part.unlink()
        raise error("runtime-folder", f"{path} can't be written: {exc.strerror}") from None


@contextlib.contextmanager
def writing(folder: str = "") -> Iterator[None]:
    """Turn an OSError into ``runtime-folder``; it names the user's ``folder`` if given."""
    try:
        yield
    except OSError as problem:
        where = f"{folder or problem.filename} can't be written: {problem.strerror}"
        hint = "name a folder that this user can write to" if folder else None
        raise error("runtime-folder", where, hint=hint) from None


def make_fifo(path: Path) -> None:
    """Make a fresh FIFO that only this user can open.

    Raises:
        MpibootError: ``runtime-folder``; it can't be made.
    """
    with writing():
        path.unlink(missing_ok=True)
        os.mkfifo(path, 0o600)


# MPI creates its session folder under the first of these that is set, else in /tmp.
_VARIABLES: Final = ("TMPDIR", "TEMP", "TMP")
_TMP: Final = Path("/tmp")  # noqa: S108 - MPI's default


def check_tmpdir(value: str) -> None:
    """Check that MPI can use ``TMPDIR``; MPI creates the folder if it is missing.

    If it can't, its daemons exit without naming the folder. This check writes nothing.

    Raises:
        MpibootError: ``tmpdir``.
    """
    if not value.startswith("/"):  # unset, or relative to each process's working directory
        return
    place = next(filter(os.path.lexists, (value, *map(str, Path(value).parents))))
    is_folder = os.path.isdir(place)  # noqa: PTH112 - raises nothing
    if not is_folder or not os.access(place, os.W_OK | os.X_OK):
        wrong = "can't be written" if is_folder else "is not a folder"
        raise error("tmpdir", f"TMPDIR={value} can't be used: {place} {wrong}")


def complete_tmpdir(
    environ: Mapping[str, str], folder: Path, default: Path = _TMP
) -> dict[str, str]:
    """Return a TMPDIR for MPI if none is set and the default isn't writable.

    E.g. with a read-only root filesystem, MPI's daemons would exit without naming the folder.

    Args:
        environ: the environment for MPI.
        folder: the private folder of this role.
        default: where MPI would keep it.

    Raises:
        MpibootError: ``runtime-folder``; it can't be made.
    """
    if any(environ.get(name) for name in _VARIABLES) or os.access(default, os.W_OK | os.X_OK):
        return {}
    place = folder / "tmp"
    with writing():
        place.mkdir(mode=0o700, exist_ok=True)
    log.info("tmpdir", f"{default} can't be written: MPI gets TMPDIR={place}", folder=str(place))
    return {"TMPDIR": str(place)}


# The locks that this process holds until it ends.
_LOCKS: Final[list[int]] = []


def _lock_sessions(base: str, hostname: str, uid: int) -> bool:
    """Hold a lock in ``base`` until exit; whether no other mpiboot of that host name holds it.

    False if unknown, as on a filesystem without locks.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        lock = os.open(f"{base}/mpiboot-sessions.{hostname}.{uid}", flags, 0o600)
    except OSError:
        return False
    _LOCKS.append(lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH)  # downgrade to shared at once
    return True


def remove_stale_sessions(environ: Mapping[str, str], hostname: str, uid: int) -> None:
    """Remove session folders of this host's and user's PRRTE programs that have exited.

    If /tmp outlives its container, PIDs repeat in the next one and every start of PRRTE
    (Open MPI 5.0) fails with "Exists". Open MPI 4.1 reuses such a folder.
    Containers that share the folder and the host name (a pod's, or pods on the node's network) do
    not see each other's processes, but do see the lock: while another holds it, nothing is removed.
    """
    import shutil  # noqa: PLC0415 - a worker runs this before its sshd

    named = re.compile(rf"(?:prterun|prted|prte)\.{re.escape(hostname)}\.(\d+)\.{uid}", re.ASCII)
    places = (environ.get(name, "") for name in _VARIABLES)
    for base in dict.fromkeys(place for place in (*places, str(_TMP)) if place.startswith("/")):
        if not _lock_sessions(base, hostname, uid):
            continue
        ended: list[str] = []
        with contextlib.suppress(OSError), os.scandir(base) as listing:
            for item in listing:
                match = named.fullmatch(item.name)
                if not match or Path("/proc", match[1]).exists():
                    continue
                if item.is_dir(follow_symlinks=False) and item.stat().st_uid == uid:
                    ended.append(item.path)
        for path in ended:
            shutil.rmtree(path, ignore_errors=True)
        if ended:
            folders = counted(len(ended), "session folder")
            log.info("session", f"removed {folders} of ended programs in {base}")
