"""The worker role: serve this pod over SSH, pass its environment on, leave nothing behind.

The process stays as the pod's small parent: no asyncio, no polling, and no third party but psutil,
once there are sessions.
"""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from mpiboot.core import log
from mpiboot.core.checks import MpibootError
from mpiboot.core.launch_spec import BY_SIGNAL, LAUNCH_ID, NOTICE
from mpiboot.core.model import WorkerExit
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import lasting
from mpiboot.ssh import sessions
from mpiboot.ssh.openssh import WorkerSetup
from mpiboot.ssh.sessions import MARK
from mpiboot.system import files, process, processes
from mpiboot.system.os_calls import exit_status
from mpiboot.system.spawn import reap
from mpiboot.worker.server import (
    ENDING,
    SignalledError,
    WorkerServer,
    gather_facts,
    prepare,
    write_scripts,
)

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
    with ExitStack() as ending:
        loop = process.SignalLoop(_SIGNALS)
        ending.callback(loop.close)
        try:
            setup = prepare(resolved, environ, loop)
        except SignalledError as came:
            code = _stopped_by(came.args[0])
        else:
            ending.callback(setup.key.path.unlink, missing_ok=True)
            worker = _WorkerProcess(resolved, program, setup, loop)
            ending.callback(worker.close)
            code = worker.serve()
    log.ended(code, ("program" if program else "signal") if code else "")
    return code


def _stopped_by(number: int) -> int:
    """Log that a signal ends this worker; its exit code."""
    log.info("signal", f"{signal.Signals(number).name}: worker stops")
    return 0 if number == signal.SIGTERM else BY_SIGNAL + number


class _WorkerProcess:
    """The pod's first process: SSH server, sessions, the program beside them, every orphan.

    Every end goes through one state, ENDING (``_deadline`` is set): the ranks save and the program
    ends, for the grace at most, while the server goes on. Then the sessions and the server end.
    """

    def __init__(
        self,
        resolved: Resolved,
        program: tuple[str, ...],
        setup: WorkerSetup,
        loop: process.SignalLoop,
    ) -> None:
        from mpiboot.job import platforms  # noqa: PLC0415 - not for facts

        self._settings = settings = resolved.settings
        self._gather = partial(gather_facts, resolved, setup)
        self._program = program
        self._setup = setup
        self._loop = loop
        text, left = sessions.environment(setup.environ)
        files.write_private(setup.folder / sessions.ENVIRONMENT, text)
        write_scripts(setup.folder)
        if left:
            names = ", ".join(sorted(left))
            log.warning("environment", f"not given to the ranks, as no shell can set it: {names}")
        self._sessions = sessions.Sessions(setup.folder, loop, settings.grace, self._read_line)
        path = setup.folder / ATTEMPTS
        self._launchers = Launchers(path, settings.launcher_away, settings.timeout)
        # With a program beside the server it is that program's end that ends the worker.
        self._exit = WorkerExit.NEVER if program else platforms.worker_exit(settings, setup.environ)
        self._server = WorkerServer(settings.sshd, setup, loop, self._sessions)
        self._facts = 0  # the process that gathers them
        self._program_pid = 0
        self._saving = 0  # the process that waits for the ranks' end
        self._deadline: float | None = None  # of ENDING
        self._code = 0

    def serve(self) -> int:
        """Serve until something ends this worker, and its ranks and program have ended."""
        self._server.start()
        while self._deadline is None or self._saving or self._program_pid:
            self._turn()
        return self._finish()

    def _turn(self) -> None:
        """Sleep until something happens, and deal with it."""
        dues = (self._sessions.due, self._server.due, self._deadline, self._idle_end)
        due = min((due for due in dues if due is not None), default=math.inf)
        for number in self._loop.wait(due - time.monotonic()):
            self._signalled(number)
        # Children are reaped at every turn: cheap, and no signal can be missed.
        for pid, status in reap():
            self._child_ended(pid, status)
        if self._server.began_to_listen():
            self._launchers.connected(time.monotonic())  # nobody could come before
            self._start_gathering()
            if self._program and not self._program_pid and self._deadline is None:
                self._program_pid = process.start(self._program, self._setup.environ)
        self._sessions.step()
        self._server.step()
        if len(self._sessions):
            self._launchers.connected(time.monotonic())
        now = time.monotonic()
        idle = self._idle_end
        if idle is not None and idle <= now:
            away = lasting(self._launchers.patience)
            log.info("stop", f"no launcher for {away}; worker stops (MPIBOOT_WORKER_EXIT)")
            self._end(0)
        if self._deadline is not None and self._deadline <= now:
            self._deadline = math.inf
            if self._saving:
                log.warning("signal", "ranks did not end within MPIBOOT_GRACE; stopping them")
            self._end_sessions()
            self._send(signal.SIGKILL)

    def _start_gathering(self) -> None:
        """Gather the facts in a child, once the server listens: that delays no login."""
        try:
            self._facts = self._loop.fork(self._gather)
        except OSError as why:
            log.warning("facts", f"this pod's facts can't be gathered: {why.strerror}")

    def _read_line(self, line: bytes) -> None:
        """Read a line that a launcher has sent."""
        if line != b"over":
            self._launchers.read_line(line, time.monotonic())
            return
        self._launchers.forget()
        if self._exit is not WorkerExit.NEVER and self._deadline is None:
            log.info("stop", "job succeeded; worker stops")
            self._end(0)

    @property
    def _idle_end(self) -> float | None:
        """When this worker ends because no launcher is there; None while one may be."""
        alone = self._deadline is None and not len(self._sessions)
        return self._launchers.due if alone and self._exit is WorkerExit.AFTER_JOB else None

    def _child_ended(self, pid: int, status: int) -> None:
        self._server.child_ended(pid, status)
        if pid == self._facts:
            self._facts = 0
        elif pid == self._saving:
            self._saving = 0
            self._end_sessions()
        elif pid == self._program_pid:
            self._program_pid = 0
            code = exit_status(status)
            log.info("program", f"{self._program[0]} ended with {code}", code=code)
            self._end(code)

    def _signalled(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        self._send(number)
        if number not in ENDING:
            return
        if self._deadline is not None:  # a second signal: no more grace
            self._end_sessions(at_once=True)
        elif self._program_pid:
            log.info("signal", f"{signal.Signals(number).name} is passed on to the program")
            self._end(0)
        else:
            self._end(_stopped_by(number))

    def _end(self, code: int) -> None:
        """Enter ENDING; a program's code replaces that of the signal that was passed on to it."""
        self._code = code
        if self._deadline is not None:
            return
        grace = self._settings.grace
        self._deadline = time.monotonic() + grace
        if len(self._sessions) and grace:
            notify_launchers(self._setup.token)
            try:
                self._saving = stop_ranks(self._setup, self._settings.stop_signal, grace)
            except MpibootError as error:
                log.warning("signal", f"ranks can't be signalled to save: {error.finding.message}")
        if not self._saving:
            self._end_sessions()

    def _end_sessions(self, *, at_once: bool = False) -> None:
        """End them, as their ranks have ended or get no more time."""
        if self._saving:
            os.kill(self._saving, signal.SIGTERM)  # not reaped yet: the number is still its own
        self._saving = 0
        self._sessions.end_all(at_once=at_once)

    def _send(self, number: int) -> None:
        if self._program_pid:
            with suppress(ProcessLookupError):
                os.kill(self._program_pid, number)

    def _finish(self) -> int:
        """End the server and every session; what can't be killed is left to the system."""
        gone = self._server.release()
        ending = 0
        if gone is not None:
            gone.stop()
            ending = gone.pid
        if self._facts:
            os.kill(self._facts, signal.SIGTERM)  # as above
        self._sessions.end_all()  # those too that began since the others were ended
        deadline = time.monotonic() + _END
        while (ending or len(self._sessions)) and time.monotonic() < deadline:
            due = min(self._sessions.due or deadline, deadline)
            for number in self._loop.wait(due - time.monotonic()):
                self._signalled(number)
            for pid, _ in reap():
                ending = 0 if pid == ending else ending
            self._sessions.step()
        if gone is not None:
            gone.close()
        return self._code

    def close(self) -> None:
        """Release everything; after an error end the server and the program too."""
        self._send(signal.SIGTERM)
        gone = self._server.release()
        if gone is not None:
            gone.stop()
            gone.close()
        self._sessions.close()


# A file in the worker's folder, a line for each launcher: its name, and how it ended.
ATTEMPTS: Final = "attempts"
_MAX_ATTEMPTS: Final = 100
# "launcher NAME STAYS" and "ended NAME HOLD REASON"; the reason is quoted as in a URL. A script one
# of whose launches failed may go on: its HOLD is "-".
_BEGUN: Final = re.compile(rb"launcher ([\w.@:-]{1,200}) ([01])")
_ENDED: Final = re.compile(rb"ended ([\w.@:-]{1,200}) (\d{1,9}|-) ([\w.~%-]{0,3000})")


@dataclass(slots=True, eq=False)
class Launchers:
    """What is known of this worker's launchers.

    Args:
        path: the file of earlier ones.
        away: seconds without a launcher after which this worker may end.
        waits: seconds that a launcher may wait for other hosts, without a line to this one.
    """

    path: Path
    away: float
    waits: float
    _seen: dict[str, str] = field(default_factory=dict)
    _silent_since: float | None = None  # None: none was here yet, or one still is
    _may_disconnect: bool = False  # the latest one keeps no connection while it runs
    _hold: float | None = None  # the last one has ended, and is held for so long

    def __post_init__(self) -> None:
        """Read what an earlier start of this container has left."""
        if self.path.is_file():
            lines = self.path.read_text("ascii", "replace").splitlines()
            self._seen = {name: why for name, _, why in (line.partition(" ") for line in lines)}

    def read_line(self, line: bytes, now: float) -> None:
        """Read a line that a launcher has sent; any other is ignored.

        Args:
            line: without its end.
            now: the monotonic clock.
        """
        if begun := _BEGUN.fullmatch(line):
            name = begun[1].decode("ascii", "replace")
            self._may_disconnect, self._hold = begun[2] == b"1", None
            why = ""  # a script went on after a launch of it had ended
        elif ended := _ENDED.fullmatch(line):
            name = ended[1].decode("ascii", "replace")
            self._hold = None if ended[2] == b"-" else float(ended[2])
            why = ended[3].decode("ascii")
        else:
            return
        self._seen.pop(name, None)  # the latest is the last line
        self._silent_since = now
        self._seen[name] = why
        self._write()

    def forget(self) -> None:
        """The job has succeeded: the next launcher starts another one."""
        self._seen.clear()
        self._silent_since = None
        self._write()

    def connected(self, now: float) -> None:
        """Somebody is connected, or was until now."""
        if self._silent_since is not None:
            self._silent_since = now

    @property
    def due(self) -> float | None:
        """When this worker has been without a launcher for too long; None while one may be here."""
        if self._silent_since is None or (self._may_disconnect and self._hold is None):
            return None
        return self._silent_since + self.patience

    @property
    def patience(self) -> float:
        """Seconds to wait for the next line of a launcher."""
        return max(self.away, self.waits) if self._hold is None else self.away + self._hold

    def _write(self) -> None:
        for name in list(self._seen)[:-_MAX_ATTEMPTS]:
            del self._seen[name]
        lines = (f"{name} {why}\n" for name, why in self._seen.items())
        try:
            files.write_private(self.path, "".join(lines))
        except MpibootError as error:  # such as a full disk: only the next launcher misses it
            log.warning("attempt", f"earlier attempts can't be noted: {error.finding.message}")


# Seconds; its ranks wait for this. A launcher on the same network answers in a millisecond, where
# its node isn't overloaded.
_PATIENCE: Final = 2.0


def launcher(environ: Mapping[str, str], token: str) -> tuple[str, int, str] | None:
    """Read from a daemon's environment which launcher to notify; None where it names none.

    That is where it listens, and the line that it expects, with its name for this host.
    ``token`` begins the marks of this worker's sessions: where pods share their processes (hostPID,
    shareProcessNamespace), others' sessions are seen too, and are left alone. The address is the
    one from which the daemon's SSH connection came.
    """
    port, _, host = environ.get(NOTICE, "").partition("/")
    address = environ.get("SSH_CONNECTION", "").partition(" ")[0]
    is_here = environ.get(MARK, "").startswith(f"{token}-")
    if not (is_here and port.isdigit() and host and address):
        return None
    return address, int(port), f"ending {environ.get(LAUNCH_ID, '')} {host}\n"


def notify_launchers(token: str) -> None:
    """Notify every launcher with daemons in this worker's sessions that this pod is ending."""
    every = {launcher(environ, token) for environ in processes.environments()}
    for address, port, line in filter(None, every):
        with suppress(OSError), socket.create_connection((address, port), _PATIENCE) as connection:
            connection.sendall(line.encode())
            connection.recv(1)


def stop_ranks(setup: WorkerSetup, name: str, seconds: float) -> int:
    """Signal the ranks of this worker's sessions; the process that ends when they all have.

    Raises:
        MpibootError: ``program-missing``; there is no shell.
    """
    from mpiboot.hosts import host_shell  # noqa: PLC0415 - not before a worker ends

    number = getattr(signal, f"SIG{name}")
    command = host_shell.stop_ranks(number, int(seconds) + 1, f"{MARK}={setup.token}-")
    environ = {**setup.environ, "MPIBOOT_WORKER_DIR": str(setup.folder)}
    streams = {0: None, 1: None, 2: None}
    return process.start(("/bin/sh", "-c", command), environ, streams=streams)
