"""What sysfs and /dev show: a file's text, the PCI function of a device, RDMA devices, GPUs.

GID tables, link layer, rate and partition keys are known by sysfs alone; whether an RDMA device is
this pod's own, it does not show.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from pathlib import Path
from typing import Final

from mpiboot.core.facts import Gid, GidType, Gpus, LinkLayer, PortState, RdmaDevice, RdmaPort
from mpiboot.network.records import PCI_FUNCTION, natural_order


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


def _word(path: Path) -> str:
    """Give the word behind a number, as of ``4: ACTIVE``."""
    return text(path).partition(": ")[2]


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


def rdma_device(sys_root: Path, name: str, unreadable: list[str]) -> RdmaDevice | None:
    """Read one device; None if it isn't there, or no longer at the end.

    A port's ``netdev`` is the link of its PCI function, if it is one link. What can't be read is
    added to ``unreadable``.
    """
    folder = sys_root / "class" / "infiniband" / name
    numbers = [int(item) for item in _entries(folder / "ports") if item.isdecimal()]
    found = RdmaDevice(
        name=name,
        node_type=_word(folder / "node_type"),
        pci=pci_function(folder / "device"),
        driver=_driver(folder),
        ports=tuple(_port(folder, one, len(numbers), unreadable) for one in numbers),
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
    written = text(port / "rate")
    rate = _RATE.match(written)
    layer = _layer(port)
    # Like its neighbours, InfiniBand's FDR10 by its rate on the wire (4 x 10.3125, 64b/66b): the
    # kernel has that of its data, which is QDR's on the wire (drivers/infiniband/core/sysfs.c,
    # rate_show). Ethernet of 10 and 40 Gb/s has FDR10's name (verbs.c, ib_get_eth_speed).
    coded = 66 / 64 if "FDR10" in written and layer is LinkLayer.INFINIBAND else 1
    drives = folder / "device" / "net" if layer is LinkLayer.ETHERNET else None
    return RdmaPort(
        number=place,
        state=PortState(_word(port / "state")),
        link_layer=layer,
        rate=float(rate.group(1)) * coded if rate else 0.0,
        gids=_gids(port, f"{folder.name} port {place}", unreadable),
        pkeys=_pkeys(port / "pkeys"),
        netdev=_netdev(drives, place, count) if drives else "",
    )


def _layer(port: Path) -> LinkLayer:
    layer = text(port / "link_layer")
    # The kernel writes Unknown for what libibverbs and NCCL call Unspecified (EFA, usNIC).
    return LinkLayer.UNSPECIFIED if layer == "Unknown" else LinkLayer(layer)


def _gids(port: Path, port_name: str, unreadable: list[str]) -> tuple[Gid, ...]:
    found = []
    for slot in _entries(port / "gids"):
        # Three files for each of up to 1,024 slots: the other two only where there is a GID.
        value = _gid(port / "gids" / slot, unreadable)
        if not value or value == _NO_GID or not slot.isdecimal():
            continue
        plain = canonical(value)
        if not plain:
            unreadable.append(f"{port_name}: GID {slot} can't be read: {value[:60]!r}")
            continue
        kind = GidType(text(port / "gid_attrs" / "types" / slot))
        netdev = text(port / "gid_attrs" / "ndevs" / slot)
        found.append(Gid(index=int(slot), value=plain, kind=kind, netdev=netdev))
    return tuple(found)


def _gid(path: Path, unreadable: list[str]) -> str:
    """Read a slot; an error that isn't an ordinary answer is noted."""
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
    keys = [text(folder / slot) for slot in _entries(folder)]
    found = [int(key, 16) if _PKEY.fullmatch(key) else 0 for key in keys]
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
        # Soft-RoCE is the one driver without a device, and names its link.
        return "rxe" if text(folder / "parent") else ""
    return _RDMA_DRIVERS.get(name, name)


def _entries(folder: Path) -> list[str]:
    try:
        found = [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
    return sorted(found, key=natural_order)


# GPUs: /dev has the pod's own, sysfs all of the node. The names are those of the kernel's drivers
# (nvidia, amdgpu); PCI vendors and classes are those of pci.ids.
_NVIDIA: Final = "0x10de"
_AMD: Final = "0x1002"
# VGA, and 3D controllers, which have no display.
_CLASSES: Final = ("0x0300", "0x0302")
_GPU: Final = re.compile(r"nvidia[0-9]+")
_RENDER: Final = re.compile(r"renderD[0-9]+")


def gpus(dev: Path = Path("/dev"), sys_root: Path = Path("/sys")) -> Gpus:
    """Count this pod's GPUs: NVIDIA's where there are any, else AMD's."""
    nodes = [name for name in _entries(dev) if _GPU.fullmatch(name)]
    if nodes:
        folder = sys_root / "bus/pci/devices"
        functions = [folder / name for name in _entries(folder)]
        own = [one for one in functions if text(one / "vendor") == _NVIDIA]
        kinds = [_model(one) for one in own if text(one / "class").startswith(_CLASSES)]
        # Only the driver knows which node is of which function; one more than there are is lost.
        lost = max(0, len(nodes) - len(kinds)) if functions else 0
        return Gpus(len(nodes) - lost, _named("NVIDIA", kinds), lost)
    if "kfd" not in _entries(dev):
        return Gpus()
    names = [name for name in _entries(dev / "dri") if _RENDER.fullmatch(name)]
    devices = [sys_root / f"class/drm/{name}/device" for name in names]
    vendors = {one: text(one / "vendor") for one in devices}
    kinds = [_model(one) for one, vendor in vendors.items() if vendor == _AMD]
    return Gpus(len(kinds), _named("AMD", kinds), sum(not vendor for vendor in vendors.values()))


def _model(function: Path) -> str:
    return text(function / "device").removeprefix("0x")


def _named(vendor: str, kinds: list[str]) -> str:
    return f"{vendor} {'+'.join(sorted(set(kinds)))}".strip()
