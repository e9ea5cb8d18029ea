"""The job's hostfile: where it is, what it contains, and whether that has changed.

Hosts that settings or the platform list take the place of a hostfile. ConfigMap volumes may be
mounted after the start, or empty, so ``of_job`` waits up to a limit. Whether the hosts exist isn't
checked.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error, failed
from mpiboot.core.facts import Hostfile
from mpiboot.core.model import Source
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import lasting, took
from mpiboot.job import hostfile as syntax
from mpiboot.job import platforms
from mpiboot.job.platforms import VolcanoTask

_NOBODY: Final = "default"
# The origin of a hostfile that is named on the program's own mpirun line.
_ON_THE_LINE: Final = "the mpirun line"
# Seconds for reading where no hostfile is waited for: a pipe's writer may just have started.
_READING: Final = 5.0
_STILL_READING: Final = (
    "is not read to its end yet: start what writes a pipe, and let that end; or its volume hangs"
)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5


@dataclass(frozen=True, slots=True)
class HostfilePath:
    """A path and the flag, variable or "default" that names it.

    ``source`` is the kind of origin, unless that is a variable that mpirun reads too. ``text`` has
    the hosts where a variable or setting lists them, which is then the path.
    """

    path: str
    by: str
    source: Source | None = None
    text: str = ""

    @property
    def is_default(self) -> bool:
        """Whether it is the default path."""
        return self.by == _NOBODY

    @property
    def where(self) -> str:
        """The path, and what names it."""
        by = "no setting names another" if self.is_default else f"named by {self.by}"
        return f"{self.path} ({by})"


class NotYetError(MpibootError):
    """The file may still get hosts; its finding is the check that fails if it doesn't."""


def candidates(resolved: Resolved, environ: Mapping[str, str]) -> tuple[HostfilePath, ...]:
    """List every named hostfile, the one with the highest precedence first, the default last."""
    setting, given = resolved.settings.hostfile, str(resolved.given["hostfile"])
    named = [HostfilePath(setting, given)] if setting else []
    names = filter(environ.get, platforms.HOSTFILE_VARS)
    named += [HostfilePath(environ[name], name) for name in names]
    return (*named, HostfilePath(platforms.HOSTFILE, _NOBODY))


def mounted(resolved: Resolved, environ: Mapping[str, str]) -> str:
    """Find the first hostfile that exists; empty where none does."""
    named = candidates(resolved, environ)
    # Path.exists raises where a folder on the way is closed to this user.
    return next((item.path for item in named if os.path.exists(item.path)), "")  # noqa: PTH110


def read(chosen: HostfilePath) -> str:
    """Read the text of the file, or pipe to its end; at least one line is no comment."""
    if chosen.text:
        return chosen.text
    path, where = chosen.path, chosen.where
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - raises less
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            hint = f"name a file with hosts, such as {platforms.HOSTFILE}"
            raise error("hostfile-invalid", f"{where} is not a regular file", hint=hint)
        with open(path, "rb") as file:  # noqa: PTH123 - raises less
            # A comment may be in any encoding; a host's name has none of these bytes.
            text = file.read().decode("utf-8-sig", "replace")
    except (FileNotFoundError, NotADirectoryError):
        raise NotYetError(failed("hostfile-missing", f"{where} does not exist")) from None
    except (OSError, ValueError) as exc:
        message = getattr(exc, "strerror", None) or str(exc)
        hint = f"let uid {os.getuid()} read it and the folders above it"
        message = f"{where} can't be read: {message}"
        raise error("hostfile-invalid", message, hint=hint) from None
    if "\0" in text:
        raise error("hostfile-invalid", f"{where} is not text: it has a zero byte")
    if syntax.is_blank(text):
        message = f"{where} {'has only comments' if text.strip() else 'is empty'}"
        kind = MpibootError if stat.S_ISFIFO(mode) else NotYetError  # a pipe has ended
        raise kind(failed("hostfile-invalid", message))
    return text


def is_pipe(path: str) -> bool:
    """Whether a hostfile is a pipe, whose lines only its first reader gets."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)  # noqa: PTH116 - raises less
    except (OSError, ValueError):
        return False


def hosts_by_setting(resolved: Resolved, environ: Mapping[str, str]) -> HostfilePath | None:
    """Find the hosts that a setting other than ``hostfile`` names; a task before a StatefulSet.

    Raises:
        MpibootError: ``hostfile-missing``; there is no such task. ``settings-conflict``; the
            settings of a StatefulSet are incomplete.
    """
    settings, given = resolved.settings, resolved.given["worker_task"]
    if settings.worker_task:
        known = _tasks(environ)
        tasks = [platforms.named_task(task, str(given), known) for task in settings.worker_task]
        return _hosts(tasks, str(given), given.source)
    # The names of its pods in Kubernetes are NAME-ORDINAL.SERVICE.
    wanted = {"replicas": settings.replicas, "service": settings.service, "name": settings.name}
    missing = [f"--{part}" for part, value in wanted.items() if not value]
    if len(missing) == len(wanted):
        return None
    given = resolved.given[next(part for part, value in wanted.items() if value)]
    if missing or settings.replicas is None:
        raise error(
            "settings-conflict",
            f"{given} without {' and '.join(missing)}: a StatefulSet's hosts need all three",
            hint="give the number of its pods, its Service and its name: --replicas 4 "
            "--service my-hpc-cluster --name my-cnode, or MPIBOOT_REPLICAS, MPIBOOT_SERVICE, "
            "MPIBOOT_NAME",
        )
    hosts = (f"{settings.name}-{index}.{settings.service}" for index in range(settings.replicas))
    path = f"{settings.name}-[0-{settings.replicas - 1}].{settings.service}"
    return HostfilePath(path, str(given), given.source, "\n".join(hosts))


def hosts_by_platform(environ: Mapping[str, str], hostname: str) -> HostfilePath | None:
    """Find the hosts that the platform lists in this pod.

    Raises:
        MpibootError: ``hostfile-missing``; several tasks may be meant.
            ``hostfile-invalid``; LSF's variable is no list of hosts.
    """
    if environ.get(platforms.LSF_JOB):
        return _lsf(environ)
    tasks, reason = platforms.choose_tasks(environ, hostname, _tasks(environ))
    return _hosts(tasks, reason, Source.PLATFORM) if tasks else None


def _lsf(environ: Mapping[str, str]) -> HostfilePath | None:
    """Read LSF's file if this pod has it, else its variable; LSF never changes either."""
    path, pairs = environ.get(platforms.LSF_FILE, ""), environ.get(platforms.LSF_PAIRS, "")
    try:
        text = platforms.of_lsf_file(Path(path).read_text("utf-8", "replace")) if path else ""
    except (OSError, ValueError):
        text = ""
    if text:
        return HostfilePath(path, platforms.LSF_FILE, Source.PLATFORM, text)
    text = platforms.of_lsf_pairs(pairs)
    return HostfilePath(platforms.LSF_PAIRS, "LSF", Source.PLATFORM, text) if text else None


def _hosts(tasks: Sequence[VolcanoTask], reason: str, source: Source) -> HostfilePath:
    """Name the file of a task, which may change; else give the text of what is listed."""
    where = ", ".join(task.where for task in tasks)
    plain = len(tasks) == 1 and where.startswith("/") and not tasks[0].slots
    return HostfilePath(where, reason, source, "" if plain else "".join(x.text for x in tasks))


def _tasks(environ: Mapping[str, str]) -> dict[str, VolcanoTask]:
    """Read Volcano's tasks; its controller updates the files, but not the variables."""
    known = {task.key: task for task in platforms.volcano_tasks(environ)}
    ending = platforms.VOLCANO_ENDING
    with suppress(OSError):
        for path in sorted(Path(platforms.VOLCANO_FOLDER).glob(f"*{ending}")):
            key = platforms.task_key(path.name.removesuffix(ending))
            names = path.read_text("utf-8", "replace").split()
            known[key] = VolcanoTask(key, str(path), tuple(names))
    return known


@dataclass(slots=True)
class JobHostfile:
    """The job's hostfile as it could last be used.

    ``is_file`` is false where a variable, a setting, a pipe or several files list the hosts: these
    are not read again.
    """

    hostfile: Hostfile
    is_file: bool = True

    def has_changed(self) -> bool:
        """Read the file again, and compare: whether it has other hosts or slots.

        A kubelet swaps a file, and an editor may write it in place: what is missing, empty or
        half-written counts as unchanged.
        """
        before, path, by = self.hostfile, self.hostfile.path, self.hostfile.named_by
        if self.is_file:
            with suppress(MpibootError):
                text = read(HostfilePath(path, by))
                self.hostfile = replace(before, hosts=syntax.parse(text, path, by).hosts)
        return self.hostfile.hosts != before.hosts


async def of_job(
    resolved: Resolved,
    environ: Mapping[str, str],
    patience: float,
    line: Sequence[str] = (),
) -> JobHostfile:
    """Wait until the job's hostfile names hosts, and read it.

    Args:
        resolved: the settings, which name a hostfile or list the hosts.
        environ: this pod's, with the operator's and the platform's variables.
        patience: how many seconds to wait at most.
        line: the hostfiles of the program's own mpirun line, which take precedence.

    Raises:
        MpibootError: ``hostfile-missing``, ``hostfile-invalid``.
    """
    # Heavy for who only asks what names a hostfile. A volume may hang.
    from mpiboot.system.programs import in_thread  # noqa: PLC0415

    *named, default = candidates(resolved, environ)
    if listed := hosts_by_setting(resolved, environ):
        named.insert(bool(resolved.settings.hostfile), listed)
    chosen = [HostfilePath(path, _ON_THE_LINE) for path in line] or named[:1]
    if not chosen:
        found, may_come = await in_thread(_unnamed, default, environ)
        chosen, patience = [found], patience if may_come else 0.0
    until, files = time.monotonic() + patience, list[Hostfile]()
    for one in chosen:  # each of the line's programs may have one
        text = await _wait(one, max(0.0, until - time.monotonic()))
        files.append(replace(syntax.parse(text, one.path, one.by), source=one.source))
    if len(files) > 1:
        return JobHostfile(syntax.union(files), is_file=False)
    return JobHostfile(files[0], is_file=not (one.text or is_pipe(one.path)))


def _unnamed(default: HostfilePath, environ: Mapping[str, str]) -> tuple[HostfilePath, bool]:
    """Give the hosts that nothing names, and whether they may still come.

    Mount points exist before a container starts: if the default file has no folder, there is
    nothing to wait for.
    """
    if os.path.exists(default.path):  # noqa: PTH110 - Path.exists raises where it may not enter
        return default, True
    if chosen := hosts_by_platform(environ, os.uname().nodename):
        return chosen, True
    # Not Path.is_dir: it raises where this user may not enter a folder on the way.
    return default, os.path.isdir(os.path.dirname(default.path))  # noqa: PTH112, PTH120


async def _wait(chosen: HostfilePath, patience: float) -> str:
    """Read a hostfile once it has hosts; until then log what it lacks."""
    import asyncio  # noqa: PLC0415 - see of_job

    from mpiboot.system.programs import in_thread  # noqa: PLC0415

    started, pause, logged = time.monotonic(), _FIRST_PAUSE, ""
    reading: asyncio.Future[str] | None = None
    while True:
        reading = reading or asyncio.ensure_future(in_thread(read, chosen))
        await asyncio.wait({reading}, timeout=_LONGEST_PAUSE)
        limit = patience
        try:
            if reading.done():
                return reading.result()
            lacks = failed("hostfile-missing", f"{chosen.where} {_STILL_READING}")
            limit = max(patience, _READING)
        except NotYetError as why:
            lacks, reading = why.finding, None
        left = started + limit - time.monotonic()
        if left <= 0:
            waited = f" after {took(limit)}" if limit else ""
            raise error(lacks.check, f"{lacks.message}{waited}")
        if lacks.message != logged:
            logged = lacks.message
            message = f"waiting for the hostfile: {logged}; gives up in {lasting(left)}"
            log.info("hostfile", message, path=chosen.path, gives_up_in=round(left, 1))
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 2, _LONGEST_PAUSE)
