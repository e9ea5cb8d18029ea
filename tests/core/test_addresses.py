from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core import addresses

V4 = st.ip_addresses(v=4, network="10.0.0.0/8")


@pytest.mark.parametrize(
    ("text", "read", "plain"),
    [
        ("10.0.0.1", "10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1", "fe80::1"),
        ("FD00:0:0::1", "fd00::1", "fd00::1"),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.1", "10.0.0.1"),
        *[(text, None, text) for text in ("10.0.0.1/24", "10.0.0.1%eth0", "010.0.0.1", "w-0", "")],
    ],
)
def test_an_address_is_read_without_its_zone_and_written_as_the_kernel_does(
    text: str, read: str | None, plain: str
) -> None:
    assert addresses.parse(text) == (ipaddress.ip_address(read) if read else None)
    assert addresses.is_address(text) is bool(read)
    assert addresses.plain(text) == plain


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("10.0.0.1/24", "10.0.0.1/24"),
        ("10.0.0.1", "10.0.0.1/32"),
        ("fe80::1%eth0/64", "fe80::1/64"),
        *[(text, None) for text in ("10.0.0.1/33", "10.0.0.1/", "eth0")],
    ],
)
def test_an_address_with_its_prefix_length_is_read_alike(text: str, read: str | None) -> None:
    assert addresses.interface(text) == (ipaddress.ip_interface(read) if read else None)
    assert addresses.bare("fe80::1%eth0/64") == "fe80::1"


def test_a_network_may_have_bits_beyond_its_prefix() -> None:
    assert str(addresses.network("10.0.0.7/24")) == "10.0.0.0/24"
    assert addresses.network("eth0") is None


@given(st.lists(st.ip_addresses(v=6) | V4, max_size=5))
def test_the_smallest_network_is_the_smallest(known: list[addresses.Address]) -> None:
    network = addresses.smallest_network(known)
    if len({item.version for item in known}) != 1:
        assert network is None
        return
    assert network is not None
    assert all(item in network for item in known)
    if network.prefixlen < network.max_prefixlen:
        for half in network.subnets():
            assert not all(item in half for item in known)


def test_names_are_cut_where_that_tells_hosts_apart() -> None:
    def short(*names: str) -> list[str]:
        return list(addresses.short_names(names).values())

    assert short("w-0.job.svc", "w-1.job.svc", "10.0.0.1") == ["w-0", "w-1", "10.0.0.1"]
    assert short("w-0.a.svc", "w-0.b.svc") == ["w-0.a.svc", "w-0.b.svc"]
    assert short("") == [""]
