"""The first act of a launcher: it becomes the small process that stays, before it waits for anyone.

Light: a pod's first process has loaded little more than the command line until here.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from mpiboot.choices import AUTO, Auto, WorkerExit
from mpiboot.parent.launch_spec import ATTEMPT, JOB_MARK, ParentOptions
from mpiboot.parent.signals import SIGNALS
from mpiboot.parent.task import ParentTask
from mpiboot.setting_sources import Resolved
from mpiboot.system import process

_PROGRAM: Final = Path(__file__).resolve().parent.parent / "parent" / "__main__.py"
_CHILD: Final = "from mpiboot.launcher.child import main; main(*sys.argv[1:])"


def launch(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> NoReturn:
    """Become the parent of a launch, whose child waits for the hosts and makes the plan.

    Raises:
        MpibootError: ``program-missing``; this interpreter can't be executed.
    """
    settings = resolved.settings
    options = ParentOptions(
        log_level=settings.log_level,
        log_format=settings.log_format,
        termination_log=settings.termination_log,
        hold_on_failure=settings.hold_on_failure,
    )
    attempt = new_attempt(settings.worker_exit, environ)
    become_parent(ParentTask.LAUNCH, options, child(resolved, program, attempt), environ)


def child(
    resolved: Resolved, program: tuple[str, ...], attempt: str = "", *, script: bool = False
) -> list[str]:
    """Give the command line of the child that waits for the hosts.

    Args:
        resolved: the settings.
        program: the user's line.
        attempt: this launcher's name for workers; empty where it is a part of a job.
        script: whether the program starts processes by itself.
    """
    given = {"flags": dict(resolved.flags), "attempt": attempt, "script": script}
    return process.python(_CHILD, json.dumps(given), *program)


def become_parent(
    task: ParentTask, options: ParentOptions, words: list[str], environ: Mapping[str, str]
) -> NoReturn:
    """Become the small process that stays: no site, no user's PYTHON variables.

    Raises:
        MpibootError: ``program-missing``; this interpreter can't be executed.
    """
    head = (sys.executable, "-I", "-S", str(_PROGRAM), task.value, options.to_json())
    # A signal that comes while the new interpreter starts waits for it.
    process.replace((*head, *words), environ, blocked=sorted(SIGNALS))


def new_attempt(wanted: WorkerExit | Auto, environ: Mapping[str, str]) -> str:
    """Name this launcher for the workers, which are told of its end: host, since when, a number.

    Args:
        wanted: the setting ``worker_exit``.
        environ: this pod's environment, which has a mark inside a launch or a script.

    Returns:
        Empty where this is a part of a job: a launcher beside others, as by ``kubectl exec`` or in
        a script, may be followed by the next.
    """
    part = environ.get(JOB_MARK) or environ.get(ATTEMPT)
    unknown = wanted is AUTO and not process.is_containers_own()
    if wanted is WorkerExit.NEVER or part or unknown:
        return ""
    host = re.sub(r"[^A-Za-z0-9.-]", "", socket.gethostname())
    return f"{host}@{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}@{os.urandom(4).hex()}"
