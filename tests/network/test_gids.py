from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core.facts import Gid, Link, RdmaPort, Worker
from mpiboot.core.settings import Settings
from mpiboot.network import nccl
from mpiboot.network.records import GidChoice, Rail
from mpiboot.network.worker_network import choose
from tests.fakes import workers as w

NAMED = Settings(rdma_device=("mlx5_1",))
NEW, OLD, FIRST_AUTO, SKIPPING = (2, 28, 9), (2, 20, 5), (2, 21, 5), (2, 26, 2)


def rail(port: RdmaPort, link: Link, name: str = "mlx5_1") -> Rail:
    return Rail(w.device(name, port), port, link, "")


def one(rails: Sequence[Rail], version: str, own: Sequence[str] = ()) -> GidChoice:
    return nccl.choose(rails, own, version)


def choice(worker: Worker, version: str = "2.28.9") -> GidChoice:
    return one(choose(worker, Settings()).rails, version)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.21.5", (2, 21, 5)),
        ("2.28.9+cuda12.8", (2, 28, 9)),
        ("22105", None),
        ("v2.30", (2, 30, 0)),
        ("", None),
        ("new", None),
        ("2.21.5.1.", None),
        ("\u0662.\u0662\u0661", None),
    ],
)
def test_a_version_is_read_in_the_spellings_in_use(
    text: str, expected: tuple[int, int, int] | None
) -> None:
    assert nccl.version(text) == expected


def test_index_3_is_right_for_one_ipv4_and_both_types() -> None:
    entries = w.table("net1", "10.5.0.2")
    assert nccl.gid_index(w.port(entries), NEW) == 3
    assert nccl.gid_index(w.port(entries), OLD) == 0
    found = choice(w.sriov())
    assert [gid.index for gid in found.wanted if gid] == [3]
    assert found.values == {}
    assert "left to NCCL" in found.reason


@pytest.mark.parametrize("version", ["", "2.18.3", "2.20.5"])
def test_an_old_or_unknown_nccl_is_told_the_index(version: str) -> None:
    assert choice(w.sriov(), version).values == {"NCCL_IB_GID_INDEX": "3"}


def test_a_driver_with_v2_only_has_index_1() -> None:
    link = w.link("net1", "10.5.0.2/24")
    port = w.port(w.table("net1", "10.5.0.2", types=1), netdev="net1")
    assert nccl.gid_index(port, NEW) == 1
    assert one((rail(port, link),), "2.28.9").values == {}
    assert one((rail(port, link),), "2.18.3").values == {"NCCL_IB_GID_INDEX": "1"}


def test_the_macvlan_table_makes_nccl_and_ucx_take_the_hosts_entry() -> None:
    (own,) = choose(w.macvlan(), Settings()).rails
    assert nccl.gid_index(own.port, NEW) == 3
    assert nccl.ucx_index(own.port) == 3
    assert choice(w.macvlan()).values == {"NCCL_IB_GID_INDEX": "9", "UCX_IB_GID_INDEX": "9"}


def test_rails_with_different_indexes_can_not_be_told() -> None:
    found = choice(w.macvlan(rails=2))
    assert [gid.index for gid in found.wanted if gid] == [9, 5]
    assert (found.values, found.used) == ({}, ("mlx5_2:1", "mlx5_3:1"))
    assert [problem.check for problem in found.problems] == ["rdma-gid-index"] * 2
    assert found.problems[0].message == (
        "the ports need different GID indexes (mlx5_2:1 9, mlx5_3:1 5), which NCCL 2.28.9 can't be "
        "told"
    )
    assert (found.problems[0].hint or "").endswith("; or keep to MPIBOOT_RDMA_DEVICE=mlx5_2:1")
    unknown = choice(w.macvlan(rails=2), "").problems[0].message
    assert "which NCCL can't be told" in unknown


@pytest.mark.parametrize(
    ("own", "problems"),
    [
        (["NCCL_IB_GID_INDEX"], 1),
        (["NCCL_IB_HCA", "UCX_NET_DEVICES"], 0),
        (["UCX_IB_GID_INDEX"], 1),
    ],
)
def test_who_names_devices_or_indexes_answers_for_them(own: list[str], problems: int) -> None:
    found = one(choose(w.macvlan(rails=2), Settings()).rails, "2.28.9", own)
    assert len(found.problems) == problems
    assert f"left to the user's {own[0]}" in found.reason


def shared(netdev: str, own: str, *before: str) -> RdmaPort:
    entries = [*w.table("pf0")]
    for address, name in [*((one, "pf0") for one in before), (own, netdev)]:
        for kind in ("IB/RoCE v1", "RoCE v2"):
            entries.append(w.gid(len(entries), address, name, kind))
    return w.port(tuple(entries))


def test_rails_whose_addresses_share_a_network_of_their_own_are_told_by_it() -> None:
    rails = (
        rail(shared("net1", "10.5.0.2", "10.5.1.1"), w.link("net1", "10.5.0.2/16")),
        rail(shared("net2", "10.5.0.3", "10.5.1.1", "10.5.1.9"), w.link("net2", "10.5.0.3/16")),
    )
    found = one(rails, "2.28.9")
    assert found.values == {
        "NCCL_IB_ADDR_RANGE": "10.5.0.2/31",
        "UCX_IB_ROCE_SUBNETS": "10.5.0.2/31",
    }
    assert not found.problems
    assert found.used == ("mlx5_1:1", "mlx5_1:1")
    old = one(rails, "2.18.3")
    assert "NCCL_IB_ADDR_RANGE" not in old.values
    assert "2.21" in (old.problems[0].hint or "")


def test_rails_that_differ_are_left_to_an_nccl_of_unknown_version_that_finds_them() -> None:
    rails = (
        rail(w.port(w.table("net1", "10.5.0.2")), w.link("net1", "10.5.0.2/24")),
        rail(
            w.port(w.table("net2", "fe80::77", "10.6.0.2")), w.link("net2", "10.6.0.2/24"), "mlx5_2"
        ),
    )
    found = one(rails, "")
    assert [gid.index for gid in found.wanted if gid] == [3, 5]
    assert (found.values, found.used) == ({}, ("mlx5_1:1", "mlx5_2:1"))
    assert found.problems == ()
    assert "left to NCCL" in found.reason
    assert [item.check for item in one(rails, "2.20.5").problems] == ["rdma-gid-index"]


def test_a_network_that_holds_another_address_of_the_tables_is_not_named() -> None:
    first = shared("net1", "10.5.0.2", "10.5.1.1")
    late = w.gid(len(first.gids) + 1, "10.5.0.3", "net9")
    rails = (
        rail(w.port((*first.gids, late)), w.link("net1", "10.5.0.2/16")),
        rail(shared("net2", "10.5.0.5", "10.5.1.1", "10.5.1.9"), w.link("net2", "10.5.0.5/16")),
    )
    assert one(rails, "2.28.9").values == {}


def test_ipv6_only_gets_its_index_or_its_network() -> None:
    link = w.link("net1", "2001:db8::5/64")
    port = w.port(w.table("net1", "2001:db8::5"), netdev="net1")
    assert nccl.gid_index(port, NEW) == 0
    assert one((rail(port, link),), "2.28.9").values == {"NCCL_IB_GID_INDEX": "3"}
    other = w.port(w.table("net2", "fe80::77", "2001:db8::6"), netdev="net2")
    second = rail(other, w.link("net2", "2001:db8::6/64"), "mlx5_2")
    found = one((rail(port, link), second), "2.28.9")
    assert [gid.index for gid in found.wanted if gid] == [3, 5]
    assert found.values == {
        "NCCL_IB_ADDR_RANGE": "2001:db8::4/126",
        "NCCL_IB_ADDR_FAMILY": "AF_INET6",
    }


def test_ipv4_comes_before_ipv6_and_the_links_first_address_before_its_second() -> None:
    addresses = ("2001:db8::5", "10.5.0.2", "10.5.0.3")
    link = w.link("net1", "2001:db8::5/64", "10.5.0.3/24", "10.5.0.2/24")
    gid, wrong = nccl.wanted(rail(w.port(w.table("net1", *addresses), netdev="net1"), link))
    assert not wrong
    assert gid is not None
    assert gid.index == 7


def test_a_vlans_own_entry_is_taken() -> None:
    link = w.link("net1.100", "10.7.0.2/24", kind="vlan")
    entries = (*w.table("net1", "10.5.0.2"), w.gid(8, "10.7.0.2", "net1.100", "IB/RoCE v1"))
    port = w.port((*entries, w.gid(9, "10.7.0.2", "net1.100")), netdev="net1")
    found = one((rail(port, link),), "2.28.9")
    assert found.values == {"NCCL_IB_GID_INDEX": "9", "UCX_IB_GID_INDEX": "9"}


def test_a_table_with_holes_is_not_left_to_versions_that_stop_there() -> None:
    link = w.link("net1", "10.5.0.2/24")
    first, second, *_, last = w.table("net1", "10.5.0.2")
    port = w.port((first, second, Gid(7, last.value, last.kind, "net1")), netdev="net1")
    assert nccl.gid_index(port, FIRST_AUTO) is None
    assert nccl.gid_index(port, SKIPPING) == 7
    assert one((rail(port, link),), "2.21.5").values == {"NCCL_IB_GID_INDEX": "7"}
    assert one((rail(port, link),), "2.26.2").values == {}


def test_a_port_without_a_v2_entry_of_ours_is_said_with_what_there_is() -> None:
    link = w.link("net1", "10.5.0.2/24")
    entries = (w.gid(0, "10.5.0.2", "net1", "IB/RoCE v1"),)
    found = one((rail(w.port(entries, netdev="net1"), link),), "")
    assert found.wanted == (None,)
    assert found.values == {}
    assert found.problems[0].check == "rdma-gid"
    assert "10.5.0.2" in found.problems[0].message
    assert "IB/RoCE v1" in found.problems[0].message


def test_two_pods_with_one_address_and_one_link_name_are_said() -> None:
    link = w.link("net1", "10.5.0.2/24", kind="macvlan")
    entries = (*w.table("net1", "10.5.0.2"), w.gid(4, "10.5.0.2", "net1"))
    found = one((rail(w.port(entries), link),), "2.28.9")
    assert found.problems[0].check == "data-ambiguous"
    assert "3, 4" in found.problems[0].message


def test_a_roce_port_that_was_named_without_a_link_has_no_entry_of_ours() -> None:
    network = choose(w.worker("w-0", w.eth0(), devices=(w.device("mlx5_1", w.port()),)), NAMED)
    found = one(network.rails, "2.28.9")
    assert found.wanted == (None,)
    assert "no link of this pod belongs to mlx5_1:1" in found.problems[0].message


@pytest.mark.parametrize("worker", [w.ipoib(), w.aks(), w.efa(), w.plain()])
def test_what_is_not_roce_needs_no_index(worker: Worker) -> None:
    found = choice(worker, "")
    assert found.values == {}
    assert not found.problems


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
    found = one((own,), version)
    (gid,) = found.wanted
    if gid is None:
        assert bool(found.problems) == bool(entries)  # of an empty table nothing is known
        assert not found.values
        return
    assert gid in table
    assert nccl.address(gid) == ipaddress.ip_address("10.5.0.2")
    told = found.values.get("NCCL_IB_GID_INDEX")
    which = nccl.version(version)
    if told is None:
        assert which is not None
        assert nccl.gid_index(own.port, which) == gid.index
    else:
        assert told == str(gid.index)
    ucx = found.values.get("UCX_IB_GID_INDEX", str(nccl.ucx_index(own.port)))
    assert ucx == str(gid.index)


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


def test_nccls_files_and_their_order() -> None:
    assert nccl.conf_files({}, "/home/me") == ("/home/me/.nccl.conf", "/etc/nccl.conf")
    named = {"NCCL_CONF_FILE": "/site.conf"}
    assert nccl.conf_files(named, "/home/me") == ("/site.conf", "/etc/nccl.conf")
