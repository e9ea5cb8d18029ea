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
from typing import Final, NamedTuple, TypeVar

from mpiboot.core.facts import Fabric, LinkLayer, RdmaDevice, RdmaPort
from mpiboot.network import libraries, netlink, sysfs
from mpiboot.network.records import IB_MTUS

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
_T = TypeVar("_T")
# A kernel before 5.2 has no network namespace mode.
_NO_MODE: Final = (errno.EINVAL, errno.EOPNOTSUPP)


class KernelRdma(NamedTuple):
    """The kernel's answers; ``complete``: its list of devices came to its end.

    ``mode`` is ``shared``, ``exclusive`` or empty. A port has its number and link alone.
    """

    mode: str
    devices: tuple[RdmaDevice, ...]
    complete: bool
    unreadable: tuple[str, ...] = ()


def ask_kernel() -> KernelRdma:
    """Query netns mode, devices and their ports.

    What is refused, cut short or gone meanwhile is left out and listed in ``unreadable``.

    Raises:
        OSError: the kernel has no RDMA part (EPROTONOSUPPORT), or it is refused here.
    """
    with closing(netlink.Kernel()) as kernel:
        return read(kernel)


def read(kernel: netlink.Kernel, seconds: float = netlink.TIMEOUT_S) -> KernelRdma:
    """Query an open socket, for so many seconds at most each time."""
    queries = _Queries(kernel, seconds)
    listed = queries.ask(netlink.GET, "the list of RDMA devices", dump=True)
    complete = not queries.unreadable
    found = [device for message in listed if (device := _listed(queries, message)) is not None]
    complete = complete and len(found) == len(listed)
    return KernelRdma(_mode(queries), tuple(found), complete, tuple(queries.unreadable))


class _Queries:
    """Queries, and what went wrong with them."""

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
    ) -> list[netlink.Message]:
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


def _attribute(message: netlink.Message, name: str, default: _T) -> _T:
    """Give an attribute; ``default`` where it isn't there, or of another type (text: no UTF-8)."""
    value = message.get_attr(f"{netlink.nldevmsg.prefix}{name}")
    return value if isinstance(value, type(default)) else default


def _mode(queries: _Queries) -> str:
    before = len(queries.unreadable)
    answer = queries.ask(netlink.SYS_GET, "the network namespace mode", _NO_MODE)
    if not answer:
        return "shared" if len(queries.unreadable) == before else ""
    return "shared" if _attribute(answer[0], "SYS_ATTR_NETNS_MODE", 1) else "exclusive"


def _listed(queries: _Queries, message: netlink.Message) -> RdmaDevice | None:
    index = _attribute(message, "ATTR_DEV_INDEX", -1)
    name = _attribute(message, "ATTR_DEV_NAME", "")
    if index < 0 or not name:
        return None
    protocol = _attribute(message, "ATTR_DEV_PROTOCOL", "")
    layer = _LAYERS.get(protocol, LinkLayer.UNKNOWN)
    ports = queries.ask(netlink.PORT_GET, f"the ports of {name}", dump=True, dev_index=index)
    return RdmaDevice(
        index,
        name,
        protocol,
        ports=tuple(
            RdmaPort(
                _attribute(port, "ATTR_PORT_INDEX", 0),
                link_layer=layer,
                # There only if the link is in this network namespace.
                netdev=_attribute(port, "ATTR_NDEV_NAME", ""),
            )
            for port in ports
        ),
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
    ports = {one.name: len(one.ports) for one in found.devices if one.opens}
    if not ports:
        return found
    return with_library(_with_plugin(found), *libraries.devices(ports))


def _with_plugin(found: Fabric) -> Fabric:
    """Add NCCL's network plugin, and the libraries that EFA lacks, as the loader finds them."""
    there = libraries.find((*EFA_LIBRARIES, _RCCL_PLUGIN))
    if there is None:
        return found
    plugin = next((name for name in (EFA_LIBRARIES[1], _RCCL_PLUGIN) if name in there), "")
    efa = any(one.driver == "efa" and one.opens for one in found.devices)
    missing = tuple(name for name in EFA_LIBRARIES if name not in there) if efa else ()
    return replace(found, plugin=there.get(plugin) or plugin, missing=missing)


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
    seen = kernel or KernelRdma("", (), complete=False)
    listed = {device.name: device for device in seen.devices}
    names = list(listed)
    if not seen.complete:
        names += [name for name in sysfs.rdma_names(sys_root) if name not in listed]
    unreadable = list(seen.unreadable)
    if kernel is None and names:
        unreadable.append(
            f"netlink: {refused or 'no answer'}: RDMA devices are read from {sys_root} alone, "
            "and may be others than this pod's"
        )
    nodes = sysfs.rdma_nodes(sys_root) if names else {}
    devices = []
    for name in names:
        found = _joined(name, listed.get(name), sys_root, unreadable)
        if found:
            uverbs, error = _open(dev_root, *nodes.get(name, ("", None)))
            devices.append(replace(found, uverbs=uverbs, open_error=error))
    return Fabric(
        netns_mode=seen.mode,
        infiniband_folder=(dev_root / "infiniband").is_dir(),
        devices=tuple(devices),
        unreadable=tuple(unreadable),
        refused=refused if names and kernel is None else next(iter(seen.unreadable), ""),
    )


def _joined(
    name: str, by_netlink: RdmaDevice | None, sys_root: Path, unreadable: list[str]
) -> RdmaDevice | None:
    """Read a device from sysfs, with netlink's links; from netlink alone where sysfs lacks it."""
    found = sysfs.rdma_device(sys_root, name, unreadable)
    if found is None and by_netlink and by_netlink.ports:
        unreadable.append(f"{name}: not in {sys_root}/class/infiniband: its GIDs are not known")
        found = by_netlink
    if found is None:
        unreadable.append(f"{name}: went away while it was read")
        return None
    if by_netlink:
        found = replace(found, index=by_netlink.index, protocol=by_netlink.protocol)
    # This sysfs may be that of another network namespace. No port at all is a dump that failed.
    links = {port.number: port.netdev for port in by_netlink.ports} if by_netlink else {}
    ports = (replace(port, netdev=links.get(port.number, port.netdev)) for port in found.ports)
    return replace(
        found, ports=tuple(replace(port, mtu=_roce_mtu(sys_root, port.netdev)) for port in ports)
    )


def _roce_mtu(sys_root: Path, link: str) -> int:
    # Neither netlink nor sysfs has a port's active MTU; RoCE drivers derive it like this.
    mtu = sysfs.number(sys_root / "class" / "net" / link / "mtu") if link else None
    return next((one for one in IB_MTUS if one + _ROCE_HEADERS <= (mtu or 0)), 0)


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
