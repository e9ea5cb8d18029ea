"""What workers' answers mean after a job: why it failed, and what carried its data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from mpiboot.core import addresses
from mpiboot.core.facts import Gpus, Host, HostAnswer
from mpiboot.core.settings import Settings
from mpiboot.network import worker_network
from mpiboot.network.records import CountedPort
from mpiboot.ssh.pool import Pool
from mpiboot.supervisor import evidence
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.supervisor.job import HostFacts
from mpiboot.supervisor.workers import Workers
from tests.fakes import plans, workers

NAME = "w-1.job.space.svc"
BEFORE = HostSnapshot(NAME, NAME, "10.0.0.2", HostAnswer(oom_kills=1))
OOM = "out of memory: the kernel killed"


def test_memory_kills_since_the_gate_are_one_sentence() -> None:
    kills = {(1, 1): "", (0, 1): "", (5, None): "", (None, 1): ""}
    kills |= {(2, 1): f"{OOM} a process of this pod", (3, 1): f"{OOM} 2 processes of this pod"}
    for (now, before), text in kills.items():
        found = evidence.facts_of(
            replace(BEFORE, answer=HostAnswer(oom_kills=before)), HostAnswer(oom_kills=now)
        )
        assert found.memory == (f"{text} since the hosts were checked" if text else "")


def test_a_host_that_does_not_answer_is_gone_where_its_name_is() -> None:
    assert evidence.moved(BEFORE, ("10.0.0.9", "10.0.0.2")) == ""
    moved = "its name now has the address 10.0.0.9, not 10.0.0.2: the pod was replaced"
    assert evidence.moved(BEFORE, ("10.0.0.9",)) == moved
    none = "its name no longer resolves: its container ended, or its pod is gone"
    assert evidence.moved(BEFORE, ()) == none


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


def test_what_a_host_lacks_for_a_program() -> None:
    lacks = {
        ("file", "./such"): "the program ./such does not exist",
        ("name", "$(no)"): "the program $(no) is not on PATH",
        ("right", "/etc"): "the program /etc exists, but is not a file that this user may execute",
        ("folder", "/no"): "/no, where ranks are to start, is not there, or this user may not",
    }
    for lacking, message in lacks.items():
        found = evidence.facts_of(BEFORE, HostAnswer(lacks=(lacking,))).lacks
        assert found.startswith(message)
    assert evidence.facts_of(BEFORE, HostAnswer()).lacks == ""


@pytest.mark.parametrize(
    ("netdev", "functions", "shared"),
    [("net1", (), False), ("", ("0000:06:00.1",), False), ("", (), True)],
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


KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
RAIL = CountedPort("mlx5_1:1", "net1", data=True, rdma=True, rate=200e9)
NVLINK, WHOLE_HCA = replace(RAIL, nvlink=True), replace(RAIL, shared=True)
ETH0 = CountedPort("eth0", "eth0", data=False, rdma=False, idle=MIB)
NET1 = CountedPort("net1", "net1", data=True, rdma=False, idle=MIB)
IB = CountedPort("mlx5_1:1", "", data=True, rdma=True, idle=MIB)
MOST = (1 << 32) - 1
Moved = Mapping[str, tuple[int, int]]


def words(sent: int, received: int | None = None) -> dict[str, int]:
    """InfiniBand's counters, in words of four bytes."""
    return {
        "port_xmit_data": sent // 4,
        "port_rcv_data": (sent if received is None else received) // 4,
    }


def link(sent: int, received: int | None = None) -> dict[str, int]:
    return {"tx_bytes": sent, "rx_bytes": sent if received is None else received}


def host(name: str, *ports: CountedPort, before: int = 1000) -> HostSnapshot:
    """A host whose ports had all counted something before the job."""
    every = {port.name: words(before) if port.rdma else link(before) for port in (*ports, ETH0)}
    return HostSnapshot(name, counted=(*ports, ETH0), answer=HostAnswer(counters=every))


def counted(moved: Moved, port: CountedPort = RAIL) -> dict[str, dict[str, dict[str, int]]]:
    """The counters of hosts whose data port and eth0 have sent so many bytes."""
    count = words if port.rdma else link
    return {
        name: {port.name: count(1000 + data), "eth0": link(1000 + other)}
        for name, (data, other) in moved.items()
    }


def judged(moved: Moved, port: CountedPort = RAIL, *, strict: bool = False) -> dict[str, Any]:
    hosts = [host(name, port) for name in moved]
    return evidence.judge_transport(hosts, counted(moved, port), strict=strict)


def four(data: int, other: int) -> dict[str, tuple[int, int]]:
    return {f"w-{number}": (data, other) for number in range(4)}


@pytest.mark.parametrize(
    ("moved", "port", "line"),
    [
        (four(TIB, 8 * MIB), RAIL, "mlx5_1 on net1 sent 1 TiB per worker (RDMA); eth0 8 MiB"),
        (four(MIB, 400), NET1, "net1 sent 1 MiB per worker (TCP); eth0 400 bytes"),
        (
            *(four(GIB, 0), WHOLE_HCA),
            "mlx5_1 on net1 sent 1 GiB per worker (RDMA; at most, other pods may use it too)",
        ),
    ],
)
def test_the_line_has_what_carried_the_data(moved: Moved, port: CountedPort, line: str) -> None:
    found = judged(moved, port)
    assert found["lines"][0].removesuffix("; eth0 0 bytes") == f"data: {line}"
    assert found["verdict"] == "ok"


FELL_BACK = "RDMA was planned, but no byte went through mlx5_1 on net1 on"
ALL, LITTLE = "4 of 4 workers (w-0, w-1, w-2, w-3); eth0 sent", "too little was sent to judge"
HARDLY = "was planned, but hardly anything went through"
LAST_BY_ETH0, LAST_IDLE = ({**four(TIB, MIB), "w-3": (0, sent)} for sent in (412 * GIB, 0))


@pytest.mark.parametrize(
    ("moved", "port", "strict", "verdict", "message"),
    [
        # A hello world sends hardly anything anywhere.
        (four(0, 12 * KIB), RAIL, False, "unknown", LITTLE),
        (four(0, 412 * GIB), RAIL, False, "unused", f"{FELL_BACK} {ALL} 412 GiB"),
        (
            *(LAST_BY_ETH0, RAIL, False, "unused"),
            f"{FELL_BACK} 1 of 4 workers (w-3); eth0 sent 412 GiB",
        ),
        # A rank that has nothing to do is no fallback, but no proof either.
        (LAST_IDLE, RAIL, False, "unknown", "w-3: too little was sent"),
        # On a rack with NVLink between its hosts no port needs to move a byte.
        (four(0, 412 * GIB), NVLINK, True, "unknown", "w-3: NVLink may have carried its data to"),
        # One host that has all ranks needs no network, and may still load a data set.
        ({"w-0": (0, GIB)}, RAIL, True, "unknown", "w-0: all ranks may have been there"),
        # Data sets and checkpoints go by the pod network while the ranks use RDMA.
        (four(TIB, TIB), RAIL, True, "ok", "data: "),
        # A subnet manager and IPoIB move some KiB through a port that no job uses.
        (four(40 * KIB, GIB), IB, False, "unused", f"RDMA {HARDLY} mlx5_1 on 4 of 4 workers"),
        (four(2 * KIB, GIB), NET1, False, "unused", f"TCP {HARDLY} net1 on 4 of 4 workers"),
    ],
)
def test_the_verdict(
    moved: Moved, port: CountedPort, verdict: str, message: str, *, strict: bool
) -> None:
    found = judged(moved, port, strict=strict)
    assert found["verdict"] == verdict
    assert message in found["message"]


def test_a_host_that_may_have_got_no_rank_proves_nothing_by_silence() -> None:
    hosts = [replace(host("w-0", RAIL), may_idle=True), host("w-1", RAIL)]
    after = counted({"w-0": (0, 0), "w-1": (GIB, 0)})
    assert evidence.judge_transport(hosts, after, strict=True)["verdict"] == "unknown"


@pytest.mark.parametrize("strict", [False, True])
def test_what_other_pods_may_have_sent_is_evidence_and_no_proof(*, strict: bool) -> None:
    node = replace(ETH0, shared=True)
    hosts = [replace(host("w-0", RAIL), counted=(RAIL, node), may_idle=True)]
    found = evidence.judge_transport(hosts, counted({"w-0": (0, GIB)}), strict=strict)
    assert found["verdict"] == ("unknown" if strict else "unused")
    assert ("; eth0 sent at most 1 GiB" in found["message"]) is not strict


IRDMA = ("ip4OutOctets", "ip4InOctets", "ip6OutOctets", "ip6InOctets")
RXE = ("sent_pkts", "rcvd_pkts")
FULL = {"port_xmit_data": MOST, "port_rcv_data": 500}


def numbers(names: tuple[str, ...], *values: int) -> dict[str, int]:
    return dict(zip(names, values, strict=True))


@pytest.mark.parametrize(
    ("before", "after", "moved", "unit", "why"),
    [
        (words(400), words(4400, 800), (4000, 400), "bytes", ""),
        (link(1, 2), link(5, 9), (4, 7), "bytes", ""),
        (numbers(IRDMA, 1, 1, 0, 0), numbers(IRDMA, 6, 4, 10, 20), (15, 23), "bytes", ""),
        (numbers(RXE, 10, 20), numbers(RXE, 12355, 20), (12345, 0), "packets", ""),
        # 32 bits, which saturate.
        (words(400), FULL, (None, None), "bytes", "a counter is at its largest value"),
        (words(400), words(0), (None, None), "bytes", "a counter was reset or wrapped meanwhile"),
        ({}, words(400), (None, None), "bytes", "this pod can't read its counters"),
        (words(400), {}, (None, None), "bytes", "this pod can't read its counters"),
        ({"symbol_error": 1}, {"symbol_error": 2}, (None, None), "bytes", "this pod can't"),
    ],
)
def test_units_and_what_can_not_be_known(
    before: Mapping[str, int],
    after: Mapping[str, int],
    moved: tuple[int | None, int | None],
    unit: str,
    why: str,
) -> None:
    before_job = replace(host("w-0", RAIL), answer=HostAnswer(counters={RAIL.name: before}))
    found = evidence.traffic(before_job, RAIL, {RAIL.name: after})
    assert ((found.sent, found.received), found.unit) == (moved, unit)
    assert found.why.startswith(why)
    assert bool(found.why) == (found.sent is None)


def test_what_is_not_known_is_reported_and_never_a_verdict() -> None:
    hosts = [host("w-0", RAIL), host("w-1", RAIL), host("w-2", RAIL)]
    after = counted({"w-0": (GIB, GIB), "w-1": (0, 99 * GIB)})
    del after["w-1"][RAIL.name]
    found = evidence.judge_transport(hosts, after, strict=True)
    assert found["verdict"] == "unknown"
    assert found["message"] == "w-1: this pod can't read its counters; w-2: it gave no counters"
    assert "mlx5_1 on net1 sent 1 GiB per worker (RDMA)" in found["lines"][0]
    assert "mlx5_1 on net1: unknown on w-2: it gave no counters" in found["lines"][0]
    assert found["hosts"]["w-2"]["mlx5_1:1"]["sent"] is None


def test_workers_whose_devices_differ_are_grouped_by_link_and_many_rails_are_one() -> None:
    other = {"w-0": replace(RAIL, name="mlx5_7:1"), "w-1": RAIL}
    after = {name: counted({"": (GIB, 0)}, port)[""] for name, port in other.items()}
    two = [host(name, port) for name, port in other.items()]
    found = evidence.judge_transport(two, after, strict=False)
    assert found["lines"][0].startswith("data: mlx5_7, mlx5_1 on net1 sent 1 GiB per worker (RDMA)")
    rails = [CountedPort(f"mlx5_{n}:1", f"net{n}", data=True, rdma=True) for n in range(8)]
    eight = [host(name, *rails) for name in ("w-0", "w-1")]
    moved = {port.name: words(1000 + GIB) for port in rails[:-1]}
    moved |= {"mlx5_7:1": words(1000), "eth0": link(1000)}
    found = evidence.judge_transport(eight, {"w-0": moved, "w-1": moved}, strict=True)
    assert found["lines"][0] == (
        "data: mlx5_0, mlx5_1, mlx5_2, mlx5_3 and 4 more sent 7 GiB per worker (RDMA); "
        "nothing by net7; eth0 0 bytes"
    )
    assert found["verdict"] == "ok"
    unread = {name: moved[name] for name in ("mlx5_0:1", "mlx5_7:1", "eth0")}
    found = evidence.judge_transport(eight, {"w-0": unread, "w-1": unread}, strict=True)
    assert "; nothing by net7; " in found["lines"][0]
    assert "unknown on w-0, w-1: this pod can't read its counters" in found["lines"][0]


def test_error_counters_that_moved_are_a_line_each_with_their_meaning() -> None:
    before = words(1000) | {"out_of_sequence": 100}
    hosts = [host("w-0", RAIL), host("w-1", RAIL)]
    counters = HostAnswer(counters={**hosts[0].answer.counters, RAIL.name: before})
    hosts = [replace(one, answer=counters) for one in hosts]
    after = counted({"w-0": (GIB, 0), "w-1": (GIB, 0)})
    after["w-0"][RAIL.name] |= {"symbol_error": 4, "out_of_sequence": 50}  # the one was reset
    after["w-1"][RAIL.name] |= {"symbol_error": 4, "out_of_sequence": 1350}
    found = evidence.judge_transport(hosts, after, strict=False)
    lost, cable = found["lines"][1:]
    assert lost.startswith("data: out_of_sequence 1,250, most on w-1: packets to it were lost")
    assert cable.startswith("data: symbol_error 8, most on w-0: the cable")
    moved = json.loads(json.dumps(found))["moved"]
    assert moved == {"out_of_sequence": 1250, "symbol_error": 8}
