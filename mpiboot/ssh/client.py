"""mpiboot's own SSH client: one process with the sessions of all hosts of a launch.

It is the process that passed the gate, whose logins then carry the sessions, or below a script one
of its own. It logs in with the job's key alone, checks the pinned host key, forwards nothing and
prompts for nothing. Launch agents reach it in two ways:

- on a socket in the launch folder: a program of its own (``connect.py``) hands the streams over. It
  takes an interpreter for each host, even a bare one (11 ms of CPU time), so it is only for streams
  that can't be opened anew;
- by FIFOs, for which a shell is enough, where the client can open the streams itself. An agent
  writes ssh's words to ``sessions/HOST.request``, each with a zero behind it; who makes that file
  has the host's FIFO, ``sessions/HOST``. Then it writes ``start HOST PID`` to the FIFO ``requests``
  and reads from its own: ``taken``, and at the end the exit status. ``refused`` means that it must
  come by the socket. With ``end HOST PID`` it gives a session up. A client that is gone is the end
  of what an agent reads. The session of an agent that was killed goes on, as an ssh does behind it:
  an mpirun that gives up over a lost host kills all agents, and that host's session alone has ended
  by then. What goes on ends with this process, which the parent of mpirun lets go at its own end.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import asyncssh

from mpiboot.core.launch_names import CLIENT_SOCKET, REQUESTS
from mpiboot.ssh.client_start import ClientConfig, ConnectionPool
from mpiboot.ssh.config import LaunchHost, SshTimeouts
from mpiboot.ssh.login import NOTHING_ELSE, host_key_algorithms
from mpiboot.ssh.streams import InputStream, OutputStream, take
from mpiboot.system import os_calls

# The status of a session that did not come to an end of its own, as ssh has it.
FAILED: Final = 255
SESSIONS: Final = "sessions"

# A handshake is some milliseconds of work; more at once only makes each of them slow.
_AT_ONCE: Final = 32
_PIECE: Final = 1 << 16
# What a host may send ahead: twice this much is kept for one that nobody reads.
_WINDOW: Final = 1 << 19
_STREAMS: Final = 3
_WRITE: Final = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
# A word with ssh's options: flags, then one that takes a value, and that value if it is attached.
_VALUED: Final = "BbcDEeFIiJLlmOoPpQRSWw"
_OPTION: Final = re.compile(f"-[^{_VALUED}]*([{_VALUED}]?)(.*)", re.DOTALL)
_SAFE: Final = re.compile(r"[^A-Za-z0-9._:@%+-]")

Run: TypeAlias = Callable[[Sequence[str], object, Sequence[int]], Coroutine[Any, Any, int]]


class HostKeyCheck(asyncssh.SSHClient):
    """Trusts one host key, or any where none is pinned."""

    def __init__(self, pinned: asyncssh.SSHKey | None) -> None:
        self._pinned = pinned

    def validate_host_public_key(
        self,
        host: str,  # noqa: ARG002 - asyncssh's signature
        addr: str,  # noqa: ARG002
        port: int,  # noqa: ARG002
        key: asyncssh.SSHKey,
    ) -> bool:
        """Whether the server may be logged in to."""
        return self._pinned is None or key == self._pinned


class HostLogins:
    """Logs in to the hosts of a launch, some at once."""

    def __init__(self, key: str, patience: SshTimeouts) -> None:
        """Read the job's key.

        Raises:
            OSError: it can't be read.
            ValueError: it is no key.
        """
        self._key = asyncssh.read_private_key(key)
        self._patience = patience
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def log_in(
        self, remote: LaunchHost, user: str, once: int = 0
    ) -> asyncssh.SSHClientConnection:
        """Log in to a host, as often as the settings say, or once within so many seconds.

        Raises:
            OSError, ValueError, asyncio.TimeoutError, asyncssh.Error: it doesn't let us in.
        """
        async with self._free:
            return await self._log_in(remote, user, once)

    async def _log_in(
        self, remote: LaunchHost, user: str, once: int
    ) -> asyncssh.SSHClientConnection:
        left = 1 if once else max(1, self._patience.attempts)
        limit = once or self._patience.timeout or None
        while True:
            left -= 1
            try:
                return await asyncio.wait_for(self._open(remote, user), limit)
            except (OSError, asyncssh.ConnectionLost, asyncio.TimeoutError) as wrong:
                # The gate has just seen the host answer: a dropped SYN, or a full queue.
                # `wait_for` says nothing; the system's own time-out has words.
                silent = isinstance(wrong, asyncio.TimeoutError) and not str(wrong)
                if not left and not silent:
                    raise
                if not left:
                    where = f"{remote.address} port {remote.port}"
                    raise TimeoutError(f"no login at {where} within {limit} s") from None
            await asyncio.sleep(1)

    async def _open(self, remote: LaunchHost, user: str) -> asyncssh.SSHClientConnection:
        pinned = asyncssh.import_public_key(remote.key) if remote.key else None
        return await asyncssh.connect(
            remote.address,
            remote.port,
            client_factory=lambda: HostKeyCheck(pinned),
            server_host_key_algs=host_key_algorithms(pinned),
            username=user,
            client_keys=[self._key],
            preferred_auth="publickey",
            **NOTHING_ELSE,
            keepalive_interval=self._patience.interval,
            keepalive_count_max=self._patience.probes,
            login_timeout=self._patience.timeout,
        )


class ClientSession(asyncssh.SSHClientSession[bytes]):
    """One command on one host, between the agent's streams and the connection."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._stdin = InputStream(descriptors[0], self._send_input)
        self._stdout = OutputStream(descriptors[1], self._throttle)
        self._stderr = OutputStream(descriptors[2], self._throttle)
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._full = False
        self._flushing = False
        self._closed = False
        self.status = FAILED
        self.lost: Exception | None = None
        self.done = asyncio.Event()

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Take the channel over."""
        self._channel = chan

    @property
    def begun(self) -> bool:
        """Whether a connection has given it a channel."""
        return self._channel is not None

    def session_started(self) -> None:
        """Begin to read what the command is to read."""
        self._stdin.resume()

    def _send_input(self, data: bytes) -> None:
        if self._channel is None or self._channel.is_closing():
            return
        if data:
            self._channel.write(data)
        else:
            self._channel.write_eof()

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        """Write what the command has written."""
        (self._stderr if datatype == asyncssh.EXTENDED_DATA_STDERR else self._stdout).write(data)

    def _throttle(self) -> None:
        # asyncssh reopens the window with the first part that it hands on. Pausing it again before
        # the last part would let in as much each time as goes out, and much more.
        if self._flushing:
            return
        full = self._stdout.full or self._stderr.full
        if full != self._full and self._channel is not None:
            self._full = full
            if full:
                self._channel.pause_reading()
            else:
                self._flushing = True
                self._channel.resume_reading()
                self._flushing = False
                self._throttle()
        self._finish()

    def pause_writing(self) -> None:
        """Read no more until the channel has room."""
        self._stdin.pause()

    def resume_writing(self) -> None:
        """Read on."""
        self._stdin.resume()

    def eof_received(self) -> bool:
        """Keep the channel at the end of what the command writes."""
        return True  # our own side stays open: the command may still read

    def exit_status_received(self, status: int) -> None:
        """Keep the command's status."""
        self.status = status

    def connection_lost(self, exc: Exception | None) -> None:
        """End, with the reason where the connection was lost."""
        self.lost = exc
        self._closed = True
        self._stdin.close()
        self._finish()

    def _finish(self) -> None:
        if self._closed and self._stdout.idle and self._stderr.idle:
            self.done.set()

    def close(self) -> None:
        """Close the agent's streams."""
        for stream in (self._stdin, self._stdout, self._stderr):
            stream.close()


def read_words(words: Sequence[str]) -> tuple[str, str, str]:
    """Read ssh's command line as far as it matters here: user (if given), host, command."""
    queue = list(words)
    before, ended = _options(queue)
    if not queue:
        raise ValueError("no host was named")
    named, _, host = queue.pop(0).rpartition("@")
    # As ssh does: options may follow the host, and the first user counts.
    behind = "" if ended else _options(queue)[0]
    return before or named or behind, host, " ".join(queue)


def _options(queue: list[str]) -> tuple[str, bool]:
    """Take options off the front; give the user that they name, and whether ``--`` ended them."""
    user = ""
    while queue and queue[0].startswith("-"):
        word = queue.pop(0)
        if word == "--":
            return user, True
        letter, value = _OPTION.findall(word)[0]
        if letter and not value and queue:
            value = queue.pop(0)
        if letter == "l":
            user = user or value
    return user, False


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

    def keep(self, connections: ConnectionPool) -> None:
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
        loop = asyncio.get_running_loop()
        descriptors: list[int] = []
        status = FAILED
        with agent:
            try:
                request = await _request(agent, descriptors)
                if len(descriptors) == _STREAMS:
                    words = request["words"]
                    words = words if isinstance(words, list) else []
                    asks = int(str(request.get("asks") or 0))
                    session = self.run(words, request["agent"], descriptors, asks)
                    # An agent says nothing more until it is gone.
                    status = await _until(session, loop.sock_recv(agent, 1))
                await loop.sock_sendall(agent, f"{status}\n".encode())
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
                if not asks:
                    self.notify(f"connected {host} {agent}\n")
                if not kept:
                    await _start(connection, command, session)
                await session.done.wait()
            finally:
                if session.status == FAILED:
                    connection.abort()
                elif kept and not session.status:
                    # For the questions after the job. After another status the host ends with the
                    # connection what is left there, as it does behind ssh.
                    self._kept[remote.name, user] = connection
                else:
                    connection.close()
            if session.lost is not None:
                self._log_error(host, f"the connection is lost: {session.lost}")
        except (OSError, ValueError, asyncio.TimeoutError, asyncssh.Error) as wrong:
            self._log_error(host, str(wrong) or type(wrong).__name__)
            return FAILED
        finally:
            session.close()
        return session.status

    async def _start_over_kept(
        self, remote: LaunchHost, user: str, command: str, session: ClientSession
    ) -> asyncssh.SSHClientConnection | None:
        """Start over the gate's connection, which one session has at a time; None without one."""
        connection = self._kept.pop((remote.name, user), None)
        if connection is None:
            return None
        try:
            await _start(connection, command, session)
        except BaseException as wrong:
            connection.abort()
            # A server that refuses a second session, or a connection that is gone: log in anew.
            if session.begun or not isinstance(wrong, (OSError, asyncssh.Error)):
                raise
            return None
        return connection

    def _find(self, name: str) -> LaunchHost:
        if name in self._hosts:
            return self._hosts[name]
        short = [item for item in self.config.hosts if item.name.partition(".")[0] == name]
        if len(short) != 1:
            raise ValueError(f"{name} is no host of this job")
        return short[0]

    def notify(self, line: str) -> None:
        """Write a line to the parent of mpirun; opened for reading too, a FIFO never blocks."""
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

    def _log_error(self, host: str, message: str) -> None:
        """Write an error where the parent looks for it: the file of ssh's ``-E``."""
        text = f"mpiboot's SSH client: {host}: {' '.join(message.split())}\n"
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
    """Read an agent's request; its streams come with the first part."""
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(agent, ready.set)
    data = b""
    try:
        while not data.endswith(b"\n"):
            await ready.wait()
            ready.clear()
            try:
                part, given, _, _ = socket.recv_fds(agent, _PIECE, _STREAMS)
            except BlockingIOError:  # woken twice for one part
                continue
            descriptors += given
            # The end of an agent that went away ends the request, which is no JSON then.
            data += part or b"\n"
        value = json.loads(data)
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    finally:
        loop.remove_reader(agent)
    return value if isinstance(value, dict) else {}


async def _until(session: Coroutine[Any, Any, int], gone: Coroutine[Any, Any, object]) -> int:
    """Run a session until it ends or its agent is gone; give its status."""
    running, leaving = asyncio.ensure_future(session), asyncio.ensure_future(gone)
    await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
    for task in (leaving, running):
        task.cancel()
    ended = (await asyncio.gather(running, return_exceptions=True))[0]
    return ended if isinstance(ended, int) else FAILED


class AgentRequests:
    """The FIFOs of one launch, and the agents that wait there."""

    def __init__(self, folder: Path, hosts: Iterable[str], notify: Callable[[str], None]) -> None:
        """Make the FIFOs; agents may write from now on.

        Args:
            folder: the launch folder.
            hosts: as mpirun calls them.
            notify: writes a line to the parent of mpirun.

        Raises:
            OSError: they can't be made, or too few files may be open.
        """
        self._folder = folder / SESSIONS
        self._notify = notify
        self._folder.mkdir(mode=0o700)
        # Open for both: an agent that opens its FIFO waits for nobody.
        self._unused = {name: _fifo(self._folder / name) for name in hosts}
        self._cancelled: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._rest = b""
        self._requests = _fifo(folder / REQUESTS)

    def serve(self, run: Run) -> None:
        """Listen to agents from now on, and run their sessions."""
        asyncio.get_running_loop().add_reader(self._requests, self._read, run)

    def _read(self, run: Run) -> None:
        with suppress(BlockingIOError):
            self._rest += os.read(self._requests, _PIECE)
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            match os.fsdecode(line).split():
                case ["start", host, pid] if pid.isdecimal():
                    task = asyncio.ensure_future(self._serve(host, int(pid), run))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                case ["end", host, _] if (self._folder / host).exists():
                    # A signal may come before the agent has asked.
                    self._cancelled.setdefault(host, asyncio.Event()).set()

    async def _serve(self, host: str, pid: int, run: Run) -> None:
        unused = self._unused.pop(host, None)
        if unused is None:
            return
        try:
            request = (self._folder / f"{host}.request").read_bytes()
            words = [os.fsdecode(word) for word in request.split(b"\0")[:-1]]
            streams = take(pid)
        except (OSError, ValueError):
            os.write(unused, b"refused\n")
            os.close(unused)
            return
        # The agent reads already; if it is gone, nobody reads once ``unused`` is closed.
        answers = os.open(self._folder / host, _WRITE)
        os.close(unused)
        try:
            _answer(answers, "taken")
            cancelled = self._cancelled.setdefault(host, asyncio.Event())
            status = await _until(run(words, pid, streams), cancelled.wait())
            # The parent must read this before it sees the agent end.
            self._notify(f"closed {host} {pid}\n")
            _answer(answers, str(status))
        finally:
            os.close(answers)


def _fifo(path: Path) -> int:
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _answer(descriptor: int, word: str) -> None:
    with suppress(OSError):  # it is gone
        os.write(descriptor, f"{word}\n".encode())


class StayingClient:
    """The client of one launch; agents may come from now on, and wait until it serves."""

    def __init__(self, folder: Path, config: ClientConfig, kept: ConnectionPool) -> None:
        """Make what agents reach it by, in the launch folder.

        Raises:
            OSError: that can't be made, or too few files may be open.
        """
        os_calls.raise_soft_limits()
        self._kept = kept
        self._client = Client(config)
        names = [host.name for host in config.hosts]
        self._requests = AgentRequests(folder, names, self._client.notify)
        self._listener = socket.socket(fileno=os_calls.listen(str(folder), CLIENT_SOCKET))

    async def serve(self) -> None:
        """Serve until this process ends."""
        self._client.keep(self._kept)
        self._listener.setblocking(False)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._listener, self._client.accept, self._listener)
        self._requests.serve(self._client.run)
        await loop.create_future()


async def serve(config: ClientConfig, listener: socket.socket) -> None:
    """Serve until the parent is gone."""
    loop = asyncio.get_running_loop()
    client = Client(config)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    try:
        parent = os_calls.process_handle(config.parent)
    except ProcessLookupError:
        return
    if parent is not None:  # else the pod's end is this process's, too
        loop.add_reader(parent, stop.set)
    listener.setblocking(False)
    loop.add_reader(listener, client.accept, listener)
    await stop.wait()
    # Nothing is waited for: the agents are gone, and the workers see their connections end.
    os._exit(0)


def main(path: str) -> None:
    """Run the client that a configuration file describes; stdin is its listening socket."""
    config = ClientConfig.from_json(Path(path).read_text("utf-8"))
    wrong: tuple[type[Exception], ...] = (OSError, ValueError, asyncssh.Error)
    os_calls.raise_soft_limits()
    try:
        asyncio.run(serve(config, socket.socket(fileno=os.dup(0))))
    except wrong as problem:
        sys.exit(f"mpiboot's SSH client: {problem}")
