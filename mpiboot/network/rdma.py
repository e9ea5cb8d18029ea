"""RDMA devices that this pod sees: by netlink what the kernel lists, the rest from sysfs and /dev.

It does not choose among them; a kernel without RDMA and a missing sysfs are ordinary.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from mpiboot.core.facts import Fabric, LinkLayer, PortState, RdmaDevice, RdmaPort
from mpiboot.network import libraries, netlink, sysfs
from mpiboot.network.records import IB_MTUS

_Message = netlink.Message

_LAYERS: Final = {
    "ib": LinkLayer.INFINIBAND,
    "opa": LinkLayer.INFINIBAND,
    "roce": LinkLayer.ETHERNET,
    "iw": LinkLayer.ETHERNET,
}
_NO_RDMA: Final = errno.EPROTONOSUPPORT  # of the socket, on a kernel without this part
# What RoCE puts around a packet in the largest case: iboe_get_mtu() of include/rdma/ib_addr.h.
_ROCE_HEADERS: Final = 96
# What uses EFA: libfabric, and NCCL's plugin for it (aws-ofi-nccl), without which NCCL takes TCP.
EFA_LIBRARIES: Final = ("libfabric.so.1", "libnccl-net.so")
_RCCL_PLUGIN: Final = "librccl-net.so"

_PREFIX: Final = "RDMA_NLDEV_"
# A kernel before 5.2 or 5.3 knows no such question.
_UNKNOWN: Final = (errno.EINVAL, errno.EOPNOTSUPP)
# Neither has it a node without ib_uverbs, or where the driver has none.
_NO_NODE: Final = (*_UNKNOWN, errno.ENODEV, errno.ENOENT)


class KernelRdma(NamedTuple):
    """The kernel's answers; ``complete`` says whether its list of devices came to its end.

    ``mode`` is ``shared``, ``exclusive`` or empty. ``nodes`` are the names of device nodes and the
    numbers that these must have, by device.
    """

    mode: str
    devices: tuple[RdmaDevice, ...]
    complete: bool
    nodes: Mapping[str, tuple[str, int | None]] = MappingProxyType({})
    unreadable: tuple[str, ...] = ()


def ask_kernel() -> KernelRdma:
    """Ask for everything: netns mode, devices, their ports and device nodes.

    What is refused, cut short or gone meanwhile is left out and listed in ``unreadable``.

    Raises:
        OSError: the kernel has no RDMA part (EPROTONOSUPPORT), or it is refused here.
    """
    with closing(netlink.Kernel()) as kernel:
        return read(kernel)


def read(kernel: netlink.Kernel, seconds: float = netlink.SECONDS) -> KernelRdma:
    """Ask by an open socket, each question for so many seconds at most."""
    asking = _Asking(kernel, seconds)
    listed = asking.ask(netlink.GET, "the list of RDMA devices", dump=True)
    complete = not asking.unreadable
    found = [device for message in listed if (device := _listed(message)) is not None]
    nodes: dict[str, tuple[str, int | None]] = {}
    return KernelRdma(
        mode=_mode(asking),
        devices=tuple([_whole(asking, device, nodes) for device in found]),
        complete=complete and len(found) == len(listed),
        nodes=nodes,
        unreadable=tuple(asking.unreadable),
    )


class _Asking:
    """Questions, and what went wrong with them."""

    def __init__(self, kernel: netlink.Kernel, seconds: float) -> None:
        self._kernel = kernel
        self._seconds = seconds
        self._silent = False
        self.unreadable: list[str] = []

    def ask(
        self,
        kind: int,
        what: str,
        known: tuple[int, ...] = (),
        *,
        dump: bool = False,
        **about: int | str,
    ) -> list[_Message]:
        """Give the messages of an answer; an error that isn't a ``known`` one is noted."""
        if self._silent:
            return []
        try:
            return self._kernel.ask_device(kind, dump=dump, seconds=self._seconds, **about)
        except OSError as error:
            self._silent = isinstance(error, TimeoutError)  # it won't answer the next time either
            if error.errno not in known:
                self.unreadable.append(f"netlink: {what}: {error.strerror or error}")
        return []


def _number(message: _Message, name: str) -> int | None:
    value: int | None = message.get_attr(f"{_PREFIX}{name}")
    return value


def _text(message: _Message, name: str) -> str:
    """Give an attribute that is text; empty if it isn't there, or no UTF-8."""
    value = message.get_attr(f"{_PREFIX}{name}")
    return value if isinstance(value, str) else ""


def _mode(asking: _Asking) -> str:
    before = len(asking.unreadable)
    answer = asking.ask(netlink.SYS_GET, "the network namespace mode", _UNKNOWN)
    if not answer:
        return "shared" if len(asking.unreadable) == before else ""
    return "exclusive" if _number(answer[0], "SYS_ATTR_NETNS_MODE") == 0 else "shared"


def _listed(message: _Message) -> RdmaDevice | None:
    index, name = _number(message, "ATTR_DEV_INDEX"), _text(message, "ATTR_DEV_NAME")
    if index is None or not name:
        return None
    return RdmaDevice(
        index,
        name,
        node_type=sysfs.word("node type", _number(message, "ATTR_DEV_NODE_TYPE")),
        protocol=_text(message, "ATTR_DEV_PROTOCOL"),
    )


def _whole(
    asking: _Asking, device: RdmaDevice, nodes: dict[str, tuple[str, int | None]]
) -> RdmaDevice:
    what = f"the ports of {device.name}"
    ports = asking.ask(netlink.PORT_GET, what, dump=True, dev_index=device.index)
    what = f"the device node of {device.name}"
    node = asking.ask(
        netlink.GET_CHARDEV, what, _NO_NODE, chardev_type="uverbs", dev_index=device.index
    )
    driver = None
    if node:
        if name := _text(node[0], "ATTR_CHARDEV_NAME"):
            nodes[device.name] = name, _number(node[0], "ATTR_CHARDEV")
        driver = _number(node[0], "ATTR_UVERBS_DRIVER_ID")
    return replace(
        device,
        driver=sysfs.word("driver", driver),
        ports=tuple(port for message in ports if (port := _listed_port(message)) is not None),
    )


def _listed_port(message: _Message) -> RdmaPort | None:
    number = _number(message, "ATTR_PORT_INDEX")
    if number is None:
        return None
    return RdmaPort(
        number,
        PortState(sysfs.word("state", _number(message, "ATTR_PORT_STATE"))),
        # There only if the link is in this network namespace.
        netdev=_text(message, "ATTR_NDEV_NAME"),
    )


def observe(sys_root: Path = Path("/sys"), dev_root: Path = Path("/dev")) -> Fabric:
    """Observe RDMA in this pod; ``attachments`` stays empty.

    It needs no privilege, blocks for milliseconds, and never fails: what can't be read is listed
    in ``unreadable``. On a modular kernel the question itself makes the kernel load ib_core, as
    every RDMA library does.
    """
    refused, no_rdma = "", False
    kernel: KernelRdma | None = None
    try:
        kernel = ask_kernel()
    except OSError as error:
        refused, no_rdma = os.strerror(error.errno or errno.EIO), error.errno == _NO_RDMA
    found = assemble(kernel, sys_root, dev_root, refused)
    # A kernel without RDMA knows no such socket; nor do sandboxes that have sysfs's devices.
    if refused and not no_rdma and not found.devices:
        message = f"netlink: {refused}: RDMA devices are not known"
        return replace(found, refused=refused, unreadable=(*found.unreadable, message))
    asked = {one.name: len(one.ports) for one in found.devices if one.opens}
    if not asked:
        return found
    there = libraries.find((*EFA_LIBRARIES, _RCCL_PLUGIN))
    if there is not None:
        plugin = next((name for name in (EFA_LIBRARIES[1], _RCCL_PLUGIN) if name in there), "")
        found = replace(found, plugin=there.get(plugin) or plugin)
        if any(one.driver == "efa" and one.opens for one in found.devices):
            found = replace(
                found, missing=tuple(name for name in EFA_LIBRARIES if name not in there)
            )
    return with_library(found, *libraries.devices(asked))


def with_library(
    found: Fabric, answers: Mapping[str, libraries.LibraryAnswer], wrong: str = ""
) -> Fabric:
    """Add the RDMA library's answers about its devices, and what went ``wrong`` with it."""

    def joined(device: RdmaDevice, answer: libraries.LibraryAnswer) -> RdmaDevice:
        ports = (
            replace(
                port,
                mtu=answer.mtus.get(port.number, port.mtu),
                gids=tuple(
                    replace(gid, link=answer.links.get((port.number, gid.index), 0))
                    for gid in port.gids
                ),
            )
            for port in device.ports
        )
        return replace(device, ports=tuple(ports), library_error=answer.why)

    devices = tuple(
        joined(device, answers[device.name]) if device.name in answers else device
        for device in found.devices
    )
    unreadable = (*found.unreadable, wrong) if wrong else found.unreadable
    return replace(found, devices=devices, unreadable=unreadable)


def assemble(
    kernel: KernelRdma | None, sys_root: Path, dev_root: Path, refused: str = ""
) -> Fabric:
    """Join netlink's answers with sysfs and the device nodes.

    Without netlink (None) the devices are those of sysfs, which may be the host's. With it,
    sysfs adds devices only where netlink's list was cut short.
    """
    unreadable = list(kernel.unreadable) if kernel is not None else []
    listed = {device.name: device for device in kernel.devices} if kernel is not None else {}
    names = list(listed)
    if kernel is None or not kernel.complete:
        names += [name for name in sysfs.rdma_names(sys_root) if name not in listed]
    if kernel is None and names:
        unreadable.append(
            f"netlink: {refused or 'no answer'}: RDMA devices are read from {sys_root} alone, "
            "and may be others than this pod's"
        )
    nodes = sysfs.rdma_nodes(sys_root) if names else {}
    nodes |= kernel.nodes if kernel is not None else {}
    devices = []
    for name in names:
        by_netlink, by_sysfs = listed.get(name), sysfs.rdma_device(sys_root, name, unreadable)
        if by_sysfs is None:
            if by_netlink is None or not by_netlink.ports:
                unreadable.append(f"{name}: went away while it was read")
                continue
            unreadable.append(f"{name}: not in {sys_root}/class/infiniband: its GIDs are not known")
        devices.append(_device(by_netlink, by_sysfs, nodes.get(name), sys_root, dev_root))
    unreadable_lists = kernel.unreadable if kernel is not None else ()
    return Fabric(
        netns_mode=kernel.mode if kernel is not None else "",
        infiniband_folder=(dev_root / "infiniband").is_dir(),
        devices=tuple(devices),
        unreadable=tuple(unreadable),
        refused=refused if names and kernel is None else next(iter(unreadable_lists), ""),
    )


def _device(
    by_netlink: RdmaDevice | None,
    by_sysfs: RdmaDevice | None,
    node: tuple[str, int | None] | None,
    sys_root: Path,
    dev_root: Path,
) -> RdmaDevice:
    """Join both: netlink comes first, sysfs fills in what it does not tell."""
    found = by_sysfs or RdmaDevice()
    first = by_netlink or replace(found, protocol=_protocol(found))
    uverbs, error = _open(dev_root, *(node or ("", None)))
    here = {port.number: port for port in found.ports}
    # An empty list of ports is a device that is on its way out, or a dump that failed.
    ports = (
        _port(port, here.get(port.number) or port, first.protocol, sys_root)
        for port in first.ports or found.ports
    )
    return replace(
        first,
        node_type=first.node_type or found.node_type,
        driver=first.driver or found.driver,
        pci=found.pci,
        uverbs=uverbs,
        open_error=error,
        ports=tuple(ports),
    )


def _port(by_netlink: RdmaPort, found: RdmaPort, protocol: str, sys_root: Path) -> RdmaPort:
    return replace(
        found,
        state=by_netlink.state,
        link_layer=found.link_layer or _LAYERS.get(protocol, LinkLayer.UNKNOWN),
        # By netlink alone: sysfs may be that of another network namespace.
        netdev=by_netlink.netdev,
        mtu=_roce_mtu(sys_root, by_netlink.netdev) if by_netlink.netdev else 0,
    )


def _roce_mtu(sys_root: Path, link: str) -> int:
    # Neither netlink nor sysfs has a port's active MTU; RoCE drivers derive it like this.
    fits = (sysfs.number(sys_root / "class" / "net" / link / "mtu") or 0) - _ROCE_HEADERS
    return next((mtu for mtu in IB_MTUS if mtu <= fits), 0)


def _open(dev_root: Path, name: str, rdev: int | None) -> tuple[str, str]:
    """Open a device node: its path (empty where it isn't there), and why it does not open."""
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
        found = f"{os.major(there)}:{os.minor(there)}"
        return str(path), f"is device {found} instead of {os.major(rdev)}:{os.minor(rdev)}"
    return str(path), ""


def _protocol(found: RdmaDevice) -> str:
    layers = {port.link_layer for port in found.ports}
    if layers == {LinkLayer.INFINIBAND}:
        return "ib"
    if layers == {LinkLayer.ETHERNET}:
        return "iw" if found.node_type == "RNIC" else "roce"
    return ""
