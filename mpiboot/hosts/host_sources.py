"""The job's hosts where no hostfile is named: from settings, or as the platform writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mpiboot.core.errors import error
from mpiboot.core.model import Source
from mpiboot.core.settings import Resolved
from mpiboot.hosts.hostfiles import HostfilePath
from mpiboot.job import lsf, volcano
from mpiboot.job.volcano import Task


def by_setting(
    resolved: Resolved, environ: Mapping[str, str], folder: str = volcano.FOLDER
) -> HostfilePath | None:
    """Find the hosts that a setting other than ``hostfile`` names.

    Raises:
        MpibootError: ``hostfile-missing``; there is no such task. ``settings-conflict``; a
            StatefulSet is named by halves, or a task too.
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
    task = volcano.named(settings.worker_task, str(given), _tasks(environ, folder))
    return _hosts(task, str(given), given.source)


def _stateful_set(resolved: Resolved) -> HostfilePath | None:
    """List a StatefulSet's pods by the names that Kubernetes gives them: NAME-ORDINAL.SERVICE."""
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


def by_platform(
    environ: Mapping[str, str], hostname: str, folder: str = volcano.FOLDER
) -> HostfilePath | None:
    """Find the hosts that the platform itself tells this pod of.

    Raises:
        MpibootError: ``hostfile-missing``; what it tells fits several lists.
            ``hostfile-invalid``; LSF's variable is no list of hosts.
    """
    if environ.get(lsf.JOB):
        return _lsf(environ)
    found = volcano.choose(environ, hostname, _tasks(environ, folder))
    return _hosts(*found, Source.PLATFORM) if found else None


def _lsf(environ: Mapping[str, str]) -> HostfilePath | None:
    """Read LSF's file, where this pod has it, else its variable; LSF never changes either."""
    path, pairs = environ.get(lsf.FILE, ""), environ.get(lsf.PAIRS, "")
    try:
        text = lsf.of_file(Path(path).read_text("utf-8", "replace")) if path else ""
    except (OSError, ValueError):
        text = ""
    if text:
        return HostfilePath(path, lsf.FILE, Source.PLATFORM, text)
    text = lsf.of_pairs(pairs)
    return HostfilePath(lsf.PAIRS, "LSF", Source.PLATFORM, text) if text else None


def _hosts(task: Task, because: str, source: Source) -> HostfilePath:
    text = "" if task.where.startswith("/") else "\n".join(task.hosts)
    return HostfilePath(task.where, because, source, text)


def _tasks(environ: Mapping[str, str], folder: str) -> dict[str, Task]:
    """Read Volcano's tasks; its controller updates the files, which variables don't follow."""
    known = {task.key: task for task in volcano.tasks(environ)}
    try:
        paths = sorted(Path(folder).glob(f"*{volcano.ENDING}"))
        texts = {path: path.read_text("utf-8", "replace") for path in paths}
    except OSError:
        return known
    for path, text in texts.items():
        key = volcano.key_of(path.name.removesuffix(volcano.ENDING))
        known[key] = Task(key, str(path), tuple(text.split()))
    return known
