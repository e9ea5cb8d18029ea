"""One command of the embedded SSH server: its process, its streams, its end.

It knows nothing of who may log in, and ends no process but by a signal that the client asked for.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Final, Protocol

import asyncssh

from mpiboot.core.errors import MpibootError
from mpiboot.system import process

_CHUNK: Final = 1 << 17
_CANNOT_START: Final = 127
# RFC 4254, section 6.10; sshd has one name for all the others.
_SIGNALS: Final = frozenset(
    "ABRT ALRM FPE HUP ILL INT KILL PIPE QUIT SEGV TERM USR1 USR2".split()  # noqa: SIM905
)
_OTHER_SIGNAL: Final = "SIG@openssh.com"


class CommandServer(Protocol):
    """What a command needs of the server around it."""

    def new_mark(self) -> str:
        """Make the mark of a session."""

    def argv(self, mark: str) -> list[str]:
        """Tell the session wrapper's command line."""

    def environment(self, command: str, peer: tuple[str, int]) -> dict[str, str]:
        """Tell what the session wrapper gets as its environment."""

    def begin(self, command: SshCommand, pid: int, mark: str, line: str) -> None:
        """Take note of a session that has begun."""

    def end(self, mark: str) -> None:
        """Take note that a session's connection has ended."""


class _Pipe:
    """Our end of one of a command's streams; closed once, watched only while it is wanted."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor

    @property
    def is_open(self) -> bool:
        return self.descriptor >= 0

    def close(self) -> None:
        if self.is_open:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self.descriptor)
            loop.remove_writer(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = -1


class SshCommand(asyncssh.SSHServerSession[bytes]):
    """One command: its process, its streams in both directions, and how it ended."""

    def __init__(self, server: CommandServer, peer: tuple[str, int]) -> None:
        self._server = server
        self._peer = peer
        self._channel: asyncssh.SSHServerChannel[bytes] | None = None
        self._pid = 0
        self._status: int | None = None
        self._pipes: list[_Pipe] = []
        self._pending = bytearray()
        self._finished = False  # the client sends no more
        self._paused = False
        self._flushing = False
        self._mark = ""
        self._command = ""

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        """Keep the channel."""
        self._channel = chan

    def exec_requested(self, command: str) -> bool:
        """Take the command; every other kind of request is refused by the base class."""
        self._command = command
        return True

    def session_started(self) -> None:
        """Start the command behind the session wrapper, in a session of its own."""
        theirs, ours = [], []
        try:
            for number in range(3):
                reader, writer = os.pipe()
                theirs.append(writer if number else reader)
                ours.append(reader if number else writer)
            self._mark = self._server.new_mark()
            self._pid = process.start(
                self._server.argv(self._mark),
                self._server.environment(self._command, self._peer),
                stdin=theirs[0],
                stdout=theirs[1],
                stderr=theirs[2],
                session=True,
            )
        except (OSError, MpibootError) as problem:
            for descriptor in ours:
                os.close(descriptor)
            self._refuse(f"mpiboot: the session can't be started: {problem}\n")
            return
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._pipes = [_Pipe(descriptor) for descriptor in ours]
        self._server.begin(self, self._pid, self._mark, self._command)
        self._read_on()

    def _refuse(self, said: str) -> None:
        if self._channel is not None:
            self._channel.write_stderr(said.encode())
            self._channel.exit(_CANNOT_START)

    def _read_on(self) -> None:
        loop = asyncio.get_running_loop()
        for kind, pipe in ((None, self._pipes[1]), (asyncssh.EXTENDED_DATA_STDERR, self._pipes[2])):
            if pipe.is_open:
                loop.add_reader(pipe.descriptor, self._read, pipe, kind)

    def _read(self, pipe: _Pipe, kind: int | None) -> None:
        try:
            data = os.read(pipe.descriptor, _CHUNK)
        except BlockingIOError:
            return
        if self._channel is None:
            return
        if data:
            self._channel.write(data, kind)
            return
        pipe.close()
        self._ended()

    def pause_writing(self) -> None:
        """Read no more of the command's output: the client is slow, and memory is not for it."""
        loop = asyncio.get_running_loop()
        for pipe in self._pipes[1:]:
            if pipe.is_open:
                loop.remove_reader(pipe.descriptor)

    def resume_writing(self) -> None:
        """Read the command's output again."""
        if self._pipes:
            self._read_on()

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:  # noqa: ARG002 - asyncssh's signature
        """Hand input on; the client waits while the command doesn't read."""
        if not self._pipes or not self._pipes[0].is_open:
            return  # the command has closed its input, or has ended
        self._pending += data
        self._write()

    def eof_received(self) -> bool:
        """Close the command's input when all of it is written; its output stays open."""
        self._finished = True
        if self._pipes:
            self._write()
        return True

    def _write(self) -> None:
        pipe = self._pipes[0]
        if not pipe.is_open:
            return
        loop = asyncio.get_running_loop()
        try:
            while self._pending:
                del self._pending[: os.write(pipe.descriptor, self._pending)]
        except BlockingIOError:
            if not self._paused and self._channel is not None:
                self._paused = True
                if not self._flushing:
                    self._channel.pause_reading()
                loop.add_writer(pipe.descriptor, self._write)
            return
        except OSError:  # nobody reads it any more
            self._pending.clear()
            self._finished = True
        if self._finished:
            pipe.close()
        if self._paused and self._channel is not None:
            self._paused = False
            if pipe.is_open:
                loop.remove_writer(pipe.descriptor)
            # asyncssh opens the window anew with the first part that it hands on: paused again
            # before the last, it would keep more each time.
            self._flushing = True
            self._channel.resume_reading()
            self._flushing = False
            if self._paused:
                self._channel.pause_reading()

    def signal_received(self, signal: str) -> None:
        """Deliver a signal to the command's process group."""
        if signal in _SIGNALS and self._status is None and self._pid:
            _kill_group(self._pid, signal)

    def exited(self, status: int) -> None:
        """Take the command's wait status."""
        self._status = status
        self._ended()

    def _ended(self) -> None:
        """Tell the client when the command has ended and all of its output is on its way."""
        if self._channel is None or any(pipe.is_open for pipe in self._pipes[1:]):
            return
        if self._status is None:
            self._channel.write_eof()
        elif os.WIFSIGNALED(self._status):
            name = signal.Signals(os.WTERMSIG(self._status)).name[3:]
            shown = name if name in _SIGNALS else _OTHER_SIGNAL
            self._channel.exit_with_signal(shown, os.WCOREDUMP(self._status))
        else:
            self._channel.exit(os.WEXITSTATUS(self._status))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncssh's signature
        """Let the worker end what is left of the session."""
        self._channel = None
        for pipe in self._pipes:
            pipe.close()
        if self._pid:
            self._server.end(self._mark)


def _kill_group(leader: int, name: str) -> None:
    try:
        os.killpg(leader, getattr(signal, "SIG" + name))
    except OSError:
        return
