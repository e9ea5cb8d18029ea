"""An agent's streams as the pool takes, reads and writes them: real pipes, sockets and files."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mpiboot.ssh import agents
from mpiboot.ssh.agents import InputStream, OutputStream
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
    """An output stream, and what its owner learns of it: whether it is full, and idle."""

    def __init__(self, descriptor: int, *, blocks: bool = False) -> None:
        os.set_blocking(descriptor, blocks)
        self.seen: list[tuple[bool, bool]] = []
        self.stream = OutputStream(descriptor, self.changed)

    def changed(self) -> None:
        self.seen.append((self.stream.full, self.stream.idle))


# What is read


async def test_a_pipe_is_read_while_it_is_wanted(pipe: Pipe) -> None:
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
async def test_a_stream_that_is_over_is_closed_once(pipe: Pipe, end: str) -> None:
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
        stream.resume()
        await turns()
        assert len(parts) == count
    stream.resume()
    await turns()
    assert parts == [data[:CHUNK], data[CHUNK : 2 * CHUNK], data[2 * CHUNK :], b""]
    assert not is_open(descriptor)


async def test_another_reader_may_be_faster(pipe: Pipe) -> None:
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


async def test_a_reader_that_waits_gets_all_in_order(pipe: Pipe) -> None:
    output, parts = Output(pipe.writer), [bytes([number]) * CHUNK for number in range(8)]
    written = 0
    for part in parts:
        output.stream.write(part)
        written += len(part)
        # The first part is as much as the pipe holds; exactly FULL is not full yet.
        assert output.stream.full == (written - CHUNK > FULL)
    assert output.seen == [(False, True), (True, False)]
    data = b""
    while len(data) < 8 * CHUNK:
        data += pipe.read()
        await asyncio.sleep(0)
        # Full above one mark, and until it is below the other.
        assert output.stream.full == (len(output.stream._unwritten) > LOW)
    assert data == b"".join(parts)
    await until_in_loop(lambda: output.stream.idle)
    assert output.seen[2:] == [(False, False), (False, True)]
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
    output = Output(writer, blocks=what == "socket")
    output.stream.write(b"never")
    assert output.seen == [(False, True)]
    assert not is_open(writer)
    output.stream.write(b"never")
    assert output.stream.idle
    assert output.stream.failure == ""
    output.stream.close()


async def test_a_full_disk_is_no_reader_that_went() -> None:
    output = Output(os.open("/dev/full", os.O_WRONLY))
    output.stream.write(b"never")
    assert (output.seen, output.stream.failure) == ([(False, True)], "No space left on device")


async def test_what_was_not_written_goes_with_the_stream(pipe: Pipe) -> None:
    output = Output(pipe.writer)
    for _ in range(8):
        output.stream.write(bytes(CHUNK))
    output.stream.close()
    assert (output.stream.full, output.stream.idle) == (False, True)
    assert not is_open(pipe.writer)
    assert len(pipe.read()) == CHUNK
    again = os.open(os.devnull, os.O_RDONLY)
    output.stream.close()
    assert is_open(again)
    os.close(again)


@pytest.mark.parametrize("what", ["pipe", "socket"])
async def test_what_blocks_is_written_to_only_as_far_as_it_takes_it(pipe: Pipe, what: str) -> None:
    """Others share its flags: those stay as they are."""
    far, near = socket.socketpair()
    with far, near:
        reader = pipe.reader if what == "pipe" else far.fileno()
        writer = pipe.writer if what == "pipe" else near.fileno()
        output, data = Output(os.dup(writer), blocks=True), os.urandom(1 << 20)
        output.stream.write(data)
        assert output.stream.full
        got = b""
        while len(got) < len(data):
            await until_in_loop(lambda: select.select([reader], [], [], 0)[0])
            got += os.read(reader, 1 << 20)
        assert got == data
        await until_in_loop(lambda: output.stream.idle)
        output.stream.write(b"end")
        assert os.read(reader, 9) == b"end"
        assert os.get_blocking(writer)
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


# What is taken of an agent's

Agent = Callable[..., int]
HOLDS = "exec 3<&0 4>&1 5>&2; kill -STOP $$"


@pytest.fixture
def agent() -> Iterator[Agent]:
    """A process that has /dev/null as 3, and an output as 4 and 5; its number."""
    with ExitStack() as left:

        def start(output: int) -> int:
            words, null = ["sh", "-c", HOLDS], subprocess.DEVNULL
            made = subprocess.Popen(words, stdin=null, stdout=output, stderr=output)
            left.callback(made.wait)
            left.callback(made.kill)
            assert os.WIFSTOPPED(os.waitpid(made.pid, os.WUNTRACED)[1])
            return made.pid

        yield start


def opened(path: Path, flags: int = 0) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)


def written(descriptors: list[int], data: bytes) -> None:
    """Write to outputs that were taken; all of them are closed."""
    for descriptor in descriptors[1:]:
        os.write(descriptor, data)
    for descriptor in descriptors:
        os.close(descriptor)


def test_pipes_are_opened_anew_with_flags_of_their_own(agent: Agent, pipe: Pipe) -> None:
    taken = agents.take(agent(pipe.writer))
    assert [os.get_blocking(one) for one in (*taken[1:], pipe.writer)] == [False, False, True]
    assert not any(map(os.get_inheritable, taken))
    written(taken, b"a")
    assert pipe.read() == b"aa"


def test_the_launchers_own_file_goes_on_where_it_is(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `mpiboot launcher > log 2>&1`: one place in the file for all who write."""
    path = tmp_path / "log"
    own = opened(path)
    os.write(own, b"before\n")
    monkeypatch.setattr(agents, "_OWN", (own,))
    written(agents.take(agent(own)), b"said\n")
    os.write(own, b"after\n")
    os.close(own)
    assert path.read_text() == "before\nsaid\nsaid\nafter\n"


def test_the_launchers_own_socket_is_shared(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = socket.socketpair()
    with own, other:
        monkeypatch.setattr(agents, "_OWN", (own.fileno(),))
        written(agents.take(agent(own.fileno())), b"a")
        assert other.recv(9) == b"aa"


def test_what_is_appended_to_is_opened_anew(agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"before\n")
    theirs = opened(path, os.O_APPEND)
    taken = agents.take(agent(theirs))
    os.write(theirs, b"theirs\n")
    written(taken, b"said\n")
    os.close(theirs)
    assert path.read_text() == "before\ntheirs\nsaid\nsaid\n"


@pytest.mark.parametrize("name", ["another file", "log"], ids=["another file", "another place"])
def test_another_file_with_a_place_in_it_is_refused_and_nothing_stays_open(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    own, theirs = opened(tmp_path / "log"), opened(tmp_path / name)
    os.write(theirs, b"x")
    monkeypatch.setattr(agents, "_OWN", (own,))
    pid = agent(theirs)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ValueError, match="stream 4"):
        agents.take(pid)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    os.close(own)
    os.close(theirs)


def test_a_pipe_that_only_root_may_open_is_the_launchers_own(
    agent: Agent, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container runtime makes a pod's pipes; a launcher of another user can't open these."""
    pid, real = agent(pipe.writer), os.open

    def closed(path: str, flags: int, *more: int) -> int:
        if path.endswith(("/4", "/5")):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", closed)
    monkeypatch.setattr(agents, "_OWN", (pipe.writer,))
    written(agents.take(pid), b"a")
    assert pipe.read() == b"aa"


def test_an_agent_that_is_gone_has_no_streams(agent: Agent) -> None:
    pid = agent(subprocess.DEVNULL)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with pytest.raises(OSError, match=str(pid)):
        agents.take(pid)
