"""The program that dials other workers and measures the paths to them, as it is run on one."""

from __future__ import annotations

import errno
import resource
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from mpiboot.network.worker_pairs import Dial, Reached
from mpiboot.worker import probe
from mpiboot.worker.server import PROBE, write_scripts

HERE, THERE = "127.0.0.1", "127.0.0.2"
OWN = "127.0.5.9"  # nobody else listens there
# Ranges of ports end below 32768: above it, the kernel gives ports to any test that runs beside.
CLOSED = 1


@cache
def scripts() -> tempfile.TemporaryDirectory[str]:
    """What a worker writes for launchers; it goes with this process."""
    made = tempfile.TemporaryDirectory()
    write_scripts(Path(made.name))
    return made


@contextmanager
def started(ports: str = "0-0", address: str = HERE) -> Iterator[subprocess.Popen[str]]:
    """Run it as a worker does."""
    argv = ["/bin/sh", f"{scripts().name}/{PROBE}", ports, address]
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


def write(child: subprocess.Popen[str], text: str) -> None:
    assert child.stdin is not None
    child.stdin.write(f"{text}\n")
    child.stdin.flush()


def dial(child: subprocess.Popen[str], address: str, port: int, ssh: int, seconds: float) -> str:
    """Dial without a measurement; the first four words of the answer."""
    write(child, f"dial {address} {port} {ssh} {seconds} - 0 0")
    *words, trip, mtu, rate = line(child).split()
    assert [trip, mtu, rate] == ["-"] * 3
    return " ".join(words)


def measured(
    child: subprocess.Popen[str], address: str, port: int, mtu: int, stream: int = 0
) -> Dial:
    asked = Dial("w-0", "w-1", address, port, 5.0, own=HERE, wanted=mtu, stream=stream)
    write(child, asked.request)
    found = asked.answered(line(child))
    assert found is not None
    return found


def listen(child: subprocess.Popen[str], address: str) -> int:
    write(child, f"listen {address}")
    return int(line(child))


def port_of(child: subprocess.Popen[str]) -> int:
    word, port = line(child).split()
    assert word == "mpiboot-probe"
    return int(port)


def test_two_workers_dial_each_other_again_and_again() -> None:
    with started() as one, started(address=THERE) as other:
        ports = port_of(one), port_of(other)
        for _ in range(3):
            assert dial(one, THERE, ports[1], 1, 60) == "answered 127.0.0.1 127.0.0.1 -"
            assert dial(other, HERE, ports[0], 1, 60) == "answered 127.0.0.1 127.0.0.1 -"


def test_a_further_address_is_listened_at_when_asked() -> None:
    with started("19040-19049") as one, started(address=THERE) as other:
        port_of(one)
        port_of(other)
        assert dial(other, OWN, 19049, CLOSED, 60).startswith("refused ")
        assert listen(one, OWN) == 19049
        assert dial(other, OWN, 19049, CLOSED, 60) == "answered 127.0.0.1 127.0.0.1 -"
        assert listen(one, "203.0.113.7") == 0


def test_one_that_dials_itself_answers_and_ends_with_its_stdin() -> None:
    with started() as one:
        assert dial(one, HERE, port_of(one), 1, 60).startswith("answered ")
        assert one.stdin is not None
        one.stdin.close()
        assert one.wait(60) == 0


def test_a_refused_connection_and_the_ssh_port_beside_it() -> None:
    with started() as one, socket.create_server((OWN, 0)) as sshd:
        port_of(one)
        assert dial(one, OWN, CLOSED, CLOSED, 60) == "refused - - refused"
        assert dial(one, OWN, CLOSED, sshd.getsockname()[1], 0.2) == "refused - - connected"
        assert dial(one, OWN, CLOSED, 0, 60) == "refused - - -"


def test_a_dropped_connection_is_silent() -> None:
    # A listener whose queue is full drops what comes, as a network policy does.
    with (
        started() as one,
        socket.socket() as full,
        socket.socket() as first,
        socket.socket() as second,
    ):
        port_of(one)
        full.bind((HERE, 0))
        full.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        port = full.getsockname()[1]
        assert dial(one, HERE, port, CLOSED, 0.2) == "silent - - refused"


def test_no_route() -> None:
    with started() as one:
        port_of(one)
        # A multicast address has no TCP.
        assert dial(one, "224.0.0.1", 22, 22, 60) == "no-route - - no-route"


@pytest.mark.parametrize("message", [b"", b"SSH-2.0-OpenSSH_9.2\r\n"])
@pytest.mark.parametrize(
    ("mtu", "answer"), [(0, "connected 127.0.0.1 - - - - -"), (1500, "silent 127.0.0.1 - - - - -")]
)
def test_a_server_that_tells_no_address(message: bytes, mtu: int, answer: str) -> None:
    with started() as one, socket.create_server((HERE, 0)) as server:
        port_of(one)
        write(one, f"dial {HERE} {server.getsockname()[1]} 1 60 - {mtu} 0")
        connection, _ = server.accept()
        with connection:
            connection.sendall(message)
        assert line(one) == answer


def test_the_last_free_port_of_the_range_is_taken_and_left_free() -> None:
    with socket.socket() as taken:
        taken.bind((OWN, 19009))
        with started("19000-19009", OWN) as one, started() as other:
            assert port_of(one) == 19008
            port_of(other)
            assert dial(other, OWN, 19008, CLOSED, 60).startswith("answered ")
    # No connection stays in TIME_WAIT: without SO_REUSEADDR the port can be had at once.
    with socket.socket() as again:
        again.bind((OWN, 19008))


def test_who_connects_while_no_descriptor_is_left_is_answered_later() -> None:
    """Held by a pause in between: an accept that fails at once would take a whole core."""
    with started() as one, started(address=THERE) as other:
        ports = port_of(one), port_of(other)
        few, most = len(list(Path(f"/proc/{one.pid}/fd").iterdir())), 64
        resource.prlimit(one.pid, resource.RLIMIT_NOFILE, (few, most))
        # An accept that waits already has its descriptor, so that the first may be answered.
        message = [dial(other, HERE, ports[0], CLOSED, 0.2) for _ in range(2)]
        assert message[1] == "connected 127.0.0.1 - -"
        resource.prlimit(one.pid, resource.RLIMIT_NOFILE, (most, most))
        assert dial(other, HERE, ports[0], CLOSED, 60) == "answered 127.0.0.1 127.0.0.1 -"


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
    monkeypatch.setattr("mpiboot.worker.probe.time.sleep", pauses.append)
    with pytest.raises(KeyboardInterrupt):
        probe.accept(_NoDescriptors())  # type: ignore[arg-type]
    assert len(pauses) == 2
    assert all(pauses)


@pytest.mark.parametrize("address", [OWN, "203.0.113.7"], ids=["taken", "foreign"])
def test_no_port_that_can_be_had(address: str) -> None:
    with socket.socket() as taken:
        taken.bind((OWN, 0))
        port = taken.getsockname()[1] if address == OWN else 0
        with started(f"{port}-{port}", address) as one:
            assert line(one) == ""
            assert one.wait(60) == 1
            assert one.stderr is not None
            assert one.stderr.read() == f"mpiboot: no port of {port}-{port} is free at {address}\n"


def test_a_path_is_measured() -> None:
    with started() as one, started(address=THERE) as other:
        port_of(one)
        port = port_of(other)
        found = measured(one, THERE, port, 1500, 1 << 20)
        assert (found.reached, found.seen, found.mtu) == (Reached.ANSWERED, HERE, 1500)
        assert found.microseconds is not None
        assert found.rate
        # Without a stream there is no rate.
        found = measured(one, THERE, port, 9000)
        assert (found.mtu, found.rate) == (9000, None)
        assert measured(one, OWN, CLOSED, 1500).reached is Reached.REFUSED


def test_a_stream_lasts_as_long_as_it_is_asked_to() -> None:
    """What was acknowledged counts; over loopback nothing is sent again. No MTU is looked for."""
    with started() as child, started(address=THERE) as other:
        port_of(child)
        asked = Dial(
            *("w-0", "w-1", THERE, port_of(other), 5.0),
            own=HERE,
            wanted=1500,
            stream=1,
            lasting=0.2,
        )
        write(child, asked.request)
        found = asked.answered(line(child))
        assert found is not None
        assert found.reached is Reached.ANSWERED
        assert found.rate is not None
        assert found.rate > 1 << 20
        assert found.resent is not None
        assert 0 <= found.resent < 0.5
        assert found.mtu is None
        # The next one measures as before.
        assert measured(child, THERE, found.port, 1500, 1 << 20).mtu == 1500


def test_a_packet_larger_than_the_link_is_not_sent() -> None:
    mtu = int(Path("/sys/class/net/lo/mtu").read_text())
    with started() as one:
        found = measured(one, HERE, port_of(one), mtu + 1000)
    assert found.mtu is not None
    # Sent, it would go out in fragments, and come through.
    assert found.mtu <= mtu


class _Short:
    """A datagram socket of a path that carries packets of 1,400 bytes, and tells of no other."""

    sizes: list[int]

    def __init__(self, *_: object) -> None:
        self.answer = b""

    def send(self, data: bytes) -> None:
        size = len(data) + 28
        self.sizes.append(size)
        self.answer = b"%s %d" % (data.partition(b" ")[0], len(data)) if size <= 1400 else b""
        if size > 9000:
            raise OSError(errno.EMSGSIZE, "Message too long")

    def recv(self, _: int) -> bytes:
        if not self.answer:
            raise TimeoutError
        return self.answer

    def __getattr__(self, name: str) -> object:
        return lambda *_: None


@pytest.mark.parametrize(("mtu", "first"), [(9000, [9000] * 4), (10000, [10000] * 2)])
def test_the_largest_packet_is_found(
    mtu: int, first: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that its own link refuses is sent once and not waited for, as each try would be."""
    _Short.sizes = []
    monkeypatch.setattr("mpiboot.worker.probe.socket.socket", _Short)
    assert probe.largest("-", HERE, 7, mtu) == 1400
    assert _Short.sizes[: len(first) + 1] == [*first, 100]


def test_where_datagrams_get_no_answer_a_short_stream_is_tried() -> None:
    with started() as one, socket.create_server((HERE, 0)) as streams:
        port_of(one)

        def serve() -> None:
            for _ in range(2):
                connection, peer = streams.accept()
                connection.sendall(f"{peer[0]}\n".encode())
                probe.echo(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        found = measured(one, HERE, streams.getsockname()[1], 1500)
        thread.join()
    assert (found.reached, found.mtu, found.rate) == (Reached.ANSWERED, None, None)
    assert found.microseconds is not None


def test_a_stream_that_stalls_is_told() -> None:
    with started() as one, socket.create_server((HERE, 0)) as streams:
        port_of(one)

        def serve() -> None:
            connection, peer = streams.accept()
            connection.sendall(f"{peer[0]}\n".encode())
            probe.echo(connection)
            connection, peer = streams.accept()
            connection.sendall(f"{peer[0]}\n".encode())
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        found = measured(one, HERE, streams.getsockname()[1], 1500)
        thread.join()
    assert (found.reached, found.mtu) == (Reached.STALLED, None)
