"""What is written to stderr by a thread of its own: in order, whole, and with an end."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path
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
    os.close(writing._tell)


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


def test_a_reader_that_stands_still_is_waited_for_and_what_is_left_is_known(
    reader: Reader,
) -> None:
    writing = OutputWriter()
    writing.write(bytes(1 << 20))
    writing.end()
    assert not writing.done
    assert writing.left == 1 << 20
    reader.take(1 << 20)
    until(lambda: writing.done)
    assert writing.left == 0
    close(writing)


@pytest.mark.parametrize(
    ("wrong", "kept"), [(BrokenPipeError(errno.EPIPE, ""), False), (OSError(errno.EIO, ""), True)]
)
def test_where_nothing_can_be_written_any_more_all_is_lost_and_why_is_known(
    monkeypatch: pytest.MonkeyPatch, wrong: OSError, *, kept: bool
) -> None:
    """One who reads and goes has enough, which is no error."""

    def broken(to: int, data: bytes) -> int:
        if to == 2:
            raise wrong
        return os.write(to, data)

    writing = OutputWriter()
    monkeypatch.setattr(output, "os", SimpleNamespace(write=broken))
    writing.write(b"one")
    writing.write(b"two")
    end(writing)
    assert writing.broken
    assert writing.left == 0
    assert writing.wrong is (wrong if kept else None)
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


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Pieces of a kilobyte, each with its number."""
    return [b"%07d\n" % number * 128 for number in range(first, first + count)]


def test_what_is_too_much_for_memory_is_kept_in_a_file_in_order(
    reader: Reader, tmp_path: Path
) -> None:
    writing = OutputWriter()
    writing.overflow(str(tmp_path))
    read = b""
    for first in range(0, 6000, 2000):  # the file becomes empty between, and is used again
        for piece in numbered(2000, first):
            writing.write(piece)
            assert writing.has_room()
        assert writing._file
        assert writing._file.holds
        assert list(tmp_path.iterdir()) == [], "it has no name"
        size = os.fstat(writing._file._file).st_size
        assert size >= (2000 << 10) - ENOUGH - (65 << 10), "the rest is in memory, and in the pipe"
        read += reader.take(2000 << 10)
        until(lambda: writing.left == 0)
        until(lambda: not writing._file.holds)  # type: ignore[union-attr]
        assert os.fstat(writing._file._file).st_size == 0, "it takes no room any more"
    assert read == b"".join(numbered(6000))
    end(writing)
    close(writing)


@pytest.mark.parametrize("why", ["size", "disk", "folder"])
def test_where_the_file_has_no_room_who_writes_waits_and_nothing_is_lost(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    writing = OutputWriter()
    room = 1 << 20

    def pwrite(file: int, data: bytes, at: int) -> int:
        if at + len(data) <= room:
            return os.pwrite(file, data, at)
        if at < room:  # a disk takes what it can
            return os.pwrite(file, data[: room - at], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    if why == "disk":
        names = {name: getattr(os, name) for name in dir(os)}
        own = {"pwrite": pwrite, "write": reader.write}
        monkeypatch.setattr(output, "os", SimpleNamespace(**{**names, **own}))
    folder = tmp_path / "none" if why == "folder" else tmp_path
    writing.overflow(str(folder), room if why == "size" else 1 << 30)
    pieces, written = numbered(4000), 0
    while writing.has_room():
        writing.write(pieces[written])
        written += 1
    assert writing.file_full
    assert written < 4000
    if told(writing.room):  # older
        writing.take_note()
    assert not told(writing.room)
    read = reader.take(written << 10)
    assert told(writing.room, 60)
    writing.take_note()
    until(writing.has_room)
    assert not writing.file_full
    assert read == b"".join(pieces[:written])
    for piece in pieces[written : written + 100]:
        writing.write(piece)
    assert reader.take(100 << 10) == b"".join(pieces[written : written + 100])
    end(writing)
    close(writing)


def test_an_old_look_for_room_undoes_nothing(reader: Reader, tmp_path: Path) -> None:
    """The thread that writes may look just before the other one fills the file."""
    meanwhile: list[bytes] = []

    class Filled(OutputWriter):
        @property
        def left(self) -> int:
            left = super().left
            coming = meanwhile.copy()
            meanwhile.clear()
            for piece in coming:
                self.write(piece)
            return left

    writing = Filled()
    writing.overflow(str(tmp_path), 1 << 20)
    pieces = numbered(1 << 11)
    for piece in pieces:
        writing.write(piece)
    assert writing.file_full
    assert reader.take(2 << 20) == b"".join(pieces)
    until(lambda: writing.left == 0)
    meanwhile += pieces
    writing._room()
    assert writing.file_full
    assert not writing.has_room()
    assert reader.take(2 << 20) == b"".join(pieces)
    end(writing)
    close(writing)


def test_a_file_that_can_not_be_read_back_is_no_silent_loss(reader: Reader, tmp_path: Path) -> None:
    writing = OutputWriter()
    writing.overflow(str(tmp_path))
    for piece in numbered(1000):
        writing.write(piece)
    assert writing._file
    os.close(writing._file._file)
    writing.end()
    while not writing.done:
        if told(reader.reader, 0.01):
            os.read(reader.reader, 1 << 16)
    assert writing.wrong
    assert writing.wrong.errno == errno.EBADF
    close(writing)
