"""The SSH server for pods in which OpenSSH's can't run: one key, one user, commands only.

A child of the worker, which ends what a session leaves behind; this process only tells it when.
It forwards nothing, offers no file transfer and no terminal, and asks for no password.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncssh

from mpiboot.ssh.openssh import LISTENING
from mpiboot.ssh.server_command import SshCommand
from mpiboot.ssh.sessions import FIFO, WRAPPER
from mpiboot.system.executables import DEFAULT_PATH
from mpiboot.system.os_calls import reap

_LOGIN_SECONDS: Final = 60
_BACKLOG: Final = 1000
_KEEPALIVES: Final = 3


@dataclass(frozen=True, slots=True)
class EmbeddedConfig:
    """What the worker tells this process; its file is private."""

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
        self._peer = ("", 0)

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """Note who calls."""
        peer = conn.get_extra_info("peername") or ("", 0)
        self._peer = (str(peer[0]), int(peer[1]))

    def begin_auth(self, username: str) -> bool:  # noqa: ARG002 - asyncssh's signature
        """Everybody has to prove who they are."""
        return True

    def public_key_auth_supported(self) -> bool:
        """Allow keys."""
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Accept the job's key, for this pod's user alone."""
        config = self._server.config
        return username == config.user and key.public_data == self._server.trusted

    def session_requested(self) -> SshCommand:
        """Serve a session."""
        return SshCommand(self._server, self._peer)


class EmbeddedServer:
    """The commands that run, and the way to the worker that hears of them."""

    def __init__(self, config: EmbeddedConfig) -> None:
        self.config = config
        self.trusted = asyncssh.import_public_key(config.public).public_data
        self._running: dict[int, SshCommand] = {}
        self._count = itertools.count(1)
        path = Path(config.folder) / FIFO
        self._fifo = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def new_mark(self) -> str:
        """Make a session's mark; as the wrapper does, with a counter in place of its numbers."""
        return f"{self.config.token}-{os.getpid()}-s{next(self._count)}"

    def argv(self, mark: str) -> list[str]:
        """The wrapper's command line."""
        return ["/bin/sh", str(WRAPPER), self.config.folder, self.config.token, mark]

    def environment(self, command: str, peer: tuple[str, int]) -> dict[str, str]:
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

    def begin(self, command: SshCommand, pid: int, mark: str, line: str) -> None:
        """Tell the worker of a session, which ends with this process at the latest."""
        self._running[pid] = command
        detach = " --daemonize " in f" {line} " and "MPIBOOT_JOB_MARK" not in line
        self._tell(f"begin {mark} {pid} {os.getpid()} {int(detach)}\n")

    def end(self, mark: str) -> None:
        """Tell the worker that a session's connection has ended."""
        self._tell(f"end {mark}\n")

    def _tell(self, line: str) -> None:
        try:
            os.write(self._fifo, line.encode())
        except BlockingIOError:
            print(f"error: the worker doesn't listen: {line.strip()}", file=sys.stderr)  # noqa: T201

    def reap(self) -> None:
        """Hand every ended command its status."""
        for pid, status in reap():
            command = self._running.pop(pid, None)
            if command is not None:
                command.exited(status)


async def serve(config: EmbeddedConfig) -> None:
    """Serve until a signal or the worker's end."""
    loop = asyncio.get_running_loop()
    server = EmbeddedServer(config)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGCHLD, server.reap)
    loop.add_reader(0, stop.set)  # the worker holds the other end: closed when it is gone
    listener = await asyncssh.create_server(
        functools.partial(EmbeddedConnection, server),
        config.address,
        config.port,
        server_host_keys=[str(Path(config.folder) / "key")],
        # As OpenSSH's VersionAddendum: a launcher tells a worker from a node's own sshd by it.
        server_version=f"AsyncSSH_{asyncssh.__version__} mpiboot",
        encoding=None,
        allow_pty=False,
        allow_scp=False,
        agent_forwarding=False,
        x11_forwarding=False,
        line_editor=False,
        password_auth=False,
        kbdint_auth=False,
        host_based_auth=False,
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
    wrong: tuple[type[Exception], ...] = (OSError, asyncssh.Error)
    try:
        asyncio.run(serve(config))
    except wrong as problem:
        sys.exit(f"fatal: {problem}")
