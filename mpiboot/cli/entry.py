"""The entrypoint form: find this pod's role and do what it asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NoReturn

from mpiboot import __version__
from mpiboot.core import log
from mpiboot.core.errors import error
from mpiboot.core.model import Role, Source
from mpiboot.core.setting_types import BY_INDEX
from mpiboot.core.settings import Resolved
from mpiboot.job import platforms, program_words
from mpiboot.system import executables, process

# The older scripts' word for a pod to look around in; where START_SSHD says so it is a worker.
_STAY: Final = ("shell",)


def run(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> int:
    """Act as launcher, worker, or step aside and become the program.

    Raises:
        MpibootError: the role can't be told, or the role's own errors.
    """
    settings = resolved.settings
    hostname = os.uname().nodename
    role, decision = platforms.role(resolved, environ, program, "", hostname)
    if role is not Role.WORKER and program == _STAY:
        _stay(resolved, environ)
    if role is Role.NONE and decision.source is Source.DEFAULT:
        # Only now: what knows hostfiles is too heavy for a worker's start.
        from mpiboot.hosts import hostfiles

        given = str(resolved.given["hostfile"])
        named = hostfiles.candidates(settings.hostfile, given, environ)
        # os.path: Path.exists raises where a folder on the way is closed to this user.
        there = (item.path for item in named if os.path.exists(item.path))  # noqa: PTH110
        mounted = next(there, "")
        role, decision = platforms.role(resolved, environ, program, mounted, hostname)
    log.configure(level=settings.log_level, form=settings.log_format, role=role.value)
    if role is Role.NONE:
        if not program:
            raise error(
                "usage",
                "no program was given, and nothing says that this is a worker",
                hint="give the launcher its program (`mpiboot ./train`, `args: [./train]`), and a "
                "worker `mpiboot worker` (`args: [worker]`); see `mpiboot --help`",
            )
        if decision.source is Source.DEFAULT:
            _warn_alone(program[0], environ)
        log.debug("role", f"role none ({decision.because}): running {program[0]}")
        process.replace(program, environ)
    said = f"mpiboot {__version__}, role {role.value} ({decision.because})"
    log.info("role", said, version=__version__, because=decision.because)
    if role is Role.WORKER:
        from mpiboot.worker import role as worker

        # By its index, a worker has the launcher's arguments.
        theirs = settings.role is BY_INDEX or platforms.is_sshd(program)
        return worker.run(resolved, () if theirs else program, environ)
    if not program:
        raise error(
            "usage",
            "this pod is the launcher, and no program was given",
            hint="give the program as the container's args: `args: [mpirun, ./prog]`",
        )
    from mpiboot.launcher import role as launcher

    return launcher.run(resolved, program, environ)


def _warn_alone(program: str, environ: Mapping[str, str]) -> None:
    """Say that a program runs once, where an MPI is installed."""
    path = environ.get("PATH", executables.DEFAULT_PATH)
    if not executables.find("mpirun", path) and not executables.find("mpiexec", path):
        return
    if not executables.find(program, path):  # it doesn't run at all, which is said next
        return
    try:
        with open("/etc/hosts", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            hosts = file.read(1 << 16)
    except OSError:
        hosts = ""
    found = program_words.runs_alone(program, environ, os.uname().nodename, hosts)
    if found:
        log.finding(found)


def _stay(resolved: Resolved, environ: Mapping[str, str]) -> NoReturn:
    """Keep the pod alive for `kubectl exec` until a signal ends it, as ``shell`` always did."""
    from mpiboot.core.launch_spec import ParentOptions, ParentTask
    from mpiboot.launcher import role

    settings = resolved.settings
    options = ParentOptions(log_level=settings.log_level, log_format=settings.log_format)
    role.become_parent(ParentTask.STAY, options, [], environ)
