"""What mpirun writes to pipes of the parent goes on to its own streams, whatever breaks."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mpiboot.supervisor import output
from mpiboot.supervisor.job import RankEnded
from mpiboot.supervisor.output import MpirunPipe, MpirunPipes, OutputWriter, StderrPipe
from tests.supervisor.loops import Loop


class Room(OutputWriter):
    """A stderr that has room when the test says so."""

    def __init__(self) -> None:
        self.room, self.tell = os.pipe()
        self.there = True
        self.broken = False
        self.handle = 2
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
        self.stderr, self.loop = Room(), Loop()
        self.pipes = MpirunPipes(self.loop, self.stderr, lambda _: None)
        self.ends: list[tuple[int, int]] = []
        for _ in range(2):
            self.pipes.add(StderrPipe(self.pipe()[0], self.stderr.write))
        self.writers = [writer for _, writer in self.ends]

    def pipe(self) -> tuple[int, int]:
        self.ends.append(os.pipe())
        return self.ends[-1]

    def turn(self) -> bytes:
        """Do what is ready now; give what stderr got."""
        self.stderr.data = b""
        self.loop.wait(0)
        return self.stderr.data


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    for end in (end for ends in made.ends for end in ends):
        with suppress(OSError):  # the test may have closed it
            os.close(end)
    made.stderr.close()


def test_all_but_mpiruns_own_nul_bytes_goes_on(rig: Rig) -> None:
    os.write(rig.writers[0], b"a rank's \0 byte\n\0\xfftwo, without an end")
    assert rig.turn() == b"a rank's \0 byte\n\xfftwo, without an end"
    os.write(rig.writers[0], b"\0\0\n")
    assert rig.turn() == b"\0\0\n"
    os.write(rig.writers[0], b"\0")
    assert rig.turn() == b"", "also where the newline was read before"


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


def test_a_pipe_that_nobody_can_write_to_wakes_nobody(rig: Rig) -> None:
    os.write(rig.writers[0], b"last")
    os.close(rig.writers.pop(0))
    assert rig.turn() == b"last"
    rig.turn()  # the end is read
    os.write(rig.stderr.tell, b".")
    rig.turn()
    until = time.monotonic() + 0.05
    rig.loop.wait(until)
    assert time.monotonic() >= until
    os.write(rig.writers[0], b"other")
    assert rig.turn() == b"other"


class Odd(MpirunPipe):
    """A reader that fails at what it doesn't expect, having kept the half of a line."""

    def _parse(self, text: bytes, *, last: bool) -> tuple[bytes, list[RankEnded]]:
        whole, newline, rest = text.rpartition(b"\n")
        self._held = rest
        if b"odd" in whole:
            raise ValueError("an odd line")
        return whole + newline, []


def test_a_reader_that_fails_passes_everything_on(
    rig: Rig, capfd: pytest.CaptureFixture[str]
) -> None:
    reader, writer = rig.pipe()
    rig.pipes.add(Odd(reader, rig.stderr.write))
    got = b""
    for text in (b"one\nan o", b"dd line\nthe half", b" of a line\nodd again"):
        os.write(writer, text)
        got += rig.turn()
    assert got == b"one\nan odd line\nthe half of a line\nodd again"
    message = capfd.readouterr().err
    assert message.count("mpiboot: warning: [bug] the parser of mpirun's messages failed at") == 1
    assert "ValueError: an odd line; the job goes on without it" in message
    rig.pipes.read_last()


def test_who_handles_ends_of_ranks_and_fails_does_not_stop_the_stream(
    rig: Rig, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: list[RankEnded]) -> None:
        raise KeyError("w-1")

    reader, writer = rig.pipe()
    MpirunPipes(rig.loop, rig.stderr, fail).add(MpirunPipe(reader, rig.stderr.write))
    for _ in range(2):
        os.write(writer, b"text")
        assert rig.turn() == b"text"
    assert "KeyError: 'w-1'; the job goes on without it" in capfd.readouterr().err


def test_that_ranks_had_to_wait_for_long_is_a_warning(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rig.stderr.there = False
    for limit in (output._LONG_WAIT_S, -1.0):
        monkeypatch.setattr(output, "_LONG_WAIT_S", limit)
        os.write(rig.writers[0], b"text")
        rig.turn()
        os.write(rig.stderr.tell, b".")
        rig.turn()
    assert capfd.readouterr().err.count("warning: nobody read stderr for 0 s: the ranks wait") == 1


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
