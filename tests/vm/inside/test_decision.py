"""What is decided from a pod's real facts, against what rdma and ibv_devinfo say of it."""

from __future__ import annotations

import json

import pytest

from mpiboot.core.settings import Settings
from mpiboot.network import nccl, worker_network
from mpiboot.network.decision import DataNetwork
from mpiboot.network.records import GidChoice, WorkerNetwork
from tests.fakes import networks
from tests.vm.inside.machine import (
    active,
    devinfo,
    has_gid,
    pod,
    rail,
    run,
    seen,
    told,
    wait_for,
    worker,
)

DEFAULT = Settings()


def moved_rail(number: int, name: str, link: str, *addresses: str) -> None:
    """Make a link of a pod with a device ``rxeN`` on it, and the other end of its cable here."""
    run(f"ip link add far{number} type veth peer name {link} netns {name}")
    run(f"ip link set far{number} up")
    run(f"ip -n {name} link set {link} up")
    run(f"ip netns exec {name} rdma link add rxe{number} type rxe netdev {link}")
    for address in addresses:
        run(f"ip -n {name} address add {address} dev {link} nodad")
    active(f"rxe{number}")
    for address in addresses:
        plain = address.partition("/")[0]
        has_gid(f"rxe{number}", f"::ffff:{plain}" if "." in plain else plain)


def upper(kind: str, below: str, name: str, link: str, address: str) -> None:
    """Make a link over a link of the host, and move it into a pod."""
    run(f"ip link add {link} link {below} type {kind}")
    run(f"ip link set {link} netns {name}")
    run(f"ip -n {name} link set {link} up")
    run(f"ip -n {name} address add {address} dev {link}")


def said_in(name: str) -> dict[str, dict[str, object]]:
    listed = json.loads(run(f"ip netns exec {name} rdma -j link show"))
    return {item["ifname"]: item for item in listed}


def names(network: WorkerNetwork) -> list[str]:
    return [one.name for one in network.rails]


def index_of(address: str, name: str) -> int:
    """The index that the RDMA library has for an address; it must be the only one."""
    (found,) = [index for index, gid, _ in devinfo(name).gids if gid == address]
    return found


def chosen(network: WorkerNetwork, version: str = "") -> GidChoice:
    return nccl.choose(network.rails, (), version)


def test_facts_and_the_decision_agree_with_rdma_for_one_device() -> None:
    control = pod("a", 2)
    moved_rail(5, "a", "net1", "10.0.0.1/24")
    (message,) = said_in("a").values()
    found = told("a")
    network = worker_network.choose(worker(found, control), DEFAULT)
    assert [item.name for item in found.fabric.devices] == [message["ifname"]]
    assert names(network) == [f"{message['ifname']}:{message['port']}"]
    assert [link.name for link in network.data] == [message["netdev"]] == ["net1"]
    assert network.transport.value == "RoCE"
    assert network.control is not None
    assert network.control.name == "eth0"


@pytest.mark.full
def test_a_pod_with_ipv6_alone_gets_the_index_of_its_own_address() -> None:
    control = pod("a", 2)
    moved_rail(5, "a", "net1", "fd00:5::1/64")
    network = worker_network.choose(worker(seen("a"), control), DEFAULT)
    choice = chosen(network)
    (gid,) = choice.wanted
    assert gid is not None
    assert gid.value == "fd00:5::1"
    assert choice.values["NCCL_IB_GID_INDEX"] == str(index_of("fd00:5::1", "rxe5"))


def test_a_pods_rdma_is_known_none_or_unknown_where_netlink_is_refused() -> None:
    controls = {name: pod(name, number) for name, number in (("a", 2), ("b", 3))}
    moved_rail(5, "a", "net1", "10.0.0.1/24")

    def decided(name: str, *, refused: bool) -> DataNetwork:
        found = seen(name, refused=refused)
        return networks.decide([worker(found, controls[name])], DEFAULT)

    found = {
        (name, refused): decided(name, refused=refused)
        for name in ("a", "b")
        for refused in (False, True)
    }
    states = {pod: made.networks[0].rdma.value for pod, made in found.items()}
    assert states == {
        ("a", False): "known",
        # Kernel and sysfs agree that this pod has none of its own; in b nothing tells it.
        ("b", False): "none",
        ("b", True): "unknown",
        # Its own address is in the port's table, under the name of its link.
        ("a", True): "known",
    }
    blind = found["b", True]
    assert not [name for name in blind.common if name.startswith(("NCCL_NET", "NCCL_IB_", "UCX_"))]
    (message,) = [item.message for item in blind.findings if item.check == "data-facts"]
    assert "did not list its RDMA devices (Operation not permitted)" in message
    assert found["b", False].common["NCCL_NET"] == "Socket"


@pytest.mark.full
def test_facts_and_the_decision_agree_with_rdma_for_a_macvlan_over_a_shared_device() -> None:
    rail(0, "10.0.0.1/24")
    rail(1, "10.1.0.1/24")
    control = pod("a", 2)
    upper("macvlan mode bridge", "rail1", "a", "net1", "10.1.0.7/24")
    has_gid("rxe1", "::ffff:10.1.0.7")
    network = worker_network.choose(worker(seen("a"), control), DEFAULT)
    # What the pod sees of rxe1 has no link of its own: the GID table alone tells.
    assert "netdev" not in said_in("a")["rxe1"]
    assert names(network) == ["rxe1:1"]
    assert [link.name for link in network.data] == ["net1"]
    (gid,) = chosen(network).wanted
    assert gid is not None
    assert (gid.value, gid.kind) == ("::ffff:10.1.0.7", "RoCE v2")
    assert gid.index == index_of("::ffff:10.1.0.7", "rxe1")


def test_an_address_and_its_entry_that_come_late_are_pending_until_they_are_there() -> None:
    control = pod("a", 2)
    moved_rail(5, "a", "net1")

    def pending() -> tuple[str, ...]:
        return worker_network.choose(worker(seen("a"), control), DEFAULT).pending

    assert pending() == ("link net1 has no address yet",)
    run("ip -n a address add 10.0.0.1/24 dev net1")
    wait_for(lambda: pending() == ())
