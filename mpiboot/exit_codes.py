"""mpiboot's own exit codes, and the form of a row of ``checks``, which has them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from mpiboot.model import Role


class ExitCode(IntEnum):
    """Exit codes of mpiboot itself; a program's own code and 128+n of a signal pass through.

    Most are the names of sysexits.h, so that ``podFailurePolicy`` can tell "again" from "never".
    """

    FOUND = 1  # `mpiboot doctor` alone: something fails
    USAGE = 2
    HOSTFILE_INVALID = 65
    HOSTFILE_MISSING = 66
    NAMES_UNRESOLVED = 68
    WORKERS_UNREACHABLE = 69
    BUG = 70
    DEVICE_MISSING = 72
    CANNOT_WRITE = 73
    NOT_READY = 75
    DENIED = 77
    CONFLICT = 78
    PROGRAM_MISSING = 127


# The codes of what a new try can help.
_AGAIN: Final = (
    ExitCode.HOSTFILE_MISSING,
    ExitCode.NAMES_UNRESOLVED,
    ExitCode.WORKERS_UNREACHABLE,
    ExitCode.NOT_READY,
)


@dataclass(frozen=True, slots=True)
class Check:
    """One row: what can be wrong, and what it means for the job."""

    reference: str
    title: str
    code: ExitCode
    hint: str
    roles: tuple[Role, ...] = (Role.LAUNCHER, Role.WORKER)

    @property
    def retry(self) -> bool:
        """Whether a new try can help; the code tells it."""
        return self.code in _AGAIN
