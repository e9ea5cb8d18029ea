"""What sysfs alone tells of RDMA devices: GID tables, link layer, rate, partition keys, PCI.

It reads below the root that it is given; whether a device is this pod's own, it can't tell.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from pathlib import Path
from typing import Final

from mpiboot.core.fabric import Gid, GidType, LinkLayer, RdmaPort
from mpiboot.network import rdma_report
from mpiboot.network.rdma_report import DeviceReport
from mpiboot.network.records import natural_order
from mpiboot.network.sysfs import number, pci_function, text

# Ordinary answers: an empty slot of the table, a device or an entry that went away.
_GONE: Final = frozenset({errno.ENOENT, errno.EINVAL, errno.ENODEV, errno.ENXIO, errno.ENOTDIR})
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) Gb/sec")
_PKEY: Final = re.compile(r"0x[0-9a-f]{1,4}")
_NO_GID: Final = "0000:0000:0000:0000:0000:0000:0000:0000"
# The PCI driver where it has another name than the RDMA driver on top of it.
_RDMA_DRIVERS: Final = {
    "mlx5_core": "mlx5",
    "mlx4_core": "mlx4",
    "ice": "irdma",
    "i40e": "irdma",
    "bnxt_en": "bnxt_re",
    "qede": "qedr",
    "hns3": "hns",
}


def names(sys_root: Path) -> tuple[str, ...]:
    """Names of the devices in class/infiniband, sorted as a reader would; none without RDMA."""
    return tuple(_entries(sys_root / "class" / "infiniband"))


def device(sys_root: Path, name: str) -> DeviceReport | None:
    """Read one device; None if it isn't there, or no longer at the end.

    A port's ``netdev`` is the link of its PCI function, if it is one link.
    """
    folder = sys_root / "class" / "infiniband" / name
    unreadable: list[str] = []
    numbers = [int(item) for item in _entries(folder / "ports") if item.isdecimal()]
    found = DeviceReport(
        name=name,
        node_guid=text(folder / "node_guid"),
        node_type=rdma_report.node_type(number(folder / "node_type")),
        pci=pci_function(folder / "device"),
        driver=_driver(folder),
        ports=tuple(_port(folder, one, len(numbers), unreadable) for one in numbers),
        unreadable=tuple(unreadable),
    )
    return found if folder.exists() else None


def nodes(sys_root: Path) -> dict[str, tuple[str, int | None]]:
    """Device nodes by the name of their RDMA device, of every network namespace.

    Returns:
        The name of the node, and the number that it must have.
    """
    folder = sys_root / "class" / "infiniband_verbs"
    found: dict[str, tuple[str, int | None]] = {}
    for name in _entries(folder):
        owner = text(folder / name / "ibdev")
        if owner:
            major, _, minor = text(folder / name / "dev").partition(":")
            known = major.isdecimal() and minor.isdecimal()
            found[owner] = name, os.makedev(int(major), int(minor)) if known else None
    return found


def _port(folder: Path, place: int, count: int, unreadable: list[str]) -> RdmaPort:
    port = folder / "ports" / str(place)
    rate = _RATE.match(text(port / "rate"))
    layer = _layer(port)
    drives = folder / "device" / "net" if layer is LinkLayer.ETHERNET else None
    return RdmaPort(
        number=place,
        state=rdma_report.port_state(number(port / "state")),
        physical=rdma_report.physical_state(number(port / "phys_state")),
        link_layer=layer,
        rate=float(rate.group(1)) if rate else 0.0,
        gids=_gids(port, f"{folder.name} port {place}", unreadable),
        pkeys=_pkeys(port / "pkeys"),
        netdev=_netdev(drives, place, count) if drives else "",
    )


def _layer(port: Path) -> LinkLayer:
    said = text(port / "link_layer")
    # The kernel writes Unknown for what libibverbs and NCCL call Unspecified (EFA, usNIC).
    return LinkLayer.UNSPECIFIED if said == "Unknown" else LinkLayer(said)


def _gids(port: Path, whose: str, unreadable: list[str]) -> tuple[Gid, ...]:
    found = []
    for slot in _entries(port / "gids"):
        # Three files for each of up to 1,024 slots: the other two only where there is a GID.
        value = _gid(port / "gids" / slot, unreadable)
        if not value or value == _NO_GID or not slot.isdecimal():
            continue
        plain = canonical(value)
        if not plain:
            unreadable.append(f"{whose}: GID {slot} can't be read: {value[:60]!r}")
            continue
        kind = GidType(text(port / "gid_attrs" / "types" / slot))
        netdev = text(port / "gid_attrs" / "ndevs" / slot)
        found.append(Gid(index=int(slot), value=plain, kind=kind, netdev=netdev))
    return tuple(found)


def _gid(path: Path, unreadable: list[str]) -> str:
    """Read a slot; an error that isn't an ordinary answer is told."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError as error:
        if error.errno not in _GONE:
            unreadable.append(f"{path}: {error.strerror}")
        return ""


def canonical(value: str) -> str:
    """Write a GID as every IPv6 address is written; empty for what is none."""
    # Not ipaddress: whether it writes ::ffff:a00:1 or ::ffff:10.0.0.1 depends on Python's version.
    try:
        return socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, value))
    except (OSError, ValueError):
        return ""


def _pkeys(folder: Path) -> tuple[int, ...]:
    said = [text(folder / slot) for slot in _entries(folder)]
    found = [int(key, 16) if _PKEY.fullmatch(key) else 0 for key in said]
    # The place in the table is what NCCL_IB_PKEY means, so holes stay and only the end goes.
    while found and not found[-1]:
        found.pop()
    return tuple(found)


def _netdev(folder: Path, place: int, ports: int) -> str:
    # This folder is one of the network namespace that mounted sysfs, as is class/net.
    links = _entries(folder)
    if ports > 1 or len(links) > 1:
        links = [name for name in links if number(folder / name / "dev_port") == place - 1]
    return links[0] if len(links) == 1 else ""


def _driver(folder: Path) -> str:
    try:
        name = (folder / "device" / "driver").resolve(strict=True).name
    except (OSError, RuntimeError):
        # Soft-RoCE is the one driver that has no device but says its link.
        return "rxe" if text(folder / "parent") else ""
    return _RDMA_DRIVERS.get(name, name)


def _entries(folder: Path) -> list[str]:
    try:
        found = [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
    return sorted(found, key=natural_order)
