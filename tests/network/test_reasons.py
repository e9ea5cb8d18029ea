"""What is decided of the data network, each with its reason, as the plan shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.facts import NoFacts, Worker
from mpiboot.core.setting_types import DataNetworkUse, NcclSocket
from mpiboot.core.settings import Settings
from mpiboot.network import decision, worker_network
from mpiboot.network.decision import DataNetwork
from mpiboot.network.records import Transport
from tests.fakes import workers as w

DEFAULT = Settings(nccl_version="2.28.9")
STRICT = replace(DEFAULT, data_network=DataNetworkUse.REQUIRE)
SOCKETS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
REACHES = "the data link: every worker has an address there, and reaches the others"
ONLY_BOOTSTRAP = f"{REACHES}; only bootstrap with RDMA"
ALL = "; on all workers"
NO_RDMA = "no worker has a usable RDMA port"
KERNEL = "the kernel says that this port drives it"


def decide(
    workers: Sequence[Worker],
    settings: Settings = DEFAULT,
    taken: Mapping[str, str] | None = None,
    values: Mapping[str, str] | None = None,
) -> DataNetwork:
    networks = [worker_network.choose(one, settings) for one in workers]
    return decision.decide(networks, settings, taken or {}, values=values or {})


def shown(found: DataNetwork) -> list[str]:
    return [
        f"{item.name} = {item.value} [{item.source.value}] {item.reason}"
        for item in found.decisions
    ]


def message(found: DataNetwork) -> list[str]:
    return [
        f"{item.level.value} {item.check} {item.host or ','.join(item.hosts)}: {item.message}"
        for item in found.findings
    ]


def sockets(value: str, why: str) -> list[str]:
    nccl, *others = SOCKETS
    return [
        f"{nccl} = ={value} [detected] {why}",
        *(f"{name} = {value} [detected] {why}" for name in others),
    ]


def test_roce_that_is_required() -> None:
    found = decide([w.sriov(0), w.sriov(1, "mlx5_7")], STRICT)
    ports = "this worker's own ports: net1 mlx5_3:1; per worker"
    assert shown(found) == [
        "data-network = RoCE [detected] every worker has usable RoCE ports",
        f"rdma-port = mlx5_3:1 [detected] w-0: net1: {KERNEL}",
        "data-link = net1 [detected] the RDMA ports' own links",
        f"rdma-port = mlx5_7:1 [detected] w-1: net1: {KERNEL}",
        "NCCL_NET = IB [detected] RoCE is required: without it NCCL fails instead of using TCP"
        + ALL,
        f"UCX_NET_DEVICES = mlx5_3:1 (w-0), mlx5_7:1 (w-1) [detected] {ports}",
        f"NCCL_IB_HCA = =mlx5_3:1 (w-0), =mlx5_7:1 (w-1) [detected] {ports}",
        *sockets("net1", ONLY_BOOTSTRAP + ALL),
    ]
    assert message(found) == []
    assert found.transport is Transport.ROCE
    port = ("ACTIVE", "100", "1500/1024", "3")
    assert [row.cells for row in found.rows] == [
        ("w-0", "eth0 10.244.1.5", "net1 192.168.5.7", "mlx5_3:1", *port),
        ("w-1", "eth0 10.244.1.6", "net1 192.168.5.8", "mlx5_7:1", *port),
    ]


def test_eight_rails_stand_in_few_words() -> None:
    found = decide([w.rails8(0), w.rails8(1)])
    ports = "net1 mlx5_19:1, net2 mlx5_18:1, net3 mlx5_17:1, net4 mlx5_16:1 and 4 more"
    assert f"this worker's own ports: {ports}{ALL}" in shown(found)[-4]
    assert found.rows[1].cells == (
        "w-1",
        "eth0 10.244.1.6",
        "net1 172.16.1.11 .. net8 172.16.8.11 (8)",
        "mlx5_19:1 .. mlx5_12:1 (8)",
        "ACTIVE",
        "400",
        "9000/4096",
        "3",
    )


def test_an_index_that_nccl_and_ucx_would_not_take() -> None:
    found = decide([w.macvlan(0), w.macvlan(1)])
    by_gid = "net1: its address is in this port's GID table under its name"
    index = "index 9 holds this pod's address; NCCL 2.28.9 would take another"
    index += f"; UCX would take another than 9{ALL}"
    assert shown(found) == [
        "data-network = RoCE [detected] every worker has usable RoCE ports",
        f"rdma-port = mlx5_2:1 [detected] {by_gid}",
        "data-link = net1 [detected] the RDMA ports' own links",
        f"UCX_NET_DEVICES = mlx5_2:1 [detected] this worker's own ports: net1 mlx5_2:1{ALL}",
        f"NCCL_IB_HCA = =mlx5_2:1 [detected] this worker's own ports: net1 mlx5_2:1{ALL}",
        f"NCCL_IB_GID_INDEX = 9 [detected] {index}",
        f"UCX_IB_GID_INDEX = 9 [detected] {index}",
        *sockets("net1", ONLY_BOOTSTRAP + ALL),
    ]


def test_two_indexes_that_can_not_be_told() -> None:
    found = decide([w.macvlan(0, 2), w.macvlan(1, 2)])
    index = "index 9 holds this pod's address; NCCL 2.28.9 would take another"
    index += f"; UCX would take another than 9{ALL}"
    assert shown(found)[0] == "data-network = RoCE [detected] every worker has usable RoCE ports"
    assert shown(found)[4:] == [
        f"UCX_NET_DEVICES = mlx5_2:1 [detected] this worker's own ports: net1 mlx5_2:1{ALL}",
        f"NCCL_IB_HCA = =mlx5_2:1 [detected] this worker's own ports: net1 mlx5_2:1{ALL}",
        f"NCCL_IB_GID_INDEX = 9 [detected] {index}",
        f"UCX_IB_GID_INDEX = 9 [detected] {index}",
        *sockets("net1", ONLY_BOOTSTRAP + ALL),
    ]
    assert message(found) == [
        (
            "warn rdma-gid-index w-0,w-1: the ports need different GID indexes (mlx5_2:1 9, "
            f"mlx5_3:1 5), which {library} can't be told: no network holds their addresses alone; "
            "used: mlx5_2:1; left out: mlx5_3:1"
        )
        for library in ("NCCL 2.28.9", "UCX")
    ]
    assert {item.hint for item in found.findings} == {
        (
            "give the rails a network that the node's own addresses are not in; or keep to "
            "MPIBOOT_RDMA_DEVICE=mlx5_2:1"
        )
    }
    old = decide([w.macvlan(0, 2)], replace(DEFAULT, nccl_version="2.20.5"))
    assert "which NCCL 2.20.5 can't be told: it needs 2.21 or later; " in old.findings[0].message
    assert old.findings[0].hint.startswith("use NCCL 2.21 or later; or keep to ")


def test_a_port_that_is_not_active() -> None:
    found = decide([w.ipoib(0, "net1", 1), w.ipoib(1, "net1", 1, "INIT")])
    why = "w-1: no usable RDMA port, and all ranks need one transport"
    assert shown(found)[:3] == [
        f"data-network = TCP [detected] {why}",
        "rdma-port = mlx5_4:1 [detected] net1: its hardware address holds this port's GID",
        "data-link = net1 [detected] the RDMA ports' own links",
    ]
    assert f"NCCL_IB_DISABLE = 1 [detected] {why}{ALL}" in shown(found)
    down = "the subnet manager has not brought it up"
    assert message(found) == [
        f"warn rdma-port w-1: port mlx5_4:1 is INIT, not ACTIVE: {down}",
        f"warn rdma-differs : the data goes over TCP: {why}",
    ]
    assert [row.state for row in found.rows] == ["ACTIVE", "INIT"]
    assert [row.gid for row in found.rows] == ["", ""]


def test_partitions_that_differ_are_told() -> None:
    both = decide([w.ipoib(0, "net1", 1)])
    why = f"the data link is in partition 0x0001, entry 1{ALL}"
    assert f"UCX_IB_PKEY = 0x1 [detected] {why}" in shown(both)
    assert f"NCCL_IB_PKEY = 1 [detected] {why}" in shown(both)


def test_efa_on_every_worker_and_an_image_without_its_libraries() -> None:
    lacks = w.changed(w.efa(0), fabric={"missing": ("libfabric.so.1", "libnccl-net.so")})
    found = decide([lacks, w.efa(1)])
    assert [line for line in shown(found) if not line.startswith("rdma-port")] == [
        "data-network = EFA [detected] every worker has usable EFA ports",
        f"FI_PROVIDER = efa [detected] EFA devices open on every worker{ALL}",
        *sockets("eth0", f"the control link: no worker has a second link with an address{ALL}"),
    ]
    assert shown(found)[1] == (
        "rdma-port = rdmap16s27:1 [detected] EFA: it has no link, and its device node opens"
    )
    missing = "EFA devices, but in the image no libfabric.so.1"
    assert message(found) == [f"warn efa-library : w-0: {missing} and no libnccl-net.so"]
    # A plugin of the user's own stands for NCCL's part.
    own = decide([lacks], taken={"NCCL_NET_PLUGIN": "-x"}, values={"NCCL_NET_PLUGIN": "mine"})
    assert message(own) == [f"warn efa-library : w-0: {missing}"]


def test_efa_on_some_workers_alone() -> None:
    found = decide([w.efa(0), w.efa(1, "no device node")])
    why = "w-1: no usable RDMA port, and all ranks need one transport"
    assert shown(found)[5:8] == [
        "data-link =  [detected] w-1: no second link that TCP or RDMA could use",
        f"NCCL_NET = Socket [detected] {why}{ALL}",
        f"NCCL_IB_DISABLE = 1 [detected] {why}{ALL}",
    ]
    other = "w-1: no RDMA; the others (1): 4 EFA ports at 100 Gb/s"
    assert message(found) == [
        "warn rdma-missing w-1: 4 RDMA devices of the node are visible, none is this pod's",
        f"warn rdma-differs w-1: RDMA devices differ: {other}",
        f"warn rdma-differs : the data goes over TCP: {why}",
    ]


def test_two_kinds_of_rdma() -> None:
    found = decide([w.sriov(0), w.aks(1)])
    why = "the workers have RDMA of different kinds, which can't talk to each other"
    assert f"NCCL_IB_DISABLE = 1 [detected] {why}{ALL}" in shown(found)
    assert f"warn rdma-differs : the data goes over TCP: {why}" in message(found)


def test_workers_without_rdma_and_without_facts() -> None:
    found = decide([w.sriov(0), w.plain(1), w.without_facts("w-2")])
    why = "w-1: no usable RDMA port, and all ranks need one transport"
    control = "the control link: not every worker's facts are known; per worker"
    assert shown(found)[:6] == [
        f"data-network = TCP [detected] {why}",
        f"rdma-port = mlx5_3:1 [detected] w-0: net1: {KERNEL}",
        "data-link = net1 [detected] w-0: the RDMA ports' own links",
        "data-link =  [detected] w-1: no second link that TCP or RDMA could use",
        f"NCCL_IB_DISABLE = 1 [detected] {why}{ALL}",
        f"NCCL_SOCKET_IFNAME = =eth0 (w-0, w-1) [detected] {control}",
    ]
    other = "w-1: no RDMA; the others (1): 1 RoCE port at 100 Gb/s"
    assert message(found) == [
        "warn rdma-missing w-1: no RDMA device: the kernel has no RDMA",
        "warn data-facts w-2: it does not run mpiboot, so its data network is not known",
        f"warn rdma-differs w-1: RDMA devices differ: {other}",
        f"warn rdma-differs : the data goes over TCP: {why}",
    ]
    assert found.rows[2].cells == (
        "w-2",
        "",
        "not known: the worker does not run mpiboot",
        *("",) * 5,
    )
    # What to do stands in each problem's row.
    assert [item.hint for item in found.findings] == [
        BY_REFERENCE[item.check].hint for item in found.findings
    ]
    nobody = decide([w.without_facts("w-0")])
    assert shown(nobody)[0] == "data-network = none [detected] no worker's facts are known"
    assert nobody.common == {}
    newer = replace(w.without_facts("w-0"), no_facts=NoFacts.UNREADABLE)
    (told,) = decide([newer]).findings
    assert told.hint == "use one version of mpiboot in all images"


def test_devices_that_nobody_gave_to_the_pod() -> None:
    lonely = w.changed(w.plain(0), fabric={"devices": w.macvlan().facts.fabric.devices})  # type: ignore[union-attr]
    found = decide([lonely])
    seen = "w-0: only devices of the node are seen, and none belongs to the pod"
    assert shown(found)[0] == f"data-network = none [detected] {NO_RDMA}; {seen}"


def test_what_the_user_has_set() -> None:
    settings = replace(DEFAULT, nccl_socket=NcclSocket.CONTROL, data_ifname=("net1", "no"))
    taken = {"NCCL_SOCKET_IFNAME": "-x", "NCCL_IB_HCA": "the environment"}
    found = decide([w.sriov(0), w.sriov(1)], settings, taken, {"NCCL_SOCKET_IFNAME": "eth7"})
    assert shown(found)[2:] == [
        "data-link = net1 [environment] MPIBOOT_DATA_IFNAME",
        f"UCX_NET_DEVICES = mlx5_3:1 [detected] this worker's own ports: net1 mlx5_3:1{ALL}",
        f"GLOO_SOCKET_IFNAME = eth0 [detected] MPIBOOT_NCCL_SOCKET=control{ALL}",
        f"TP_SOCKET_IFNAME = eth0 [detected] MPIBOOT_NCCL_SOCKET=control{ALL}",
        "NCCL_IB_HCA = (the user's own) [environment] the environment; on w-0, w-1",
        "NCCL_SOCKET_IFNAME = eth7 [environment] -x; on w-0, w-1",
    ]
    there = "(there are lo, eth0, net1)"
    assert message(found) == [
        "warn data-link w-0,w-1: MPIBOOT_DATA_IFNAME: no link no",
        f"warn nccl-value w-0,w-1: NCCL_SOCKET_IFNAME=eth7 fits nothing here {there}",
    ]
    device = decide([w.sriov(0)], replace(DEFAULT, rdma_device=("mlx5_3", "no")))
    assert f"rdma-port = mlx5_3:1 [environment] net1: MPIBOOT_RDMA_DEVICE; {KERNEL}" in (
        shown(device)
    )
    assert message(device) == ["warn rdma-device w-0: MPIBOOT_RDMA_DEVICE: no device no"]
    nothing = decide([w.sriov(0)], replace(DEFAULT, rdma_device=("no",), data_ifname=("no",)))
    assert {"fail rdma-device", "fail data-link"} <= {
        line.partition(" w-0")[0] for line in message(nothing)
    }


def test_a_plugin_of_the_users_own() -> None:
    found = decide([w.sriov(0)], taken={"NCCL_NET_PLUGIN": "-x"})
    left = "NCCL_NET_PLUGIN is set, so NCCL's own variables are left as they are"
    assert shown(found)[0] == (
        f"data-network = RoCE [detected] every worker has usable RoCE ports; {left}"
    )


def test_a_network_that_is_left_out_or_that_nobody_has() -> None:
    off = decide([w.sriov(0)], replace(DEFAULT, data_network=DataNetworkUse.OFF))
    assert shown(off) == [
        "data-network = off [environment] MPIBOOT_DATA_NETWORK=off: nothing is set"
    ]
    assert off.transport is None
    none = decide([])
    assert shown(none) == [
        "data-network = unknown [detected] no worker was reached: nothing is set"
    ]
    assert none.transport is Transport.UNKNOWN
