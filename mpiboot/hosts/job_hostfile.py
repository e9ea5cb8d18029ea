"""The job's hostfile: waited for until it names hosts, and followed while it may change.

ConfigMap volumes may come late or empty, so it waits within the time it is given. It doesn't judge
whether the hosts are there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mpiboot.core import log
from mpiboot.core.errors import MpibootError, error
from mpiboot.core.model import Finding, Hostfile, Level
from mpiboot.core.wording import counted, first_few, lasting
from mpiboot.hosts.hostfiles import (
    DEFAULT,
    ON_THE_LINE,
    HostfilePath,
    NotYetError,
    candidates,
    has_folder,
    read,
    stamp_of,
)
from mpiboot.job import hostfile as syntax

# Seconds after which a line says again what is waited for.
_SILENCE: Final = 28.0
_FIRST_LOOK, _LAST_LOOK = 0.02, 0.5
# A writer that doesn't rename may be caught half-way; what is wrong for longer is meant.
_HALF_WRITTEN: Final = 5.0


@dataclass(frozen=True, slots=True)
class JobHostfile:
    """The job's hostfile, what is odd about it, and which file it was.

    ``is_file`` is false where a variable or setting has the hosts, and where several files have:
    they are not followed.
    """

    hostfile: Hostfile
    warnings: tuple[Finding, ...]
    stamp: tuple[int, ...] = ()
    is_file: bool = True


async def find(
    setting: str,
    given: str,
    environ: Mapping[str, str],
    *,
    patience: float,
    default: str = DEFAULT,
    line: Sequence[str] = (),
    listed: HostfilePath | None = None,
    platform: Callable[[], HostfilePath | None] = lambda: None,
) -> JobHostfile:
    """Wait until the job's hostfile names hosts, and read it.

    Args:
        setting: the value of the setting ``hostfile``, empty where not given.
        given: the flag or variable that gave it.
        environ: where the operator's variables are looked up.
        patience: how many seconds to wait at most.
        default: where the hostfile is when nothing names one.
        line: the hostfiles that the program's own mpirun line names, which come before all others.
        listed: the hosts that another setting names, which come next to the setting ``hostfile``.
        platform: looks for hosts that the platform names, where nothing else does.

    Raises:
        MpibootError: ``hostfile-missing``, ``hostfile-invalid``.
    """
    named = candidates(setting, given, environ)
    if listed:
        named = (*named[: bool(setting)], listed, *named[bool(setting) :])
    named = (*(HostfilePath(path, ON_THE_LINE) for path in line[:1]), *named)
    chosen = HostfilePath(default, "default") if named[0].is_default else named[0]
    if chosen.is_default and not stamp_of(chosen.path):
        chosen = platform() or chosen
    # Mount points are there before a container starts, so where nobody named a file and this one
    # has no folder, there is nothing to wait for.
    if chosen.is_default and not has_folder(chosen.path):
        patience = 0.0
    started = time.monotonic()
    stamp, text = await _wait(chosen, patience)
    hosts = replace(syntax.parse(text, chosen.path, chosen.by), source=chosen.source)
    if len(line) > 1:
        hosts = await _with_others(hosts, line[1:], started + patience)
    others = [item for item in named[1:] if not item.is_default]
    others += [HostfilePath(default, "default")] if not chosen.is_default else []
    # The operator names its own file by a variable and mounts it at the usual place: told once.
    others = list({item.path: item for item in reversed(others)}.values())[::-1]
    warnings = tuple(filter(None, (_differs(chosen, hosts, other) for other in others)))
    if hosts.passed_over:
        said = f"{first_few(hosts.passed_over)}: passed over, expected `slots=N` or a comment"
        warnings += (Finding("hostfile-invalid", Level.WARN, said),)
    return JobHostfile(hosts, warnings, stamp, is_file=not (chosen.text or hosts.parts))


async def _with_others(first: Hostfile, paths: Iterable[str], until: float) -> Hostfile:
    """Add the hostfiles of a line's other programs, each waited for like the first."""
    files = [first]
    for path in paths:
        _, text = await _wait(HostfilePath(path, ON_THE_LINE), max(0.0, until - time.monotonic()))
        files.append(syntax.parse(text, path, ON_THE_LINE))
    return syntax.union(files)


class HostfileFollower:
    """The job's hostfile, read again whenever the file is another one.

    The MPI Operator rewrites its ConfigMap when workers are added or removed. ``found`` is the last
    version that could be used, ``pending`` why the present one can't be, or nothing.
    """

    def __init__(self, found: JobHostfile, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.found = found
        self.pending: MpibootError | None = None
        self._named = HostfilePath(found.hostfile.path, found.hostfile.named_by)
        self._stamp = found.stamp
        self._broken: float | None = None  # since when there is something else than a hostfile

    def look(self) -> bool:
        """Tell whether there is a new version with other hosts; one ``stat`` where it is the same.

        Raises:
            MpibootError: ``hostfile-invalid``; what is there now is no hostfile, and stays so.
        """
        if not self.found.is_file:
            return False
        stamp = stamp_of(self._named.path)
        if stamp == self._stamp:
            late = self._broken is not None and self._clock() - self._broken >= _HALF_WRITTEN
            if late and self.pending is not None:
                raise self.pending
            return False
        self._stamp = stamp
        try:
            text = read(self._named)
            hosts = syntax.parse(text, self._named.path, self._named.by)
        except NotYetError as why:
            self._broken = None
            self._put_off(error(why.reference, f"{why}, though it named hosts before"))
            return False
        except MpibootError as why:
            self._broken = self._clock() if self._broken is None else self._broken
            self._put_off(why)
            return False
        self.pending = self._broken = None
        changed = hosts.hosts != self.found.hostfile.hosts
        kept = replace(self.found.hostfile, hosts=hosts.hosts)
        self.found = replace(self.found, hostfile=kept, stamp=stamp)
        return changed

    def _put_off(self, wrong: MpibootError) -> None:
        self.pending = wrong
        log.info(
            "hostfile", f"the hostfile has changed and can't be used yet: {wrong.finding.said}"
        )


async def _wait(chosen: HostfilePath, patience: float) -> tuple[tuple[int, ...], str]:
    started, look, last_said, said_at = time.monotonic(), _FIRST_LOOK, "", 0.0
    while True:
        stamp = stamp_of(chosen.path)
        try:
            return stamp, read(chosen)
        except NotYetError as why:
            left = started + patience - time.monotonic()
            if left <= 0:
                waited = f" after {round(patience, 1):g} s" if patience else ""
                raise error(why.reference, f"{why}{waited}") from None
            now = time.monotonic()
            if str(why) != last_said or now - said_at >= _SILENCE:
                last_said, said_at = str(why), now
                said = f"waiting for the hostfile: {last_said}; gives up in {lasting(left)}"
                log.info("hostfile", said, path=chosen.path, gives_up_in=round(left, 1))
            await asyncio.sleep(min(look, left))
            look = min(look * 2, _LAST_LOOK)


def _differs(chosen: HostfilePath, hosts: Hostfile, other: HostfilePath) -> Finding | None:
    """Say that another hostfile is named which has other hosts than the one that is used."""
    if Path(other.path).resolve() == Path(chosen.path).resolve():
        return None
    try:
        found = syntax.parse(read(other), other.path, other.by)
    except NotYetError:
        if other.is_default:
            return None
        said = f"{other.by}={other.path} names no hosts"
    except Exception as why:  # noqa: BLE001 - a file that isn't used must not end the job
        said = f"{other.by}={other.path} can't be used: {why}"
    else:
        if [(host.name, host.slots) for host in found.hosts] == [
            (host.name, host.slots) for host in hosts.hosts
        ]:
            return None
        name = other.path if other.is_default else f"{other.by}={other.path}"
        said = (
            f"{name} differs ({counted(len(found.hosts), 'host')}, {counted(found.slots, 'slot')})"
        )
    used = f"{chosen.path} (named by {chosen.by})"
    return Finding("hostfile-invalid", Level.WARN, f"{said}; mpiboot uses {used}")
