"""Names such as ``mpirun`` and ``sshd`` that lead to mpiboot, for images that choose so.

A shim is a symbolic link to the program ``mpiboot``; the real programs stay where they are. Which
name mpiboot was called by is read here, and the real one is found without ever finding a shim.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mpiboot.errors import error

NAMES: Final = ("mpirun", "mpiexec", "sshd")
FOLDER: Final = "/usr/local/bin"


def called_as(argv0: str) -> str:
    """Tell which shim mpiboot was called by; empty where it was by its own name."""
    name = Path(argv0).name
    return name if name in NAMES else ""


def real(name: str, path: str, own: str) -> str:
    """Find the real program behind a shim; empty where every one leads to mpiboot.

    Args:
        name: the program's name, or an absolute path.
        path: PATH.
        own: mpiboot's own file, links resolved.
    """
    program = Path(name).name
    folders = [item for item in path.split(os.pathsep) if item.startswith("/")]
    if program == "sshd":
        folders += ["/usr/sbin", "/usr/local/sbin"]  # an ordinary user's PATH lacks them
    for folder in folders:
        place = Path(folder, program)
        if place.is_file() and os.access(place, os.X_OK) and place.resolve() != Path(own):
            return str(place)
    return ""


def without(name: str, path: str, own: str) -> str:
    """Leave the folders out of PATH in which a name leads to mpiboot."""
    folders = path.split(os.pathsep)
    return os.pathsep.join(item for item in folders if Path(item, name).resolve() != Path(own))


def enter(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Give the PATH and the program with which mpiboot goes on behind a shim.

    Returns:
        ``PATH`` without the shim, and ``program``, by which the real one is called.

    Raises:
        MpibootError: ``program-missing``; every program of that name is mpiboot itself.
    """
    own, path = str(own_file()), environ.get("PATH", "")
    found = real(name, path, own)
    if not found:
        raise error(
            "program-missing",
            f"every {name} on PATH={path} is mpiboot's own shim",
            hint=f"install an MPI whose {name} is in another folder of PATH",
        )
    # sshd wants its absolute path; an absolute mpirun would mean --prefix to Open MPI.
    return {"PATH": without(name, path, own), "program": found if name == "sshd" else name}


def own_file() -> Path:
    """Find mpiboot's own program, which the shims lead to.

    Raises:
        MpibootError: ``program-missing``; it was not started from an installed program.
    """
    places = [Path(sys.argv[0]), Path(sys.executable).with_name("mpiboot")]
    found = next((item for item in places if item.is_file() and "/" in str(item)), None)
    if found is None:
        raise error("program-missing", "mpiboot's own program is not installed")
    return found.resolve()


def install(folder: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Make the shims in a folder of their own; what to say of them, a line each.

    Raises:
        MpibootError: ``usage`` or ``runtime-folder``; a file that is no shim stands there, or the
            folder can't be written.
    """
    own, target = own_file(), Path(folder)
    lines = []
    try:
        target.mkdir(mode=0o755, parents=True, exist_ok=True)
        for name in NAMES:
            place = target / name
            if place.is_symlink() and place.resolve() == own:
                place.unlink()
            elif place.exists() or place.is_symlink():
                raise error("usage", f"{place} is there and is no shim of mpiboot's")
            place.symlink_to(own)
            behind = real(name, environ.get("PATH", ""), str(own))
            lines.append(f"{place} -> {own} (the real one: {behind or 'none is installed'})")
    except OSError as wrong:
        raise error("runtime-folder", f"{folder}: {wrong.strerror}") from None
    if folder not in environ.get("PATH", "").split(os.pathsep):
        lines.append(f"put {folder} first on PATH: ENV PATH={folder}:$PATH")
    return tuple(lines)


def remove(folder: str) -> tuple[str, ...]:
    """Take the shims away; only links that lead to mpiboot.

    Raises:
        MpibootError: ``runtime-folder``; the folder can't be written.
    """
    own, lines = own_file(), []
    try:
        for name in NAMES:
            place = Path(folder) / name
            if place.is_symlink() and place.resolve() == own:
                place.unlink()
                lines.append(f"{place} removed")
    except OSError as wrong:
        raise error("runtime-folder", f"{folder}: {wrong.strerror}") from None
    return tuple(lines)
