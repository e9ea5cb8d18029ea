"""Which hostfile this job has, and its hosts once it names some.

ConfigMap volumes may come late or empty, so it waits within the time it is given. It never writes
to the file, and it doesn't judge whether the hosts are there.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mpiboot import log
from mpiboot.errors import MpibootError, error
from mpiboot.job import hostfile as syntax
from mpiboot.model import Finding, Hostfile, Level
from mpiboot.wording import lasting

# What the MPI Operator sets for each MPI (its mpi_job_controller.go), in the order of the MPIs.
OPERATOR: Final = (
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
)
DEFAULT: Final = "/etc/mpi/hostfile"
# What names a hostfile that stands on the program's own mpirun line.
ON_THE_LINE: Final = "the mpirun line"
# 10,000 hosts are about a megabyte; more than this is something else than a hostfile.
_LARGEST: Final = 64 << 20
# Seconds after which a line says again what is waited for.
_SILENCE: Final = 28.0
_FIRST_LOOK, _LAST_LOOK = 0.02, 0.5
# A writer that doesn't rename may be caught half-way; what is wrong for longer is meant.
_HALF_WRITTEN: Final = 5.0


@dataclass(frozen=True, slots=True)
class Named:
    """A path and the flag, variable or "default" that names it."""

    path: str
    by: str


@dataclass(frozen=True, slots=True)
class Found:
    """The job's hostfile, its text as it was read, what is odd about it, and which file it was."""

    hostfile: Hostfile
    text: str
    warnings: tuple[Finding, ...]
    stamp: tuple[int, ...] = ()


class _NotYetError(Exception):
    """The file may still become one with hosts; ``reference`` is what it is if it doesn't."""

    def __init__(self, reference: str, said: str) -> None:
        super().__init__(said)
        self.reference = reference


def candidates(setting: str, given: str, environ: Mapping[str, str]) -> tuple[Named, ...]:
    """Every hostfile that something names, strongest first.

    Args:
        setting: the value of the setting ``hostfile``, empty where not given.
        given: the flag or variable that gave it.
        environ: where the operator's variables are looked up.
    """
    named = [Named(setting, given)] if setting else []
    named += [Named(environ[name], name) for name in OPERATOR if environ.get(name)]
    return (*named, Named(DEFAULT, "default"))


async def find(
    setting: str,
    given: str,
    environ: Mapping[str, str],
    *,
    patience: float,
    default: str = DEFAULT,
    line: str = "",
) -> Found:
    """Wait until the job's hostfile names hosts, and read it.

    Args:
        setting: the value of the setting ``hostfile``, empty where not given.
        given: the flag or variable that gave it.
        environ: where the operator's variables are looked up.
        patience: how many seconds to wait at most.
        default: where the hostfile is when nothing names one.
        line: the hostfile that the program's own mpirun line names, which comes before all others.

    Raises:
        MpibootError: ``hostfile-missing``, ``hostfile-invalid``.
    """
    named = candidates(setting, given, environ)
    named = (Named(line, ON_THE_LINE), *named) if line else named
    chosen = Named(default, "default") if named[0].by == "default" else named[0]
    # Mount points are there before a container starts, so where nobody named a file and this one
    # has no folder, there is nothing to wait for.
    if chosen.by == "default" and not _has_folder(chosen.path):
        patience = 0.0
    stamp, text = await _wait(chosen, patience)
    hosts = syntax.parse(text, chosen.path, chosen.by)
    others = [item for item in named[1:] if item.by != "default"]
    others += [Named(default, "default")] if chosen.by != "default" else []
    # The operator names its own file by a variable and mounts it at the usual place: told once.
    others = list({item.path: item for item in reversed(others)}.values())[::-1]
    warnings = tuple(filter(None, (_differs(chosen, hosts, other) for other in others)))
    return Found(hosts, text, warnings, stamp)


class Follow:
    """The job's hostfile, read again whenever the file is another one.

    The MPI Operator rewrites its ConfigMap when workers are added or removed. ``found`` is the last
    version that could be used, ``pending`` why the present one can't be, or nothing.
    """

    def __init__(self, found: Found) -> None:
        self.found = found
        self.pending: MpibootError | None = None
        self._named = Named(found.hostfile.path, found.hostfile.named_by)
        self._stamp = found.stamp
        self._broken: float | None = None  # since when there is something else than a hostfile

    def look(self) -> bool:
        """Tell whether there is a new version with other hosts; one ``stat`` where it is the same.

        Raises:
            MpibootError: ``hostfile-invalid``; what is there now is no hostfile, and stays so.
        """
        stamp = _stamp(self._named.path)
        if stamp == self._stamp:
            late = self._broken is not None and time.monotonic() - self._broken >= _HALF_WRITTEN
            if late and self.pending is not None:
                raise self.pending
            return False
        self._stamp = stamp
        try:
            text = _read(self._named)
            hosts = syntax.parse(text, self._named.path, self._named.by)
        except _NotYetError as why:
            self._broken = None
            self._put_off(error(why.reference, f"{why}, though it has named hosts before"))
            return False
        except MpibootError as why:
            self._broken = time.monotonic() if self._broken is None else self._broken
            self._put_off(why)
            return False
        self.pending = self._broken = None
        changed = hosts.hosts != self.found.hostfile.hosts
        self.found = replace(self.found, hostfile=hosts, text=text, stamp=stamp)
        return changed

    def _put_off(self, wrong: MpibootError) -> None:
        self.pending = wrong
        log.info("hostfile", f"the hostfile has changed and is waited for: {wrong.finding.said}")


def _stamp(path: str) -> tuple[int, ...]:
    """Tell one file from the next at a path, through the links of a volume."""
    try:
        found = os.stat(path)  # noqa: PTH116 - once a second, and a Path costs more than this
    except (OSError, ValueError):
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _has_folder(path: str) -> bool:
    # Not Path.is_dir: it raises where a folder on the way is closed to this user.
    return os.path.isdir(os.path.dirname(path))  # noqa: PTH112, PTH120


async def _wait(chosen: Named, patience: float) -> tuple[tuple[int, ...], str]:
    started, look, told, said_at = time.monotonic(), _FIRST_LOOK, "", 0.0
    while True:
        stamp = _stamp(chosen.path)
        try:
            return stamp, _read(chosen)
        except _NotYetError as why:
            left = started + patience - time.monotonic()
            if left <= 0:
                waited = f" after {round(patience, 1):g} s" if patience else ""
                raise error(why.reference, f"{why}{waited}") from None
            now = time.monotonic()
            if str(why) != told or now - said_at >= _SILENCE:
                told, said_at = str(why), now
                said = f"waiting for the hostfile: {told}; gives up in {lasting(left)}"
                log.info("hostfile", said, path=chosen.path, gives_up_in=round(left, 1))
            await asyncio.sleep(min(look, left))
            look = min(look * 2, _LAST_LOOK)


def _read(chosen: Named) -> str:
    """Read the file's text, which names at least one host or something that should be one."""
    where = f"{chosen.path} (named by {chosen.by})"
    if chosen.by == "default":
        where = f"{chosen.path} (no setting names another)"
    try:
        # O_NONBLOCK: a FIFO without a writer would hang the open.
        descriptor = os.open(chosen.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise _NotYetError("hostfile-missing", f"{where} is not there") from None
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
        raise _NotYetError("hostfile-invalid", f"{where} {said}")
    return text


def _differs(chosen: Named, hosts: Hostfile, other: Named) -> Finding | None:
    """Say that another hostfile is named which has other hosts than the one that is used."""
    if Path(other.path).resolve() == Path(chosen.path).resolve():
        return None
    try:
        told = syntax.parse(_read(other), other.path, other.by)
    except _NotYetError:
        if other.by == "default":
            return None
        said = f"{other.by}={other.path} names no hosts"
    except Exception as why:  # noqa: BLE001 - a file that isn't used must not end the job
        said = f"{other.by}={other.path} can't be used: {why}"
    else:
        if [(host.name, host.slots) for host in told.hosts] == [
            (host.name, host.slots) for host in hosts.hosts
        ]:
            return None
        name = other.path if other.by == "default" else f"{other.by}={other.path}"
        said = f"{name} has {len(told.hosts)} hosts with {told.slots} slots, which differ"
    used = f"{chosen.path} (named by {chosen.by})"
    return Finding("hostfile-invalid", Level.WARN, f"{said}; used is {used}")
