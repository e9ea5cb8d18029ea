"""What mpiboot observes, against rdma, ibv_devinfo and sysfs, on a kernel with soft-RoCE."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.fabric import Route
from mpiboot.model import Host, PodFacts, Worker
from mpiboot.network import gids, interfaces, rails
from mpiboot.network.network import DataSettings, Network
from mpiboot.observe import factsjson, rdma
from mpiboot.observe.links import links, routes
from tests.vm.inside.machine import device, devinfo, in_pod, rdma_links, run, wait_for

SYS, DEV = Path("/sys"), Path("/dev")


def rail(number: int, *addresses: str, mtu: int = 1500) -> None:
    """Make a link ``railN`` with a device ``rxeN`` on it, and the other end of its cable."""
    run(f"ip link add rail{number} type veth peer name far{number}")
    for end in (f"rail{number}", f"far{number}"):
        run(f"ip link set {end} mtu {mtu} up")
    run(f"rdma link add rxe{number} type rxe netdev rail{number}")
    for address in addresses:
        run(f"ip address add {address} dev rail{number} nodad")
    active(f"rxe{number}")
    for address in addresses:
        plain = address.partition("/")[0]
        has_gid(f"rxe{number}", f"::ffff:{plain}" if "." in plain else plain)


def active(name: str) -> None:
    wait_for(lambda: device(name).ports[0].state == "ACTIVE")


def has_gid(name: str, gid: str) -> None:
    wait_for(lambda: gid in {item.value for item in device(name).ports[0].gids})


def agrees(name: str) -> None:
    """Compare a device with what the other tools say of it."""
    ours, said, library = device(name), rdma_links()[name], devinfo(name)
    port = ours.ports[0]
    folder = SYS / "class" / "infiniband" / name
    assert len(ours.ports) == 1
    assert port.number == said["port"]
    assert port.state == said["state"] == library.state
    assert port.physical == said["physical_state"]
    assert port.netdev == said["netdev"] == (folder / "parent").read_text().strip()
    assert port.link_layer == library.layer == "Ethernet"
    assert port.mtu == library.mtu
    assert ours.node_guid == library.guid == (folder / "node_guid").read_text().strip()
    assert tuple((gid.index, gid.value, gid.kind) for gid in port.gids) == library.gids
    assert (folder / "ports/1/rate").read_text().startswith(f"{port.rate:g} Gb/sec")
    assert [f"{pkey:#06x}" for pkey in port.pkeys] == [
        (folder / "ports/1/pkeys/0").read_text().strip()
    ]
    assert (ours.driver, ours.protocol, ours.node_type) == ("rxe", "roce", "CA")
    assert ours.opens == "ok"
    node = Path(ours.uverbs)
    assert (SYS / "class/infiniband_verbs" / node.name / "ibdev").read_text().strip() == name


def test_without_a_device_there_is_none() -> None:
    fabric = rdma.observe()

    assert (fabric.netns_mode, fabric.devices, fabric.oddities) == ("shared", (), ())


def test_one_device_is_as_the_other_tools_have_it() -> None:
    rail(0, "10.0.0.1/24")

    agrees("rxe0")
    assert rdma.observe().oddities == ()


def test_several_devices_with_ipv4_and_ipv6_are_as_the_other_tools_have_them() -> None:
    rail(0, "10.0.0.1/24", "10.0.9.1/24")
    rail(1, "fd00:1::1/64")
    rail(2, "10.2.0.1/24", "fd00:2::1/64")

    for number in range(3):
        agrees(f"rxe{number}")
    kinds = {gid.kind for item in rdma.observe().devices for gid in item.ports[0].gids}
    assert kinds == {"RoCE v2"}


@pytest.mark.parametrize("mtu", [1280, 1500, 4200, 9000])
def test_the_ports_mtu_is_that_of_the_rdma_library(mtu: int) -> None:
    rail(0, mtu=mtu)

    assert device("rxe0").ports[0].mtu == devinfo("rxe0").mtu


def test_a_port_that_goes_down_is_down_and_comes_back() -> None:
    rail(0, "10.0.0.1/24")

    run("ip link set far0 down")
    wait_for(lambda: device("rxe0").ports[0].state == "DOWN")
    agrees("rxe0")
    run("ip link set far0 up")
    active("rxe0")
    agrees("rxe0")


def test_a_device_whose_link_is_in_another_namespace_is_seen_without_it() -> None:
    run("ip netns add a")
    run("ip netns add b")
    run("ip -n a link add net1 type veth peer name far")
    run("ip -n a link set net1 up")
    run("ip -n a link set far up")
    run("ip netns exec a rdma link add rxe5 type rxe netdev net1")

    assert device("rxe5", in_pod("a", rdma.observe)).ports[0].netdev == "net1"
    for other in (in_pod("b", rdma.observe), rdma.observe()):
        assert device("rxe5", other).ports[0].netdev == ""
        assert other.oddities == ()


def test_macvlan_over_a_shared_device_has_its_address_in_the_table_only() -> None:
    rail(0, "10.0.0.1/24")
    for number, pod in ((11, "a"), (12, "b")):
        run(f"ip netns add {pod}")
        run("ip link add net1 link rail0 type macvlan mode bridge")
        run(f"ip link set net1 netns {pod}")
        run(f"ip -n {pod} address add 10.0.0.{number}/24 dev net1")
        run(f"ip -n {pod} link set net1 up")
        has_gid("rxe0", f"::ffff:10.0.0.{number}")

    port = device("rxe0", in_pod("b", rdma.observe)).ports[0]

    assert (port.netdev, port.mtu) == ("", 0)
    named = {gid.value: gid.netdev for gid in port.gids if gid.value.startswith("::ffff:")}
    assert named == {
        "::ffff:10.0.0.1": "rail0",
        "::ffff:10.0.0.11": "net1",
        "::ffff:10.0.0.12": "net1",
    }
    assert [item.kind for item in in_pod("b", links) if item.name == "net1"] == ["macvlan"]


def test_nobody_without_privilege_sees_the_same() -> None:
    rail(0, "10.0.0.1/24")
    run("ip netns add a")
    (DEV / "infiniband" / "uverbs0").chmod(0o600)

    mine, nobodys = in_pod("a", rdma.observe), in_pod("a", rdma.observe, uid=65534)

    assert device("rxe0", nobodys).opens == "Permission denied"
    assert replace(device("rxe0", nobodys), opens="ok") == device("rxe0", mine)


def test_a_pod_without_the_device_node_says_so(tmp_path: Path) -> None:
    rail(0)

    ours = device("rxe0", rdma.observe(dev_root=tmp_path))

    assert (ours.uverbs, ours.opens) == ("", f"{tmp_path}/infiniband/uverbs0 is not in this pod")


def test_in_exclusive_mode_a_pod_sees_no_device_of_the_host(exclusive: None) -> None:
    rail(0, "10.0.0.1/24")
    run("ip netns add a")

    assert rdma.observe().netns_mode == "exclusive"
    agrees("rxe0")
    for host_sys in (False, True):
        fabric = in_pod("a", rdma.observe, host_sys=host_sys)
        assert (fabric.netns_mode, fabric.devices, fabric.oddities) == ("exclusive", (), ())
        assert fabric.infiniband_folder


def test_in_exclusive_mode_the_hosts_node_can_not_be_opened(exclusive: None) -> None:
    rail(0)
    run("ip netns add a")

    # What netlink hides, a sysfs of the host still shows.
    fabric = in_pod("a", lambda: rdma.assemble(None, SYS, DEV), host_sys=True)

    assert device("rxe0", fabric).opens == "Operation not permitted"


def test_sysfs_alone_tells_the_same_but_for_index_and_link() -> None:
    rail(0, "10.0.0.1/24")

    alone = rdma.assemble(None, SYS, DEV, "refused").devices[0]

    ours = device("rxe0")
    port = replace(ours.ports[0], netdev="", mtu=0)
    assert alone == replace(ours, index=-1, ports=(port,))


def test_a_device_that_is_taken_away_is_gone() -> None:
    rail(0)
    rail(1)
    run("rdma link delete rxe0")

    wait_for(lambda: [item.name for item in rdma.observe().devices] == ["rxe1"])
    assert rdma.observe().oddities == ()


def test_many_devices_are_all_seen() -> None:
    for number in range(16):
        run(f"ip link add rail{number} type dummy")
        run(f"rdma link add rxe{number} type rxe netdev rail{number}")

    fabric = rdma.observe()

    assert [item.name for item in fabric.devices] == list(rdma_links())
    assert len(fabric.devices) == 16
    assert fabric.oddities == ()


def test_links_have_the_kinds_of_their_drivers() -> None:
    run("ip link add net1 type veth peer name far1")
    run("ip link add mac1 link net1 type macvlan mode bridge")
    run("ip link add vlan1 link net1 type vlan id 7")
    run("ip link add ipvlan1 link far1 type ipvlan")
    run("ip link add dummy1 type dummy")
    run("ip link set net1 mtu 9000 up")

    found = {item.name: item for item in links()}

    kinds = {name: found[name].kind for name in found if name.endswith("1")}
    assert kinds == {
        "net1": "veth",
        "far1": "veth",
        "mac1": "macvlan",
        "vlan1": "vlan",
        "ipvlan1": "ipvlan",
        "dummy1": "dummy",
    }
    (hardware,) = [item for item in found.values() if item.kind == "physical"]
    folder = SYS / "class" / "net" / hardware.name
    assert hardware.pci == (folder / "device").resolve().name
    assert hardware.hardware == (folder / "address").read_text().strip()
    assert (found["net1"].up, found["net1"].carrier, found["net1"].mtu) == (True, False, 9000)
    run("ip link set far1 up")
    wait_for(lambda: next(item.carrier for item in links() if item.name == "net1"))


def test_the_port_behind_a_link_is_found() -> None:
    rail(0, "10.0.0.1/24")
    rail(1, "10.1.0.1/24")
    run("ip netns add a")
    run("ip link add net1 link rail1 type macvlan mode bridge")
    run("ip link set net1 netns a")
    run("ip -n a address add 10.1.0.7/24 dev net1")
    run("ip -n a link set net1 up")
    has_gid("rxe1", "::ffff:10.1.0.7")

    def behind(name: str) -> list[str]:
        known = links()
        link = next(item for item in known if item.name == name)
        return [item[0].name for item in rails.behind(link, rdma.observe(), known)[0]]

    assert behind("rail0") == ["rxe0"]
    assert behind("far0") == []
    assert in_pod("a", lambda: behind("net1")) == ["rxe1"]


def facts(name: str = "") -> PodFacts:
    """Run the command that a person would; what it says is what a launcher reads."""
    enter = f"ip netns exec {name} " if name else ""
    found = factsjson.from_json(run(f"{enter}{sys.executable} -m mpiboot facts --json"))
    assert found is not None
    return found


def decided(found: PodFacts, control: str) -> Network:
    worker = Worker(Host("w-0"), control, 22, "root", control, found)
    return interfaces.choose(worker, DataSettings())


def pod_a() -> None:
    """Make a pod whose control link has an address."""
    run("ip netns add a")
    run("ip -n a link add eth0 type dummy")
    run("ip -n a link set eth0 up")
    run("ip -n a address add 10.9.0.2/24 dev eth0")


def rdma_links_of_a() -> dict[str, dict[str, object]]:
    said = json.loads(run("ip netns exec a rdma -j link show"))
    return {item["ifname"]: item for item in said}


def test_facts_and_the_decision_agree_with_rdma_for_one_device() -> None:
    pod_a()
    run("ip link add far type veth peer name net1")
    run("ip link set net1 netns a")
    run("ip link set far up")
    run("ip -n a link set net1 up")
    run("ip netns exec a rdma link add rxe5 type rxe netdev net1")
    run("ip -n a address add 10.0.0.1/24 dev net1")
    active("rxe5")
    has_gid("rxe5", "::ffff:10.0.0.1")
    (said,) = rdma_links_of_a().values()

    found = facts("a")
    network = decided(found, "10.9.0.2")

    assert [item.name for item in found.fabric.devices] == [said["ifname"]]
    assert [rail.name for rail in network.rails] == [f"{said['ifname']}:{said['port']}"]
    assert [link.name for link in network.data] == [said["netdev"]] == ["net1"]
    assert network.kind.value == "RoCE"
    assert network.control is not None
    assert network.control.name == "eth0"


def test_facts_and_the_decision_agree_with_rdma_for_a_macvlan_over_a_shared_device() -> None:
    rail(0, "10.0.0.1/24")
    rail(1, "10.1.0.1/24")
    pod_a()
    run("ip link add net1 link rail1 type macvlan mode bridge")
    run("ip link set net1 netns a")
    run("ip -n a link set net1 up")
    run("ip -n a address add 10.1.0.7/24 dev net1")
    has_gid("rxe1", "::ffff:10.1.0.7")

    network = decided(facts("a"), "10.9.0.2")

    # What the pod sees of rxe1 has no link of its own: the GID table alone tells.
    assert "netdev" not in rdma_links_of_a()["rxe1"]
    assert [rail.name for rail in network.rails] == ["rxe1:1"]
    assert [link.name for link in network.data] == ["net1"]
    (gid,) = gids.choose(network.rails, "").wanted
    assert gid is not None
    assert (gid.value, gid.kind) == ("::ffff:10.1.0.7", "RoCE v2")


def test_routes_tell_which_link_reaches_a_peer() -> None:
    run("ip netns add a")
    for number in (1, 2):
        run(f"ip -n a link add net{number} type dummy")
        run(f"ip -n a link set net{number} up")
        run(f"ip -n a address add 10.{number}.0.7/24 dev net{number}")
    run("ip -n a address add fd00:1::7/64 dev net1 nodad")
    run("ip -n a route add default via 10.1.0.1")
    run("ip -n a route add 10.9.0.0/16 nexthop via 10.1.0.1 nexthop via 10.2.0.1")
    run("ip -n a route add 10.8.0.0/16 via 10.2.0.1 table 100")
    run("ip -n a route add blackhole 10.7.0.0/16")

    found = in_pod("a", routes)

    assert set(found) == {
        Route("0.0.0.0/0", "net1", "10.1.0.1"),
        Route("10.1.0.0/24", "net1", source="10.1.0.7"),
        Route("10.2.0.0/24", "net2", source="10.2.0.7"),
        Route("10.9.0.0/16", "net1", "10.1.0.1"),
        Route("10.9.0.0/16", "net2", "10.2.0.1"),
        Route("fd00:1::/64", "net1"),
    }
