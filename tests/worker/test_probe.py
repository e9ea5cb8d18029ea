"""The program that dials other workers and the launcher, as it is run on a worker."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import IO, cast

import pytest

from mpiboot.worker.role import write_scripts
from tests.fakes.worker import free_port

HERE, THERE = "127.0.0.1", "127.0.0.2"
OWN = "127.0.5.9"  # nobody else listens there
LAUNCH = "0a1b-2c3d@pi-launcher@2026-11-28T18:00:00Z"
# Ranges of ports end below 32768: above it, the kernel gives ports to any test that runs beside.
CLOSED = 1


@cache
def scripts() -> tempfile.TemporaryDirectory[str]:
    """What a worker writes for launchers; it goes with this process."""
    made = tempfile.TemporaryDirectory()
    write_scripts(Path(made.name))
    return made


class Probe(AbstractContextManager["Probe"]):
    """It runs as on a worker; without words to listen."""

    def __init__(self, *words: str) -> None:
        argv = ["/bin/sh", f"{scripts().name}/probe", *(words or ("0-0", HERE, LAUNCH))]
        self.process = subprocess.Popen(argv, stdin=-1, stdout=-1, stderr=-1, text=True)
        streams = self.process.stdin, self.process.stdout, self.process.stderr
        self.stdin, self.stdout, self.stderr = cast("tuple[IO[str], IO[str], IO[str]]", streams)

    def __exit__(self, *_: object) -> None:
        with self.process:
            self.process.kill()

    def line(self) -> str:
        return self.stdout.readline().strip()

    def write(self, text: str) -> None:
        self.stdin.write(f"{text}\n")
        self.stdin.flush()

    def dial(self, address: str, port: int, ssh: int = CLOSED, seconds: float = 60) -> str:
        self.write(f"dial {address} {port} {ssh} {seconds}")
        return self.line()

    def port(self) -> int:
        word, port = self.line().split()
        assert word == "mpiboot-probe"
        return int(port)

    def listens(self) -> bool:
        return "mpiboot-listens\n" in iter(self.stdout.readline, "")


def test_a_further_address_is_listened_at() -> None:
    with Probe("19040-19049", HERE, LAUNCH) as one, Probe("0-0", THERE, LAUNCH) as other:
        one.port()
        other.port()
        assert other.dial(OWN, 19049).startswith("refused ")
        one.write(f"listen {OWN}")
        assert one.line() == "19049"
        assert other.dial(OWN, 19049) == "answered 127.0.0.1 127.0.0.1 -"
        one.write("listen 203.0.113.7")
        assert one.line() == "0"
        one.stdin.close()
        assert one.process.wait(60) == 0


def test_a_dial_that_fails_and_the_ssh_port_beside_it() -> None:
    with Probe() as one, socket.create_server((OWN, 0)) as sshd, socket.socket() as full:
        one.port()
        assert one.dial(OWN, CLOSED) == "refused - - refused"
        assert one.dial(OWN, CLOSED, sshd.getsockname()[1], 0.2) == "refused - - connected"
        assert one.dial(OWN, CLOSED, 0) == "refused - - -"
        # A multicast address has no TCP.
        assert one.dial("224.0.0.1", 22, 22) == "no-route - - no-route"
        # A listener whose queue is full drops what comes, as a network policy does.
        full.bind((HERE, 0))
        full.listen(0)
        with socket.socket() as first, socket.socket() as second:
            for filler in (first, second):
                filler.setblocking(False)
                filler.connect_ex(full.getsockname())
            port = full.getsockname()[1]
            assert one.dial(HERE, port, seconds=0.2) == "silent - - refused"


@pytest.mark.parametrize(
    "message",
    [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"10.0.0.1\n", f"{LAUNCH}\n".encode(), b"other 10.0.0.1\n"],
    ids=["nothing", "sshd", "an older worker", "no address", "another launch"],
)
def test_who_answers_without_the_launchs_id_is_another(message: bytes) -> None:
    with Probe() as one, socket.create_server((HERE, 0)) as server:
        one.port()
        one.write(f"dial {HERE} {server.getsockname()[1]} 1 60")
        connection, _ = server.accept()
        with connection:
            connection.sendall(message)
        assert one.line() == "connected 127.0.0.1 - -"


def test_one_that_nobody_answers_does_not_hold_up_the_next() -> None:
    """Answers come in the order of the lines all the same."""
    with Probe() as one, socket.create_server((HERE, 0)) as mute:
        port = one.port()
        one.write(f"dial {HERE} {mute.getsockname()[1]} 0 60")
        connection, _ = mute.accept()
        with connection, socket.create_server((HERE, 0)) as second:
            one.write(f"dial {HERE} {second.getsockname()[1]} 0 60")
            further, _ = second.accept()  # while the first has no answer
            one.write(f"dial {HERE} {port} 0 60")
            further.close()
        assert [one.line().split()[0] for _ in range(3)] == ["connected", "connected", "answered"]


def test_the_last_free_port_of_the_range_is_taken_and_left_free() -> None:
    with socket.socket() as taken:
        taken.bind((OWN, 19009))
        with Probe("19000-19009", OWN, LAUNCH) as one, Probe() as other:
            assert one.port() == 19008
            other.port()
            assert other.dial(OWN, 19008).startswith("answered ")
    # No connection stays in TIME_WAIT: without SO_REUSEADDR the port can be had at once.
    with socket.socket() as again:
        again.bind((OWN, 19008))


def test_who_connects_while_no_descriptor_is_left_is_answered_later() -> None:
    """Held by a pause in between: an accept that fails at once would take a whole core."""
    with Probe() as one, Probe("0-0", THERE, LAUNCH) as other:
        ports = one.port(), other.port()
        few, most = len(list(Path(f"/proc/{one.process.pid}/fd").iterdir())), 64
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (few, most))
        # An accept that waits already has its descriptor, so that the first may be answered.
        message = [other.dial(HERE, ports[0], seconds=0.2) for _ in range(2)]
        assert message[1] == "connected 127.0.0.1 - -"
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (most, most))
        assert other.dial(HERE, ports[0]) == "answered 127.0.0.1 127.0.0.1 -"


@pytest.mark.parametrize("address", [OWN, "203.0.113.7"], ids=["taken", "foreign"])
def test_no_port_that_can_be_had(address: str) -> None:
    with socket.socket() as taken:
        taken.bind((OWN, 0))
        port = taken.getsockname()[1] if address == OWN else 0
        with Probe(f"{port}-{port}", address, LAUNCH) as one:
            assert one.line() == ""
            assert one.process.wait(60) == 1
            assert one.stderr.read() == f"mpiboot: no port of {port}-{port} is free at {address}\n"


SERVER = """
import socket
server = socket.create_server(("127.0.0.1", PORT))
print("a part of a line", end="", flush=True)
server.accept()[0].recv(1)
print()
"""


@pytest.mark.parametrize("end", ["on its own", "a line", "the end of its stdin"])
def test_a_measurement_listens_and_ends(end: str, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "server").write_text(SERVER.replace("PORT", str(port)))
    with Probe("measure", str(port), sys.executable, f"{tmp_path}/server") as child:
        assert child.listens()
        if end == "on its own":
            socket.create_connection((HERE, port)).close()
        elif end == "a line":
            child.write("end")
        else:
            child.stdin.close()
        child.stdout.read()  # none has it any more
        assert child.process.wait() == 0


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("ls /no/such/place", "No such file or directory"),
        ("/no/program", "/no/program could not measure: No such file or directory"),
        ("receive 1 192.0.2.1", "receive could not measure: Cannot assign requested address"),
    ],
)
def test_a_measurement_that_fails_does_not_listen(program: str, words: str) -> None:
    with Probe("measure", str(free_port()), *program.split()) as child:
        found = child.stdout.read()
        assert child.process.wait() == 0
    assert words in found
    assert "mpiboot-listens" not in found


def test_a_stream_is_measured_between_two_ends() -> None:
    port = str(free_port())
    with Probe("measure", port, "receive", port, HERE) as server:
        assert server.listens()
        with Probe("measure", "0", "send", port, "0.1", THERE, HERE) as client:
            assert float(client.line()) > 0.1  # Gbit/s
            assert client.process.wait() == 0
        assert server.process.wait() == 0
