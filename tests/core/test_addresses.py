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


@pytest.mark.parametrize(
    ("search", "domain"),
    [
        ("ns.svc.cluster.local svc.cluster.local cluster.local", "cluster.local"),
        ("ns.svc.example.org svc.example.org example.org", "example.org"),
        # What the MPI Operator appends to its workers, whatever the cluster's domain is.
        ("ns.svc.corp.net svc.corp.net corp.net j.ns.svc.cluster.local", "corp.net"),
        # A namespace that is called svc.
        ("svc.svc.k8s.test svc.k8s.test k8s.test", "k8s.test"),
        # A node's own search list, which a kubelet appends.
        ("ns.svc.cluster.local svc.cluster.local cluster.local svc.corp", "cluster.local"),
        ("SVC.Example.ORG.", "example.org"),
        *((search, "") for search in ("example.org", "svc.", "svc", "")),
    ],
)
def test_the_domain_is_read_from_the_entry_that_begins_with_svc(search: str, domain: str) -> None:
    assert addresses.cluster_domain(search.split()) == domain


@pytest.mark.parametrize(
    ("name", "domain", "long"),
    [
        ("w-0.j.ns.svc", "cluster.local", "w-0.j.ns.svc.cluster.local"),
        ("w-0.j.ns.svc", ".cluster.local.", "w-0.j.ns.svc.cluster.local"),
        ("w-0.j.ns.svc.", "cluster.local", "w-0.j.ns.svc.cluster.local."),
        ("w-0.j.ns.SVC", "x.y", "w-0.j.ns.SVC.x.y"),
        ("w-0.j.ns.svc", "", None),
        *((name, "x.y", None) for name in ("w-0.j.ns.svc.x.y", "w-0.j.ns", "w-0", "svc", ".svc")),
        *((name, "x.y", None) for name in ("w-0.j.ns.mysvc", "10.0.0.1", "fd00::1")),
    ],
)
def test_only_names_that_end_in_svc_get_the_domain(
    name: str, domain: str, long: str | None
) -> None:
    assert addresses.long_form(name, domain) == long


def test_short_and_canonical_forms() -> None:
    shown = ["w-0.j.ns.svc", "w-0", "10.0.0.1", "fd00::1"]
    assert [*map(addresses.short, shown)] == ["w-0", "w-0", "10.0.0.1", "fd00::1"]
    assert addresses.canonical("W-0.ns.") == addresses.canonical("w-0.ns")
    assert addresses.canonical("fd00::1") == addresses.canonical("[fd00:0:0::1]")
    others = ["w-0", "w-0.ns", "10.0.0.1", "10.0.0.10"]
    assert len(set(map(addresses.canonical, others))) == len(others)


LONG = "pi-launcher.pi.default.svc.cluster.local"
SELF = ("localhost", "127.0.0.1", "127.0.1.1", "::1", "[::1]")
OWN = ("pi-launcher", "PI-launcher.", "pi-launcher.pi", "pi-launcher.pi.default.svc", f"{LONG}.")


@pytest.mark.parametrize(
    ("name", "local"),
    [
        *((name, True) for name in (*SELF, *OWN, LONG)),
        *((name, False) for name in ("pi-worker-0", "pi-launcher-2", "pi", "10.244.0.50", "")),
        *((name, False) for name in ("fd00::50", "127.0.0.9", "pi-launcher.other.default.svc")),
        ("pi-launcher.pi.default.svc.example.org", False),
    ],
)
def test_this_pod_is_known_by_its_names_and_no_other_pod_is(name: str, *, local: bool) -> None:
    assert addresses.is_local(name, "pi-launcher", [LONG, "pi-launcher"]) is local


def test_a_long_name_is_this_pod_where_only_the_svc_form_is_known() -> None:
    assert addresses.is_local("w-0.j.ns.svc.cluster.local", "w-0", ["w-0.j.ns.svc"])
    assert not addresses.is_local("w-0.example.org", "w-0", ["w-0"])


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_is_compared_without_an_error(one: str, other: str) -> None:
    addresses.canonical(one)
    addresses.is_local(one, other, [one + ".x"])
    addresses.long_form(one, other)
    addresses.cluster_domain([one, other])


def test_addresses_of_ipv6_and_this_pod_get_names_that_every_mpi_takes() -> None:
    listed = ["fd00::b", "fd00::9", "fe80::1%eth0", "10.0.0.1", "w-0"]
    assert addresses.for_mpirun(listed, ["fd00::9"], "w-launcher") == {
        "fd00::b": "ip-fd00--b",
        "fd00::9": "w-launcher",
        "fe80::1%eth0": "ip-fe80--1-eth0",
    }
    local = ["l", "l.job.ns.svc", "localhost"]
    found = addresses.for_mpirun(["w-0", *local[:2]], local, "l")
    assert found == {"l.job.ns.svc": "l", "localhost": "l"}


def test_names_that_are_alike_up_to_the_first_dot_are_written_without_dots() -> None:
    pods = ["pi.v2-w-0.pi.ns.svc", "pi.v2-w-1.pi.ns.svc", "other.pi.ns.svc"]
    listed = [*pods, "10.0.0.1", "10.0.0.2"]

    def given(hostname: str, local: tuple[str, ...] = ()) -> dict[str, str]:
        return addresses.for_mpirun(listed, local, hostname, by_first_label=True)

    assert given("l") == {name: name.replace(".", "-") for name in listed[:2]}
    assert given("other") == {name: name.replace(".", "-") for name in listed[:3]}
    # This pod itself has its own name, and a name that is listed twice is one host.
    own = {listed[0]: "pi.v2-w-0", listed[1]: "pi-v2-w-1-pi-ns-svc"}
    assert given("pi.v2-w-0", (listed[0],)) == own
    assert addresses.for_mpirun(["w-0.a", "w-0.a"], [], "l", by_first_label=True) == {}
    assert addresses.for_mpirun(listed, [], "l") == {}
