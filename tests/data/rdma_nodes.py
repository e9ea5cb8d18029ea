"""Nodes with RDMA hardware that tests can't have, as one pod sees them; each says its source.

Only descriptions: ``build_sysfs`` makes trees of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Hca:
    """One device with one port; ``gids`` are (index, GID as sysfs writes it, type, netdev)."""

    index: int
    name: str
    pci: str
    netdev: str = ""  # of this pod's network namespace
    gids: tuple[tuple[int, str, str, str], ...] = ()
    uverbs: int | None = None
    node: bool = True  # whether /dev/infiniband has it in this pod
    driver: tuple[str, int] = ("mlx5_core", 1)
    layer: str = "Ethernet"
    state: tuple[int, str] = (4, "ACTIVE")
    rate: str = "100 Gb/sec (4X EDR)"
    pkeys: tuple[str, ...] = ("0xffff",)
    function: str = ""  # a part of the PCI function, such as mlx5_core.sf.2


@dataclass(frozen=True)
class Tree:
    """A node as one pod sees it; ``links`` are (name, MTU, PCI function or empty)."""

    source: str
    devices: tuple[Hca, ...]
    links: tuple[tuple[str, int, str], ...] = ()
    slots: int = 16
    addresses: Mapping[str, str] = field(default_factory=dict)


def gid4(address: str) -> str:
    """The GID of an IPv4 address, as sysfs writes it."""
    one, two, three, four = (int(part) for part in address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{one:02x}{two:02x}:{three:02x}{four:02x}"


def both(first: int, gid: str, netdev: str) -> tuple[tuple[int, str, str, str], ...]:
    """The two entries that a driver of RoCE v1 and v2 makes of one address."""
    return ((first, gid, "IB/RoCE v1", netdev), (first + 1, gid, "RoCE v2", netdev))


def _local(number: int) -> str:
    return f"fe80:0000:0000:0000:0000:00ff:fe00:{number:04x}"


def _vf(index: int, netdev: str, shown: str, address: str, *, node: bool = True) -> Hca:
    return Hca(
        index=index,
        name=f"mlx5_{index}",
        pci=f"0000:08:{index // 8:02x}.{index % 8}",
        netdev=netdev,
        gids=(*both(0, _local(index), shown), *both(2, gid4(address), shown)),
        uverbs=index,
        node=node,
    )


def _infiniband(index: int, prefix: str) -> Hca:
    return Hca(
        index=index,
        name=f"mlx5_{index}",
        pci=f"0000:{index + 1:02x}:00.0",
        gids=((0, f"{prefix}:0c42:a103:00b6:{index:04x}", "IB/RoCE v1", ""),),
        uverbs=index,
        layer="InfiniBand",
        rate="400 Gb/sec (4X NDR)",
        pkeys=("0x7fff", "0x0000", "0x8001", "0x0000"),
    )


def crowd(count: int, ours: int) -> Tree:
    """A node whose ``count`` devices are all visible, and one is this pod's."""
    devices = [
        _vf(
            number,
            "net1" if number == ours else "",
            "net1",
            f"10.56.{number}.7",
            node=number == ours,
        )
        for number in range(count)
    ]
    return Tree(
        source="the table of an SR-IOV node in shared mode: nldev and sysfs list every device of "
        "the host, netdev only where it is ours, and each pod's link is called net1",
        devices=tuple(devices),
        links=(("net1", 9000, devices[ours].pci),),
    )


TREES: Mapping[str, Tree] = MappingProxyType(
    {
        "mlx5-vfs": Tree(
            source="a run of Debian's 6.1 kernel with a driver that has mlx5's GID order (default "
            "GIDs in both types first, then each address twice): PF, a VF of another pod, ours",
            devices=(
                Hca(
                    0,
                    "mlx5_0",
                    "0000:08:00.0",
                    gids=both(0, _local(1), "ens1f0np0"),
                    uverbs=0,
                    node=False,
                ),
                _vf(2, "", "net1", "172.16.5.6", node=False),
                _vf(5, "net1", "net1", "172.16.5.7"),
            ),
            links=(("net1", 9000, "0000:08:00.5"), ("eth0", 1450, "")),
        ),
        "ipoib": Tree(
            source="ib_ipoib of Debian's 6.1 kernel on InfiniBand ports: the hardware address is "
            "4 bytes of flags and queue pair, then the port's first GID; nldev has no netdev",
            devices=(_infiniband(0, "fe80:0000:0000:0000"), _infiniband(1, "fe80:0000:0000:0000")),
            links=(("ib0", 2044, "0000:01:00.0"), ("net1", 2044, "")),
            addresses={
                "ib0": "80:00:00:11:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:b6:00:00",
                "net1": "80:00:00:23:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:b6:00:00",
            },
        ),
        "efa": Tree(
            source="drivers/infiniband/hw/efa of Linux 6.1 (node type, link layer, no capability "
            "flags and so no protocol, one GID without a netdev); names as in AWS's own examples",
            devices=tuple(
                Hca(
                    number,
                    f"rdmap{16 + number}s27",
                    f"0000:{16 + number:02x}:1b.0",
                    gids=(
                        (0, f"fe80:0000:0000:0000:08ff:69ff:fe9f:{number:04x}", "IB/RoCE v1", ""),
                    ),
                    uverbs=number,
                    driver=("efa", 17),
                    layer="Unknown",
                    rate="100 Gb/sec (4X EDR)",
                )
                for number in range(4)
            ),
            links=(("eth0", 9001, ""),),
        ),
        "rails": Tree(
            source="eight SR-IOV VFs in one pod as Multus names them, each of its own adapter",
            devices=tuple(
                Hca(
                    number,
                    f"mlx5_{number}",
                    f"0000:{8 * number + 8:02x}:00.2",
                    f"net{number - 9}",
                    (
                        *both(0, _local(number), f"net{number - 9}"),
                        *both(2, gid4(f"10.{number}.0.7"), f"net{number - 9}"),
                    ),
                    uverbs=number,
                    rate="400 Gb/sec (4X NDR)",
                )
                for number in range(10, 18)
            ),
            links=tuple(
                (f"net{number - 9}", 4200, f"0000:{8 * number + 8:02x}:00.2")
                for number in range(10, 18)
            ),
        ),
        "macvlan": Tree(
            source="a run of Debian's 6.1 kernel: two pods' macvlan links over the host's pf0 "
            "share its device; the port's netdev is not ours, its table has everybody's addresses",
            devices=(
                Hca(
                    2,
                    "mlx5_2",
                    "0000:08:00.0",
                    gids=(
                        *both(0, _local(1), "pf0"),
                        *both(2, gid4("10.0.0.1"), "pf0"),
                        *both(4, _local(11), "net1"),
                        *both(6, gid4("10.0.0.11"), "net1"),
                        *both(8, _local(12), "net1"),
                        *both(10, gid4("10.0.0.12"), "net1"),
                    ),
                    uverbs=2,
                ),
            ),
            links=(("net1", 1500, ""),),
        ),
        "crowd": crowd(26, ours=17),
        "sub-function": Tree(
            source="the layout of mlx5 sub-functions: an auxiliary device below the PCI function",
            devices=(
                Hca(
                    4,
                    "mlx5_4",
                    "0000:08:00.0",
                    "net1",
                    both(0, _local(4), "net1"),
                    uverbs=4,
                    function="mlx5_core.sf.2",
                ),
            ),
            links=(("net1", 1500, "0000:08:00.0/mlx5_core.sf.2"),),
        ),
    }
)
