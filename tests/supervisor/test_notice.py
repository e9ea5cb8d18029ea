"""The port on which workers tell of their end: real connections on loopback."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from mpiboot.supervisor.host_watch import Notices
from tests.supervisor.loops import Loop

MARK = "0123456789abcdef-0123456789abcdef@launcher@2026-01-01T00:00:00Z"


class Launcher:
    """A launcher that listens."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.heard: list[str] = []
        self.notices = Notices(self.loop, MARK, self.heard.append)
        self.port = self.notices.listen(("127.0.0.1",))

    def hear(self, *message: bytes) -> list[str]:
        """What it took for true of what was said, each on a connection of its own."""
        for data in message:
            with socket.create_connection(("127.0.0.1", self.port)) as other:
                other.sendall(data)
                # It closes the connection once it has read it.
                other.setblocking(False)
                end = time.monotonic() + 30
                while time.monotonic() < end:
                    self.loop.wait(time.monotonic() + 0.05)
                    try:
                        assert other.recv(1) == b""
                        break
                    except BlockingIOError:
                        continue
                    except ConnectionResetError:
                        break
        return self.heard


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher()
    yield made
    made.notices.close()


def test_a_worker_is_heard(launcher: Launcher) -> None:
    assert launcher.hear(f"ending {MARK} w-1\n".encode()) == ["w-1"]


@pytest.mark.parametrize(
    "message",
    [b"ending other w-1\n", b"ending\n", b"\x00\xff\n", f"begin {MARK} w-1\n".encode(), b"x" * 600],
)
def test_strangers_and_noise_are_not(launcher: Launcher, message: bytes) -> None:
    assert launcher.hear(message, f"ending {MARK} w-1\n".encode()) == ["w-1"]


def test_a_connection_that_is_reset_ends_nothing(launcher: Launcher) -> None:
    with socket.create_connection(("127.0.0.1", launcher.port)) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert launcher.hear(f"ending {MARK} w-1\n".encode()) == ["w-1"]


def test_the_connection_is_closed_when_what_was_heard_is_done() -> None:
    """The worker's ranks end only then."""
    loop, open_then = Loop(), list[bool]()
    with socket.socket() as worker:

        def heard(_: str) -> None:
            worker.setblocking(False)
            with pytest.raises(BlockingIOError):
                worker.recv(1)
            open_then.append(True)

        notices = Notices(loop, MARK, heard)
        worker.connect(("127.0.0.1", notices.listen(("127.0.0.1",))))
        worker.sendall(f"ending {MARK} w-1\n".encode())
        while not open_then:
            loop.wait(None)
        worker.setblocking(True)
        assert worker.recv(1) == b""
        notices.close()


def test_those_that_say_nothing_do_not_take_the_place_of_others(launcher: Launcher) -> None:
    with ExitStack() as silent:
        for _ in range(40):
            silent.enter_context(socket.create_connection(("127.0.0.1", launcher.port)))
            launcher.loop.wait(None)
        assert launcher.hear(f"ending {MARK} w-1\n".encode()) == ["w-1"]


def test_a_port_that_is_taken_makes_room_for_the_next() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        notices = Notices(Loop(), MARK, print)
        assert notices.listen(("127.0.0.1",), (port,)) == 0
        assert notices.listen(("127.0.0.1",), (port, 0)) not in (0, port)
        notices.close()


def test_only_the_addresses_by_which_workers_were_reached_are_listened_on() -> None:
    notices = Notices(Loop(), MARK, print)
    port = notices.listen(("127.0.0.2", "127.0.0.3", "192.0.2.1", "::bad"))
    try:
        for address in ("127.0.0.2", "127.0.0.3"):
            socket.create_connection((address, port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
    finally:
        notices.close()


def test_without_an_address_nothing_listens() -> None:
    assert Notices(Loop(), MARK, print).listen(()) == 0
