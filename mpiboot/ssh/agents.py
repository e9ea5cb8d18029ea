"""The sessions of mpirun's agents, over the connections of the pool.

A launch agent is a shell, which costs a twentieth of a megabyte where an ssh costs 1.4. It writes
ssh's words to ``sessions/NAME.request``, each with a zero behind it; who makes that file has the
FIFO ``sessions/NAME``: that of a host, which is made beforehand, or one of its own. Then it writes
``start NAME PID`` to the FIFO ``requests`` and reads from its own: ``taken``, and at the end
the exit status. Its streams are opened anew by the pool; ``relay`` means that outputs can't be, and
that it is to copy what comes by ``sessions/NAME.out`` and ``.err``, which begins once it has opened
both and written ``relayed NAME``. With ``end NAME`` it gives the session up. A pool that is gone is
the end of what an agent reads. The session of an agent that was killed goes on, as an ssh does
behind it: an mpirun that gives up over a lost host kills all agents, and that host's session alone
has ended by then. What goes on ends with this process.
"""

from __future__ import annotations

import asyncio
import getopt
import os
import re
import stat
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, Final

import asyncssh

from mpiboot.core.checks import MpibootError
from mpiboot.core.launch_spec import REQUESTS, SESSIONS
from mpiboot.ssh.config import LETTERS
from mpiboot.ssh.login import receive, send
from mpiboot.ssh.pool import Pool
from mpiboot.system.programs import end_tasks

_MAX_REQUESTS: Final = 1 << 16  # bytes
# An agent's pipes and devices are opened anew, without any help of it and with flags of their own:
# asyncssh's redirection (2.24) leaves a descriptor non-blocking for all who share it, and an mpirun
# that does would lose output (docs/reference/open-mpi-output.md).
_REOPEN: Final = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_OWN: Final = (1, 2)  # the launcher's, which mpirun mostly hands on: this process has them too
_FIRST: Final = 3  # an agent has its streams from 3 on


def take(pid: int) -> list[FileIO]:
    """Give what an agent has as 3, 4 and 5: its standard input, output and error.

    Raises:
        OSError: one can't be opened here.
        ValueError: one would be another one when opened anew: a file to write to has a place in it,
            and a socket can't be opened.
    """
    with ExitStack() as taken:
        streams = [
            taken.enter_context(FileIO(_open_of(pid, number, mode), mode))
            for number, mode in enumerate("rww", _FIRST)
        ]
        taken.pop_all()
    return streams


def _open_of(pid: int, number: int, mode: str) -> int:
    path = f"/proc/{pid}/fd/{number}"
    there, opened = Path(path).stat(), Path(f"/proc/{pid}/fdinfo/{number}").read_text("ascii")
    if stat.S_ISFIFO(there.st_mode) or stat.S_ISCHR(there.st_mode):
        with suppress(PermissionError):  # a container's own pipes are root's
            return os.open(path, _REOPEN | (os.O_RDONLY if mode == "r" else os.O_WRONLY))
    for own in _OWN if mode == "w" else ():
        same = Path(f"/proc/self/fdinfo/{own}").read_text("ascii") == opened  # its place, too
        if same and os.path.samestat(os.fstat(own), there):
            return os.dup(own)
    if mode == "w" or not stat.S_ISREG(there.st_mode):
        raise ValueError(f"stream {number} is neither a pipe nor the launcher's own")
    own = os.open(path, _REOPEN)
    place = opened.split()
    os.lseek(own, int(place[place.index("pos:") + 1]), os.SEEK_SET)
    return own


# The status of a session that did not come to an end of its own, as ssh has it.
FAILED: Final = 255

_WRITE: Final = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_SAFE: Final = re.compile(r"[^A-Za-z0-9._:@%+-]")


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


async def _carry(
    process: asyncssh.SSHClientProcess[bytes], streams: Sequence[FileIO]
) -> tuple[int, str]:
    """Carry the streams of a session to its end; give its status, and what went wrong."""
    sending, words = asyncio.ensure_future(_send(process, streams[0])), bytearray()
    try:
        ends = await asyncio.gather(
            receive(process.stdout, streams[1]),
            receive(process.stderr, streams[2], words),
            return_exceptions=True,
        )
        await process.wait_closed()
    finally:
        await end_tasks((sending,))
    status, lost = process.exit_status, [end for end in ends if isinstance(end, BaseException)]
    if status is None or lost:
        return FAILED, "".join(("the connection is lost", *(f": {exc}" for exc in lost[:1])))
    if failures := [end for end in ends if end]:  # status 0 would say that all of it is there
        return FAILED, f"its output can't be written: {failures[0]}"
    if process.exit_signal:  # ssh has the same status for it as for a loss
        return FAILED, f"its command was ended by SIG{process.exit_signal[0]}"
    # The shell's own reason.
    return status, words.decode("utf-8", "replace") if 0 < status < FAILED else ""


async def _send(process: asyncssh.SSHClientProcess[bytes], stdin: FileIO) -> None:
    await send(stdin, process.stdin)
    process.stdin.write_eof()


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
            self._rest += os.read(self._requests, _MAX_REQUESTS)
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            match os.fsdecode(line).split():
                case ["start", name, pid] if pid.isdecimal():
                    task = asyncio.ensure_future(self._serve(name, int(pid), pool))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                # A signal may come before the agent has asked.
                case ["end" | "relayed" as what, name] if (self._folder / name).exists():
                    self._event(what, name).set()

    def _event(self, what: str, name: str) -> asyncio.Event:
        return self._events.setdefault((what, name), asyncio.Event())

    async def _serve(self, name: str, pid: int, pool: Pool) -> None:
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
        word = "taken"
        try:
            stdin, stdout, stderr = take(pid)
        except (OSError, ValueError):
            word, (stdin, stdout, stderr) = "relay", self._relayed(name, pid)
        _answer(answers, word)
        with stdin, stdout, stderr:  # where it is given up, the copies end
            if word == "relay":
                await self._event("relayed", name).wait()
            return await self.run(pool, words, (stdin, stdout, stderr))

    async def run(self, pool: Pool, words: Sequence[str], streams: Sequence[FileIO]) -> int:
        """Run the session of an agent to its end; give its status.

        Args:
            pool: reaches the host.
            words: as ssh's, without its name.
            streams: its standard input, output and error, which are closed at the end.
        """
        host, status = "", FAILED
        try:
            user, host, command = read_words(words)
            remote = pool.find(host)
            remote = replace(remote, user=user or remote.user)
            link, process = await pool.open_session(remote, command)
            try:
                pool.report(f"connected {host}")
                status, message = await _carry(process, streams)
            finally:
                # After a bad end the host ends with the connection what is left there, as it does
                # behind ssh.
                link.in_session = False
                process.close()
                link.release(good=status == 0)
        except (OSError, ValueError, MpibootError, asyncio.TimeoutError, asyncssh.Error) as exc:
            message = str(exc) or type(exc).__name__
        finally:
            for stream in streams:
                stream.close()
        if message:
            self._log_error(host, message)
        return status

    def _log_error(self, host: str, message: str) -> None:
        """Write an error where the supervisor reads it (``supervisor.mpirun.last_words``)."""
        text = f"{host}: {' '.join(message.split())}\n"
        path = self._launch_folder / "stderr" / (_SAFE.sub("_", host) or "unknown")
        with suppress(OSError), open(path, "a", opener=partial(os.open, mode=0o600)) as file:
            file.write(text)

    def _relayed(self, name: str, pid: int) -> list[FileIO]:
        """Make FIFOs for the output of a session whose agent copies it; its input is opened."""
        try:
            stdin = _open_of(pid, _FIRST, "r")
        except (OSError, ValueError):
            stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        outputs = (_fifo(self._folder / f"{name}.{end}") for end in ("out", "err"))
        return [FileIO(stdin, "r"), *(FileIO(end, "w") for end in outputs)]


def _fifo(path: Path) -> int:
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _answer(descriptor: int, word: str) -> None:
    with suppress(OSError):  # it is gone
        os.write(descriptor, f"{word}\n".encode())
