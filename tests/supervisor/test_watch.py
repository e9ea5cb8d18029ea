from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from mpiboot.core.launch_spec import LaunchSpec, RemoteHost, from_line, to_line
from mpiboot.supervisor import processes
from mpiboot.supervisor.processes import Peer, Processes, find_mpiruns, joined, peers, unread

ONE = RemoteHost("w-1", "10.0.0.1", 22)
TWO = RemoteHost("w-2", "10.0.0.2", 22, others=("192.168.7.2",))
HERE = "10.0.0.9"


def seen(*addresses: str) -> list[Peer]:
    return [Peer(item, HERE) for item in addresses]


def test_a_daemon_has_joined_when_one_of_its_addresses_is_connected() -> None:
    both = [ONE, TWO]
    assert joined(both, both, seen()) == []
    assert joined(both, both, seen("10.0.0.1")) == ["w-1"]
    assert joined(both, both, seen("192.168.7.2")) == ["w-2"]
    assert joined([TWO], both, seen("10.0.0.1", "10.0.0.1")) == []


def test_pods_that_share_an_address_are_told_apart_by_count() -> None:
    hosts = [RemoteHost("a", "10.0.0.1", 2222), RemoteHost("b", "10.0.0.1", 2223)]
    assert joined(hosts, hosts, seen("10.0.0.1")) == ["a"]
    assert joined(hosts, hosts, seen("10.0.0.1", "10.0.0.1")) == ["a", "b"]


@pytest.mark.parametrize(
    ("before", "took", "pause"),
    [
        (0.05, 0.0, 0.075),
        (0.2, 0.001, 0.25),
        (0.25, 0.0125, 0.25),
        (0.25, 0.041, 0.82),  # 4,096 hosts
        (0.82, 0.001, 0.25),
    ],
)
def test_a_look_that_costs_more_is_made_less_often(
    before: float, took: float, pause: float
) -> None:
    assert processes.pause(before, took) == pytest.approx(pause)


def test_a_proxy_in_front_of_the_pod_counts_when_all_are_there() -> None:
    both = [ONE, TWO]
    assert joined(both, both, seen("127.0.0.6")) == []
    assert joined(both, both, seen("127.0.0.6", "127.0.0.6")) == ["w-1", "w-2"]
    assert joined(both, both, [Peer(HERE, HERE)] * 2) == []


@pytest.mark.parametrize("own", ["127.0.0.1", "::1"])
def test_connections_of_a_process_are_found(own: str) -> None:
    version = socket.AF_INET6 if ":" in own else socket.AF_INET
    try:
        server = socket.create_server((own, 0), family=version)
    except OSError:
        pytest.skip("no IPv6 here")
    with server, socket.create_connection(server.getsockname()[:2]), server.accept()[0]:
        assert Peer(own, own) in peers([os.getpid()])
    assert peers([2**22 + 1]) == []


def test_what_a_process_has_not_read_is_seen() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as other,
        server.accept()[0] as own,
    ):
        assert not unread([os.getpid()])
        other.sendall(b"something")
        while not unread([os.getpid()]):
            pass
        own.recv(64)
        assert not unread([os.getpid()])
    assert not unread([2**22 + 1])


def test_mpirun_is_found_below_a_wrapper(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    shutil.copy(shutil.which("bash") or "", mpirun)
    agent = tmp_path / "libexec" / "agent"
    agent.parent.mkdir()
    agent.write_text("#!/bin/sh\necho agent; read line\n")
    agent.chmod(0o755)
    script = f"{mpirun} -c '{agent} w-1 <&0 & read line; sleep 300 & echo rank; wait'; exit 0"
    with subprocess.Popen(
        ["/bin/sh", "-c", script],  # a wrapper above it is not mpirun
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            assert process.stdout.readline() == b"agent\n"
            (found,) = find_mpiruns(process.pid, Processes())
            assert found in (process.pid, *Processes().children(process.pid))
        finally:
            os.killpg(process.pid, 9)


def test_children_are_found_with_and_without_the_kernels_own_list(tmp_path: Path) -> None:
    for pid, parent in ((1, 0), (2, 1), (3, 1), (4, 3)):
        folder = tmp_path / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (a) b (c)) S {parent} 1 1 0")
    table = Processes(str(tmp_path))
    assert sorted(table.descendants(1)) == [2, 3, 4]
    (tmp_path / "1" / "task" / "1" / "children").write_text("3 ")
    assert Processes(str(tmp_path)).children(1) == [3]


def test_a_spec_is_read_back_as_it_was_written() -> None:
    spec = LaunchSpec(
        argv=("mpirun", "-n", "2", "a b"),
        family="openmpi5",
        remote_hosts=(ONE, TWO),
        hosts=3,
        ranks=None,
        launch_timeout=1.5,
        grace=2.0,
        folder="/run/mpiboot/launch",
        set_env={"A": "\udcff é"},
        unset_env=("B",),
        obstacles=(("NAME", "why"),),
        addresses=("10.0.0.1",),
    )
    assert from_line(to_line(spec)) == spec
