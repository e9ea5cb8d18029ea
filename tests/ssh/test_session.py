"""One session between its channel and the agent's streams, as asyncssh calls it."""

from __future__ import annotations

import io
import os
import select
from collections.abc import AsyncIterator
from typing import cast

import asyncssh
import pytest

from mpiboot.ssh.agents import FAILED, ClientSession
from tests.ssh.test_streams import turns
from tests.waiting import until_in_loop

MUCH = bytes((1 << 18) + (1 << 16) + 1)  # more than the pipe holds and may be kept


class Channel:
    """What a session does with its channel."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.closing = False
        self.more = b""

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def write_eof(self) -> None:
        self.done.append("end")

    def pause_reading(self) -> None:
        self.done.append("pause")

    def resume_reading(self) -> None:
        self.done.append("resume")
        if self.more:
            self.session.data_received(self.more, None)

    session: ClientSession


class Rig:
    """A session with three pipes: what the command reads, its output, its complaints."""

    def __init__(self) -> None:
        pipes = [os.pipe() for _ in range(3)]
        # As files: another thread of this process may have the number of what is closed.
        self.input = os.fdopen(pipes[0][1], "wb", 0)
        self.output, self.errors = (os.fdopen(reader, "rb", 0) for reader, _ in pipes[1:])
        self.session = ClientSession([pipes[0][0], pipes[1][1], pipes[2][1]])
        self.channel = Channel()
        self.channel.session = self.session
        self.session.connection_made(cast("asyncssh.SSHClientChannel[bytes]", self.channel))

    def close(self) -> None:
        self.session.close()
        for end in (self.input, self.output, self.errors):
            end.close()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    made.close()


def there(reader: io.FileIO) -> bytes | None:
    """What a pipe holds: empty once the session has closed its end, None for nothing yet."""
    return reader.read(1 << 20) if select.select([reader], [], [], 0)[0] else None


async def test_input_is_read_from_the_start_on_and_its_end_is_told(rig: Rig) -> None:
    rig.input.write(b"one")
    await turns()
    assert rig.channel.done == [], "the channel may not be open yet"
    rig.session.session_started()
    await until_in_loop(lambda: rig.channel.done)
    rig.session.pause_writing()
    rig.input.write(b"two")
    await turns()
    rig.session.resume_writing()
    await until_in_loop(lambda: len(rig.channel.done) > 1)
    rig.input.close()
    await until_in_loop(lambda: len(rig.channel.done) > 2)
    assert rig.channel.done == [b"one", b"two", "end"]


async def test_a_channel_that_closes_gets_nothing_more(rig: Rig) -> None:
    rig.session.session_started()
    rig.channel.closing = True
    rig.input.write(b"one")
    await turns()
    rig.input.close()
    await turns()
    assert rig.channel.done == []


@pytest.mark.parametrize("kind", [None, asyncssh.EXTENDED_DATA_STDERR])
async def test_the_command_is_held_while_a_stream_is_full(rig: Rig, kind: int | None) -> None:
    rig.session.data_received(MUCH, kind)
    rig.session.data_received(b"x", kind)
    assert rig.channel.done == ["pause"]
    while len(rig.channel.done) == 1:
        there(rig.errors if kind else rig.output)
        await turns()
    assert rig.channel.done == ["pause", "resume"]


async def test_what_comes_as_reading_goes_on_holds_the_command_again(rig: Rig) -> None:
    """What asyncssh kept it hands on within the call that resumes."""
    rig.session.data_received(MUCH, None)
    rig.channel.more = MUCH
    while len(rig.channel.done) < 3:
        there(rig.output)
        await turns()
    assert rig.channel.done[:3] == ["pause", "resume", "pause"]


async def test_it_is_over_when_the_channel_is_closed_and_all_is_written(rig: Rig) -> None:
    rig.session.data_received(MUCH, None)
    rig.session.exit_status_received(7)
    assert rig.session.eof_received(), "the command may still read"
    rig.session.connection_lost(None)
    with pytest.raises(BrokenPipeError):
        rig.input.write(b"one")
    await turns()
    assert not rig.session.done.is_set()
    while not rig.session.done.is_set():
        there(rig.output)
        await turns()
    assert (rig.session.status, rig.session.lost) == (7, None)


async def test_a_connection_that_is_lost_with_nothing_to_write_is_the_end(rig: Rig) -> None:
    lost = asyncssh.ConnectionLost("gone")
    rig.session.connection_lost(lost)
    assert rig.session.done.is_set()
    assert (rig.session.status, rig.session.lost) == (FAILED, lost)
    rig.session.close()
    assert (there(rig.output), there(rig.errors)) == (b"", b"")
