"""Reading sysfs: a file's text, the PCI function of a device, and what it tells of RDMA devices.

GID tables, link layer, rate and partition keys are known by it alone; whether a device is this
pod's own, it can't tell.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mpiboot.core.model import Gid, GidType, LinkLayer, PortState, RdmaPort
from mpiboot.network.records import natural_order

PCI_FUNCTION: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def text(path: Path) -> str:
    """Content of a file without blanks around it; empty if it can't be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """The number at the beginning of a file, as of ``4: ACTIVE``; None if there is none."""
    found = re.match(r"[0-9]{1,9}", text(path))
    return int(found.group()) if found else None


def pci_function(device: Path) -> str:
    """PCI function of a ``device`` link: itself, or that of which it is a part; empty if none.

    A sub-function (mlx5_core.sf.4) and virtio's device are parts of the function above them.
    """
    try:
        parts = device.resolve(strict=True).parts
    except (OSError, RuntimeError):  # not there; a loop of links, before Python 3.13
        return ""
    return next((part for part in reversed(parts) if PCI_FUNCTION.fullmatch(part)), "")


# enum ib_port_state and ib_port_phys_state of include/rdma/ib_verbs.h
_STATES: Final = ("", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
_PHYSICAL: Final = (
    *("", "SLEEP", "POLLING", "DISABLED", "PORT_CONFIGURATION_TRAINING", "LINK_UP"),
    *("LINK_ERROR_RECOVERY", "PHY_TEST"),
)
# As sysfs writes them: drivers/infiniband/core/sysfs.c, node_type_show().
_NODE_TYPES: Final = ("", "CA", "switch", "router", "RNIC", "usNIC", "usNIC UDP", "unspecified")
# enum rdma_driver_id of include/uapi/rdma/ib_user_ioctl_verbs.h
_DRIVERS: Final = (
    *("", "mlx5", "mlx4", "cxgb3", "cxgb4", "mthca", "bnxt_re", "ocrdma", "nes", "irdma"),
    *("vmw_pvrdma", "qedr", "hns", "usnic", "rxe", "hfi1", "qib", "efa", "siw", "erdma", "mana"),
    "ionic",
)


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What one source says of a device; empty, -1 or None where it says nothing.

    ``uverbs`` is the name of its node, ``rdev`` the number that the node must have. ``ports`` is
    None where the source did not list them, as for a device that went away meanwhile.
    """

    name: str
    index: int = -1
    node_guid: str = ""
    node_type: str = ""
    protocol: str = ""
    driver: str = ""
    pci: str = ""
    uverbs: str = ""
    rdev: int | None = None
    ports: tuple[RdmaPort, ...] | None = None
    unreadable: tuple[str, ...] = ()


def port_state(number: int | None) -> PortState:
    """Name a port's state."""
    return PortState(_word(_STATES, number, "state"))


def physical_state(number: int | None) -> str:
    """Name the state of a port's cable."""
    return _word(_PHYSICAL, number, "state")


def node_type(number: int | None) -> str:
    """Name the type of a device."""
    return _word(_NODE_TYPES, number, "type")


def driver(number: int | None) -> str:
    """Name a driver."""
    return _word(_DRIVERS, number, "driver")


def _word(words: Sequence[str], number: int | None, what: str) -> str:
    if number is None:
        return ""
    return words[number] if number < len(words) else f"{what} {number}"


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


def rdma_names(sys_root: Path) -> tuple[str, ...]:
    """Names of the devices in class/infiniband, sorted as a reader would; none without RDMA."""
    return tuple(_entries(sys_root / "class" / "infiniband"))


def rdma_device(sys_root: Path, name: str) -> DeviceReport | None:
    """Read one device; None if it isn't there, or no longer at the end.

    A port's ``netdev`` is the link of its PCI function, if it is one link.
    """
    folder = sys_root / "class" / "infiniband" / name
    unreadable: list[str] = []
    numbers = [int(item) for item in _entries(folder / "ports") if item.isdecimal()]
    found = DeviceReport(
        name=name,
        node_guid=text(folder / "node_guid"),
        node_type=node_type(number(folder / "node_type")),
        pci=pci_function(folder / "device"),
        driver=_driver(folder),
        ports=tuple(_port(folder, one, len(numbers), unreadable) for one in numbers),
        unreadable=tuple(unreadable),
    )
    return found if folder.exists() else None


def rdma_nodes(sys_root: Path) -> dict[str, tuple[str, int | None]]:
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
        state=port_state(number(port / "state")),
        physical=physical_state(number(port / "phys_state")),
        link_layer=layer,
        rate=float(rate.group(1)) if rate else 0.0,
        gids=_gids(port, f"{folder.name} port {place}", unreadable),
        pkeys=_pkeys(port / "pkeys"),
        netdev=_netdev(drives, place, count) if drives else "",
    )


def _layer(port: Path) -> LinkLayer:
    message = text(port / "link_layer")
    # The kernel writes Unknown for what libibverbs and NCCL call Unspecified (EFA, usNIC).
    return LinkLayer.UNSPECIFIED if message == "Unknown" else LinkLayer(message)


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
    message = [text(folder / slot) for slot in _entries(folder)]
    found = [int(key, 16) if _PKEY.fullmatch(key) else 0 for key in message]
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
