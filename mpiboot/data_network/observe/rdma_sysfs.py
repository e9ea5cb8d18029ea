"""What sysfs alone tells of RDMA devices: GID tables, link layer, rate, partition keys, PCI.

It reads below the root that it is given; whether a device is this pod's own, it can't tell.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mpiboot.fabric import Gid

# Ordinary answers: an empty slot of the table, a device or an entry that went away.
_GONE: Final = frozenset({errno.ENOENT, errno.EINVAL, errno.ENODEV, errno.ENXIO, errno.ENOTDIR})
_PCI: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
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


@dataclass(frozen=True, slots=True)
class SysfsPort:
    """A port as sysfs has it; ``netdev`` is the link of its PCI function, if it is one link."""

    number: int
    state: int | None = None
    physical: int | None = None
    link_layer: str = ""
    rate: float = 0.0
    gids: tuple[Gid, ...] = ()
    pkeys: tuple[int, ...] = ()
    netdev: str = ""


@dataclass(frozen=True, slots=True)
class SysfsDevice:
    """A device as sysfs has it."""

    name: str
    node_guid: str = ""
    node_type: int | None = None
    pci: str = ""
    driver: str = ""
    ports: tuple[SysfsPort, ...] = ()
    oddities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """A device node of class/infiniband_verbs: its name and the number it must have."""

    name: str
    rdev: int | None


def names(sys_root: Path) -> tuple[str, ...]:
    """Names of the devices in class/infiniband, sorted as a reader would; none without RDMA."""
    return tuple(_entries(sys_root / "class" / "infiniband"))


def device(sys_root: Path, name: str) -> SysfsDevice | None:
    """Read one device; None if it isn't there, or no longer at the end."""
    folder = sys_root / "class" / "infiniband" / name
    oddities: list[str] = []
    numbers = [int(item) for item in _entries(folder / "ports") if item.isdecimal()]
    layers = {number: _layer(folder / "ports" / str(number)) for number in numbers}
    found = SysfsDevice(
        name=name,
        node_guid=text(folder / "node_guid"),
        node_type=_leading(text(folder / "node_type")),
        pci=pci(folder / "device"),
        driver=_driver(folder),
        ports=tuple(
            _port(folder, number, layers[number], len(numbers), oddities) for number in numbers
        ),
        oddities=tuple(oddities),
    )
    return found if folder.exists() else None


def nodes(sys_root: Path) -> dict[str, Node]:
    """Device nodes by the name of their RDMA device, of every network namespace."""
    folder = sys_root / "class" / "infiniband_verbs"
    found: dict[str, Node] = {}
    for name in _entries(folder):
        owner = text(folder / name / "ibdev")
        if owner:
            major, _, minor = text(folder / name / "dev").partition(":")
            known = major.isdecimal() and minor.isdecimal()
            found[owner] = Node(name, os.makedev(int(major), int(minor)) if known else None)
    return found


def link_mtu(sys_root: Path, link: str) -> int:
    """MTU of a network link of this namespace; 0 if it isn't there."""
    return _leading(text(sys_root / "class" / "net" / link / "mtu")) or 0


def text(path: Path, oddities: list[str] | None = None) -> str:
    """Content of a file of sysfs without blanks around it; empty if it can't be read.

    An error that isn't an ordinary answer becomes an oddity where a list is given.
    """
    try:
        with path.open("rb") as file:
            return file.read().decode("utf-8", "replace").strip()
    except OSError as error:
        if oddities is not None and error.errno not in _GONE:
            oddities.append(f"{path}: {error.strerror}")
        return ""


def pci(device_link: Path) -> str:
    """PCI function of a ``device`` link of sysfs: itself, or that of which it is a part.

    A sub-function (mlx5_core.sf.4) is a part of the function above it.
    """
    try:
        parts = device_link.resolve(strict=True).parts
    except (OSError, RuntimeError):  # not there; a loop of links, before Python 3.13
        return ""
    return next((part for part in reversed(parts) if _PCI.fullmatch(part)), "")


def _port(folder: Path, number: int, layer: str, count: int, oddities: list[str]) -> SysfsPort:
    port = folder / "ports" / str(number)
    rate = _RATE.match(text(port / "rate"))
    return SysfsPort(
        number=number,
        state=_leading(text(port / "state")),
        physical=_leading(text(port / "phys_state")),
        link_layer=layer,
        rate=float(rate.group(1)) if rate else 0.0,
        gids=_gids(port, f"{folder.name} port {number}", oddities),
        pkeys=_pkeys(port / "pkeys"),
        netdev=_netdev(folder / "device" / "net", number, count) if layer == "Ethernet" else "",
    )


def _layer(port: Path) -> str:
    said = text(port / "link_layer")
    # The kernel writes Unknown for what libibverbs and NCCL call Unspecified (EFA, usNIC).
    return "Unspecified" if said == "Unknown" else said


def _gids(port: Path, whose: str, oddities: list[str]) -> tuple[Gid, ...]:
    found = []
    for slot in _entries(port / "gids"):
        # Three files for each of up to 1,024 slots: the other two only where there is a GID.
        value = text(port / "gids" / slot, oddities)
        if not value or value == _NO_GID or not slot.isdecimal():
            continue
        plain = canonical(value)
        if not plain:
            oddities.append(f"{whose}: GID {slot} can't be read: {value[:60]!r}")
            continue
        kind = text(port / "gid_attrs" / "types" / slot)
        netdev = text(port / "gid_attrs" / "ndevs" / slot)
        found.append(Gid(index=int(slot), value=plain, kind=kind, netdev=netdev))
    return tuple(found)


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


def _netdev(folder: Path, number: int, ports: int) -> str:
    # This folder is one of the network namespace that mounted sysfs, as is class/net.
    links = _entries(folder)
    if ports > 1 or len(links) > 1:
        links = [name for name in links if _leading(text(folder / name / "dev_port")) == number - 1]
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
    return sorted(found, key=_natural)


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    parts = re.split(r"([0-9]+)", name)
    return tuple((int(part), "") if place % 2 else (-1, part) for place, part in enumerate(parts))


def _leading(said: str) -> int | None:
    number = re.match(r"[0-9]{1,9}", said)
    return int(number.group()) if number else None
