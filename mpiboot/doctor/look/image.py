"""The image's programs: where they are, and which shared libraries the loader doesn't find.

No program is run for that but the loader itself, as ldd does it: ``ld.so --list PROGRAM``, which
glibc and musl both have. mpirun alone is asked for its version.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mpiboot.core.model import Mpi, MpiFamily
from mpiboot.doctor.report import ImagePart, Program, SshdPart
from mpiboot.network import pod
from mpiboot.ssh import openssh
from mpiboot.supervisor.state import FAMILIES
from mpiboot.system import executables, programs

MODULES: Final = ("asyncssh", "click", "dns", "rich")
_PATIENCE: Final = 5.0  # seconds
# glibc's loader and musl's, in their own words.
_NOT_FOUND: Final = ("=> not found", "Error loading shared library", "cannot open shared object")
_WHO: Final = "error while loading shared libraries: "
_MAGIC: Final = b"\x7fELF\x02"  # 64 bits
_PT_INTERP: Final = 3
_LONGEST: Final = 4096


def image(environ: Mapping[str, str]) -> ImagePart:
    """Look for what a job needs of the image."""
    search = programs.search_path(environ)
    mpi = programs.detect_mpi(environ)
    found = [Program("mpirun", mpi.path, _lacks(mpi.path, environ))] if mpi else []
    ssh = executables.find("ssh", search) or ""
    found.append(Program("ssh", ssh, _lacks(ssh, environ)))
    sshd = openssh.find(search)
    if sshd:
        found.append(Program("sshd", sshd, _lacks(sshd, environ)))
    return ImagePart(
        mpi,
        tuple(found),
        _daemon(mpi, search, environ) if mpi else None,
        platform.python_version(),
        tuple(name for name in MODULES if importlib.util.find_spec(name) is None),
        search,
    )


def _daemon(mpi: Mpi, search: str, environ: Mapping[str, str]) -> Program | None:
    if mpi.family is MpiFamily.UNKNOWN or mpi.family.value not in FAMILIES:
        return None
    name = FAMILIES[mpi.family.value].daemon
    beside = (str(Path(mpi.path).parent), os.path.dirname(os.path.realpath(mpi.path)))  # noqa: PTH120
    path = executables.find(name, os.pathsep.join((*beside, search))) or ""
    return Program(name, path, _lacks(path, environ))


def sshd(environ: Mapping[str, str]) -> SshdPart:
    """Ask what the worker asks before it starts a server; nothing is made."""
    who = pod.identity(environ)
    seen = openssh.conditions(who, programs.search_path(environ), make=False)
    return SshdPart(seen.path, openssh.reason_against(seen, who, "/run/mpiboot"))


def loader_of(path: str) -> str:
    """Give the loader that a program names; empty for a script, and for what needs none."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a few bytes
            head = file.read(64)
            if not head.startswith(_MAGIC):
                return ""
            (table,) = struct.unpack_from("<Q", head, 32)
            size, count = struct.unpack_from("<HH", head, 54)
            for place in range(count):
                file.seek(table + place * size)
                row = file.read(size)
                kind, offset, length = *struct.unpack_from("<I4xQ", row), row[32:40]
                if kind == _PT_INTERP:
                    file.seek(offset)
                    name = file.read(min(int.from_bytes(length, "little"), _LONGEST))
                    return name.rstrip(b"\0").decode("utf-8", "replace")
    except (OSError, struct.error):
        pass
    return ""


def _lacks(path: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    loader = loader_of(path) if path else ""
    if not loader:
        return ()
    try:
        done = programs.run((loader, "--list", path), _PATIENCE, environ)
    except FileNotFoundError:
        return (f"its loader {loader} is not there",)
    except OSError:
        return ()
    lines = (done.text + done.said).splitlines() if done else []
    bad = (line for line in lines if any(word in line for word in _NOT_FOUND))
    odd = (line.rpartition(_WHO)[2].strip() for line in bad)
    return tuple(dict.fromkeys(odd))
