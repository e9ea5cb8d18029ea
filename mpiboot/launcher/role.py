"""The launcher role: launches mpirun, or runs any other command once.

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
import shlex
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn, TextIO

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.facts import PodFacts, facts_from_json, facts_to_json
from mpiboot.core.launch_spec import (
    ATTEMPT,
    BY_SIGNAL,
    COMMAND_DIR,
    LAUNCHES,
    LOGINS,
    PASSED_BY,
    WANTED,
)
from mpiboot.core.model import AUTO, Finding, Level, MpiFamily
from mpiboot.core.settings import ROWS, Resolved, Settings
from mpiboot.hosts import host_shell
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.job import program_words
from mpiboot.launcher import run, shims
from mpiboot.supervisor import signals
from mpiboot.supervisor.job import signal_name
from mpiboot.supervisor.processes import remove_key
from mpiboot.supervisor.signals import ENDING, has_terminal
from mpiboot.system import files, process, programs
from mpiboot.system.spawn import DEFAULT_PATH
from mpiboot.system.threads import in_thread

# Few of a host's objects are in cycles: by default, the collector took 10 % of the gate's CPU time
# with 1,000 hosts.
_GC_THRESHOLD: Final = 50_000


def be_launcher(
    resolved: Resolved,
    program: tuple[str, ...],
    environ: Mapping[str, str],
    measure: Callable[[], None] | None = None,
) -> NoReturn:
    """Run the launcher, and exit with the job's exit code.

    Args:
        resolved: the settings.
        program: the user's command line.
        environ: this pod's environment.
        measure: measures the network before a launch, if requested.

    Raises:
        MpibootError: the job can't be started, or the program doesn't exist.
    """
    refuse_removed(resolved)
    environ, program = shims.without_command(environ, program)
    if prints(resolved, program, environ):
        process.replace(program, environ)
    _check_words(program, environ)
    process.check_threads()
    if launch := program_words.is_mpirun(program[0]):
        program = shims.hydra_by_path(program, environ.get("PATH", DEFAULT_PATH))
    if measure and launch and _is_first(environ):
        measure()
    mask = signals.block()
    os.environ.clear()
    os.environ.update(environ)
    (_launch if launch else run_once)(resolved, program, environ, mask)


def _is_first(environ: Mapping[str, str]) -> bool:
    """Whether no other launch of the same command has measured the network."""
    if folder := environ.get(COMMAND_DIR):
        try:
            (Path(folder) / "measured").touch(exist_ok=False)
        except OSError:
            return False
    return True


def refuse_removed(resolved: Resolved) -> None:
    """Refuse removed settings, which the job would silently ignore.

    Raises:
        MpibootError: ``usage``.
    """
    if resolved.removed:
        first, *others = (replace(item, level=Level.FAIL) for item in resolved.removed)
        raise MpibootError(first, tuple(others))


def _check_words(program: tuple[str, ...], environ: Mapping[str, str]) -> None:
    """Check for several words that the manifest has as one argument.

    Raises:
        MpibootError: ``usage``; the first argument is no program.
    """
    misquoted = program_words.misquoted_args(program)
    if misquoted:
        hint = "pass each word as an argument"
        if shutil.which(program[0], path=environ.get("PATH", "")) is None:
            raise error("usage", misquoted, hint=hint)
        log.finding(Finding("usage", Level.WARN, misquoted, hint=hint))


def prints(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> bool:
    """Whether mpirun only prints something: ``mpirun -n 2 --version``, or ``mpirun``."""
    if not program_words.is_mpirun(program[0]) or len(program) == 1:
        return program_words.is_mpirun(program[0])
    # Imported here: most lines don't need these tables.
    from mpiboot.job.mpirun_line import PRINTING  # noqa: PLC0415

    options = (word.lstrip("-").partition("=")[0] for word in program if word.startswith("-"))
    if PRINTING.isdisjoint(options):
        return False
    from mpiboot.job import mpirun_line  # noqa: PLC0415

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
    attempt = run.new_attempt(resolved.settings.worker_exit, environ)

    async def launch(launcher: run.LauncherProcess) -> int:
        # Imported in a thread: signals are handled meanwhile.
        prepare = await in_thread(importlib.import_module, "mpiboot.launcher.prepare")
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        preparation = prepare.Preparation(resolved, program, attempt, own)
        return await run.LaunchRun(launcher, preparation, program).run()

    run.run(resolved.settings, mask, launch)


# Polls for what is left of a signalled command's process group.
_POLL_S: Final = 0.1
_NOTIFY_S: Final = 10.0
# Launches below the command have the same grace, then kill what ignores signals.
_EXTRA_GRACE_S: Final = 10.0
# Longer commands are shortened in the log.
_MAX_SHOWN: Final = 60
_NOT_STARTED: Final = 127  # the shell's code for it
_PIPE: Final = "(a pipe without `set -o pipefail`?)"
_PASSED_BY: Final = (
    "its mpirun was not mpiboot's (did it reset PATH?): mpiboot waited for the hosts, but set "
    "nothing for mpirun; call `mpiboot mpirun ...` there"
)


def failed_launch(text: str) -> tuple[str, int]:
    """Find the last launch that failed, unless the same line succeeded later.

    Args:
        text: a JSON line of each launch: its words, and the exit code, which is 0 also after a
            signal.

    Returns:
        mpirun's name and the exit code, which is 0 if none failed.
    """
    latest: dict[tuple[str, ...], int] = {}
    for words, code in map(json.loads, text.splitlines()):
        latest.pop(tuple(words), None)
        latest[tuple(words)] = code
    failed = [(Path(words[0]).name, code) for words, code in latest.items() if code]
    return failed[-1] if failed else ("", 0)


def _text(path: str) -> str:
    """Read a file; empty if it doesn't exist."""
    with suppress(OSError):
        return Path(path).read_text("utf-8", "replace")
    return ""


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
    attempt = run.new_attempt(settings.worker_exit, environ)
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
    files.make_fifo(folder / WANTED)
    # Matches any host, until the gate knows the job's.
    shims.write_ssh(folder, path, "?*")

    async def work(launcher: run.LauncherProcess) -> int:
        return await CommandRun(launcher, resolved, program, env, str(folder)).run()

    run.run(settings, mask, work)


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
    line = shlex.join(program)
    if len(line) > _MAX_SHOWN or "\n" in line:
        line = f"{program[0]} ..."
    return f"`mpirun {line}` runs it on the job's hosts"


class CommandRun:
    """A command that is no mpirun, until its process group has ended; ``folder`` is its own."""

    def __init__(
        self,
        launcher: run.LauncherProcess,
        resolved: Resolved,
        program: tuple[str, ...],
        environ: Mapping[str, str],
        folder: str,
    ) -> None:
        self._launcher, self._resolved = launcher, resolved
        self._program, self._environ = program, environ
        self._folder, self._attempt = folder, environ.get(ATTEMPT, "")
        self._child = 0
        self._code: int | None = None
        self._ended_by, self._deadline = 0, float("inf")
        # A terminal signals the whole foreground group; other signals reach this process alone.
        self._send = os.kill if has_terminal() else os.killpg
        self._gate: asyncio.Future[None] | None = None

    async def run(self) -> int:
        """Run the command and report its end; return the exit code.

        That is 128+n if a signal ended it, or it exited with 0 after one.
        """
        launcher = self._launcher
        # What is there at the end is of a launch below, or of the command itself.
        log.write_termination(launcher.settings.termination_log, "")
        code = await self._run()
        launcher.receive, launcher.program_state = launcher.note_signal, "has ended"
        launcher.hurries = bool(self._ended_by)
        logs_in, launched = self._gate is not None, self._has(LAUNCHES)
        failed, status = failed_launch(_text(f"{self._folder}/{LAUNCHES}"))
        message, reference, hint = f"{self._program[0]} ended with {code}", "", ""
        if code:
            reference = "signal" if self._ended_by else "program"
        elif failed:
            reference = "launch"
            message += f", but its {failed} ended with {status} {_PIPE}"
        if not launched and self._has(PASSED_BY):
            hint = _PASSED_BY
        elif not launched and not logs_in:
            hint = f"it called no mpirun (sudo, su, env -i hide one): {ranks_hint(self._program)}"
        why = self._explain(f"{reference}: {message}", reference, hint)
        if self._gate:
            self._gate.cancel()
        if self._attempt and (launched or logs_in) and not launcher.signalled:
            logins = await in_thread(importlib.import_module, "mpiboot.launcher.logins")
            notifying = logins.notify(self._resolved, self._attempt, why if code else "")
            await launcher.in_time(notifying, _NOTIFY_S, "what notifies the workers")
        remove_key(f"{self._folder}/{LOGINS}")
        report, mark = log.info, ""
        if reference in ("program", "launch"):
            report, mark = (log.error if code else log.warning), f"[{reference}] "
        report("program", f"{mark}{message}", code=code, hint=hint)
        reason = "; ".join(filter(None, (message, hint)))
        seconds = round(time.monotonic() - launcher.began, 3)
        end = {"exit": code, "reference": reference, "reason": reason, "seconds": seconds}
        launcher.record(end)
        log.ended(code, reference if code else "")
        return code

    def _has(self, file: str) -> bool:
        return Path(self._folder, file).exists()

    async def _run(self) -> int:
        launcher, program = self._launcher, self._program
        process.raise_soft_limits()
        with suppress(OSError):
            # Opened for writing too, the FIFO has no EOF.
            flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
            wanted = os.open(f"{self._folder}/{WANTED}", flags)
            launcher.handles.on(wanted, lambda: self._start_gate(wanted))
        launcher.receive = self._receive
        try:
            child = programs.start(
                program,
                self._environ,
                mask=launcher.mask,
                path=shutil.which(program[0], path=self._environ.get("PATH")) or program[0],
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
        self._launcher.wake()

    def _receive(self, number: int, _by_terminal: bool) -> None:  # noqa: FBT001
        log.info("signal", f"got {signal_name(number)}")
        self._signal(number)
        if number in ENDING:
            self._ended_by = self._ended_by or number
            self._deadline = time.monotonic() + self._resolved.settings.grace + _EXTRA_GRACE_S
            self._launcher.wake()

    def _signal(self, number: int) -> bool:
        """Signal the program, or its process group; False if it has ended."""
        try:
            self._send(self._child, number)
        except ProcessLookupError:
            return False
        return True

    def _start_gate(self, wanted: int) -> None:
        """Start the gate for the command's ssh."""
        self._launcher.handles.off(wanted)
        os.close(wanted)
        self._gate = asyncio.ensure_future(self._serve_logins())

    async def _serve_logins(self) -> None:
        # Imported here: few commands call ssh for a host of the job.
        from mpiboot.launcher import logins  # noqa: PLC0415

        files = logins.CommandLogins(Path(self._folder), shims.cleared(self._environ))
        await logins.serve(self._resolved, files, self._attempt)

    def _explain(self, message: str, reference: str, hint: str) -> str:
        """Write the termination message, unless a launch below has; return why in one line.

        Args:
            message: how the command ended.
            reference: the failure's name in the manual; empty on success.
            hint: what to do.
        """
        path = self._launcher.settings.termination_log
        below = log.read_termination(path).splitlines()
        if below and reference in ("program", "signal"):
            return f"{message}; {below[0]}"
        lines = [message.removeprefix(": "), hint and f"-> {hint}", *below]
        shown = filter(None, lines if reference or hint else ())
        log.write_termination(path, "".join(f"{line}\n" for line in shown))
        return message


def gather_facts(resolved: Resolved, environ: Mapping[str, str], pid: int) -> str:
    """Gather this pod's facts as JSON, and behind a NUL its answer to a query that workers get.

    The launcher does so in a child: pyroute2 takes memory, which the exit frees.
    """
    # Imported here: only the launcher's child needs them.
    from mpiboot.network import records  # noqa: PLC0415
    from mpiboot.worker import answer, facts  # noqa: PLC0415

    found = facts.gather(resolved, environ, sshd="", pid=pid, mpi=None)
    counts = answer.answer("counts", *records.COUNTERS)
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
    text = ""
    try:
        text = gather_facts(resolved, environ, os.getppid())
    except BaseException:  # noqa: BLE001 - the boundary of this process
        text = traceback.format_exc()
    with suppress(OSError), os.fdopen(writer, "w", encoding="utf-8") as file:
        file.write(text)
    os._exit(0)
