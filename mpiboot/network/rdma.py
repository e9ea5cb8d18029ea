"""RDMA devices that this pod sees: netlink has the list and links, sysfs and /dev the rest.

It does not choose among them; a kernel without RDMA and a missing sysfs are ordinary.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from mpiboot.core.facts import Fabric, RdmaDevice
from mpiboot.network import libraries, netlink, sysfs
from mpiboot.network.records import PCI_FUNCTION

# What uses EFA: libfabric, and NCCL's plugin for it (aws-ofi-nccl), without which NCCL takes TCP.
EFA_LIBRARIES: Final = ("libfabric.so.1", "libnccl-net.so")
_RCCL_PLUGIN: Final = "librccl-net.so"
# GKE's transport for NCCL is a folder of the node; its script is sourced in each rank.
GIB: Final = Path("/usr/local/gib")


class KernelRdma(NamedTuple):
    """The kernel's list of RDMA devices: the link of each port, by device and number.

    A link's name is empty where it is in another network namespace. ``refused`` is why the list is
    not whole.
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
    """Query the devices and their ports; what is refused, cut short or gone meanwhile is left out.

    Raises:
        OSError: the kernel has no RDMA part (EPROTONOSUPPORT), or it is refused here.
    """
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

    It needs no privilege, blocks for milliseconds, and never fails: why devices may be missing is
    ``refused``. On a modular kernel the query itself makes the kernel load ib_core, as every RDMA
    library does.
    """
    try:
        kernel = query_kernel()
    except OSError as error:
        # A kernel without RDMA knows no such socket; nor do sandboxes that have sysfs's devices.
        none = error.errno == errno.EPROTONOSUPPORT and not sysfs.rdma_names(sys_root)
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
        names += [name for name in sysfs.rdma_names(sys_root) if name not in kernel.links]
    nodes = sysfs.rdma_nodes(sys_root) if names else {}
    devices, refused = list[RdmaDevice](), kernel.refused
    for name in names:
        found = sysfs.rdma_device(sys_root, name)
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
