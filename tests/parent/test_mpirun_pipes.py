"""What mpirun writes to pipes of the parent goes on to stderr, without NUL bytes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from mpiboot.parent.events import RankEnded
from mpiboot.parent.loop import EventLoop
from mpiboot.parent.mpirun_pipes import MpirunPipe, MpirunPipes
from mpiboot.parent.output_writer import OutputWriter


class Room(OutputWriter):
    """A stderr that has room when the test says so."""

    def __init__(self) -> None:
        self.room, self.tell = os.pipe()
        self.there = True
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    def has_room(self) -> bool:
        return self.there

    def close(self) -> None:
        for handle in (self.room, self.tell):
            os.close(handle)


class Rig:
    """Two pipes, read in a loop."""

    def __init__(self) -> None:
        self.stderr, self.loop = Room(), EventLoop()
        self.told: list[RankEnded] = []
        self.pipes = MpirunPipes(self.loop, self.stderr, self.told.extend)
        self.ends = [os.pipe(), os.pipe()]
        self.writers = [writer for _, writer in self.ends]
        for reader, _ in self.ends:
            self.pipes.add(MpirunPipe(reader, self.stderr.write))

    def turn(self) -> bytes:
        """Do what is ready now; give what stderr got."""
        self.stderr.data = b""
        self.loop.wait(0)
        return self.stderr.data


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    for reader, _ in made.ends:
        os.close(reader)
    for writer in made.writers:
        os.close(writer)
    made.stderr.close()


def test_all_but_nul_bytes_goes_on(rig: Rig) -> None:
    os.write(rig.writers[0], b"one\0\n\0\xfftwo, without an end")
    assert rig.turn() == b"one\n\xfftwo, without an end"
    os.write(rig.writers[0], b"\0")
    assert rig.turn() == b""


def test_one_that_writes_without_end_lets_others_be_heard(rig: Rig) -> None:
    written: list[int] = []

    class Endless(MpirunPipe):
        def read(self) -> list[RankEnded]:
            written.append(os.write(rig.writers[0], b"more\n"))
            return super().read()

    rig.pipes.add(Endless(rig.ends[0][0], rig.stderr.write))
    os.write(rig.writers[0], b"first\n")
    assert rig.turn() == b"first\nmore\n"
    assert len(written) == 1
    # At the end too.
    rig.pipes.read_last()


def test_without_room_nothing_is_read_until_there_is_some(rig: Rig) -> None:
    rig.stderr.there = False
    os.write(rig.writers[0], b"a")
    assert rig.turn() == b"a"
    for writer in rig.writers:
        os.write(writer, b"b")
    assert rig.turn() == b""
    rig.stderr.there = True
    assert rig.turn() == b"", "nobody has told that there is room"
    os.write(rig.stderr.tell, b".")
    assert rig.turn() + rig.turn() == b"bb"


def test_at_the_end_what_is_there_goes_on_whoever_reads(rig: Rig) -> None:
    rig.stderr.there = False
    os.write(rig.writers[0], b"a")
    rig.turn()
    os.write(rig.writers[0], b"last\0")
    rig.stderr.data = b""
    rig.pipes.read_last()
    assert rig.stderr.data == b"last"


def test_a_pipe_that_nobody_can_write_to_wakes_nobody(rig: Rig) -> None:
    os.write(rig.writers[0], b"last")
    os.close(rig.writers.pop(0))
    assert rig.turn() == b"last"
    rig.turn()  # the end is read
    os.write(rig.stderr.tell, b".")
    rig.turn()
    handlers = rig.loop._handlers
    assert rig.ends[0][0] not in handlers
    assert rig.ends[1][0] in handlers


def test_mpirun_notices_that_nobody_reads_its_stdout_any_more() -> None:
    """As it would itself without a pipe in between: `| head`, say."""
    nobody, stdout = os.pipe()
    os.close(nobody)
    stream, loop = OutputWriter(stdout), EventLoop()
    reader, writer = os.pipe()
    pipes = MpirunPipes(loop, stream, lambda _: None, ends_with_stream=True)
    pipes.add(MpirunPipe(reader, stream.write))
    end = time.monotonic() + 60

    def write_on() -> None:
        while time.monotonic() < end:  # another thread finds it
            os.write(writer, b"x")
            loop.wait(0)

    with pytest.raises(BrokenPipeError):
        write_on()
    pipes.read_last()
    stream.flush()
    os.close(stdout)
    os.close(writer)
