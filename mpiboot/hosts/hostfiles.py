"""The job's hostfile: where it is, what it contains, and whether that has changed.

Hosts that a setting lists replace the hostfile; those that the platform lists count where none is
configured or mounted. A ConfigMap volume may appear after the start, or be empty at first, so
``of_job`` waits, up to a limit. Nothing here checks that the hosts exist.
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
from mpiboot.system import processes

DEFAULT: Final = "default"
# The origin of a hostfile given on the user's mpirun command line.
_MPIRUN_LINE: Final = "the mpirun line"
# Minimum time to read, even with no timeout: a pipe's writer may just have started.
_READ_S: Final = 5.0
_STILL_READING: Final = (
    "is still being read: no writer has opened and closed the pipe, or the volume hangs"
)
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.02, 0.5


@dataclass(frozen=True, slots=True)
class HostfilePath:
    """A hostfile's path, and the flag, variable or "default" it comes from (``by``).

    ``source`` is set where a setting or the platform lists hosts or tasks. ``text`` holds the hosts
    if a variable or setting lists them; ``path`` then names that list.
    """

    path: str
    by: str
    source: Source | None = None
    text: str = ""

    @property
    def where(self) -> str:
        """The path and its origin, for messages."""
        by = "the default" if self.by == DEFAULT else f"named by {self.by}"
        return f"{self.path} ({by})"


class NotYetError(MpibootError):
    """No hosts in the file yet; ``finding`` is the check that fails if none appear in time."""


def candidates(resolved: Resolved, environ: Mapping[str, str]) -> tuple[HostfilePath, ...]:
    """List the configured hostfiles in order of precedence, the default last."""
    setting, given = resolved.settings.hostfile, str(resolved.given["hostfile"])
    named = [HostfilePath(setting, given)] if setting else []
    names = filter(environ.get, platforms.HOSTFILE_VARS)
    named += [HostfilePath(environ[name], name) for name in names]
    return (*named, HostfilePath(platforms.HOSTFILE, DEFAULT))


def mounted(resolved: Resolved, environ: Mapping[str, str]) -> str:
    """Return the path of the first hostfile that exists, or an empty string."""
    named = candidates(resolved, environ)
    # Path.exists raises if this user may not search a parent folder.
    return next((item.path for item in named if os.path.exists(item.path)), "")  # noqa: PTH110


def read(chosen: HostfilePath) -> str:
    """Read a hostfile (a pipe until EOF); raises unless it has a line that is not a comment."""
    if chosen.text:
        return chosen.text
    path, where = chosen.path, chosen.where
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - raises less
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            hint = f"name a file with hosts, such as {platforms.HOSTFILE}"
            raise error("hostfile-invalid", f"{where} is not a regular file", hint=hint)
        with open(path, "rb") as file:  # noqa: PTH123 - raises less
            # Comments may be in any encoding; host names are ASCII.
            text = file.read().decode("utf-8-sig", "replace")
    except (FileNotFoundError, NotADirectoryError):
        raise NotYetError(failed("hostfile-missing", f"{where} does not exist")) from None
    except (OSError, ValueError) as exc:
        message = getattr(exc, "strerror", None) or str(exc)
        hint = f"uid {os.getuid()} must be able to open it"
        message = f"{where} can't be read: {message}"
        raise error("hostfile-invalid", message, hint=hint) from None
    if "\0" in text:
        raise error("hostfile-invalid", f"{where} is not text: it has a zero byte")
    if syntax.is_blank(text):
        message = f"{where} {'has only comments' if text.strip() else 'is empty'}"
        kind = MpibootError if stat.S_ISFIFO(mode) else NotYetError  # a pipe at EOF gets no more
        raise kind(failed("hostfile-invalid", message))
    return text


def is_pipe(path: str) -> bool:
    """Whether a hostfile is a pipe, which can be read only once."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)  # noqa: PTH116 - raises less
    except (OSError, ValueError):
        return False


def hosts_by_setting(resolved: Resolved, environ: Mapping[str, str]) -> HostfilePath | None:
    """Return the hosts from ``worker_task``, else from the StatefulSet settings; None if unset.

    Raises:
        MpibootError: ``hostfile-missing``: no such task; ``settings-conflict``: incomplete
            StatefulSet settings.
    """
    settings, given = resolved.settings, resolved.given["worker_task"]
    if settings.worker_task:
        known = _tasks(environ)
        tasks = [platforms.named_task(task, str(given), known) for task in settings.worker_task]
        return _hosts(tasks, str(given), given.source)
    # A StatefulSet's pods resolve as NAME-ORDINAL.SERVICE.
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
    """Return the hosts that the platform (LSF or Volcano) lists in this pod.

    Raises:
        MpibootError: ``hostfile-missing``: ambiguous tasks.
    """
    if environ.get(platforms.LSF_JOB):  # its host file if present, else its variable
        path, pairs = environ.get(platforms.LSF_FILE, ""), environ.get(platforms.LSF_PAIRS, "")
        if text := platforms.of_lsf_file(processes.text(Path(path))):
            return HostfilePath(path, platforms.LSF_FILE, Source.PLATFORM, text)
        text = platforms.of_lsf_pairs(pairs)
        return HostfilePath(platforms.LSF_PAIRS, "LSF", Source.PLATFORM, text) if text else None
    tasks, reason = platforms.choose_tasks(environ, hostname, _tasks(environ))
    return _hosts(tasks, reason, Source.PLATFORM) if tasks else None


def _hosts(tasks: Sequence[VolcanoTask], reason: str, source: Source) -> HostfilePath:
    """For one task with a file, return its path, as it may change; otherwise the hosts as text."""
    where = ", ".join(task.where for task in tasks)
    plain = len(tasks) == 1 and where.startswith("/") and not tasks[0].slots
    return HostfilePath(where, reason, source, "" if plain else "".join(x.text for x in tasks))


def _tasks(environ: Mapping[str, str]) -> dict[str, VolcanoTask]:
    """Read Volcano's tasks; files override variables, which its controller doesn't update."""
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
    """The job's hostfile, as last read successfully.

    ``is_file`` is false if the hosts come from a variable, a setting, a pipe or several files:
    these are not read again.
    """

    hostfile: Hostfile
    is_file: bool = True

    def has_changed(self) -> bool:
        """Reread the file; whether its hosts or slots have changed.

        The kubelet replaces the file, and an editor may write it in place: a missing, empty or
        half-written file counts as unchanged.
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
    """Wait until the job's hostfile has hosts, and parse it.

    Args:
        resolved: the settings, which may name a hostfile or list the hosts.
        environ: this pod's environment, with the operator's and the platform's variables.
        patience: the timeout in seconds.
        line: the hostfiles on the user's mpirun command line, which take precedence.

    Raises:
        MpibootError: ``hostfile-missing``, ``hostfile-invalid``.
    """
    # A slow import, not needed by other callers. A thread, because a volume may hang.
    from mpiboot.system.programs import in_thread  # noqa: PLC0415

    *named, default = candidates(resolved, environ)
    if not line and (listed := hosts_by_setting(resolved, environ)):
        named.insert(bool(resolved.settings.hostfile), listed)
    chosen = [HostfilePath(path, _MPIRUN_LINE) for path in line] or named[:1]
    if not chosen:
        found, may_come = await in_thread(_unnamed, default, environ)
        chosen, patience = [found], patience if may_come else 0.0
    until, files = time.monotonic() + patience, list[Hostfile]()
    for one in chosen:  # each app context may have one
        text = await _wait(one, max(0.0, until - time.monotonic()))
        files.append(replace(syntax.parse(text, one.path, one.by), source=one.source))
    if len(files) > 1:
        return JobHostfile(syntax.union(files), is_file=False)
    return JobHostfile(files[0], is_file=not (one.text or is_pipe(one.path)))


def _unnamed(default: HostfilePath, environ: Mapping[str, str]) -> tuple[HostfilePath, bool]:
    """Choose a hostfile when nothing is configured, and whether it may still appear.

    Mount points exist before a container starts: if the default file's folder is missing, there
    is nothing to wait for.
    """
    if os.path.exists(default.path):  # noqa: PTH110 - see mounted
        return default, True
    if chosen := hosts_by_platform(environ, os.uname().nodename):
        return chosen, True
    # Path.is_dir raises if this user may not search a parent folder.
    return default, os.path.isdir(os.path.dirname(default.path))  # noqa: PTH112, PTH120


async def _wait(chosen: HostfilePath, patience: float) -> str:
    """Read a hostfile once it has hosts; until then, log why it can't be used."""
    import asyncio  # noqa: PLC0415 - see of_job

    from mpiboot.system.programs import in_thread  # noqa: PLC0415

    started, pause, logged = time.monotonic(), _MIN_PAUSE_S, ""
    reading: asyncio.Future[str] | None = None
    while True:
        reading = reading or asyncio.ensure_future(in_thread(read, chosen))
        await asyncio.wait({reading}, timeout=_MAX_PAUSE_S)
        limit = patience
        try:
            if reading.done():
                return reading.result()
            lacks = failed("hostfile-missing", f"{chosen.where} {_STILL_READING}")
            limit = max(patience, _READ_S)
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
        pause = min(pause * 2, _MAX_PAUSE_S)
