"""Workers as clusters in use have them, as records: what netlink and sysfs would have told."""

from __future__ import annotations

import ipaddress
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from mpiboot.core.facts import (
    Fabric,
    Gid,
    GidType,
    Host,
    Link,
    LinkLayer,
    PodFacts,
    PortState,
    RdmaDevice,
    RdmaPort,
    Worker,
)
from mpiboot.core.model import Identity

ROOT: Final = Identity(0, 0, "root", "/root", "/bin/sh", known=True, capabilities=1 << 14)


def mac(number: int) -> str:
    return f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}"


def link(
    name: str,
    *addresses: str,
    index: int = 10,
    kind: str = "ether",
    mtu: int = 1500,
    hardware: str = "",
    pkey: int | None = None,
    carrier: bool = True,
) -> Link:
    own = hardware or mac(zlib.crc32("".join(addresses).encode()) % 65536 if addresses else index)
    return Link(index, name, kind, True, mtu, addresses, own, pkey, carrier)


def eth0(address: str = "10.244.1.5/24", *, kind: str = "veth") -> Link:
    return link("eth0", address, index=2, kind=kind)


LO: Final = link("lo", "127.0.0.1/8", "::1/128", index=1, kind="loopback")


def gid(index: int, address: str, netdev: str, kind: str = "RoCE v2") -> Gid:
    ip = ipaddress.ip_address(address)
    text = str(ip) if ip.version == 6 else f"::ffff:{ip}"
    return Gid(index, text, GidType(kind), netdev)


def table(netdev: str, *addresses: str, types: int = 2, start: int = 0) -> tuple[Gid, ...]:
    """Fill a table as the kernel does: the default GIDs, then each address, once a type."""
    kinds = ("IB/RoCE v1", "RoCE v2")[-types:]
    entries = [(one, kind) for one in ("fe80::ff:fe00:2", *addresses) for kind in kinds]
    return tuple(gid(start + place, one, netdev, kind) for place, (one, kind) in enumerate(entries))


def port(
    gids: tuple[Gid, ...] = (),
    *,
    number: int = 1,
    netdev: str = "",
    state: str = "ACTIVE",
    layer: str = "Ethernet",
    rate: float = 100.0,
    pkeys: tuple[int, ...] = (0xFFFF,),
) -> RdmaPort:
    return RdmaPort(number, PortState(state), LinkLayer(layer), netdev, rate, gids, pkeys)


def device(
    name: str, *ports: RdmaPort, pci: str = "", open_error: str = "", driver: str = "mlx5_core"
) -> RdmaDevice:
    return RdmaDevice(name, driver, pci, open_error, ports)


def worker(
    name: str,
    *links: Link,
    devices: tuple[RdmaDevice, ...] = (),
    functions: tuple[str, ...] = (),
    control: str = "",
) -> Worker:
    address = control or next(
        (item.addresses[0].partition("/")[0] for item in links if item.name == "eth0"), ""
    )
    fabric = Fabric(devices, functions)
    facts = PodFacts(
        hostname=name,
        mpiboot="0.1",
        identity=ROOT,
        control_address=address,
        links=(LO, *links),
        mpi=None,
        sshd="openssh",
        memlock=-1,
        shm=8 << 30,
        environment=(),
        fabric=fabric,
    )
    return Worker(Host(name, 8), address, 22, "root", "10.244.0.9", facts)


def without_facts(name: str) -> Worker:
    return replace(worker(name, eth0()), facts=None)


def sriov(place: int = 0, hca: str = "mlx5_3", netdev: str = "net1") -> Worker:
    """One SR-IOV VF, moved into the pod with its RDMA device in shared mode."""
    address = f"192.168.5.{7 + place}"
    data = link(netdev, f"{address}/24", index=20)
    own = device(hca, port(table(netdev, address), netdev=netdev), pci="0000:06:00.1")
    return worker(f"w-{place}", eth0(f"10.244.1.{5 + place}/24"), data, devices=(own,))


def one_v6(place: int) -> Worker:
    """The same, with an IPv6 address alone."""
    address = f"fd00:5::{7 + place}"
    made = with_links(sriov(place), "net1", addresses=(f"{address}/64",))
    return with_device(made, port={"gids": table("net1", address)})


def rails8(place: int = 0) -> Worker:
    """Eight VFs, net1 to net8, each in its rail's subnet; the devices count the other way."""
    links, devices = [], []
    for rail in range(1, 9):
        address, pci = f"172.16.{rail}.{10 + place}", f"0000:{rail:02x}:00.1"
        netdev = f"net{rail}"
        links.append(link(netdev, f"{address}/24", index=40 - rail, mtu=9000))
        devices.append(
            device(
                f"mlx5_{20 - rail}",
                port(table(netdev, address), netdev=netdev, rate=400.0),
                pci=pci,
            )
        )
    return worker(f"w-{place}", eth0(f"10.244.1.{5 + place}/24"), *links, devices=tuple(devices))


def macvlan(place: int = 0, rails: int = 1) -> Worker:
    """Macvlans over shared devices: the tables hold the host's and other pods' entries as well.

    The second rail's table lacks one of the other pods, so that its indexes are others.
    """
    links, devices = [], []
    for rail in range(rails):
        address = f"10.{rail}.0.{12 + place}"
        links.append(link(f"net{rail + 1}", f"{address}/24", index=30 + rail, kind="macvlan"))
        known = [("10.%d.0.1" % rail, f"pf{rail}"), (address, f"net{rail + 1}")]  # noqa: UP031
        known[1:1] = [] if rail else [(f"10.{rail}.0.99", "net1"), (f"10.{rail}.0.98", "net1")]
        entries = list(table(f"pf{rail}"))
        for one, netdev in known:
            for kind in ("IB/RoCE v1", "RoCE v2"):
                entries.append(gid(len(entries), one, netdev, kind))
        devices.append(device(f"mlx5_{rail + 2}", port(tuple(entries))))
    return worker(f"w-{place}", eth0(f"10.244.1.{5 + place}/24"), *links, devices=tuple(devices))


def ipoib(place: int = 0, name: str = "ib0", pkey: int = 0x7FFF, state: str = "ACTIVE") -> Worker:
    """An IPoIB link, beside a second device of the node that isn't this pod's."""
    own_gid = f"fe80::ec0d:9a03:78:{0xABCD + place:x}"
    data = link(
        name,
        f"10.9.0.{5 + place}/24",
        index=25,
        kind="ipoib",
        mtu=2044,
        hardware="80:00:01:07:" + ipaddress.IPv6Address(own_gid).packed.hex(":"),
        pkey=pkey | 0x8000,
    )
    own = port(
        (Gid(0, own_gid, GidType.ROCE_V1, ""),),
        layer="InfiniBand",
        state=state,
        pkeys=(0xFFFF, 0x8001),
    )
    foreign = port((Gid(0, "fe80::1", GidType.ROCE_V1, ""),), layer="InfiniBand")
    return worker(
        f"w-{place}",
        eth0(f"10.244.1.{5 + place}/24"),
        data,
        devices=(device("mlx5_0", foreign, open_error="no device node"), device("mlx5_4", own)),
    )


def aks(place: int = 0) -> Worker:
    """InfiniBand devices from a shared plugin, no second link, and the Ethernet one of the VM."""
    devices = [device(f"mlx5_{number}", port(layer="InfiniBand")) for number in range(8)]
    devices.append(device("mlx5_8", port(table("eth7", "10.0.0.4"))))
    return worker(f"w-{place}", eth0(f"10.244.1.{5 + place}/24"), devices=tuple(devices))


def efa(place: int = 0, open_error: str = "") -> Worker:
    devices = tuple(
        device(
            f"rdmap{16 + number}s27",
            port(layer="Unspecified", rate=100.0),
            pci=f"0000:{16 + number:02x}:1b.0",
            driver="efa",
            open_error=open_error,
        )
        for number in range(4)
    )
    return worker(f"w-{place}", eth0(f"10.244.1.{5 + place}/24"), devices=devices)


def tcp(place: int = 0, name: str = "net1", subnet: str = "192.168.7") -> Worker:
    data = link(name, f"{subnet}.{5 + place}/24", index=21, kind="macvlan")
    return worker(f"w-{place}", eth0(f"10.244.1.{5 + place}/24"), data)


def plain(place: int = 0) -> Worker:
    return worker(f"w-{place}", eth0(f"10.244.1.{5 + place}/24"))


def host_network(place: int = 0) -> Worker:
    """The node's own network: 26 devices, other pods' veths, VFs whose links are elsewhere."""
    node = link("ens3", f"10.0.0.{5 + place}/24", index=2, kind="ether")
    veths = [link(f"cali{number}", index=50 + number, kind="veth") for number in range(5)]
    bridge = link("cni0", "10.244.9.1/24", index=60, kind="bridge")
    links, devices = (
        [],
        [
            device(
                "mlx5_0",
                port(table("ens3", f"10.0.0.{5 + place}"), netdev="ens3", rate=25.0),
                pci="0000:01:00.0",
            )
        ],
    )
    for rail in range(1, 9):
        netdev, pci = f"rail{rail}", f"0000:{rail + 16:02x}:00.0"
        address = f"172.20.{rail}.{5 + place}"
        links.append(link(netdev, f"{address}/24", index=10 + rail, kind="ether"))
        devices.append(device(f"mlx5_{rail}", port(table(netdev, address), netdev=netdev), pci=pci))
    devices += [
        device(f"mlx5_{number}", port(table("net1", f"10.50.0.{number}")))
        for number in range(9, 26)
    ]
    return worker(
        f"w-{place}",
        node,
        bridge,
        *veths,
        *links,
        devices=tuple(devices),
        control=f"10.0.0.{5 + place}",
    )


def facts_of(worker: Worker) -> PodFacts:
    assert worker.facts is not None
    return worker.facts


def changed(worker: Worker, *, fabric: Mapping[str, object] = {}, **facts: object) -> Worker:
    """The same worker with other facts; ``fabric`` are the changes of its fabric."""
    own = facts_of(worker)
    seen = replace(own.fabric, **fabric)  # type: ignore[arg-type]
    return replace(worker, facts=replace(own, **{"fabric": seen, **facts}))  # type: ignore[arg-type]


def with_links(worker: Worker, name: str = "", **changes: object) -> Worker:
    """The same worker with all of its links changed, or the one of that name."""
    links = (
        replace(one, **changes) if name in ("", one.name) else one  # type: ignore[arg-type]
        for one in facts_of(worker).links
    )
    return changed(worker, links=tuple(links))


def with_device(worker: Worker, *, port: Mapping[str, object] = {}, **changes: object) -> Worker:
    """The same worker with another first device; ``port`` are the changes of its first port."""
    first, *others = facts_of(worker).fabric.devices
    ports = (replace(first.ports[0], **port), *first.ports[1:])  # type: ignore[arg-type]
    device = replace(first, **{"ports": ports, **changes})  # type: ignore[arg-type]
    return changed(worker, fabric={"devices": (device, *others)})
