"""All workers' data networks in one variable, which may only be so long."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mpiboot.core.facts import Route, Worker
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


def test_with_gaps_one_network_a_rail_holds_all_and_nothing_else() -> None:
    found = chosen([worker(at, rails=2) for at in range(COUNT)])
    assert proposals.network_list(found) == ("172.16.0.0/21,172.17.0.0/21", "")


def test_a_network_that_holds_another_link_too_is_not_taken() -> None:
    workers = [worker(at) for at in range(COUNT)]
    workers[7] = worker(7, control="172.16.0.3/24")
    value, problem = proposals.network_list(chosen(workers))
    assert value == ""
    assert problem == (
        "400 networks are too many for one variable, and what holds all of them holds 172.16.0.3 "
        "of another link too"
    )


@pytest.mark.parametrize(("odd", "kept"), [("10.0.0.1/8", True), ("172.16.0.3/24", False)])
def test_where_no_value_fits_mpi_stays_on_the_control_link_and_that_is_said(
    odd: str, *, kept: bool
) -> None:
    settings = replace(Settings(), mpi_network=MpiNetwork.DATA)
    # All of them reach each other, which is asked before.
    fabric = tuple(replace_routes(worker(at)) for at in range(COUNT))
    workers = (*fabric[:7], replace_routes(worker(7, control=odd)), *fabric[8:])
    found = decision.decide([worker_network.choose(one, settings) for one in workers], settings, {})
    value = found.common.get("OMPI_MCA_btl_tcp_if_include")
    assert value == ("172.16.0.0/21" if kept else None)
    message = [item.message for item in found.findings if item.check == "data-networks"]
    assert [text.startswith("MPI's data stays on the control link: 400") for text in message] == (
        [] if kept else [True]
    )


def replace_routes(one: Worker) -> Worker:
    assert one.facts is not None
    route = Route("172.16.0.0/16", one.facts.links[-1].name)
    return w.changed(one, fabric={"routes": (route,)})
