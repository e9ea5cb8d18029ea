"""RDMA devices and GPUs that this pod sees, by netlink, sysfs and /dev.

netlink lists the devices and their network links. Only sysfs has GID tables, link layers, rates and
partition keys, but it does not show which devices are this pod's own. Nothing is chosen here; a
kernel without RDMA and a missing sysfs are ordinary.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from mpiboot.core.facts import (
    Fabric,
    Gid,
    GidType,
    Gpus,
    LinkLayer,
    PortState,
    RdmaDevice,
    RdmaPort,
)
from mpiboot.network import libraries
from mpiboot.network.records import PCI_FUNCTION, PKEY, natural_order
from mpiboot.system.processes import text

_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) Gb/sec")
_NO_GID: Final = "::"


def rdma_device(sys_root: Path, name: str) -> RdmaDevice | None:
    """Read one device; None if it does not exist, or disappears while it is read."""
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
    # NCCL_IB_PKEY is an index into this table: empty entries stay, but for those at its end.
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
        # Which node is of which function can't be seen here; surplus nodes are GPUs that fell off
        # the bus.
        lost = max(0, len(nodes) - there) if functions else 0
        channels = _entries(dev / "nvidia-caps-imex-channels")
        return Gpus(len(nodes) - lost, lost, imex=bool(channels))
    if "kfd" not in _entries(dev):
        return Gpus()
    names = [name for name in _entries(dev / "dri") if _RENDER.fullmatch(name)]
    vendors = [text(sys_root / f"class/drm/{name}/device/vendor") for name in names]
    return Gpus(vendors.count(_AMD), vendors.count(""))


# What uses EFA: libfabric, and NCCL's plugin for it (aws-ofi-nccl), without which NCCL takes TCP.
EFA_LIBRARIES: Final = ("libfabric.so.1", "libnccl-net.so")
_RCCL_PLUGIN: Final = "librccl-net.so"
# GKE's transport for NCCL is a folder of the node; its script is sourced in each rank.
GIB: Final = Path("/usr/local/gib")


class KernelRdma(NamedTuple):
    """The kernel's list of RDMA devices: the link of each port, by device and number.

    A link's name is empty where it is in another network namespace. ``refused`` is why the list
    is incomplete.
    """

    links: Mapping[str, Mapping[int, str]]
    refused: str = ""


def given_functions(environ: Mapping[str, str]) -> tuple[str, ...]:
    """List the PCI functions that the SR-IOV device plugin gave to this container."""
    # PCIDEVICE_<PREFIX>_<RESOURCE>=0000:08:00.2,0000:08:00.3; with _INFO it has the same as JSON.
    lists = (value for name, value in environ.items() if name.startswith("PCIDEVICE_"))
    words = (word.strip().lower() for value in lists for word in value.split(","))
    return tuple(word for word in words if PCI_FUNCTION.fullmatch(word))


def query_kernel() -> KernelRdma:
    """Query the devices and their ports; ``refused`` is why some could not be listed.

    Raises:
        OSError: the socket can't be opened; EPROTONOSUPPORT: the kernel has no RDMA.
    """
    from mpiboot.network import netlink  # noqa: PLC0415 - takes long: pyroute2

    links: dict[str, dict[int, str]] = {}
    refused = ""
    with closing(netlink.Kernel()) as kernel:
        try:
            devices = kernel.dump_rdma(netlink.GET)
        except OSError as error:
            return KernelRdma({}, error.strerror or str(error))
        for device in devices:
            name = netlink.decoded(device.get_attr("RDMA_NLDEV_ATTR_DEV_NAME"))
            index = device.get_attr("RDMA_NLDEV_ATTR_DEV_INDEX")
            try:
                ports = kernel.dump_rdma(netlink.PORT_GET, index)
            except OSError as error:
                refused = f"the ports of {name}: {error.strerror or error}"
                continue
            links[name] = {
                # The link is there only if it is in this network namespace.
                port.get_attr("RDMA_NLDEV_ATTR_PORT_INDEX"): netlink.decoded(
                    port.get_attr("RDMA_NLDEV_ATTR_NDEV_NAME")
                )
                for port in ports
            }
    return KernelRdma(links, refused)


def observe(
    sys_root: Path = Path("/sys"), dev_root: Path = Path("/dev"), gib: Path = GIB
) -> Fabric:
    """Observe RDMA in this pod, and what NCCL would use of it.

    It needs no privilege and raises nothing: why devices may be missing is ``refused``. Where a
    device opens, libraries are tried in two child processes, for up to 5 s each. On a modular
    kernel the query itself makes the kernel load ib_core, as every RDMA library does.
    """
    try:
        kernel = query_kernel()
    except OSError as error:
        # A kernel without RDMA knows no such socket; nor do sandboxes that have sysfs's devices.
        none = error.errno == errno.EPROTONOSUPPORT and not _entries(sys_root / "class/infiniband")
        kernel = KernelRdma({}, "" if none else os.strerror(error.errno or errno.EIO))
    found = assemble(kernel, sys_root, dev_root)
    opened = [one.name for one in found.devices if one.opens]
    if opened:
        errors, wrong = libraries.devices(opened)
        devices = (replace(one, library_error=errors.get(one.name, "")) for one in found.devices)
        found = replace(
            _with_plugin(found), devices=tuple(devices), unreadable=(wrong,) * bool(wrong)
        )
    return replace(found, plugin="gIB") if gib.is_dir() else found


def _with_plugin(found: Fabric) -> Fabric:
    """Add NCCL's network plugin, and the libraries that EFA lacks, as the loader finds them."""
    there = libraries.find((*EFA_LIBRARIES, _RCCL_PLUGIN))
    if there is None:
        return found
    plugin = next((name for name in (EFA_LIBRARIES[1], _RCCL_PLUGIN) if name in there), "")
    efa = any(one.efa and one.opens for one in found.devices)
    missing = tuple(name for name in EFA_LIBRARIES if name not in there) if efa else ()
    return replace(found, plugin=there.get(plugin) or plugin, missing=missing)


def assemble(kernel: KernelRdma, sys_root: Path, dev_root: Path) -> Fabric:
    """Join netlink's list with sysfs and the device nodes.

    Where netlink's list is cut short, sysfs adds devices, which may be the host's.
    """
    names = [*kernel.links]
    if kernel.refused:
        seen = _entries(sys_root / "class/infiniband")
        names += [name for name in seen if name not in kernel.links]
    # Names of device nodes by that of their RDMA device, of every network namespace.
    verbs = sys_root / "class/infiniband_verbs"
    nodes = {text(verbs / name / "ibdev"): name for name in _entries(verbs)} if names else {}
    devices, refused = list[RdmaDevice](), kernel.refused
    for name in names:
        found = rdma_device(sys_root, name)
        if found is None:
            refused = refused or f"{name} is not in {sys_root}/class/infiniband"
            continue
        links = kernel.links.get(name, {})
        ports = (replace(port, netdev=links.get(port.number, "")) for port in found.ports)
        error = _open_error(dev_root, nodes.get(name, ""))
        devices.append(replace(found, ports=tuple(ports), open_error=error))
    return Fabric(devices=tuple(devices), refused=refused)


def _open_error(dev_root: Path, name: str) -> str:
    """Why a device node does not open; empty where it does."""
    if not name:
        return "the kernel names no device node for it"
    path = dev_root / "infiniband" / name
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return f"{path} is not in this pod"
    except OSError as error:
        return os.strerror(error.errno or errno.EIO)
    return ""
