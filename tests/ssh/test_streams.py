"""An agent's streams as the pool takes, reads and writes them: real pipes, sockets and files."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from io import FileIO
from pathlib import Path

import pytest

from mpiboot.ssh import agents
from mpiboot.ssh.login import receive, send
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


async def test_a_reader_that_waits_gets_all_in_order(pipe: Pipe) -> None:
    os.set_blocking(pipe.writer, False)
    parts, words = [os.urandom(1 << 20), b"end"], bytearray()
    target = FileIO(pipe.writer, "w")
    writing = asyncio.ensure_future(receive(Session(*parts), target, words))  # type: ignore[arg-type]
    got = b""
    while len(got) < len(b"".join(parts)):
        await until_in_loop(lambda: select.select([pipe.reader], [], [], 0)[0])
        got += os.read(pipe.reader, 1 << 20)
    assert (await writing, target.closed) == ("", True)
    assert (got, bytes(words)) == (b"".join(parts), parts[0][:400])


@pytest.mark.parametrize("what", ["pipe", "full disk"])
async def test_what_can_not_be_written_is_dropped(pipe: Pipe, what: str) -> None:
    os.close(pipe.reader)
    writer = pipe.writer if what == "pipe" else os.open("/dev/full", os.O_WRONLY)
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


def test_pipes_are_opened_anew_with_flags_of_their_own(agent: Agent, pipe: Pipe) -> None:
    taken = agents.take(agent(pipe.writer))
    numbers = [one.fileno() for one in taken]
    assert [os.get_blocking(one) for one in (*numbers[1:], pipe.writer)] == [False, False, True]
    assert not any(map(os.get_inheritable, numbers))
    for stream in taken[1:]:
        stream.write(b"a")
    for stream in taken:
        stream.close()
    assert pipe.read() == b"aa"


def test_a_file_with_a_place_in_it_is_refused_and_nothing_stays_open(
    agent: Agent, tmp_path: Path
) -> None:
    with (tmp_path / "log").open("wb") as theirs:
        pid = agent(theirs.fileno())
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(ValueError, match="stream 4"):
            agents.take(pid)
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_an_agent_that_is_gone_has_no_streams(agent: Agent) -> None:
    pid = agent(subprocess.DEVNULL)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with pytest.raises(OSError, match=str(pid)):
        agents.take(pid)
