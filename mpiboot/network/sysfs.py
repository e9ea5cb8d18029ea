"""What sysfs and /dev show: a file's text, the PCI function of a device, RDMA devices, GPUs.

GID tables, link layer, rate and partition keys are known by sysfs alone; whether an RDMA device is
this pod's own, it does not show.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Final

from mpiboot.core.facts import Gid, GidType, Gpus, LinkLayer, PortState, RdmaDevice, RdmaPort
from mpiboot.network.records import PCI_FUNCTION, PKEY, natural_order


def text(path: Path) -> str:
    """Content of a file without blanks around it; empty if it can't be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) Gb/sec")
_NO_GID: Final = "::"


def rdma_names(sys_root: Path) -> tuple[str, ...]:
    """Names of the devices in class/infiniband, sorted as a reader would; none without RDMA."""
    return tuple(_entries(sys_root / "class" / "infiniband"))


def rdma_device(sys_root: Path, name: str) -> RdmaDevice | None:
    """Read one device; None if it isn't there, or no longer at the end."""
    folder = sys_root / "class" / "infiniband" / name
    found = RdmaDevice(
        name=name,
        driver=_target(folder / "device" / "driver").name,
        pci=_pci_function(folder / "device"),
        ports=tuple(
            _port(folder / "ports" / item)
            for item in _entries(folder / "ports")
            if item.isdecimal()
        ),
    )
    return found if folder.exists() else None


def rdma_nodes(sys_root: Path) -> dict[str, str]:
    """Names of device nodes by that of their RDMA device, of every network namespace."""
    folder = sys_root / "class" / "infiniband_verbs"
    return {text(folder / name / "ibdev"): name for name in _entries(folder)}


def _port(folder: Path) -> RdmaPort:
    rate = _RATE.match(text(folder / "rate"))
    layer = text(folder / "link_layer")
    return RdmaPort(
        number=int(folder.name),
        state=PortState(text(folder / "state").partition(": ")[2]),  # 4: ACTIVE
        # The kernel writes Unknown for what libibverbs and NCCL call Unspecified (EFA, usNIC).
        link_layer=LinkLayer.UNSPECIFIED if layer == "Unknown" else LinkLayer(layer),
        rate=float(rate.group(1)) if rate else 0.0,
        gids=_gids(folder),
        pkeys=_pkeys(folder / "pkeys"),
    )


def _gids(port: Path) -> tuple[Gid, ...]:
    found = []
    for slot in _entries(port / "gids"):
        # Three files for each of up to 1,024 slots: the other two only where there is a GID.
        value = canonical(text(port / "gids" / slot))
        if value not in ("", _NO_GID) and slot.isdecimal():
            kind = GidType(text(port / "gid_attrs" / "types" / slot))
            netdev = text(port / "gid_attrs" / "ndevs" / slot)
            found.append(Gid(index=int(slot), value=value, kind=kind, netdev=netdev))
    return tuple(found)


def canonical(value: str) -> str:
    """Write a GID as every IPv6 address is written; empty for what is none."""
    # Not ipaddress: whether it writes ::ffff:a00:1 or ::ffff:10.0.0.1 depends on Python's version.
    try:
        return socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, value))
    except (OSError, ValueError):
        return ""


def _pkeys(folder: Path) -> tuple[int, ...]:
    keys = [text(folder / slot) for slot in _entries(folder)]
    found = [int(key, 16) if PKEY.fullmatch(key) else 0 for key in keys]
    # The place in the table is what NCCL_IB_PKEY means, so holes stay and only the end goes.
    while found and not found[-1]:
        found.pop()
    return tuple(found)


def _target(link: Path) -> Path:
    """What a symbolic link leads to; an empty path where it isn't there."""
    try:
        return link.resolve(strict=True)
    except (OSError, RuntimeError):  # a loop of links, before Python 3.13
        return Path()


def _pci_function(device: Path) -> str:
    """PCI function of a ``device`` link: itself, or that of which it is a part; empty if none.

    A sub-function (mlx5_core.sf.4) is a part of the function above it.
    """
    parts = _target(device).parts
    return next((part for part in reversed(parts) if PCI_FUNCTION.fullmatch(part)), "")


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
        there = sum(
            text(one / "vendor") == _NVIDIA and text(one / "class").startswith(_CLASSES)
            for one in functions
        )
        # Only the driver knows which node is of which function; one more than there are is lost.
        lost = max(0, len(nodes) - there) if functions else 0
        channels = _entries(dev / "nvidia-caps-imex-channels")
        return Gpus(len(nodes) - lost, lost, imex=bool(channels))
    if "kfd" not in _entries(dev):
        return Gpus()
    names = [name for name in _entries(dev / "dri") if _RENDER.fullmatch(name)]
    vendors = [text(sys_root / f"class/drm/{name}/device/vendor") for name in names]
    return Gpus(vendors.count(_AMD), vendors.count(""))
