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
import stat
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
