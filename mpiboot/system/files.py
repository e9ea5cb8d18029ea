"""Private files: the runtime folder of a role, atomic writes.

Never writes to a mount, to /etc or to a home folder; the launcher and the worker both use it.
"""

from __future__ import annotations

import binascii
import contextlib
import errno
import json
import os
import pwd
import re
import socket
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.records_json import read_record
from mpiboot.core.wording import counted

# What the kubelet mounts into every container: the pod's hosts file and the container's
# termination message, from folders named by the pod's UID (a static pod's has no dashes).
_MOUNTED: Final = re.compile(r"/pods/([0-9a-f-]{32,36})/(?:etc-hosts$|containers/([^/ ]+)/)")
# Of a host name: MPI makes sockets below this folder, and their paths may have 107 bytes.
_SHORT: Final = 24
_RUN: Final = Path("/run/mpiboot")
# Names the container's folder that a process around this one holds open, for its own children.
HELD: Final = "MPIBOOT_HELD"
# The descriptors of what this process holds open. They are closed with it, and by exec only where
# the program that it becomes is not to have them (``process.replace``).
open_folders: Final[list[int]] = []
_HELD_PATH: Final = re.compile("/proc/[0-9]+/fd/[0-9]+/[^/]+")
_PROBE: Final = "probe"
# More than the files of a small job; a folder that can't take it is as good as full.
_PROBED: Final = 64 << 10
# Why most pods pass a folder over; not logged.
_USUAL: Final = tuple(
    os.strerror(number) for number in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT)
)


def _reason(problem: OSError) -> str:
    return problem.strerror or str(problem)


def _blank(path: Path) -> str:
    has = any(char.isspace() for char in str(path))
    return f"'{path}' has a blank in its path, and mpirun splits it there" if has else ""


def _own_folder(path: Path, uid: int) -> str:
    """Make ``path`` a folder of ours with mode 0700; what is wrong with it, or nothing."""
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            return f"{path} is a symbolic link"
        if not stat.S_ISDIR(found.st_mode):
            return f"{path} is not a folder"
        if found.st_uid != uid:
            return f"{path} belongs to uid {found.st_uid}, not to uid {uid}"
        if stat.S_IMODE(found.st_mode) != 0o700:  # noqa: PLR2004 - rwx for the owner alone
            path.chmod(0o700)
    except OSError as problem:
        return f"{path}: {_reason(problem)}"
    return ""


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


def _is_private(found: os.stat_result, uid: int) -> bool:
    """Whether this is a folder of ``uid`` with mode 0700."""
    return found.st_uid == uid and found.st_mode == stat.S_IFDIR | 0o700


def _hold_open(folder: Path, uid: int) -> Path | None:
    """Open a folder for this process's life; a path that leads to it whatever its name leads to.

    /proc/PID/fd/N is a link to the folder itself (proc_pid_fd(5)). None where other processes of
    this user can't follow it, which needs the same user and group, among others (ptrace(2)).

    Raises:
        OSError: the folder is gone, or another one has its name.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    found = os.fstat(handle)
    again = next((item for item in open_folders if os.path.samestat(os.fstat(item), found)), None)
    if again is not None:
        os.close(handle)
        return Path(f"/proc/{os.getpid()}/fd/{again}")
    path = f"/proc/{os.getpid()}/fd/{handle}"
    child = 0
    try:
        if not _is_private(found, uid):
            raise OSError(errno.ESTALE, "another user has put one of his own in its place")
        child = os.fork()
        if not child:
            _follow(path, found, uid)
        if os.waitpid(child, 0)[1] == 0:
            open_folders.append(handle)
            return Path(path)
    finally:
        if handle not in open_folders:
            os.close(handle)
    return None


def _follow(path: str, found: os.stat_result, uid: int) -> NoReturn:
    """End this process with 0 where its path leads to a folder from what is no copy of its holder.

    The sessions of root's sshd have the group of its passwd entry.
    """
    code = 1
    try:
        if uid == 0:
            os.setgid(pwd.getpwuid(uid).pw_gid)
        code = 0 if os.path.samestat(os.stat(path), found) else 1  # noqa: PTH116
    finally:
        os._exit(code)


def container_name(proc: Path = Path("/proc")) -> str:
    """Name this pod and container so that no other one that shares a volume has the name.

    It stays the same when the container is started again. It is made of the host name, the pod's
    UID and the container's name; where the kubelet's mounts don't tell these (a sandbox, no pod
    at all), of the host name and the system's boot.
    """
    try:
        table = (proc / "self/mountinfo").read_text("utf-8", "replace")
    except OSError:
        table = ""
    sources = (line.split()[3:4] for line in table.splitlines())
    found = [match for source in sources if source and (match := _MOUNTED.search(source[0]))]
    unique = next((match[1].replace("-", "") for match in found), "")
    container = next((match[2] for match in found if match[2]), "")
    if not unique:
        with contextlib.suppress(OSError):
            unique = (proc / "sys/kernel/random/boot_id").read_text("ascii").strip()
    host = socket.gethostname()
    number = binascii.crc32(f"{host}/{unique}/{container}".encode("utf-8", "replace"))
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', host)[:_SHORT]}-{number:08x}"


def _role_folder(base: Path, uid: int, role: str, *, named: bool, split: bool) -> tuple[Path, str]:
    """Make the folder of ``role`` under ``base``; give it, and what is wrong with it, or nothing.

    A folder that the user named may be a volume's own, which belongs to root and is open to all.
    """
    folder = base / container_name() / role
    wrong = _blank(base) if split else ""
    if not wrong:
        wrong = _named_base(base, uid) if named else _own_folder(base, uid)
    wrong = wrong or _own_folder(folder.parent, uid)
    if not wrong and _replaceable(folder):
        try:
            folder = (_hold_open(folder.parent, uid) or folder.parent) / role
        except OSError as problem:
            wrong = f"{folder.parent}: {_reason(problem)}"
    wrong = wrong or _own_folder(folder, uid)
    if not wrong:
        try:
            # A full disk or a read-only mount shows only when something is written.
            write_private(folder / _PROBE, b"\0" * _PROBED)
            # Another launcher of this pod may have taken it away just now.
            (folder / _PROBE).unlink(missing_ok=True)
        except MpibootError as problem:
            wrong = problem.finding.message
        except OSError as problem:
            wrong = f"{folder}: {_reason(problem)}"
    return folder, wrong


def _named_base(base: Path, uid: int) -> str:
    """Make the folder that the user named; what is wrong with it, or nothing."""
    if not base.is_absolute():
        return "it is not an absolute path"
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = base.stat().st_uid
    except OSError as problem:
        return _reason(problem)
    return "" if owner in (0, uid) else f"it belongs to uid {owner}, not to uid {uid} or root"


def _log_unusual(folder: Path, reasons: list[str]) -> None:
    """Log what is unusual about the folder that is taken."""
    real, why = os.path.realpath(folder), _replaceable(folder)
    if why and real != str(folder):
        why = f"it is held open, and used as {folder}: {why}"
    reasons = [*reasons, *filter(None, [why])]
    if reasons:
        message = f"the private folder is {real}: {'; '.join(reasons)}"
        log.info("runtime-folder", message, folder=str(folder))


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
    outer = Path(os.environ.get(HELD, "")) / role
    with contextlib.suppress(OSError):
        if around(outer) and _is_private(outer.parent.stat(), uid) and not _own_folder(outer, uid):
            return outer
    temporary = os.environ.get("TMPDIR", "") if tmpdir is None else tmpdir
    bases = (Path(wanted),) if wanted else _bases(uid, temporary)
    reasons: list[str] = []
    for base in sorted(bases, key=lambda base: bool(_replaceable(base))):
        folder, wrong = _role_folder(base, uid, role, named=bool(wanted), split=split)
        if not wrong:
            _log_unusual(folder, [reason for reason in reasons if not reason.endswith(_USUAL)])
            return folder
        reasons.append(wrong)
    if wanted:
        raise error("runtime-folder", f"the runtime folder {wanted} can't be used: {reasons[0]}")
    raise error(
        "runtime-folder", "no folder for private files can be written", evidence=tuple(reasons)
    )


def hold_open(
    wanted: str, uid: int, role: str, environ: Mapping[str, str], *, split: bool
) -> dict[str, str]:
    """Make the folder of a role in the process that lives as long as it is used.

    Only where another user could replace it. Errors are left to the process that needs the folder.

    Returns:
        The variable by which this process's children use the folder that it holds open; or nothing.
    """
    temporary = environ.get("TMPDIR", "")
    bases = (Path(wanted),) if wanted else _bases(uid, temporary)
    with contextlib.suppress(MpibootError):
        if any(_replaceable(base / role) for base in bases):
            folder = runtime_dir(wanted, uid, role, tmpdir=temporary, split=split)
            return around(folder)
    return {}


def around(folder: Path) -> dict[str, str]:
    """Give the variable that leads a program's own mpiboot to the folder that is held open."""
    return {HELD: str(folder.parent)} if _HELD_PATH.fullmatch(str(folder)) else {}


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file so that readers see the old one or the whole new one, never a part.

    Raises:
        MpibootError: ``runtime-folder``; the file can't be written.
    """
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    # The process's number is in the name, and a container's processes get the same numbers at
    # every start: a half-written file of an earlier try may lie there.
    part = path.with_name(f".{path.name}.{os.getpid()}")
    # With O_EXCL a link there is no file to write to, either: open(2).
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    mode = 0o600
    try:
        try:
            descriptor = os.open(part, flags, mode)
        except FileExistsError:
            part.unlink()
            descriptor = os.open(part, flags, mode)
        try:
            os.fchmod(descriptor, mode)  # whatever the umask is
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)
        part.replace(path)
    except OSError as problem:
        with contextlib.suppress(OSError):
            part.unlink()
        raise error("runtime-folder", f"{path} can't be written: {_reason(problem)}") from None


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
    try:
        path.unlink(missing_ok=True)
        os.mkfifo(path, 0o600)
    except OSError as problem:
        raise error("runtime-folder", f"{path} can't be made: {_reason(problem)}") from None


# The order in which MPI looks for its place: the first that is set, else the folder.
_VARIABLES: Final = ("TMPDIR", "TEMP", "TMP")
_TMP: Final = Path("/tmp")  # noqa: S108 - MPI's default


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_tmpdir(value: str) -> None:
    """Check that MPI can use what ``TMPDIR`` names; it makes the folder itself where it can.

    Its daemons end without naming the folder where they can't. Nothing is written here.

    Raises:
        MpibootError: ``tmpdir``.
    """
    if not value.startswith("/"):  # not set, or a matter of each process's own folder
        return
    place = Path(value)
    try:
        while not _is_there(place):
            place = place.parent
        if not place.is_dir():
            wrong = f"{place} is not a folder"
        elif not os.access(place, os.W_OK | os.X_OK):
            wrong = f"{place} can't be written"
        else:
            return
    except OSError as problem:  # a name that is too long, a loop of links, a closed folder
        wrong = f"{place}: {problem.strerror or problem}"
    raise error("tmpdir", f"TMPDIR={value} can't be used: {wrong}")


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
    # By its name: MPI and programs may look at the folders on the way.
    place = Path(os.path.realpath(folder), "tmp")
    try:
        place.mkdir(mode=0o700, exist_ok=True)
    except OSError as problem:
        raise error(
            "runtime-folder", f"{place} can't be made: {problem.strerror or problem}"
        ) from None
    log.info("tmpdir", f"{default} can't be written: MPI gets TMPDIR={place}", folder=str(place))
    return {"TMPDIR": str(place)}


def remove_stale_sessions(environ: Mapping[str, str], hostname: str, uid: int) -> None:
    """Remove session folders of PRRTE programs of this host and user that run no more.

    A /tmp that outlives its container meets the next one with the same process numbers, and
    PRRTE (Open MPI 5.0) then ends with "Exists" for ever. Open MPI 4.1 uses such a folder again.
    """
    named = re.compile(rf"(?:prterun|prted|prte)\.{re.escape(hostname)}\.(\d+)\.{uid}", re.ASCII)
    places = (environ.get(name, "") for name in _VARIABLES)
    for base in dict.fromkeys(place for place in (*places, str(_TMP)) if place.startswith("/")):
        count = sum(_removed(item, uid) for item in _ended(base, named))
        if count:
            folders = counted(count, "session folder")
            log.info("session", f"removed {folders} of ended programs in {base}")


def _ended(base: str, named: re.Pattern[str]) -> tuple[os.DirEntry[str], ...]:
    """Find the folders whose name tells a process that is not there."""
    try:
        with os.scandir(base) as listing:
            found = [(item, match) for item in listing if (match := named.fullmatch(item.name))]
    except OSError:
        return ()
    return tuple(item for item, match in found if not Path("/proc", match[1]).exists())


def _removed(item: os.DirEntry[str], uid: int) -> bool:
    import shutil  # noqa: PLC0415 - a worker's way to its sshd leads through here

    try:
        ours = item.is_dir(follow_symlinks=False) and item.stat(follow_symlinks=False).st_uid == uid
    except OSError:
        return False
    if ours:
        shutil.rmtree(item.path, ignore_errors=True)
    return ours


WORKER_STATE: Final = "worker.json"


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What a running worker writes for the processes around it.

    ``pid`` is the worker's own; ``reason`` is why its SSH server is the embedded one.
    """

    pid: int
    sshd: str
    address: str
    port: int
    reason: str


def worker_state(folder: Path) -> WorkerState | None:
    """Read what the worker of this runtime folder has written; None where none has."""
    try:
        return read_record(WorkerState, json.loads((folder / WORKER_STATE).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def worker_folder(wanted: str, environ: Mapping[str, str]) -> Path | None:
    """Find the private folder of this container's worker: a session's own, else where it may be."""
    given = environ.get("MPIBOOT_WORKER_DIR")
    return (
        Path(given)
        if given
        else find_role(wanted, os.getuid(), "worker", environ.get("TMPDIR", ""))
    )


def running_worker(wanted: str, environ: Mapping[str, str]) -> WorkerState | None:
    """Read what the worker that runs in this container has written; None where none runs."""
    folder = worker_folder(wanted, environ)
    state = worker_state(folder) if folder else None
    return state if state and os.path.exists(f"/proc/{state.pid}") else None  # noqa: PTH110
