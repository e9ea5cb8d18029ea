"""An agent's streams as the pool takes, reads and writes them: real pipes, sockets and files."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from io import FileIO
from pathlib import Path

import pytest

from mpiboot.ssh import agents
from mpiboot.ssh.streams import receive, send
from tests.waiting import until_in_loop

CHUNK = 1 << 16


class Pipe:
    """A pipe whose ends are closed at the end, unless a stream has closed its own."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def close(self) -> None:
        for end in (self.reader, self.writer):
            with suppress(OSError):
                os.close(end)

    def read(self) -> bytes:
        """What is in it now."""
        return os.read(self.reader, 1 << 20) if select.select([self.reader], [], [], 0)[0] else b""


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


class Session:
    """A session's reader and its writer, which takes one part at a time."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = list(parts)
        self.sent: list[bytes] = []
        self.free = asyncio.Event()

    async def read(self, _: int) -> bytes:
        return self.parts.pop(0) if self.parts else b""

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    async def drain(self) -> None:
        self.free.clear()
        await self.free.wait()


@pytest.mark.parametrize("what", ["pipe", "file"])
async def test_what_is_sent_is_read_as_fast_as_it_is_taken(
    pipe: Pipe, tmp_path: Path, what: str
) -> None:
    data, session = os.urandom(2 * CHUNK + 7), Session()
    (tmp_path / "in").write_bytes(data)
    os.set_blocking(pipe.reader, False)
    source = FileIO(pipe.reader) if what == "pipe" else FileIO(str(tmp_path / "in"))
    with source:
        sending = asyncio.ensure_future(send(source, session))  # type: ignore[arg-type]
        for at in range(0, len(data), CHUNK):
            if what == "pipe":
                os.write(pipe.writer, data[at : at + CHUNK])
            await until_in_loop(lambda: b"".join(session.sent) == data[: at + CHUNK])  # noqa: B023
            session.free.set()
        if what == "pipe":
            os.close(pipe.writer)
        await sending
        assert source.closed


async def test_a_stream_that_can_not_be_read_is_over() -> None:
    leader, follower = os.openpty()
    os.close(leader)  # of a terminal that is gone: EIO
    session = Session()
    await send(FileIO(follower), session)  # type: ignore[arg-type]
    assert session.sent == []


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("what", ["pipe", "socket"])
async def test_a_reader_that_waits_gets_all_in_order(pipe: Pipe, what: str, blocks: bool) -> None:  # noqa: FBT001
    """Others share the flags of one that blocks: those stay as they are."""
    far, near = socket.socketpair()
    with far, near:
        reader = pipe.reader if what == "pipe" else far.fileno()
        writer = pipe.writer if what == "pipe" else near.fileno()
        os.set_blocking(writer, blocks)
        parts, words = [os.urandom(1 << 20), b"end"], bytearray()
        target = FileIO(os.dup(writer), "w")
        writing = asyncio.ensure_future(receive(Session(*parts), target, words))  # type: ignore[arg-type]
        got = b""
        while len(got) < len(b"".join(parts)):
            await until_in_loop(lambda: select.select([reader], [], [], 0)[0])
            got += os.read(reader, 1 << 20)
        assert (await writing, target.closed) == ("", True)
        assert (got, bytes(words)) == (b"".join(parts), parts[0][:400])
        assert os.get_blocking(writer) == blocks


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("what", ["pipe", "socket", "full disk"])
async def test_what_can_not_be_written_is_dropped(pipe: Pipe, what: str, blocks: bool) -> None:  # noqa: FBT001
    near, far = socket.socketpair()
    far.close()
    os.close(pipe.reader)
    writers = {"pipe": pipe.writer, "socket": near.detach()}
    writer = writers.get(what) or os.open("/dev/full", os.O_WRONLY)
    os.set_blocking(writer, blocks)
    session = Session(b"never", b"never")
    failure = await receive(session, FileIO(writer, "w"))  # type: ignore[arg-type]
    assert failure == ("No space left on device" if what == "full disk" else "")
    assert session.parts == []


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


def written(streams: list[FileIO], data: bytes) -> None:
    """Write to outputs that were taken; all of them are closed."""
    for stream in streams[1:]:
        stream.write(data)
    for stream in streams:
        stream.close()


def test_pipes_are_opened_anew_with_flags_of_their_own(agent: Agent, pipe: Pipe) -> None:
    taken = agents.take(agent(pipe.writer))
    numbers = [one.fileno() for one in taken]
    assert [os.get_blocking(one) for one in (*numbers[1:], pipe.writer)] == [False, False, True]
    assert not any(map(os.get_inheritable, numbers))
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
