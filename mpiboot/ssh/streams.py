"""The standard streams of a session: file descriptors here, asyncssh's streams over a connection.

Descriptors of other programs are read and written without blocking. One that was passed on shares
its flags with everybody who holds it, so none is changed: where it must not block, it is opened
anew, or used only as far as the system promises. asyncssh's own redirection (2.24, by asyncio's
pipes) leaves a descriptor non-blocking for everybody, also after the session: an mpirun that shares
it would lose output (docs/reference/open-mpi-output.md).
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
from io import FileIO
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncssh

# Bytes that a peer may send ahead: twice as many are kept for a reader that waits.
WINDOW: Final = 1 << 19
# All that can have come. asyncssh (2.24) opens the window with the first part that it hands on:
# whoever reads less lets in more than goes out.
_ALL: Final = 8 * WINDOW
_CHUNK: Final = 1 << 16
_MAX_WORDS: Final = 400  # bytes


async def until_ready(descriptor: int, *, to_write: bool = False) -> None:
    """Wait until a descriptor can be read, or written to."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    add, remove = loop.add_reader, loop.remove_reader
    if to_write:
        add, remove = loop.add_writer, loop.remove_writer
    add(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        remove(descriptor)


async def send(source: FileIO, writer: asyncssh.SSHWriter[bytes]) -> None:
    """Send what a stream has, to its end, as fast as the peer takes it; the stream is closed.

    Raises:
        OSError: the session has ended.
    """
    with source:
        while (data := _read(source)) != b"":
            if data is None:
                await until_ready(source.fileno())
            else:
                writer.write(data)
                await writer.drain()


def _read(source: FileIO) -> bytes | None:
    try:
        return source.read(_CHUNK)
    except OSError:
        return b""  # a terminal of another session: as if it were at its end


async def receive(
    reader: asyncssh.SSHReader[bytes], target: FileIO, words: bytearray | None = None
) -> str:
    """Write what a session sends to a stream, which is closed at the end.

    Args:
        reader: the session's.
        target: the stream; what comes once nobody reads it is dropped.
        words: gets the beginning.

    Returns:
        Why a part is missing that was to be read, such as a full disk; empty where none is.

    Raises:
        OSError, asyncssh.Error: the connection is lost.
    """
    failure = ""
    with target:
        while data := await reader.read(_ALL):
            if words is not None:
                words += data[: _MAX_WORDS - len(words)]
            try:
                await _write(target, data)
            except OSError as exc:
                if exc.errno not in (errno.EPIPE, errno.ECONNRESET):  # else nobody reads it
                    failure = exc.strerror or ""
                target.close()
    return failure


async def _write(target: FileIO, data: bytes) -> None:
    if target.closed:
        return
    # One that blocks is shared with others, and stays so: once it is ready it takes this much
    # without blocking, pipe(7); a socket more.
    blocks = os.get_blocking(target.fileno())
    size = select.PIPE_BUF if blocks else _CHUNK
    poll, rest = select.poll(), memoryview(data)
    poll.register(target, select.POLLOUT)
    while rest:
        written = None if blocks and not poll.poll(0) else target.write(rest[:size])
        rest = rest[written or 0 :]
        if written is None:
            await until_ready(target.fileno(), to_write=True)
