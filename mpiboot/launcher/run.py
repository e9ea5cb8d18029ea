"""The launcher's one process, PID 1 of its container: one asyncio loop from first to last.

Signals are blocked from the first line and taken by a thread; programs are started by
``posix_spawn`` and reaped here; what may block is done by threads that nobody joins, and standard
output, standard error and the log are written by threads, so nothing stops the loop. A launch, a
command that is no launch runs in it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from mpiboot.core import log
from mpiboot.core.checks import BY_REFERENCE, ExitCode
from mpiboot.core.launch_spec import (
    ATTEMPT,
    BY_SIGNAL,
    COMMAND_DIR,
    LAUNCH_ID,
    LAUNCHES,
    TIMED,
    Failure,
    LaunchSpec,
)
from mpiboot.core.model import AUTO, Auto, ProveTransport, Switch, WorkerExit
from mpiboot.core.settings import Settings
from mpiboot.core.wording import counted, lasting
from mpiboot.supervisor import report
from mpiboot.supervisor.job import HostFacts, Job, Verdict, signal_name, verdict_of
from mpiboot.supervisor.mpirun import Mpirun
from mpiboot.supervisor.output import OutputWriter
from mpiboot.supervisor.processes import GuardShell, dismiss_guard, remove_key, start_guard
from mpiboot.supervisor.signals import ENDING, Handles, Signals, by_signal
from mpiboot.supervisor.verdict import needs_hosts, not_startable
from mpiboot.supervisor.verdict import verdict as judge
from mpiboot.supervisor.workers import Workers
from mpiboot.system import process, programs
from mpiboot.system.process import raise_soft_limits
from mpiboot.system.spawn import replace as become

if TYPE_CHECKING:
    from mpiboot.launcher.prepare import Preparation

T = TypeVar("T")
Mask = Iterable[int]

_NEVER: Final = float("inf")
# Seconds that notifying the hosts that were ready may take; after a signal somebody waits.
_NOTIFYING: Final = 2.5
_NOTIFYING_AFTER_SIGNAL: Final = 1.0
# Seconds that cancelled work may take to clean up.
_TIDY: Final = 0.5
# Seconds in which hosts are to answer; and where the job's exit code depends on that.
_SECONDS: Final = 5.0
_SECONDS_FOR_PROOF: Final = 61.0
# Seconds that a reader of the output has after a signal, of the few that a pod's grace leaves.
_AFTER_SIGNAL: Final = 2.0
# ... and until it is told that it is waited for.
_TELL_AFTER: Final = 5.0


class LauncherProcess:
    """The loop, the signals and the streams of the process.

    ``signalled`` is the first signal that ends it, where ``receive`` did not handle that otherwise;
    ``hurries`` where one has ended the job: not much time is left.
    """

    def __init__(self, settings: Settings, mask: Mask, stderr: OutputWriter) -> None:
        """Take signals in from now on; ``mask`` is the signal mask that programs get."""
        self.settings, self.mask, self.stderr = settings, tuple(mask), stderr
        self.began = time.monotonic()
        self.signalled, self.hurries = 0, False
        self.program_state = "has not started"
        self.receive: Callable[[int, bool], None] = self.note_signal
        self.wrong: Exception | None = None
        self._main = asyncio.current_task()
        self._news = asyncio.Event()
        self.handles = Handles(self._break)
        self._signals = Signals()
        programs.reap_from_now_on()
        programs.reap()  # what ended before SIGCHLD had its default action again sends no signal
        self.handles.on(self._signals.handle, self._read_signals, vital=True)

    def _break(self, wrong: Exception) -> None:
        self.wrong = wrong
        if self._main:
            self._main.cancel()

    def _read_signals(self) -> None:
        for number, by_terminal in self._signals.read():
            if number == signal.SIGCHLD:
                programs.reap()
            else:
                self.receive(number, by_terminal)

    def note_signal(self, number: int, _by_terminal: bool = False) -> None:  # noqa: FBT001, FBT002
        """Note a signal that ends what is waited for."""
        if number in ENDING:
            self.signalled = self.signalled or number
            self.wake()
        else:
            message = f"{signal_name(number)} is not forwarded: the program {self.program_state}"
            log.info("signal", message)

    def wake(self) -> None:
        """Let ``until`` look again."""
        self._news.set()

    async def until(self, done: Callable[[], object], deadline: float = _NEVER) -> None:
        """Wait until something is so, or a time of the monotonic clock has come."""
        while not done() and (left := deadline - time.monotonic()) > 0:
            self._news.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), None if left == _NEVER else left)

    async def in_time(
        self, work: Coroutine[Any, Any, T], seconds: float, what: str = "a query"
    ) -> T | None:
        """Do work after the job, which a signal ends; None where it failed or was late."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self.wake())
        deadline = time.monotonic() + seconds
        await self.until(lambda: task.done() or self.signalled, deadline)
        task.cancel()
        await asyncio.wait({task}, timeout=_TIDY)
        if not task.done() or task.cancelled():
            return None
        try:
            return task.result()
        except Exception as wrong:  # noqa: BLE001 - how the job ended is known
            log.failed(what, wrong)
        return None

    async def hold(self) -> None:
        """Stay for a look inside, until the time is over or a signal ends it."""
        seconds = self.settings.hold_on_failure
        if not seconds:
            return
        log.info("hold", f"keeping the pod for {lasting(seconds)}; SIGTERM ends it")
        await self.until(lambda: self.signalled, time.monotonic() + seconds)

    async def write_last(self, code: int) -> int:
        """Wait until all is written to stderr; give the exit code with which to end."""
        lost = await self.flush(self.stderr, "stderr")
        if code or not self.stderr.left:  # a log that can't be written fails no job
            return code
        log.write_termination(self.settings.termination_log, f"output: {lost}\n")
        signalled = BY_SIGNAL + self.signalled if self.signalled else 0
        return signalled or int(BY_REFERENCE["output"].code)

    async def flush(self, writer: OutputWriter, stream: str) -> str:
        """Wait until all is written, as long as somebody reads; after a signal not for long.

        Returns:
            What is lost, in a sentence; nothing where who reads has gone, and wants no more.
        """

        def hurries() -> bool:
            return bool(self.signalled or self.hurries)

        loop = asyncio.get_running_loop()
        writer.notify = lambda: loop.call_soon_threadsafe(self.wake)
        writer.end()
        await self.until(lambda: writer.done or hurries(), time.monotonic() + _TELL_AFTER)
        if not writer.done and not hurries():
            log.info(
                "output",
                f"mpirun has ended; {writer.left} bytes of its {stream} wait for their reader",
            )
            await self.until(lambda: writer.done or hurries())
        await self.until(lambda: writer.done, time.monotonic() + _AFTER_SIGNAL)
        if writer.wrong:
            return f"{stream} can't be written ({writer.wrong.strerror}): output of the job is lost"
        if not writer.left:
            return ""
        return f"{writer.left} bytes of {stream} were not read in time and are lost"

    def record(self, fields: Mapping[str, Any], times: tuple[float, ...] = ()) -> None:
        """Write the job's record, where one is wanted; ``times`` are when its phases ended."""
        path = self.settings.job_record
        if not path:
            return
        try:
            phases = report.phases((self.began, *times, time.monotonic()))
            report.write_record(path, {**fields, **({"phases": phases} if phases else {})})
        except Exception as error:  # noqa: BLE001 - how the job ended is known
            log.failed("what records the job's end", error)


def run(
    settings: Settings, mask: Mask, work: Callable[[LauncherProcess], Coroutine[Any, Any, int]]
) -> NoReturn:
    """Do a launcher's work, and end this process with its exit code.

    Args:
        settings: the launcher's.
        mask: the signal mask that programs get; signals are blocked.
        work: gives the exit code.
    """
    stderr = OutputWriter()
    log.write_by(stderr.write)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.set_exception_handler(_warn)
    code = loop.run_until_complete(_run(settings, mask, stderr, work))
    # Threads that still wait for something are waited for by nobody, and nothing is tidied up.
    os._exit(code)


async def _run(
    settings: Settings,
    mask: Mask,
    stderr: OutputWriter,
    work: Callable[[LauncherProcess], Coroutine[Any, Any, int]],
) -> int:
    launcher = LauncherProcess(settings, mask, stderr)
    report.remove_record(settings.job_record)
    try:
        code = await work(launcher)
    except (Exception, asyncio.CancelledError) as problem:  # noqa: BLE001 - the last line of defence
        wrong = launcher.wrong or problem
        log.error("bug", f"[bug] the launcher failed: {type(wrong).__name__}: {wrong}")
        code = int(ExitCode.BUG)
        log.error("ended", f"launcher ended: exit {code} (bug)", exit=code, reference="bug")
    launcher.receive = launcher.note_signal
    code = await launcher.write_last(code)
    log.write_by(None)
    return code


def _warn(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Warn of an exception that nobody awaits: what only watches a job never ends it."""
    wrong = context.get("exception")
    if isinstance(wrong, Exception):
        log.failed("a task beside the job", wrong)
    else:
        log.debug("bug", f"asyncio: {context['message']}")


def new_attempt(wanted: WorkerExit | Auto, environ: Mapping[str, str]) -> str:
    """Name this launcher for the workers, which are notified of its end: host, start time, number.

    Args:
        wanted: the setting ``worker_exit``.
        environ: this pod's environment, with a mark inside a launch or below a command.

    Returns:
        Empty if this is only a part of a job, as a launcher by ``kubectl exec`` or below a
        command, which others may follow.
    """
    part = environ.get(LAUNCH_ID) or environ.get(ATTEMPT)
    unknown = wanted is AUTO and not process.is_containers_own()
    if wanted is WorkerExit.NEVER or part or unknown:
        return ""
    return f"{process.host_and_time()}@{os.urandom(4).hex()}"


class LaunchRun:
    """One launch, from the gate to the report.

    ``program`` is the user's line, by which a command above knows the launch.
    """

    def __init__(
        self, launcher: LauncherProcess, preparation: Preparation, program: tuple[str, ...]
    ) -> None:
        self._launcher, self._preparation, self._program = launcher, preparation, program
        self._settings = launcher.settings
        self._above = os.environ.get(COMMAND_DIR, "")  # the folder of the command above
        self._run_times: tuple[float, ...] = ()  # when mpirun was started, and when it had ended
        self._transport: dict[str, Any] = {}  # what carried the job's data

    async def run(self) -> int:
        """Wait for the hosts, run mpirun to its end, report; give the exit code."""
        launcher = self._launcher
        task = asyncio.ensure_future(self._preparation.run())
        task.add_done_callback(lambda _: launcher.wake())
        await launcher.until(lambda: task.done() or launcher.signalled)
        if launcher.signalled:  # nothing is started yet, so nothing is to be ended
            task.cancel()
            await asyncio.wait({task}, timeout=_TIDY)
            return await self._ended_before_start()
        wrong = task.exception()
        if isinstance(wrong, Exception):
            return await self._not_started(self._preparation.failed(wrong))
        spec, workers, environ = task.result()
        # What is started from here on belongs to this launch.
        os.environ.clear()
        os.environ.update(environ)
        raise_soft_limits()
        if self._settings.supervise is Switch.OFF:
            return await self._become(spec, workers)
        return await self._run(spec, workers)

    async def _ended_before_start(self) -> int:
        """End after a signal; another one ends the notification of the workers, too."""
        launcher = self._launcher
        number, launcher.signalled = launcher.signalled, 0
        failure = by_signal(number)
        message = failure.message.partition(": ")[2].rstrip()
        log.info("signal", message, signal=signal_name(number))
        return await self._not_started(failure)

    async def _not_started(self, failure: Failure) -> int:
        launcher = self._launcher
        self._report_to_command(failure.code if failure.held else 0)
        seconds = time.monotonic() - launcher.began
        log_path = self._settings.termination_log
        launcher.record(report.log_not_started(failure, seconds, log_path))
        limit = _NOTIFYING if failure.held else _NOTIFYING_AFTER_SIGNAL
        await launcher.in_time(self._preparation.notify(failure), limit)
        if failure.held and not launcher.signalled:
            await launcher.hold()
        return failure.code

    async def _run(self, spec: LaunchSpec, workers: Workers) -> int:
        """Start mpirun, wait for its end, and report how it ended."""
        launcher = self._launcher
        mpirun = Mpirun(spec, os.environ, launcher.handles, launcher.stderr, workers)
        launcher.handles.fail, launcher.receive = mpirun.fail, mpirun.receive
        shell: GuardShell | None = None
        try:
            # As PID 1 this process takes everything along when it is killed. Elsewhere the guard is
            # there before mpirun is: neither is ever without the other.
            if os.getpid() != 1:
                shell = start_guard(spec.folder, os.environ, self._settings.log_format)
            mpirun.start(launcher.mask)
            started = time.monotonic()
        except OSError as wrong:
            launcher.receive = launcher.note_signal
            if shell is not None:
                dismiss_guard(shell)
            return await self._ended(spec, workers, not_startable(spec.argv[0], wrong))
        try:
            state = await mpirun.result()
        except BaseException:
            # Never leave an mpirun without a parent: nobody would end it, or say how it ended.
            await mpirun.end_left()
            raise
        self._run_times = (started, time.monotonic())
        launcher.signalled, launcher.program_state = mpirun.signalled, "has ended"
        launcher.receive = launcher.note_signal
        left = await mpirun.end_left()
        if left:
            log.debug("killed", f"ended {counted(left, 'process', 'processes')} that mpirun left")
        if shell is not None:
            dismiss_guard(shell)
        launcher.hurries = state.signal != 0
        verdict = await self._judged(spec, state, workers)
        return await self._ended(spec, workers, verdict, mpirun.streams.stdout)

    async def _judged(self, spec: LaunchSpec, state: Job, workers: Workers) -> Verdict:
        """Judge a job that has ended, by what its hosts answer now; say what carried its data."""
        launcher, hosts = self._launcher, list[HostFacts]()
        counters: dict[str, Any] | None = None
        if needs_hosts(state):
            program = state.lacking.what if state.lacking else spec.program
            asking = workers.after_job(program, hosts.append)
            counters = await launcher.in_time(asking, _SECONDS, "what asks the hosts")
        found = judge(state, tuple(hosts), spec.warned)
        if found.by_signal and found.code == BY_SIGNAL + signal.SIGHUP and os.environ.get(TIMED):
            found = Verdict(0, "", "its time was over")
        if spec.prove and not found.code:
            strict = spec.prove == ProveTransport.FAIL.value
            seconds = _SECONDS_FOR_PROOF if strict else _SECONDS
            counting = workers.count(strict=strict)
            counters = await launcher.in_time(counting, seconds, "what reads the counters")
        self._transport = {"planned": spec.transport}
        try:
            if spec.prove and not found.by_signal:
                self._transport = report.log_transport(spec, found.code, counters)
        except Exception as wrong:  # noqa: BLE001 - how the job ended is known
            log.failed("what tells what carried the data", wrong)
        if not found.code and report.fails(spec, self._transport):
            return verdict_of("transport", self._transport["message"])
        return found

    async def _become(self, spec: LaunchSpec, workers: Workers) -> int:
        """Become mpirun; a signal that comes before that ends this process."""
        launcher = self._launcher
        await asyncio.sleep(0)  # what has come is read
        if launcher.signalled:
            return await self._ended_before_start()
        await launcher.flush(launcher.stderr, "stderr")
        log.write_by(None)
        try:
            become(spec.argv, os.environ, launcher.mask)
        except OSError as wrong:
            return await self._ended(spec, workers, not_startable(spec.argv[0], wrong))

    async def _ended(
        self,
        spec: LaunchSpec,
        workers: Workers,
        verdict: Verdict,
        stdout: OutputWriter | None = None,
    ) -> int:
        """Notify the workers first, as a reader of the output that stalls must hold none of them.

        Args:
            spec: what was started.
            workers: its hosts.
            verdict: how it ended.
            stdout: mpirun's, where something of it may be left.
        """
        launcher = self._launcher
        hold = 0.0 if verdict.by_signal else self._settings.hold_on_failure
        if spec.attempt and not launcher.signalled:
            notifying = workers.notify(spec.attempt, hold, report.why(verdict))
            await launcher.in_time(notifying, _SECONDS, "what notifies the workers")
        if stdout:
            verdict = await self._passed_on(stdout, verdict)
        seconds = time.monotonic() - launcher.began
        self._report_to_command(0 if verdict.by_signal else verdict.code)
        fields = report.log_end(verdict, spec, seconds, self._settings.termination_log)
        fields |= {"hosts": spec.all_hosts, "transport": self._transport}
        launcher.record(fields, (*spec.times, *self._run_times))
        remove_key(spec.folder)
        if verdict.code and not verdict.by_signal and not launcher.signalled:
            await launcher.hold()
        return verdict.code

    async def _passed_on(self, stdout: OutputWriter, verdict: Verdict) -> Verdict:
        """Pass on the last of mpirun's stdout; what is lost of it is no success."""
        launcher = self._launcher
        lost = await launcher.flush(stdout, "stdout")
        if not lost:
            return verdict
        log.warning("output", lost)
        if verdict.code:
            return replace(verdict, evidence=(*verdict.evidence, lost))
        if launcher.signalled:
            return Verdict(BY_SIGNAL + launcher.signalled, "", lost, by_signal=True)
        return verdict_of("output", lost)

    def _report_to_command(self, code: int) -> None:
        """Write for the command above how this launch ended; ``code`` is 0 after a signal."""
        if self._above:
            with suppress(OSError), Path(self._above, LAUNCHES).open("a", encoding="utf-8") as file:
                file.write(json.dumps((self._program, code)) + "\n")
