"""What mpiboot observes, against rdma, ibv_devinfo and sysfs, on a kernel with soft-RoCE."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.facts import Fabric, Link
from mpiboot.network import rdma
from mpiboot.network.netlink import observe
from tests.vm.inside.machine import (
    active,
    device,
    devinfo,
    has_gid,
    in_pod,
    rail,
    rdma_links,
    run,
    wait_for,
    without_library,
)

SYS, DEV = Path("/sys"), Path("/dev")
REFUSED = rdma.KernelRdma({}, "refused")


def links() -> tuple[Link, ...]:
    return observe()[0]


def agrees(name: str, fabric: Fabric | None = None) -> None:
    """Compare a device with what the other tools say of it, once the kernel is done with it."""
    end = time.monotonic() + 60
    while True:
        try:
            return compare(name, fabric)
        except AssertionError:  # noqa: PERF203 - it is tried again, seldom
            if fabric is not None or time.monotonic() > end:
                raise
            time.sleep(0.05)


def compare(name: str, fabric: Fabric | None) -> None:
    ours, message, library = device(name, fabric), rdma_links()[name], devinfo(name)
    port = ours.ports[0]
    folder = SYS / "class" / "infiniband" / name
    assert len(ours.ports) == 1
    assert port.number == message["port"]
    assert port.state == message["state"] == library.state
    assert port.netdev == message["netdev"] == (folder / "parent").read_text().strip()
    assert port.link_layer == library.layer == "Ethernet"
    assert tuple((gid.index, gid.value, gid.kind) for gid in port.gids) == library.gids
    assert (folder / "ports/1/rate").read_text().startswith(f"{port.rate:g} Gb/sec")
    assert [f"{pkey:#06x}" for pkey in port.pkeys] == [
        (folder / "ports/1/pkeys/0").read_text().strip()
    ]
    assert not ours.efa
    assert (ours.open_error, ours.library_error) == ("", "")


def test_several_devices_with_ipv4_and_ipv6_are_as_the_other_tools_have_them() -> None:
    rail(0, "10.0.0.1/24", "10.0.9.1/24")
    rail(1, "10.1.0.1/24", "fd00:1::1/64")
    seen = rdma.observe()
    for number in range(2):
        agrees(f"rxe{number}", seen)
    assert {gid.kind for item in seen.devices for gid in item.ports[0].gids} == {"RoCE v2"}


def test_a_port_that_goes_down_is_down_and_comes_back() -> None:
    rail(0, "10.0.0.1/24")
    run("ip link set far0 down")
    wait_for(lambda: device("rxe0", without_library()).ports[0].state == "DOWN")
    agrees("rxe0")
    run("ip link set far0 up")
    active("rxe0")
    agrees("rxe0")


@pytest.mark.full
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
        assert other.unreadable == ()


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
    assert port.netdev == ""  # it is the host's
    named = {gid.value: gid.netdev for gid in port.gids if gid.value.startswith("::ffff:")}
    assert named == {
        "::ffff:10.0.0.1": "rail0",
        "::ffff:10.0.0.11": "net1",
        "::ffff:10.0.0.12": "net1",
    }
    assert [item.kind for item in in_pod("b", links) if item.name == "net1"] == ["macvlan"]


@pytest.mark.full
def test_nobody_without_privilege_sees_the_same() -> None:
    rail(0, "10.0.0.1/24")
    run("ip netns add a")
    (DEV / "infiniband" / "uverbs0").chmod(0o600)
    mine, nobodys = in_pod("a", without_library), in_pod("a", rdma.observe, uid=65534)
    assert (device("rxe0", nobodys).open_error, device("rxe0", nobodys).library_error) == (
        "Permission denied",
        "",
    )
    assert replace(device("rxe0", nobodys), open_error="") == device("rxe0", mine)


@pytest.mark.full
def test_in_exclusive_mode_a_pod_sees_no_device_of_the_host(exclusive: None) -> None:
    rail(0, "10.0.0.1/24")
    run("ip netns add a")
    agrees("rxe0")
    for host_sys in (False, True):
        fabric = in_pod("a", rdma.observe, host_sys=host_sys)
        assert fabric == Fabric()


def test_in_exclusive_mode_the_hosts_node_can_not_be_opened(exclusive: None) -> None:
    rail(0)
    run("ip netns add a")
    # What netlink hides, a sysfs of the host still shows.
    fabric = in_pod("a", lambda: rdma.assemble(REFUSED, SYS, DEV), host_sys=True)
    assert device("rxe0", fabric).open_error == "Operation not permitted"


def test_many_devices_are_all_seen() -> None:
    for number in range(16):
        run(f"ip link add rail{number} type dummy")
        run(f"rdma link add rxe{number} type rxe netdev rail{number}")
    fabric = without_library()
    assert [item.name for item in fabric.devices] == list(rdma_links())
    assert len(fabric.devices) == 16
    assert fabric.unreadable == ()


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
    (hardware,) = [item for item in found.values() if item.kind == "ether"]
    folder = SYS / "class" / "net" / hardware.name
    assert hardware.hardware == (folder / "address").read_text().strip()
    assert (found["net1"].up, found["net1"].carrier, found["net1"].mtu) == (True, False, 9000)
    run("ip link set far1 up")
    wait_for(lambda: next(item.carrier for item in links() if item.name == "net1"))


def test_an_address_that_is_not_known_to_be_alone_is_told() -> None:
    run("ip netns add a")
    run("ip link add far type veth peer name net1 netns a")
    run("ip address add fd00:1::2/64 dev far nodad")
    run("ip -n a link set net1 up")
    for number in (1, 2):
        run(f"ip -n a address add fd00:1::{number}/64 dev net1")

    def net1() -> Link:
        return next(item for item in in_pod("a", links) if item.name == "net1")

    # While the cable is out the kernel can't look.
    found = net1()
    assert set(found.tentative) >= {"fd00:1::1/64", "fd00:1::2/64"}
    assert found.duplicate == ()
    run("ip link set far up")
    wait_for(lambda: net1().tentative == ())
    assert net1().duplicate == ("fd00:1::2/64",)
    assert "fd00:1::1/64" in net1().addresses
