"""``mpiboot validate job`` and ``node``: start a tool, read it as it prints, judge, end.

A job is started by this same mpiboot as a launcher, in a child process: its gate, plan, agents and
supervisor, whose exit code stands where it is not 0.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from mpiboot.core import log
from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.errors import ShownError, error
from mpiboot.core.launch_spec import BY_SIGNAL
from mpiboot.core.model import Source
from mpiboot.core.setting_types import AUTO, WorkerExit
from mpiboot.core.settings import Resolved
from mpiboot.job import render
from mpiboot.job.dialects import DIALECTS, HOSTFILE_VARS, OMPI_ROOT
from mpiboot.launcher import role as launcher
from mpiboot.network import sysfs
from mpiboot.supervisor.signals import ENDING, SIGNALS
from mpiboot.system import files, process
from mpiboot.validate import report, tools
from mpiboot.validate.output import Output, Sample
from mpiboot.validate.verdict import Run, ToolOptions, judge

# Seconds: what a tool's ranks get to end, and after how many more the launcher is killed.
_GRACE: Final = 2
_KILL: Final = 30.0
_PIECE: Final = 1 << 16
_LAUNCH: Final = "from mpiboot.cli.main import main; main()"
# Two ranks by this pod's own mpirun, whatever hosts and agents its environment names for a job.
_LOCAL: Final = ("mpirun", "-n", "2")


def job(resolved: Resolved, environ: Mapping[str, str], asked: ToolOptions) -> None:
    """Measure over all hosts.

    Raises:
        ShownError: it is too slow, wrong, or by another network than planned.
        SystemExit: the launcher's own exit code.
        MpibootError: ``usage`` or ``runtime-folder``.
    """
    _known(asked.tool)
    settings, uid = resolved.settings, os.getuid()
    folder = files.runtime_dir(settings.runtime_dir, uid, "validate", tmpdir=environ.get("TMPDIR"))
    record = folder / f"record-{os.getpid()}.json"
    env = {**environ, **launcher.flags(resolved)}
    env |= {"MPIBOOT_JOB_RECORD": str(record), "MPIBOOT_SCRIPT": "off", "MPIBOOT_VALIDATE": "off"}
    env["MPIBOOT_TAG_OUTPUT"] = "off"  # the tool's lines are read
    env["MPIBOOT_HOLD_ON_FAILURE"] = "0"  # the time is for the tool
    if resolved.given["grace"].source is Source.DEFAULT:  # nothing is to be saved
        env["MPIBOOT_GRACE"] = str(_GRACE)
    # The container's own process is this one, so a launcher that is its child would not tell the
    # workers that the job is over, for which they may wait.
    if settings.worker_exit is AUTO and process.is_containers_own():
        env["MPIBOOT_WORKER_EXIT"] = WorkerExit.AFTER_JOB.value
    text = tools.shell(asked.tool, asked.seconds, asked.arguments)
    argv = process.python(_LAUNCH, "launcher", "--", "sh", "-c", text, "sh")
    try:
        _measure(argv, env, asked, resolved, str(record))
    finally:
        with contextlib.suppress(OSError):
            record.unlink()
        with contextlib.suppress(OSError):
            folder.rmdir()


def node(resolved: Resolved, environ: Mapping[str, str], asked: ToolOptions) -> None:
    """Measure inside this pod, without SSH: its GPUs, or two ranks by its own mpirun.

    Raises:
        ShownError: it is too slow, or wrong.
        SystemExit: the tool's own exit code.
        MpibootError: ``usage``.
    """
    _known(asked.tool)
    devices = max(1, sysfs.gpus(search=environ.get("PATH", "")).count)
    text = tools.shell(asked.tool, asked.seconds, asked.arguments, devices=devices, before=_LOCAL)
    env = {name: value for name, value in environ.items() if name not in HOSTFILE_VARS}
    env |= {item.name: item.value for item in OMPI_ROOT} if not os.getuid() else {}
    # A pod of one core has but one slot.
    rows = (row for row in DIALECTS.values() if row.oversubscribe_var)
    env |= {row.oversubscribe_var: row.oversubscribe_value for row in rows}
    _measure(["sh", "-c", text, "sh"], env, asked, resolved, "")


def _known(name: str) -> None:
    if name and tools.find(name) is None:
        known = ", ".join(tool.name for tool in tools.TOOLS)
        hint = "a program of nccl-tests or OSU can be named too, such as alltoall_perf"
        raise error("usage", f"--tool is {name!r}: expected one of {known}", hint=hint)


def _measure(
    argv: Sequence[str],
    environ: Mapping[str, str],
    asked: ToolOptions,
    resolved: Resolved,
    record: str,
) -> None:
    """Run, show what comes, judge, and end; without a record all is inside this pod."""
    child = _Child(asked, whole_group=not record)
    code = child.run(argv, environ)
    output = child.output
    tool = tools.find(next(iter(output.started.values()), asked.tool))
    run = Run(tool, output, _read(record), asked, code, child.over, inside=not record)
    verdict = judge(run)
    finding, ended = verdict.finding, ""
    if child.signal:
        code = BY_SIGNAL + child.signal
        ended = f"interrupted by {signal.Signals(child.signal).name}: no verdict"
    elif code and not child.over:  # it stands, and the launcher has said why
        ended = f"ended with {code}: no verdict" if verdict.fit else ""
    else:
        code = 0 if verdict.fit else BY_REFERENCE[finding.check].code
    began = output.started or output.missing
    if asked.as_json:
        sys.stdout.write(report.as_json(run, verdict, code, complete=not ended))
    elif began or not code:
        sys.stdout.write(report.as_text(run, verdict, log.width(1), ended))
    sys.stdout.flush()
    if began and not ended:
        reason = "" if verdict.fit else render.termination(finding)
        log.write_termination(resolved.settings.termination_log, reason)
    if verdict.fit or ended:
        sys.exit(code)
    raise ShownError(finding, code=code)


def _read(path: str) -> Mapping[str, Any]:
    """Read the job's record; empty where there is none, as with MPIBOOT_SUPERVISE=off."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - a word from end to end
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class _Child:
    """The process that runs the tool, as launcher or here: its output, its time, its end.

    ``over`` once its time was over, ``signal`` the signal that ended this process's wait.
    """

    def __init__(self, asked: ToolOptions, *, whole_group: bool) -> None:
        """Start nothing yet; ``whole_group`` where signals are for all that the child started."""
        self.output = Output()
        self.over, self.signal = False, 0
        self._asked, self._whole = asked, whole_group
        self._pid, self._reader = 0, -1
        self._status: int | None = None
        self._until: float | None = None
        self._shown = False

    def run(self, argv: Sequence[str], environ: Mapping[str, str]) -> int:
        """Run it to its end; its exit code, 128+n by a signal.

        Raises:
            MpibootError: ``program-missing``; it can't be started.
            OSError: what it printed can't be shown; it is ended then.
        """
        loop = process.SignalLoop(SIGNALS)
        self._reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writer, True)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._pid = process.start(argv, environ, stdin=nothing, stdout=writer, group=True)
            os.close(writer)
            loop.on(self._reader, lambda: self._read(loop), vital=True)
            while self._status is None:
                left = None if self._until is None else max(0.0, self._until - time.monotonic())
                for number in loop.wait(left):
                    self._take(number)
                self._check_time()
            self._read(loop)
            self._show(self.output.end())
        finally:
            if self._pid and self._status is None:
                self._send(signal.SIGTERM)
            loop.close()
        code = os.waitstatus_to_exitcode(self._status or 0)
        return BY_SIGNAL - code if code < 0 else code

    def _take(self, number: int) -> None:
        if number == signal.SIGCHLD:  # as a container's first process it has all orphans
            with contextlib.suppress(ChildProcessError):
                while (found := os.waitpid(-1, os.WNOHANG))[0]:
                    if found[0] == self._pid:
                        self._status = found[1]
            return
        if number in ENDING:
            self.signal = self.signal or number
        self._send(number)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if self._whole else os.kill)(self._pid, number)

    def _check_time(self) -> None:
        """End what takes longer than was asked for, from the moment at which a host started it."""
        now = time.monotonic()
        if self._until is None:
            if self.output.started and not self.over:
                self._until = now + self._asked.seconds
        elif now >= self._until:
            self._send(signal.SIGKILL if self.over else signal.SIGTERM)
            self._until = None if self.over else now + _KILL
            self.over = True

    def _read(self, loop: process.SignalLoop) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._reader, _PIECE):
                self._show(self.output.feed(data))
            loop.off(self._reader)

    def _show(self, items: Iterable[Sample | str]) -> None:
        for item in items:
            if isinstance(item, str):
                os.write(2, (item + "\n").encode("utf-8", "replace"))
            elif not self._asked.as_json:
                head = "" if self._shown else report.HEAD
                self._shown = True
                sys.stdout.write(head + report.row(item))
                sys.stdout.flush()
