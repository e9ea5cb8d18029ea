"""Nodes as they are, as facts, and what each makes of the data network: ``tests/data/networks``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mpiboot.core.facts import Gid, GidType, Gpus, MpiParameter, PortState, RdmaDevice, Worker
from mpiboot.core.model import Identity
from mpiboot.core.settings import resolve
from mpiboot.network import cluster_view
from mpiboot.network.decision import DataNetwork
from tests.fakes import networks
from tests.fakes import workers as w
from tests.fakes.workers import facts_of

USER: Final = Identity(1000, 1000, "me", "/home/me", "/bin/sh", known=True, capabilities=0)
MIB: Final = 1 << 20


@dataclass(frozen=True)
class Case:
    """Workers; the user's settings, and values for all ranks; where TCP does not pass."""

    workers: Sequence[Worker]
    settings: Mapping[str, str]
    taken: Mapping[str, str | None]
    blocked: str


def both(*made: Worker) -> tuple[Worker, ...]:
    """The same node twice, under two names and addresses of its control link."""
    return tuple(replace(one, host=replace(one.host, name=f"w-{n}")) for n, one in enumerate(made))


def bond(place: int = 0) -> Worker:
    """RoCE on the only NIC, a bond, with the node's own network."""
    address = f"10.0.0.{5 + place}"
    own = w.link("bond0", f"{address}/24", index=4, kind="bond")
    veths = [w.link(f"cali{n}", index=50 + n, kind="veth") for n in range(5)]
    port = w.port(w.table("bond0", address), netdev="bond0")
    return w.worker(f"w-{place}", own, *veths, devices=(w.device("mlx5_3", port),), control=address)


def vf_as_eth0(place: int = 0) -> Worker:
    address = f"10.0.0.{5 + place}"
    port = w.port(w.table("eth0", address), netdev="eth0")
    eth0 = w.link("eth0", f"{address}/24", index=2)
    return w.worker(f"w-{place}", eth0, devices=(w.device("mlx5_5", port),))


def beside(one: Worker, *devices: RdmaDevice) -> Worker:
    """That pod, which sees these devices, too."""
    return w.changed(one, fabric={"devices": (*facts_of(one).fabric.devices, *devices)})


def infiniband(place: int = 0) -> Worker:
    """Eight HCAs, the first of them with an IPoIB link."""
    made = w.ipoib(place)
    first = replace(facts_of(made).fabric.devices[1], name="mlx5_0")
    others = (w.device(f"mlx5_{n}", w.port(layer="InfiniBand")) for n in range(1, 8))
    return w.changed(made, fabric={"devices": (first, *others)})


def blind(one: Worker) -> Worker:
    """Netlink is refused: sysfs alone has the devices, and no port has a link of this pod."""
    devices = tuple(
        replace(device, ports=tuple(replace(port, netdev="") for port in device.ports))
        for device in facts_of(one).fabric.devices
    )
    return w.changed(one, fabric={"devices": devices, "refused": "Operation not permitted"})


def without_table(one: Worker) -> Worker:
    return w.with_device(one, port={"gids": (), "netdev": ""})


def foreign(place: int = 0) -> Worker:
    """A privileged pod: the node's RoCE ports open, and none has an address of the pod."""
    ports = [w.port(w.table(f"pf{n}", f"10.{n}.0.1")) for n in range(2)]
    devices = tuple(w.device(f"mlx5_{n}", port) for n, port in enumerate(ports))
    return w.worker(f"w-{place}", w.eth0(f"10.244.1.{5 + place}/24"), devices=devices)


def down(one: Worker) -> Worker:
    return w.with_device(one, port={"state": PortState.DOWN})


def rails(place: int, *, without: int = 0) -> Worker:
    """Eight VFs, the last ones of which are not given to this pod."""
    made = w.rails8(place)
    devices = facts_of(made).fabric.devices[: 8 - without]
    return w.changed(made, links=facts_of(made).links[: 10 - without], fabric={"devices": devices})


def shared_rail(place: int) -> Worker:
    """A VF of the pod's own beside a VF of another pod that opens as well."""
    return beside(w.sriov(place), w.device("mlx5_9", w.port(w.table("net1", "192.168.5.99"))))


def own(one: Worker, **settings: str) -> Worker:
    """Variables of that pod."""
    return w.changed(one, environment=tuple(settings), fabric={"settings": tuple(settings.items())})


def conf(one: Worker, **settings: str) -> Worker:
    """NCCL's own file in that pod."""
    files = tuple(MpiParameter(*item, "/etc/nccl.conf") for item in settings.items())
    return w.changed(one, fabric={"nccl_files": files})


def loads(one: Worker, plugin: str) -> Worker:
    return w.changed(one, fabric={"plugin": plugin})


def gpus(one: Worker, count: int = 8) -> Worker:
    return w.changed(one, gpus=Gpus(count))


def net1(*addresses: str, **more: object) -> Worker:
    """A pod with a macvlan as its second link."""
    return w.with_links(w.tcp(0), "net1", addresses=addresses, **more)


def over(*gids: Gid, netdev: str = "", open_error: str = "") -> Worker:
    """A pod whose net1 (10.5.0.2) is over a device with that table."""
    device = w.device("mlx5_1", w.port(gids, netdev=netdev), open_error=open_error)
    link = w.link("net1", "10.5.0.2/24", kind="macvlan")
    return w.worker("w-0", w.eth0(), link, devices=(device,))


def links(*made: tuple[str, str, str], control: str = "") -> Worker:
    """A pod with these links: name, address, kind."""
    found = (w.link(name, address, kind=kind) for name, address, kind in made)
    return w.worker("w-0", *found, control=control)


def node(*broken: int) -> Worker:
    """The node's network, where a port is down, another one does not open, a link is unplugged."""
    worker = w.with_links(w.host_network(0), "rail1", carrier=False) if broken else w.host_network()
    devices = [*facts_of(worker).fabric.devices]
    for at in broken[:1]:
        ports = (replace(devices[at].ports[0], state=PortState.DOWN),)
        devices[at] = replace(devices[at], ports=ports)
    for at in broken[1:]:
        devices[at] = replace(devices[at], open_error="Operation not permitted")
    return w.changed(worker, fabric={"devices": tuple(devices)})


def two_partitions() -> Worker:
    hardware = "00:00:00:11:fe:80:00:00:00:00:00:00:00:10:00:e0:00:00:00:77"
    link = w.link("net2", "10.8.0.5/24", index=26, kind="ipoib", pkey=0xFFFF, hardware=hardware)
    entry = Gid(0, "fe80:0:0:0:10:e0:0:77", GidType.ROCE_V1, "")
    worker = beside(
        w.ipoib(0, "net1", pkey=1), w.device("mlx5_9", w.port((entry,), layer="InfiniBand"))
    )
    return w.changed(worker, links=(*facts_of(worker).links, link))


def both_layers(state: str = "ACTIVE") -> Worker:
    ib, roce = facts_of(w.ipoib(state=state)), facts_of(w.sriov())
    devices = ib.fabric.devices + roce.fabric.devices
    return w.worker("w-0", *ib.links[1:], roce.links[2], devices=devices)


def vlan() -> Worker:
    """A VLAN whose port below it is this pod's, too."""
    gids = (*w.table("net1"), w.gid(9, "10.7.0.2", "net1.100"))
    above = w.link("net1.100", "10.7.0.2/24", index=21, kind="vlan")
    device = w.device("mlx5_5", w.port(gids, netdev="net1"))
    return w.worker("w-0", w.eth0(), w.link("net1", index=20), above, devices=(device,))


def ib_control() -> Worker:
    """The node's network, where the control link is InfiniBand's, beside another port of it."""
    made = facts_of(w.ipoib(0))
    bridge = w.link("cni0", "10.244.9.1/24", index=60, kind="bridge")
    devices = (*made.fabric.devices, w.device("mlx5_7", w.port(layer="InfiniBand")))
    return w.worker("w-0", made.links[2], bridge, devices=devices, control="10.9.0.5")


def given(functions: int, devices: int = 4) -> Worker:
    """InfiniBand devices, of which the device plugin gave some functions."""
    port, places = w.port(layer="InfiniBand"), range(devices)
    made = tuple(w.device(f"mlx5_{n}", port, pci=f"0000:0{n}:00.1") for n in places)
    return w.worker("w-0", w.eth0(), devices=made, functions=(f"0000:0{functions}:00.1",))


def twin() -> Worker:
    """Another pod with the data address of the first VF."""
    other = w.with_links(w.sriov(1), "net1", addresses=("192.168.5.7/24",))
    return w.changed(other, fabric={"devices": facts_of(w.sriov(0)).fabric.devices})


def slots(one: Worker, count: int) -> Worker:
    return replace(one, host=replace(one.host, slots=count))


def case(
    *workers: Worker,
    taken: Mapping[str, str | None] | None = None,
    blocked: str = "",
    nccl: str = "2.28.9",
    **settings: Any,  # noqa: ANN401 - some are spread from a mapping
) -> Case:
    return Case(workers, {**settings, "nccl_version": nccl}, taken or {}, blocked)


REQUIRE: Final[dict[str, Any]] = {"data_network": "require"}
DATA: Final[dict[str, Any]] = {"mpi_network": "data"}
BLOCKED: Final = "w-0 can't reach w-1 (192.168.5.8 port 40009): no answer in 2 s, twice"
TABLE: Final = w.table("net1", "10.5.0.2")
SECOND: Final = w.device("mlx5_2", w.port(TABLE))
DARK: Final = {"carrier": False}
NAMED: Final[dict[str, Any]] = {"data_ifname": "net1"}
SRIOV: Final = (w.sriov(0), w.sriov(1))
TWO: Final = (w.tcp(0), w.tcp(1))
OTHER_NAMES: Final = (w.tcp(0), w.tcp(1, "dra0"))
FLAT: Final = [("eth0", "10.244.1.5/24", "veth"), ("net1", "10.9.0.1/24", "macvlan")]
IN_SUBNET: Final = ("net1", "10.244.1.9/24", "macvlan")
MIXED: Final = (w.sriov(0), w.plain(1))
HCA: Final = "NCCL_IB_HCA"

CASES: Final[Mapping[str, Mapping[str, Case]]] = {
    "nodes": {
        # On the first of these NCCL had less with mpiboot in front of it.
        "a bond as the only NIC": case(bond(0), bond(1)),
        "a bond as the only NIC, named": case(bond(0), bond(1), rdma_device="mlx5_3"),
        "a VF as eth0": case(vf_as_eth0(0), vf_as_eth0(1)),
        "eight InfiniBand HCAs, one IPoIB link": case(infiniband(0), infiniband(1)),
        "no RDMA": case(w.plain(0), w.plain(1)),
        "no RDMA, a second link": case(*TWO),
        "EFA": case(w.efa(0), w.efa(1)),
        "one VF": case(*SRIOV),
        "one VF, an old NCCL": case(*SRIOV, nccl="2.18.3"),
        "one VF, an NCCL of unknown version": case(*SRIOV[:1], nccl=""),
        "one VF beside another pod's that opens": case(shared_rail(0), shared_rail(1)),
        "eight rails": case(rails(0), rails(1), rails(2), **REQUIRE),
        "one rail fewer on a worker": case(rails(0), rails(1, without=1)),
        "one rail down": case(down(rails(0)), rails(1)),
        "a rail without an address": case(w.with_links(w.rails8(0), "net3", addresses=())),
        "the node's network, a slower control NIC": case(w.host_network(0), w.host_network(1)),
        "the node's network, a control NIC as fast as the others": case(
            w.with_device(w.host_network(0), port={"rate": 100.0})
        ),
        "the node's network, some ports of which can't be used": case(node(3, 4)),
        "the node's network, a link of which is named": case(node(3, 4), data_ifname="rail1"),
        "the node's network without RDMA": case(w.changed(node(), fabric={"devices": ()})),
        "the node's network with InfiniBand": case(ib_control()),
        "InfiniBand from a shared plugin, an Ethernet device beside it": case(w.aks(0), w.aks(1)),
        "devices of many are named": case(w.rails8(0), rdma_device="mlx5_12,mlx5_14:1"),
        "an IPoIB link of a partition": case(w.ipoib(0, "net1", pkey=1)),
        "IPoIB links of two partitions": case(two_partitions()),
        "both link layers": case(both_layers()),
        "InfiniBand that is down, beside RoCE": case(both_layers("DOWN")),
        "macvlans over a shared device": case(w.macvlan(0), w.macvlan(1)),
        "macvlans over two shared devices, whose indexes differ": case(w.macvlan(0, 2)),
        "IPv6 alone on the data link": case(w.one_v6(0), w.one_v6(1)),
        "a VLAN, the port below which is here": case(vlan()),
        "functions that the device plugin gave": case(given(2)),
        "a function without RDMA": case(given(2, 0)),
        "another pod's entry under the same link name": case(over(*w.table("net1", "10.5.0.9"))),
        "two devices that can't be told apart": case(beside(over(*TABLE), SECOND)),
        "two devices, of which one opens": case(beside(over(*TABLE, open_error="EPERM"), SECOND)),
        "records that can't be read": case(
            w.with_links(over(Gid(0, "?", GidType.ROCE_V2, "net1"), netdev="net1"), hardware="z:")
        ),
        "tunnels, bridges and link-local links": case(
            links(
                ("eth0", "10.244.1.5/24", "veth"),
                ("tunl0", "10.3.0.1/24", "ipip"),
                ("id0", "169.254.170.23/32", "dummy"),
                ("eth9", "169.254.1.1/16", "veth"),
            )
        ),
        "two links for TCP": case(links(*FLAT[:1], ("b", "10.5.0.2/24", "veth"), FLAT[1])),
        "a control link that is named": case(links(*FLAT), control_ifname="net1"),
        "a control link that is named and not there": case(links(*FLAT), control_ifname="x"),
        "no control link": case(links(FLAT[1])),
        "links that are named": case(
            links(*FLAT, ("a", "10.1.0.1/24", "veth")), data_ifname="a,net1,a"
        ),
    },
    "states": {
        "one worker without RDMA": case(*SRIOV, w.plain(2)),
        "one worker whose device does not open": case(
            w.sriov(0), w.with_device(w.sriov(1), open_error="EPERM")
        ),
        "one worker without a driver": case(
            w.sriov(0), w.with_device(w.sriov(1), library_error="no driver for it")
        ),
        "one worker that is unknown": case(*SRIOV, w.without_facts("w-2")),
        "one worker that could not be asked": case(*SRIOV, blind(without_table(w.sriov(2)))),
        "all unknown": case(w.without_facts("w-0"), w.without_facts("w-1")),
        "no worker": case(),
        "RoCE and InfiniBand": case(w.sriov(0), w.aks(1)),
        "EFA on one of two workers": case(w.efa(0), w.efa(1, "no device node")),
        "the node's RoCE ports in privileged pods": case(foreign(0), foreign(1)),
        "netlink refused, the pod's address in the port's table": case(blind(w.sriov(0))),
        "a device whose table can't be read": case(without_table(w.sriov(0))),
        **{
            f"a port that is {state.value or 'of no state'}": case(
                w.with_device(w.sriov(0), port={"state": state})
            )
            for state in (PortState.DOWN, PortState(""), PortState.INIT, PortState.ARMED)
        },
        "a link without carrier": case(w.with_links(w.sriov(0), "net1", **DARK)),
        "a table without our entry": case(over(*TABLE[:3], netdev="net1")),
        "a second link that is down": case(net1("10.5.0.2/24", up=False, **DARK)),
        "an address that is awaited": case(w.with_links(w.macvlan(0), "net1", addresses=())),
        "an address over a device that does not open": case(
            w.with_links(over(open_error="no node"), "net1", addresses=())
        ),
        "an address that is awaited, off": case(
            w.with_links(w.macvlan(0), "net1", addresses=()), data_network="off"
        ),
        "an entry that is awaited": case(over(*w.table("net1"), netdev="net1")),
        "an address that may be a duplicate": case(
            net1("fd00:7::5/64", tentative=("fd00:7::5/64",))
        ),
        "an address that is a duplicate": case(net1("fd00:7::5/64", duplicate=("fd00:7::5/64",))),
    },
    "addresses": {
        "two pods with one MAC": case(
            *(w.with_links(one, "net1", hardware="02:00:00:00:00:01") for one in TWO)
        ),
        "two ipvlans with one MAC": case(
            *(w.with_links(one, "net1", hardware="02:00:00:00:00:01", kind="ipvlan") for one in TWO)
        ),
        # A GID of RoCE is such an address; what two pods on one node's network have is one link.
        "two pods with one RoCE address": case(w.sriov(0), twin()),
        "two pods on one node": case(*both(w.host_network(0), w.host_network(0))),
        "control and data in one subnet": case(links(FLAT[0], IN_SUBNET)),
        "a control address without a subnet": case(
            links(("eth0", "10.244.1.5/32", "veth"), IN_SUBNET)
        ),
        "three data links of one subnet": case(
            links(*FLAT, ("net2", "10.9.0.2/24", "macvlan"), ("net3", "10.9.0.3/24", "macvlan")),
            **REQUIRE,
            data_ifname="net1,net2,net3",
        ),
    },
    "limits": {
        **{
            f"{memlock} bytes of locked memory, uid {who.uid}, {who.capabilities:x}": case(
                w.changed(w.sriov(0), memlock=memlock, identity=who)
            )
            for memlock, who in (
                (256 * MIB, USER),
                (255 * MIB, USER),
                (65536, replace(USER, uid=0)),
                (0, replace(USER, capabilities=1 << 14)),
                (0, replace(USER, capabilities=1 << 13 | 1 << 15, uid=0)),
                (65536, replace(w.ROOT, own_users=True)),
            )
        },
        "little locked memory without RDMA": case(w.changed(w.plain(0), memlock=0, identity=USER)),
        **{
            f"{shm} bytes of shared memory, {count} ranks": case(
                slots(w.changed(w.plain(0), shm=shm), count)
            )
            for shm, count in ((0, 8), (1, 8), (64 * MIB, 2), (64 * MIB, 1), (64 * MIB + 1, 8))
        },
        "other GPUs": case(gpus(w.plain(0)), gpus(w.plain(1), 7)),
        "another MTU": case(*TWO, w.with_links(w.tcp(2), "net1", mtu=9000)),
        "another MTU, where RDMA differs": case(w.sriov(0), w.with_links(w.plain(1), mtu=9000)),
        "another IP version": case(w.sriov(0), w.one_v6(1)),
    },
    "settings": {
        "required": case(*SRIOV, **REQUIRE),
        "required, only the node's RoCE ports": case(foreign(0), **REQUIRE),
        "required, another kind": case(w.sriov(0), w.ipoib(1), **REQUIRE),
        "off": case(*SRIOV, data_network="off"),
        "netlink is refused": case(
            w.changed(w.plain(0), links=(), fabric={"refused": "EPERM"}),
            data_ifname="net1",
            rdma_device="mlx5_0",
            taken={"NCCL_SOCKET_IFNAME": "eth0"},
        ),
        "off, a worker that is unknown": case(*SRIOV, w.without_facts("w-2"), data_network="off"),
        "report": case(*SRIOV, data_network="report"),
        "sockets on a data link that is not there": case(w.plain(0), nccl_socket="data"),
        "TCP does not pass": case(*SRIOV, blocked=BLOCKED),
        "TCP does not pass, MPI on data": case(*TWO, blocked=BLOCKED, **DATA),
        "TCP does not pass, sockets on control": case(*TWO, blocked=BLOCKED, nccl_socket="control"),
        "a link is named": case(*OTHER_NAMES, **REQUIRE, **NAMED),
        "a link is named that no worker has": case(w.plain(0), w.plain(1), **NAMED),
        "links are named, of which each worker has one": case(
            *OTHER_NAMES, data_ifname="net1,dra0"
        ),
        "a device is named that is not there": case(*SRIOV, rdma_device="mlx5_77"),
        "a device is named without a link": case(foreign(0), rdma_device="mlx5_1"),
        "MPI on data": case(*TWO, **DATA),
        "MPI on data, RoCE": case(*SRIOV, **DATA),
        "MPI on data, EFA": case(w.efa(0), **DATA),
        "MPI on data, other names": case(*OTHER_NAMES, **DATA),
        "MPI on data, no second link": case(w.plain(0), **DATA),
        "GPUs": case(gpus(w.sriov(0)), w.sriov(1)),
        "GPUs, an unknown worker": case(gpus(w.sriov(0)), w.without_facts("w-1")),
    },
    "users": {
        "sockets of a pod": case(own(w.plain(0), NCCL_NET="Socket"), w.plain(1)),
        # What the recipes have chooses nothing.
        "the recipe's values": case(
            *MIXED, taken={"NCCL_IB_DISABLE": "0", "NCCL_NET_PLUGIN": "none"}
        ),
        "NCCL_IB_DISABLE=1": case(*SRIOV, taken={"NCCL_IB_DISABLE": "1"}),
        "NCCL_IB_DISABLE=1, required": case(*SRIOV, taken={"NCCL_IB_DISABLE": "1"}, **REQUIRE),
        "NCCL_IB_DISABLE=1, no port": case(w.tcp(0), w.efa(1), taken={"NCCL_IB_DISABLE": "1"}),
        "a RoCE version": case(w.macvlan(0), taken={"NCCL_IB_ROCE_VERSION_NUM": "1"}),
        "UCX's transports": case(w.macvlan(0), taken={"UCX_TLS": "tcp"}),
        "UCX's devices of a pod": case(
            w.sriov(0), w.changed(w.sriov(1), environment=("UCX_NET_DEVICES",))
        ),
        "a plugin": case(shared_rail(0), taken={"NCCL_NET_PLUGIN": "mine"}),
        "a plugin that NCCL loads": case(loads(shared_rail(0), "AWS Libfabric"), shared_rail(1)),
        "HPC-X's plugin": case(loads(shared_rail(0), "NCCL RDMA Plugin v8")),
        "a plugin that is kept from being loaded": case(
            loads(shared_rail(0), "AWS Libfabric"), taken={"NCCL_NET_PLUGIN": "none"}
        ),
        "gIB": case(loads(w.sriov(0), "gIB")),
        "TCPXO": case(own(w.sriov(0), NCCL_FASTRAK_IFNAME="eth1")),
        "EFA without what uses it": case(
            w.efa(0), w.changed(w.efa(1), fabric={"missing": ("libfabric.so.1", "libnccl-net.so")})
        ),
        "EFA without what uses it, required": case(
            w.changed(w.efa(0), fabric={"missing": ("libfabric.so.1",)}), **REQUIRE
        ),
        "EFA with a plugin of the user's": case(
            w.changed(w.efa(0), fabric={"missing": ("libnccl-net.so",)}),
            w.plain(1),
            taken={"NCCL_NET_PLUGIN": "ofi"},
        ),
        "a site's HCAs": case(conf(shared_rail(0), NCCL_IB_HCA="mlx5_3"), shared_rail(1)),
        "a wrong GID index in nccl.conf": case(conf(w.macvlan(0), NCCL_IB_GID_INDEX="3")),
        **{
            f"{name} {value[:20]!r}": case(w.sriov(0), taken={name: value})
            for name, values in {
                "NCCL_IB_GID_INDEX": ("5", "2", "0", "9" * 5000, "3", "-1", ""),
                "UCX_IB_GID_INDEX": ("2", "3"),
                HCA: ("=mlx5_9", "mlx5"),
                "NCCL_SOCKET_IFNAME": ("=lo", "=eth0", "eth7, net9", "^eth,net,lo", "^eth0,net1"),
            }.items()
            for value in values
        },
        **{
            f"{name} {value!r} over InfiniBand": case(
                w.ipoib(0, "net1", pkey=1), taken={name: value}
            )
            for name, values in {
                "NCCL_IB_PKEY": ("2", "32769", "1", "0", "x"),
                "UCX_IB_PKEY": ("0x2", "0x8001", "0x0001", "0x7fff", "auto"),
            }.items()
            for value in values
        },
        "that, and one for all": case(
            own(w.sriov(1), NCCL_IB_HCA="=mlx5_77"), taken={HCA: "=mlx5_3"}
        ),
    },
}


def decided(made: Case, **more: str) -> DataNetwork:
    """The data network of a case, with other settings."""
    settings = resolve({**made.settings, **more}, {}).settings
    values = {name: value for name, value in made.taken.items() if value is not None}
    taken = dict.fromkeys(made.taken, "-x")
    return networks.decide(made.workers, settings, taken, values, blocked=made.blocked)


def text(name: str, made: Case) -> str:
    """What a case makes of the data network, a thing a line."""
    found = decided(made)
    lines = [f"# {name}"]
    for one in found.networks:
        row = " | ".join(filter(None, cluster_view.row(one)[1:]))
        lines.append(f"{one.host}: RDMA {one.rdma.value}, {one.transport.value}: {row}")
        data = ",".join(link.name for link in one.data)
        lines.append(
            f"  links {one.control and one.control.name}; {data}{' node' * one.host_network}"
        )
        lines += [f"  {rail.name}: {rail.source.value}: {rail.reason}" for rail in one.rails]
        lines += [f"  pending: {what}" for what in one.pending]
        if one.foreign:
            lines.append(f"  foreign: {' '.join(one.foreign)}")
    for host, mine in {"all": found.common, **found.per_host}.items():
        shown = [f"{key}={value[:200]}" for key, value in sorted(mine.items())]
        lines += [f"{host} gets {' '.join(shown)}"] * bool(shown)
    lines.append(f"MPI on {found.mpi[0].value}: {found.mpi[1]}")
    for item in found.decisions:
        lines.append(f"{item.name} = {item.value[:200]} ({item.source.value}: {item.reason})")
    for problem in found.findings:
        what = f"{problem.check}: {problem.where}: {problem.message[:300]} -> {problem.hint}"
        lines.append(f"{problem.level.value} {what}")
    return "".join(f"{line}\n" for line in lines)


def files() -> dict[str, str]:
    """The text of every group, by its path below ``tests/data/networks``."""
    return {
        f"{group}.txt": "\n".join(text(name, one) for name, one in cases.items())
        for group, cases in CASES.items()
    }
