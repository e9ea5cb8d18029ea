"""mpiboot's own exit codes, and the form of a row of ``checks``, which has them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from mpiboot.core.model import Role


class ExitCode(IntEnum):
    """Exit codes of mpiboot itself; a program's own code and 128+n of a signal pass through.

    Most are the names of sysexits.h, so that ``podFailurePolicy`` can tell "again" from "never".
    """

    FOUND = 1
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

    @property
    def meaning(self) -> str:
        """What it says of the job, in a few words."""
        return _MEANINGS[self]


_MEANINGS: Final = {
    ExitCode.FOUND: "`mpiboot doctor` alone: something fails",
    ExitCode.USAGE: "wrongly called: a word, an option or a setting",
    ExitCode.HOSTFILE_INVALID: "the hostfile can't be read as one",
    ExitCode.HOSTFILE_MISSING: "nothing says which hosts there are",
    ExitCode.NAMES_UNRESOLVED: "a host's name did not resolve in time",
    ExitCode.WORKERS_UNREACHABLE: "a host could not be reached, or was lost",
    ExitCode.BUG: "an error in mpiboot itself",
    ExitCode.DEVICE_MISSING: "a link, device or library that the job asks for is not there",
    ExitCode.CANNOT_WRITE: "no folder, or no output, that can be written",
    ExitCode.NOT_READY: "something was there and not ready in time, or is in use",
    ExitCode.DENIED: "a key or a right that is wrong or missing",
    ExitCode.CONFLICT: "settings, programs or networks that don't fit each other",
    ExitCode.PROGRAM_MISSING: "a program that is not in the image, or can't be executed",
}

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
