"""What a worker's answer after a failure means."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from dataclasses import replace

import pytest

from mpiboot.core.facts import Gpus, Host
from mpiboot.core.settings import Settings
from mpiboot.hosts import host_shell
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.job import names
from mpiboot.network import worker_network
from mpiboot.network.counters import CountedPort
from mpiboot.ssh.pool import Pool
from mpiboot.supervisor import ask_workers, evidence
from mpiboot.supervisor.ask_workers import Workers
from mpiboot.supervisor.state import HostFacts
from tests.fakes import plans, workers

BEFORE = evidence.HostSnapshot(
    name="w-1.job.space.svc", dns="w-1.job.space.svc", address="10.0.0.2", oom_kills=1
)


def memory(answer: str, before: evidence.HostSnapshot = BEFORE) -> str:
    rows = "".join(f"mpiboot-{line}\n" for line in answer.splitlines())
    return evidence.facts_of(before, host_shell.read(f"motd\n{rows}")).memory


def test_nothing_odd_is_no_finding() -> None:
    assert memory("oom 1\nlimit 1000\n") == memory("oom 0") == ""


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            "oom 2\nlimit 536870912\npeak 536870912",
            "out of memory: the kernel killed a process of this pod (limit 512 MiB, peak 512 MiB)",
        ),
        ("oom 3\nlimit max", "out of memory: the kernel killed 2 processes of this pod"),
        (
            "oom 2\nlimit 9223372036854771712",
            "out of memory: the kernel killed a process of this pod",
        ),
    ],
)
def test_each_finding_is_one_sentence(answer: str, text: str) -> None:
    assert memory(answer) == f"{text} since the hosts were checked"


def test_a_count_without_one_before_tells_nothing() -> None:
    assert memory("oom 5", replace(BEFORE, oom_kills=None)) == ""


def asked(host: evidence.HostSnapshot) -> HostFacts:
    """What is found out where only this pod can be asked."""
    told: list[HostFacts] = []
    asyncio.run(Workers(Pool(None), (host,), {}).after_job(("",), told.append))
    (found,) = told
    return found


def test_the_launcher_is_asked_by_its_own_shell() -> None:
    """Its count as it is now, whatever this machine's is."""
    now = subprocess.run(
        ["/bin/sh", "-c", host_shell.ask("memory")], capture_output=True, text=True, check=False
    )
    ooms = host_shell.read(now.stdout).oom_kills
    own = evidence.HostSnapshot("here", oom_kills=-1, here=True)
    found = asked(own)
    assert (found.here, found.answered) == (True, True)
    assert bool(found.memory) == (ooms is not None)


NO_NAME = "its name does not resolve any more: its container ended, or its pod is gone"
MOVED = "its name now has the address 10.0.0.9, not 10.0.0.2: the pod was replaced"


@pytest.mark.parametrize(
    ("addresses", "gone"),
    [(None, ""), ((), NO_NAME), (("10.0.0.9",), MOVED), (("10.0.0.9", "10.0.0.2"), "")],
)
def test_a_host_that_does_not_answer_is_gone_where_its_name_is(
    addresses: tuple[str, ...] | None, gone: str
) -> None:
    assert evidence.moved(BEFORE, addresses) == gone


def test_what_is_kept_of_a_worker_is_what_the_gate_saw() -> None:
    name = "w-1.job.space.svc"
    seen = plans.worker(Host(name), 1, None)
    assert evidence.snapshot(seen, "x") == evidence.HostSnapshot(
        name="x", dns=name, address="10.244.0.11", mpiboot=True
    )


@pytest.mark.parametrize("named", ["fd00::1", "10.0.0.2"])
def test_an_address_in_the_hostfile_is_no_name_that_can_go(named: str) -> None:
    """Open MPI 4.1 gets a made-up name for fd00::1, which proves nothing when it is looked up."""
    made_up = names.for_mpirun((named,), (), "launcher")
    job = plans.observed(listed=(Host(named),), renamed=made_up)
    seen = replace(job.workers[0], address=named, facts=None)
    before = evidence.snapshot(seen, job.called(seen.host.name))
    assert (before.dns, before.name) == ("", job.called(named))
    found = asked(before)
    assert (found.answered, found.gone) == (False, "")


@pytest.mark.parametrize("answer", ["", "garbage", "oom 9"])
def test_what_the_login_shell_prints_is_no_answer(answer: str) -> None:
    assert evidence.facts_of(BEFORE, host_shell.read(answer)) == HostFacts(BEFORE.name, True)


def test_where_the_name_of_a_host_leads_to() -> None:
    assert "its pod is gone" in evidence.moved(BEFORE, ())
    assert "10.0.0.9" in evidence.moved(BEFORE, ("10.0.0.9",))
    assert evidence.moved(BEFORE, ("10.0.0.2",)) == evidence.moved(BEFORE, None) == ""


@pytest.mark.parametrize(
    ("lacks", "message"),
    [
        ((), ""),
        ((("file", "./such"),), "the program ./such does not exist"),
        ((("name", "$(no)"),), "the program $(no) is not on PATH"),
        (
            (("right", "/etc"),),
            "the program /etc exists, but is not a file that this user may execute",
        ),
        (
            (("folder", "/no"),),
            "/no, where ranks are to start, is not there, or this user may not enter it",
        ),
    ],
)
def test_what_a_host_lacks_for_a_program(lacks: tuple[tuple[str, str], ...], message: str) -> None:
    assert evidence.facts_of(BEFORE, HostAnswer(lacks=lacks)).lacks == message


@pytest.mark.parametrize(
    ("error", "found"), [(socket.EAI_NONAME, ()), (socket.EAI_AGAIN, None), (0, ("10.0.0.2",))]
)
def test_a_nameserver_that_fails_proves_nothing(
    error: int, found: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        if error:
            raise socket.gaierror(error, "no")
        return [(2, 1, 6, "", (BEFORE.address, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert asyncio.run(ask_workers._addresses(BEFORE)) == found


@pytest.mark.parametrize(
    ("netdev", "functions", "shared"),
    [("net1", (), False), ("", ("0000:06:00.1",), False), ("", (), True)],
    ids=["its link is in the pod", "of the device plugin", "shared"],
)
def test_what_is_counted_are_the_rails_and_the_links(
    netdev: str, functions: tuple[str, ...], *, shared: bool
) -> None:
    seen = workers.with_device(workers.sriov(), port={"netdev": netdev})
    seen = workers.changed(seen, fabric={"functions": functions})
    network = worker_network.choose(seen, Settings())
    port, *links_counted = evidence.counted_ports(network, rdma=True)
    rail = CountedPort("mlx5_3:1", "net1", data=True, rdma=True, rate=100e9, shared=shared)
    assert port == rail
    rack = worker_network.choose(workers.changed(seen, gpus=Gpus(4, imex=True)), Settings())
    assert evidence.counted_ports(rack, rdma=True)[0] == replace(rail, nvlink=True)
    assert [(link.name, link.data) for link in links_counted] == [("eth0", False), ("net1", False)]
    eth0, net1 = evidence.counted_ports(network, rdma=False)
    assert (eth0.data, net1.data) == (False, True)
    assert evidence.counted_ports(replace(network, facts=None), rdma=True) == ()


def test_devices_that_the_user_may_name_are_counted_too() -> None:
    seen = workers.sriov()
    assert seen.facts
    more = workers.device("mlx5_9", workers.port(netdev="other"), pci="0000:07:00.0")
    closed = workers.device("mlx5_8", workers.port(), open_error="gone")
    fabric = replace(seen.facts.fabric, devices=(*seen.facts.fabric.devices, more, closed))
    network = worker_network.choose(
        replace(seen, facts=replace(seen.facts, fabric=fabric)), Settings()
    )
    found = evidence.counted_ports(network, rdma=True, any_device=True)
    assert [port.name for port in found if port.rdma] == ["mlx5_3:1", "mlx5_9:1"]
