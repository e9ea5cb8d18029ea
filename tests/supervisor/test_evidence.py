"""What a worker's answer after a failure means, and which of its ports are counted."""

from __future__ import annotations

import asyncio
import errno
import socket
from dataclasses import replace

import pytest

from mpiboot.core import addresses
from mpiboot.core.facts import Gpus, Host
from mpiboot.core.settings import Settings
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.network import worker_network
from mpiboot.network.records import CountedPort
from mpiboot.ssh.pool import Pool
from mpiboot.supervisor import evidence
from mpiboot.supervisor import workers as launch_workers
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.supervisor.job import HostFacts
from mpiboot.supervisor.workers import Workers
from tests.fakes import plans, workers

NAME = "w-1.job.space.svc"
BEFORE = HostSnapshot(NAME, NAME, "10.0.0.2", oom_kills=1)
OOM = "out of memory: the kernel killed"


@pytest.mark.parametrize(
    ("answer", "before", "text"),
    [
        (1, 1, ""),
        (0, 1, ""),
        (2, 1, f"{OOM} a process of this pod"),
        (3, 1, f"{OOM} 2 processes of this pod"),
        (5, None, ""),
        (None, 1, ""),
    ],
)
def test_memory_kills_since_the_gate_are_one_sentence(
    answer: int | None, before: int | None, text: str
) -> None:
    now = HostAnswer(oom_kills=answer)
    found = evidence.facts_of(replace(BEFORE, oom_kills=before), now)
    assert found.memory == (f"{text} since the hosts were checked" if text else "")


NO_NAME = "its name no longer resolves: its container ended, or its pod is gone"
MOVED = "its name now has the address 10.0.0.9, not 10.0.0.2: the pod was replaced"


@pytest.mark.parametrize(
    ("addresses", "gone"),
    [
        (None, ""),
        ((), NO_NAME),
        (("10.0.0.9",), MOVED),
        (("10.0.0.9", "10.0.0.2"), ""),
    ],
)
def test_a_host_that_does_not_answer_is_gone_where_its_name_is(
    addresses: tuple[str, ...] | None, gone: str
) -> None:
    assert evidence.moved(BEFORE, addresses) == gone


@pytest.mark.parametrize("named", ["fd00::1", "10.0.0.2"])
def test_an_address_in_the_hostfile_is_no_name_that_can_go(named: str) -> None:
    """Open MPI 4.1 gets a made-up name for fd00::1, which proves nothing when it is resolved."""
    made_up = addresses.for_mpirun((named,), (), "launcher")
    job = plans.observed(listed=(Host(named),), renamed=made_up)
    seen = replace(job.workers[0], address=named, facts=None)
    before = evidence.snapshot(seen, job.called(seen.host.name))
    assert (before.dns, before.name) == ("", job.called(named))
    reported: list[HostFacts] = []
    asyncio.run(Workers(Pool(None), (before,), {}).after_job("", reported.append))
    assert [(found.answered, found.gone) for found in reported] == [(False, "")]


@pytest.mark.parametrize(
    ("way", "program", "message"),
    [
        ("", "", ""),
        ("file", "./such", "the program ./such does not exist"),
        ("name", "$(no)", "the program $(no) is not on PATH"),
        (
            *("right", "/etc"),
            "the program /etc exists, but is not a file that this user may execute",
        ),
        (
            *("folder", "/no"),
            "/no, where ranks are to start, is not there, or this user may not enter it",
        ),
    ],
)
def test_what_a_host_lacks_for_a_program(way: str, program: str, message: str) -> None:
    answer = HostAnswer(lacks=((way, program),) if way else ())
    assert evidence.facts_of(BEFORE, answer).lacks == message


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (socket.gaierror(socket.EAI_NONAME, "no"), ()),
        (socket.gaierror(socket.EAI_AGAIN, "no"), None),
        (OSError(errno.EMFILE, "no"), None),
        (RuntimeError("can't start new thread"), None),
        (None, ("10.0.0.2",)),
    ],
)
def test_a_nameserver_that_fails_proves_nothing(
    error: Exception | None, found: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        if error:
            raise error
        return [(2, 1, 6, "", (BEFORE.address, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert asyncio.run(launch_workers._addresses(BEFORE)) == found


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
