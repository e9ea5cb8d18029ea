"""What a role stands on: the private folder, TMPDIR, the job's key, the shims.

The folder is made, as every role makes its own, and taken away at doctor's end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Final

from mpiboot.core.errors import MpibootError
from mpiboot.core.model import Finding
from mpiboot.core.settings import Settings
from mpiboot.doctor.report import FolderPart, KeyPart, ShimsPart
from mpiboot.launcher import shims as names
from mpiboot.network import pod
from mpiboot.system import files, keys

_ROLE: Final = "doctor-"


def role() -> str:
    """Name the folder of this run: two people may ask at once in one pod."""
    return f"{_ROLE}{os.getpid()}"


def folder(settings: Settings, environ: Mapping[str, str]) -> FolderPart:
    """Make the private folder of this role."""
    named = environ.get("TMPDIR", "")
    wrong: list[Finding] = []
    made = ""
    try:
        made = str(files.runtime_dir(settings.runtime_dir, os.getuid(), role(), tmpdir=named))
    except MpibootError as problem:
        wrong.append(problem.finding)
    try:
        files.check_tmpdir(named)
    except MpibootError as problem:
        wrong.append(problem.finding)
    return FolderPart(made, tuple(wrong))


def remove_folder(settings: Settings, environ: Mapping[str, str]) -> None:
    """Leave nothing behind: neither this run's folder nor that of a run that was killed."""
    made = files.find_role(settings.runtime_dir, os.getuid(), role(), environ.get("TMPDIR", ""))
    if made:
        for folder in made.parent.glob(f"{_ROLE}*"):
            if folder == made or not os.path.exists(f"/proc/{folder.name[len(_ROLE) :]}"):  # noqa: PTH110
                files.remove_role(folder)


def key(settings: Settings, environ: Mapping[str, str]) -> KeyPart:
    """Find the job's key as a launcher or worker finds it."""
    who = pod.identity(environ)
    homes = (who.home, environ.get("HOME", ""))
    mounted = keys.find(settings.ssh_key, homes, who.uid)
    if mounted is None:
        return KeyPart(wrong=keys.missing(settings.ssh_key, homes, who.uid).finding)
    try:
        found = keys.load(mounted)
        about = mounted.stat()
        # The folder's own: each file of a Secret is a link into a folder beside it.
        read_only = bool(os.statvfs(mounted).f_flag & os.ST_RDONLY)
    except MpibootError as problem:
        return KeyPart(str(mounted), wrong=problem.finding)
    return KeyPart(
        str(mounted),
        found.public.partition(" ")[0],
        found.fingerprint,
        stat.S_IMODE(about.st_mode),
        about.st_uid,
        read_only,
        keys.trust(found, mounted),
    )


def shims(environ: Mapping[str, str]) -> ShimsPart:
    """Look for mpirun's shims, and for what went past them."""
    try:
        good, bad = names.effects(environ)
    except MpibootError:  # started from a folder of sources, where no shim can lead to it
        good, bad = "", ""
    return ShimsPart(good, tuple(filter(None, (bad, names.passed_by()))))
