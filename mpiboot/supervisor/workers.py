"""Commands on the job's hosts beside mpirun's daemons, by mpiboot's own SSH client or the agent.

By these the parent itself tells the workers of the job's end, and asks them what carried its data:
a child would load for longer than a login takes. The parent loads this at the end alone.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from mpiboot.core.launch_names import CLIENT_SOCKET, LAUNCH_DIR, TRANSPORT
from mpiboot.hosts import host_shell
from mpiboot.hosts.host_shell import READ, WHEN_READ
from mpiboot.network import counters
from mpiboot.network.counters import QUESTION
from mpiboot.supervisor import evidence
from mpiboot.supervisor.asking import ASKS, CONNECT
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.system.loop import EventLoop
from mpiboot.system.spawn import spawn

_SECONDS: Final = 4.0
_SECONDS_FOR_PROOF: Final = 60.0  # the job's exit code depends on the answer
# A login is 10 ms of the launcher's own CPU and many times as long of a worker's.
AT_ONCE: Final = 64
_PIECE: Final = 1 << 16
# More than this no host has to say to the parent itself.
_MOST: Final = 1 << 18
_FAILED: Final = 255
# The launch folder, as the agents know it.
_AGENT: Final = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "libexec", "agent"
)


def has_client(folder: str) -> bool:
    """Whether a launch has mpiboot's own SSH client: then no session needs a process here."""
    return os.path.exists(f"{folder}/{CLIENT_SOCKET}")


class HostSession:
    """One command on one host: what it has written is read when ``handle`` is ready."""

    def __init__(
        self, folder: str, environ: Mapping[str, str], host: HostSnapshot, command: str
    ) -> None:
        """Begin.

        Raises:
            OSError: it can't be started.
        """
        self.output, self._pid = b"", 0
        self.handle = self._go_on = self._client = -1
        streams: list[int] = []  # the command's
        try:
            stdin, self._go_on = os.pipe()
            streams.append(stdin)
            self.handle, stdout = os.pipe()
            streams.append(stdout)
            streams.append(os.open(os.devnull, os.O_WRONLY))
            if f"'{WHEN_READ}'" not in command:
                os.close(self._go_on)
                self._go_on = -1
            if not host.here and has_client(folder):
                self._client = _by_client(folder, environ, (host.name, command), streams)
            else:
                argv = ("/bin/sh", *(("-c",) if host.here else (_AGENT, host.name)), command)
                its = dict(enumerate(streams))
                self._pid = spawn(argv, environ, streams=its)
        except BaseException:
            self.end()
            raise
        finally:
            for handle in streams:
                os.close(handle)

    def read(self) -> bool:
        """Take in what has come, and let the command go on where it waits for that.

        Returns:
            Whether nothing more comes.
        """
        piece = os.read(self.handle, _PIECE)
        self.output += piece
        if self._go_on >= 0 and self.output.endswith(f"{READ}\n".encode()):
            with suppress(OSError):  # it is gone
                os.write(self._go_on, b"\n")
        return not piece

    def status(self) -> int | None:
        """Give the command's status once it has ended; asked for when nothing more comes."""
        try:
            if self._client < 0:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                return os.waitstatus_to_exitcode(status) if pid else None
            return int(os.read(self._client, _PIECE) or _FAILED)
        except BlockingIOError:
            return None

    def end(self) -> None:
        """Let go of it, and end it where it still runs."""
        for handle in (self.handle, self._go_on, self._client):
            if handle >= 0:
                os.close(handle)
        with suppress(OSError):
            if self._pid and os.waitpid(self._pid, os.WNOHANG) == (0, 0):
                os.kill(self._pid, signal.SIGTERM)


def _by_client(
    folder: str, environ: Mapping[str, str], words: tuple[str, str], streams: list[int]
) -> int:
    """Hand a session to mpiboot's own client; give the socket with which it ends."""
    import socket  # noqa: PLC0415 - heavy, and few launches have such a client

    # A socket's path may be 107 bytes long, and the folder's may be longer.
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.setblocking(False)
            client.connect(f"/proc/self/fd/{here}/{CLIENT_SOCKET}")
            request = {"words": words, "agent": 0, "asks": environ.get(ASKS)}
            # Some kilobytes, for which a new connection has room.
            socket.send_fds(client, [json.dumps(request).encode() + b"\n"], streams)
            return client.detach()
    finally:
        os.close(here)


class HostSessions:
    """Commands on many hosts, some at once; ``answers`` has what those wrote that came to READ."""

    def __init__(
        self,
        loop: EventLoop,
        folder: str,
        environ: Mapping[str, str],
        must_end: Callable[[], bool],
        commands: Iterable[tuple[HostSnapshot, str]],
    ) -> None:
        """Begin.

        Args:
            loop: what else is listened to meanwhile: a FIFO that nobody empties would stop the
                agents.
            folder: the launch folder.
            environ: mpirun's environment.
            must_end: whether this process was told to end, which ends it.
            commands: each with its host.
        """
        self.answers: dict[str, str] = {}
        self._loop, self._must_end = loop, must_end
        environ = {**environ, LAUNCH_DIR: folder, ASKS: str(CONNECT)}
        self._begin = partial(HostSession, folder, environ)
        self._waiting = iter(commands)
        self._running: dict[HostSession, str] = {}
        self._start()

    def wait(self, seconds: float) -> None:
        """Wait for all of them, so long at most; those that are left are ended."""
        until = time.monotonic() + seconds
        while self._running and not self._must_end() and time.monotonic() < until:
            self._loop.wait(until)
        self._waiting = iter(())
        for session in tuple(self._running):
            self._over(session)

    def _start(self) -> None:
        while len(self._running) < AT_ONCE and not self._must_end():
            if (following := next(self._waiting, None)) is None:
                return
            with suppress(OSError):
                session = self._begin(*following)
                self._running[session] = following[0].name
                self._loop.on(session.handle, partial(self._read, session))

    def _read(self, session: HostSession) -> None:
        if session.read() or len(session.output) > _MOST:
            self._over(session)
            self._start()

    def _over(self, session: HostSession) -> None:
        self._loop.off(session.handle)
        session.end()
        host, text = self._running.pop(session), session.output.decode("utf-8", "replace")
        if READ in text:
            self.answers[host] = text


def hosts_of(folder: str) -> tuple[HostSnapshot, ...]:
    """Read what the gate saw of a launch's hosts; none where it has left nothing."""
    try:
        with open(f"{folder}/{evidence.FILE}", encoding="utf-8") as file:
            return evidence.from_json(file.read())
    except FileNotFoundError:
        return ()


class Workers:
    """The workers of a launch whose mpirun has ended."""

    def __init__(
        self, loop: EventLoop, folder: str, environ: Mapping[str, str], must_end: Callable[[], bool]
    ) -> None:
        """Read who they are; the rest is for ``HostSessions``."""
        self._folder, self._hosts = folder, hosts_of(folder)
        self._untold = [host for host in self._hosts if host.mpiboot]
        self._begin = partial(HostSessions, loop, folder, environ, must_end)

    def tell(self, attempt: str, why: str, hold: float) -> None:
        """Tell those that run mpiboot, and don't know yet, how the job has ended.

        Args:
            attempt: the launcher's name for workers.
            why: the reason; empty after a good end.
            hold: seconds that the launcher's pod stays up for inspection.
        """
        over = host_shell.order("job_is_over")
        order = host_shell.job_failed(attempt, hold, why) if why else over
        self._begin((host, order) for host in self._untold).wait(_SECONDS)

    def count(self, *, strict: bool, over: bool) -> None:
        """Read the counters of ports and links after a job that ended well; judge and write them.

        Args:
            strict: whether the job's exit code depends on them.
            over: whether the same sessions tell of that end: a login is most of what both cost.
        """
        asked = [host for host in self._hosts if host.counted or (over and host.mpiboot)]
        measured = [host for host in asked if host.counted]

        def command(host: HostSnapshot) -> str:
            counted = (QUESTION,) if host.counted else ()
            last = ("job_is_over",) if over and host.mpiboot else ()
            return host_shell.order(*counted, WHEN_READ, *last)

        sessions = self._begin((host, command(host)) for host in asked)
        from mpiboot.supervisor import transport  # noqa: PLC0415 - loaded while they answer

        sessions.wait(_SECONDS_FOR_PROOF if strict else _SECONDS)
        answers = {host: text.splitlines() for host, text in sessions.answers.items()}
        if over:  # the others again: one that was told may be gone, and its address silent
            self._untold = [host for host in self._untold if host.name not in answers]
        found = {host: counters.read(map(str.strip, lines)) for host, lines in answers.items()}
        if measured:
            write_transport(self._folder, transport.judge(measured, found, strict=strict))


def write_transport(folder: str, report: Mapping[str, Any]) -> None:
    """Write what carried the job's data: whole, as this process may be killed at any time."""
    path = f"{folder}/{TRANSPORT}"
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        file.write(json.dumps(report))
    os.replace(f"{path}.part", path)
