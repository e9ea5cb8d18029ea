"""The worker role: serve this pod over SSH, hand its environment on, leave nothing behind.

The process stays as the pod's small parent: no asyncio, no third party, no polling.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from mpiboot import executables, log
from mpiboot.errors import MpibootError, error
from mpiboot.job import platforms
from mpiboot.model import AUTO, SshKind, WorkerExit
from mpiboot.observe import pod
from mpiboot.settings import Resolved
from mpiboot.ssh_server import child as server
from mpiboot.ssh_server import openssh, sessions
from mpiboot.ssh_server import port as ports
from mpiboot.system import files, process
from mpiboot.worker import launchers, saving
from mpiboot.worker.launchers import Launchers
from mpiboot.worker.setup import (
    ENDING,
    WorkerSetup,
    embedded_argv,
    openssh_argv,
    settle,
    write_scripts,
)

# What observes this pod for the launcher; run after sshd listens, so that it delays nobody.
FACTS: Final = ("from mpiboot.cli import main; main()", "facts", "--write")

_PASSED_ON: Final = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGCONT)
_SIGNALS: Final = (signal.SIGCHLD, *ENDING, *_PASSED_ON)
_END: Final = sessions.GRACE + 3.0  # seconds that the end of everything may take


def run(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> int:
    """Serve until a signal comes or the program ends; the exit code of the container.

    Args:
        resolved: the settings.
        program: what runs beside the SSH server; empty for the server alone.
        environ: the pod's environment.

    Returns:
        The program's exit status (128+n for signal n). Without a program 0 after SIGTERM, which is
        how a worker ends in good order, and 128+n after another signal.

    Raises:
        MpibootError: the worker can't serve, with the reason.
    """
    loop = process.SignalLoop(_SIGNALS)
    try:
        setup = settle(resolved, environ, loop)
        code = 0
        if setup is not None:
            code = _serve(resolved, program, setup, loop)
        log.ended(code, ("program" if program else "signal") if code else "")
        return code
    finally:
        loop.close()


def _serve(
    resolved: Resolved, program: tuple[str, ...], setup: WorkerSetup, loop: process.SignalLoop
) -> int:
    try:
        worker = _Worker(resolved, program, setup, loop)
        try:
            return worker.serve()
        finally:
            worker.close()
    finally:
        setup.key.path.unlink(missing_ok=True)


class _Worker:
    """The pod's parent: the SSH server, its sessions, the program beside it, and every orphan."""

    def __init__(
        self,
        resolved: Resolved,
        program: tuple[str, ...],
        setup: WorkerSetup,
        loop: process.SignalLoop,
    ) -> None:
        wanted = resolved.settings.sshd
        self._asked = None if wanted is AUTO else wanted  # None: whichever can serve
        self._grace = resolved.settings.grace
        self._stop_signal = resolved.settings.stop_signal
        self._program = program
        self._setup = setup
        self._loop = loop
        text, left = sessions.environment(setup.environ)
        files.write_private(setup.folder / sessions.ENVIRONMENT, text)
        if left:
            names = ", ".join(sorted(left))
            log.warning("environment", f"not given to the ranks, as no shell can set it: {names}")
        self._sessions = sessions.Sessions(setup.folder, loop, self._grace, self._hear)
        settings = resolved.settings
        self._launchers = Launchers(
            setup.folder / launchers.FILE, settings.launcher_away, settings.timeout
        )
        # With a program beside the server it is that program's end that ends the worker.
        self._exit = WorkerExit.NEVER if program else platforms.worker_exit(settings, setup.environ)
        self._over = False  # the job has ended well
        self._server: server.SshServer | None = None
        self._login: tuple[int, server.ChildOutput] | None = None
        self._helpers: set[int] = set()
        self._program_pid = 0
        self._restarted = False
        self._because = ""  # why the running server is to be replaced by the embedded one
        self._reason = ""  # why the running server is the embedded one
        self._code: int | None = None
        self._kill_at: float | None = None
        self._saving = 0  # the process that waits for the ranks' end
        self._save_until: float | None = None
        self._told = 0  # the signal that ends this worker

    def serve(self) -> int:
        """Run until something ends this worker; then end the rest."""
        self._start()
        while self._code is None:
            self._turn()
        return self._finish(self._code)

    # -- the server ------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start OpenSSH's sshd, or the embedded server with the reason why."""
        setup = self._setup
        if self._asked is SshKind.EMBEDDED:
            self._start_embedded("MPIBOOT_SSHD=embedded")
            return
        conditions = openssh.conditions(setup.identity, setup.environ.get("PATH", ""))
        against = openssh.reason_against(conditions, setup.identity, str(setup.folder))
        if not against:
            try:
                self._start_openssh(conditions.path)
            except MpibootError as wrong:
                if wrong.finding.check != "program-missing":
                    raise
                against = wrong.finding.said
        if against:
            self._fall_back(against)

    def _fall_back(self, reason: str, evidence: tuple[str, ...] = ()) -> None:
        if self._asked is SshKind.OPENSSH:
            said = f"OpenSSH's sshd can't serve this pod: {reason}"
            raise error("sshd", said, evidence=evidence, hint=self._hint(SshKind.OPENSSH))
        self._start_embedded(reason)

    def _hint(self, failed: SshKind) -> str | None:
        """Say what to do where a server can't serve, and never to try what has failed already."""
        port = self._setup.port
        if not ports.can_bind(self._setup.address, port):
            return (
                f"port {port} can't be used here (with hostNetwork another program of the node may "
                "have it): name a free one with MPIBOOT_SSH_PORT, on launcher and workers alike"
            )
        return "its own lines say why" if failed is SshKind.EMBEDDED else None

    def _start_openssh(self, binary: str) -> None:
        setup = self._setup
        argv = openssh_argv(setup, binary)
        self._server = server.SshServer(SshKind.OPENSSH, argv, setup.environ, self._loop)

    def _start_embedded(self, reason: str) -> None:
        setup = self._setup
        self._reason = reason
        log.info("sshd", f"the embedded SSH server is used: {reason}", reason=reason)
        argv = embedded_argv(setup)
        self._server = server.SshServer(SshKind.EMBEDDED, argv, setup.environ, self._loop)

    def _listens(self, running: server.SshServer) -> None:
        """Tell that it listens, and start what waited for it."""
        setup = self._setup
        because = self._reason if running.kind is SshKind.EMBEDDED else ""
        state = pod.WorkerState(os.getpid(), running.kind.value, setup.address, setup.port, because)
        files.write_private(setup.folder / pod.STATE, json.dumps(asdict(state)))
        where = f"[{setup.address}]" if ":" in setup.address else setup.address
        log.info(
            "sshd",
            f"sshd ({running.kind.value}) listens on {where}:{setup.port} "
            f"as {setup.identity.user}, key {setup.key.fingerprint}",
            sshd=running.kind.value,
            address=setup.address,
            port=setup.port,
        )
        # What the helpers below meet is never the reason why this container ended.
        environ = {
            **setup.environ,
            "MPIBOOT_WORKER_DIR": str(setup.folder),
            "MPIBOOT_TERMINATION_LOG": os.devnull,
        }
        self._helpers.add(process.start(write_scripts(setup.folder, FACTS), environ))
        if running.kind is SshKind.OPENSSH and executables.find("ssh", environ.get("PATH", "")):
            self._prove(environ)
        if self._program and not self._program_pid:
            self._program_pid = process.start(self._program, setup.environ)

    def _prove(self, environ: Mapping[str, str]) -> None:
        """Log in to ourselves: what facts can't tell (PAM, sandboxes, user namespaces) shows."""
        setup = self._setup
        argv = openssh.login(setup.identity, setup.folder, setup.key, setup.address, setup.port)
        lines = server.ChildOutput(self._loop, lambda line: log.debug("sshd", f"login: {line}"))
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        pid = process.start(argv, environ, stdin=null, stdout=lines.writer, stderr=lines.writer)
        os.close(null)
        lines.started()
        self._login = (pid, lines)
        self._helpers.add(pid)

    def _proved(self, status: int, lines: server.ChildOutput) -> None:
        lines.read()
        lines.close()
        self._login = None
        if status == 0:
            log.debug("sshd", "a login to this worker itself works")
            return
        said = "; ".join(lines.last) or f"ssh ended with {process.exit_status(status)}"
        if self._asked is SshKind.OPENSSH or self._server is None or self._sessions.begun:
            # Where any session has begun, sshd lets people in, and replacing it would end them.
            log.warning("sshd", f"a login to this worker itself fails: {said}")
            return
        self._because = f"a login by OpenSSH's sshd fails: {said}"
        self._server.stop()

    def _server_ended(self, status: int) -> None:
        """Start it again once; a server that never listened makes room for the embedded one."""
        gone, self._server = self._server, None
        if gone is None:
            return
        words = gone.last_words()
        gone.close()
        if self._because:
            self._start_embedded(self._because)
            self._because = ""
            return
        how = f"it ended with {process.exit_status(status)}"
        how += f": {words[-1]}" if words else ""
        if gone.kind is SshKind.OPENSSH and not gone.listening:
            self._fall_back(how, words)
            return
        if not gone.listening or self._restarted:
            said = f"the SSH server ({gone.kind.value}) doesn't run: {how}"
            raise error("sshd", said, evidence=words, hint=self._hint(gone.kind))
        self._restarted = True
        log.warning(
            "sshd", f"the SSH server ({gone.kind.value}) ended by itself and is started again"
        )
        if self._asked is None:
            self._start_embedded(how)
        else:
            self._start()

    # -- the loop --------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Sleep until something happens, and deal with it."""
        listened = self._server is not None and self._server.listening
        limits = [
            limit
            for limit in (self._sessions.due, self._kill_at, self._save_until, self._leave_at)
            if limit is not None
        ]
        left = min(limits) - time.monotonic() if limits else None
        for number in self._loop.wait(left):
            self._signalled(number)
        # Children are reaped at every turn: cheap, and no signal can be missed.
        for pid, status in process.reap():
            self._child_ended(pid, status)
        running = self._server
        if running is not None and running.listening and (not listened):
            self._listens(running)
        self._sessions.step()
        self._leave()
        if self._save_until is not None and self._save_until <= time.monotonic():
            log.warning("signal", "its ranks did not end in time: they are stopped now")
            self._saved()
        if self._kill_at is not None and self._kill_at <= time.monotonic():
            self._kill_at = None
            self._send(signal.SIGKILL)

    def _hear(self, line: bytes) -> None:
        """Take in what a launcher tells of itself."""
        if line == b"over":
            self._over = True
            self._launchers.forget()
        else:
            self._launchers.hear(line, time.monotonic())

    @property
    def _leave_at(self) -> float | None:
        """When this worker ends because no launcher is there; None while one may be."""
        alone = self._exit == "after-job" and self._code is None and not len(self._sessions)
        return self._launchers.due if alone else None

    def _leave(self) -> None:
        """End with the job; the code is 0 also after one that failed: this worker did not."""
        if len(self._sessions):
            self._launchers.connected(time.monotonic())
        if self._code is not None:
            return
        due = self._leave_at
        if self._over and self._exit is not WorkerExit.NEVER:
            log.info("stop", "job succeeded; worker stops")
            self._code = 0
        elif due is not None and due <= time.monotonic():
            said = f"no launcher was here for {self._launchers.patience:g} s: this worker ends"
            log.info("stop", f"{said} and frees its node (MPIBOOT_WORKER_EXIT)")
            self._code = 0

    def _child_ended(self, pid: int, status: int) -> None:
        self._helpers.discard(pid)
        if pid == self._saving:
            self._saved()
        if self._server is not None and pid == self._server.pid:
            self._server_ended(status)
        elif self._login is not None and pid == self._login[0]:
            self._proved(status, self._login[1])
        elif pid == self._program_pid:
            self._program_pid = 0
            self._code = process.exit_status(status)
            log.info("program", f"{self._program[0]} ended with {self._code}", code=self._code)

    def _signalled(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        if self._program_pid:
            self._send(number)
            if number in ENDING and self._kill_at is None:
                log.info("signal", f"{signal.Signals(number).name} is passed on to the program")
                self._kill_at = time.monotonic() + self._grace
                self._save(number)
        elif number in ENDING and self._code is None and not self._told:
            log.info("signal", f"{signal.Signals(number).name}: worker stops")
            self._save(number)
        elif number in ENDING:
            self._saved()
            self._sessions.end_all(at_once=True)  # told twice: no more grace

    def _save(self, number: int) -> None:
        """Let the ranks of this pod save and end; without any, or without a grace, end at once."""
        self._told = number
        if not len(self._sessions) or not self._grace:
            self._saved()
            return
        self._save_until = time.monotonic() + self._grace
        setup = self._setup
        saving.tell_launchers(setup.token)
        self._saving = saving.stop_ranks(
            setup.folder, setup.environ, setup.token, self._stop_signal, self._grace
        )
        self._helpers.add(self._saving)

    def _saved(self) -> None:
        """End what is left: every rank has ended, or had its time."""
        self._saving, self._save_until = 0, None
        if self._program:
            self._sessions.end_all()
        elif self._code is None:
            self._code = 0 if self._told == signal.SIGTERM else 128 + self._told

    def _send(self, number: int) -> None:
        if self._program_pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._program_pid, number)

    def _finish(self, code: int) -> int:
        """End the server and every session; what can't be killed is left to the system."""
        # From here on the end of the server is what is wanted.
        gone, self._server = self._server, None
        if gone is not None:
            gone.stop()
        for pid in self._helpers:
            os.kill(pid, signal.SIGTERM)  # not reaped yet, so the number is still its own
        self._sessions.end_all()
        deadline = time.monotonic() + _END
        ending = gone.pid if gone is not None else 0
        while (ending or len(self._sessions)) and time.monotonic() < deadline:
            due = self._sessions.due
            limit = deadline if due is None else min(due, deadline)
            for number in self._loop.wait(limit - time.monotonic()):
                self._signalled(number)
            for pid, _ in process.reap():
                ending = 0 if pid == ending else ending
            self._sessions.step()
        if gone is not None:
            gone.close()
        return code

    def close(self) -> None:
        """Let go of what is held; after an error the server and the program are ended too."""
        self._send(signal.SIGTERM)
        if self._server is not None:
            self._server.stop()
            self._server.close()
            self._server = None
        self._sessions.close()
