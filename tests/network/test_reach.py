"""Who reaches whom over the data links, as far as addresses and routes say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mpiboot.core.facts import Route, Worker
from mpiboot.core.settings import Settings
from mpiboot.network import cluster_view, worker_network
from tests.fakes import workers as w

DEFAULT = Settings()


def ends(*workers: Worker) -> Sequence[cluster_view.Endpoint]:
    found = cluster_view.endpoints([worker_network.choose(one, DEFAULT) for one in workers], 0)
    assert found is not None
    return found


def test_ends_of_one_network_reach_each_other_and_have_addresses_of_their_own() -> None:
    found = ends(w.tcp(0), w.tcp(1))
    assert [(one.host, one.link, str(one.interface)) for one in found] == [
        ("w-0", "net1", "192.168.7.5/24"),
        ("w-1", "net1", "192.168.7.6/24"),
    ]
    assert (cluster_view.unreachable(found), cluster_view.shared_address(found)) == ("", "")
    same = ends(w.tcp(0), replace(w.tcp(0), host=replace(w.tcp(0).host, name="w-9")))
    assert cluster_view.shared_address(same) == "w-0 and w-9 both have 192.168.7.5"


@pytest.mark.parametrize(
    ("destination", "link", "reached"),
    [
        ("192.168.8.0/24", "net1", True),
        ("192.168.8.6/32", "net1", True),
        ("192.168.8.7/32", "net1", False),
        ("192.168.8.0/24", "eth0", False),  # that is another way
        ("default", "net1", False),
        ("fd00::/8", "net1", False),
    ],
)
def test_a_route_over_the_data_link_leads_there(
    destination: str, link: str, *, reached: bool
) -> None:
    there, back = Route(destination, link), Route("192.168.0.0/16", "net1")
    first = w.changed(w.tcp(0), fabric={"routes": (there,)})
    second = w.changed(w.tcp(1, subnet="192.168.8"), fabric={"routes": (back,)})
    message = cluster_view.unreachable(ends(first, second))
    no = "w-0 (net1 192.168.7.5/24) has no route over net1 to w-1 (net1 192.168.8.6/24)"
    assert message == ("" if reached else no)
    back_again = cluster_view.unreachable(ends(second, first))
    assert (back_again == "") == reached


def test_where_a_worker_has_no_such_end_there_are_none() -> None:
    both = [worker_network.choose(one, DEFAULT) for one in (w.tcp(0), w.plain(1))]
    assert cluster_view.endpoints(both, 0) is None
    assert cluster_view.endpoints(both[:1], 1) is None
    assert cluster_view.endpoints([], 0) is None


def with_routes(worker: Worker, *destinations: str) -> Worker:
    routes = tuple(Route(destination, "net1") for destination in destinations)
    return w.changed(worker, fabric={"routes": routes})


def on_a_link_of_its_own(place: int, *destinations: str) -> Worker:
    link = w.link("net1", f"172.16.0.{2 * place + 1}/31", index=21)
    return with_routes(w.worker(f"w-{place}", w.eth0(), link), *destinations)


@pytest.mark.parametrize(
    ("destinations", "missing"),
    [
        (("172.16.0.0/16",), ""),
        (("172.16.0.0/30", "172.16.0.4/30"), ""),  # they touch
        (("172.16.0.0/29", "172.16.0.2/31"), ""),  # one in the other
        (("172.16.0.0/30", "172.16.0.6/31"), "w-2 (net1 172.16.0.5/31)"),
        (("172.16.0.2/31", "172.16.0.4/31"), "w-3 (net1 172.16.0.7/31)"),
        (("172.16.0.2/31", "fd00::/8"), "w-2 (net1 172.16.0.5/31)"),
    ],
)
def test_what_a_way_lacks_is_found_among_many(destinations: tuple[str, ...], missing: str) -> None:
    others = [on_a_link_of_its_own(place, "172.16.0.0/16") for place in (1, 2, 3)]
    message = cluster_view.unreachable(ends(on_a_link_of_its_own(0, *destinations), *others))
    head = "w-0 (net1 172.16.0.1/31) has no route over net1 to "
    assert message == (head + missing if missing else "")


def test_the_one_among_many_that_lacks_a_way_is_named() -> None:
    found = [on_a_link_of_its_own(place, "172.16.0.0/16") for place in range(8)]
    found[5] = on_a_link_of_its_own(5, "172.16.0.0/29")
    assert cluster_view.unreachable(ends(*found)).startswith(
        "w-5 (net1 172.16.0.11/31) has no route"
    )
