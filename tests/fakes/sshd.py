"""SSH servers on loopback that behave well or badly, as a test needs it.

``sshd`` is a real asyncssh server that runs commands by /bin/sh; the others are what else a port
may have behind it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh


@dataclass
class Job:
    """The job's key pair in a folder, and another one that nobody knows."""

    folder: Path
    kind: str = "ssh-ed25519"
    key: asyncssh.SSHKey = field(init=False)
    stranger: asyncssh.SSHKey = field(init=False)

    def __post_init__(self) -> None:
        self.key = asyncssh.generate_private_key(self.kind)
        self.stranger = asyncssh.generate_private_key(self.kind)
        self.path.write_bytes(self.key.export_private_key())
        self.path.chmod(0o600)

    @property
    def path(self) -> Path:
        return self.folder / f"id_{self.kind}"


@dataclass
class Behaviour:
    """How a server behaves, and what it has seen; it may be changed while the server runs."""

    job: Job
    host_key: asyncssh.SSHKey | None = None
    authorized: asyncssh.SSHKey | None = None
    public_key: bool = True
    password: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    users: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    logins: int = 0
    seen: asyncio.Event = field(default_factory=asyncio.Event)
    welcomed: asyncio.Event = field(default_factory=asyncio.Event)
    open: int = 0


class _Server(asyncssh.SSHServer):
    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._behaviour.open += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._behaviour.open -= 1

    def begin_auth(self, username: str) -> bool:
        self._behaviour.users.append(username)
        self._behaviour.seen.set()
        return True

    def public_key_auth_supported(self) -> bool:
        return self._behaviour.public_key

    def password_auth_supported(self) -> bool:
        return self._behaviour.password

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        wanted = self._behaviour.authorized or self._behaviour.job.key
        return key == wanted.convert_to_public()

    def auth_completed(self) -> None:
        self._behaviour.logins += 1
        self._behaviour.welcomed.set()


async def _serve_command(behaviour: Behaviour, process: asyncssh.SSHServerProcess[bytes]) -> None:
    command = process.command or ""
    # A script comes by standard input, and is the command then.
    script = (await process.stdin.read()).rstrip(b"\n") if command == "sh -s" else None
    behaviour.commands.append(command if script is None else script.decode())
    child = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        behaviour.commands[-1],
        env={"PATH": os.environ.get("PATH", ""), "HOME": "/", **behaviour.environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, complaint = await child.communicate()
    finally:
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)
            await child.communicate()
    try:
        process.stdout.write(output)
        process.stderr.write(complaint)
        process.exit(child.returncode or 0)
    except OSError:  # the client has gone
        return


@asynccontextmanager
async def sshd(
    behaviour: Behaviour, address: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[int]:
    """Run an SSH server; its host key is the job's own unless the behaviour has another."""
    commands: set[asyncio.Task[None]] = set()

    def command(process: asyncssh.SSHServerProcess[bytes]) -> None:
        task = asyncio.ensure_future(_serve_command(behaviour, process))
        commands.add(task)
        task.add_done_callback(commands.discard)

    server = await asyncssh.listen(
        address,
        port,
        server_factory=lambda: _Server(behaviour),
        server_host_keys=[behaviour.host_key or behaviour.job.key],
        process_factory=command,
        encoding=None,
        config=None,
        gss_host=None,
        kbdint_auth=False,
        reuse_address=True,
    )
    try:
        yield int(server.get_port())
    finally:
        for task in tuple(commands):
            task.cancel()
        await asyncio.gather(*commands, return_exceptions=True)
        server.close()
        await server.wait_closed()
        for _ in range(200):  # what a client has closed
            if not behaviour.open:
                break
            await asyncio.sleep(0.01)


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listener(talk: Talk, address: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """Accept connections and let ``talk`` do with each what it does."""
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await talk(reader, writer)
        except (asyncio.CancelledError, ConnectionError):
            return
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(accept, address, port)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def saying(text: bytes, *, pause_after: int = 0, then_close: bool = False) -> Talk:
    """Say something, in two parts if asked, and then nothing more."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if pause_after:
            writer.write(text[:pause_after])
            await writer.drain()
            await asyncio.sleep(0.05)
        writer.write(text[pause_after:])
        await writer.drain()
        if not then_close:
            await reader.read()

    return talk


SILENT = saying(b"")
CLOSING = saying(b"", then_close=True)
HTTP = saying(b"HTTP/1.1 400 Bad Request\r\nServer: istio-envoy\r\n\r\n")
HANGS_AFTER_GREETING = saying(b"SSH-2.0-Stuck_1.0\r\n")
CLOSES_AFTER_GREETING = saying(b"SSH-2.0-Short_1.0\r\n", then_close=True)
