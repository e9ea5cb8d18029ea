"""mpiboot's own SSH client, for launchers whose ``ssh`` is missing or refuses to run.

One process serves all hosts of a launch: asyncssh is loaded once. The launch agents reach it on a
socket in the launch folder (see ``connect``) and hand their streams over. It logs in with the
job's key alone, checks the pinned host key, forwards nothing and asks for nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import asyncssh

from mpiboot.ssh.host_logins import HostLogins
from mpiboot.ssh.kept import KeptConnections
from mpiboot.ssh.session import FAILED, ClientSession
from mpiboot.ssh.start import ClientConfig, ClientHost
from mpiboot.system import open_files

_REQUEST: Final = 1 << 16
# What a host may send ahead: twice this much is kept for one that nobody reads.
_WINDOW: Final = 1 << 19
_STREAMS: Final = 3
# ssh's options whose value is the next word.
_VALUED: Final = frozenset("BbcDEeFIiJLlmOoPpQRSWw")
_SAFE: Final = re.compile(r"[^A-Za-z0-9._:@%+-]")


def read_words(words: Sequence[str]) -> tuple[str, str, str]:
    """Read ssh's command line as far as it matters here: user (if given), host, command."""
    queue = list(words)
    while queue and queue[0].startswith("-"):
        word = queue.pop(0)
        if len(word) == 2 and word[1] in _VALUED and queue:  # noqa: PLR2004 - a dash and a letter
            queue.pop(0)
    if not queue:
        raise ValueError("no host was named")
    user, _, host = queue[0].rpartition("@")
    return user, host, " ".join(queue[1:])


class Client:
    """Every session of this launch."""

    def __init__(self, config: ClientConfig) -> None:
        """Read the job's key.

        Raises:
            OSError: it can't be read.
            ValueError: it is no key.
        """
        self.config = config
        self._logins = HostLogins(config.key, config.patience)
        self._hosts = {item.name: item for item in config.hosts}
        self._kept: dict[tuple[str, str], asyncssh.SSHClientConnection] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, connections: KeptConnections) -> None:
        """Take over the connections of the launch's hosts, and let go of any other."""
        patience = self.config.patience
        for host in self.config.hosts:
            connection = connections.take(host.address, host.port, host.user)
            if connection is not None:
                connection.set_keepalive(patience.interval, patience.probes)
                self._kept[host.name, host.user] = connection
        connections.close()

    def accept(self, listener: socket.socket) -> None:
        """Take one agent in."""
        try:
            agent, _ = listener.accept()
        except OSError:
            return
        task = asyncio.ensure_future(self._serve(agent))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, agent: socket.socket) -> None:
        """Serve one agent to its end; when it goes, its session goes."""
        agent.setblocking(False)
        descriptors: list[int] = []
        status = FAILED
        with agent:
            try:
                request = await _request(agent, descriptors)
                if len(descriptors) == _STREAMS:
                    words = request["words"]
                    words = words if isinstance(words, list) else []
                    asks = int(str(request.get("asks") or 0))
                    serving = self.run(words, request["agent"], descriptors, asks)
                    running = asyncio.ensure_future(serving)
                    gone = asyncio.ensure_future(_ended(agent))
                    await asyncio.wait((running, gone), return_when=asyncio.FIRST_COMPLETED)
                    gone.cancel()
                    running.cancel()
                    ended = (await asyncio.gather(running, return_exceptions=True))[0]
                    status = ended if isinstance(ended, int) else FAILED
                await asyncio.get_running_loop().sock_sendall(agent, f"{status}\n".encode())
            except (OSError, ValueError):
                return

    async def run(
        self, words: Sequence[str], agent: object, descriptors: Sequence[int], asks: int = 0
    ) -> int:
        """Run one session to its end; give its status.

        Args:
            words: as ssh's, without its name.
            agent: the process that the parent of mpirun knows.
            descriptors: the three streams; they are taken over.
            asks: seconds for a login that is tried once; 0 for the settings' patience.
        """
        session = ClientSession(descriptors)
        host = ""
        try:
            user, host, command = read_words(words)
            remote = self._find(host)
            user = user or remote.user
            connection = await self._start_over_kept(remote, user, command, session)
            kept = connection is not None
            if connection is None:
                connection = await self._logins.log_in(remote, user, asks)
            try:
                self.tell(f"connected {host} {agent}\n")
                if not kept:
                    await _start(connection, command, session)
                await session.done.wait()
            finally:
                if session.status == FAILED:
                    connection.abort()
                elif kept and not session.status:
                    # For what is asked or told after the job. What another status leaves on the
                    # host is ended there with the connection, as behind ssh.
                    self._kept[remote.name, user] = connection
                else:
                    connection.close()
            if session.why is not None:
                self._complain(host, f"the connection is lost: {session.why}")
        except (OSError, ValueError, asyncio.TimeoutError, asyncssh.Error) as wrong:
            self._complain(host, str(wrong) or type(wrong).__name__)
            return FAILED
        finally:
            session.close()
        return session.status

    async def _start_over_kept(
        self, remote: ClientHost, user: str, command: str, session: ClientSession
    ) -> asyncssh.SSHClientConnection | None:
        """Start over the gate's connection, which one session has at a time; None without one."""
        connection = self._kept.pop((remote.name, user), None)
        if connection is None:
            return None
        try:
            await _start(connection, command, session)
        except BaseException as why:
            connection.abort()
            # A server that takes no second session, or a connection that is gone: a new login.
            if session.begun or not isinstance(why, (OSError, asyncssh.Error)):
                raise
            return None
        return connection

    def _find(self, name: str) -> ClientHost:
        if name in self._hosts:
            return self._hosts[name]
        short = [item for item in self.config.hosts if item.name.partition(".")[0] == name]
        if len(short) != 1:
            raise ValueError(f"{name} is no host of this job")
        return short[0]

    def tell(self, line: str) -> None:
        """Tell the parent of mpirun; opened for reading too, a FIFO never makes one wait."""
        flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fifo = os.open(self.config.events, flags)
        except OSError:
            return
        try:
            os.write(fifo, line.encode())
        except BlockingIOError:
            return
        finally:
            os.close(fifo)

    def _complain(self, host: str, said: str) -> None:
        """Say what went wrong where the parent looks for it: ssh's ``-E``."""
        text = f"mpiboot's SSH client: {host}: {' '.join(said.split())}\n"
        path = Path(self.config.errors) / (_SAFE.sub("_", host) or "unknown")
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        with os.fdopen(handle, "w") as file:
            file.write(text)


async def _start(
    connection: asyncssh.SSHClientConnection, command: str, session: ClientSession
) -> None:
    await connection.create_session(
        lambda: session,
        # As bytes: a word may hold any but zero.
        command.encode("utf-8", "surrogateescape"),  # type: ignore[arg-type]
        encoding=None,
        window=_WINDOW,
    )


async def _request(agent: socket.socket, descriptors: list[int]) -> dict[str, object]:
    """Read what the agent asks for; its streams come with the first part."""
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(agent, ready.set)
    data = b""
    try:
        while not data.endswith(b"\n"):
            await ready.wait()
            ready.clear()
            try:
                part, given, _, _ = socket.recv_fds(agent, _REQUEST, _STREAMS)
            except BlockingIOError:  # it was told twice that something had come
                continue
            descriptors += given
            # One that went away asks for nothing, which is no JSON.
            data += part or b"\n"
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    finally:
        loop.remove_reader(agent)
    value = json.loads(data)
    return value if isinstance(value, dict) else {}


async def _ended(agent: socket.socket) -> None:
    """Wait until the agent is gone; it says nothing more."""
    await asyncio.get_running_loop().sock_recv(agent, 1)


async def serve(config: ClientConfig, listener: socket.socket) -> None:
    """Serve until the parent is gone."""
    loop = asyncio.get_running_loop()
    client = Client(config)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    try:
        parent = os.pidfd_open(config.parent)
        loop.add_reader(parent, stop.set)
    except ProcessLookupError:
        return
    except OSError:
        pass  # a sandbox that forbids it: the pod's end is then this process's, too
    listener.setblocking(False)
    loop.add_reader(listener, client.accept, listener)
    await stop.wait()
    # Nothing is waited for: who asked is gone, and the workers see their connections end.
    os._exit(0)


def main(path: str) -> None:
    """Run the client that a configuration file describes; stdin is its listening socket."""
    config = ClientConfig.from_json(Path(path).read_text("utf-8"))
    wrong: tuple[type[Exception], ...] = (OSError, ValueError, asyncssh.Error)
    open_files.allow_most()
    try:
        asyncio.run(serve(config, socket.socket(fileno=os.dup(0))))
    except wrong as problem:
        sys.exit(f"mpiboot's SSH client: {problem}")
