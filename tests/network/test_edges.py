"""Where a rule on one worker begins and ends: limits, MTUs, states, subnets, users' values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.model import Identity, PortState, Worker
from mpiboot.core.settings import Settings
from mpiboot.network import cluster_view, nccl, worker_network
from mpiboot.network.records import WorkerNetwork
from tests.fakes import workers as w

DEFAULT = Settings()
USER = Identity(1000, 1000, "me", "/home/me", "/bin/sh", known=True, capabilities=0)
MIB = 1 << 20
OWN_USERS = " of the node (the pod has users of its own: hostUsers is false)"


def network(worker: Worker, **facts: object) -> WorkerNetwork:
    assert worker.facts is not None
    changed = replace(worker.facts, **facts)  # type: ignore[arg-type]
    return worker_network.choose(replace(worker, facts=changed), DEFAULT)


def problems(found: WorkerNetwork, *, expected: bool = False) -> list[tuple[str, str]]:
    return [(one.check, one.message) for one in cluster_view._of_one(found, expected=expected)]


# Limits of the pod


@pytest.mark.parametrize(
    ("memlock", "identity", "message"),
    [
        (-1, USER, ""),
        (256 * MIB, USER, ""),
        (
            255 * MIB,
            USER,
            "255 MiB, without IPC_LOCK (a user other than root does not get added capabilities)",
        ),
        (
            8 * MIB,
            USER,
            "8 MiB, without IPC_LOCK (a user other than root does not get added capabilities)",
        ),
        (65536, replace(USER, uid=0), "64 KiB, without IPC_LOCK"),
        (MIB, replace(USER, uid=0), "1 MiB, without IPC_LOCK"),
        (0, replace(USER, capabilities=1 << 14), ""),
        (0, replace(USER, capabilities=1 << 13 | 1 << 15, uid=0), "0 bytes, without IPC_LOCK"),
        (
            65536,
            replace(w.ROOT, own_users=True),
            f"64 KiB, without IPC_LOCK{OWN_USERS}",
        ),
    ],
)  # fmt: skip
def test_how_much_memory_may_be_locked(memlock: int, identity: Identity, message: str) -> None:
    found = problems(network(w.sriov(0), memlock=memlock, identity=identity))
    assert found == ([("memlock", f"memory lock limit {message}")] if message else [])
    # Without RDMA nothing is locked.
    assert problems(network(w.plain(0), memlock=memlock, identity=identity)) == []


@pytest.mark.parametrize(
    ("shm", "slots", "message"),
    [
        (0, 8, ""),  # not known
        (1, 8, "/dev/shm has 0 MiB for 8 ranks"),
        (64 * MIB, 2, "/dev/shm has 64 MiB for 2 ranks"),
        (64 * MIB, 1, ""),
        (64 * MIB + 1, 8, ""),
    ],
)
def test_how_large_shared_memory_has_to_be(shm: int, slots: int, message: str) -> None:
    worker = w.plain(0)
    worker = replace(worker, host=replace(worker.host, slots=slots))
    assert problems(network(worker, shm=shm)) == ([("shm", message)] if message else [])


# Ports and links


@pytest.mark.parametrize(
    ("link", "port", "wrong"),
    [
        (1500, 1024, ""),
        (1500, 2048, "allows 1024"),
        (1500, 512, "allows 1024"),
        (4175, 2048, ""),
        (4176, 4096, ""),
        (4176, 2048, ""),  # drivers differ in what they count
        (4192, 4096, ""),
        (4192, 2048, "allows 4096"),
        (9000, 4096, ""),
        (300, 256, ""),
        (300, 512, "allows 256"),
        (1500, 0, ""),  # not known
    ],
)
def test_a_roce_ports_mtu_and_its_links(link: int, port: int, wrong: str) -> None:
    worker = w.sriov(0)
    assert worker.facts is not None
    links = tuple(replace(one, mtu=link) for one in worker.facts.links)
    device = worker.facts.fabric.devices[0]
    changed = replace(device, ports=(replace(device.ports[0], mtu=port),))
    fabric = replace(worker.facts.fabric, devices=(changed,))
    found = problems(network(worker, links=links, fabric=fabric))
    message = f"link net1 has MTU {link}, which {wrong} for RDMA, but port mlx5_3:1 uses {port}"
    check = "rdma-mtu" if wrong and port > int(wrong.split()[1]) else "rdma-mtu-low"
    assert found == ([(check, message)] if wrong else [])


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (PortState.ACTIVE, ""),
        (PortState.DOWN, "port mlx5_3:1 is DOWN, not ACTIVE"),
        (PortState(""), "port mlx5_3:1 is in an unknown state, not ACTIVE"),
        (
            PortState.INIT,
            "port mlx5_3:1 is INIT, not ACTIVE: the subnet manager has not brought it up",
        ),
        (
            PortState.ARMED,
            "port mlx5_3:1 is ARMED, not ACTIVE: the subnet manager has not brought it up",
        ),
    ],
)
def test_a_ports_state(state: PortState, message: str) -> None:
    worker = w.sriov(0)
    assert worker.facts is not None
    device = worker.facts.fabric.devices[0]
    changed = replace(device, ports=(replace(device.ports[0], state=state),))
    found = network(worker, fabric=replace(worker.facts.fabric, devices=(changed,)))
    assert problems(found) == ([("rdma-port", message)] if message else [])
    waits = state in (PortState.INIT, PortState.ARMED)
    pending = (f"port mlx5_3:1 is {state.value}, not yet ACTIVE",) if waits else ()
    assert found.pending == pending


@pytest.mark.parametrize("folder", [True, False])
def test_a_device_that_can_not_be_used(folder: bool) -> None:  # noqa: FBT001
    worker = w.sriov(0)
    assert worker.facts is not None
    device = replace(worker.facts.fabric.devices[0], open_error="Operation not permitted")
    fabric = replace(worker.facts.fabric, devices=(device,), infiniband_folder=folder)
    there = "" if folder else ", /dev/infiniband is not there"
    message = f"device mlx5_3 does not open (Operation not permitted{there})"
    assert problems(network(worker, fabric=fabric)) == [("rdma-node", message)]
    lacks = replace(worker.facts.fabric.devices[0], library_error="no driver for it")
    fabric = replace(fabric, devices=(lacks,))
    assert problems(network(worker, fabric=fabric)) == [
        ("rdma-library", "device mlx5_3: no driver for it")
    ]


@pytest.mark.parametrize(
    ("control", "data", "check"),
    [
        ("10.244.1.5/24", "10.244.1.9/24", "control-subnet"),
        ("10.244.1.5/24", "10.244.2.9/16", "control-subnet"),
        ("10.244.2.5/16", "10.244.1.9/24", "control-subnet"),
        ("10.244.1.5/24", "10.244.2.9/24", ""),
        ("10.244.1.5/32", "10.244.1.9/24", ""),  # its own address alone is no subnet
        ("10.244.1.5/24", "fd00::9/64", ""),
        ("fd00::5/64", "fd00::9/64", "control-subnet"),
    ],
)
def test_links_of_one_subnet(control: str, data: str, check: str) -> None:
    eth0, net1 = w.eth0(control), w.link("net1", data, index=21, kind="macvlan")
    worker = w.worker("w-0", eth0, net1, control=control.partition("/")[0])
    message = f"eth0 ({control}) and net1 ({data}) are in one subnet"
    assert problems(network(worker)) == ([(check, message)] if check else [])


def test_three_data_links_of_one_subnet_are_told_for_each_but_the_last() -> None:
    links = [w.link(f"net{n}", f"10.9.0.{n}/24", index=20 + n, kind="macvlan") for n in (1, 2, 3)]
    assert problems(network(w.worker("w-0", w.eth0(), *links))) == [
        ("data-subnet", "net1 (10.9.0.1/24) and net2 (10.9.0.2/24) are in one subnet"),
        ("data-subnet", "net2 (10.9.0.2/24) and net3 (10.9.0.3/24) are in one subnet"),
    ]


def test_a_worker_without_a_control_link() -> None:
    worker = w.worker("w-0", w.link("net1", "10.9.0.1/24", index=21, kind="macvlan"), control="")
    message = ("control-link", "no link of its own has the control address")
    assert problems(network(worker)) == [message]


def test_why_a_worker_has_no_rdma() -> None:
    crowd = w.macvlan(0).facts
    assert crowd is not None
    bare = w.plain(0)
    assert bare.facts is not None
    fabric = replace(bare.facts.fabric, devices=crowd.fabric.devices)
    message = "1 RDMA devices of the node are visible, none is this pod's"
    there = "; /dev/infiniband is not there"
    assert problems(network(bare, fabric=fabric), expected=True) == [
        ("rdma-missing", f"{message}{there}")
    ]
    assert problems(network(bare, fabric=fabric)) == []


# Values that the user has set


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE=1 keeps NCCL from mlx5_3:1, which could"),
        ({"NCCL_IB_DISABLE": " 1 "}, "NCCL_IB_DISABLE=1 keeps NCCL from mlx5_3:1, which could"),
        ({"NCCL_IB_DISABLE": "0"}, ""),
        ({"NCCL_IB_DISABLE": "Yes"}, "NCCL_IB_DISABLE=Yes has no effect: write 1"),
        ({"NCCL_IB_DISABLE": "on"}, "NCCL_IB_DISABLE=on has no effect: write 1"),
        ({"NCCL_IB_DISABLE": "true"}, "NCCL_IB_DISABLE=true has no effect: write 1"),
        (
            {"NCCL_IB_HCA": "=mlx5_9"},
            "NCCL_IB_HCA==mlx5_9 fits nothing here (there are mlx5_3)",
        ),
        ({"NCCL_IB_HCA": "mlx5"}, ""),
        ({"NCCL_SOCKET_IFNAME": "lo"}, ""),
        (
            {"NCCL_SOCKET_IFNAME": "^eth0,net1"},
            "NCCL_SOCKET_IFNAME=^eth0,net1 fits nothing here (there are lo, eth0, net1)",
        ),
    ],
)
def test_the_users_own_values(values: dict[str, str], message: str) -> None:
    own = network(w.sriov(0))
    (chosen,) = nccl.choose([(own.rails, ())], "2.28.9")
    own = replace(own, gids=chosen)
    found = cluster_view._user_values(own, values, values)
    assert [one.check for one in found] == (["nccl-value"] if message else [])
    assert all(one.message.startswith(message) for one in found)


# On the node's own network


def test_of_a_nodes_ports_those_that_can_carry_data_are_taken() -> None:
    """A node has ports that nobody plugged in, or may not open; InfiniBand needs no link."""
    worker = w.host_network(0)
    assert worker.facts is not None
    devices = list(worker.facts.fabric.devices)
    down = replace(devices[3].ports[0], state=PortState.DOWN)
    devices[3] = replace(devices[3], ports=(down,))
    devices[4] = replace(devices[4], open_error="Operation not permitted")
    fabric = replace(worker.facts.fabric, devices=tuple(devices))
    found = network(worker, fabric=fabric)
    assert [rail.device.name for rail in found.rails] == [f"mlx5_{n}" for n in (1, 2, 5, 6, 7, 8)]


def test_the_control_links_own_port_carries_no_data_on_the_nodes_network() -> None:
    node = w.ipoib(0)
    assert node.facts is not None
    ib0 = next(link for link in node.facts.links if link.name == "ib0")
    bridge = w.link("cni0", "10.244.9.1/24", index=60, kind="bridge")
    other = w.device("mlx5_7", w.port(layer="InfiniBand"), index=7, protocol="ib")
    devices = (*node.facts.fabric.devices, other)
    worker = w.worker("w-0", ib0, bridge, devices=devices, control="10.9.0.5")
    found = worker_network.choose(worker, DEFAULT)
    assert found.host_network
    assert [rail.name for rail in found.rails] == ["mlx5_7:1"]
