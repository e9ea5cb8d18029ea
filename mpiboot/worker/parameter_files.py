"""The parameters in the files that an Open MPI of this pod reads. Read-only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mpiboot.core.model import Mpi, MpiParameter
from mpiboot.job import parameter_files
from mpiboot.job.user_line import UserLine
from mpiboot.system import programs

_MOST: Final = 1 << 20  # bytes; a file of parameters has a few kilobytes
_NO_LINE: Final = UserLine()


def find(
    mpi: Mpi, environ: Mapping[str, str], line: UserLine = _NO_LINE
) -> tuple[MpiParameter, ...]:
    """Read all of them, the strongest first; a file that isn't there has none."""
    if not parameter_files.names(mpi.family):
        return ()
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - as mpirun has it
    found = []
    etc = _folder(mpi, environ)
    for path, prefix in parameter_files.paths(mpi.family, line, environ, etc=etc, home=home):
        for name, value in parameter_files.read(_text(path)).items():
            found.append(MpiParameter(f"{prefix}{name}", value, path))
    return tuple(found)


def _folder(mpi: Mpi, environ: Mapping[str, str]) -> str:
    """Find the folder that has the installation's files; ompi_info takes a third of a second."""
    called = (mpi.path, os.path.realpath(mpi.path))
    folders = dict.fromkeys(
        folder for path in called for folder in parameter_files.folders(path, environ)
    )
    names = parameter_files.names(mpi.family)
    for folder in folders:
        if any(os.path.exists(f"{folder}/{name}") for name in names):  # noqa: PTH110 - light
            return folder
    return programs.config_folder(mpi, environ)


def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(_MOST).decode("utf-8", "replace")
    except OSError:
        return ""
