from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Gid, GidType, PortState, Worker
from mpiboot.core.model import Source
from mpiboot.core.setting_types import DataNetworkUse, MpiNetwork, NcclSocket
from mpiboot.core.settings import Settings
from mpiboot.network.records import Transport, WorkerNetwork, natural_order
from mpiboot.network.worker_network import choose, socket_addresses
from tests.fakes import workers as w
from tests.fakes.networks import decide

DEFAULT = Settings()


def names(network: WorkerNetwork) -> list[str]:
    return [rail.name for rail in network.rails]


def data(network: WorkerNetwork) -> list[str]:
    return [link.name for link in network.data]


def checks(network: WorkerNetwork) -> list[str]:
    return [problem.check for problem in network.problems]


@pytest.mark.parametrize(
    ("worker", "port", "reason"),
    [
        (w.sriov(), "mlx5_3:1", "kernel"),
        (w.macvlan(), "mlx5_2:1", "GID table"),
        (w.ipoib(name="net1"), "mlx5_4:1", "hardware"),
    ],
)
def test_by_what_a_port_is_a_links(worker: Worker, port: str, reason: str) -> None:
    network = choose(worker, DEFAULT)
    assert names(network) == [port]
    assert reason in network.rails[0].reason
    assert (network.problems, network.pending) == ((), ())
    assert network.control is not None
    assert network.control.name == "eth0"


def test_another_pods_entry_under_the_same_link_name_is_no_evidence() -> None:
    worker = w.worker(
        "w-0",
        w.eth0(),
        w.link("net1", "10.0.0.50/24", kind="macvlan"),
        devices=(w.device("mlx5_2", w.port(w.table("net1", "10.0.0.51"))),),
    )
    assert choose(worker, DEFAULT).transport is Transport.TCP
    assert [item.check for item in decide([worker], DEFAULT).findings] == ["rdma-missing"]


def test_the_platforms_list_of_functions_picks_this_containers_devices() -> None:
    devices = tuple(
        w.device(f"mlx5_{n}", w.port(layer="InfiniBand"), pci=f"0000:0{n}:00.1") for n in range(4)
    )
    worker = w.worker("w-0", w.eth0(), devices=devices, functions=("0000:02:00.1",))
    assert names(choose(worker, DEFAULT)) == ["mlx5_2:1"]


def test_a_function_without_rdma_is_said_with_the_policy_line() -> None:
    worker = w.worker("w-0", w.eth0(), functions=("0000:02:00.1",))
    (finding,) = decide([worker], DEFAULT).findings
    assert finding.check == "rdma-missing"
    assert "isRdma" in finding.hint


def test_roce_devices_that_open_without_a_link_of_the_pod_are_said_and_not_used() -> None:
    # A privileged pod without the secondary network: it has no address of its own there.
    devices = (w.device("mlx5_1", w.port(w.table("pf0", "10.0.0.1"))),)
    worker = w.worker("w-0", w.eth0(), devices=devices)
    for settings in (DEFAULT, replace(DEFAULT, data_network=DataNetworkUse.REQUIRE)):
        found = decide([worker], settings)
        assert (found.networks[0].rails, found.networks[0].foreign) == ((), ("mlx5_1:1",))
        (finding,) = found.findings
        assert finding.check == "rdma-missing"
        message = "RoCE ports open (mlx5_1:1), but none of them has a link in this pod"
        assert finding.message == message
        assert "k8s.v1.cni.cncf.io/networks" in finding.hint


def test_of_a_function_with_two_devices_the_one_with_the_links_address_is_taken() -> None:
    # As a switch mode's representors are.
    devices = tuple(
        w.device(name, w.port(w.table(link, address)), pci="0000:08:00.2")
        for index, (name, link, address) in enumerate(
            [("mlx5_6", "pf0", "10.0.0.1"), ("mlx5_7", "net1", "10.5.0.2")]
        )
    )
    link = w.link("net1", "10.5.0.2/24")
    network = choose(w.worker("w-0", w.eth0(), link, devices=devices), DEFAULT)
    assert names(network) == ["mlx5_7:1"]
    assert not network.problems


def test_a_vlan_is_tied_to_the_port_below_it_and_takes_the_one_with_the_address() -> None:
    base = w.link("net1", index=20)
    vlan = w.link("net1.100", "10.7.0.2/24", index=21, kind="vlan")
    gids = (*w.table("net1"), w.gid(9, "10.7.0.2", "net1.100"))
    worker = w.worker(
        "w-0", w.eth0(), base, vlan, devices=(w.device("mlx5_5", w.port(gids, netdev="net1")),)
    )
    network = choose(worker, DEFAULT)
    assert names(network) == ["mlx5_5:1"]
    assert data(network) == ["net1.100"]
    assert "GID table" in network.rails[0].reason


def test_a_vlan_whose_lower_link_is_elsewhere_is_tied_by_its_entry_alone() -> None:
    # A link here may well have the hardware address of the one below it, or its number.
    vf = w.link("net1", "10.5.0.2/24", index=20, hardware=w.mac(7))
    vlan = w.link("net2", "10.7.0.2/24", index=21, kind="vlan", hardware=w.mac(7))
    ours = w.device("mlx5_5", w.port(w.table("net1", "10.5.0.2"), netdev="net1"))
    below = w.device("mlx5_6", w.port((*w.table("pf0"), w.gid(5, "10.7.0.2", "net2"))))
    network = choose(w.worker("w-0", w.eth0(), vf, vlan, devices=(ours, below)), DEFAULT)
    assert names(network) == ["mlx5_5:1", "mlx5_6:1"]
    assert "GID table" in network.rails[1].reason


@pytest.mark.parametrize(("up", "message"), [(True, "has no carrier"), (False, "is down")])
def test_a_second_link_that_is_dead_is_said_and_not_used(up: bool, message: str) -> None:  # noqa: FBT001
    link = replace(w.link("net1", "10.5.0.2/24", kind="macvlan", carrier=False), up=up)
    network = choose(w.worker("w-0", w.eth0(), link), DEFAULT)
    assert network.transport is Transport.NONE
    (problem,) = network.problems
    assert (problem.check, problem.message) == (
        "data-carrier",
        f"link net1 has an address, but {message}",
    )


def test_host_network_without_rdma_does_not_guess_a_tcp_link() -> None:
    network = choose(w.changed(w.host_network(), fabric={"devices": ()}), DEFAULT)
    assert network.transport is Transport.NONE
    assert not network.data


def test_on_the_nodes_network_a_link_that_nobody_plugged_in_is_nothing_to_say() -> None:
    worker = w.host_network()
    assert worker.facts is not None
    devices = worker.facts.fabric.devices[:3]
    worker = w.changed(w.with_links(worker, "rail3", carrier=False), fabric={"devices": devices})
    network = choose(worker, DEFAULT)
    assert names(network) == ["mlx5_1:1", "mlx5_2:1"]
    assert not network.problems
    assert choose(worker, Settings(data_ifname=("rail3",))).problems[0].check == "data-carrier"


def test_of_a_nodes_ports_those_that_can_carry_data_are_taken() -> None:
    """A node has ports that nobody plugged in, or may not open; InfiniBand needs no link."""
    worker = w.host_network(0)
    assert worker.facts is not None
    devices = list(worker.facts.fabric.devices)
    down = replace(devices[3].ports[0], state=PortState.DOWN)
    devices[3] = replace(devices[3], ports=(down,))
    devices[4] = replace(devices[4], open_error="Operation not permitted")
    network = choose(w.changed(worker, fabric={"devices": tuple(devices)}), DEFAULT)
    assert names(network) == [f"mlx5_{n}:1" for n in (1, 2, 5, 6, 7, 8)]


def test_the_control_links_own_port_carries_data_where_it_is_as_fast_as_the_others() -> None:
    node = w.ipoib(0)
    assert node.facts is not None
    ib0 = next(link for link in node.facts.links if link.name == "ib0")
    bridge = w.link("cni0", "10.244.9.1/24", index=60, kind="bridge")
    other = w.device("mlx5_7", w.port(layer="InfiniBand"))
    devices = (*node.facts.fabric.devices, other)
    network = choose(w.worker("w-0", ib0, bridge, devices=devices, control="10.9.0.5"), DEFAULT)
    assert network.host_network
    assert names(network) == ["mlx5_4:1", "mlx5_7:1"]


def test_two_devices_that_cannot_be_told_apart_are_named_with_the_setting() -> None:
    gids = w.table("net1", "10.5.0.2")
    worker = w.worker(
        "w-0",
        w.eth0(),
        w.link("net1", "10.5.0.2/24", kind="macvlan"),
        devices=(w.device("mlx5_1", w.port(gids)), w.device("mlx5_2", w.port(gids))),
    )
    network = choose(worker, DEFAULT)
    problem = next(item for item in network.problems if item.check == "data-ambiguous")
    assert "mlx5_1:1, mlx5_2:1" in problem.message
    assert "MPIBOOT_RDMA_DEVICE" in (problem.hint or "")
    assert names(choose(worker, Settings(rdma_device=("mlx5_2",)))) == ["mlx5_2:1"]


def test_of_two_matching_devices_the_one_that_opens_is_taken() -> None:
    gids = w.table("net1", "10.5.0.2")
    worker = w.worker(
        "w-0",
        w.eth0(),
        w.link("net1", "10.5.0.2/24", kind="macvlan"),
        devices=(
            w.device("mlx5_1", w.port(gids), open_error="EPERM"),
            w.device("mlx5_2", w.port(gids)),
        ),
    )
    assert names(choose(worker, DEFAULT)) == ["mlx5_2:1"]


def test_two_tcp_links_are_said_and_one_can_be_named() -> None:
    links = (w.link("foo", "10.5.0.2/24", kind="veth"), w.link("bar", "10.6.0.2/24", kind="veth"))
    worker = w.worker("w-0", w.eth0(), *links)
    network = choose(worker, DEFAULT)
    assert data(network) == ["bar", "foo"]
    assert checks(network) == ["data-ambiguous"]
    named = choose(worker, Settings(data_ifname=("foo",)))
    assert data(named) == ["foo"]
    assert not named.problems


@pytest.mark.parametrize(
    ("addresses", "pending"),
    [
        ((), "link net1 has no address yet"),
        (("10.5.0.2/24",), "port mlx5_1:1 has no RoCE v2 entry for net1 yet"),
    ],
)
def test_an_address_and_its_entry_are_waited_for(addresses: tuple[str, ...], pending: str) -> None:
    own = w.device("mlx5_1", w.port(w.table("net1"), netdev="net1"))
    worker = w.worker("w-0", w.eth0(), w.link("net1", *addresses), devices=(own,))
    assert choose(worker, DEFAULT).pending == (pending,)


@pytest.mark.parametrize(
    ("kind", "open_error", "waits"),
    [("macvlan", "", True), ("ipvlan", "", True), ("macvlan", "no node", False)],
)
def test_over_a_device_of_the_pods_own_an_address_is_waited_for(
    kind: str,
    open_error: str,
    waits: bool,  # noqa: FBT001
) -> None:
    # Only its entry in the device's table will tell that they belong together.
    devices = (w.device("mlx5_1", w.port(w.table("pf0", "10.0.0.1")), open_error=open_error),)
    worker = w.worker("w-0", w.eth0(), w.link("net1", kind=kind), devices=devices)
    network = choose(worker, DEFAULT)
    assert bool(network.pending) is waits
    assert ("data-address" in {item.check for item in network.problems}) is waits


def test_an_address_that_may_be_a_duplicate_is_waited_for_and_one_that_is_is_said() -> None:
    found = w.tcp(0)
    assert found.facts is not None
    control, data = (item for item in found.facts.links if item.name != "lo")

    def with_net1(
        *addresses: str, tentative: tuple[str, ...] = (), duplicate: tuple[str, ...] = ()
    ) -> WorkerNetwork:
        net1 = replace(data, addresses=addresses, tentative=tentative, duplicate=duplicate)
        links = (control, net1)
        facts = replace(found.facts, links=links) if found.facts else None
        return choose(replace(found, facts=facts), DEFAULT)

    address = ("fd00:7::5/64",)
    coming = with_net1(*address, tentative=address)
    assert coming.transport is Transport.NONE
    assert coming.pending == (
        "link net1: the kernel still checks whether another host has fd00:7::5",
    )
    assert [item.message for item in coming.problems] == list(coming.pending)
    taken = with_net1(*address, duplicate=address)
    assert not taken.pending
    assert [item.message for item in taken.problems] == [
        "another host of net1's network has its address fd00:7::5/64"
    ]
    # What can be used already is enough, and a link-local address is nothing to wait for.
    both = with_net1(*data.addresses, *address, tentative=address)
    assert (both.transport, both.pending) == (Transport.TCP, ())
    assert not with_net1("fe80::1/64", tentative=("fe80::1/64",)).pending


def test_infiniband_is_kept_where_both_link_layers_are_there() -> None:
    ib, roce = w.ipoib(), w.sriov()
    assert ib.facts is not None
    assert roce.facts is not None
    worker = w.worker(
        "w-0",
        *ib.facts.links[1:],
        roce.facts.links[2],
        devices=ib.facts.fabric.devices + roce.facts.fabric.devices,
    )
    network = choose(worker, DEFAULT)
    assert names(network) == ["mlx5_4:1"]
    assert "mlx5_3:1" in next(d.reason for d in network.decisions if d.name == "rdma-port")


def test_a_bond_and_its_slaves_are_one_rail() -> None:
    pci = "0000:06:00.0"
    slaves = [w.link(f"eth{n}", index=20 + n) for n in (1, 2)]
    bond = w.link("bond0", "10.5.0.2/24", index=30, kind="bond")
    own = w.port(w.table("bond0", "10.5.0.2"), netdev="bond0")
    worker = w.worker(
        "w-0", w.eth0(), *slaves, bond, devices=(w.device("mlx5_bond_0", own, pci=pci),)
    )
    network = choose(worker, DEFAULT)
    assert data(network) == ["bond0"]
    assert not network.problems


def test_a_named_port_is_taken_without_a_link() -> None:
    network = choose(w.aks(), Settings(rdma_device=("mlx5_3:1",)))
    assert names(network) == ["mlx5_3:1"]
    assert network.decisions[0].source is Source.ENVIRONMENT


def test_named_devices_are_taken_out_of_many_also_on_the_nodes_network() -> None:
    some = Settings(rdma_device=("mlx5_12", "mlx5_14:1"))
    network = choose(w.rails8(), some)
    # In the order of their links.
    assert names(network) == ["mlx5_14:1", "mlx5_12:1"]
    assert data(network) == [rail.link.name for rail in network.rails if rail.link]
    node = choose(w.host_network(), Settings(rdma_device=("mlx5_0", "mlx5_2")))
    # The control link's own port too: the user's word is not weighed.
    assert [rail.link.name for rail in node.rails if rail.link] == ["rail2", "ens3"]
    assert names(node) == ["mlx5_2:1", "mlx5_0:1"]


def test_named_links_are_the_users_word_and_whatever_else_is_there_is_left() -> None:
    worker = w.worker("w-0", w.eth0(), *(w.link(f"net{n}", f"10.{n}.0.2/24") for n in range(1, 4)))
    network = choose(worker, Settings(data_ifname=("net3", "net1", "net3")))
    assert data(network) == ["net3", "net1"]
    (decision,) = [item for item in network.decisions if item.name == "data-link"]
    assert (decision.source, decision.reason) == (Source.ENVIRONMENT, "MPIBOOT_DATA_IFNAME")
    assert not network.problems


def test_control_is_the_link_that_holds_the_address_dialled_whatever_its_name() -> None:
    worker = w.worker(
        "w-0",
        w.link("net1", "10.244.1.5/24", index=3, kind="veth"),
        w.link("eth0", "192.168.1.2/24", index=2, kind="macvlan"),
        control="10.244.1.5",
    )
    network = choose(worker, DEFAULT)
    assert network.control is not None
    assert network.control.name == "net1"
    assert data(network) == ["eth0"]


def control_link(worker: Worker, wanted: str = "") -> str:
    found = choose(worker, Settings(control_ifname=wanted)).control
    return found.name if found else ""


def test_control_is_the_users_link_where_the_worker_has_it() -> None:
    links = (w.link("a", "10.1.0.2/24", kind="veth"), w.link("b", "10.2.0.2/24", kind="veth"))
    worker = w.worker("w-0", *links, control="10.1.0.2")
    assert control_link(worker, "b") == "b"
    assert control_link(worker, "c") == "a"


def test_control_falls_back_to_nothing() -> None:
    links = (w.link("a", "10.1.0.2/24", kind="veth"), w.link("b", "10.2.0.2/24", kind="veth"))
    assert control_link(w.worker("w-0", *links)) == ""
    assert control_link(w.worker("w-0", *links), "b") == "b"


def test_tunnels_bridges_and_link_local_links_are_no_data_links() -> None:
    worker = w.worker(
        "w-0",
        w.eth0(),
        w.link("tunl0", "10.3.0.1/24", kind="ipip"),
        w.link("pod-id-link0", "169.254.170.23/32", kind="dummy"),
        w.link("eth9", "169.254.1.1/16", kind="veth"),
    )
    assert choose(worker, DEFAULT).transport is Transport.NONE


def test_unparsable_records_are_passed_over() -> None:
    worker = w.worker(
        "w-0",
        w.eth0(),
        w.link("net1", "nonsense", "10.5.0.2/24", hardware="zz:yy"),
        devices=(
            w.device(
                "mlx5_1", w.port((Gid(0, "gibberish", GidType.ROCE_V2, "net1"),), netdev="net1")
            ),
        ),
    )
    assert names(choose(worker, DEFAULT)) == ["mlx5_1:1"]


def test_names_are_ordered_as_people_count() -> None:
    assert sorted(["net10", "net2", "net1", "a٣"], key=natural_order) == [
        "a٣",
        "net1",
        "net2",
        "net10",
    ]


@pytest.mark.parametrize(
    ("worker", "settings", "expected"),
    [
        (w.rails8(0), Settings(), ("172.16.1.10",)),  # bootstrap takes a single link
        (w.tcp(0), Settings(), ("192.168.7.5",)),
        (w.tcp(0), Settings(nccl_socket=NcclSocket.CONTROL), ()),
        (
            w.tcp(0),
            Settings(nccl_socket=NcclSocket.CONTROL, mpi_network=MpiNetwork.DATA),
            ("192.168.7.5",),
        ),
        (w.tcp(0), Settings(data_network=DataNetworkUse.OFF), ()),
        (w.aks(0), Settings(), ()),
        (w.plain(0), Settings(), ()),
        (
            w.worker(
                "w-0",
                w.eth0(),
                w.link("net1", "fd00:7::5/64", "192.168.7.5/24"),
                w.link("net2", "fd00:8::5/64"),
            ),
            Settings(),
            ("192.168.7.5", "fd00:8::5"),
        ),
    ],
)
def test_the_addresses_that_sockets_may_use(
    worker: Worker, settings: Settings, expected: tuple[str, ...]
) -> None:
    assert socket_addresses(choose(worker, settings), settings) == expected
