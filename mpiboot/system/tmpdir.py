"""Where MPI keeps its session (sockets, shared memory): TMPDIR, or a folder that it is given."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mpiboot.core import log
from mpiboot.core.errors import error

# The order in which MPI looks for its place: the first that is set, else the folder.
_VARIABLES: Final = ("TMPDIR", "TEMP", "TMP")
_TMP: Final = Path("/tmp")  # noqa: S108 - MPI's default


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check(value: str) -> None:
    """Look whether MPI can use what ``TMPDIR`` names; it makes the folder itself where it can.

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


def complete(environ: Mapping[str, str], folder: Path, default: Path = _TMP) -> dict[str, str]:
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


def remove_stale(environ: Mapping[str, str], hostname: str, uid: int) -> None:
    """Remove session folders of PRRTE programs of this host and user that run no more.

    A /tmp that outlives its container meets the next one with the same process numbers, and
    PRRTE (Open MPI 5.0) then ends with "Exists" for ever. Open MPI 4.1 uses such a folder again.
    """
    named = re.compile(rf"(?:prterun|prted|prte)\.{re.escape(hostname)}\.(\d+)\.{uid}", re.ASCII)
    places = (environ.get(name, "") for name in _VARIABLES)
    for base in dict.fromkeys(place for place in (*places, str(_TMP)) if place.startswith("/")):
        count = sum(_removed(item, uid) for item in _ended(base, named))
        if count:
            folders = "folder" if count == 1 else "folders"
            log.info("session", f"removed {count} session {folders} of ended programs in {base}")


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
