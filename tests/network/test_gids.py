from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core.facts import Gid, GidType, Link, RdmaPort, Worker
from mpiboot.core.settings import Settings
from mpiboot.network import nccl
from mpiboot.network.records import GidChoice, Rail
from mpiboot.network.worker_network import choose
from tests.fakes import workers as w

NEW, OLD, FIRST_AUTO, SKIPPING = (2, 28, 9), (2, 20, 5), (2, 21, 5), (2, 26, 2)
INDEX, UCX = "NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX"


def rail(port: RdmaPort, link: Link, name: str = "mlx5_1") -> Rail:
    return Rail(w.device(name, port), port, link, "")


def one(*rails: Rail, version: str = "2.28.9", own: tuple[str, ...] = ()) -> GidChoice:
    return nccl.choose(rails, own, version)


def of(worker: Worker, version: str = "2.28.9", own: tuple[str, ...] = ()) -> GidChoice:
    return one(*choose(worker, Settings()).rails, version=version, own=own)


def indexes(found: GidChoice) -> list[int]:
    return [gid.index for gid in found.wanted if gid]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.21.5", (2, 21, 5)),
        ("2.28.9+cuda12.8", (2, 28, 9)),
        ("v2.30", (2, 30, 0)),
        *((text, None) for text in ("22105", "", "new", "2.21.5.1.", "\u0662.\u0662\u0661")),
    ],
)
def test_a_version_is_read_in_the_spellings_in_use(text: str, expected: object) -> None:
    assert nccl.version(text) == expected


def test_who_names_devices_or_indexes_answers_for_them() -> None:
    ports = "the ports need different GID indexes (mlx5_2:1 9, mlx5_3:1 5), which"
    for version, name in (("2.28.9", "NCCL 2.28.9"), ("", "NCCL")):
        found = of(w.macvlan(rails=2), version)
        assert found.problems[0].message == f"{ports} {name} can't be told"
    for own, problems in (((INDEX,), 1), (("NCCL_IB_HCA", "UCX_NET_DEVICES"), 0), ((UCX,), 1)):
        found = of(w.macvlan(rails=2), own=own)
        assert len(found.problems) == problems
        assert f"left to the user's {own[0]}" in found.reason


def shared(netdev: str, own: str, *before: str) -> RdmaPort:
    entries = [*w.table("pf0")]
    for address, name in [*((one, "pf0") for one in before), (own, netdev)]:
        for kind in ("IB/RoCE v1", "RoCE v2"):
            entries.append(w.gid(len(entries), address, name, kind))
    return w.port(tuple(entries))


FIRST = shared("net1", "10.5.0.2", "10.5.1.1")


def test_rails_whose_addresses_share_a_network_of_their_own_are_told_by_it() -> None:
    second = shared("net2", "10.5.0.3", "10.5.1.1", "10.5.1.9")
    rails = (
        rail(FIRST, w.link("net1", "10.5.0.2/16")),
        rail(second, w.link("net2", "10.5.0.3/16")),
    )
    found = one(*rails)
    network = "10.5.0.2/31"
    assert found.values == {"NCCL_IB_ADDR_RANGE": network, "UCX_IB_ROCE_SUBNETS": network}
    assert (found.problems, found.used) == ((), ("mlx5_1:1", "mlx5_1:1"))
    old = one(*rails, version="2.18.3")
    assert "NCCL_IB_ADDR_RANGE" not in old.values
    assert [problem.check for problem in old.problems] == ["rdma-gid-index"]
    # A network that holds another address of the tables is not named.
    other = w.gid(len(FIRST.gids) + 1, "10.5.0.3", "net9")
    rails = (
        rail(w.port((*FIRST.gids, other)), w.link("net1", "10.5.0.2/16")),
        rail(shared("net2", "10.5.0.5", "10.5.1.1", "10.5.1.9"), w.link("net2", "10.5.0.5/16")),
    )
    assert one(*rails).values == {}


def test_rails_that_differ_are_left_to_an_nccl_of_unknown_version_that_finds_them() -> None:
    second = w.port(w.table("net2", "fe80::77", "10.6.0.2"))
    rails = (
        rail(w.port(w.table("net1", "10.5.0.2")), w.link("net1", "10.5.0.2/24")),
        rail(second, w.link("net2", "10.6.0.2/24"), "mlx5_2"),
    )
    found = one(*rails, version="")
    assert (indexes(found), found.values, found.problems) == ([3, 5], {}, ())
    assert found.used == ("mlx5_1:1", "mlx5_2:1")
    assert "left to NCCL" in found.reason
    assert [item.check for item in one(*rails, version="2.20.5").problems] == ["rdma-gid-index"]


def test_ipv6_only_gets_its_index_or_its_network() -> None:
    port = w.port(w.table("net1", "2001:db8::5"), netdev="net1")
    first = rail(port, w.link("net1", "2001:db8::5/64"))
    assert nccl.gid_index(port, NEW) == 0
    assert one(first).values == {INDEX: "3"}
    other = w.port(w.table("net2", "fe80::77", "2001:db8::6"), netdev="net2")
    found = one(first, rail(other, w.link("net2", "2001:db8::6/64"), "mlx5_2"))
    assert indexes(found) == [3, 5]
    network = {"NCCL_IB_ADDR_RANGE": "2001:db8::4/126", "NCCL_IB_ADDR_FAMILY": "AF_INET6"}
    assert found.values == network


def test_which_entry_of_a_table_is_a_links_own() -> None:
    # IPv4 before IPv6, and the link's first address before its second.
    link = w.link("net1", "2001:db8::5/64", "10.5.0.3/24", "10.5.0.2/24")
    table = w.table("net1", "2001:db8::5", "10.5.0.2", "10.5.0.3")
    gid, wrong = nccl.wanted(rail(w.port(table, netdev="net1"), link))
    assert (gid and gid.index, wrong) == (7, "")
    # Two pods with one address and one link name.
    twice = w.port((*w.table("net1", "10.5.0.2"), w.gid(4, "10.5.0.2", "net1")))
    (problem,) = one(rail(twice, w.link("net1", "10.5.0.2/24"))).problems
    assert problem.check == "data-ambiguous"
    assert "3, 4" in problem.message


def test_a_table_with_holes_is_not_left_to_versions_that_stop_there() -> None:
    first, second, *_, last = w.table("net1", "10.5.0.2")
    port = w.port((first, second, Gid(7, last.value, last.kind, "net1")), netdev="net1")
    own = rail(port, w.link("net1", "10.5.0.2/24"))
    assert [nccl.gid_index(port, which) for which in (FIRST_AUTO, SKIPPING)] == [None, 7]
    assert one(own, version="2.21.5").values == {INDEX: "7"}
    assert one(own, version="2.26.2").values == {}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 20),
            st.sampled_from(["10.5.0.2", "10.5.0.3", "fe80::1", "2001:db8::1", "169.254.0.1"]),
            st.sampled_from(["RoCE v2", "IB/RoCE v1", ""]),
            st.sampled_from(["net1", "pf0", ""]),
        ),
        unique_by=lambda entry: entry[0],
    ),
    st.sampled_from(["", "2.18.3", "2.21.5", "2.26.2", "2.30.7"]),
)
def test_after_the_choice_nccl_uses_our_own_entry_on_any_table(
    entries: list[tuple[int, str, str, str]], version: str
) -> None:
    table = tuple(w.gid(index, address, netdev, kind) for index, address, kind, netdev in entries)
    own = rail(w.port(table), w.link("net1", "10.5.0.2/24"))
    found = one(own, version=version)
    (gid,) = found.wanted
    if gid is None:
        assert bool(found.problems) == bool(entries)  # of an empty table nothing is known
        assert not found.values
        return
    assert gid in table
    assert nccl.address(gid) == ipaddress.ip_address("10.5.0.2")
    which = nccl.version(version)
    simulated = nccl.gid_index(own.port, which) if which else None
    assert found.values.get(INDEX, str(simulated)) == str(gid.index)
    assert found.values.get(UCX, str(nccl.ucx_index(own.port))) == str(gid.index)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("NCCL_IB_HCA==mlx5_1:1\n", {"NCCL_IB_HCA": "=mlx5_1:1"}),
        ("#NCCL_IB_TC=106\nNCCL_DEBUG=INFO", {"NCCL_DEBUG": "INFO"}),
        # As NCCL reads it: the first counts, blanks and quotes belong to the value.
        ('NCCL_IB_TC="1"\nNCCL_IB_TC=2', {"NCCL_IB_TC": '"1"'}),
        ("NCCL_IB_SL= 3 ", {"NCCL_IB_SL": " 3 "}),
        (" NCCL_IB_SL=3\nNCCL_IB_TC\nPATH=/x\n\n", {}),
        ("", {}),
    ],
)
def test_a_file_of_nccls_is_read_as_nccl_does(text: str, found: dict[str, str]) -> None:
    assert nccl.read_conf(text) == found
    assert nccl.conf_files({}, "/home/me") == ("/home/me/.nccl.conf", "/etc/nccl.conf")
    named = {"NCCL_CONF_FILE": "/site.conf"}
    assert nccl.conf_files(named, "/home/me") == ("/site.conf", "/etc/nccl.conf")


@pytest.mark.parametrize(
    ("value", "left"),
    [
        *((value, "eth0 eth1 lo") for value in ("", "e", "^")),  # one character counts as none
        ("et", "eth0 eth1"),
        ("=eth0", "eth0"),
        ("=eth", ""),
        ("^=eth0", "eth1 lo"),
        ("^eth", "lo"),
        ("eth1:2,lo", "eth1 lo"),
        (",,lo,", "lo"),
        ("eth0,^lo", "eth0"),
        ("eth7, lo", ""),
    ],
)
def test_what_a_list_for_nccl_leaves(value: str, left: str) -> None:
    assert " ".join(nccl.matching(value, ["eth0", "eth1", "lo"])) == left


def test_ucx_takes_the_newer_kind_then_ipv4_then_what_is_not_link_local() -> None:
    addresses = ("fe80::1", "fd00::1", "10.0.0.1", "10.0.0.2", "10.0.0.3", "::")
    entries = tuple(
        w.gid(at, address, "net1", (GidType.ROCE_V1 if at == 2 else GidType.ROCE_V2).value)
        for at, address in enumerate(addresses)
    )
    for count, index in ((6, 3), (3, 1), (1, 0)):
        assert nccl.ucx_index(w.port(entries[:count])) == index
    assert nccl.ucx_index(w.port(entries[2:3])) == 2
    assert nccl.ucx_index(w.port(entries[5:])) is None
