from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Fabric, Gpus, Host, Link, RdmaDevice, Worker
from mpiboot.core.model import Level
from mpiboot.core.settings import resolve
from mpiboot.job import pods
from mpiboot.job.dialects import DIALECTS
from mpiboot.job.plan_builder import PlanBuilder
from tests.fakes.plans import OPERATOR, PATHS, POD, failing, hosts, link, observed, planned, worker


def listed(*names: str) -> tuple[Host, ...]:
    return tuple(Host(name, 1, slots_given=True) for name in names)


def test_hosts_of_their_own_address_or_server_are_well_and_elsewhere_any_may_be_the_launcher() -> (
    None
):
    seen = observed()
    first, second = seen.workers
    assert list(pods.shared_addresses(seen)) == []
    second = replace(second, address=first.address, port=2222)
    assert list(pods.shared_addresses(replace(seen, workers=(first, second)))) == []
    hosts = listed("train-worker-0", "train-worker-1")
    assert list(pods.shared_addresses(observed(listed=hosts, local=hosts[:1]))) == []


def test_two_hosts_of_one_server_end_the_job_with_both_names() -> None:
    seen = observed()
    first, second = seen.workers
    second = replace(second, address=first.address)
    plan = planned("./train", replace(seen, workers=(first, second)))
    assert failing(plan) == ["settings-conflict"]
    (found,) = pods.shared_addresses(replace(seen, workers=(first, second)))
    assert found.message == (
        f"{first.host.name}, {second.host.name} lead to one and the same SSH server, "
        "10.244.0.10 port 22"
    )
    assert "podAntiAffinity" in found.hint


def test_a_name_with_another_workers_address_is_told_as_the_nameservers_fault() -> None:
    seen = observed()
    first, second = seen.workers
    assert first.facts is not None
    both = replace(first.facts, hostname=first.host.name.partition(".")[0])
    alike = [replace(item, address=first.address, facts=both) for item in (first, second)]
    (found,) = pods.shared_addresses(replace(seen, workers=tuple(alike)))
    assert f"that pod is {both.hostname}, so that the nameserver has a wrong" in found.hint


@pytest.mark.parametrize(("name", "count"), [("pi-worker-0.pi.ns.svc", 1), ("pi-launcher", 0)])
def test_a_worker_at_the_launchers_own_address_is_no_launcher(name: str, count: int) -> None:
    hosts = listed(name, "pi-worker-1")
    seen = observed(environ={**POD, **OPERATOR}, listed=hosts, local=hosts[:1])
    found = list(pods.shared_addresses(seen))
    assert len(found) == count
    assert all(item.host == name and "hostNetwork" in item.hint for item in found)


def sized(size: int, made: Link) -> Link:
    return replace(made, mtu=size)


def sized_pods(*sizes: int) -> tuple[Worker, ...]:
    made = []
    for number, (host, size) in enumerate(zip(hosts(*[1] * len(sizes)), sizes, strict=True)):
        one = worker(host, number, None)
        assert one.facts is not None
        links = (
            *(sized(size, item) for item in one.facts.links),
            sized(9000, link("net1", "1.2.3.4/8")),
        )
        made.append(replace(one, facts=replace(one.facts, links=links)))
    return tuple(made)


LAUNCHER = (link("lo", "127.0.0.1/8"), link("eth0", "10.244.0.9/24"))


def test_pods_are_told_by_their_mtu() -> None:
    (found,) = pods.mtus(LAUNCHER, sized_pods(1500, 1400, 8900))
    assert found.message == (
        "MTUs of the control links differ: 1400 on w-1.job.ns.svc; "
        "1500 on the launcher, w-0.job.ns.svc; 8900 on w-2.job.ns.svc"
    )
    assert found.check == "control-mtu"
    small = (LAUNCHER[0], sized(1400, LAUNCHER[1]))
    assert len(pods.mtus(small, sized_pods(1500))) == 1
    # Other links, and workers without facts, do not count.
    more = (*LAUNCHER, sized(9000, link("net1", "1.2.3.5/8")))
    silent = replace(sized_pods(1400)[0], facts=None)
    assert pods.mtus(more, sized_pods(1500, 1500)) == pods.mtus(LAUNCHER, (silent,)) == ()


def test_one_node_with_fewer_gpus_is_named_and_a_lost_one_too() -> None:
    def found(*own: Gpus) -> list[str]:
        seen = observed(listed=hosts(*[8] * len(own)))
        workers = [
            replace(worker, facts=worker.facts and replace(worker.facts, gpus=mine))
            for worker, mine in zip(seen.workers, own, strict=True)
        ]
        assert all(item.level is Level.WARN for item in pods.gpus(workers))
        return [f"{item.host} {item.message}".strip() for item in pods.gpus(workers)]

    eight, seven = Gpus(8, "NVIDIA 2330"), Gpus(7, "NVIDIA 2330", lost=1)
    assert found(eight, eight) == []
    assert found(Gpus(), Gpus()) == []
    assert found(eight, seven, eight) == [
        "w-1.job.ns.svc 1 of 8 GPUs in /dev, the kernel has no more",
        "GPUs differ: w-1.job.ns.svc: 7 NVIDIA 2330; the others (2): 8 NVIDIA 2330",
    ]
    assert found(eight, eight, Gpus()) == [
        "GPUs differ: w-2.job.ns.svc: 0; the others (2): 8 NVIDIA 2330"
    ]


def test_a_worker_that_tells_nothing_of_its_gpus_is_not_blamed() -> None:
    first, second = observed().workers
    assert list(pods.gpus([replace(first, facts=None), second])) == []


DEVICE = RdmaDevice(0, "mlx5_0", "ib", "CA", "", "mlx5", "", "", "", ())


def made(*own: tuple[Gpus, bool]) -> PlanBuilder:
    """What is told of workers' GPUs, each with RDMA devices or without."""
    seen = observed(listed=hosts(*[8] * len(own)))
    workers = [
        replace(
            worker,
            facts=worker.facts
            and replace(worker.facts, gpus=mine, fabric=Fabric(devices=(DEVICE,) * rdma)),
        )
        for worker, (mine, rdma) in zip(seen.workers, own, strict=True)
    ]
    seen = replace(seen, workers=tuple(workers))
    builder = PlanBuilder(DIALECTS[seen.mpi.family], seen, resolve({}, {}), PATHS)
    pods.gpu_memory(builder)
    return builder


PEER, NONE = Gpus(8, "NVIDIA 2330", peer_memory=("nvidia_peermem", "DMA-BUF")), Gpus(8, "NVIDIA 1")


def test_the_way_to_gpu_memory_is_one_line_of_the_plan() -> None:
    told = made((PEER, True), (PEER, True))
    assert [(item.name, item.value) for item in told.decisions] == [
        ("gpu-memory", "nvidia_peermem or DMA-BUF")
    ]
    assert told.findings == []


@pytest.mark.parametrize(
    ("own", "where"),
    [
        (((NONE, True), (NONE, True)), "all of them"),
        (((PEER, True), (NONE, True)), "w-1.job.ns.svc"),
    ],
)
def test_gpus_whose_memory_no_rdma_device_reaches_are_warned_of(
    own: tuple[tuple[Gpus, bool], ...], where: str
) -> None:
    [found] = made(*own).findings
    assert found.level is Level.WARN
    assert found.message.startswith(f"RDMA devices reach no GPU memory on {where}: neither ")
    assert "modprobe nvidia_peermem" in found.hint


@pytest.mark.parametrize("own", [(NONE, False), (Gpus(8, "AMD 74a1"), True), (Gpus(), True)])
def test_without_both_sides_nothing_is_said_of_gpu_memory(own: tuple[Gpus, bool]) -> None:
    told = made(own)
    assert (told.decisions, told.findings) == ([], [])


@pytest.mark.parametrize(("fabric", "told"), [("", 0), ("Completed", 0), ("In Progress on 1", 1)])
def test_an_nvlink_fabric_that_is_not_set_up_is_warned_of(fabric: str, told: int) -> None:
    worker = observed().workers[0]
    assert worker.facts
    odd = replace(worker, facts=replace(worker.facts, gpus=Gpus(1, "NVIDIA 1", fabric=fabric)))
    found = list(pods.gpus([odd]))
    assert [item.message.partition(";")[0] for item in found] == [f"NVLink fabric: {fabric}"] * told
    assert all("nvidia-fabricmanager" in item.hint for item in found)
