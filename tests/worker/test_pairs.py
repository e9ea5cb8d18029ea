"""The program that dials other workers, as it is run on one."""

from __future__ import annotations

import errno
import resource
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from mpiboot.worker import pairs
from mpiboot.worker.server import PAIRS, write_scripts


@cache
def scripts() -> tempfile.TemporaryDirectory[str]:
    """What a worker writes for launchers; it goes with this process."""
    made = tempfile.TemporaryDirectory()
    write_scripts(Path(made.name))
    return made


@contextmanager
def started(ports: str = "0-0", address: str = "127.0.0.1") -> Iterator[subprocess.Popen[str]]:
    """Run it as a worker does."""
    argv = ["/bin/sh", f"{scripts().name}/{PAIRS}", address, ports]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def ask(child: subprocess.Popen[str], *words: object) -> str:
    assert child.stdin is not None
    child.stdin.write(" ".join(map(str, words)) + "\n")
    child.stdin.flush()
    return line(child)


def port_of(child: subprocess.Popen[str]) -> int:
    word, port = line(child).split()
    assert word == "mpiboot-pairs"
    return int(port)


# Nobody else listens there.
OWN = "127.0.5.9"
CLOSED = 1


def test_two_workers_dial_each_other_again_and_again() -> None:
    with started() as one, started(address="127.0.0.2") as other:
        ports = port_of(one), port_of(other)
        for _ in range(3):
            assert ask(one, "127.0.0.2", ports[1], 1, 60) == "answered 127.0.0.1 127.0.0.1 -"
            assert ask(other, "127.0.0.1", ports[0], 1, 60) == "answered 127.0.0.1 127.0.0.1 -"


def test_one_that_dials_itself_answers() -> None:
    with started() as one:
        assert ask(one, "127.0.0.1", port_of(one), 1, 60).startswith("answered ")


def test_a_further_address_is_listened_at_when_asked() -> None:
    with started("40040-40049") as one, started(address="127.0.0.2") as other:
        port_of(one)
        port_of(other)
        assert ask(other, OWN, 40049, CLOSED, 60).startswith("refused ")
        assert ask(one, OWN, 0, 0, 0) == "listens 40049 - -"
        assert ask(other, OWN, 40049, CLOSED, 60) == "answered 127.0.0.1 127.0.0.1 -"
        assert ask(one, "203.0.113.7", 0, 0, 0) == "refused - - -"


def test_it_ends_with_its_stdin() -> None:
    with started() as one:
        port_of(one)
        assert one.stdin is not None
        one.stdin.close()
        assert one.wait(60) == 0


def test_a_refused_connection_and_the_ssh_port_beside_it() -> None:
    with started() as one, socket.create_server((OWN, 0)) as sshd:
        port_of(one)
        assert ask(one, OWN, CLOSED, CLOSED, 60) == "refused - - refused"
        assert ask(one, OWN, CLOSED, sshd.getsockname()[1], 0.2) == "refused - - connected"


def test_a_dropped_connection_is_silent() -> None:
    # A listener whose queue is full drops what comes, as a network policy does.
    with (
        started() as one,
        socket.socket() as full,
        socket.socket() as first,
        socket.socket() as second,
    ):
        port_of(one)
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        port = full.getsockname()[1]
        assert ask(one, "127.0.0.1", port, CLOSED, 0.2) == "silent - - refused"


def test_no_route() -> None:
    with started() as one:
        port_of(one)
        # A multicast address has no TCP.
        assert ask(one, "224.0.0.1", 22, 22, 60) == "no-route - - no-route"


@pytest.mark.parametrize("message", [b"", b"SSH-2.0-OpenSSH_9.2\r\n"])
def test_a_server_that_tells_no_address(message: bytes) -> None:
    with started() as one, socket.create_server(("127.0.0.1", 0)) as server:
        port_of(one)
        assert one.stdin is not None
        one.stdin.write(f"127.0.0.1 {server.getsockname()[1]} 1 60\n")
        one.stdin.flush()
        connection, _ = server.accept()
        with connection:
            connection.sendall(message)
        assert line(one) == "connected 127.0.0.1 - -"


def test_the_last_free_port_of_the_range_is_taken_and_left_free() -> None:
    with socket.socket() as taken:
        taken.bind((OWN, 40009))
        with started("40000-40009", OWN) as one, started() as other:
            assert port_of(one) == 40008
            port_of(other)
            assert ask(other, OWN, 40008, CLOSED, 60).startswith("answered ")
    # No connection stays in TIME_WAIT: without SO_REUSEADDR the port can be had at once.
    with socket.socket() as again:
        again.bind((OWN, 40008))


def test_who_connects_while_no_descriptor_is_left_is_answered_later() -> None:
    """Held by a pause in between: an accept that fails at once would take a whole core."""
    with started() as one, started(address="127.0.0.2") as other:
        ports = port_of(one), port_of(other)
        few, most = len(list(Path(f"/proc/{one.pid}/fd").iterdir())), 64
        resource.prlimit(one.pid, resource.RLIMIT_NOFILE, (few, most))
        # An accept that waits already has its descriptor, so that the first may be answered.
        message = [ask(other, "127.0.0.1", ports[0], CLOSED, 0.2) for _ in range(2)]
        assert message[1] == "connected 127.0.0.1 - -"
        resource.prlimit(one.pid, resource.RLIMIT_NOFILE, (most, most))
        assert ask(other, "127.0.0.1", ports[0], CLOSED, 60) == "answered 127.0.0.1 127.0.0.1 -"


class _NoDescriptors:
    """A listener that can accept nobody; the test ends with the last of its connections."""

    def __init__(self) -> None:
        self.errors: list[OSError | KeyboardInterrupt] = [
            ConnectionAbortedError(),
            OSError(errno.EMFILE, "Too many open files"),
            OSError(errno.EMFILE, "Too many open files"),
            KeyboardInterrupt(),
        ]

    def _accept(self) -> None:
        raise self.errors.pop(0)


def test_a_pause_before_each_further_try(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("mpiboot.worker.pairs.time.sleep", pauses.append)
    with pytest.raises(KeyboardInterrupt):
        pairs.answer(_NoDescriptors())  # type: ignore[arg-type]
    assert len(pauses) == 2
    assert all(pauses)


def test_no_port_that_can_be_had() -> None:
    with socket.socket() as taken:
        taken.bind((OWN, 40020))
        with started("40020-40020", OWN) as one:
            assert line(one) == ""
            assert one.wait(60) == 1


def test_an_address_that_is_not_this_pods() -> None:
    with started(address="203.0.113.7") as one:
        assert line(one) == ""
        assert one.wait(60) == 1
