"""What mpirun writes goes on to the job's own streams: in order, whole, and whatever breaks."""

from __future__ import annotations

import asyncio
import os
import pty
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mpiboot.supervisor import output
from mpiboot.supervisor.job import Job, RankEnded
from mpiboot.supervisor.output import MpirunStreams, OutputWriter, Parser
from mpiboot.supervisor.signals import Handles
from tests.supervisor.test_job import job
from tests.waiting import until, until_in_loop

ENOUGH = 1 << 18


class Stream:
    """A stream of the job, and its reader."""

    def __init__(self) -> None:
        self.reader, self.handle = os.pipe()
        self.to = OutputWriter(self.handle)
        self.noted = threading.Event()
        self.to.notify = self.noted.set

    def take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += os.read(self.reader, count - len(data))
        return data

    def end(self) -> None:
        self.to.end()
        until(lambda: self.to.done)


@pytest.fixture
def stream() -> Iterator[Stream]:
    made = Stream()
    yield made
    made.end()
    for end in (made.reader, made.handle):
        os.close(end)


def test_all_is_written_in_order_and_nothing_after_the_end(stream: Stream) -> None:
    expected = b"".join(b"%d\n" % number for number in range(100))
    for line in expected.splitlines(keepends=True):
        stream.to.write(line)
    stream.end()
    assert stream.noted.wait(60)
    stream.to.write(b"never")
    assert stream.to.left == 0
    assert os.read(stream.reader, 1 << 16) == expected


def test_there_is_room_until_so_much_waits_and_again_when_it_was_read(stream: Stream) -> None:
    stream.to.write(bytes(ENOUGH - 1))
    assert stream.to.has_room()
    # The thread stands in the middle of the first piece: none of it counts as written.
    stream.to.write(b"x")
    assert not stream.to.has_room()
    assert not stream.noted.is_set()
    stream.take(ENOUGH)
    assert stream.noted.wait(60)
    until(stream.to.has_room)


@pytest.mark.parametrize(("path", "wrong"), [("", None), ("/dev/full", "No space left on device")])
def test_where_nothing_can_be_written_any_more_all_is_lost_and_why_is_known(
    path: str, wrong: str | None
) -> None:
    """One who reads and goes has enough, which is no error."""
    reader, handle = os.pipe() if not path else (os.open(path, os.O_RDONLY), -1)
    os.close(reader)
    handle = os.open(path, os.O_WRONLY) if path else handle
    writing = OutputWriter(handle)
    writing.write(b"one")
    writing.write(b"two")
    writing.end()
    until(lambda: writing.done)
    assert (writing.broken, writing.left) == (True, 0)
    assert (writing.wrong.strerror if writing.wrong else None) == wrong
    os.close(handle)


def test_a_stream_that_somebody_made_non_blocking_is_written_to_the_end(stream: Stream) -> None:
    os.set_blocking(stream.handle, False)
    stream.to.write(bytes(1 << 20))
    assert stream.take(1 << 20) == bytes(1 << 20)
    stream.end()
    assert not stream.to.broken


def test_one_that_is_to_end_is_held_by_no_reader(stream: Stream) -> None:
    size = 0
    while stream.to.has_room():
        stream.to.write(bytes(1 << 16))
        size += 1 << 16
    stream.to.hurry()
    assert stream.noted.is_set()
    assert stream.to.has_room()
    assert stream.take(size) == bytes(size)


class Rig(Stream):
    """Pipes of an mpirun whose messages are lines; what they report is in ``ends``."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[RankEnded] = []
        self.streams = MpirunStreams(Handles(print), self.to, self.report, Job(job()))

    def report(self, ends: list[RankEnded]) -> None:
        self.ends += ends

    def pipe(self, parser: Parser | None = None) -> int:
        reader, writer = os.pipe()
        self.streams.add(reader, self.to, parser or Parser())
        return writer

    async def shows(self, text: bytes) -> None:
        loop = asyncio.get_running_loop()
        shown = await asyncio.wait_for(loop.run_in_executor(None, self.take, len(text)), 60)
        assert shown == text


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    made.end()


async def test_without_room_nothing_is_read_until_there_is_some(rig: Rig) -> None:
    first, second = rig.pipe(), rig.pipe()
    rig.to.write(bytes(2 * ENOUGH))
    os.write(first, b"a")
    await until_in_loop(lambda: rig.to.left > 2 * ENOUGH)
    for writer in (first, second):
        os.write(writer, b"b")
    await asyncio.sleep(0.05)
    assert rig.to.left == 2 * ENOUGH + 1
    await rig.shows(bytes(2 * ENOUGH) + b"abb")


async def test_a_pipe_that_nobody_can_write_to_is_read_to_its_end_and_no_more(rig: Rig) -> None:
    first, second = rig.pipe(), rig.pipe()
    os.write(first, b"last")
    os.close(first)
    await rig.shows(b"last")
    await until_in_loop(lambda: rig.streams._pipes[0].over)
    os.write(second, b"other")
    await rig.shows(b"other")


async def test_a_stream_whose_reader_has_gone_is_closed_for_mpirun(rig: Rig) -> None:
    writer = rig.pipe()
    os.close(rig.reader)
    os.write(writer, b"nobody reads this")
    await until_in_loop(lambda: rig.to.broken)
    with suppress(BrokenPipeError):
        os.write(writer, b"nor this")
    await until_in_loop(lambda: rig.streams._pipes[0].over)
    with pytest.raises(BrokenPipeError):
        os.write(writer, b"x")
    rig.reader = os.open("/dev/null", os.O_RDONLY)


class Odd(Parser):
    """One that fails at what it doesn't expect, having kept the half of a line."""

    def parse(self, text: bytes, *, last: bool = False) -> tuple[bytes, list[RankEnded]]:
        whole, newline, self.held = text.rpartition(b"\n")
        if b"odd" in whole:
            raise ValueError("an odd line")
        return whole + newline, []


async def test_a_parser_that_fails_passes_everything_on(
    rig: Rig, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = rig.pipe(Odd())
    for text, shown in (
        (b"one\nan o", b"one\n"),
        (b"dd line\nthe half", b"an odd line\nthe half"),
        (b" of a line\nodd again", b" of a line\nodd again"),
    ):
        os.write(writer, text)
        await rig.shows(shown)
    message = capfd.readouterr().err
    assert message.count("mpiboot: warning: [bug] the parser of mpirun's messages failed at") == 1
    assert "ValueError: an odd line; the job goes on without it" in message


async def test_who_handles_ends_of_ranks_and_fails_does_not_stop_the_stream(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rig.streams, "report", {}.__getitem__)
    writer = rig.pipe()
    for _ in range(2):
        os.write(writer, b"text")
        await rig.shows(b"text")
    assert "TypeError: unhashable type: 'list'; the job goes on" in capfd.readouterr().err


async def test_what_is_left_at_the_end_is_read_but_not_for_ever(rig: Rig) -> None:
    """Another process may still write; an end without a newline is one, too."""
    writer = rig.pipe(output.MpirunMessages())
    os.write(writer, b"MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD")
    rig.streams.read_last()
    assert rig.ends == []
    os.write(writer, b"\nmore")
    rig.streams.read_last()
    await rig.shows(b"MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\n\nmore\n")


OPENS = """
import sys
from mpiboot.supervisor.output import open_pipes
mixed, dropped = (word == "True" for word in sys.argv[2:])
pipes = open_pipes(mixed=mixed, dropped=dropped)
with open(sys.argv[1], "w") as file:
    print(*pipes, len(set(pipes.values())), file=file)
"""


@pytest.mark.parametrize(
    ("stdout", "stderr", "of_hydra", "of_open_mpi"),
    [
        ("pipe", "pipe", "1 2 2", "1 2 2"),
        ("pipe", "stdout", "0", "1 2 1"),
        ("file", "pipe", "1 2 2", "2 1"),
        ("pipe", "file", "1 2 2", "1 1"),
        ("file", "stdout", "0", "0"),
        ("socket", "null", "1 2 2", "1 1"),
        ("null", "null", "0", "0"),
        ("terminal", "pipe", "2 1", "2 1"),
        ("pipe", "closed", "0", "0"),
    ],
)
def test_which_streams_of_mpirun_are_pipes(
    tmp_path: Path, stdout: str, stderr: str, of_hydra: str, of_open_mpi: str
) -> None:
    """What Open MPI drops: what a pipe or socket has not taken. Files take everything."""
    ends: list[int] = []

    def stream(kind: str) -> int:
        if kind == "pipe":
            ends.extend(os.pipe())
        elif kind == "socket":
            ends.extend(end.detach() for end in socket.socketpair())
        elif kind == "terminal":
            ends.extend(pty.openpty())
        else:
            path = "/dev/null" if kind == "null" else tmp_path / "stream"
            ends.append(os.open(path, os.O_WRONLY | os.O_CREAT))
        return ends[-1]

    out = stream(stdout)
    err = out if stderr == "stdout" else stream("null" if stderr == "closed" else stderr)
    close = "import os\nos.close(2)\n" if stderr == "closed" else ""
    for words, expected in ((("True", "False"), of_hydra), (("False", "True"), of_open_mpi)):
        told = tmp_path / "told"
        argv = [sys.executable, "-c", close + OPENS, str(told), *words]
        subprocess.run(argv, stdout=out, stderr=err, check=True, timeout=60)
        assert told.read_text().split() == expected.split()
    for end in ends:
        os.close(end)
