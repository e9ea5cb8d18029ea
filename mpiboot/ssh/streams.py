"""The ends of another program's streams: read and written without blocking, and unchanged for it.

A descriptor that was passed on shares its flags with everybody who holds it, so none is changed:
where it must not block, it is opened anew, or used only as far as the system promises. asyncssh's
own redirection (2.24, by asyncio's pipes) leaves a descriptor non-blocking for everybody, also
after the session: an mpirun that shares it would lose output (docs/reference/open-mpi-output.md).

Those of a launch agent are taken without any help of it, as only a program of its own could hand an
open file over. A pipe or a device can be opened anew by who may; anything else is mostly the
launcher's own stdout or stderr, which mpirun hands on, and which this process has too.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import stat
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

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
    """Whether a pipe takes ``select.PIPE_BUF`` bytes at once, or tells that nobody reads it."""
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
        self._planned: asyncio.Handle | None = None

    def resume(self) -> None:
        """Go on reading."""
        if self._descriptor < 0 or self._wanted:
            return
        self._wanted = True
        if self._can_wait:
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        else:
            self._soon()

    def _soon(self) -> None:
        """Read when the loop has turned once; never twice in one turn."""
        if self._planned is not None:
            self._planned.cancel()
        self._planned = asyncio.get_running_loop().call_soon(self._read)

    def pause(self) -> None:
        """Read no more for now."""
        self._wanted = False
        if self._descriptor >= 0 and self._can_wait:
            asyncio.get_running_loop().remove_reader(self._descriptor)

    def _read(self) -> None:
        if not self._wanted or self._descriptor < 0:
            return
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # a terminal that is not ours: as if it had nothing to say
        if not data:
            self.close()
        self._feed(data)
        if data and not self._can_wait:
            self._soon()

    def close(self) -> None:
        """Let it go."""
        if self._descriptor >= 0:
            self.pause()
            os.close(self._descriptor)
            self._descriptor = -1


class OutputStream:
    """A stream that takes what it can and keeps the rest; a full one calls ``throttle``.

    ``failure`` is why something that was to be read could not be written, such as a full disk.
    """

    def __init__(self, descriptor: int, throttle: Callable[[], None]) -> None:
        """Take the descriptor over; ``throttle`` is called when ``full`` or ``idle`` changes."""
        self._throttle = throttle
        self._queue: deque[memoryview] = deque()
        self._size = 0
        self._watched = False
        self.full = False
        self.failure = ""
        self._socket: socket.socket | None = None
        self._can_wait = _can_wait(descriptor)
        self._piece = _CHUNK
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            self._socket = socket.socket(fileno=descriptor)
        elif self._can_wait:
            descriptor = self._reopen(descriptor)
        self._descriptor = descriptor

    def _reopen(self, descriptor: int) -> int:
        """Open a pipe or terminal once more, with flags of its own."""
        try:
            own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | _REOPEN)
        except OSError:
            # Another user's: a pipe that is ready takes this much without blocking, pipe(7).
            self._piece = select.PIPE_BUF
            return descriptor
        os.close(descriptor)
        return own

    @property
    def idle(self) -> bool:
        """Whether everything has been written."""
        return not self._queue

    def write(self, data: bytes) -> None:
        """Write now or later."""
        if self._descriptor < 0:
            return
        self._queue.append(memoryview(data))
        self._size += len(data)
        if self._watched:
            self._report()
        else:
            self._flush()

    def _send(self, view: memoryview) -> int:
        if self._socket is not None:
            return self._socket.send(view, socket.MSG_DONTWAIT)
        return os.write(self._descriptor, view[: self._piece])

    def _flush(self) -> None:
        careful = self._piece < _CHUNK
        # Only what is known to be ready: others may have written since the loop has looked.
        if careful and not (self._watched and _is_ready(self._descriptor)):
            self._watch(wanted=True)
            self._report()
            return
        while self._queue:
            try:
                done = self._send(self._queue[0])
            except BlockingIOError:
                break
            except OSError as wrong:
                if wrong.errno not in (errno.EPIPE, errno.ECONNRESET):  # else nobody reads it
                    self.failure = wrong.strerror or ""
                self.close()
                self._throttle()
                return
            self._size -= done
            if done < len(self._queue[0]):
                self._queue[0] = self._queue[0][done:]
            else:
                self._queue.popleft()
            if careful:
                break
        self._watch(wanted=bool(self._queue))
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
        before, self.full = self.full, self._size > (_LOW if self.full else _FULL)
        if before != self.full or not self._queue:
            self._throttle()

    def close(self) -> None:
        """Let it go, with what was not written."""
        if self._descriptor < 0:
            return
        self._watch(wanted=False)
        self._queue.clear()
        self._size, self.full = 0, False
        if self._socket is not None:
            self._socket.close()
        else:
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
