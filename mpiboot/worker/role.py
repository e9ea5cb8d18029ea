"""The worker role: serve this pod over SSH, pass its environment on, leave nothing behind.

The process stays as the pod's small parent: no asyncio, no polling, and no third party but psutil,
once there are sessions.
"""

from __future__ import annotations

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
from typing import Final, NamedTuple

from mpiboot.core import log
from mpiboot.core.launch_names import LAUNCH_ID, NOTICE
from mpiboot.core.setting_types import WorkerExit
from mpiboot.core.settings import Resolved
from mpiboot.job import platforms
from mpiboot.ssh import sessions
from mpiboot.ssh.openssh import WorkerSetup
from mpiboot.ssh.sessions import MARK
from mpiboot.system import files, process, processes
from mpiboot.system.os_calls import exit_status, reap
from mpiboot.worker.server import ENDING, WorkerServer, gather_facts, prepare, write_scripts

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
        setup = prepare(resolved, environ, loop)
        code = 0
        if setup is not None:
            ending.callback(setup.key.path.unlink, missing_ok=True)
            worker = _WorkerProcess(resolved, program, setup, loop)
            ending.callback(worker.close)
            code = worker.serve()
    log.ended(code, ("program" if program else "signal") if code else "")
    return code


class _WorkerProcess:
    """The pod's first process: SSH server, sessions, the program beside them, every orphan."""

    def __init__(
        self,
        resolved: Resolved,
        program: tuple[str, ...],
        setup: WorkerSetup,
        loop: process.SignalLoop,
    ) -> None:
        self._gather = partial(gather_facts, resolved, setup)
        self._grace = resolved.settings.grace
        self._stop_signal = resolved.settings.stop_signal
        self._program = program
        self._setup = setup
        self._loop = loop
        text, left = sessions.environment(setup.environ)
        files.write_private(setup.folder / sessions.ENVIRONMENT, text)
        write_scripts(setup.folder)
        if left:
            names = ", ".join(sorted(left))
            log.warning("environment", f"not given to the ranks, as no shell can set it: {names}")
        self._sessions = sessions.Sessions(setup.folder, loop, self._grace, self._read_line)
        settings = resolved.settings
        self._launchers = Launchers(
            setup.folder / ATTEMPTS, settings.launcher_away, settings.timeout
        )
        # With a program beside the server it is that program's end that ends the worker.
        self._exit = WorkerExit.NEVER if program else platforms.worker_exit(settings, setup.environ)
        self._job_succeeded = False  # the job has ended well
        self._server = WorkerServer(settings.sshd, setup, loop, self._sessions)
        self._helpers: set[int] = set()
        self._program_pid = 0
        self._code: int | None = None
        self._kill_at: float | None = None
        self._stopping_ranks = 0  # the process that waits for the ranks' end
        self._ranks_until: float | None = None
        self._ending_signal = 0  # the signal that ends this worker

    def serve(self) -> int:
        """Run until something ends this worker; then end the rest."""
        self._server.start()
        while self._code is None:
            self._turn()
        return self._finish(self._code)

    def _turn(self) -> None:
        """Sleep until something happens, and deal with it."""
        limits = [
            limit
            for limit in (
                self._sessions.due,
                self._server.due,
                self._kill_at,
                self._ranks_until,
                self._end_at,
            )
            if limit is not None
        ]
        left = min(limits) - time.monotonic() if limits else None
        for number in self._loop.wait(left):
            self._signalled(number)
        # Children are reaped at every turn: cheap, and no signal can be missed.
        for pid, status in reap():
            self._child_ended(pid, status)
        if self._server.began_to_listen():
            self._launchers.connected(time.monotonic())  # nobody could come before
            self._start_gathering()
            if self._program and not self._program_pid:
                self._program_pid = process.start(self._program, self._setup.environ)
        self._sessions.step()
        self._server.step()
        self._end_with_job()
        if self._ranks_until is not None and self._ranks_until <= time.monotonic():
            log.warning("signal", "its ranks did not end in time: they are stopped now")
            self._ranks_ended()
        if self._kill_at is not None and self._kill_at <= time.monotonic():
            self._kill_at = None
            self._send(signal.SIGKILL)

    def _start_gathering(self) -> None:
        """Gather the facts in a child, once the server listens: that delays no login."""
        try:
            self._helpers.add(self._loop.fork(self._gather))
        except OSError as why:
            log.warning("facts", f"this pod's facts can't be gathered: {why.strerror}")

    def _read_line(self, line: bytes) -> None:
        """Read a line that a launcher has sent."""
        if line == b"over":
            self._job_succeeded = True
            self._launchers.forget()
        else:
            self._launchers.read_line(line, time.monotonic())

    @property
    def _end_at(self) -> float | None:
        """When this worker ends because no launcher is there; None while one may be."""
        alone = (
            self._exit is WorkerExit.AFTER_JOB and self._code is None and not len(self._sessions)
        )
        return self._launchers.due if alone else None

    def _end_with_job(self) -> None:
        """End after the job; with 0 also after a failed one, as this worker did not fail."""
        if len(self._sessions):
            self._launchers.connected(time.monotonic())
        if self._code is not None:
            return
        due = self._end_at
        if self._job_succeeded and self._exit is not WorkerExit.NEVER:
            log.info("stop", "job succeeded; worker stops")
            self._code = 0
        elif due is not None and due <= time.monotonic():
            message = f"no launcher was here for {self._launchers.patience:g} s: this worker ends"
            log.info("stop", f"{message} and frees its node (MPIBOOT_WORKER_EXIT)")
            self._code = 0

    def _child_ended(self, pid: int, status: int) -> None:
        self._helpers.discard(pid)
        if pid == self._stopping_ranks:
            self._ranks_ended()
        self._server.child_ended(pid, status)
        if pid == self._program_pid:
            self._program_pid = 0
            self._code = exit_status(status)
            log.info("program", f"{self._program[0]} ended with {self._code}", code=self._code)

    def _signalled(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        if self._program_pid:
            self._send(number)
            if number in ENDING and self._kill_at is None:
                log.info("signal", f"{signal.Signals(number).name} is passed on to the program")
                self._kill_at = time.monotonic() + self._grace
                self._end_ranks(number)
        elif number in ENDING and self._code is None and not self._ending_signal:
            log.info("signal", f"{signal.Signals(number).name}: worker stops")
            self._end_ranks(number)
        elif number in ENDING:
            self._ranks_ended()
            self._sessions.end_all(at_once=True)  # a second signal: no more grace

    def _end_ranks(self, number: int) -> None:
        """Give the ranks of this pod their grace to save; without ranks or grace, end at once."""
        self._ending_signal = number
        if not len(self._sessions) or not self._grace:
            self._ranks_ended()
            return
        self._ranks_until = time.monotonic() + self._grace
        setup = self._setup
        notify_launchers(setup.token)
        self._stopping_ranks = stop_ranks(
            setup.folder, setup.environ, setup.token, self._stop_signal, self._grace
        )
        self._helpers.add(self._stopping_ranks)

    def _ranks_ended(self) -> None:
        """End what is left: every rank has ended, or its grace is over."""
        self._stopping_ranks, self._ranks_until = 0, None
        if self._program:
            self._sessions.end_all()
        elif self._code is None:
            self._code = 0 if self._ending_signal == signal.SIGTERM else 128 + self._ending_signal

    def _send(self, number: int) -> None:
        if self._program_pid:
            with suppress(ProcessLookupError):
                os.kill(self._program_pid, number)

    def _finish(self, code: int) -> int:
        """End the server and every session; what can't be killed is left to the system."""
        gone = self._server.release()
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
            for pid, _ in reap():
                ending = 0 if pid == ending else ending
            self._sessions.step()
        if gone is not None:
            gone.close()
        return code

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
_MOST: Final = 100  # lines
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
    _stays_unconnected: bool = False  # the last one keeps no connection while it runs
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
            self._stays_unconnected, self._hold = begun[2] == b"1", None
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
        if self._silent_since is None or (self._stays_unconnected and self._hold is None):
            return None
        return self._silent_since + self.patience

    @property
    def patience(self) -> float:
        """Seconds to wait for the next line of a launcher."""
        return max(self.away, self.waits) if self._hold is None else self.away + self._hold

    def _write(self) -> None:
        for name in list(self._seen)[:-_MOST]:
            del self._seen[name]
        lines = (f"{name} {why}\n" for name, why in self._seen.items())
        files.write_private(self.path, "".join(lines))


# Seconds; its ranks wait for this. A launcher on the same network answers in a millisecond, where
# its node isn't overloaded.
_PATIENCE: Final = 2.0


class LauncherPort(NamedTuple):
    """Who started daemons here: where it listens, its launch ID, and its name for this host."""

    address: str
    port: int
    mark: str
    host: str


def launcher(environ: Mapping[str, str], token: str) -> LauncherPort | None:
    """Read from a daemon's environment which launcher to notify; None where it names none.

    ``token`` begins the marks of this worker's sessions: where pods share their processes (hostPID,
    shareProcessNamespace), others' sessions are seen too, and are left alone. The address is the
    one from which the daemon's SSH connection came.
    """
    port, _, host = environ.get(NOTICE, "").partition("/")
    peer = environ.get("SSH_CONNECTION", "").split()
    if (
        not environ.get(MARK, "").startswith(f"{token}-")
        or not port.isdigit()
        or not host
        or not peer
    ):
        return None
    return LauncherPort(peer[0], int(port), environ.get(LAUNCH_ID, ""), host)


def notify_launchers(token: str) -> None:
    """Notify every launcher with daemons in this worker's sessions that this pod is ending."""
    every = (launcher(environ, token) for environ in processes.environments())
    for one in {found for found in every if found}:
        with (
            suppress(OSError),
            socket.create_connection((one.address, one.port), _PATIENCE) as connection,
        ):
            connection.sendall(f"ending {one.mark} {one.host}\n".encode())
            connection.recv(1)


def stop_ranks(
    folder: Path, environ: Mapping[str, str], token: str, name: str, seconds: float
) -> int:
    """Signal the ranks of this worker's sessions; the process that ends when they all have.

    Raises:
        MpibootError: ``program-missing``; there is no shell.
    """
    from mpiboot.hosts import host_shell  # noqa: PLC0415 - not before a worker ends

    number = getattr(signal, f"SIG{name}")
    command = host_shell.stop_ranks(number, int(seconds) + 1, f"{MARK}={token}-")
    return process.start(
        ("/bin/sh", "-c", command),
        {**environ, "MPIBOOT_WORKER_DIR": str(folder)},
        streams={0: None, 1: None, 2: None},
    )
