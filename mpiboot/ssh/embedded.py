"""The SSH server for pods in which OpenSSH's can't run: one key, one user, commands and SFTP.

A child of the worker, which ends what a session leaves behind; this process only says when.
It serves SFTP, and offers no forwarding, no terminal and no password login.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from signal import Signals
from typing import Any, Final

import asyncssh

from mpiboot.core.checks import MpibootError
from mpiboot.ssh.attempt import WINDOW
from mpiboot.ssh.login import CONNECTION, SIGNATURES, receive, send
from mpiboot.ssh.openssh import LISTENING
from mpiboot.ssh.sessions import FIFO, WRAPPER
from mpiboot.system import process
from mpiboot.system.programs import end_tasks
from mpiboot.system.spawn import DEFAULT_PATH, reap

_LOGIN_SECONDS: Final = 60
_BACKLOG: Final = 1000
_KEEPALIVES: Final = 3
_CANNOT_START: Final = 127
# RFC 4254, section 6.10; sshd has one name for all the others.
_SIGNALS: Final = frozenset(
    "ABRT ALRM FPE HUP ILL INT KILL PIPE QUIT SEGV TERM USR1 USR2".split()  # noqa: SIM905
)
_OTHER_SIGNAL: Final = "SIG@openssh.com"


@dataclass(frozen=True, slots=True)
class EmbeddedConfig:
    """The configuration that the worker writes; its file is private."""

    folder: str
    token: str
    address: str
    port: int
    user: str
    home: str
    shell: str
    public: str
    keepalive: float


class EmbeddedConnection(asyncssh.SSHServer):
    """One connection: who may come in. Whatever isn't named here asyncssh refuses by default."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server

    def public_key_auth_supported(self) -> bool:
        """Allow keys."""
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Accept the job's key, for this pod's user alone."""
        config = self._server.config
        return username == config.user and key == self._server.trusted

    def session_requested(self) -> SshCommand:
        """Accept a session."""
        return SshCommand(self._server)


class _Files(asyncssh.SFTPServer):
    """This pod's files by SFTP; its end has a status, without which OpenSSH's scp fails."""

    def exit(self) -> None:
        """Send the status: asyncssh sends none (2.24)."""
        self.channel.exit(0)


class SshCommand(asyncssh.SSHServerProcess[bytes]):
    """One command: its process behind the session wrapper, its streams, and how it ended."""

    def __init__(self, server: EmbeddedServer) -> None:
        files: Any = _Files  # asyncssh's own types of a channel differ
        super().__init__(lambda _: self._serve(), files, 3, allow_scp=False)
        self._server = server
        self._pid = 0
        self._mark = ""
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._serving: asyncio.Task[Any] | None = None

    def shell_requested(self) -> bool:
        """Refuse: commands only."""
        return False

    def subsystem_requested(self, subsystem: str) -> bool:
        """Accept SFTP alone."""
        return subsystem == "sftp"

    async def _serve(self) -> None:
        if self.is_closing():
            return
        try:
            stdin, stdout, stderr = self._start()
        except (OSError, MpibootError) as problem:
            self.stderr.write(f"mpiboot: the session can't be started: {problem}\n".encode())
            self.exit(_CANNOT_START)
            return
        self._serving = asyncio.current_task()
        reading = asyncio.ensure_future(receive(self.stdin, stdin))
        # Errors of the streams must not end the connection.
        with stdin, stdout, stderr, contextlib.suppress(OSError, asyncssh.Error):
            try:
                await asyncio.gather(send(stdout, self.stdout), send(stderr, self.stderr))
                if not self._status.done():
                    self.channel.write_eof()
                self._send_status(await self._status)
            finally:
                await end_tasks((reading,))

    def _start(self) -> list[FileIO]:
        """Start the command in a session of its own; give our ends of its streams."""
        config = self._server.config
        self._mark = next(self._server.marks)
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as of_command:
            streams, ends = list[FileIO](), dict[int, int | None]()
            for number in range(3):
                reader, writer = (
                    FileIO(end, mode) for end, mode in zip(os.pipe(), "rw", strict=True)
                )
                here, there = (reader, writer) if number else (writer, reader)
                os.set_blocking(here.fileno(), False)
                streams.append(ours.enter_context(here))
                ends[number] = of_command.enter_context(there).fileno()
            self._pid = process.start(
                ["/bin/sh", str(WRAPPER), config.folder, config.token, self._mark],
                self._server.environment(self.command or "", self.get_extra_info("peername")),
                streams=ends,
                own_session=True,
            )
            ours.pop_all()
        self._server.begin(self._status, self._pid, self._mark)
        return streams

    def _send_status(self, status: int) -> None:
        """Send the client how the command ended, behind all of its output."""
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            name = Signals(number).name[3:] if number in {*Signals} else ""
            shown = name if name in _SIGNALS else _OTHER_SIGNAL
            self.exit_with_signal(shown, os.WCOREDUMP(status))
        else:
            self.exit(os.WEXITSTATUS(status))

    def signal_received(self, signal: str) -> None:
        """Deliver a signal to the command's process group."""
        if signal in _SIGNALS and not self._status.done() and self._pid:
            with contextlib.suppress(OSError):
                os.killpg(self._pid, Signals[f"SIG{signal}"])

    def connection_lost(self, exc: Exception | None) -> None:
        """Let the worker end what is left of the session."""
        super().connection_lost(exc)
        if self._serving:
            self._serving.cancel()
        if self._pid:
            self._server.notify_worker(f"end {self._mark}\n")


class EmbeddedServer:
    """The commands that run, and the FIFO by which the worker learns of them."""

    def __init__(self, config: EmbeddedConfig) -> None:
        self.config = config
        self.trusted = asyncssh.import_public_key(config.public)
        self._running: dict[int, asyncio.Future[int]] = {}
        # As the wrapper makes a session's mark, with a counter in place of its numbers.
        self.marks = map(f"{config.token}-{os.getpid()}-s{{}}".format, itertools.count(1))
        path = Path(config.folder) / FIFO
        self._fifo = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def environment(self, command: str, peer: Sequence[object]) -> dict[str, str]:
        """What sshd would give to a session; the wrapper adds the pod's own."""
        config = self.config
        ends = f"{peer[0]} {peer[1]}"
        return {
            "HOME": config.home,
            "USER": config.user,
            "LOGNAME": config.user,
            "SHELL": config.shell,
            "PATH": DEFAULT_PATH,
            "SSH_CLIENT": f"{ends} {config.port}",
            "SSH_CONNECTION": f"{ends} {config.address} {config.port}",
            "SSH_ORIGINAL_COMMAND": command,
        }

    def begin(self, status: asyncio.Future[int], pid: int, mark: str) -> None:
        """Report a session to the worker; it ends with this process at the latest."""
        self._running[pid] = status
        self.notify_worker(f"begin {mark} {pid} {os.getpid()}\n")

    def notify_worker(self, line: str) -> None:
        """Write a line to the worker, which ends what a session leaves."""
        try:
            os.write(self._fifo, line.encode())
        except OSError:
            print(f"error: the worker doesn't listen: {line.strip()}", file=sys.stderr)  # noqa: T201

    def reap(self) -> None:
        """Hand every ended command its status."""
        for pid, status in reap():
            ended = self._running.pop(pid, None)
            if ended and not ended.done():  # cancelled with its session
                ended.set_result(status)


async def serve(config: EmbeddedConfig) -> None:
    """Serve until a signal or the worker's end."""
    loop = asyncio.get_running_loop()
    server = EmbeddedServer(config)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGCHLD, server.reap)
    loop.add_reader(0, stop.set)  # the worker holds the other end: closed when it is gone
    (key,) = asyncssh.load_keypairs(Path(config.folder) / "key")
    # An RSA key would be shown with SHA-1 and ssh.com's algorithms too.
    offered = [name for name in key.host_key_algorithms if name.decode() in SIGNATURES]
    key.host_key_algorithms = offered
    listener = await asyncssh.create_server(
        functools.partial(EmbeddedConnection, server),
        config.address,
        config.port,
        server_host_keys=[key],
        signature_algs=SIGNATURES,
        **CONNECTION,
        # As OpenSSH's VersionAddendum: a launcher tells a worker from a node's own sshd by it.
        server_version=f"AsyncSSH_{asyncssh.__version__} mpiboot",
        encoding=None,
        window=WINDOW,
        allow_pty=False,
        agent_forwarding=False,
        gss_host=None,
        compression_algs=None,
        login_timeout=_LOGIN_SECONDS,
        keepalive_interval=config.keepalive / _KEEPALIVES,
        keepalive_count_max=_KEEPALIVES,
        backlog=_BACKLOG,
        reuse_address=True,
    )
    print(f"{LISTENING}{config.address} port {config.port}.", file=sys.stderr, flush=True)  # noqa: T201
    await stop.wait()
    listener.close()


def main(path: str) -> None:
    """Run the server that a configuration file describes."""
    config = EmbeddedConfig(**json.loads(Path(path).read_text("utf-8")))
    with contextlib.suppress(OSError):
        os.chdir(config.home)  # SFTP's names begin there
    try:
        asyncio.run(serve(config))
    except (OSError, asyncssh.Error) as problem:
        sys.exit(f"fatal: {problem}")
