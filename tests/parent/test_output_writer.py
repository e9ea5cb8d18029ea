"""What is written to stderr by a thread of its own: in order, whole, and with an end."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from mpiboot.parent import output_writer
from mpiboot.parent.output_writer import OutputWriter

ENOUGH = 1 << 18


class Reader:
    """Who reads stderr; the test says how much."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reader, self.writer = os.pipe()

        def write(to: int, data: bytes) -> int:
            return os.write(self.writer if to == 2 else to, data)

        monkeypatch.setattr(output_writer, "os", SimpleNamespace(pipe=os.pipe, write=write))

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
    os.close(writing._tell)


def test_all_is_written_in_order_and_nothing_after_the_end(reader: Reader) -> None:
    writing = OutputWriter()
    for number in range(100):
        writing.write(b"%d\n" % number)
    writing.flush()
    expected = b"".join(b"%d\n" % number for number in range(100))
    assert reader.take(len(expected)) == expected
    writing.flush()  # no more than once
    writing.write(b"never")
    assert not told(reader.reader)
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
    writing.flush()
    assert not told(writing.room), "told once"
    close(writing)


def test_a_reader_that_stands_still_does_not_keep_the_end(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_writer, "_PATIENCE", 0.05)
    writing = OutputWriter()
    writing.write(bytes(1 << 20))
    writing.flush()
    reader.take(1 << 20)
    assert writing._over.acquire(timeout=60)
    close(writing)


def test_the_end_is_waited_for_as_long_as_somebody_reads(reader: Reader) -> None:
    writing = OutputWriter()
    waited: list[float] = []

    class Over:
        """Some bytes are written in each of three waits, and none in the fourth."""

        def acquire(self, timeout: float) -> bool:
            waited.append(timeout)
            writing._written += len(waited) < 4
            return False

        def release(self) -> None:
            """Be told of the thread's end."""

    writing._over = Over()  # type: ignore[assignment]
    writing.flush()
    assert waited == [5.0] * 4
    close(writing)


def test_where_nobody_reads_any_more_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(to: int, data: bytes) -> int:
        raise BrokenPipeError

    writing = OutputWriter()
    monkeypatch.setattr(output_writer, "os", SimpleNamespace(write=broken))
    writing.write(b"one")
    writing.write(b"two")
    writing.flush()
    assert writing._written == 6
    close(writing)
