"""Volcano's tasks: whose hosts are the job's, and what a pod's variables say of its role. Pure.

Names and forms are those of Volcano v1.15.1 (pkg/controllers/job/plugins: svc/svc.go GenerateHosts,
distributed-framework/mpi/mpi.go, env/const.go).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from mpiboot.core.errors import MpibootError, error
from mpiboot.core.model import Role
from mpiboot.core.wording import first_few
from mpiboot.job.names import short

# The svc plugin's ConfigMap, in every pod of the job: <task>.host, a host a line.
FOLDER: Final = "/etc/volcano"
ENDING: Final = ".host"
_VARIABLE: Final = re.compile(r"VC_(.+)_HOSTS")
# Set by the mpi plugin, on the pods of its master task alone.
MASTER: Final = "MPI_HOST"
_ENV_PLUGIN: Final = ("VC_TASK_INDEX", "VK_TASK_INDEX")


@dataclass(frozen=True, slots=True)
class Task:
    """The hosts of a task's pods, and the file or variable that has them.

    ``key`` is the task's name as Volcano writes it into the file's: with ``_`` for ``-``.
    """

    key: str
    where: str
    hosts: tuple[str, ...]


def key_of(task: str) -> str:
    """Give the form in which the names of a task, its file and its variable are alike."""
    return task.replace("-", "_").lower()


def recognise(environ: Mapping[str, str]) -> str:
    """Give the variable by which a pod is one of a Volcano job, which three plugins set."""
    names = (*_ENV_PLUGIN, *(task.where for task in tasks(environ)))
    return next((name for name in names if environ.get(name)), "")


def role(environ: Mapping[str, str]) -> tuple[Role, str] | None:
    """Give the role where the mpi plugin says it; the other plugins treat all pods alike."""
    if environ.get(MASTER):
        return Role.LAUNCHER, f"{MASTER}, which Volcano's mpi plugin sets on its master task alone"
    return None


def tasks(environ: Mapping[str, str]) -> Iterator[Task]:
    """Read the tasks that the svc plugin's variables name; one without pods has an empty value."""
    for name, value in environ.items():
        found = _VARIABLE.fullmatch(name)
        if found and value and environ.get(f"VC_{found[1]}_NUM"):
            yield Task(key_of(found[1]), name, tuple(value.split(",")))


def named(wanted: str, by: str, known: Mapping[str, Task]) -> Task:
    """Find the task that a setting names.

    Raises:
        MpibootError: ``hostfile-missing``; the job has no such task.
    """
    task = known.get(key_of(wanted))
    if task is None:
        have = f"the tasks {first_few(sorted(known))}" if known else "no task's hosts"
        raise error(
            "hostfile-missing",
            f"{by}={wanted}: {FOLDER}/*{ENDING} and VC_*_HOSTS have {have}",
            hint=f"name a task of the job with {by}; Volcano's svc plugin (`svc: []`) writes both",
        )
    return task


def choose(
    environ: Mapping[str, str], hostname: str, known: Mapping[str, Task]
) -> tuple[Task, str] | None:
    """Choose the task whose pods are the job's hosts, and say why; None where no task is known.

    Raises:
        MpibootError: ``hostfile-missing``; several tasks may be meant.
    """
    listed = tuple(filter(None, environ.get(MASTER, "").split(",")))
    if listed:
        because = f"{MASTER} of Volcano's mpi plugin"
        # The variable stays as the pod was made; the task's file follows when workers are added.
        same = next((task for task in known.values() if listed[0] in task.hosts), None)
        return same or Task("", MASTER, listed), because
    if not known:
        return None
    own = short(hostname)
    others = [task for task in known.values() if own not in map(short, task.hosts)]
    others = [task for task in others if task.hosts] or others
    if len(others) == 1:
        return others[0], "the only task of this Volcano job without this pod"
    if len(known) == 1:
        return next(iter(known.values())), "the only task of this Volcano job"
    raise _several(others or list(known.values()))


def _several(found: list[Task]) -> MpibootError:
    which = first_few(sorted(task.key for task in found))
    return error(
        "hostfile-missing",
        f"this Volcano job has {len(found)} tasks without this pod ({which}): nothing says whose "
        "pods get the ranks",
        hint=f"MPIBOOT_WORKER_TASK={found[0].key} on the launcher says it, or Volcano's mpi plugin",
    )
