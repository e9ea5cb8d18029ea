"""Private files: the runtime folder of a role, atomic writes.

Never writes to a mount, to /etc or to a home folder; the launcher and the worker both use it.
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

# What the kubelet mounts into every container: the pod's hosts file and the container's
# termination message, from folders named by the pod's UID (a static pod's has no dashes).
_MOUNTED: Final = re.compile(
    r"(?m)^(?:\S+ ){3}\S*/pods/([0-9a-f-]{32,36})/(?:etc-hosts |containers/([^/ ]+)/)"
)
# Of a host name: MPI makes sockets below this folder, and their paths may have 107 bytes.
_MAX_CHARS: Final = 24
_RUN: Final = Path("/run/mpiboot")
_PROBE: Final = "probe"
# More than the files of a small job; a folder that can't take it is as good as full.
_PROBE_BYTES: Final = 64 << 10


def _make_private(path: Path, uid: int) -> None:
    """Make ``path`` a folder of this user with mode 0700, or take the one that is there.

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


def _replaceable(path: Path) -> str:
    """Name the parent folder in which another user could rename a path; empty where none could.

    What is in a folder that others write to can be renamed by them, unless it is sticky: an
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
    """Read the mounts that this process sees; empty where that is refused."""
    try:
        return os.fsdecode((proc / "self/mountinfo").read_bytes())
    except OSError:
        return ""


def container_name(proc: Path = Path("/proc")) -> str:
    """Name this pod and container so that no other one that shares a volume has the name.

    It stays the same when the container is started again. It is made of the host name, the pod's
    UID and the container's name; where the kubelet's mounts don't name these (a sandbox, no pod
    at all), of the host name and the system's boot.
    """
    found = _MOUNTED.findall(mount_table(proc))
    unique = next((uid.replace("-", "") for uid, _ in found), "")
    container = next((name for _, name in found if name), "")
    if not unique:
        with contextlib.suppress(OSError):
            unique = (proc / "sys/kernel/random/boot_id").read_text("ascii").strip()
    host = socket.gethostname()
    number = binascii.crc32(f"{host}/{unique}/{container}".encode("utf-8", "replace"))
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', host)[:_MAX_CHARS]}-{number:08x}"


def _role_folder(base: Path, uid: int, role: str, *, named: bool, split: bool) -> Path:
    """Make the folder of ``role`` under ``base``.

    A folder that the user named may be a volume's own, which belongs to root and is open to all.

    Raises:
        MpibootError: as for OSError.
        OSError: it can't be made, or not be written to.
        ValueError: it can't be used.
    """
    # mpirun splits it at blanks, and ssh_config has no way to write ${ as it is.
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
    # Another launcher of this pod may have taken it away just now.
    (folder / _PROBE).unlink(missing_ok=True)
    return folder


def _bases(uid: int, temporary: str) -> tuple[Path, ...]:
    """Where private folders may be without a setting, in order."""
    named = (Path(temporary) / f"mpiboot-{uid}",) if temporary.startswith("/") else ()
    return (_RUN, *named, Path(f"/tmp/mpiboot-{uid}"), Path(f"/dev/shm/mpiboot-{uid}"))  # noqa: S108


def find_role(wanted: str, uid: int, role: str, tmpdir: str) -> Path | None:
    """Find the private folder that a role of this container has made; None where it has none."""
    for base in (Path(wanted),) if wanted else _bases(uid, tmpdir):
        folder = base / container_name() / role
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == uid:
                return folder
    return None


def remove_role(folder: Path) -> None:
    """Remove a role's folder with what is in it, and the container's own where nothing else is."""
    import shutil  # noqa: PLC0415 - heavy, and nothing that a job does

    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def runtime_dir(
    wanted: str, uid: int, role: str, *, tmpdir: str | None = None, split: bool = False
) -> Path:
    """Make and return the private folder (0700) of a role.

    Without ``wanted`` it is below the first that works of /run/mpiboot, ``TMPDIR`` or
    /tmp/mpiboot-UID, and /dev/shm/mpiboot-UID. Those come first that no other user of the pod can
    replace. What an earlier try left there is no obstacle.
    Any of them may be a volume that pods share: there each container has a folder of its own.

    Args:
        wanted: the folder that the user named, or nothing.
        uid: the owner that the folder must have.
        role: the folder's own name under the base.
        tmpdir: the value of ``TMPDIR``; that of this process where it isn't given.
        split: whether a program that gets the path splits it at blanks.

    Raises:
        MpibootError: ``runtime-folder``; no folder can be used, with the reason of each.
    """
    temporary = os.environ.get("TMPDIR", "") if tmpdir is None else tmpdir
    bases = (Path(wanted),) if wanted else _bases(uid, temporary)
    reasons: list[str] = []
    for base in sorted(bases, key=lambda base: bool(_replaceable(base))):
        try:
            with writing():
                folder = _role_folder(base, uid, role, named=bool(wanted), split=split)
        except (MpibootError, ValueError) as exc:  # noqa: PERF203 - four at most
            reasons.append(str(exc))
        else:
            if why := _replaceable(folder):
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
    # The process's number is in the name, and a container's processes get the same numbers at
    # every start: a half-written file of an earlier try may lie there.
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.unlink(missing_ok=True)
        # With O_EXCL a link there is no file to write to, either: open(2).
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
    """Turn an OSError into ``runtime-folder``; of the user's ``folder``, where one is named."""
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


# MPI makes its sockets' folder in the first of these that is set, else in /tmp.
_VARIABLES: Final = ("TMPDIR", "TEMP", "TMP")
_TMP: Final = Path("/tmp")  # noqa: S108 - MPI's default


def check_tmpdir(value: str) -> None:
    """Check that MPI can use what ``TMPDIR`` names; it makes the folder itself where it can.

    Its daemons end without naming the folder where they can't. Nothing is written here.

    Raises:
        MpibootError: ``tmpdir``.
    """
    if not value.startswith("/"):  # not set, or a matter of each process's own folder
        return
    place = next(filter(os.path.lexists, (value, *map(str, Path(value).parents))))
    is_folder = os.path.isdir(place)  # noqa: PTH112 - raises nothing
    if not is_folder or not os.access(place, os.W_OK | os.X_OK):
        wrong = "can't be written" if is_folder else "is not a folder"
        raise error("tmpdir", f"TMPDIR={value} can't be used: {place} {wrong}")


def complete_tmpdir(
    environ: Mapping[str, str], folder: Path, default: Path = _TMP
) -> dict[str, str]:
    """Give MPI a folder for its session where nobody named one and it can't write the usual one.

    As with a read-only root filesystem: its daemons would end with a status and no folder's name.

    Args:
        environ: the environment that is to be completed.
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


def _is_alone(base: str, hostname: str, uid: int) -> bool:
    """Hold a lock in a folder for sessions; whether no other mpiboot of that host name does.

    Unknown, as on a filesystem without locks, is no.
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
            fcntl.flock(lock, fcntl.LOCK_SH)  # one that is exclusive lasts for no time
    return True


def remove_stale_sessions(environ: Mapping[str, str], hostname: str, uid: int) -> None:
    """Remove session folders of PRRTE programs of this host and user that run no more.

    A /tmp that outlives its container meets the next one with the same process numbers, and
    PRRTE (Open MPI 5.0) then ends with "Exists" forever. Open MPI 4.1 uses such a folder again.
    Containers that share the folder and the host name (a pod's, or pods on the node's network) do
    not see each other's processes, but the lock that each holds: while another lives, all stay.
    """
    import shutil  # noqa: PLC0415 - a worker's way to its sshd leads through here

    named = re.compile(rf"(?:prterun|prted|prte)\.{re.escape(hostname)}\.(\d+)\.{uid}", re.ASCII)
    places = (environ.get(name, "") for name in _VARIABLES)
    for base in dict.fromkeys(place for place in (*places, str(_TMP)) if place.startswith("/")):
        if not _is_alone(base, hostname, uid):
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
