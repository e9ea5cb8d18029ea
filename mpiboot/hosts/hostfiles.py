"""The hostfiles that something names, and what one holds at this moment; nothing is waited for."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mpiboot.core.errors import error
from mpiboot.core.model import Source
from mpiboot.job import hostfile as syntax

# What the MPI Operator sets for each MPI (its mpi_job_controller.go), in the order of the MPIs.
OPERATOR: Final = (
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
)
DEFAULT: Final = "/etc/mpi/hostfile"
_NOBODY: Final = "default"
# What names a hostfile that stands on the program's own mpirun line.
ON_THE_LINE: Final = "the mpirun line"
# 10,000 hosts are about a megabyte; more than this is something else than a hostfile.
_LARGEST: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class HostfilePath:
    """A path and the flag, variable or "default" that names it.

    ``source`` is what names it, where that is no variable that mpirun reads too. ``text`` are the
    hosts where a variable or setting has them, which is then the path.
    """

    path: str
    by: str
    source: Source | None = None
    text: str = ""

    @property
    def is_default(self) -> bool:
        """Whether nobody names it."""
        return self.by == _NOBODY


class NotYetError(Exception):
    """The file may still become one with hosts; ``reference`` is what it is if it doesn't."""

    def __init__(self, reference: str, said: str) -> None:
        super().__init__(said)
        self.reference = reference


def candidates(setting: str, given: str, environ: Mapping[str, str]) -> tuple[HostfilePath, ...]:
    """Every hostfile that something names, strongest first.

    Args:
        setting: the value of the setting ``hostfile``, empty where not given.
        given: the flag or variable that gave it.
        environ: where the operator's variables are looked up.
    """
    named = [HostfilePath(setting, given)] if setting else []
    named += [HostfilePath(environ[name], name) for name in OPERATOR if environ.get(name)]
    return (*named, HostfilePath(DEFAULT, _NOBODY))


def stamp_of(path: str) -> tuple[int, ...]:
    """Tell one file from the next at a path, through the links of a volume."""
    try:
        found = os.stat(path)  # noqa: PTH116 - once a second, and a Path costs more than this
    except (OSError, ValueError):
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def has_folder(path: str) -> bool:
    """Tell whether the folder of a path is there."""
    # Not Path.is_dir: it raises where a folder on the way is closed to this user.
    return os.path.isdir(os.path.dirname(path))  # noqa: PTH112, PTH120


def read(chosen: HostfilePath) -> str:
    """Read the file's text, which names at least one host or something that should be one."""
    if chosen.text:
        return chosen.text
    where = f"{chosen.path} (named by {chosen.by})"
    if chosen.is_default:
        where = f"{chosen.path} (no setting names another)"
    try:
        # O_NONBLOCK: a FIFO without a writer would hang the open.
        descriptor = os.open(chosen.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise NotYetError("hostfile-missing", f"{where} is not there") from None
    except (OSError, ValueError) as why:
        said = getattr(why, "strerror", None) or str(why)
        raise error("hostfile-invalid", f"{where} can't be read: {said}") from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise error("hostfile-invalid", f"{where} is {kind}: expected a file with hosts")
    with os.fdopen(descriptor, "rb") as file:
        try:
            data = file.read(_LARGEST + 1)
        except OSError as why:
            raise error("hostfile-invalid", f"{where} can't be read: {why.strerror}") from None
    if len(data) > _LARGEST:
        raise error("hostfile-invalid", f"{where} has more than {_LARGEST} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as why:
        said = f"{where} is not text: byte {data[why.start]:#04x} at offset {why.start}"
        raise error("hostfile-invalid", said) from None
    if "\0" in text:
        said = f"{where} is not text: a zero byte at offset {data.index(0)}"
        raise error("hostfile-invalid", said)
    if syntax.is_blank(text):
        said = "has only comments" if text.strip() else "is empty"
        raise NotYetError("hostfile-invalid", f"{where} {said}")
    return text
