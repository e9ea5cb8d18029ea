"""A worker's SSH server: which one serves, its restart when it dies, and what it writes of itself.

Its process stays small: no asyncio, and the embedded server's module is never loaded here.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.model import Auto, SshKind, read_record, values
from mpiboot.ssh import openssh
from mpiboot.ssh.openssh import LISTENING, WorkerSetup
from mpiboot.ssh.sessions import Sessions
from mpiboot.system import files, process, processes
from mpiboot.system.process import exit_status

WORKER_STATE: Final = "worker.json"


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What a running worker writes for the processes around it.

    ``pid`` is the worker's own; ``reason`` is why its SSH server is the embedded one.
    """

    pid: int
    sshd: str
    address: str
    port: int
    reason: str


def worker_state(folder: Path) -> WorkerState | None:
    """Read what the worker of this runtime folder has written; None where none has."""
    try:
        return read_record(WorkerState, json.loads((folder / WORKER_STATE).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def running_worker(wanted: str, environ: Mapping[str, str]) -> WorkerState | None:
    """Read what the worker that runs in this container has written; None where none runs."""
    given = environ.get("MPIBOOT_WORKER_DIR")  # of a session
    tmpdir = environ.get("TMPDIR", "")
    folder = Path(given) if given else files.find_role(wanted, os.getuid(), "worker", tmpdir)
    state = worker_state(folder) if folder else None
    return state if state and os.path.exists(f"/proc/{state.pid}") else None  # noqa: PTH110


def embedded_argv(setup: WorkerSetup) -> list[str]:
    """Write what the embedded server reads; its argv. Its module is never loaded here."""
    identity = setup.identity
    config: dict[str, str | int | float] = {
        "folder": str(setup.folder),
        "token": setup.token,
        "address": setup.address,
        "port": setup.port,
        "user": identity.user,
        "home": identity.home if identity.known else setup.environ["HOME"],
        "shell": openssh.shell_of(identity),
        "public": setup.key.public,
        "keepalive": setup.keepalive,
    }
    path = setup.folder / "embedded.json"
    files.write_private(path, json.dumps(config))
    return process.python("from mpiboot.ssh.embedded import main; main(sys.argv[1])", str(path))


_TAIL_LINES: Final = 6  # of a server's output
_LOUD: Final = ("error:", "fatal:", "Missing privilege", "Bad configuration", "Could not load")
# A client that sends nothing ends with a fatal line too (sshd.c, grace_alarm_handler).
_NOT_INSIDE: Final = "fatal: Timeout before authentication"
# So many logins that failed inside sshd, and none that worked, show that it can't serve this pod.
_FAILED_LOGINS: Final = 3
# Seconds before a server that died is started again: twice as long each time, and from the
# beginning after one that has run for the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 60.0


def login_failed(line: str, user: str) -> bool:
    """Whether sshd logs that a login of this user failed inside sshd itself. Pure.

    What a stranger causes (another user, a bad packet, no key) ends with no fatal line.
    """
    if line.startswith(f"User {user} "):
        return " not allowed because " in line
    return line.startswith("fatal:") and not line.startswith(_NOT_INSIDE)


class WorkerServer:
    """The SSH server of a worker: which one serves, what it logs, and its restart when it dies.

    ``pid`` is its process, 0 while none runs. ``due`` is when ``step`` has to be called (monotonic
    clock), to restart it; None: not at all.
    """

    def __init__(
        self,
        wanted: SshKind | Auto,
        setup: WorkerSetup,
        loop: process.SignalLoop,
        sessions: Sessions,
    ) -> None:
        """Start nothing yet; ``wanted`` is the setting ``sshd``."""
        self.pid = 0
        self.due: float | None = None
        self._wanted = wanted
        self._setup = setup
        self._loop = loop
        self._sessions = sessions
        self._argv: list[str] = []
        self._reason = ""  # why it is the embedded server
        self._written: SshKind | None = None  # what the worker's state names
        self._pause = 0.0
        self._stopping = False
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._rest = b""
        # Every server has the same two pipes.
        self._reader, self._log = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        # Nothing is ever written here: the embedded server sees its end when this process is gone.
        self._stdin, self._life = os.pipe2(os.O_CLOEXEC)
        loop.on(self._reader, self._read)

    def start(self) -> None:
        """Start OpenSSH's sshd where it can serve here, else the embedded server.

        Raises:
            MpibootError: the one that is set can't serve.
        """
        setup, against = self._setup, "MPIBOOT_SSHD=embedded"
        if self._wanted is not SshKind.EMBEDDED:
            binary = openssh.find(setup.environ.get("PATH", ""))
            against = openssh.reason_against(binary, setup.identity, setup.folder)
            if not against:
                self._argv = openssh.prepare(binary, setup)
                try:
                    self._run()
                except MpibootError as wrong:  # such as an sshd for another machine
                    against = wrong.finding.message
        if against:
            self._use_embedded(against)
            self._run()

    def _use_embedded(self, reason: str, evidence: tuple[str, ...] = ()) -> None:
        if self._wanted is SshKind.OPENSSH:
            message = f"OpenSSH's sshd can't serve this pod: {reason}"
            raise error("sshd", message, evidence=evidence)
        log.info("sshd", f"using the embedded SSH server: {reason}", reason=reason)
        self._reason = reason
        self._argv = embedded_argv(self._setup)

    def _run(self) -> None:
        self._kind = SshKind.EMBEDDED if self._reason else SshKind.OPENSSH
        self._began = time.monotonic()
        self._listening = self._began_to_listen = False
        self._failed: list[str] = []  # lines of logins that failed inside it
        self._tail.clear()
        streams = {0: self._stdin, 1: self._log, 2: self._log}
        # In a group of its own: on a terminal Ctrl-C is for the worker, which ends it last.
        self.pid = process.start(self._argv, self._setup.environ, streams=streams, own_group=True)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while True:
                *lines, self._rest = (self._rest + os.read(self._reader, 1 << 16)).split(b"\n")
                for line in lines:
                    self._read_line(line)

    def _read_line(self, data: bytes) -> None:
        line = data.rstrip(b"\r").decode("utf-8", "backslashreplace")
        self._tail.append(line)
        if line.startswith(LISTENING):
            self._listening = self._began_to_listen = True
        elif self._listening and login_failed(line, self._setup.identity.user):
            self._failed.append(line)
        loud = line.startswith(_LOUD) and "[preauth]" not in line
        (log.warning if loud and self._listening else log.debug)("sshd", f"sshd: {line}")

    def began_to_listen(self) -> bool:
        """Whether the server has begun to listen since the last call, which is logged."""
        if not self.pid or not self._began_to_listen:
            return False
        self._began_to_listen = False
        kind, setup = self._kind.value, self._setup
        # Not again for a server of the same kind: the disk may be full by now.
        if self._kind is not self._written:
            self._written = self._kind
            state = WorkerState(os.getpid(), kind, setup.address, setup.port, self._reason)
            files.write_private(setup.folder / WORKER_STATE, json.dumps(values(state)))
        where = f"[{setup.address}]" if ":" in setup.address else setup.address
        log.info(
            "sshd",
            f"sshd ({kind}) listens on {where}:{setup.port} "
            f"as {setup.identity.user}, key {setup.key.fingerprint}",
            sshd=kind,
            address=setup.address,
            port=setup.port,
        )
        return True

    def step(self) -> None:
        """Restart the server where it is time; replace an sshd in which logins fail."""
        if self.due is not None and self.due <= time.monotonic():
            self.due = None
            try:
                self._run()
            except MpibootError as wrong:
                self._restart_later(wrong.finding.message)
        if len(self._failed) < _FAILED_LOGINS:
            return
        message = f"{_FAILED_LOGINS} logins failed inside OpenSSH's sshd: {self._failed[-1]}"
        self._failed.clear()
        if self._sessions.begun or self._kind is SshKind.EMBEDDED:
            return  # where any session has begun sshd works, and its end would end that session
        if self._wanted is SshKind.OPENSSH:
            log.warning("sshd", message)
        else:
            self._use_embedded(message)
            self._terminate()

    def child_ended(self, pid: int, status: int) -> None:
        """Handle the end of a child, which may be the server."""
        if pid != self.pid:
            return
        self.pid = 0
        self._read()
        if self._rest:
            self._read_line(self._rest)
            self._rest = b""
        if self._stopping:
            return
        how = f"it ended with {exit_status(status)}"
        how += f": {self._tail[-1]}" if self._tail else ""
        served = self._listening or self._written
        if self._kind is SshKind.OPENSSH and not served:
            self._use_embedded(how, tuple(self._tail))
        if self._kind is SshKind.OPENSSH and self._reason:
            self._run()
        elif served:
            if time.monotonic() - self._began > _LONGEST_PAUSE:
                self._pause = 0.0
            self._restart_later(how)
        else:
            message = f"the SSH server ({self._kind.value}) doesn't run: {how}"
            raise error("sshd", message, evidence=tuple(self._tail))

    def _restart_later(self, how: str) -> None:
        self._pause = min(2 * self._pause or _FIRST_PAUSE, _LONGEST_PAUSE)
        self.due = time.monotonic() + self._pause
        log.warning("sshd", f"the SSH server died; restarting it in {self._pause:g} s: {how}")

    def stop(self) -> None:
        """End it for good; ``pid`` is 0 once it has ended."""
        self._stopping, self.due = True, None
        self._terminate()

    def _terminate(self) -> None:
        """Send SIGTERM to it and its connections."""
        for item in processes.table().values() if self.pid else ():
            with suppress(ProcessLookupError, PermissionError):
                if self.pid in (item.pid, item.parent):
                    os.kill(item.pid, signal.SIGTERM)

    def close(self) -> None:
        """End it, and wait no more for its end."""
        self.stop()
        self._loop.off(self._reader)
        for end in (self._reader, self._log, self._stdin, self._life):
            os.close(end)
