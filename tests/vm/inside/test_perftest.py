"""perftest's own programs, by the lines that `mpiboot validate pairs` sends to two hosts."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.settings import Settings
from mpiboot.hosts import host_shell
from mpiboot.network import decision, worker_network
from mpiboot.validate import pairs
from mpiboot.validate.pairs import IB_WRITE_BW, End
from mpiboot.worker.role import write_scripts
from tests.vm.inside.machine import devinfo, has_gid, others_gid, rail, run, seen, worker

PORT = 18577
SETTINGS = Settings(data_ifname=("rail0",))


@pytest.fixture
def end() -> End:
    """The delivered port and index: another pod's entries stand before our own."""
    rail(0, mtu=4200)
    others_gid()
    run("ip address add 10.9.0.1/24 dev rail0")
    has_gid("rxe0", "::ffff:10.9.0.1")
    network = worker_network.choose(worker(seen(), "10.99.0.1"), SETTINGS)
    (found,) = decision.decide([network], SETTINGS, {}).networks
    (only,) = pairs.rail_ends(replace(worker(seen(), "10.99.0.1"), address="127.0.0.1"), found)
    assert only is not None
    return only


def start(port: int, words: str, folder: Path) -> subprocess.Popen[str]:
    write_scripts(folder)
    command = ["sh", "-c", host_shell.measure(port, words)]
    env = {**os.environ, "MPIBOOT_WORKER_DIR": str(folder)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env)


def both_ends(end: End, folder: Path) -> list[str]:
    """What the client says; the end of its stdin ends the server, as a launcher's end does."""
    given = {"args": end.args, "port": PORT, "seconds": 1, "peer": end.address}
    with start(PORT, IB_WRITE_BW.server.format(**given), folder) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        while (line := server.stdout.readline()) and "mpiboot-listens" not in line:
            pass
        assert line, "the server ended"
        with start(0, IB_WRITE_BW.client.format(**given), folder) as client:
            assert client.stdout is not None
            message = client.stdout.read()
        server.stdin.close()
        server.stdout.read()
    return message.splitlines()


def test_perftest_measures_by_the_delivered_port_and_index(end: End, tmp_path: Path) -> None:
    assert end.args.rpartition(" ")[2] in {
        str(i) for i, gid, _ in devinfo("rxe0").gids if "10.9.0.1" in gid
    }
    before = sent()
    said = both_ends(end, tmp_path)
    value = IB_WRITE_BW.bandwidth(said)
    assert value, said
    assert value > 0
    assert sent() > before


def sent() -> int:
    return int(Path("/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts").read_text())
