"""The launcher's own process from its first moment: prepares, starts mpirun, judges, ends.

Each phase takes the one event loop and the signals over from the one before it. Every end comes
by here: one that came while hosts were waited for, mpirun's, and a signal's in any phase.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as with_fields
from typing import Any, Final, NamedTuple

from mpiboot.core import log
from mpiboot.core.checks import BY_REFERENCE, ExitCode
from mpiboot.core.launch_names import (
    ATTEMPT,
    BY_SIGNAL,
    COMMAND_DIR,
    EARLIER,
    KEEP_KEY,
    LAUNCHES,
    LOGINS,
    OVER,
    PARENT,
    PASSED_BY,
    POOL,
    TIMED,
    WANTED,
)
from mpiboot.core.launch_spec import Failure, LaunchSpec, ParentOptions, Result, from_line
from mpiboot.core.records_json import read_record
from mpiboot.core.setting_types import ProveTransport
from mpiboot.core.wording import counted, lasting
from mpiboot.supervisor import report
from mpiboot.supervisor.agents import release_agents
from mpiboot.supervisor.asking import Queries, Request
from mpiboot.supervisor.mpirun import Mpirun
from mpiboot.supervisor.output import OutputWriter
from mpiboot.supervisor.processes import (
    GuardShell,
    dismiss_guard,
    remove_key,
    send,
    start_guard,
    wait_gone,
)
from mpiboot.supervisor.signals import ENDING, Signals, by_signal, has_terminal, name
from mpiboot.supervisor.state import HostFacts, State, Verdict
from mpiboot.supervisor.verdict import needs_hosts, not_startable, verdict_of
from mpiboot.supervisor.verdict import verdict as judge
from mpiboot.system import control_groups
from mpiboot.system.loop import EventLoop
from mpiboot.system.os_calls import (
    exit_status,
    raise_soft_limits,
    reap,
    socket_pair,
)
from mpiboot.system.spawn import replace, spawn

_PIECE: Final = 65536
# Seconds that a child has to tell the hosts that were ready; after a signal somebody waits.
_TELLS: Final = 2.5
_TELLS_OF_SIGNAL: Final = 1.0


def ended_by(number: int) -> Failure:
    """Say that a signal ends the launcher before mpirun is started; give the judgement."""
    failure = by_signal(number)
    log.info("signal", failure.message.partition(": ")[2].rstrip(), signal=name(number))
    return failure


def died(status: int, oom_kills: int) -> Failure:
    """Judge a child that ended without a result.

    Args:
        status: its wait status.
        oom_kills: the processes that the kernel had killed for memory before it was started.
    """
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        message = f"the process that waits for hosts ended with {code} and without a result"
        log.error("bug", f"[bug] {message}: nothing was started")
        return Failure(int(ExitCode.BUG), "bug", f"bug: {message}: nothing was started\n")
    message = f"the process that waits for hosts was killed by {name(-code)}"
    if -code == signal.SIGKILL:
        limit = control_groups.used_up(oom_kills)
        if limit:
            row, message = BY_REFERENCE["launcher-memory"], f"{message} as {limit}"
            message += ": nothing was started"
            log.error(row.reference, f"[{row.reference}] {message}", hint=row.hint)
            text = f"{row.reference}: {message}\n-> {row.hint}\n"
            return Failure(int(row.code), row.reference, text)
        message += "; the launcher's memory limit?"
    log.error("killed", f"{message}: nothing was started")
    return Failure(BY_SIGNAL - code, "killed", f"killed: {message}: nothing was started\n")


@dataclass(eq=False)
class Preparation:
    """The child that waits for the hosts and makes the plan, and the signals that come meanwhile.

    It hands over one line, and then answers queries. A signal that comes before that line
    ends the launcher: nothing is started yet, so nothing has to be ended but that child. It gets a
    moment to tell the hosts that were ready, so that the next launcher can say why this one ended.
    """

    pid: int
    reader: int
    loop: EventLoop
    signals: Signals
    oom_kills: int

    def __post_init__(self) -> None:
        self._data = b""
        self._result: Result | None = None
        self._told: list[int] = []  # the signals that say that the launcher is to end
        self._ended = False
        os.set_blocking(self.reader, False)

    def result(self) -> Result:
        """Wait for what the child hands over, or for what comes before that."""
        self.loop.on(self.reader, self._read, vital=True)
        self.loop.on(self.signals.handle, self._read_signals, vital=True)
        self._reap()  # an end from before SIGCHLD had its default action again sends no more signal
        while self._result is None:
            self.loop.wait(None)
        self.loop.off(self.reader)
        return self._result

    def queries(self) -> Queries:
        """Let the child answer queries from now on."""
        return Queries(self.loop, self.reader)

    def end_child(self) -> int:
        """Let a child that failed tell the hosts that were ready, and end it with what it runs.

        Returns:
            The first signal that has come; 0 without one.
        """
        before = len(self._told)
        if before and not self._ended:
            with suppress(OSError):
                os.kill(self.pid, self._told[0])
        deadline = time.monotonic() + (_TELLS_OF_SIGNAL if before else _TELLS)
        # A signal, or another one, ends it at once.
        while not self._ended and len(self._told) == before and time.monotonic() < deadline:
            self.loop.wait(deadline)
        with suppress(OSError):  # it leads a group of its own
            os.killpg(self.pid, signal.SIGKILL)
        wait_gone([self.pid])
        return next(iter(self._told), 0)

    def _read(self) -> None:
        while self._result is None:
            try:
                data = os.read(self.reader, _PIECE)
            except BlockingIOError:
                return
            if not data:  # its end, and not this one, tells what has become of it
                self.loop.off(self.reader)
                return
            self._data += data
            if data.endswith(b"\n"):
                self._result = from_line(self._data)

    def _read_signals(self) -> None:
        for number, _ in self.signals.read():
            if number == signal.SIGCHLD:
                self._reap()
            elif number not in ENDING:
                message = f"{name(number)} is not forwarded: the program has not started"
                log.info("signal", message)
            else:
                self._told.append(number)
                if not isinstance(self._result, Failure):
                    self._result = ended_by(number)

    def _reap(self) -> None:
        for pid, status in reap():
            if pid == self.pid:
                self._ended = True
                self._read()
                self._result = self._result or died(status, self.oom_kills)


# Between two looks at what a signalled command has left.
_LOOK: Final = 0.1
_NOT_STARTED: Final = 127
_PIPE: Final = "(a pipe without `set -o pipefail`?)"
_PASSED_BY: Final = (
    "its mpirun was not mpiboot's (did it set PATH anew?): each host was waited for, and nothing "
    "else was set; `mpiboot mpirun ...` there does the rest"
)


@dataclass(eq=False)
class CommandRun:
    """A command that is no launch, to the end of all that its process group started.

    Each mpirun below has a parent of its own. This process passes signals on, reaps what is left
    to it, and ends with the command's status. A gate runs beside it once its ssh has asked.
    """

    program: tuple[str, ...]
    options: ParentOptions
    loop: EventLoop
    signals: Signals
    mask: set[signal.Signals | int]

    def __post_init__(self) -> None:
        self._child = 0
        self._gate = 0
        self.queries: Queries | None = None  # to the gate
        self.asked = False  # whether its ssh has asked for a host
        self._code: int | None = None
        self.told, self._deadline = 0, float("inf")
        # A terminal's own signals reach the whole foreground group; else each comes to us alone.
        self._send = os.kill if has_terminal() else os.killpg

    def run(self) -> int:
        """Start the program and stay until it ends.

        Returns:
            Its exit code; 128+n where a signal ended it, or it hid one.
        """
        self.loop.on(self.signals.handle, self._read_signals, vital=True)
        with suppress(OSError):
            # Opened for writing too, it has no end.
            self._wanted = os.open(self._file(WANTED), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            self.loop.on(self._wanted, self._start_gate)
        try:
            own_group = self._send is os.killpg
            self._child = spawn(self.program, os.environ, self.mask, own_group=own_group)
        except OSError as wrong:
            log.error("program-missing", f"[program-missing] {self.program[0]}: {wrong.strerror}")
            return _NOT_STARTED
        # The launches below may take their grace, also where the command ended at once.
        while self._code is None or (self.told and self._reaches(0)):
            self.loop.wait(time.monotonic() + _LOOK if self.told else None)
            if time.monotonic() >= self._deadline:
                log.warning("killed", f"{self.program[0]} did not end in time and is killed")
                self._reaches(signal.SIGKILL)
                break
        return self._code or (BY_SIGNAL + self.told if self.told else 0)

    def end_gate(self) -> None:
        """End the gate where it still runs."""
        if self._gate:
            send([self._gate], signal.SIGKILL)
            wait_gone([self._gate])

    def _file(self, name: str) -> str:
        return f"{self.options.folder}/{name}"

    def _start_gate(self) -> None:
        """Start the gate; it ends with this process, which holds the other end of its socket."""
        self.loop.off(self._wanted)
        self.asked = True
        own, its = socket_pair()
        self.queries = Queries(self.loop, own)
        streams = {0: None, 1: None, PARENT: its}
        try:
            self._gate = spawn(
                self.options.gate, os.environ, self.mask, streams=streams, own_session=True
            )
        except OSError as wrong:
            self._gate_failed(f"the gate can't be started: {wrong.strerror}")
        finally:
            os.close(its)

    def _gate_failed(self, message: str) -> None:
        """Write for the command's ssh that nobody waits for hosts, as the gate itself could not."""
        log.error("command", message)
        with suppress(OSError), open(self._file(OVER), "x", encoding="utf-8") as file:
            file.write(f"ssh: {message}\n")

    def _read_signals(self) -> None:
        for number, _ in self.signals.read():
            if number == signal.SIGCHLD:
                self._reap()
                continue
            log.info("signal", f"got {name(number)}")
            self._reaches(number)
            if number in ENDING:
                self.told = self.told or number
                self._deadline = time.monotonic() + self.options.grace

    def _reap(self) -> None:
        for pid, status in reap():
            if pid == self._child:
                self._code = exit_status(status)
            elif pid == self._gate:
                if self.queries:
                    self.queries.close()
                self._gate, self.queries = 0, None
                release_agents(self._file(LOGINS))
                if not os.path.exists(self._file(OVER)):
                    self._gate_failed(f"the gate ended with {exit_status(status)}")

    def _reaches(self, number: int) -> bool:
        """Signal the program, or its whole group; whether anybody was there."""
        try:
            self._send(self._child, number)
        except ProcessLookupError:
            return False
        return True


class EndedLaunch(NamedTuple):
    """How a launch below a command ended; ``code`` is 0 also where it was told to end.

    Its line is mpirun's ``name``, and ``words``, which are the same for the same words.
    """

    name: str
    words: str
    code: int


def failed_launch(text: str) -> EndedLaunch | None:
    """Find the last launch that failed, unless one of the same line went well after it.

    Args:
        text: what the launches have written, a line each.
    """
    last: dict[tuple[str, str], EndedLaunch] = {}
    for line in text.splitlines():
        ended = EndedLaunch(*json.loads(line))
        last.pop((ended.name, ended.words), None)
        last[ended.name, ended.words] = ended
    return next((ended for ended in reversed(last.values()) if ended.code), None)


def _text(path: str) -> str:
    """Read a file; empty where it isn't there."""
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""


def launches(folder: str) -> dict[str, float]:
    """Find the folders of the launches below a command, and when each was made."""
    times: dict[str, float] = {}
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.startswith("launch-"):
                times[entry.path] = entry.stat().st_mtime
    return times


def last_launch(folder: str) -> str:
    """Find the folder of the last launch below a command; empty where there is none."""
    times = launches(folder)
    return max(times, key=times.__getitem__, default="")


_NEVER: Final = float("inf")
# Seconds in which hosts are to answer; and where the job's exit code depends on that.
_SECONDS: Final = 5.0
_SECONDS_FOR_PROOF: Final = 61.0
# Seconds that a reader of the output has after a signal, of the few that a pod's grace leaves.
_AFTER_SIGNAL: Final = 2.0
# ... and until it is told that it is waited for.
_TELL_AFTER: Final = 5.0


class Parent:
    """The process that stays, whatever it was started for."""

    def __init__(
        self, options: ParentOptions, mask: set[signal.Signals | int], stderr: OutputWriter
    ) -> None:
        """Take signals in from now on; ``mask`` is the signal mask that programs get."""
        self._stderr = stderr
        self._options = options
        self._mask = mask
        self._above = os.environ.get(COMMAND_DIR, "")  # the folder of the command above
        self._began = time.monotonic()
        self._run_times: tuple[float, ...] = ()  # when mpirun was started, and when it had ended
        self._loop = EventLoop()
        self._signals = Signals()
        self._queries: Queries | None = None
        self._answers = 0  # the process that answers these
        self._told = 0  # the signal that said that this process is to end
        self._transport: dict[str, Any] = {}  # what carried the job's data
        self._hurries = False  # a signal has ended the job: not much time is left

    def launch(self, pid: int, reader: int) -> int:
        """Wait for the child that prepares, then run mpirun to its end; give the exit code."""
        report.remove_record(self._options.job_record)
        preparation = Preparation(pid, reader, self._loop, self._signals, self._options.oom_kills)
        result = preparation.result()
        if isinstance(result, Failure):
            self._not_started(result)
            self._told = preparation.end_child()
            if result.held:
                self._hold()
            return result.code
        # This process's own: what it starts from here on belongs to this launch.
        for unset in result.unset_env:
            os.environ.pop(unset, None)
        os.environ.update(result.set_env)
        return self._run(result, preparation)

    def beside(self, program: tuple[str, ...]) -> int:
        """Run a command that is no launch, and stay beside it; give its exit code."""
        options, what = self._options, program[0]
        report.remove_record(options.job_record)
        log_before = log.read_termination(options.termination_log)
        command = CommandRun(program, options, self._loop, self._signals, self._mask)
        code = command.run()
        self._hurries = bool(command.told)
        launched = os.path.exists(f"{options.folder}/{LAUNCHES}")
        failed = failed_launch(_text(f"{options.folder}/{LAUNCHES}"))
        message, reference = f"{what} ended with {code}", ""
        hint = ""
        if not launched and os.path.exists(f"{options.folder}/{PASSED_BY}"):
            hint = _PASSED_BY
        elif not launched and not command.asked and options.hint:
            hint = f"it called no mpirun: {options.hint}"
        if code:
            reference = "signal" if command.told else "program"
        elif failed:
            reference, hint = "launch", ""
            message += f", but its {failed.name} ended with {failed.code} {_PIPE}"
        why = self._explain(f"{reference}: {message}", reference, hint, log_before)
        logins = f"{options.folder}/{LOGINS}" if command.asked else ""
        if options.last_launches:
            by_gate = command.queries if os.path.isdir(logins) else None
            self._queries = by_gate or self._start_notifier(last_launch(options.last_launches))
            self._notify(os.environ.get(ATTEMPT, ""), why if code else "", hold=0.0)
        command.end_gate()
        self._end_queries()
        for folder in filter(None, (*launches(options.last_launches), logins)):
            remove_key(folder)
        say, mark = log.info, ""
        if reference in ("program", "launch"):
            say, mark = (log.error if code else log.warning), f"[{reference}] "
        say("program", f"{mark}{message}", code=code, hint=hint)
        end = Failure(code, reference, f"{reference}: {'; '.join(filter(None, (message, hint)))}\n")
        self._record(end, time.monotonic() - self._began)
        log.ended(code, reference if code else "")
        return code

    def _explain(self, message: str, reference: str, hint: str, before: str) -> str:
        """Write the termination message, unless a launch below has; why it failed, in one line.

        Args:
            message: how the command ended.
            reference: what that stands for; empty after a good end.
            hint: what to do.
            before: the termination message from before the command.
        """
        path = self._options.termination_log
        below = log.read_termination(path)
        if below == before:
            below = ""
        if below and reference in ("program", "signal"):
            return f"{message}; {below.splitlines()[0]}"
        lines = [message.removeprefix(": "), hint and f"-> {hint}", *below.splitlines()]
        if not reference:  # a launch that failed went well later
            lines = lines[:2] if hint else []
        lines.append(_text(f"{self._options.folder}/{EARLIER}").strip() if reference else "")
        if any(lines) or below:
            log.write_termination(path, "".join(f"{line}\n" for line in lines if line))
        return message

    def _start_notifier(self, folder: str) -> Queries | None:
        """Start what tells the workers of a launch of the end; None where that can't be."""
        if not os.path.exists(f"{folder}/{POOL}"):  # none is reached by SSH
            return None
        own, its = socket_pair()
        try:
            argv = (*self._options.notifier, folder)
            streams = {0: None, 1: None, PARENT: its}
            self._answers = spawn(argv, os.environ, self._mask, streams=streams)
        except OSError:
            os.close(own)
            return None
        finally:
            os.close(its)
        return Queries(self._loop, own)

    def _end_queries(self) -> None:
        if self._queries:
            self._queries.close()
        if self._answers:
            wait_gone([self._answers])

    def _run(self, spec: LaunchSpec, preparation: Preparation) -> int:
        """Start mpirun, wait for its end, and tell how it ended."""
        raise_soft_limits()
        if not spec.supervise:
            return self._become(spec, preparation)
        queries = self._queries = preparation.queries()
        oom_kills = self._options.oom_kills
        mpirun = Mpirun(
            spec, os.environ, self._loop, self._signals, self._stderr, queries, oom_kills
        )
        self._answers = mpirun.pool = preparation.pid
        shell: GuardShell | None = None
        try:
            # As PID 1 this process takes everything along when it is killed. Elsewhere the guard is
            # there before mpirun is: neither is ever without the other.
            if os.getpid() != 1:
                shell = start_guard(spec.folder, os.environ, self._options.log_format)
            mpirun.start(self._mask)
            started = time.monotonic()
        except OSError as wrong:
            if shell is not None:
                dismiss_guard(shell)
            return self._ended(spec, not_startable(spec.argv, os.environ, wrong))
        try:
            state = mpirun.result()
            self._run_times = (started, time.monotonic())
            self._told = mpirun.signalled
        except BaseException:
            # Never leave an mpirun without a parent: nobody would end it, or say how it ended.
            mpirun.end_left(running=True)
            raise
        left = mpirun.end_left()
        if left:
            log.debug("killed", f"ended {counted(left, 'process', 'processes')} that mpirun left")
        if shell is not None:
            dismiss_guard(shell)
        self._hurries = state.signal != 0
        verdict = self._judged(spec, state)
        return self._ended(spec, verdict, mpirun.streams.stdout)

    def _judged(self, spec: LaunchSpec, state: State) -> Verdict:
        """Judge a job that has ended, by what its hosts answer now; say what carried its data."""
        hosts: tuple[HostFacts, ...] = ()
        if needs_hosts(state):
            first = (state.first_rank, state.lacking, *state.losses)
            named = [item.host for item in first if item] + list(state.late_agents)
            program = state.lacking.what if state.lacking else spec.program
            lines = self._query(Request.EVIDENCE, program, *dict.fromkeys(named))
            hosts = tuple(read_record(HostFacts, json.loads(line)) for line in lines)
        found = judge(state, hosts, spec.warned)
        if found.by_signal and found.code == BY_SIGNAL + signal.SIGHUP and os.environ.get(TIMED):
            found = Verdict(0, "", "its time was over")
        if spec.prove and not found.code:
            # By the same sessions; with ``fail`` how it ended is known only then.
            strict = spec.prove == ProveTransport.FAIL.value
            over = bool(spec.attempt) and not strict
            seconds = _SECONDS_FOR_PROOF if strict else _SECONDS
            self._query(Request.COUNT, str(int(strict)), str(int(over)), seconds=seconds)
        self._transport = {"planned": spec.transport}
        try:
            if spec.prove and not found.by_signal:
                self._transport = report.tell_transport(spec, found.code)
        except Exception as wrong:  # noqa: BLE001 - how the job ended is known
            log.failed("what tells what carried the data", wrong)
        if not found.code and report.fails(spec, self._transport):
            return verdict_of("transport", self._transport["message"])
        return found

    def _become(self, spec: LaunchSpec, preparation: Preparation) -> int:
        """Become mpirun; a signal that comes before that ends this process."""
        if self._stay(time.monotonic()):
            failure = ended_by(self._told)
            self._not_started(failure)
            return failure.code
        # MPICH 4.0 takes the end of any child of its for an agent's.
        os.close(preparation.reader)
        wait_gone([preparation.pid])
        log.write_by(None)
        self._flush(self._stderr, "stderr")
        try:
            replace(spec.argv, os.environ, self._mask)
        except OSError as wrong:
            return self._ended(spec, not_startable(spec.argv, os.environ, wrong))

    def _tell_command(self, code: int) -> None:
        """Write for the command above how this launch ended; ``code`` is 0 where it was told to."""
        if self._options.line:
            with (
                suppress(OSError),
                open(f"{self._above}/{LAUNCHES}", "a", encoding="utf-8") as file,
            ):
                file.write(json.dumps((*self._options.line, code)) + "\n")

    def _not_started(self, failure: Failure) -> None:
        self._tell_command(failure.code if failure.held else 0)
        seconds = time.monotonic() - self._began
        report.tell_not_started(failure, seconds, self._options.termination_log)
        self._record(failure, seconds)

    def _record(
        self, end: Verdict | Failure, seconds: float, spec: LaunchSpec | None = None
    ) -> None:
        path = self._options.job_record
        if not path:
            return
        try:
            before = spec.times if spec else ()
            times = (self._began, *before, *self._run_times, time.monotonic())
            report.write_record(path, end, seconds, spec, self._transport, times)
        except Exception as wrong:  # noqa: BLE001 - how the job ended is known
            log.failed("what records the job's end", wrong)

    def _ended(
        self,
        spec: LaunchSpec,
        verdict: Verdict,
        stdout: OutputWriter | None = None,
    ) -> int:
        """Notify the workers first, as a reader of the output that stalls must hold none of them.

        Args:
            spec: what was started.
            verdict: how it ended.
            stdout: mpirun's, where something of it may be left.
        """
        hold = 0.0 if verdict.by_signal else self._options.hold_on_failure
        if spec.attempt:
            self._notify(spec.attempt, report.why(verdict), hold)
        if stdout:
            verdict = self._passed_on(stdout, verdict)
        seconds = time.monotonic() - self._began
        self._tell_command(0 if verdict.by_signal else verdict.code)
        report.tell(verdict, spec, seconds, self._options.termination_log)
        self._record(verdict, seconds, spec)
        self._end_queries()
        if not os.environ.get(KEEP_KEY):
            remove_key(spec.folder)
        if verdict.code and not verdict.by_signal:
            self._hold()
        return verdict.code

    def _passed_on(self, stdout: OutputWriter, verdict: Verdict) -> Verdict:
        """Pass on the last of mpirun's stdout; what is lost of it is no success."""
        lost = self._flush(stdout, "stdout")
        if not lost:
            return verdict
        log.warning("output", lost)
        if verdict.code:
            return with_fields(verdict, evidence=(*verdict.evidence, lost))
        if self._told:
            return Verdict(BY_SIGNAL + self._told, "", lost, by_signal=True)
        return verdict_of("output", lost)

    def write_last(self, code: int) -> int:
        """Wait until all is written to stderr; give the exit code with which to end."""
        lost = self._flush(self._stderr, "stderr")
        if code or not self._stderr.left:  # a log that can't be written fails no job
            return code
        log.write_termination(self._options.termination_log, f"output: {lost}\n")
        return BY_SIGNAL + self._told if self._told else int(BY_REFERENCE["output"].code)

    def _flush(self, writer: OutputWriter, name: str) -> str:
        """Wait until all is written, as long as somebody reads; after a signal not for long.

        Returns:
            What is lost, in a sentence; nothing where who reads has gone, and wants no more.
        """
        writer.end()
        self._loop.on(self._signals.handle, self._note_signals, vital=True)
        self._loop.on(writer.room, writer.take_note)
        deadline, tell_at = _NEVER, time.monotonic() + _TELL_AFTER
        while not writer.done and time.monotonic() < deadline:
            now = time.monotonic()
            if deadline == _NEVER and (self._told or self._hurries):
                deadline = now + _AFTER_SIGNAL
            if tell_at <= now:
                tell_at = _NEVER
                message = (
                    f"mpirun has ended; {writer.left} bytes of its {name} wait for their reader"
                )
                log.info("output", message)
            until = min(deadline, tell_at)
            self._loop.wait(None if until == _NEVER else until)
        self._loop.off(writer.room)
        if writer.wrong:
            return f"{name} can't be written ({writer.wrong.strerror}): output of the job is lost"
        if not writer.left:
            return ""
        return f"{writer.left} bytes of {name} were not read in time and are lost"

    def _hold(self) -> None:
        """Stay for a look inside, until the time is over or a signal ends it."""
        seconds = self._options.hold_on_failure
        if not seconds:
            return
        log.info(
            "hold",
            f"keeping the pod for {lasting(seconds)}; SIGTERM ends it",
        )
        self._stay(time.monotonic() + seconds)

    def _notify(self, attempt: str, why: str, hold: float) -> None:
        """Tell the workers how the job ended: ``why`` it failed, empty after a good end."""
        self._query(Request.NOTIFY, attempt, str(hold), why)

    def _query(self, request: Request, *words: str, seconds: float = _SECONDS) -> tuple[str, ...]:
        """Query the hosts after the job; a signal ends that."""
        if self._queries is None:
            return ()
        # Signals are passed on no more: mpirun has ended, or was never there.
        self._loop.on(self._signals.handle, self._note_signals, vital=True)
        return self._queries.wait_for(
            request, *words, seconds=seconds, must_end=lambda: self._told != 0
        )

    def _stay(self, deadline: float) -> int:
        """Stay until a time, and reap what is left to this process.

        Returns:
            The signal that ended it, or 0.
        """
        self._loop.on(self._signals.handle, self._note_signals, vital=True)
        while not self._told:
            self._loop.wait(deadline)
            if time.monotonic() >= deadline:
                break
        return self._told

    def _note_signals(self) -> None:
        for number, _ in self._signals.read():
            if number in ENDING:
                self._told = self._told or number
        reap()
