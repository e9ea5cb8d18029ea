"""Nodes with RDMA hardware that tests can't have, as one pod sees them: trees of sysfs and /dev.

Where the kernel answers EINVAL (the type of an empty GID slot) a tree has no file: the reader takes
both alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mpiboot.network.rdma import KernelRdma

NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
SLOTS: Final = 16


@dataclass(frozen=True)
class Hca:
    """One device with one port; ``gids`` are (GID as sysfs writes it, type, netdev)."""

    index: int
    name: str
    pci: str
    netdev: str = ""  # of this pod's network namespace
    gids: tuple[tuple[str, str, str], ...] = ()
    uverbs: bool = True
    node: bool = True  # whether /dev/infiniband has it in this pod
    driver: str = "mlx5_core"
    layer: str = "Ethernet"
    pkeys: tuple[str, ...] = ("0xffff",)
    function: str = ""  # a part of the PCI function, such as mlx5_core.sf.2


def gid4(address: str) -> str:
    """The GID of an IPv4 address, as sysfs writes it."""
    one, two, three, four = (int(part) for part in address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{one:02x}{two:02x}:{three:02x}{four:02x}"


def both(gid: str, netdev: str) -> tuple[tuple[str, str, str], ...]:
    """The two entries that a driver of RoCE v1 and v2 makes of one address."""
    return (gid, "IB/RoCE v1", netdev), (gid, "RoCE v2", netdev)


def _local(number: int) -> str:
    return f"fe80:0000:0000:0000:0000:00ff:fe00:{number:04x}"


def _vf(index: int, netdev: str, address: str, *, node: bool = True) -> Hca:
    gids = (*both(_local(index), "net1"), *both(gid4(address), "net1"))
    return Hca(index, f"mlx5_{index}", f"0000:08:00.{index}", netdev, gids, node=node)


def _infiniband(index: int) -> Hca:
    gid = f"fe80:0000:0000:0000:0c42:a103:00b6:{index:04x}"
    keys = ("0x7fff", "0x0000", "0x8001", "0x0000")
    where = (f"mlx5_{index}", f"0000:{index + 1:02x}:00.0")
    return Hca(index, *where, gids=((gid, "IB/RoCE v1", ""),), layer="InfiniBand", pkeys=keys)


def _efa(index: int) -> Hca:
    gid = f"fe80:0000:0000:0000:08ff:69ff:fe9f:{index:04x}"
    where = (f"rdmap{16 + index}s27", f"0000:{16 + index:02x}:1b.0")
    return Hca(index, *where, gids=((gid, "IB/RoCE v1", ""),), driver="efa", layer="Unknown")


_PF: Final = both(_local(1), "ens1f0np0")
_SHARED: Final = (
    *(*both(_local(1), "pf0"), *both(gid4("10.0.0.1"), "pf0"), *both(_local(11), "net1")),
    *(*both(gid4("10.0.0.11"), "net1"), *both(_local(12), "net1")),
    *both(gid4("10.0.0.12"), "net1"),
)
_OWN: Final = both(_local(4), "net1")
TREES: Final[Mapping[str, tuple[Hca, ...]]] = {
    # A run of Debian's 6.1 kernel with a driver that has mlx5's GID order (default GIDs in both
    # types first, then each address twice): PF, a VF of another pod, ours.
    "mlx5-vfs": (
        Hca(0, "mlx5_0", "0000:08:00.0", gids=_PF, node=False),
        _vf(2, "", "172.16.5.6", node=False),
        _vf(5, "net1", "172.16.5.7"),
    ),
    # ib_ipoib of Debian's 6.1 kernel: nldev has no netdev.
    "ipoib": (_infiniband(0), _infiniband(1)),
    # drivers/infiniband/hw/efa of Linux 6.1 (node type, link layer, no capability flags and so no
    # protocol, one GID without a netdev); names as in AWS's own examples.
    "efa": tuple(map(_efa, range(4))),
    # A run of Debian's 6.1 kernel: two pods' macvlan links over the host's pf0 share its device;
    # the port's netdev is not ours, its table has everybody's addresses.
    "macvlan": (Hca(2, "mlx5_2", "0000:08:00.0", gids=_SHARED),),
    # The layout of mlx5 sub-functions: an auxiliary device below the PCI function.
    "sub-function": (
        Hca(
            4, "mlx5_4", "0000:08:00.0", "net1", both(_local(4), "net1"), function="mlx5_core.sf.2"
        ),
    ),
}


def kernel(tree: tuple[Hca, ...]) -> KernelRdma:
    """What NETLINK_RDMA says of the same node inside the pod."""
    return KernelRdma({hca.name: {1: hca.netdev} for hca in tree})


def build(tree: tuple[Hca, ...], folder: Path) -> tuple[Path, Path]:
    """Write a tree; give its roots of sysfs and of /dev."""
    sys_root, dev_root = folder / "sys", folder / "dev"
    for hca in tree:
        _device(sys_root, dev_root, hca)
    return sys_root, dev_root


def _device(sys_root: Path, dev_root: Path, hca: Hca) -> None:
    function = sys_root / "devices" / "pci0000:00" / hca.pci / hca.function
    folder = function / "infiniband" / hca.name
    port = folder / "ports" / "1"
    what = {"state": "4: ACTIVE", "link_layer": hca.layer, "rate": "100 Gb/sec (4X EDR)"}
    _files(port, what)
    _files(port / "gids", dict.fromkeys(map(str, range(SLOTS)), NO_GID))
    for index, (gid, kind, netdev) in enumerate(hca.gids):
        _files(port / "gids", {str(index): gid})
        _files(port / "gid_attrs" / "types", {str(index): kind})
        _files(port / "gid_attrs" / "ndevs", {str(index): netdev} if netdev else {})
    _files(port / "pkeys", {str(index): pkey for index, pkey in enumerate(hca.pkeys)})
    _point(folder / "device", function)
    driver = sys_root / "bus" / "pci" / "drivers" / hca.driver
    driver.mkdir(parents=True, exist_ok=True)
    _point(function / "driver", driver)
    _point(sys_root / "class" / "infiniband" / hca.name, folder)
    if hca.uverbs:
        node = function / "infiniband_verbs" / f"uverbs{hca.index}"
        _files(node, {"ibdev": hca.name})
        _point(sys_root / "class" / "infiniband_verbs" / node.name, node)
        if hca.node:  # it opens for anybody
            _point(dev_root / "infiniband" / node.name, Path("/dev/null"))


def _files(folder: Path, contents: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_text(f"{content}\n", encoding="utf-8")


def _point(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
