"""The sessions of mpirun's agents, over the connections of the pool.

A launch agent is a shell, which costs a twentieth of a megabyte where an ssh costs 1.4. It writes
ssh's words to ``sessions/NAME.request``, each with a zero behind it; who makes that file has the
FIFO ``sessions/NAME``: that of a host, which is made beforehand, or one of its own. Then it writes
``start NAME HOST PID`` to the FIFO ``requests`` and reads from its own: ``taken``, and at the end
the exit status. Its streams are opened anew by the pool; ``relay`` means that outputs can't be, and
that it is to copy what comes by ``sessions/NAME.out`` and ``.err``, which begins once it has opened
both and written ``relayed NAME``. With ``end NAME`` it gives the session up. A pool that is gone is
the end of what an agent reads. The session of an agent that was killed goes on, as an ssh does
behind it: an mpirun that gives up over a lost host kills all agents, and that host's session alone
has ended by then. What goes on ends with this process.
"""

from __future__ import annotations

import asyncio
import errno
import getopt
import os
import re
import select
import stat
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import asyncssh

from mpiboot.core.checks import MpibootError
from mpiboot.core.launch_spec import REQUESTS, SESSIONS
from mpiboot.ssh.config import LETTERS, LaunchHost
from mpiboot.ssh.pool import Pool, PooledConnection
from mpiboot.system.threads import end_tasks

# The ends of another program's streams are read and written without blocking. A descriptor that
# was passed on shares its flags with everybody who holds it, so none is changed: where it must not
# block, it is opened anew, or used only as far as the system promises. asyncssh's own redirection
# (2.24, by asyncio's pipes) leaves a descriptor non-blocking for everybody, also after the session:
# an mpirun that shares it would lose output (docs/reference/open-mpi-output.md).
#
# Those of a launch agent are taken without any help of it, as only a program of its own could hand
# an open file over. A pipe or a device can be opened anew by who may; anything else is mostly the
# launcher's own stdout or stderr, which mpirun hands on, and which this process has too.
_CHUNK: Final = 1 << 16
# Above the first number nobody may write more, below the second again.
_FULL, _LOW = 1 << 18, 1 << 16
_REOPEN: Final = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FIRST: Final = 3  # an agent has its streams from 3 on
_OWN: Final = (1, 2)


def _can_wait(descriptor: int) -> bool:
    """Whether one can wait for it: regular files and /dev/null are always ready."""
    mode = os.fstat(descriptor).st_mode
    terminal = stat.S_ISCHR(mode) and os.isatty(descriptor)
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or terminal


def _is_ready(descriptor: int) -> bool:
    """Whether a stream takes ``select.PIPE_BUF`` bytes at once, or its reader is gone."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


class InputStream:
    """A stream that is read while it is wanted: ``feed`` gets its parts, and b"" at its end."""

    def __init__(self, descriptor: int, feed: Callable[[bytes], None]) -> None:
        """Take the descriptor over; nothing is read before ``resume``."""
        self._descriptor = descriptor
        self._feed = feed
        self._can_wait = _can_wait(descriptor)
        self._wanted = False

    def resume(self) -> None:
        """Go on reading."""
        if self._descriptor < 0 or self._wanted:
            return
        self._wanted = True
        if self._can_wait:
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        else:
            asyncio.get_running_loop().call_soon(self._read_file)

    def pause(self) -> None:
        """Read no more for now."""
        self._wanted = False
        if self._descriptor >= 0 and self._can_wait:
            asyncio.get_running_loop().remove_reader(self._descriptor)

    def _read_file(self) -> None:
        # The channel pauses it once it has as much as it takes.
        while self._wanted:
            self._read()

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # a terminal that is not ours: as if it were at its end
        if not data:
            self.close()
        self._feed(data)

    def close(self) -> None:
        """Close the descriptor."""
        if self._descriptor >= 0:
            self.pause()
            os.close(self._descriptor)
            self._descriptor = -1


class OutputStream:
    """A stream that takes what it can and keeps the rest; ``full`` when that is much.

    ``failure`` is why something that was to be read could not be written, such as a full disk.
    """

    def __init__(self, descriptor: int, changed: Callable[[], None]) -> None:
        """Take the descriptor over; ``changed`` is called when ``full`` or ``idle`` changes."""
        self._descriptor = descriptor
        self._changed = changed
        self._unwritten = bytearray()
        self._watched = False
        self.full = False
        self.failure = ""
        self._can_wait = _can_wait(descriptor)
        # One that blocks is shared with others, and stays so: once it is ready it takes this much
        # without blocking, pipe(7); a socket more.
        self._blocks = self._can_wait and os.get_blocking(descriptor)

    @property
    def idle(self) -> bool:
        """Whether everything has been written."""
        return not self._unwritten

    def write(self, data: bytes) -> None:
        """Write now or later."""
        if self._descriptor < 0:
            return
        self._unwritten += data
        if self._watched:
            self._report()
        else:
            self._flush()

    def _flush(self) -> None:
        piece = select.PIPE_BUF if self._blocks else _CHUNK
        try:
            while self._unwritten and not (self._blocks and not _is_ready(self._descriptor)):
                del self._unwritten[: os.write(self._descriptor, self._unwritten[:piece])]
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):  # else nobody reads it
                self.failure = error.strerror or ""
            self.close()
            self._changed()
            return
        self._watch(wanted=bool(self._unwritten))
        self._report()

    def _watch(self, *, wanted: bool) -> None:
        if wanted == self._watched or not self._can_wait:
            return
        self._watched = wanted
        loop = asyncio.get_running_loop()
        if wanted:
            loop.add_writer(self._descriptor, self._flush)
        else:
            loop.remove_writer(self._descriptor)

    def _report(self) -> None:
        before, self.full = self.full, len(self._unwritten) > (_LOW if self.full else _FULL)
        if before != self.full or not self._unwritten:
            self._changed()

    def close(self) -> None:
        """Close the descriptor, and drop what was not written."""
        if self._descriptor >= 0:
            self._watch(wanted=False)
            self._unwritten.clear()
            self.full = False
            os.close(self._descriptor)
            self._descriptor = -1


def take(pid: int) -> list[int]:
    """Give what an agent has as 3, 4 and 5: its standard input, output and error.

    Raises:
        OSError: one can't be opened here.
        ValueError: one is of a kind that would be another one when opened anew: a file to write to
            that is not the launcher's own has a place in it, and a socket can't be opened.
    """
    found: list[int] = []
    try:
        for number, mode in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), _FIRST):
            found.append(_open_of(pid, number, mode))
    except (OSError, ValueError):
        for descriptor in found:
            os.close(descriptor)
        raise
    return found


def take_input(pid: int) -> int:
    """Give what an agent has as 3; /dev/null where that can't be opened here."""
    with suppress(OSError, ValueError):
        return _open_of(pid, _FIRST, os.O_RDONLY)
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _open_of(pid: int, number: int, mode: int) -> int:
    path = f"/proc/{pid}/fd/{number}"
    kind = Path(path).stat().st_mode
    if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
        # The container's own pipes are root's, and no other user may open them.
        with suppress(PermissionError):
            return os.open(path, mode | _REOPEN)
    if mode == os.O_RDONLY and stat.S_ISREG(kind):
        own = os.open(path, mode | os.O_CLOEXEC)
        os.lseek(own, _flags_and_place(pid, number)[1], os.SEEK_SET)
        return own
    if mode == os.O_WRONLY:
        flags, place = _flags_and_place(pid, number)
        for own in _OWN:
            same = os.path.samestat(os.fstat(own), Path(path).stat())
            if same and _flags_and_place(os.getpid(), own) == (flags, place):
                return os.dup(own)
        if stat.S_ISREG(kind) and flags & os.O_APPEND:
            return os.open(path, mode | os.O_APPEND | os.O_CLOEXEC)
    raise ValueError(f"stream {number} is neither a pipe nor the launcher's own")


def _flags_and_place(pid: int, number: int) -> tuple[int, int]:
    """Give how a descriptor was opened, and where in its file it is; proc_pid_fdinfo(5)."""
    text = Path(f"/proc/{pid}/fdinfo/{number}").read_text("ascii")
    fields = dict(line.split(":", 1) for line in text.splitlines())
    return int(fields["flags"], 8) & ~os.O_CLOEXEC, int(fields["pos"])


# The status of a session that did not come to an end of its own, as ssh has it.
FAILED: Final = 255

# What a host may send ahead: twice this much is kept for one that nobody reads.
_WINDOW: Final = 1 << 19
_WRITE: Final = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_SAFE: Final = re.compile(r"[^A-Za-z0-9._:@%+-]")


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
        self.words = b""  # the beginning of what it has written to stderr
        self.lost: Exception | None = None
        self.ended_by = ""  # the signal that ended the command
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
            self._stdin.close()
        elif data:
            self._channel.write(data)
        else:
            self._channel.write_eof()

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        """Write what the command has written."""
        if datatype == asyncssh.EXTENDED_DATA_STDERR:
            self.words = (self.words + data)[:400]
            self._stderr.write(data)
        else:
            self._stdout.write(data)

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

    @property
    def write_failure(self) -> str:
        """Why a part of its output is missing; empty where none is."""
        return self._stdout.failure or self._stderr.failure

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:  # noqa: FBT001
        """Keep the signal that ended the command; ssh has the same status for it as for a loss."""
        del core_dumped, msg, lang
        self.ended_by = signal

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
    """Read ssh's command line as far as it matters here: user (if given), host, command.

    Raises:
        ValueError: no host is named, or ssh has no such option.
    """
    try:
        options, rest = getopt.getopt(words, LETTERS)
        at = len(words) - len(rest)
        behind, command = list[tuple[str, str]](), rest[1:]
        if words[at - 1 : at] != ["--"]:  # as with ssh, options may follow the host
            behind, command = getopt.getopt(command, LETTERS)
    except getopt.GetoptError as error:
        raise ValueError(str(error)) from None
    if not rest:
        raise ValueError("no host was named")
    named, _, host = rest[0].rpartition("@")
    users = [user for letter, user in (*options, ("-l", named), *behind) if letter == "-l" and user]
    return users[0] if users else "", host, " ".join(command)


async def _begin(
    session: ClientSession, pool: Pool, remote: LaunchHost, command: str
) -> PooledConnection:
    """Start a session over an open connection, else over that of another login.

    Raises:
        OSError, asyncio.TimeoutError, asyncssh.Error, MpibootError: it can't be started.
    """
    free = (link for link in pool.open(remote) if not link.in_session)
    for link in free:
        try:
            await _start(session, pool, link, remote, command)
        except (OSError, asyncio.TimeoutError, asyncssh.Error):  # noqa: PERF203 - a login each
            # A server that refuses a second session, or a connection that is gone: log in anew.
            if session.begun:
                raise
        else:
            return link
    link = await pool.log_in_again(remote)
    await _start(session, pool, link, remote, command)
    return link


async def _start(
    session: ClientSession, pool: Pool, link: PooledConnection, remote: LaunchHost, command: str
) -> None:
    """Start a session over a connection, which is its user from then on."""
    opening = link.connection.create_session(
        lambda: session,
        # As bytes: a word may hold any but zero.
        command.encode("utf-8", "surrogateescape"),  # type: ignore[arg-type]
        encoding=None,
        window=_WINDOW,
        send_env=remote.send,
        env=remote.variables,
    )
    link.users += 1
    link.in_session = True
    try:
        await asyncio.wait_for(opening, pool.timeouts.timeout or None)
    except BaseException:
        link.retire()
        link.release()
        raise


async def _until(session: Coroutine[Any, Any, int], gone: Coroutine[Any, Any, object]) -> int:
    """Run a session until it ends or its agent gives it up; give its status."""
    running, leaving = asyncio.ensure_future(session), asyncio.ensure_future(gone)
    await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
    await end_tasks((leaving, running))
    return FAILED if running.cancelled() or running.exception() else running.result()


class AgentRequests:
    """The FIFOs of one launch, and the agents that wait there."""

    def __init__(self, folder: Path, hosts: Iterable[str]) -> None:
        """Make the FIFOs; agents may write from now on, and wait until ``serve``.

        Args:
            folder: the launch folder.
            hosts: as mpirun calls them.

        Raises:
            OSError: they can't be made, or too few files may be open.
        """
        self._launch_folder = folder
        self._folder = folder / SESSIONS
        self._folder.mkdir(mode=0o700)
        # Open for both: an agent that opens its FIFO waits for nobody.
        self._unused = {name: _fifo(self._folder / name) for name in hosts}
        self._events: dict[tuple[str, str], asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._rest = b""
        self._requests = _fifo(folder / REQUESTS)

    def serve(self, pool: Pool) -> None:
        """Listen to agents from now on, and run their sessions."""
        asyncio.get_running_loop().add_reader(self._requests, self._read, pool)

    def _read(self, pool: Pool) -> None:
        with suppress(BlockingIOError):
            self._rest += os.read(self._requests, _CHUNK)
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            match os.fsdecode(line).split():
                case ["start", name, host, pid] if pid.isdecimal():
                    task = asyncio.ensure_future(self._serve(name, host, int(pid), pool))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                # A signal may come before the agent has asked.
                case ["end" | "relayed" as what, name] if (self._folder / name).exists():
                    self._event(what, name).set()

    def _event(self, what: str, name: str) -> asyncio.Event:
        return self._events.setdefault((what, name), asyncio.Event())

    async def _serve(self, name: str, host: str, pid: int, pool: Pool) -> None:
        unused = self._unused.pop(name, -1)
        try:
            # The agent reads already; if it is gone, nobody reads once ``unused`` is closed.
            answers = os.open(self._folder / name, _WRITE)
        except OSError:
            return
        finally:
            if unused >= 0:
                os.close(unused)
        try:
            request = (self._folder / f"{name}.request").read_bytes()
            words = [os.fsdecode(word) for word in request.split(b"\0")[:-1]]
            session = self._session(name, words, pid, pool, answers)
            status = await _until(session, self._event("end", name).wait())
            # The supervisor must read this before it sees the agent end.
            pool.report(f"closed {host} {pid}")
            _answer(answers, str(status))
        finally:
            os.close(answers)
            # The FIFO first: another process of that number may come.
            for end in ("", ".request", ".out", ".err"):
                with suppress(OSError):
                    (self._folder / f"{name}{end}").unlink()
            for what in ("end", "relayed"):
                self._events.pop((what, name), None)

    async def _session(
        self, name: str, words: Sequence[str], pid: int, pool: Pool, answers: int
    ) -> int:
        try:
            streams = take(pid)
        except (OSError, ValueError):
            streams = self._relayed(name, pid)
            _answer(answers, "relay")
            try:
                await self._event("relayed", name).wait()
            except asyncio.CancelledError:  # given up: the copies end
                for stream in streams:
                    os.close(stream)
                raise
        else:
            _answer(answers, "taken")
        return await self.run(pool, words, streams)

    async def run(self, pool: Pool, words: Sequence[str], descriptors: Sequence[int]) -> int:
        """Run the session of an agent to its end; give its status.

        Args:
            pool: reaches the host.
            words: as ssh's, without its name.
            descriptors: the three streams; they are taken over.
        """
        session = ClientSession(descriptors)
        host = ""
        try:
            user, host, command = read_words(words)
            remote = pool.find(host)
            remote = replace(remote, user=user or remote.user)
            link = await _begin(session, pool, remote, command)
            try:
                pool.report(f"connected {host}")
                await session.done.wait()
            finally:
                # After a bad end the host ends with the connection what is left there, as it does
                # behind ssh.
                link.in_session = False
                if session.status != 0:
                    link.retire()
                link.release()
            if session.lost is not None:
                self._log_error(host, f"the connection is lost: {session.lost}")
            elif session.write_failure:  # status 0 would say that all of it is there
                self._log_error(host, f"its output can't be written: {session.write_failure}")
                return FAILED
            elif session.ended_by:
                self._log_error(host, f"its command was ended by SIG{session.ended_by}")
            elif session.words and 0 < session.status < FAILED:  # the shell's own reason
                self._log_error(host, session.words.decode("utf-8", "replace"))
        except (OSError, ValueError, MpibootError, asyncio.TimeoutError, asyncssh.Error) as error:
            self._log_error(host, str(error) or type(error).__name__)
            return FAILED
        finally:
            session.close()
        return session.status

    def _log_error(self, host: str, message: str) -> None:
        """Write an error where the supervisor reads it (``supervisor.agents.last_words``)."""
        text = f"{host}: {' '.join(message.split())}\n"
        path = self._launch_folder / "stderr" / (_SAFE.sub("_", host) or "unknown")
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        with os.fdopen(handle, "w") as file:
            file.write(text)

    def _relayed(self, name: str, pid: int) -> list[int]:
        """Make FIFOs for the output of a session whose agent copies it; its input is opened."""
        paths = [self._folder / f"{name}.{end}" for end in ("out", "err")]
        for path in paths:
            os.mkfifo(path, 0o600)
        # Opened for reading too, they wait for no reader.
        outputs = (os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC) for path in paths)
        return [take_input(pid), *outputs]


def _fifo(path: Path) -> int:
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _answer(descriptor: int, word: str) -> None:
    with suppress(OSError):  # it is gone
        os.write(descriptor, f"{word}\n".encode())
