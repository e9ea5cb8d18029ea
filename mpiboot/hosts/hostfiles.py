"""The job's hostfile: where it is, what it contains, and whether that has changed.

Hosts that settings or the platform list take the place of a hostfile. ConfigMap volumes may be
mounted late or empty, so ``find`` waits up to a limit. Whether the hosts exist isn't checked.
"""

from __future__ import annotations

import os
import select
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error, failed
from mpiboot.core.facts import Hostfile
from mpiboot.core.model import Finding, Level, Source
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import first_few, lasting, took
from mpiboot.job import hostfile as syntax
from mpiboot.job import platforms
from mpiboot.job.platforms import VolcanoTask

_NOBODY: Final = "default"
# The origin of a hostfile that is named on the program's own mpirun line.
ON_THE_LINE: Final = "the mpirun line"
# 10,000 hosts are about a megabyte; a larger file is no hostfile.
_LARGEST: Final = 64 << 20
# What came from each pipe so far, by path, and the descriptor, -1 once the pipe has ended: several
# places read a hostfile, and a pipe is read only once.
_PIPES: Final[dict[str, tuple[int, bytes]]] = {}
_LARGEST_PIPE: Final = 1 << 20
# Seconds that a pipe is waited for where no hostfile is.
_WRITER: Final = 5.0


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


class NotYetError(MpibootError):
    """The file may still get hosts; its finding is the check that fails if it doesn't."""


def candidates(setting: str, given: str, environ: Mapping[str, str]) -> tuple[HostfilePath, ...]:
    """List every named hostfile, the one with the highest precedence first.

    Args:
        setting: the value of the setting ``hostfile``, empty where not given.
        given: the flag or variable that gave it.
        environ: where the operator's variables are looked up.
    """
    named = [HostfilePath(setting, given)] if setting else []
    names = filter(environ.get, platforms.HOSTFILE_VARS)
    named += [HostfilePath(environ[name], name) for name in names]
    return (*named, HostfilePath(platforms.HOSTFILE, _NOBODY))


def mounted(resolved: Resolved, environ: Mapping[str, str]) -> str:
    """Find the first hostfile that exists; empty where none does."""
    given = str(resolved.given["hostfile"])
    named = candidates(resolved.settings.hostfile, given, environ)
    # Path.exists raises where a folder on the way is closed to this user.
    return next((item.path for item in named if os.path.exists(item.path)), "")  # noqa: PTH110


def has_folder(path: str) -> bool:
    """Tell whether the folder of a path exists."""
    # Not Path.is_dir: it raises where this user may not enter a folder on the way.
    return os.path.isdir(os.path.dirname(path))  # noqa: PTH112, PTH120


def read(chosen: HostfilePath, *, pipe: bool = True) -> str:
    """Read the text of the file or pipe, which has at least one line that is no comment.

    Without ``pipe`` one is an error: one that is not the job's hostfile, such as standard input, is
    left to the program.
    """
    if chosen.text:
        return chosen.text
    by = "no setting names another" if chosen.is_default else f"named by {chosen.by}"
    where = f"{chosen.path} ({by})"
    known = chosen.path in _PIPES
    data = _read_pipe(chosen.path, where) if known else _read_file(chosen.path, where, pipe=pipe)
    # A comment may be in any encoding; a host's name has none of these bytes.
    text = data.decode("utf-8-sig", "replace")
    if "\0" in text:
        message = f"{where} is not text: a zero byte at offset {data.index(0)}"
        raise error("hostfile-invalid", message)
    if syntax.is_blank(text):
        message = f"{where} {'has only comments' if text.strip() else 'is empty'}"
        if chosen.path in _PIPES:  # nothing will follow
            raise error("hostfile-invalid", message)
        raise NotYetError(failed("hostfile-invalid", message))
    return text


def is_pipe(path: str) -> bool:
    """Tell whether a hostfile is a pipe, whose lines only its first reader gets."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)  # noqa: PTH116 - raises less
    except (OSError, ValueError):
        return False


def _read_file(path: str, where: str, *, pipe: bool) -> bytes:
    try:
        # O_NONBLOCK: a FIFO without a writer would hang the open.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise NotYetError(failed("hostfile-missing", f"{where} does not exist")) from None
    except (OSError, ValueError) as why:
        raise _unreadable(where, why) from None
    mode = os.fstat(descriptor).st_mode
    if pipe and stat.S_ISFIFO(mode):
        _PIPES[path] = descriptor, b""
        return _read_pipe(path, where)
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        hint = f"name the file itself, such as {platforms.HOSTFILE}"
        raise error("hostfile-invalid", f"{where} is {kind}: expected a file with hosts", hint=hint)
    with os.fdopen(descriptor, "rb") as file:
        try:
            data = file.read(_LARGEST + 1)
        except OSError as why:
            raise _unreadable(where, why) from None
    if len(data) > _LARGEST:
        raise error("hostfile-invalid", f"{where} has more than {_LARGEST} bytes")
    return data


def _read_pipe(path: str, where: str) -> bytes:
    """Read on in a pipe, and give all that came once it was closed."""
    descriptor, data = _PIPES[path]
    while descriptor >= 0:
        # A FIFO that nobody has opened yet would be read as one that ended.
        if not select.select([descriptor], [], [], 0)[0]:
            came = f"is still open, after {len(data)} bytes" if data else "has got nothing yet"
            message = f"{where} is a pipe that {came}: start what writes it, and let that end"
            raise NotYetError(failed("hostfile-missing", message))
        data += (piece := os.read(descriptor, _LARGEST_PIPE))
        if len(data) > _LARGEST_PIPE:
            os.close(_PIPES.pop(path)[0])
            raise error("hostfile-invalid", f"{where} has more than {_LARGEST_PIPE} bytes")
        if not piece:
            os.close(descriptor)
            descriptor = -1
        _PIPES[path] = descriptor, data
    return data


def _unreadable(where: str, why: OSError | ValueError) -> MpibootError:
    message = getattr(why, "strerror", None) or str(why)
    hint = "name a hostfile that can be read with --hostfile or MPIBOOT_HOSTFILE"
    if isinstance(why, PermissionError):
        hint = f"let uid {os.getuid()} read it and the folders above it"
    return error("hostfile-invalid", f"{where} can't be read: {message}", hint=hint)


def hosts_by_setting(
    resolved: Resolved, environ: Mapping[str, str], folder: str = platforms.VOLCANO_FOLDER
) -> HostfilePath | None:
    """Find the hosts that a setting other than ``hostfile`` names.

    Raises:
        MpibootError: ``hostfile-missing``; there is no such task. ``settings-conflict``; the
            settings of a StatefulSet are incomplete, or a task is named too.
    """
    settings, given = resolved.settings, resolved.given["worker_task"]
    if not settings.worker_task:
        return _stateful_set(resolved)
    if settings.replicas:
        raise error(
            "settings-conflict",
            f"{given} and {resolved.given['replicas']} both name the job's hosts",
            hint="give one of them",
        )
    known = _tasks(environ, folder)
    tasks = [platforms.named_task(task, str(given), known) for task in settings.worker_task]
    return _hosts(tasks, str(given), given.source)


def _stateful_set(resolved: Resolved) -> HostfilePath | None:
    """List a StatefulSet's pods by their names in Kubernetes: NAME-ORDINAL.SERVICE."""
    settings = resolved.settings
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


def hosts_by_platform(
    environ: Mapping[str, str], hostname: str, folder: str = platforms.VOLCANO_FOLDER
) -> HostfilePath | None:
    """Find the hosts that the platform lists in this pod.

    Raises:
        MpibootError: ``hostfile-missing``; several tasks may be meant.
            ``hostfile-invalid``; LSF's variable is no list of hosts.
    """
    if environ.get(platforms.LSF_JOB):
        return _lsf(environ)
    tasks, reason = platforms.choose_tasks(environ, hostname, _tasks(environ, folder))
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


def _tasks(environ: Mapping[str, str], folder: str) -> dict[str, VolcanoTask]:
    """Read Volcano's tasks; its controller updates the files, but not the variables."""
    known = {task.key: task for task in platforms.volcano_tasks(environ)}
    try:
        paths = sorted(Path(folder).glob(f"*{platforms.VOLCANO_ENDING}"))
        texts = {path: path.read_text("utf-8", "replace") for path in paths}
    except OSError:
        return known
    for path, text in texts.items():
        key = platforms.task_key(path.name.removesuffix(platforms.VOLCANO_ENDING))
        known[key] = VolcanoTask(key, str(path), tuple(text.split()))
    return known


# Seconds after which the log line is repeated.
_SILENCE: Final = 28.0
_FIRST_LOOK, _LAST_LOOK = 0.02, 0.5


@dataclass(slots=True)
class JobHostfile:
    """The job's hostfile as it could last be used, its text, and warnings about it.

    ``is_file`` is false where a variable, a setting, a pipe or several files list the hosts: these
    are not read again.
    """

    hostfile: Hostfile
    warnings: tuple[Finding, ...]
    text: str = ""
    is_file: bool = True

    def has_changed(self) -> bool:
        """Read the file again, and tell whether it has other hosts or slots.

        A kubelet swaps a file, and an editor may write it in place: what is missing, empty or
        half-written counts as unchanged.
        """
        before, path, by = self.hostfile, self.hostfile.path, self.hostfile.named_by
        try:
            text = read(HostfilePath(path, by), pipe=False) if self.is_file else self.text
            if text != self.text:
                self.hostfile = replace(before, hosts=syntax.parse(text, path, by).hosts)
        except MpibootError:
            return False
        self.text = text
        return self.hostfile.hosts != before.hosts


async def find(
    setting: str,
    given: str,
    environ: Mapping[str, str],
    *,
    patience: float,
    default: str = platforms.HOSTFILE,
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
        line: the hostfiles of the program's own mpirun line, which take precedence.
        listed: the hosts that another setting lists, which come after the setting ``hostfile``.
        platform: finds hosts that the platform lists, if nothing else does.

    Raises:
        MpibootError: ``hostfile-missing``, ``hostfile-invalid``.
    """
    # Heavy for who only asks what names a hostfile. A volume may hang.
    from mpiboot.system.threads import in_thread  # noqa: PLC0415

    named = candidates(setting, given, environ)
    if listed:
        named = (*named[: bool(setting)], listed, *named[bool(setting) :])
    named = (*(HostfilePath(path, ON_THE_LINE) for path in line[:1]), *named)
    unnamed = HostfilePath(default, _NOBODY)
    chosen = named[0]
    if chosen.is_default:
        chosen, may_come = await in_thread(_unnamed, unnamed, platform)
        patience = patience if may_come else 0.0
    started = time.monotonic()
    text = await _wait(chosen, patience)
    hosts = replace(syntax.parse(text, chosen.path, chosen.by), source=chosen.source)
    if len(line) > 1:
        hosts = await _with_others(hosts, line[1:], started + patience)
    others = [item for item in named[1:] if not item.is_default]
    others += [unnamed] if not chosen.is_default else []
    # The operator names its file by a variable and mounts it at the default path: one warning.
    others = list({item.path: item for item in reversed(others)}.values())[::-1]
    differ = await in_thread(lambda: [_differs(chosen, hosts, other) for other in others])
    warnings = tuple(filter(None, differ))
    if hosts.remarks:
        warnings += (Finding("hostfile-invalid", Level.WARN, first_few(hosts.remarks)),)
    is_file = not (chosen.text or hosts.parts or chosen.path in _PIPES)
    return JobHostfile(hosts, warnings, text, is_file)


def _unnamed(
    default: HostfilePath, platform: Callable[[], HostfilePath | None]
) -> tuple[HostfilePath, bool]:
    """Give the hosts that nothing names, and whether they may still come.

    Mount points exist before a container starts: if the default file has no folder, there is
    nothing to wait for.
    """
    if os.path.exists(default.path):  # noqa: PTH110 - Path.exists raises where it may not enter
        return default, True
    chosen = platform() or default
    return chosen, not chosen.is_default or has_folder(default.path)


async def of_job(
    resolved: Resolved,
    environ: Mapping[str, str],
    patience: float,
    line: Sequence[str] = (),
    hostname: str | None = None,
) -> JobHostfile:
    """Read the hostfiles that the program's own mpirun line names, else the settings'."""
    own = os.uname().nodename if hostname is None else hostname
    return await find(
        resolved.settings.hostfile,
        str(resolved.given["hostfile"]),
        environ,
        patience=patience,
        line=line,
        listed=hosts_by_setting(resolved, environ),
        platform=lambda: hosts_by_platform(environ, own),
    )


async def _with_others(first: Hostfile, paths: Iterable[str], until: float) -> Hostfile:
    """Add the hostfiles of the line's other programs, waiting for each as for the first."""
    files = [first]
    for path in paths:
        text = await _wait(HostfilePath(path, ON_THE_LINE), max(0.0, until - time.monotonic()))
        files.append(syntax.parse(text, path, ON_THE_LINE))
    return syntax.union(files)


async def _wait(chosen: HostfilePath, patience: float) -> str:
    import asyncio  # noqa: PLC0415 - see find

    from mpiboot.system.threads import in_thread  # noqa: PLC0415

    started, look, last_said, said_at = time.monotonic(), _FIRST_LOOK, "", 0.0
    while True:
        try:
            return await in_thread(read, chosen)
        except NotYetError as why:  # noqa: PERF203 - it may come
            if chosen.path in _PIPES:
                patience = max(patience, _WRITER)
            left = started + patience - time.monotonic()
            if left <= 0:
                waited = f" after {took(patience)}" if patience else ""
                raise error(why.finding.check, f"{why}{waited}") from None
            now = time.monotonic()
            if str(why) != last_said or now - said_at >= _SILENCE:
                last_said, said_at = str(why), now
                message = f"waiting for the hostfile: {last_said}; gives up in {lasting(left)}"
                log.info("hostfile", message, path=chosen.path, gives_up_in=round(left, 1))
            await asyncio.sleep(min(look, left))
            look = min(look * 2, _LAST_LOOK)


def _differs(chosen: HostfilePath, hosts: Hostfile, other: HostfilePath) -> Finding | None:
    """Warn of another named hostfile with other hosts than the one in use."""
    if Path(other.path).resolve() == Path(chosen.path).resolve():
        return None
    try:
        found = syntax.parse(read(other, pipe=False), other.path, other.by)
    except NotYetError:
        if other.is_default:
            return None
        message = f"{other.by}={other.path} names no hosts"
    except Exception as why:  # noqa: BLE001 - an unused file must not end the job
        message = f"{other.by}={other.path} can't be used: {why}"
    else:
        if [(host.name, host.slots) for host in found.hosts] == [
            (host.name, host.slots) for host in hosts.hosts
        ]:
            return None
        name = other.path if other.is_default else f"{other.by}={other.path}"
        message = f"{name} differs ({found.size})"
    used = f"{chosen.path} (named by {chosen.by})"
    return Finding("hostfile-invalid", Level.WARN, f"{message}; mpiboot uses {used}")
