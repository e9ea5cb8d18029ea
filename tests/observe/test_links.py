from __future__ import annotations

import asyncio

import pytest

from mpiboot.model import Link
from mpiboot.observe.links import is_local, links, local_addresses, route_source, source_address


def test_loopback_is_a_link_with_its_address() -> None:
    found = {link.name: link for link in links()}

    assert found["lo"].kind == "loopback"
    assert found["lo"].up
    assert found["lo"].mtu > 0
    assert "127.0.0.1/8" in found["lo"].addresses


async def test_links_can_be_listed_beside_a_running_loop() -> None:
    found = await asyncio.to_thread(links)

    assert any(link.name == "lo" for link in found)


def test_addresses_are_without_their_prefix_lengths() -> None:
    known = (
        Link(1, "lo", "loopback", up=True, mtu=65536, addresses=("127.0.0.1/8", "::1/128")),
        Link(2, "eth0", "veth", up=True, mtu=1500, addresses=("10.0.0.1/24",)),
    )

    assert local_addresses(known) == {"127.0.0.1", "::1", "10.0.0.1"}


def test_the_route_to_loopback_is_by_loopback() -> None:
    assert route_source("127.0.0.7", links()) == ("127.0.0.1", "lo")


def test_without_a_route_there_is_no_source() -> None:
    assert source_address("255.255.255.255") == ""
    assert route_source("not an address", ()) == ("", "")


def test_every_address_of_this_host_is_local() -> None:
    own = [item for link in links() if link.up for item in link.addresses]

    for address in (item.partition("/")[0] for item in own):
        if not address.startswith("fe80:"):
            assert is_local(address), address


@pytest.mark.parametrize("address", ["127.0.0.2", "192.0.2.254", "203.0.113.1", "name", ""])
def test_other_addresses_are_not_local(address: str) -> None:
    assert not is_local(address)
