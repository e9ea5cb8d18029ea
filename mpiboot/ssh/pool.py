"""The one way to reach the hosts of a job: ``Pool.run`` and ``Pool.start`` run shell scripts.

Over SSH a host keeps the connection of its first login: commands and the sessions of mpirun's
agents share it, and log in again where it has gone. A host that asyncssh can't log in to gets the
image's ssh for each command, a pod that kubectl enters a kubectl, and this pod a shell.

asyncssh is loaded in a thread at the first login, while names are resolved.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mpiboot.core.model import HostKeys
from mpiboot.ssh import attempt as tcp
from mpiboot.ssh.attempt import (
    BY_LOGIN,
    SHELL,
    WINDOW,
    Attempt,
    CommandEnd,
    HostCommand,
    LoginTimeouts,
    Outcome,
    Target,
)
from mpiboot.ssh.client import OpensshClient, PodAccess, pod_of
from mpiboot.ssh.config import LaunchHost, SshTimeouts
from mpiboot.system.programs import end_tasks, in_thread, start_async

if TYPE_CHECKING:
    import asyncssh

    from mpiboot.core.facts import Worker
    from mpiboot.ssh.login import Login

# The name of this pod in ``Pool.run`` and ``Pool.start``.
THIS_POD: Final = ""
# kubectl costs a tenth of a second of a core and 40 MB each, ssh 50 ms and some megabytes.
_MAX_KUBECTLS, _MAX_SSHS = 16, 64
# In the greeting of tinysshd, which does not answer what asyncssh sends at once after a login.
_TINYSSH: Final = "tinyssh"
# What ssh may do, and asyncssh can't: other algorithms, certificates, an agent's keys.
_SSH_MAY_KNOW: Final = frozenset((Outcome.PROTOCOL, Outcome.KEY_REFUSED, Outcome.PASSWORD_ASKED))
_RETRY_PAUSE_S: Final = 1.0
_DISCONNECT_S: Final = 1.0
# What ssh says, and the verdict reads.
_SSH_WORDS: Final = {
    Outcome.HOST_KEY_DIFFERS: "host key verification failed",
    Outcome.PASSWORD_ASKED: "permission denied",
}

# Each has an address, a port and a user.
Place: TypeAlias = "Worker | Target | LaunchHost"


class NotStartedError(ConnectionError):
    """A connection on which no session could be opened."""


def _for_server(command: str, version: str) -> bytes:
    """Encode a command, in which a word may hold any byte but zero."""
    words = command.encode("utf-8", "surrogateescape")
    # asyncssh's server refuses what is not UTF-8, in private code (2.24.1, channel.py, 1734).
    if "AsyncSSH" not in version or words.decode("utf-8", "replace") == command:
        return words
    octal = "".join(f"\\{byte:03o}" for byte in words)
    return f"eval \"$(printf '{octal}')\"".encode("ascii")


@dataclass(slots=True, eq=False)
class PooledConnection:
    """An open connection, and how many commands and agents' sessions run over it.

    It has one session at a time (``in_session``), whose bad end retires it: the host ends with the
    connection what a session has left. A ``retired`` one gets nothing new, and is closed once
    nothing runs.
    """

    connection: asyncssh.SSHClientConnection
    users: int = 0
    in_session: bool = False
    retired: bool = False

    async def start(
        self,
        command: str,
        seconds: float | None,
        **how: Any,  # noqa: ANN401 - asyncssh's
    ) -> asyncssh.SSHClientProcess[bytes]:
        """Start a command, whose user calls ``release`` at its end.

        Args:
            command: for the login shell.
            seconds: the time limit; None: no limit.
            how: asyncssh's, for the session of an agent alone.

        Raises:
            NotStartedError: nothing was started, and may be over another connection.
            OSError, asyncio.TimeoutError, asyncssh.Error: it is not known to run.
        """
        from asyncssh import Error, SSHClientProcess  # noqa: PLC0415 - loaded for the connection

        made = list[SSHClientProcess[bytes]]()

        def process() -> SSHClientProcess[bytes]:
            made.append(SSHClientProcess())
            return made[0]

        self.users += 1
        self.in_session = self.in_session or bool(how)
        words: Any = _for_server(command, self.connection.get_extra_info("server_version"))
        opening = self.connection.create_session(
            process, words, encoding=None, window=WINDOW, **how
        )
        try:
            await asyncio.wait_for(opening, seconds)
        except BaseException as exc:
            self.release(good=not how)  # a query may be late, and others have begun
            if not made and isinstance(exc, (Error, asyncio.TimeoutError)):
                reason = str(exc) or type(exc).__name__
                raise NotStartedError(f"can't open an SSH session: {reason}") from exc
            raise
        return made[0]

    def release(self, *, good: bool = True) -> None:
        """Note that a command or a session has ended."""
        self.users -= 1
        if self.retired or not good:
            self.retire()

    def retire(self) -> None:
        """Let nothing new run over it."""
        self.retired = True
        if not self.users:
            self.connection.close()


class Pool:
    """The hosts of a job and the connections to them.

    ``client`` is the image's own ssh, None where it can't run; ``pods`` is how kubectl enters the
    hosts, None for SSH; ``environ`` the environment of commands in this pod; ``report`` gets a line
    for each session of an agent's that is connected or closed.
    """

    def __init__(
        self,
        key: Path | None,
        *,
        host_key: str = "",
        host_keys: HostKeys = HostKeys.JOB,
        timeouts: SshTimeouts = SshTimeouts(3, 30, 30, 10),  # noqa: B008 - it is frozen
        client: OpensshClient | None = None,
        pods: PodAccess | None = None,
    ) -> None:
        """Log in nowhere yet.

        Args:
            key: path of the job's private key; None where no host is reached by SSH.
            host_key: the pinned public key as a line; empty for the public half of ``key``.
            host_keys: the setting.
            timeouts: how often a login is repeated, and the keep-alive.
            client: the image's own ssh.
            pods: how kubectl enters the hosts.
        """
        self.client, self.pods = client, pods
        self.report: Callable[[str], None] = lambda _: None
        self.environ: Mapping[str, str] = os.environ
        # mpirun's environment, which is this process's later on, lacks what kubectl reads of a
        # cluster (KUBERNETES_SERVICE_HOST), lest ranks get it.
        self._own_environ = dict(os.environ)
        self._key, self._host_key, self._host_keys = key, host_key, host_keys
        self.timeouts = timeouts
        self._login: asyncio.Future[Login] | None = None
        self._hosts: dict[str, LaunchHost] = {}
        self._links: dict[tuple[str, int, str], list[PooledConnection]] = {}
        self._programs = asyncio.Semaphore(_MAX_KUBECTLS if pods else _MAX_SSHS)

    def know(self, hosts: Iterable[LaunchHost]) -> None:
        """Let it reach these hosts, by their names."""
        self._hosts.update((item.name, item) for item in hosts)

    def find(self, name: str) -> LaunchHost:
        """Find a host by a name of mpirun's.

        Raises:
            ValueError: it is no host of this job.
        """
        if name in self._hosts:
            return self._hosts[name]
        # The hostfile's name and mpirun's may be of one host.
        short = {
            _key(item): item for item in self._hosts.values() if item.name.partition(".")[0] == name
        }
        if len(short) == 1:
            return short.popitem()[1]
        # One that ranks add while they run (MPI_Comm_spawn) is reached as the others are.
        alike = {replace(item, name=name, address=name) for item in self._hosts.values()}
        if not name or short or len(alike) != 1:
            raise ValueError(f"{name} is no host of this job")
        return alike.pop()

    async def load(self) -> Login:
        """Load asyncssh and the job's key, once.

        Raises:
            MpibootError: ``ssh-key``.
        """
        if self._login is None:
            self._login = asyncio.ensure_future(in_thread(self._load))
        return await asyncio.shield(self._login)

    def _load(self) -> Login:
        from mpiboot.ssh.login import Login  # noqa: PLC0415 - heavy

        assert self._key is not None  # noqa: S101 - no host is reached by SSH otherwise
        return Login(self._key, self._host_key)

    async def run(
        self,
        host: str,
        script: str,
        seconds: float,
        *,
        login_seconds: float | None = None,
        begun: Callable[[], None] = lambda: None,
    ) -> CommandEnd:
        """Run a script to its end; no failure raises.

        Args:
            host: by a name that the pool knows; THIS_POD for this pod.
            script: for a POSIX shell there.
            seconds: the time limit, without the wait for other programs of this pod.
            login_seconds: that of a login, which may be shorter.
            begun: called at the end of that wait.
        """
        known = self._hosts.get(host)
        by_program = host != THIS_POD and (self.pods or (known and known.by_ssh))
        async with self._programs if by_program else nullcontext():
            begun()
            starting = partial(self._start, host, script, login_seconds or seconds)
            return await self._end_of(starting, seconds)

    async def addresses(self, pod: str, seconds: float) -> CommandEnd:
        """Have kubectl print the addresses of a pod; none before it has one."""
        assert self.pods is not None  # noqa: S101 - the caller has no other pods
        return await self._by_program(self.pods.addresses(pod), "", seconds)

    async def _by_program(self, words: Sequence[str], script: str, seconds: float) -> CommandEnd:
        async with self._programs:
            return await self._end_of(partial(self._program, words, script), seconds)

    async def _end_of(
        self, start: Callable[[], Coroutine[Any, Any, HostCommand]], seconds: float
    ) -> CommandEnd:
        async def work() -> CommandEnd:
            started = await start()
            try:
                return await started.finish()
            finally:
                started.end()

        try:
            return await asyncio.wait_for(work(), seconds)
        except asyncio.TimeoutError as error:  # with words it is the connection's end (ETIMEDOUT)
            reason = str(error)
            return CommandEnd(error=reason or f"no end within {seconds:g} s", timed_out=not reason)
        except Exception as error:  # noqa: BLE001 - asyncssh's, which is not loaded here
            return CommandEnd(error=" ".join(str(error).split()) or type(error).__name__)

    async def start(self, host: str, script: str, seconds: float) -> HostCommand:
        """Start a script that reads lines once it has written one; its stderr is discarded.

        A shell may read ahead of the script's end (dash does).

        Args:
            host: as for ``run``.
            script: for a POSIX shell there.
            seconds: the time limit of a login, and of the start.

        Raises:
            OSError, ValueError, asyncio.TimeoutError, asyncssh.Error: it can't be started.
        """
        return await self._start(host, f"exec 2> /dev/null\n{script}", seconds)

    async def _start(self, host: str, script: str, seconds: float) -> HostCommand:
        if host == THIS_POD:
            return await self._program(SHELL, script)
        if self.pods is not None:
            return await self._program(self.pods.run(pod_of(host)), script)
        remote = self.find(host)
        if self.client is not None and remote.by_ssh:
            target = Target(host, remote.address, remote.port, remote.user)
            return await self._program(self.client.words(target), script)
        return _command(*await self.open_session(remote, BY_LOGIN, seconds), script)

    async def open_session(
        self, remote: LaunchHost, command: str, once: float = 0.0
    ) -> tuple[PooledConnection, asyncssh.SSHClientProcess[bytes]]:
        """Start a command over an open connection, else over that of another login.

        Args:
            remote: the host.
            command: the words.
            once: the time limit of a command's start; 0 for an agent's session, with its
                environment and the settings' limits.

        Raises:
            OSError, asyncio.TimeoutError, asyncssh.Error, MpibootError: it can't be started.
        """
        how = {} if once else {"send_env": remote.send, "env": remote.variables}
        limit = once or self.timeouts.timeout or None
        for link in self.open(remote):
            if once or not link.in_session:
                with suppress(NotStartedError):
                    return link, await link.start(command, limit, **how)
        link = await self.log_in_again(remote, once)
        return link, await link.start(command, once or None, **how)

    async def _program(self, words: Sequence[str], script: str) -> HostCommand:
        environ = self.environ if words is SHELL else self._own_environ
        program = await start_async(words, environ)

        async def wait() -> int:
            return os.waitstatus_to_exitcode(await program.child.ended())

        streams = program.stdin, program.stdout, program.stderr
        started = HostCommand(*streams, wait, program.end)
        started.write(script)
        return started

    async def log_in(self, target: Target, script: str, limits: LoginTimeouts) -> Attempt:
        """Make one attempt of the gate: log in at an address and run a script.

        The host of a good one is known from now on, and its connection stays open.

        Raises:
            MpibootError: ``ssh-key``, or ``runtime-folder``: what ssh reads can't be written.
        """
        if self.client and self.client.known(target.host).proxied:
            end = await self._by_program(self.client.words(target), script, limits.ssh)
            found = self.client.attempt(target, end)
        else:
            found, sock = await tcp.connect(target, limits)
            if sock is None:
                return found
            with sock:
                found = await self._log_in(found, sock, script, limits)
        if found.outcome is Outcome.OK:
            key = "" if self._host_keys is HostKeys.OFF else found.host_key
            by_ssh = self.client is not None and target.host in self.client.carried
            place = target.host, target.address, target.port, target.user
            self.know((LaunchHost(*place, key=key, by_ssh=by_ssh),))
        return found

    async def _log_in(
        self, seen: Attempt, sock: socket.socket, script: str, limits: LoginTimeouts
    ) -> Attempt:
        target, client = seen.target, self.client
        if client is None or not client.usable:
            return await self._by_asyncssh(seen, sock, script, limits)
        found, why = None, ""
        if _TINYSSH in seen.greeting:
            why = "its server has one session for each connection"
        elif not (target.host in client.carried or client.known(target.host).only_ssh):
            found = await self._by_asyncssh(seen, sock, script, limits)
            why = found.message
            if found.outcome not in _SSH_MAY_KNOW:
                return found
        sock.close()
        end = await self._by_program(client.words(target), script, limits.ssh)
        by_ssh = client.attempt(target, end, why)
        by_ssh = replace(by_ssh, greeting=seen.greeting, local_address=seen.local_address)
        if found is None:
            return by_ssh
        if by_ssh.outcome is Outcome.OK:
            return replace(by_ssh, host_key=by_ssh.host_key or found.host_key)
        # The key that asyncssh was shown tells whose server this is.
        outcome = by_ssh.outcome if by_ssh.outcome in _SSH_MAY_KNOW else found.outcome
        message = f"{found.message}; {client.program}: {by_ssh.message}"
        return replace(found, outcome=outcome, message=message)

    async def _by_asyncssh(
        self, found: Attempt, sock: socket.socket, script: str, limits: LoginTimeouts
    ) -> Attempt:
        login = await self.load()
        pinned = login.host_line if self._host_keys is HostKeys.JOB else ""
        found, connection = await login.authenticate(found, sock, limits.login, pinned)
        if connection is None:
            return found
        link, end = self._keep(found.target, PooledConnection(connection)), CommandEnd()

        async def start() -> HostCommand:
            return _command(link, await link.start(BY_LOGIN, limits.command), script)

        try:
            end = await self._end_of(start, limits.command)
        finally:
            if end.status != 0:
                link.retire()
        return tcp.with_end(found, end, limits.command)

    async def log_in_again(self, remote: LaunchHost, once: float = 0.0) -> PooledConnection:
        """Log in to a host that passed the gate.

        Args:
            remote: the host.
            once: the time limit of each step of one attempt, in seconds; 0: as often, and for as
                long, as the settings say.

        Raises:
            OSError: it failed.
            MpibootError: ``ssh-key``.
        """
        seconds = once or self.timeouts.timeout or float("inf")
        limits = LoginTimeouts(seconds, seconds, seconds)
        tries = 1 if once else max(1, self.timeouts.attempts)
        while True:
            found, connection = await self._authenticate(remote, limits)
            if connection is not None:
                return self._keep(remote, PooledConnection(connection))
            tries -= 1
            # Else a dropped SYN, or a full queue: the gate has just seen the host answer.
            if not tries or found.outcome.rank >= Outcome.HOST_KEY_DIFFERS.rank:
                reason = _SSH_WORDS.get(found.outcome, found.outcome.value)
                message = f": {found.message}" if found.message else ""
                raise ConnectionError(f"{reason} at {remote.address} port {remote.port}{message}")
            await asyncio.sleep(_RETRY_PAUSE_S)

    async def _authenticate(
        self, remote: LaunchHost, limits: LoginTimeouts
    ) -> tuple[Attempt, asyncssh.SSHClientConnection | None]:
        login = await self.load()
        target = Target(remote.name, remote.address, remote.port, remote.user)
        # Of a host that ranks have added its name alone is known.
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(remote.address, None, type=socket.SOCK_STREAM)
        failed = Attempt(target, Outcome.NO_SOCKET)
        for *_, place in found:
            failed, sock = await tcp.connect(replace(target, address=str(place[0])), limits)
            if sock is not None:
                return await login.authenticate(failed, sock, limits.login, remote.key)
        return failed, None

    def _keep(self, place: Place, link: PooledConnection) -> PooledConnection:
        # From now on: a timer that each packet sets anew would cost a login much.
        link.connection.set_keepalive(self.timeouts.interval, self.timeouts.probes)
        self._links.setdefault(_key(place), []).append(link)
        return link

    def open(self, place: Place) -> list[PooledConnection]:
        """List the connections to an address, port and user that take something new."""
        found = self._links.get(_key(place), [])
        # Those that are being closed are waited for in ``close``.
        found[:] = [link for link in found if not link.connection.is_closed()]
        return [link for link in found if not link.retired]

    def drop(self, place: Place) -> None:
        """Close the connections to a host that another login will replace."""
        for link in self.open(place):
            link.retire()

    async def close(self) -> None:
        """Disconnect from all hosts, which ends the commands there."""
        links = [link for links in self._links.values() for link in links]
        self._links.clear()
        for link in links:
            link.connection.close()
        # First the message, so that no server logs a connection that was reset.
        if closing := [asyncio.ensure_future(link.connection.wait_closed()) for link in links]:
            _, ignored = await asyncio.wait(closing, timeout=_DISCONNECT_S)
            await end_tasks(ignored)
        for link in links:
            link.connection.abort()


def _command(
    link: PooledConnection, process: asyncssh.SSHClientProcess[bytes], script: str
) -> HostCommand:
    """Give a login shell its script."""

    async def wait() -> int | None:
        return (await process.wait()).exit_status

    ends = ExitStack()  # closed again, it does nothing
    ends.callback(link.release)
    ends.callback(process.close)
    started = HostCommand(process.stdin, process.stdout, process.stderr, wait, ends.close)
    started.write(script)
    return started


def _key(place: Place) -> tuple[str, int, str]:
    # Hosts may share all of these.
    return (place.address, place.port, place.user)
