"""``mpiboot validate job`` and ``node``: runs nccl-tests, shows its output, and judges it.

A job runs under a launcher, a child process; the launcher's exit code counts unless it is 0.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from mpiboot.core import log
from mpiboot.core.checks import BY_REFERENCE, ShownError
from mpiboot.core.launch_names import BY_SIGNAL, TIMED
from mpiboot.core.setting_types import AUTO, Switch, WorkerExit
from mpiboot.core.settings import Resolved
from mpiboot.job import render
from mpiboot.launcher.command import flags
from mpiboot.network import sysfs
from mpiboot.supervisor.signals import ENDING, SIGNALS
from mpiboot.system import files, process, spawn
from mpiboot.system.os_calls import exit_status
from mpiboot.validate import nccl_tests
from mpiboot.validate.nccl_tests import Run, ToolOptions

_KILL_S: Final = 30.0  # from the time limit to SIGKILL; ranks have 20 s (MPIBOOT_GRACE)
_CHUNK: Final = 1 << 16
_LAUNCH: Final = "from mpiboot.__main__ import main; main()"


def job(resolved: Resolved, environ: Mapping[str, str], options: ToolOptions) -> None:
    """Measure over all hosts.

    Raises:
        ShownError: it is too slow, wrong, or by another network than planned.
        SystemExit: the launcher's own exit code.
        MpibootError: ``usage`` or ``runtime-folder``.
    """
    text = nccl_tests.shell(options.tool, options.arguments)
    settings, uid = resolved.settings, os.getuid()
    own, temporary = f"validate-{os.getpid()}", environ.get("TMPDIR")
    folder = files.runtime_dir(settings.runtime_dir, uid, own, tmpdir=temporary)
    record = folder / "record.json"
    env = dict(environ)
    # Workers may wait for the end of the job, which only the container's first process announces:
    # this one. Otherwise (`kubectl exec`) this end is not the container's.
    if not process.is_containers_own():
        env["MPIBOOT_TERMINATION_LOG"] = os.devnull
    elif settings.worker_exit is AUTO:
        env["MPIBOOT_WORKER_EXIT"] = WorkerExit.AFTER_JOB.value
    env |= flags(resolved)
    env |= {"MPIBOOT_JOB_RECORD": str(record), "MPIBOOT_VALIDATE": "off"}
    env["MPIBOOT_HOLD_ON_FAILURE"] = "0"  # the time is for the tool
    if settings.supervise is Switch.ON:  # otherwise mpirun itself gets the signal
        env[TIMED] = "1"
    argv = process.python(_LAUNCH, "launcher", "--", "mpirun", "sh", "-c", text, "sh")
    run = Run(options)
    try:
        _run(argv, env, run, record)
    finally:
        files.remove_role(folder)
    _end(run, resolved)


def node(resolved: Resolved, environ: Mapping[str, str], options: ToolOptions) -> None:
    """Measure between the GPUs of this pod, without SSH and mpirun.

    Raises:
        ShownError: it is too slow, or wrong.
        SystemExit: the tool's own exit code.
        MpibootError: ``usage``.
    """
    devices = max(1, sysfs.gpus().count)
    text = nccl_tests.shell(options.tool, options.arguments, devices)
    run = Run(options, inside=True)
    _run(["sh", "-c", text, "sh"], environ, run, None)
    _end(run, resolved)


def _end(run: Run, resolved: Resolved) -> None:
    """Judge a run, print the verdict below the tool's output, and exit."""
    judged = nccl_tests.judge(run)
    finding, code, ended = judged.finding, run.code, ""
    if run.signal:
        code = BY_SIGNAL + run.signal
        ended = f"interrupted by {signal.Signals(run.signal).name}: no verdict"
    elif code and not run.over:  # it counts, and the launcher has logged why
        ended = f"ended with {code}: no verdict" if judged.fit else ""
    else:
        code = 0 if judged.fit else BY_REFERENCE[finding.check].code
    began = run.started or run.missing
    if run.options.as_json:
        sys.stdout.write(render.as_json(nccl_tests.record(run, judged, code, complete=not ended)))
    elif began or not code:
        sys.stdout.write(nccl_tests.as_text(run, judged, log.width(1), ended))
    sys.stdout.flush()
    if began and not ended:
        reason = "" if judged.fit else render.termination(finding)
        log.write_termination(resolved.settings.termination_log, reason)
    if judged.fit or ended:
        sys.exit(code)
    raise ShownError(finding, code=code)


def _run(argv: Sequence[str], environ: Mapping[str, str], run: Run, record: Path | None) -> None:
    """Run a launcher or a rank's shell to its end, and show its output.

    Args:
        argv: the launcher; or one rank's shell: its process group gets the signals.
        environ: its environment.
        run: what is known of it; the time limit begins when a host starts the tool.
        record: the file of the job's record; None for one rank.

    Raises:
        MpibootError: ``program-missing``; it can't be started.
        OSError: its output can't be shown; it is ended then.
    """
    until: float | None = None
    status: int | None = None
    ends = signal.SIGHUP if TIMED in environ else signal.SIGTERM
    shown = sys.stderr if run.options.as_json else sys.stdout
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    loop = process.SignalLoop(SIGNALS)
    pid = process.start(argv, environ, streams={0: None, 1: writer}, own_session=True)
    os.close(writer)

    def send(number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            (os.kill if record else os.killpg)(pid, number)

    def read() -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(reader, _CHUNK):
                shown.write(run.feed(data))
                shown.flush()
            loop.off(reader)

    loop.on(reader, read, vital=True)
    try:
        while status is None:
            left = math.inf if until is None else until - time.monotonic()
            for number in set(loop.wait(left)) - {signal.SIGCHLD}:
                run.signal = run.signal or (number if number in ENDING else 0)
                # A SIGHUP from outside is not the time limit's.
                send(signal.SIGTERM if number == ends else number)
            status = dict(spawn.reap()).get(pid)
            if until is None and run.started:
                until = time.monotonic() + run.options.seconds
            elif until is not None and time.monotonic() >= until:
                send(signal.SIGKILL if run.over else ends)
                run.over, until = True, time.monotonic() + _KILL_S
        read()
        shown.write(run.feed(b"\n" if run.rest else b""))
    finally:
        if record is None:  # the program may outlive its shell
            send(signal.SIGKILL)
        elif status is None:
            send(signal.SIGTERM)
        loop.close()
    run.code = exit_status(status)
    if record:  # with MPIBOOT_SUPERVISE=off there is none
        with contextlib.suppress(OSError, ValueError):
            run.record = json.loads(record.read_text("utf-8"))
