"""The first act of a launcher: it becomes the small process that stays, before it waits for anyone.

What waits is a copy of it, a child that has all that was loaded until here, and goes on while the
small process starts. Light: a pod's first process has loaded little more than the command line.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

from mpiboot.core.choices import AUTO, Auto, WorkerExit
from mpiboot.core.launch_spec import ATTEMPT, JOB_MARK, RESULT, ParentOptions, ParentTask
from mpiboot.core.setting_sources import Resolved
from mpiboot.supervisor.signals import SIGNALS
from mpiboot.system import control_groups, files, process

_PROGRAM: Final = Path(__file__).resolve().parent.parent / "supervisor" / "__main__.py"


def launch(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> NoReturn:
    """Become the parent of a launch, whose child waits for the hosts and makes the plan.

    Raises:
        MpibootError: ``program-missing``; this interpreter can't be executed.
        OSError: no child can be started.
    """
    settings = resolved.settings
    options = ParentOptions(
        log_level=settings.log_level,
        log_format=settings.log_format,
        termination_log=settings.termination_log,
        hold_on_failure=settings.hold_on_failure,
        oom_kills=control_groups.kills(),
    )
    attempt = new_attempt(settings.worker_exit, environ)
    words = start_child(resolved, program, environ, attempt)
    become_parent(ParentTask.LAUNCH, options, words, environ)


def start_child(
    resolved: Resolved,
    program: tuple[str, ...],
    environ: Mapping[str, str],
    attempt: str = "",
    *,
    script: bool = False,
) -> list[str]:
    """Start the child that waits for the hosts; it stays this process's own over exec.

    It leads a group of its own: a terminal's Ctrl-C is for the parent to judge.

    Args:
        resolved: the settings.
        program: the user's line.
        environ: the parent's environment.
        attempt: this launcher's name for workers; empty where it is a part of a job.
        script: whether the program starts processes by itself.

    Returns:
        What the parent is told: the child's process number, and where its result comes.

    Raises:
        OSError: it can't be started.
    """
    settings, uid = resolved.settings, os.getuid()
    kept = files.hold_open(settings.runtime_dir, uid, "launcher", environ, split=True)
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        os.dup2(writer, RESULT)
        for handle in {reader, writer} - {RESULT}:
            os.close(handle)
        _be_child(resolved, program, {**environ, **kept}, attempt, script=script)
    _lead_a_group(pid)  # here too: the parent may end it before it has done anything
    os.close(writer)
    os.set_inheritable(reader, True)
    return [str(pid), str(reader)]


def _be_child(
    resolved: Resolved,
    program: tuple[str, ...],
    environ: Mapping[str, str],
    attempt: str,
    *,
    script: bool,
) -> NoReturn:
    _lead_a_group(0)
    given = dict(environ)
    os.environ.clear()
    os.environ.update(given)
    # The parent takes signals in; what it passes on ends this one until there are handlers.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    from mpiboot.launcher import child  # noqa: PLC0415 - the parent has none of it

    child.main(resolved, program, attempt, script=script)


def _lead_a_group(pid: int) -> None:
    with suppress(OSError):
        os.setpgid(pid, pid)


def become_parent(
    task: ParentTask, options: ParentOptions, words: list[str], environ: Mapping[str, str]
) -> NoReturn:
    """Become the small process that stays: no site, no user's PYTHON variables.

    Raises:
        MpibootError: ``program-missing``; this interpreter can't be executed.
    """
    options = replace(options, open_folders=tuple(files.open_folders))
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
