"""RDMA devices that this pod sees: the kernel's word by netlink, the rest from sysfs and /dev.

It does not choose among them; a kernel without RDMA and a sysfs that is not there are ordinary.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from mpiboot.data_network.observe import libraries, nldev, rdma_sysfs, verbs
from mpiboot.data_network.observe.nldev import Device, Kernel, Port
from mpiboot.data_network.observe.rdma_sysfs import Node, SysfsDevice, SysfsPort
from mpiboot.fabric import Fabric, RdmaDevice, RdmaPort

_STATES: Final = ("", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
_PHYSICAL: Final = (
    *("", "SLEEP", "POLLING", "DISABLED", "PORT_CONFIGURATION_TRAINING", "LINK_UP"),
    *("LINK_ERROR_RECOVERY", "PHY_TEST"),
)
# As sysfs writes them: drivers/infiniband/core/sysfs.c, node_type_show().
_NODE_TYPES: Final = (*("", "CA", "switch", "router", "RNIC", "usNIC", "usNIC UDP", "unspecified"),)
# enum rdma_driver_id of include/uapi/rdma/ib_user_ioctl_verbs.h
_DRIVERS: Final = (
    *("", "mlx5", "mlx4", "cxgb3", "cxgb4", "mthca", "bnxt_re", "ocrdma", "nes", "irdma"),
    *("vmw_pvrdma", "qedr", "hns", "usnic", "rxe", "hfi1", "qib", "efa", "siw", "erdma", "mana"),
    "ionic",
)
_LAYERS: Final = {"ib": "InfiniBand", "opa": "InfiniBand", "roce": "Ethernet", "iw": "Ethernet"}
# What RoCE puts around a packet in the largest case: iboe_get_mtu() of include/rdma/ib_addr.h.
_ROCE_HEADERS: Final = 96
_IB_MTUS: Final = (4096, 2048, 1024, 512, 256)
# What uses EFA: libfabric, and NCCL's plugin for it (aws-ofi-nccl), without which NCCL takes TCP.
EFA_LIBRARIES: Final = ("libfabric.so.1", "libnccl-net.so")


def observe(sys_root: Path = Path("/sys"), dev_root: Path = Path("/dev")) -> Fabric:
    """Give what this pod sees of RDMA; ``routes`` and ``attachments`` stay empty.

    It needs no privilege, blocks for milliseconds, and never fails: what can't be read is said
    in ``oddities``. On a modular kernel the question itself makes the kernel load ib_core, as
    every RDMA library does.
    """
    refused = ""
    kernel: Kernel | None = None
    try:
        with nldev.connect() as channel:
            kernel = nldev.read(channel)
    except OSError as error:
        refused = os.strerror(error.errno or errno.EIO)
    found = assemble(kernel, sys_root, dev_root, refused)
    asked = {one.name: len(one.ports) for one in found.devices if one.opens == "ok"}
    if not asked:
        return found
    if any(one.driver == "efa" and one.opens == "ok" for one in found.devices):
        found = replace(found, missing=libraries.missing(EFA_LIBRARIES))
    return with_library(found, *verbs.ask(asked))


def with_library(found: Fabric, said: Mapping[str, verbs.Device], wrong: str = "") -> Fabric:
    """Add what the RDMA library says of its devices, and of what went ``wrong`` with it."""
    devices = tuple(
        _with_library(device, said[device.name]) if device.name in said else device
        for device in found.devices
    )
    return replace(found, devices=devices, oddities=(*found.oddities, *((wrong,) if wrong else ())))


def _with_library(device: RdmaDevice, said: verbs.Device) -> RdmaDevice:
    ports = tuple(
        replace(
            port,
            mtu=said.mtus.get(port.number, port.mtu),
            gids=tuple(
                replace(gid, link=said.links.get((port.number, gid.index), 0)) for gid in port.gids
            ),
        )
        for port in device.ports
    )
    return replace(device, ports=ports, library=said.why or "ok")


def assemble(kernel: Kernel | None, sys_root: Path, dev_root: Path, refused: str = "") -> Fabric:
    """Join what netlink said with sysfs and the device nodes.

    Without netlink (None) the devices are those of sysfs, which may be the host's. With it,
    sysfs adds devices only where netlink's list was cut short.
    """
    oddities = list(kernel.oddities) if kernel is not None else []
    listed = {device.name: device for device in kernel.devices} if kernel is not None else {}
    names = list(listed)
    if kernel is None or not kernel.complete:
        names += [name for name in rdma_sysfs.names(sys_root) if name not in listed]
    if kernel is None and names:
        oddities.append(
            f"netlink: {refused or 'no answer'}: RDMA devices are read from {sys_root} alone, "
            "and may be others than this pod's"
        )
    nodes = rdma_sysfs.nodes(sys_root) if names else {}
    devices = []
    for name in names:
        told, found = listed.get(name), rdma_sysfs.device(sys_root, name)
        if found is None:
            if told is None or told.ports is None:
                oddities.append(f"{name}: went away while it was read")
                continue
            oddities.append(f"{name}: not in {sys_root}/class/infiniband: its GIDs are not known")
            found = SysfsDevice(name)
        oddities.extend(found.oddities)
        devices.append(_device(_completed(told, found, nodes.get(name)), found, sys_root, dev_root))
    return Fabric(
        netns_mode=kernel.mode if kernel is not None else "",
        infiniband_folder=(dev_root / "infiniband").is_dir(),
        devices=tuple(devices),
        oddities=tuple(oddities),
    )


def _completed(told: Device | None, found: SysfsDevice, node: Node | None) -> Device:
    """Put sysfs's word where netlink gave none; netlink's index can't be had (-1)."""
    if told is None:
        told = Device(-1, found.name, None, found.node_type, _protocol(found))
    if told.ports is None:
        ports = (Port(one.number, one.state, one.physical, one.netdev) for one in found.ports)
        told = replace(told, ports=tuple(ports))
    if not told.uverbs and node is not None:
        told = replace(told, uverbs=node.name, rdev=node.rdev)
    return told


def _device(told: Device, found: SysfsDevice, sys_root: Path, dev_root: Path) -> RdmaDevice:
    here = {port.number: port for port in found.ports}
    uverbs, opens = _open(dev_root, told.uverbs, told.rdev)
    return RdmaDevice(
        index=told.index,
        name=told.name,
        protocol=told.protocol,
        node_type=_word(_NODE_TYPES, told.node_type, "type"),
        node_guid=found.node_guid if told.node_guid is None else _guid(told.node_guid),
        driver=_word(_DRIVERS, told.driver, "driver") or found.driver,
        pci=found.pci,
        uverbs=uverbs,
        opens=opens,
        ports=tuple(
            _port(port, here.get(port.number) or SysfsPort(port.number), told.protocol, sys_root)
            for port in told.ports or ()
        ),
    )


def _port(told: Port, found: SysfsPort, protocol: str, sys_root: Path) -> RdmaPort:
    return RdmaPort(
        number=told.number,
        state=_word(_STATES, told.state, "state"),
        physical=_word(_PHYSICAL, told.physical, "state"),
        link_layer=found.link_layer or _LAYERS.get(protocol, ""),
        netdev=told.netdev,
        rate=found.rate,
        mtu=_roce_mtu(rdma_sysfs.link_mtu(sys_root, told.netdev)) if told.netdev else 0,
        gids=found.gids,
        pkeys=found.pkeys,
    )


def _roce_mtu(link_mtu: int) -> int:
    # Neither netlink nor sysfs has a port's active MTU; RoCE drivers derive it like this.
    return next((mtu for mtu in _IB_MTUS if mtu <= link_mtu - _ROCE_HEADERS), 0)


def _open(dev_root: Path, name: str, rdev: int | None) -> tuple[str, str]:
    if not name:
        return "", "the kernel names no device node for it"
    path = dev_root / "infiniband" / name
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return "", f"{path} is not in this pod"
    except OSError as error:
        return str(path), os.strerror(error.errno or errno.EIO)
    try:
        there = os.fstat(handle).st_rdev
    finally:
        os.close(handle)
    if rdev is not None and there != rdev:
        said = f"{os.major(there)}:{os.minor(there)}"
        return str(path), f"is device {said} instead of {os.major(rdev)}:{os.minor(rdev)}"
    return str(path), "ok"


def _protocol(found: SysfsDevice) -> str:
    layers = {port.link_layer for port in found.ports}
    if layers == {"InfiniBand"}:
        return "ib"
    if layers == {"Ethernet"}:
        return "iw" if _word(_NODE_TYPES, found.node_type, "type") == "RNIC" else "roce"
    return ""


def _guid(number: int) -> str:
    digits = f"{number:016x}"
    return ":".join(digits[place : place + 4] for place in range(0, 16, 4))


def _word(words: tuple[str, ...], number: int | None, what: str) -> str:
    if number is None:
        return ""
    return words[number] if number < len(words) else f"{what} {number}"
