"""The launcher's own process from its first moment: prepares, starts mpirun, judges, ends.

Each phase takes the one event loop and the signals over from the one before it. Every end comes
by here: one that came while hosts were waited for, mpirun's, and a signal's in any phase.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace as with_fields
from typing import Final

from mpiboot.core import log, termination
from mpiboot.core.launch_spec import (
    ATTEMPT,
    BY_SIGNAL,
    CLIENT_SOCKET,
    KEEP_KEY,
    Failure,
    LaunchSpec,
    ParentOptions,
    ScriptSpec,
    without_marks,
)
from mpiboot.core.wording import counted
from mpiboot.supervisor import guard
from mpiboot.supervisor.asking import ask
from mpiboot.supervisor.causes import CODES, not_startable, verdict_of
from mpiboot.supervisor.events import Verdict
from mpiboot.supervisor.judgement import proved
from mpiboot.supervisor.mpirun import Mpirun
from mpiboot.supervisor.output_writer import OutputWriter
from mpiboot.supervisor.preparation import Preparation, ended_by
from mpiboot.supervisor.processes import send, wait_gone
from mpiboot.supervisor.report import tell, tell_not_started
from mpiboot.supervisor.request import Request
from mpiboot.supervisor.script import ScriptRun, last_launch, launches
from mpiboot.supervisor.signals import ENDING, Signals
from mpiboot.supervisor.state import FAMILIES, UNKNOWN
from mpiboot.system.loop import EventLoop
from mpiboot.system.os_calls import raise_soft_limits, reap, remove_key, replace, start_listening

_NEVER: Final = float("inf")
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
        self._began = time.monotonic()
        self._loop = EventLoop()
        self._signals = Signals()
        self._client = 0  # mpiboot's own SSH client
        self._preparation: Preparation | None = None  # whose child is that client
        self._told = 0  # the signal that said that this process is to end
        self._hurries = False  # a signal has ended the job: not much time is left

    def launch(self, pid: int, reader: int) -> int:
        """Wait for the child that prepares, then run mpirun to its end; give the exit code."""
        preparation = Preparation(pid, reader, self._loop, self._signals, self._options.oom_kills)
        result = preparation.result()
        if isinstance(result, Failure):
            self._not_started(result)
            self._told = preparation.end_child()
            if result.held:
                self._hold()
            return result.code
        if isinstance(result, ScriptSpec):
            return self._after_gates(result, preparation)
        # This process's own: what it starts from here on belongs to this launch.
        for name in result.unset_env:
            os.environ.pop(name, None)
        os.environ.update(result.set_env)
        return self._run(result, preparation)

    def beside(self, program: tuple[str, ...], logins: str = "", earlier: str = "") -> int:
        """Stay beside a program that starts processes itself; give its exit code.

        Args:
            program: its line.
            logins: the folder of what its ssh reads; empty where it has none.
            earlier: what workers told of the attempt before; empty where nobody was asked.
        """
        grace, below = self._options.grace, self._options.last_launches
        log_before = termination.read(self._options.termination_log)
        script = ScriptRun(program, grace, self._loop, self._signals)
        code = script.run(self._mask)
        self._hurries = bool(script.told)
        said = f"{program[0]} ended with {code}"
        reference = ("signal" if script.told else "program") if code else ""
        why = self._why_script_failed(f"{reference}: {said}", log_before, earlier) if code else ""
        folder = (logins or last_launch(below)) if below else ""
        if folder:
            self._loop.on(self._signals.handle, self._note_signals, vital=True)
            self._tell_workers(folder, os.environ.get(ATTEMPT, ""), why, hold=0.0)
        for folder in filter(None, (*launches(below), logins)):
            remove_key(folder)
        failed = bool(code) and not script.told
        say, mark = (log.error, "[program] ") if failed else (log.info, "")
        say("program", f"{mark}{said}", code=code)
        log.ended(code, reference)
        return code

    def _why_script_failed(self, said: str, before: str, earlier: str) -> str:
        """Write the termination message where no mpirun below has; why it failed, in one line."""
        path = self._options.termination_log
        below = termination.read(path)
        if below and below != before:
            return f"{said}; {below.splitlines()[0]}"
        termination.write(path, "".join(f"{line}\n" for line in (said, earlier) if line))
        return said

    def _after_gates(self, spec: ScriptSpec, preparation: Preparation) -> int:
        """Run a program whose hosts are ready, and what serves its logins meanwhile."""
        os.environ.update(spec.set_env)
        try:
            if spec.client:
                self._client = start_listening(spec.client, os.environ, spec.folder, CLIENT_SOCKET)
        except OSError as wrong:
            log.error("script", f"mpiboot's own SSH client: {wrong.strerror}")
        finally:
            preparation.let_child_end()
        code = self.beside(spec.argv, spec.folder, spec.earlier)
        self._end_client()
        return code

    def _end_client(self) -> None:
        if self._client:
            send([self._client], signal.SIGTERM)
            wait_gone([self._client])
        if self._preparation:
            self._preparation.wait_for_child()

    def stay(self) -> int:
        """Keep the pod alive for `kubectl exec` until a signal comes; give the exit code."""
        log.info("role", "nothing to run: staying for `kubectl exec` until a signal comes")
        code = BY_SIGNAL + self._stay(None)
        log.ended(code, "signal")
        return code

    def _run(self, spec: LaunchSpec, preparation: Preparation) -> int:
        """Start mpirun, wait for its end, and tell how it ended."""
        raise_soft_limits(spec.open_files)
        mpirun = Mpirun(
            spec, os.environ, self._loop, self._signals, self._stderr, self._options.oom_kills
        )
        if spec.client_stays:
            self._preparation = preparation
            mpirun.client = preparation.pid
        shell: guard.GuardShell | None = None
        try:
            if spec.client:  # without a mark: it lives until the workers were asked or told
                environ = without_marks(os.environ)
                self._client = start_listening(spec.client, environ, spec.folder, CLIENT_SOCKET)
            if not spec.supervise:
                return self._become(spec, preparation)
            # As PID 1 this process takes everything along when it is killed. Elsewhere the guard is
            # there before mpirun is: neither is ever without the other.
            if os.getpid() != 1:
                shell = guard.start(spec.folder, os.environ, self._options.log_format)
            mpirun.start(self._mask)
        except OSError as wrong:
            if shell is not None:
                guard.dismiss(shell)
            verdict = not_startable(spec.argv, os.environ, wrong)
            return self._ended(spec, verdict)
        finally:
            if not spec.client_stays:
                preparation.let_child_end()
        try:
            verdict = mpirun.result()
            self._told = mpirun.signalled
            self._loop.on(self._signals.handle, self._note_signals, vital=True)
        except BaseException:
            # Never leave an mpirun without a parent: nobody would end it, or say how it ended.
            mpirun.end_left()
            raise
        left = mpirun.end_left()
        if left:
            log.debug("killed", f"ended {counted(left, 'process', 'processes')} that mpirun left")
        if shell is not None:
            guard.dismiss(shell)
        verdict = self._passed_on(mpirun.streams.stdout, verdict)
        lines: tuple[str, ...] = ()
        if verdict.code and not verdict.by_signal:
            family = FAMILIES.get(spec.family, UNKNOWN)
            # The program whose lack on some host may be what the verdict is about.
            lacks = not verdict.reference and verdict.code in family.lacking
            program = spec.program if lacks else ""
            # Evidence begins with the host that it is of, where it is of one.
            others = (line.partition(": ")[0] for line in verdict.evidence)
            asked = (verdict.host, program, verdict.signal, *others)
            lines = self._ask(spec.folder, Request.EVIDENCE, *asked)
            verdict, lines = proved(verdict, lines)
        return self._ended(spec, verdict, lines)

    def _become(self, spec: LaunchSpec, preparation: Preparation) -> int:
        """Become mpirun; a signal that comes before that ends this process.

        Raises:
            OSError: it can't be started.
        """
        if self._stay(time.monotonic()):
            failure = ended_by(self._told)
            self._not_started(failure)
            return failure.code
        # MPICH 4.0 takes the end of any child of its for an agent's.
        preparation.wait_for_child()
        log.write_by(None)
        self._flush(self._stderr, "stderr")
        for handle in self._options.open_folders:
            os.set_inheritable(handle, True)
        return replace(spec.argv, os.environ, self._mask)

    def _not_started(self, failure: Failure) -> None:
        tell_not_started(failure, time.monotonic() - self._began, self._options.termination_log)

    def _ended(self, spec: LaunchSpec, verdict: Verdict, lines: tuple[str, ...] = ()) -> int:
        seconds = time.monotonic() - self._began
        why = tell(verdict, spec, seconds, self._options.termination_log, lines)
        hold = 0.0 if verdict.by_signal else self._options.hold_on_failure
        if spec.attempt:
            self._tell_workers(spec.folder, spec.attempt, why, hold)
        self._end_client()
        if not os.environ.get(KEEP_KEY):
            remove_key(spec.folder)
        if verdict.code and not verdict.by_signal:
            self._hold()
        return verdict.code

    def _passed_on(self, stdout: OutputWriter | None, verdict: Verdict) -> Verdict:
        """Pass on the last of mpirun's stdout; what is lost of it is no success."""
        self._hurries = verdict.by_signal
        lost = self._flush(stdout, "stdout") if stdout else ""
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
        termination.write(self._options.termination_log, f"output: {lost}\n")
        return BY_SIGNAL + self._told if self._told else CODES["output"][0]

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
                said = f"mpirun has ended; {writer.left} bytes of its {name} wait for their reader"
                log.info("output", said)
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
            f"held for {seconds:g} s for a look inside (`kubectl exec`); SIGTERM ends it",
        )
        self._stay(time.monotonic() + seconds)

    def _tell_workers(self, folder: str, attempt: str, why: str, hold: float) -> None:
        """Tell the workers how the job ended: ``why`` it failed, empty after a good end."""
        if why:
            self._ask(folder, Request.FAILED, attempt, str(hold), why)
        else:
            self._ask(folder, Request.OVER)

    def _ask(self, folder: str, request: Request, *words: str) -> tuple[str, ...]:
        """Ask or tell the workers; agents report meanwhile, and a signal ends it."""
        try:
            return ask(folder, os.environ, self._loop, lambda: self._told != 0, request, *words)
        except Exception as wrong:  # noqa: BLE001 - how the job ended is known
            log.failed("what asks or tells the workers", wrong)
            return ()

    def _stay(self, deadline: float | None) -> int:
        """Stay until a time, and reap what is left to this process.

        Returns:
            The signal that ended it, or 0.
        """
        self._loop.on(self._signals.handle, self._note_signals, vital=True)
        while not self._told:
            self._loop.wait(deadline)
            if deadline is not None and time.monotonic() >= deadline:
                break
        return self._told

    def _note_signals(self) -> None:
        for number, _ in self._signals.read():
            if number in ENDING:
                self._told = self._told or number
        reap()
