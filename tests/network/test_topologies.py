"""What comes out for nodes as they are, as facts: never less than NCCL would have had by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import pytest

from mpiboot.core.facts import Gid, GidType, Gpus, MpiParameter, PortState, Worker
from mpiboot.core.setting_types import DataNetworkUse, MpiNetwork
from mpiboot.core.settings import Settings
from mpiboot.network import decision, worker_network
from mpiboot.network.records import RdmaState
from tests.fakes import networks
from tests.fakes import workers as w

KNOWN, NONE, UNKNOWN = RdmaState.KNOWN, RdmaState.NONE, RdmaState.UNKNOWN
SOCKETS: Final = {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}
EIGHT: Final = ",".join(f"mlx5_{n}:1" for n in range(8))
RAILS: Final = ",".join(f"mlx5_{20 - rail}:1" for rail in range(1, 9))


@dataclass(frozen=True)
class Case:
    """Workers; what is known of each one's RDMA, and the variables that all get but the sockets'.

    `sockets` is the link of NCCL's sockets; `own` are variables of single workers; `checks` are
    the findings' references.
    """

    workers: tuple[Worker, ...]
    states: tuple[RdmaState, ...]
    common: Mapping[str, str]
    sockets: str = "eth0"
    own: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    nccl: str = "2.28.9"
    device: tuple[str, ...] = ()
    taken: Mapping[str, str] = field(default_factory=dict)
    required: bool = False


def both(*made: Worker) -> tuple[Worker, ...]:
    """The same node twice, under two names and addresses of its control link."""
    return tuple(replace(one, host=replace(one.host, name=f"w-{n}")) for n, one in enumerate(made))


def bond(place: int = 0, rate: float = 100.0) -> Worker:
    """RoCE on the only NIC, a bond, with the node's own network."""
    address = f"10.0.0.{5 + place}"
    own = w.link("bond0", f"{address}/24", index=4, kind="bond")
    veths = [w.link(f"cali{n}", index=50 + n, kind="veth") for n in range(5)]
    port = w.port(w.table("bond0", address), netdev="bond0", rate=rate)
    return w.worker(f"w-{place}", own, *veths, devices=(w.device("mlx5_3", port),), control=address)


def vf_as_eth0(place: int = 0) -> Worker:
    address = f"10.0.0.{5 + place}"
    port = w.port(w.table("eth0", address), netdev="eth0")
    eth0 = w.link("eth0", f"{address}/24", index=2)
    return w.worker(f"w-{place}", eth0, devices=(w.device("mlx5_5", port),))


def infiniband(place: int = 0, *, ipoib: bool = True) -> Worker:
    """Eight HCAs, the first of them with an IPoIB link."""
    made = w.ipoib(place)
    assert made.facts is not None
    first = made.facts.fabric.devices[1]
    others = [w.device(f"mlx5_{n}", w.port(layer="InfiniBand")) for n in range(1, 8)]
    devices = (replace(first, name="mlx5_0"), *others)
    links = made.facts.links if ipoib else made.facts.links[:2]
    return w.changed(made, links=links, fabric={"devices": devices})


def blind(one: Worker) -> Worker:
    """Netlink is refused: sysfs alone has the devices, and no port has a link of this pod."""
    assert one.facts is not None
    devices = tuple(
        replace(device, ports=tuple(replace(port, netdev="") for port in device.ports))
        for device in one.facts.fabric.devices
    )
    seen = {"devices": devices, "refused": "Operation not permitted"}
    return w.changed(one, fabric=seen)


def without_table(one: Worker) -> Worker:
    return w.with_device(one, port={"gids": (), "netdev": ""})


def foreign(place: int = 0) -> Worker:
    """A privileged pod: the node's RoCE ports open, and none has an address of the pod."""
    devices = tuple(
        w.device(f"mlx5_{n}", w.port(w.table(f"pf{n}", f"10.{n}.0.1"))) for n in range(2)
    )
    return w.worker(f"w-{place}", w.eth0(f"10.244.1.{5 + place}/24"), devices=devices)


def down(one: Worker) -> Worker:
    return w.with_device(one, port={"state": PortState.DOWN})


def rails(place: int, *, without: int = 0) -> Worker:
    """Eight VFs, the last ones of which are not given to this pod."""
    made = w.rails8(place)
    assert made.facts is not None
    links = made.facts.links[: 10 - without]
    devices = made.facts.fabric.devices[: 8 - without]
    return w.changed(made, links=links, fabric={"devices": devices})


def shared_rail(place: int) -> Worker:
    """A VF of the pod's own beside a VF of another pod that opens as well."""
    made = w.sriov(place)
    assert made.facts is not None
    other = w.device("mlx5_9", w.port(w.table("net1", "192.168.5.99")))
    return w.changed(made, fabric={"devices": (*made.facts.fabric.devices, other)})


def own_settings(one: Worker, **settings: str) -> Worker:
    names = tuple(settings)
    return w.changed(one, environment=names, fabric={"settings": tuple(settings.items())})


def conf(one: Worker, **settings: str) -> Worker:
    """NCCL's own file in that pod."""
    files = tuple(MpiParameter(*item, "/etc/nccl.conf") for item in settings.items())
    return w.changed(one, fabric={"nccl_files": files})


def loads(one: Worker, plugin: str) -> Worker:
    return w.changed(one, fabric={"plugin": plugin})


SOCKET: Final = {"NCCL_NET": "Socket"}
VF: Final = {"UCX_NET_DEVICES": "mlx5_3:1"}
MACVLAN: Final = {"UCX_NET_DEVICES": "mlx5_2:1", "NCCL_IB_GID_INDEX": "9", "UCX_IB_GID_INDEX": "9"}
CASES: Final = {
    # The nodes on which NCCL had less with mpiboot in front of it.
    "a bond as the only NIC": Case(
        (bond(0), bond(1)), (KNOWN, KNOWN), {"UCX_NET_DEVICES": "mlx5_3:1"}, "bond0"
    ),
    "a bond as the only NIC, named": Case(
        (bond(0), bond(1)),
        (KNOWN, KNOWN),
        {"UCX_NET_DEVICES": "mlx5_3:1", "NCCL_IB_HCA": "=mlx5_3:1"},
        "bond0",
        device=("mlx5_3",),
    ),
    "a VF as eth0": Case(
        (vf_as_eth0(0), vf_as_eth0(1)), (KNOWN, KNOWN), {"UCX_NET_DEVICES": "mlx5_5:1"}
    ),
    "eight InfiniBand HCAs, one IPoIB link": Case(
        (infiniband(0), infiniband(1)), (KNOWN, KNOWN), {"UCX_NET_DEVICES": EIGHT}, "ib0"
    ),
    "eight InfiniBand HCAs, no IPoIB link": Case(
        (infiniband(0, ipoib=False), infiniband(1, ipoib=False)),
        (KNOWN, KNOWN),
        {"UCX_NET_DEVICES": EIGHT},
    ),
    "netlink refused, one device that opens": Case(
        (blind(without_table(w.sriov(0))), blind(without_table(w.sriov(1)))),
        (UNKNOWN, UNKNOWN),
        {},
        "net1",
        checks=("data-facts",),
    ),
    "netlink refused, no device in sysfs": Case(
        (blind(w.changed(w.plain(0), fabric={"devices": ()})),),
        (UNKNOWN,),
        {},
        checks=("data-facts",),
    ),
    "netlink refused, the pod's address in the port's table": Case(
        (blind(w.sriov(0)), blind(w.sriov(1))), (KNOWN, KNOWN), VF, "net1"
    ),
    "no RDMA": Case((w.plain(0), w.plain(1)), (NONE, NONE), {}),
    "no RDMA, a second link": Case(
        (w.tcp(0), w.tcp(1)), (NONE, NONE), {"UCX_NET_DEVICES": "net1"}, "net1"
    ),
    "sockets that the user has chosen": Case(
        (w.plain(0), w.plain(1)), (NONE, NONE), {}, taken={"NCCL_NET": "Socket"}
    ),
    "sockets that a pod has chosen": Case(
        (own_settings(w.plain(0), NCCL_NET="Socket"), w.plain(1)), (NONE, NONE), {}
    ),
    "EFA": Case((w.efa(0), w.efa(1)), (KNOWN, KNOWN), {}),
    # Rails
    "one VF": Case((w.sriov(0), w.sriov(1)), (KNOWN, KNOWN), VF, "net1"),
    "one VF, an old NCCL": Case(
        (w.sriov(0), w.sriov(1)),
        (KNOWN, KNOWN),
        {**VF, "NCCL_IB_GID_INDEX": "3"},
        "net1",
        nccl="2.18.3",
    ),
    "one VF, an NCCL of unknown version": Case(
        (w.sriov(0),), (KNOWN,), {**VF, "NCCL_IB_GID_INDEX": "3"}, "net1", nccl=""
    ),
    "one VF beside another pod's that opens": Case(
        (shared_rail(0), shared_rail(1)), (KNOWN, KNOWN), {**VF, "NCCL_IB_HCA": "=mlx5_3:1"}, "net1"
    ),
    "VFs of other names": Case(
        (w.sriov(0), w.sriov(1, "mlx5_7")),
        (KNOWN, KNOWN),
        {},
        "net1",
        {"w-0": VF, "w-1": {"UCX_NET_DEVICES": "mlx5_7:1"}},
    ),
    "DraNet": Case(
        (w.sriov(0, netdev="dranet0"), w.sriov(1, netdev="dranet0")), (KNOWN, KNOWN), VF, "dranet0"
    ),
    "two rails": Case(
        (rails(0, without=6), rails(1, without=6)),
        (KNOWN, KNOWN),
        {"UCX_NET_DEVICES": "mlx5_19:1,mlx5_18:1"},
        "net1",
    ),
    "four rails": Case(
        (rails(0, without=4), rails(1, without=4)),
        (KNOWN, KNOWN),
        {"UCX_NET_DEVICES": RAILS[:39]},
        "net1",
    ),
    "eight rails": Case((rails(0), rails(1)), (KNOWN, KNOWN), {"UCX_NET_DEVICES": RAILS}, "net1"),
    "one rail fewer on a worker": Case(
        (rails(0), rails(1, without=1)),
        (KNOWN, KNOWN),
        {},
        "net1",
        {"w-0": {"UCX_NET_DEVICES": RAILS}, "w-1": {"UCX_NET_DEVICES": RAILS[:-10]}},
        ("workers-differ",),
    ),
    "one rail down": Case(
        (down(rails(0)), rails(1)),
        (KNOWN, KNOWN),
        {"UCX_NET_DEVICES": RAILS},
        "net1",
        checks=("rdma-port",),
    ),
    "a rail without an address": Case(
        (w.with_links(w.rails8(0), "net3", addresses=()), w.rails8(1)),
        (KNOWN, KNOWN),
        {},
        "net1",
        {
            "w-0": {
                "UCX_NET_DEVICES": RAILS.replace(",mlx5_17:1", ""),
                "NCCL_IB_HCA": "=" + RAILS.replace(",mlx5_17:1", ""),
            },
            "w-1": {"UCX_NET_DEVICES": RAILS},
        },
        ("rdma-gid",),
    ),
    "the node's network, a slower control NIC": Case(
        (w.host_network(0), w.host_network(1)),
        (KNOWN, KNOWN),
        {
            "UCX_NET_DEVICES": ",".join(f"mlx5_{n}:1" for n in range(1, 9)),
            "NCCL_IB_HCA": "=" + ",".join(f"mlx5_{n}:1" for n in range(1, 9)),
        },
        "rail1",
    ),
    "the node's network, a control NIC as fast as the others": Case(
        tuple(w.with_device(w.host_network(n), port={"rate": 100.0}) for n in (0, 1)),
        (KNOWN, KNOWN),
        {
            "UCX_NET_DEVICES": ",".join(f"mlx5_{n}:1" for n in (*range(1, 9), 0)),
            "NCCL_IB_HCA": "=" + ",".join(f"mlx5_{n}:1" for n in (*range(1, 9), 0)),
        },
        "rail1",
    ),
    "InfiniBand from a shared plugin, an Ethernet device beside it": Case(
        (w.aks(0), w.aks(1)), (KNOWN, KNOWN), {"UCX_NET_DEVICES": EIGHT, "NCCL_IB_HCA": f"={EIGHT}"}
    ),
    "IPoIB over one of two devices": Case(
        (w.ipoib(0), w.ipoib(1)), (KNOWN, KNOWN), {"UCX_NET_DEVICES": "mlx5_4:1"}, "ib0"
    ),
    "an IPoIB link of a partition": Case(
        (w.ipoib(0, "net1", pkey=1), w.ipoib(1, "net1", pkey=1)),
        (KNOWN, KNOWN),
        {"UCX_NET_DEVICES": "mlx5_4:1", "NCCL_IB_PKEY": "1", "UCX_IB_PKEY": "0x1"},
        "net1",
    ),
    "macvlans over a shared device": Case(
        (w.macvlan(0), w.macvlan(1)), (KNOWN, KNOWN), MACVLAN, "net1"
    ),
    "macvlans over two shared devices, whose indexes differ": Case(
        (w.macvlan(0, 2), w.macvlan(1, 2)),
        (KNOWN, KNOWN),
        {"UCX_NET_DEVICES": "mlx5_2:1,mlx5_3:1"},
        "net1",
        checks=("rdma-gid-index", "rdma-gid-index"),
    ),
    "IPv6 alone on the data link": Case(
        (w.one_v6(0), w.one_v6(1)), (KNOWN, KNOWN), {**VF, "NCCL_IB_GID_INDEX": "3"}, "net1"
    ),
    # Several states
    "one worker without RDMA": Case(
        (w.sriov(0), w.sriov(1), w.plain(2)),
        (KNOWN, KNOWN, NONE),
        {**SOCKET, "UCX_NET_DEVICES": "eth0"},
        checks=("rdma-missing",),
    ),
    "one worker whose only port is down": Case(
        (w.sriov(0), down(w.sriov(1))),
        (KNOWN, NONE),
        {**SOCKET, "UCX_NET_DEVICES": "net1"},
        "net1",
        checks=("rdma-port",),
    ),
    "one worker whose device does not open": Case(
        (w.sriov(0), w.with_device(w.sriov(1), open_error="EPERM")),
        (KNOWN, NONE),
        {**SOCKET, "UCX_NET_DEVICES": "net1"},
        "net1",
        checks=("rdma-node",),
    ),
    "one worker that is unknown": Case(
        (w.sriov(0), w.sriov(1), w.without_facts("w-2")),
        (KNOWN, KNOWN, UNKNOWN),
        {},
        own={"w-0": VF, "w-1": VF},
        checks=("data-facts",),
    ),
    "one worker that could not be asked": Case(
        (w.sriov(0), w.sriov(1), blind(without_table(w.sriov(2)))),
        (KNOWN, KNOWN, UNKNOWN),
        {},
        "net1",
        {"w-0": VF, "w-1": VF},
        ("data-facts",),
    ),
    "one unknown and one without": Case(
        (w.sriov(0), w.plain(1), w.without_facts("w-2")),
        (KNOWN, NONE, UNKNOWN),
        SOCKET,
        own={"w-0": {"UCX_NET_DEVICES": "eth0"}, "w-1": {"UCX_NET_DEVICES": "eth0"}},
        checks=("rdma-missing", "data-facts"),
    ),
    "all unknown": Case(
        (w.without_facts("w-0"), w.without_facts("w-1")),
        (UNKNOWN, UNKNOWN),
        {},
        "",
        checks=("data-facts",),
    ),
    "RoCE and InfiniBand": Case(
        (w.sriov(0), w.aks(1)),
        (KNOWN, KNOWN),
        {**SOCKET, "UCX_NET_DEVICES": "eth0"},
        checks=("rdma-differs",),
    ),
    "EFA on one of two workers": Case(
        (w.efa(0), w.efa(1, "no device node")), (KNOWN, NONE), SOCKET, checks=("rdma-missing",)
    ),
    "the node's RoCE ports in privileged pods": Case(
        (foreign(0), foreign(1)), (NONE, NONE), SOCKET, checks=("rdma-missing",)
    ),
    "the node's RoCE ports in one privileged pod, an unknown worker": Case(
        (foreign(0), w.without_facts("w-1")),
        (NONE, UNKNOWN),
        {},
        checks=("rdma-missing", "data-facts"),
    ),
    "a device whose table can't be read": Case(
        (without_table(w.sriov(0)), without_table(w.sriov(1))),
        (UNKNOWN, UNKNOWN),
        {},
        "net1",
        checks=("data-facts",),
    ),
    "required": Case(
        (w.sriov(0), w.sriov(1)), (KNOWN, KNOWN), {**VF, "NCCL_NET": "IB"}, "net1", required=True
    ),
    # The user's own
    "the recipe's values, which choose nothing": Case(
        (w.sriov(0), w.plain(1)),
        (KNOWN, NONE),
        {**SOCKET, "UCX_NET_DEVICES": "eth0"},
        checks=("rdma-missing",),
        taken={"NCCL_IB_DISABLE": "0", "NCCL_NET_PLUGIN": "none"},
    ),
    # Sockets are NCCL's own with a plugin, too.
    "the recipe's NCCL_IB_DISABLE=0 with an old NCCL": Case(
        (w.sriov(0),),
        (KNOWN,),
        {**VF, "NCCL_IB_GID_INDEX": "3"},
        "net1",
        nccl="2.18.3",
        taken={"NCCL_IB_DISABLE": "0"},
    ),
    "a RoCE version of the user's": Case(
        (w.macvlan(0),),
        (KNOWN,),
        {name: value for name, value in MACVLAN.items() if name != "NCCL_IB_GID_INDEX"},
        "net1",
        taken={"NCCL_IB_ROCE_VERSION_NUM": "1"},
    ),
    "a plugin of the user's": Case(
        (shared_rail(0),), (KNOWN,), VF, "net1", taken={"NCCL_NET_PLUGIN": "mine"}
    ),
    "a plugin that NCCL loads": Case(
        (loads(shared_rail(0), "AWS Libfabric"), shared_rail(1)), (KNOWN, KNOWN), VF, "net1"
    ),
    "a plugin that could not be read": Case(
        (loads(foreign(0), "libnccl-net.so"),), (NONE,), {}, checks=("rdma-missing",)
    ),
    "HPC-X's plugin, which reads NCCL's variables": Case(
        (loads(shared_rail(0), "NCCL RDMA Plugin v8"),),
        (KNOWN,),
        {**VF, "NCCL_IB_HCA": "=mlx5_3:1"},
        "net1",
    ),
    "a plugin that the user keeps from being loaded": Case(
        (loads(shared_rail(0), "AWS Libfabric"),),
        (KNOWN,),
        {**VF, "NCCL_IB_HCA": "=mlx5_3:1"},
        "net1",
        taken={"NCCL_NET_PLUGIN": "none"},
    ),
    "TCPXO": Case((own_settings(w.sriov(0), NCCL_FASTRAK_IFNAME="eth1"),), (KNOWN,), VF, ""),
    # NCCL's own files
    "a site's HCAs in nccl.conf": Case(
        (conf(shared_rail(0), NCCL_IB_HCA="mlx5_3"), conf(shared_rail(1), NCCL_IB_HCA="mlx5_3")),
        (KNOWN, KNOWN),
        VF,
        "net1",
    ),
    "nccl.conf of one worker": Case(
        (conf(shared_rail(0), NCCL_IB_HCA="mlx5_3"), shared_rail(1)),
        (KNOWN, KNOWN),
        VF,
        "net1",
        {"w-1": {"NCCL_IB_HCA": "=mlx5_3:1"}},
    ),
    "a wrong GID index in nccl.conf": Case(
        (conf(w.macvlan(0), NCCL_IB_GID_INDEX="3"),),
        (KNOWN,),
        {name: value for name, value in MACVLAN.items() if name != "NCCL_IB_GID_INDEX"},
        "net1",
        checks=("nccl-value",),
    ),
    "sockets in nccl.conf, where the line has RDMA": Case(
        (conf(w.sriov(0), NCCL_IB_DISABLE="1"),),
        (KNOWN,),
        VF,
        "net1",
        taken={"NCCL_IB_DISABLE": "0"},
    ),
    "a file of NCCL's that the pods name": Case(
        (own_settings(shared_rail(0), NCCL_CONF_FILE="/site.conf"),),
        (KNOWN,),
        {**VF, "NCCL_IB_HCA": "=mlx5_3:1"},
        "net1",
        taken={"NCCL_CONF_FILE": "/site.conf"},
    ),
    "a file of NCCL's that the line names, and nobody has read": Case(
        (shared_rail(0),), (KNOWN,), VF, "", taken={"NCCL_CONF_FILE": "/mine.conf"}
    ),
    "gIB": Case((loads(w.sriov(0), "gIB"),), (KNOWN,), VF, ""),
}


@pytest.mark.parametrize("name", CASES)
def test_a_topology(name: str) -> None:
    case = CASES[name]
    use = DataNetworkUse.REQUIRE if case.required else DataNetworkUse.PREFER
    settings = Settings(nccl_version=case.nccl, rdma_device=case.device, data_network=use)
    found = networks.decide(case.workers, settings, dict.fromkeys(case.taken, "-x"), case.taken)
    assert tuple(one.rdma for one in found.networks) == case.states
    common = {name: value for name, value in found.common.items() if name not in SOCKETS}
    own = {
        host: {name: value for name, value in mine.items() if name not in SOCKETS}
        for host, mine in found.per_host.items()
    }
    assert common == case.common
    assert {host: mine for host, mine in own.items() if mine} == case.own
    for host, mine in found.per_host.items():
        link = {**found.common, **mine}.get("NCCL_SOCKET_IFNAME", "").removeprefix("=")
        facts = next(one.facts for one in found.networks if one.host == host)
        assert link == (case.sockets if facts else ""), host
    assert tuple(item.check for item in found.findings) == case.checks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5", "_GID_INDEX=5: mlx5_3 port 1 has no entry 5; RoCE v2 with 192.168.5.7 is 3"),
        ("2", "entry 2 of mlx5_3 port 1 is IB/RoCE v1 with 192.168.5.7"),
        ("0", "entry 0 of mlx5_3 port 1 is IB/RoCE v1 with fe80::ff:fe00:2"),
        ("9" * 5000, "has no entry 9"),
        ("3", ""),
        ("-1", ""),
        ("", ""),
    ],
)
@pytest.mark.parametrize("name", ["NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX"])
def test_the_users_gid_index_is_compared_with_the_table(name: str, text: str, message: str) -> None:
    settings = Settings(nccl_version="2.28.9")
    found = networks.decide([w.sriov(0)], settings, {name: "-x"}, {name: text})
    told = [item.message for item in found.findings if item.check == "nccl-value"]
    assert len(told) == bool(message)
    assert message in "".join(told)


def test_what_is_unknown_is_said_with_what_would_let_it_be_seen() -> None:
    settings = Settings()
    workers = (blind(without_table(w.sriov(0))), without_table(w.sriov(1)))
    found = networks.decide(workers, settings)
    (whole,) = [item for item in found.decisions if item.name == "data-network"]
    assert whole.value == "unknown"
    assert "w-0: the kernel did not list its RDMA devices (Operation not permitted)" in whole.reason
    assert "w-1: the GID table of mlx5_3:1 could not be read" in whole.reason
    messages = [item.message for item in found.findings if item.check == "data-facts"]
    assert "seccomp" in messages[0]
    assert "/sys" in messages[1]


def test_two_pods_with_one_data_address_or_mac() -> None:
    first, second = w.tcp(0), w.tcp(1)
    same = w.with_links(second, "net1", addresses=("192.168.7.5/24",))
    assert first.facts is not None
    mac = first.facts.links[-1].hardware
    for other, what in (
        (same, "192.168.7.5"),
        (w.with_links(second, "net1", hardware=mac), f"MAC address {mac}"),
    ):
        found = networks.decide((first, other), Settings())
        (finding,) = found.findings
        assert finding.message == f"w-0 and w-1 both have {what} on the data network"
        assert "host-local" in finding.hint
        assert found.common["NCCL_SOCKET_IFNAME"] == "=eth0"
    # A GID of RoCE is such an address; what two pods on one node's network have is one link.
    one, other = w.sriov(0), w.with_links(w.sriov(1), "net1", addresses=("192.168.5.7/24",))
    assert one.facts is not None
    twin = w.changed(other, fabric={"devices": one.facts.fabric.devices})
    assert networks.decide((one, twin), Settings()).common["NCCL_NET"] == "Socket"
    for node in (both(one, one), both(w.host_network(0), w.host_network(0))):
        found = networks.decide(node, Settings())
        assert ("NCCL_NET" in found.common, found.findings) == (False, [])
    ipvlan = [w.with_links(one, "net1", kind="ipvlan", hardware=mac) for one in (first, second)]
    assert not networks.decide(ipvlan, Settings()).findings


def test_a_gid_that_can_not_be_read_is_nobodys() -> None:
    made = w.with_device(w.sriov(0), port={"gids": (Gid(0, "?", GidType.ROCE_V2, "net1"),)})
    network = worker_network.choose(made, Settings())
    assert not network.unseen


def gpus(one: Worker) -> Worker:
    return w.changed(one, gpus=Gpus(8))


@pytest.mark.parametrize(
    ("workers", "setting", "network", "why"),
    [
        ((gpus(w.sriov(0)), w.sriov(1)), MpiNetwork.AUTO, "control", "w-0: GPUs"),
        ((gpus(w.sriov(0)), w.without_facts("w-1")), MpiNetwork.AUTO, "control", "w-0: GPUs"),
        (
            (w.sriov(0), w.sriov(1)),
            MpiNetwork.AUTO,
            "auto",
            "no worker has a GPU, and all have RDMA",
        ),
        (
            (w.ipoib(0), w.ipoib(1)),
            MpiNetwork.AUTO,
            "auto",
            "no worker has a GPU, and all have RDMA",
        ),
        ((w.plain(0), w.plain(1)), MpiNetwork.AUTO, "control", "not every worker has RDMA"),
        ((w.sriov(0), w.plain(1)), MpiNetwork.AUTO, "control", "not every worker has RDMA"),
        (
            (w.plain(0), w.without_facts("w-1")),
            MpiNetwork.AUTO,
            "auto",
            "GPUs and RDMA of w-1 are not known",
        ),
        ((w.plain(0), blind(w.plain(1))), MpiNetwork.AUTO, "auto", "RDMA of w-1 are not known"),
        ((), MpiNetwork.AUTO, "auto", "no worker's GPUs and RDMA are known"),
        ((w.sriov(0),), MpiNetwork.CONTROL, "control", ""),
        ((w.plain(0),), MpiNetwork.DATA, "data", ""),
    ],
)
def test_what_carries_mpis_own_messages(
    workers: tuple[Worker, ...], setting: MpiNetwork, network: str, why: str
) -> None:
    read = Settings(mpi_network=setting)
    chosen = [worker_network.choose(one, read) for one in workers]
    found, reason = decision.decide(chosen, read, {}).mpi
    assert (found.value, reason.startswith(why)) == (network, True)
