"""The agent's streams as the client reads and writes them: real pipes, sockets and files."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot.ssh.streams import InputStream, OutputStream
from tests.waiting import until_in_loop

CHUNK = 1 << 16
FULL, LOW = 1 << 18, 1 << 16


async def turns() -> None:
    """Let what is ready be done."""
    for _ in range(20):
        await asyncio.sleep(0)


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


class Pipe:
    """A pipe whose ends are closed at the end, unless a stream has closed its own."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def close(self) -> None:
        for end in (self.reader, self.writer):
            if is_open(end):
                os.close(end)

    def read(self) -> bytes:
        """What is in it now."""
        return os.read(self.reader, 1 << 20) if select.select([self.reader], [], [], 0)[0] else b""


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


class Output:
    """An output stream, and what its owner was told of it: whether it is full, and idle."""

    def __init__(self, descriptor: int) -> None:
        self.told: list[tuple[bool, bool]] = []
        self.stream = OutputStream(descriptor, self.throttle)

    def throttle(self) -> None:
        self.told.append((self.stream.full, self.stream.idle))


# What is read


async def test_nothing_is_read_before_it_is_wanted_nor_while_it_is_not(pipe: Pipe) -> None:
    parts: list[bytes] = []
    stream = InputStream(pipe.reader, parts.append)
    os.write(pipe.writer, b"one")
    await turns()
    assert parts == []
    stream.resume()
    await until_in_loop(lambda: parts)
    stream.pause()
    os.write(pipe.writer, b"two")
    await turns()
    assert parts == [b"one"]
    stream.resume()
    await until_in_loop(lambda: len(parts) > 1)
    assert parts == [b"one", b"two"]
    stream.close()


@pytest.mark.parametrize("end", ["writer", "owner"])
async def test_a_stream_that_is_over_is_closed_and_told_once(pipe: Pipe, end: str) -> None:
    parts: list[bytes] = []
    stream = InputStream(pipe.reader, parts.append)
    stream.resume()
    if end == "writer":
        os.close(pipe.writer)
        await until_in_loop(lambda: parts)
    else:
        stream.close()
    assert not is_open(pipe.reader)
    again = os.open(os.devnull, os.O_RDONLY)  # it may get the number of the one that was closed
    stream.close()
    stream.pause()
    stream.resume()
    await turns()
    assert is_open(again)
    os.close(again)
    assert parts == ([b""] if end == "writer" else [])


async def test_a_file_is_read_piece_by_piece_as_it_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "in"
    data = os.urandom(2 * CHUNK + 7)
    path.write_bytes(data)
    parts: list[bytes] = []

    def feed(part: bytes) -> None:
        parts.append(part)
        stream.pause()

    descriptor = os.open(path, os.O_RDONLY)
    stream = InputStream(descriptor, feed)
    for count in (1, 2, 3):
        stream.resume()
        stream.resume()  # asked twice is not read twice
        await turns()
        assert len(parts) == count
    stream.resume()
    await turns()
    assert parts == [data[:CHUNK], data[CHUNK : 2 * CHUNK], data[2 * CHUNK :], b""]
    assert not is_open(descriptor)


async def test_a_file_that_is_wanted_again_in_the_same_turn_is_read_once_a_turn(
    tmp_path: Path,
) -> None:
    path = tmp_path / "in"
    path.write_bytes(bytes(3 * CHUNK))
    parts: list[bytes] = []
    stream = InputStream(os.open(path, os.O_RDONLY), parts.append)
    stream.resume()
    stream.pause()
    stream.resume()
    await asyncio.sleep(0)
    assert len(parts) == 1
    stream.close()
    await turns()
    assert len(parts) == 1


async def test_another_reader_may_be_faster(pipe: Pipe) -> None:
    """Who shares the pipe took what was there; a descriptor that was set so does not block."""
    parts: list[bytes] = []
    os.set_blocking(pipe.reader, False)
    stream = InputStream(pipe.reader, parts.append)
    stream.resume()
    stream._read()
    assert parts == []
    os.write(pipe.writer, b"more")
    await until_in_loop(lambda: parts)
    assert parts == [b"more"]
    stream.close()


async def test_a_stream_that_can_not_be_read_is_over(tmp_path: Path) -> None:
    parts: list[bytes] = []
    descriptor = os.open(tmp_path, os.O_RDONLY)  # a folder: EISDIR
    InputStream(descriptor, parts.append).resume()
    await turns()
    assert parts == [b""]
    assert not is_open(descriptor)


# What is written


async def test_what_fits_is_written_at_once_and_leaves_nothing_to_wait_for(pipe: Pipe) -> None:
    output = Output(pipe.writer)
    output.stream.write(b"one")
    output.stream.write(b"two")
    assert pipe.read() == b"onetwo"
    assert output.told == [(False, True)] * 2
    output.stream.close()


async def test_a_reader_that_waits_is_told_of_and_gets_all_in_order(pipe: Pipe) -> None:
    output = Output(pipe.writer)
    parts = [bytes([number]) * CHUNK for number in range(8)]
    for part in parts:
        output.stream.write(part)
    assert (output.stream.full, output.stream.idle) == (True, False)
    # The first part is as much as the pipe holds; the others are told of once, as it became full.
    assert output.told == [(False, True), (True, False)]
    data = b""
    while len(data) < 8 * CHUNK:
        data += pipe.read()
        await asyncio.sleep(0)
        left = output.stream._size
        # Full above one mark, and until it is below the other.
        assert output.stream.full == (left > LOW)
    assert data == b"".join(parts)
    await until_in_loop(lambda: output.stream.idle)
    assert output.told[2] == (False, False)
    assert output.told[-1] == (False, True)
    output.stream.close()


async def test_exactly_as_much_as_may_be_kept_is_not_full(pipe: Pipe) -> None:
    output = Output(pipe.writer)
    output.stream.write(bytes(CHUNK))  # as much as the pipe holds
    for _ in range(FULL // CHUNK):
        output.stream.write(bytes(CHUNK))
    assert output.stream._size == FULL
    assert not output.stream.full
    output.stream.write(b"x")
    assert output.stream.full
    output.stream.close()


@pytest.mark.parametrize("what", ["pipe", "socket"])
async def test_one_that_nobody_reads_any_more_is_closed_and_idle(pipe: Pipe, what: str) -> None:
    writer = pipe.writer
    if what == "socket":
        near, far = socket.socketpair()
        far.close()
        writer = near.detach()
    else:
        os.close(pipe.reader)
    output = Output(writer)
    output.stream.write(b"never")
    assert output.told == [(False, True)]
    assert not is_open(writer)
    output.stream.write(b"never")
    assert output.stream.idle
    assert output.stream.failure == ""
    output.stream.close()


async def test_a_full_disk_is_no_reader_that_went() -> None:
    output = Output(os.open("/dev/full", os.O_WRONLY))
    output.stream.write(b"never")
    assert (output.told, output.stream.failure) == ([(False, True)], "No space left on device")
    output.stream.close()


async def test_what_was_not_written_goes_with_the_stream(pipe: Pipe) -> None:
    output = Output(pipe.writer)
    own = output.stream._descriptor
    for _ in range(8):
        output.stream.write(bytes(CHUNK))
    output.stream.close()
    assert (output.stream.full, output.stream.idle) == (False, True)
    assert not is_open(own)
    assert len(pipe.read()) == CHUNK
    again = os.open(os.devnull, os.O_RDONLY)
    output.stream.close()
    assert is_open(again)
    os.close(again)


async def test_a_pipes_flags_are_its_other_holders_too(pipe: Pipe) -> None:
    given = os.dup(pipe.writer)
    output = Output(given)
    for _ in range(4):
        output.stream.write(bytes(CHUNK))
    assert os.get_blocking(pipe.writer)
    own = output.stream._descriptor
    assert not os.get_blocking(own)
    assert not os.get_inheritable(own)
    assert given == own or not is_open(given), "what was passed on is closed"
    output.stream.close()


async def test_a_socket_is_written_to_as_far_as_it_takes_it_and_stays_as_it_is() -> None:
    near, far = socket.socketpair()
    far.setblocking(False)
    output = Output(near.fileno())
    data = os.urandom(1 << 20)
    output.stream.write(data)
    assert near.getblocking()
    assert output.stream.full
    got = b""
    while len(got) < len(data):
        got += await asyncio.get_running_loop().sock_recv(far, 1 << 20)
    assert got == data
    await until_in_loop(lambda: output.stream.idle)
    output.stream.close()
    assert not is_open(near.detach())
    far.close()


async def test_another_users_pipe_gets_no_more_than_can_not_block(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> int:
        raise PermissionError

    with monkeypatch.context() as changed:
        changed.setattr(os, "open", refused)
        output = Output(pipe.writer)
    data = os.urandom(2 * CHUNK)
    output.stream.write(data)
    assert pipe.read() == b"", "only what is known to be ready is written"
    got = b""
    await until_in_loop(lambda: select.select([pipe.reader], [], [], 0)[0])
    while len(got) < len(data):
        part = pipe.read()
        assert len(part) % select.PIPE_BUF == 0
        got += part
        await asyncio.sleep(0)
    assert got == data
    await until_in_loop(lambda: output.stream.idle)
    output.stream.write(b"end")
    await until_in_loop(lambda: output.stream.idle)
    assert pipe.read() == b"end"
    assert os.get_blocking(pipe.writer)
    output.stream.close()


async def test_a_file_takes_everything_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"before\n")
    output = Output(os.open(path, os.O_WRONLY | os.O_APPEND))
    data = os.urandom(3 * CHUNK)
    output.stream.write(data)
    assert output.stream.idle
    assert path.read_bytes() == b"before\n" + data
    output.stream.close()
