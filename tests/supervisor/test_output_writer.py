"""What is written to stderr by a thread of its own: in order, whole, and with an end."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from mpiboot.supervisor import output
from mpiboot.supervisor.output import OutputWriter
from tests.waiting import until

ENOUGH = 1 << 18


class Reader:
    """Who reads stderr; the test says how much."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reader, self.writer = os.pipe()

        names = {name: getattr(os, name) for name in dir(os)}
        monkeypatch.setattr(output, "os", SimpleNamespace(**{**names, "write": self.write}))

    def write(self, to: int, data: bytes) -> int:
        return os.write(self.writer if to == 2 else to, data)

    def take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += os.read(self.reader, count - len(data))
        return data


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    made = Reader(monkeypatch)
    yield made
    for end in (made.reader, made.writer):
        os.close(end)


def told(handle: int, seconds: float = 0) -> bool:
    return bool(select.select([handle], [], [], seconds)[0])


def close(writing: OutputWriter) -> None:
    os.close(writing.room)
    os.close(writing._notify)


def end(writing: OutputWriter) -> None:
    writing.end()
    until(lambda: writing.done)


def test_all_is_written_in_order_and_nothing_after_the_end(reader: Reader) -> None:
    writing = OutputWriter()
    for number in range(100):
        writing.write(b"%d\n" % number)
    end(writing)
    assert told(writing.room)
    writing.take_note()
    assert writing.left == 0
    expected = b"".join(b"%d\n" % number for number in range(100))
    assert reader.take(len(expected)) == expected
    end(writing)  # no more than once
    writing.write(b"never")
    assert writing.left == 0
    assert not told(reader.reader)
    assert not told(writing.room)
    close(writing)


def test_there_is_room_until_so_much_waits_and_again_when_it_was_read(reader: Reader) -> None:
    writing = OutputWriter()
    assert writing.has_room()
    writing.write(bytes(ENOUGH - 1))
    assert writing.has_room()
    assert not told(writing.room), "nobody waits for it"
    # The thread stands in the middle of the first piece: none of it counts as written.
    writing.write(b"x")
    assert not writing.has_room()
    assert not told(writing.room)
    reader.take(ENOUGH)
    assert told(writing.room, 60)
    assert os.read(writing.room, 9) == b"."
    while not writing.has_room():
        pass
    assert not told(writing.room), "told once"
    end(writing)
    close(writing)


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO])
def test_where_nothing_can_be_written_any_more_all_is_lost_and_why_is_known(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """One who reads and goes has enough, which is no error."""
    error = OSError(number, "")

    def broken(to: int, data: bytes) -> int:
        if to == 2:
            raise error
        return os.write(to, data)

    writing = OutputWriter()
    monkeypatch.setattr(output, "os", SimpleNamespace(write=broken))
    writing.write(b"one")
    writing.write(b"two")
    end(writing)
    assert (writing.broken, writing.left) == (True, 0)
    assert writing.wrong is (None if number == errno.EPIPE else error)
    close(writing)


def test_a_stream_that_somebody_made_non_blocking_is_written_to_the_end(reader: Reader) -> None:
    os.set_blocking(reader.writer, False)
    writing = OutputWriter()
    writing.write(bytes(1 << 20))
    writing.end()
    assert reader.take(1 << 20) == bytes(1 << 20)
    until(lambda: writing.done)
    assert not writing.broken
    close(writing)


def test_one_that_is_to_end_is_held_by_no_reader(reader: Reader) -> None:
    writing = OutputWriter()
    while writing.has_room():
        writing.write(bytes(1 << 16))
    writing.hurry()
    assert told(writing.room)
    assert writing.has_room()
    taken = writing._taken
    assert reader.take(taken) == bytes(taken)
    end(writing)
    close(writing)
