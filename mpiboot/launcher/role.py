"""The launcher role: launches mpirun, or runs any other command once, in one asyncio loop.

The launcher is PID 1 of its container. Signals are blocked from the first line and taken by a
thread; programs are started by ``posix_spawn`` and reaped here; what may block is done by threads
that nobody joins, and standard output, standard error and the log are written by threads, so
nothing stops the loop.

Any other command is a child of the launcher's event loop, and is never parsed. A private folder,
first on its PATH, has mpiboot under each of mpirun's names: every call below the command is a
launch with its own gate, flags and verdict. The launcher forwards signals, reaps orphans and exits
with the command's status. The folder's ``ssh`` waits for its host: the first call starts a gate
here (``logins``).
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO, TypeVar

from mpiboot.core import log
from mpiboot.core.checks import BY_REFERENCE, MpibootError
from mpiboot.core.facts import Host, HostAnswer, PodFacts, facts_from_json, facts_to_json
from mpiboot.core.launch_spec import (
    ATTEMPT,
    BY_SIGNAL,
    COMMAND_DIR,
    LAUNCH_ID,
    LAUNCHES,
    LOGINS,
    PASSED_BY,
    WANTED,
)
from mpiboot.core.model import AUTO, Auto, Level, MpiFamily, WorkerExit
from mpiboot.core.settings import ROWS, Resolved, Settings
from mpiboot.core.wording import lasting
from mpiboot.hosts import host_shell
from mpiboot.job import program_words
from mpiboot.launcher import shims
from mpiboot.supervisor import report, signals
from mpiboot.supervisor.job import signal_name
from mpiboot.supervisor.output import OutputWriter
from mpiboot.supervisor.processes import remove_key
from mpiboot.supervisor.signals import ENDING, Handles, Signals, has_terminal
from mpiboot.system import files, process, programs
from mpiboot.system.programs import in_thread
from mpiboot.system.spawn import DEFAULT_PATH

T = TypeVar("T")
Mask = Iterable[int]

_NEVER: Final = float("inf")
# Seconds that cancelled work may take to clean up.
_TIDY_S: Final = 0.5
# Seconds that a reader of the output has after a signal, of the few that a pod's grace leaves.
_DRAIN_S: Final = 2.0
# ... and until the log says that output waits for it.
_LOG_S: Final = 5.0


class LauncherProcess:
    """The loop, the signals and the streams of the process.

    ``signalled`` is the first signal that ends it, where ``receive`` did not handle that otherwise;
    ``hurries`` where one has ended the job: not much time is left.
    """

    def __init__(self, settings: Settings, mask: Mask) -> None:
        """Take signals in from now on; ``mask`` is the signal mask that programs get."""
        self.settings, self.mask, self.stderr = settings, tuple(mask), OutputWriter()
        log.write_by(self.stderr.write)
        self.began = time.monotonic()
        self.signalled, self.hurries = 0, False
        self.receive: Callable[[int, bool], None] = self.note_signal
        self.wrong: Exception | None = None
        self._main = asyncio.current_task()
        self._news = asyncio.Event()
        self.handles = Handles(self._break)
        self._signals = Signals()
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
            log.info("signal", f"{signal_name(number)} is not forwarded: no program runs yet")

    def wake(self) -> None:
        """Wake ``until``."""
        self._news.set()

    async def until(self, done: Callable[[], object], deadline: float = _NEVER) -> None:
        """Wait for ``done``, or for a deadline on the monotonic clock."""
        while not done() and (left := deadline - time.monotonic()) > 0:
            self._news.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), None if left == _NEVER else left)

    async def until_signal(
        self, work: Coroutine[Any, Any, T], seconds: float = _NEVER
    ) -> asyncio.Future[T]:
        """Do work until it is done, a signal comes or its time is over, which cancel it."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self.wake())
        deadline = time.monotonic() + seconds
        await self.until(lambda: task.done() or self.signalled, deadline)
        task.cancel()
        await asyncio.wait({task}, timeout=_TIDY_S)
        return task

    async def in_time(
        self, work: Coroutine[Any, Any, T], seconds: float, what: str = "a query"
    ) -> T | None:
        """Do work after the job, which a signal ends; None where it failed or was late."""
        task = await self.until_signal(work, seconds)
        try:
            return task.result() if task.done() and not task.cancelled() else None
        except Exception as wrong:  # noqa: BLE001 - how the job ended is known
            log.failed(what, wrong)
        return None

    async def hold(self) -> None:
        """Keep the pod for debugging, until a time limit or a signal."""
        seconds = self.settings.hold_on_failure
        if not seconds or self.signalled:
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
            What is lost, in a sentence; empty where the reader has closed the stream.
        """

        def hurries() -> bool:
            return bool(self.signalled or self.hurries)

        loop = asyncio.get_running_loop()
        writer.notify = lambda: loop.call_soon_threadsafe(self.wake)
        writer.end()
        await self.until(lambda: writer.done or hurries(), time.monotonic() + _LOG_S)
        if not writer.done and not hurries():
            log.info(
                "output",
                f"mpirun has ended; {writer.left} bytes of its {stream} wait for their reader",
            )
            await self.until(lambda: writer.done or hurries())
        await self.until(lambda: writer.done, time.monotonic() + _DRAIN_S)
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
            log.failed("writing the job record", error)


Work = Callable[[LauncherProcess], Coroutine[Any, Any, int]]


def run(settings: Settings, mask: Mask, work: Work) -> NoReturn:
    """Do a launcher's work, and end this process with its exit code.

    Args:
        settings: the launcher's.
        mask: the signal mask that programs get; signals are blocked.
        work: gives the exit code.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.set_exception_handler(_warn)
    code = loop.run_until_complete(_run(settings, mask, work))
    # Threads that still wait for something are waited for by nobody, and nothing is tidied up.
    os._exit(code)


async def _run(settings: Settings, mask: Mask, work: Work) -> int:
    launcher = LauncherProcess(settings, mask)
    report.remove_record(settings.job_record)
    try:
        code = await work(launcher)
    except (Exception, asyncio.CancelledError) as problem:  # noqa: BLE001 - the last line of defence
        wrong = launcher.wrong or problem
        log.error("bug", f"[bug] the launcher failed: {type(wrong).__name__}: {wrong}")
        code = BY_REFERENCE["bug"].code
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


# Few of a host's objects are in cycles: by default, the collector took 10 % of the gate's CPU time
# with 1,000 hosts.
_GC_THRESHOLD: Final = 50_000


def be_launcher(
    resolved: Resolved,
    program: tuple[str, ...],
    environ: Mapping[str, str],
) -> NoReturn:
    """Run the launcher, and exit with the job's exit code.

    Args:
        resolved: the settings.
        program: the user's command line.
        environ: this pod's environment.

    Raises:
        MpibootError: the job can't be started, or the program doesn't exist.
    """
    refuse_removed(resolved)
    environ, program = shims.without_command(environ, program)
    if prints(resolved, program, environ):
        process.replace(program, environ)
    process.check_threads()
    if launch := program_words.is_mpirun(program[0]):
        program = shims.hydra_by_path(program, environ.get("PATH", DEFAULT_PATH))
    mask = signals.block()
    os.environ.clear()
    os.environ.update(environ)
    (_launch if launch else run_once)(resolved, program, environ, mask)


def refuse_removed(resolved: Resolved) -> None:
    """Refuse removed settings, which the job would silently ignore.

    Raises:
        MpibootError: ``usage``.
    """
    if resolved.removed:
        first, *others = (replace(item, level=Level.FAIL) for item in resolved.removed)
        raise MpibootError(first, tuple(others))


def prints(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> bool:
    """Whether mpirun only prints something: ``mpirun -n 2 --version``, or ``mpirun``."""
    if not program_words.is_mpirun(program[0]) or len(program) == 1:
        return program_words.is_mpirun(program[0])
    # Imported here: most commands don't need these tables.
    from mpiboot.job import mpirun_line  # noqa: PLC0415

    options = (word.lstrip("-").partition("=")[0] for word in program if word.startswith("-"))
    if mpirun_line.PRINTING.isdisjoint(options):
        return False
    family = resolved.settings.mpi
    if family is AUTO:
        found = programs.detect_mpi(environ, program_words.called(program))
        family = found.family if found else MpiFamily.UNKNOWN
    return bool(mpirun_line.read(program, family).prints)


def _launch(
    resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str], mask: set[int]
) -> NoReturn:
    """Run a launch.

    Raises:
        OSError: no process can be started.
    """
    if folder := environ.get(COMMAND_DIR):
        with suppress(OSError):  # gone once the command has ended
            (Path(folder) / LAUNCHES).touch()
    own = fork_facts(resolved, environ)
    attempt = new_attempt(resolved.settings.worker_exit, environ)

    async def launch(launcher: LauncherProcess) -> int:
        # Imported in a thread: signals are handled meanwhile.
        prepare = await in_thread(importlib.import_module, "mpiboot.launcher.prepare")
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        code: int = await prepare.LaunchRun(launcher, resolved, program, attempt, own).run()
        return code

    run(resolved.settings, mask, launch)


# Polls for what is left of a signalled command's process group.
_POLL_S: Final = 0.1
_NOTIFY_S: Final = 10.0
_NOTIFY_ENDED_S: Final = 5.0
# Launches below the command have the same grace, then kill what ignores signals.
_EXTRA_GRACE_S: Final = 10.0
_NOT_STARTED: Final = 127  # the shell's code for it
_PIPE: Final = "(a pipe without `set -o pipefail`?)"
_PASSED_BY: Final = (
    "its mpirun was not mpiboot's (did it reset PATH?): mpiboot waited for the hosts, but set "
    "nothing for mpirun; call `mpiboot mpirun ...` there"
)


def read_launches(text: str) -> Iterator[tuple[list[str], int, list[tuple[str, str]]]]:
    """Read a JSON line of each launch: words, exit code (0 after a signal), hosts with users."""
    for line in text.splitlines():
        with suppress(ValueError):  # a full disk has cut it
            yield json.loads(line)


def failed_launch(text: str) -> tuple[str, int]:
    """Find the last launch that failed, unless the same line succeeded later.

    Args:
        text: as for ``read_launches``.

    Returns:
        mpirun's name and the exit code, which is 0 if none failed.
    """
    latest: dict[tuple[str, ...], int] = {}
    for words, code, _ in read_launches(text):
        latest.pop(tuple(words), None)
        latest[tuple(words)] = code
    failed = [(Path(words[0]).name, code) for words, code in latest.items() if code]
    return failed[-1] if failed else ("", 0)


def run_once(
    resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str], mask: set[int]
) -> NoReturn:
    """Run a command once; every mpirun below it is mpiboot.

    Raises:
        MpibootError: the program doesn't exist, or no private folder can be made.
    """
    settings, path = resolved.settings, environ.get("PATH", DEFAULT_PATH)
    process.lookup(program, environ)
    folder = _make_folder(settings, environ)
    attempt = new_attempt(settings.worker_exit, environ)
    agent = shims.AGENT if os.access(shims.AGENT, os.X_OK) else ""
    own = shims.command_variables(environ, agent)
    env = {
        **environ,
        **own,
        **flags(resolved),
        "PATH": os.pathsep.join((str(folder / "bin"), path)),
        "MPIBOOT_ROLE": "launcher",
        COMMAND_DIR: str(folder),
        **({ATTEMPT: attempt} if attempt else {}),
    }
    ours = {name: value for name, value in env.items() if name.startswith("MPIBOOT_")}
    shims.write_command(folder, own | ours, path)
    if outer := environ.get(COMMAND_DIR):  # whose end notifies the workers
        (folder / LAUNCHES).symlink_to(Path(outer, LAUNCHES))
    files.make_fifo(folder / WANTED)
    # Matches any host, until the gate knows the job's.
    shims.write_ssh(folder, path, "?*")

    run(settings, mask, lambda launcher: CommandRun(launcher, resolved, program, env, folder).run())


def flags(resolved: Resolved) -> dict[str, str]:
    """Give this command's flags as variables, for the launches below it."""
    return {row.variable: resolved.flags[row.name] for row in ROWS if row.name in resolved.flags}


def _make_folder(settings: Settings, environ: Mapping[str, str]) -> Path:
    """Choose a command's private folder; remove those of commands that have ended.

    Raises:
        MpibootError: ``runtime-folder``; no folder can be written.
    """
    named = environ.get("TMPDIR", "")
    above = files.runtime_dir(settings.runtime_dir, os.getuid(), "command", tmpdir=named)
    own = above / str(os.getpid())
    for path in above.iterdir():
        if path == own or not Path("/proc", path.name).exists():
            shutil.rmtree(path, ignore_errors=True)
    return own


def ranks_hint(program: tuple[str, ...]) -> str:
    """Suggest the mpirun line that runs a command as ranks."""
    return f"`mpirun {program[0]} ...` runs it on the job's hosts"


@dataclass(eq=False)
class CommandRun:
    """A command that is no mpirun; after SIGTERM, until its process group has ended.

    ``folder`` is its own.
    """

    launcher: LauncherProcess
    resolved: Resolved
    program: tuple[str, ...]
    environ: Mapping[str, str]
    folder: Path

    def __post_init__(self) -> None:
        self._attempt, self._child = self.environ.get(ATTEMPT, ""), 0
        self._notifies = self._attempt and COMMAND_DIR not in os.environ
        self._code: int | None = None
        self._ended_by, self._deadline = 0, _NEVER
        # A terminal signals the whole foreground group; other signals reach this process alone.
        self._send = os.kill if has_terminal() else os.killpg
        self._gate: asyncio.Future[None] | None = None

    async def run(self) -> int:
        """Run the command and report its end; return the exit code.

        That is 128+n if a signal ended it, or it exited with 0 after one.
        """
        launcher = self.launcher
        # What is there at the end is of a launch below, or of the command itself.
        log.write_termination(launcher.settings.termination_log, "")
        code = await self._run()
        launcher.receive, launcher.hurries = launcher.note_signal, bool(self._ended_by)
        logs_in, launched, launches = self._gate is not None, False, ""
        with suppress(OSError):
            launches = (self.folder / LAUNCHES).read_text("utf-8", "replace")
            launched = True
        failed, status = failed_launch(launches)
        message, reference, hint = f"{self.program[0]} ended with {code}", "", ""
        if code:
            reference = "signal" if self._ended_by else "program"
        elif failed:
            reference = "launch"
            message += f", but its {failed} ended with {status} {_PIPE}"
        if not launched and (self.folder / PASSED_BY).exists():
            hint = _PASSED_BY
        elif not launched and not logs_in:
            hint = f"it called no mpirun (sudo, su, env -i hide one): {ranks_hint(self.program)}"
        why = self._explain(f"{reference}: {message}", reference, hint, launches)
        if self._gate:
            self._gate.cancel()
        if self._notifies and (launched or logs_in) and not launcher.signalled:
            await self._notify(launches, why if code else "", listed=logs_in)
        remove_key(str(self.folder / LOGINS))
        write, mark = log.info, ""
        if reference in ("program", "launch"):
            write, mark = (log.error if code else log.warning), f"[{reference}] "
        write("program", f"{mark}{message}", code=code, hint=hint)
        reason = "; ".join(filter(None, (message, hint)))
        seconds = round(time.monotonic() - launcher.began, 3)
        end = {"exit": code, "reference": reference, "reason": reason, "seconds": seconds}
        launcher.record(end)
        if reference == "program" and not failed:  # else a launch below has held the pod
            await launcher.hold()
        log.ended(code, reference if code else "")
        return code

    async def _notify(self, launches: str, why: str, *, listed: bool) -> None:
        """Notify the workers of these launches, and the listed ones, of the command's end."""
        logins = await in_thread(importlib.import_module, "mpiboot.launcher.logins")
        hosts = {
            Host(name, user=user) for *_, many in read_launches(launches) for name, user in many
        }
        notifying = logins.notify(self.resolved, self._attempt, why, hosts, listed=listed)
        seconds = _NOTIFY_ENDED_S if self._ended_by else _NOTIFY_S
        await self.launcher.in_time(notifying, seconds, "notifying workers")

    async def _run(self) -> int:
        launcher, program = self.launcher, self.program
        process.raise_file_limit()
        with suppress(OSError):
            # Opened for writing too, the FIFO has no EOF.
            flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
            wanted = os.open(self.folder / WANTED, flags)
            launcher.handles.on(wanted, lambda: self._start_gate(wanted))
        launcher.receive = self._receive
        try:
            child = programs.start(
                program,
                self.environ,
                mask=launcher.mask,
                path=shutil.which(program[0], path=self.environ.get("PATH")) or program[0],
                own_group=self._send is os.killpg,
            )
        except OSError as error:
            message = f"[program-missing] {program[0]}: {error.strerror}"
            log.error("program-missing", message)
            return _NOT_STARTED
        self._child = child.pid
        child.on_end(self._has_ended)
        log.info("command", f"{program[0]} runs once, in this pod; {ranks_hint(program)}")
        # Launches below have their grace even if the command exits at once.
        await launcher.until(lambda: self._code is not None or self._ended_by)
        while self._code is None or (self._ended_by and self._signal(0)):
            await asyncio.sleep(_POLL_S)
            if time.monotonic() >= self._deadline:
                log.warning("killed", f"{program[0]} did not end in time; killing it")
                self._signal(signal.SIGKILL)
                break
        return self._code or (BY_SIGNAL + self._ended_by if self._ended_by else 0)

    def _has_ended(self, status: int) -> None:
        self._code = process.exit_status(status)
        self.launcher.wake()

    def _receive(self, number: int, by_terminal: bool) -> None:  # noqa: FBT001
        log.info("signal", f"got {signal_name(number)}")
        if not by_terminal:
            self._signal(number)
        if number == signal.SIGTERM:  # others may be the program's own, which then goes on
            self._ended_by = number
            self._deadline = time.monotonic() + self.resolved.settings.grace + _EXTRA_GRACE_S
            self.launcher.wake()

    def _signal(self, number: int) -> bool:
        """Signal the program, or its process group; False if it has ended."""
        try:
            self._send(self._child, number)
        except OSError as wrong:  # of another user's process (sudo) only that it is there
            return isinstance(wrong, PermissionError)
        return True

    def _start_gate(self, wanted: int) -> None:
        """Start the gate for the command's ssh."""
        self.launcher.handles.off(wanted)
        os.close(wanted)
        self._gate = asyncio.ensure_future(self._serve_logins())

    async def _serve_logins(self) -> None:
        # Imported here: few commands call ssh for a host of the job.
        from mpiboot.launcher import logins  # noqa: PLC0415

        files = logins.CommandLogins(self.folder, shims.cleared(self.environ))
        await logins.serve(self.resolved, files, self._attempt)

    def _explain(self, message: str, reference: str, hint: str, launches: str) -> str:
        """Write the termination message, unless a launch below has; return why in one line.

        Args:
            message: how the command ended.
            reference: the failure's name in the manual; empty on success.
            hint: what to do.
            launches: those below; the message of one that failed, and was repeated well, goes.
        """
        if not reference and not any(code for _, code, _ in read_launches(launches)):
            return ""
        path = self.launcher.settings.termination_log
        below = log.read_termination(path).splitlines()
        if below and reference in ("program", "signal"):
            return f"{message}; {below[0]}"
        lines = [message.removeprefix(": "), hint and f"-> {hint}", *below]
        shown = filter(None, lines if reference else ())
        log.write_termination(path, "".join(f"{line}\n" for line in shown))
        return message


def gather_facts(resolved: Resolved, environ: Mapping[str, str], pid: int) -> str:
    """Gather this pod's facts as JSON, and behind a NUL its answer to a query that workers get.

    The launcher does so in a child: pyroute2 takes memory, which the exit frees.
    """
    # Imported here: only the launcher's child needs them.
    from mpiboot.network import records  # noqa: PLC0415
    from mpiboot.worker import answer, facts  # noqa: PLC0415

    found = facts.gather(resolved, environ, mpi=None, pid=pid)
    counts = ""
    with suppress(OSError, ValueError, RuntimeError):  # unknown then
        counts = answer.answer(("counts", *records.COUNTERS))
    return f"{facts_to_json(found)}\0mpiboot-answer {counts}"


def read_facts(text: str) -> tuple[PodFacts, HostAnswer]:
    """Parse the output of ``gather_facts``.

    Raises:
        RuntimeError: they could not be gathered.
    """
    text, _, answer = text.partition("\0")
    found = facts_from_json(text)
    if found is None:
        raise RuntimeError(f"can't gather this pod's facts: {text.strip()[-500:]}")
    return found, host_shell.read(answer)


def fork_facts(resolved: Resolved, environ: Mapping[str, str]) -> TextIO:
    """Fork a child that gathers this pod's facts, and give its output; before any thread starts.

    Raises:
        OSError: fork failed.
    """
    reader, writer = os.pipe()
    if not os.fork():
        _be_child(resolved, environ, writer)
    os.close(writer)
    return os.fdopen(reader, encoding="utf-8", errors="replace")


def _be_child(resolved: Resolved, environ: Mapping[str, str], writer: int) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        text = gather_facts(resolved, environ, os.getppid())
    except BaseException:  # noqa: BLE001 - the boundary of this process
        text = traceback.format_exc()
    with suppress(OSError), os.fdopen(writer, "w", encoding="utf-8") as file:
        file.write(text)
    os._exit(0)
