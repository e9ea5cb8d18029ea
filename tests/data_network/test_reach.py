"""Who reaches whom over the data links, as far as addresses and routes say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mpiboot.data_network import reach, worker_network
from mpiboot.fabric import Route
from mpiboot.model import Worker
from mpiboot.settings import Settings
from tests.fakes import workers as w

DEFAULT = Settings()


def ends(*workers: Worker) -> Sequence[reach.Endpoint]:
    found = reach.endpoints([worker_network.choose(one, DEFAULT) for one in workers], 0)
    assert found is not None
    return found


def test_ends_of_one_network_reach_each_other_and_have_addresses_of_their_own() -> None:
    found = ends(w.tcp(0), w.tcp(1))
    assert [(one.host, one.link, str(one.interface)) for one in found] == [
        ("w-0", "net1", "192.168.7.5/24"),
        ("w-1", "net1", "192.168.7.6/24"),
    ]
    assert (reach.unreachable(found), reach.shared_address(found)) == ("", "")
    same = ends(w.tcp(0), replace(w.tcp(0), host=replace(w.tcp(0).host, name="w-9")))
    assert reach.shared_address(same) == "w-0 and w-9 both have 192.168.7.5"


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
    first, second = w.tcp(0), w.tcp(1, subnet="192.168.8")
    assert first.facts is not None
    fabric = replace(first.facts.fabric, routes=(Route(destination, link),))
    first = replace(first, facts=replace(first.facts, fabric=fabric))
    assert second.facts is not None
    back = replace(second.facts.fabric, routes=(Route("192.168.0.0/16", "net1"),))
    second = replace(second, facts=replace(second.facts, fabric=back))
    said = reach.unreachable(ends(first, second))
    no = "w-0 (net1 192.168.7.5/24) has no route over net1 to w-1 (net1 192.168.8.6/24)"
    assert said == ("" if reached else no)
    back_again = reach.unreachable(ends(second, first))
    assert (back_again == "") == reached


def test_where_a_worker_has_no_such_end_there_are_none() -> None:
    both = [worker_network.choose(one, DEFAULT) for one in (w.tcp(0), w.plain(1))]
    assert reach.endpoints(both, 0) is None
    assert reach.endpoints(both[:1], 1) is None
    assert reach.endpoints([], 0) is None
