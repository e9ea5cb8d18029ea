"""All workers' data networks in one variable, which may only be so long."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import replace

from mpiboot.core.facts import Worker
from mpiboot.core.setting_types import MpiNetwork
from mpiboot.core.settings import Settings
from mpiboot.network import decision, proposals, worker_network
from mpiboot.network.records import WorkerNetwork
from tests.fakes import workers as w

COUNT = 400  # their /31 links alone would fill more than may be


def worker(place: int, *, step: int = 4, control: str = "10.0.0.1/8", rails: int = 1) -> Worker:
    """A worker with a /31 of its own on each rail; ``step`` 2 leaves no gap between workers."""
    links = []
    for rail in range(rails):
        own = ipaddress.IPv4Address(f"172.{16 + rail}.0.1") + step * place
        links.append(w.link(f"net{place % 7}x{rail}", f"{own}/31", index=20 + rail, kind="macvlan"))
    return w.worker(f"w-{place}", w.eth0(control), *links, mode="", folder=False)


def chosen(workers: Sequence[Worker]) -> list[WorkerNetwork]:
    return [worker_network.choose(one, Settings()) for one in workers]


def test_few_networks_stand_as_they_are() -> None:
    value, problem = proposals.network_list(chosen([worker(0), worker(1)]))
    assert (value, problem) == ("172.16.0.0/31,172.16.0.4/31", "")


def test_neighbours_are_joined_which_means_the_same() -> None:
    value, problem = proposals.network_list(chosen([worker(at, step=2) for at in range(COUNT)]))
    assert (value, problem) == ("172.16.0.0/23,172.16.2.0/24,172.16.3.0/27", "")


def test_too_many_are_no_value_and_mpi_stays_on_the_control_link() -> None:
    settings = replace(Settings(), mpi_network=MpiNetwork.DATA)
    workers = [worker(at) for at in range(COUNT)]
    found = decision.decide([worker_network.choose(one, settings) for one in workers], settings, {})
    assert "OMPI_MCA_btl_tcp_if_include" not in found.common
    (finding,) = [item for item in found.findings if item.check == "data-networks"]
    assert "their networks are too many for one variable" in finding.message
