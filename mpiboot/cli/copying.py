"""mpiboot's own folder, with its Python and its libraries, copied into a volume of a pod.

An init container does it (container/mpiboot.Containerfile), so that the pod's image stays as it is.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

from mpiboot.core.errors import MpibootError, error

# There while a copy is being made, and where one was killed.
_PART: Final = ".mpiboot-part"
# The first thing that is looked at, so the last that comes.
_LAST: Final = "bin"
_NOT_OURS: Final = {"lost+found"}  # a file system's own, in the top folder of a volume


def copy_to(folder: str, home: Path) -> str:
    """Copy mpiboot's folder; a copy that was interrupted is begun anew.

    Args:
        folder: an empty folder, such as an emptyDir; it is made where it is not there.
        home: mpiboot's own folder.

    Returns:
        What was done, in one line.

    Raises:
        MpibootError: ``usage``; mpiboot runs by its image's Python, or the folder has other files.
            ``runtime-folder``; it can't be written.
    """
    if not (home / "lib" / "loader").is_dir():
        raise error(
            "usage",
            f"this mpiboot runs by the Python of its image ({sys.prefix}), which can't be copied",
            hint="take the image that container/mpiboot.Containerfile makes for the init container",
        )
    target, part = Path(folder), Path(folder) / _PART
    program = target / _LAST / "mpiboot"
    try:
        target.mkdir(parents=True, exist_ok=True)
        there = {path.name for path in target.iterdir()} - _NOT_OURS
        names = sorted((path.name for path in home.iterdir()), key=lambda name: name == _LAST)
        if _PART in there:
            for name in (*names, _PART):
                shutil.rmtree(target / name, ignore_errors=True)
        elif there == set(names) and _record(target) == _record(home):
            return f"{program} is there already"
        elif there:
            listed = ", ".join(sorted(there)[:3])
            raise error(
                "usage",
                f"{folder} is not empty ({listed}): name an empty folder, such as an emptyDir",
            )
        part.mkdir()
        for name in names:
            shutil.copytree(home / name, part / name, symlinks=True)
        for name in names:
            (part / name).replace(target / name)
        part.rmdir()
    except shutil.Error as problem:  # one entry for each file: from, to, why
        raise _unwritten(folder, problem.args[0][0][2]) from None
    except OSError as problem:
        raise _unwritten(folder, problem.strerror or str(problem)) from None
    return f"{program} can be started"


def _unwritten(folder: str, why: str) -> MpibootError:
    message = f"mpiboot can't be copied to {folder}: {why}"
    return error(
        "runtime-folder", message, hint="mount an emptyDir there; mpiboot takes 100 MB of it"
    )


def _record(home: Path) -> bytes:
    """What pip wrote of the files of mpiboot that are installed there, with their hashes."""
    records = sorted(home.glob("lib/python3.*/dist-packages/mpiboot-*.dist-info/RECORD"))
    return b"".join(path.read_bytes() for path in records)
