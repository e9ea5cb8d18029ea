"""The program by which workers measure the ways between them, run on loopback."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot.network import paths
from mpiboot.worker import path_probe, server

HERE = "127.0.0.1"
PATIENCE = 60


class Probe:
    """The program, by the script that a worker writes for its launcher."""

    def __init__(self, folder: Path, ports: str, *addresses: str) -> None:
        server.write_scripts(folder)
        self.process = subprocess.Popen(
            ["/bin/sh", str(folder / "paths"), ports, *addresses],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.says = self.process.stdout.readline().split()

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> int:
        self.process.communicate(timeout=PATIENCE)
        return self.process.returncode


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[Probe]:
    made = Probe(tmp_path, "0-0", HERE, "127.0.0.2")
    yield made
    made.process.kill()
    made.end()


def test_a_way_is_measured_and_the_program_ends_with_its_stdin(probe: Probe) -> None:
    word, *ports = probe.says
    assert (word, len(ports)) == ("mpiboot-paths", 2)
    found = paths.read(probe.ask(f"{HERE} 127.0.0.2 {ports[1]} 1500 5 {1 << 20}"))
    assert found is not None
    how, microseconds, mtu, rate = found
    assert (how, mtu) == ("connected", 1500)
    assert microseconds is not None
    assert rate
    # Without a stream there is no rate.
    assert probe.ask(f"{HERE} 127.0.0.2 {ports[1]} 9000 5 0").split()[2:] == ["9000", "-"]
    assert probe.end() == 0


def test_a_port_where_nobody_listens_is_refused(probe: Probe) -> None:
    with socket.socket() as closed:
        closed.bind((HERE, 0))
        answer = probe.ask(f"{HERE} {HERE} {closed.getsockname()[1]} 1500 5 0")
    assert answer == "refused - - -"


def test_a_packet_larger_than_the_link_is_not_sent(probe: Probe) -> None:
    mtu = int(Path("/sys/class/net/lo/mtu").read_text())
    asked = f"{HERE} {HERE} {probe.says[1]} {mtu + 1000} 5 0"
    largest = probe.ask(asked).split()[2]
    assert largest.isdecimal()
    assert int(largest) <= mtu


def test_where_datagrams_get_no_answer_a_short_stream_is_tried(probe: Probe) -> None:
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]
        answer = path_probe.measure(HERE, HERE, port, 1500, 0.5, 0)
        assert answer == "silent - - -"  # it connects, and sends nothing back
    streams, datagrams = path_probe.listen(HERE, 0, 0)
    datagrams.close()
    threading.Thread(target=path_probe.answer_connections, args=(streams,), daemon=True).start()
    answer = path_probe.measure(HERE, HERE, streams.getsockname()[1], 1500, 5.0, 0)
    how, trip, mtu, rate = answer.split()
    assert (how, mtu, rate) == ("connected", "-", "-")
    assert trip.isdecimal()


def test_it_listens_in_the_range_of_ports_from_its_end(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        free = probe.getsockname()[1]
    first = Probe(tmp_path, f"{free}-{free}", HERE)
    assert first.says == ["mpiboot-paths", str(free)]
    second = Probe(tmp_path, f"{free}-{free}", HERE)
    assert second.says == []
    assert second.process.stderr is not None
    message = second.process.stderr.read()
    assert message.startswith(f"mpiboot: nobody can listen at {HERE}: ")
    assert (first.end(), second.end()) == (0, 1)
