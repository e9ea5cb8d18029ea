"""Which port of which RDMA device stands behind a link: the rules in order, each with its evidence.

A device's name is never evidence, nor is /dev/infiniband alone, nor an entry's link name alone
(another pod's link may have the same name). Pure.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from mpiboot import addresses
from mpiboot.addresses import Interface
from mpiboot.data_network import nccl
from mpiboot.fabric import Attachment, Fabric, Gid, RdmaDevice, RdmaPort
from mpiboot.model import Link

Found: TypeAlias = "tuple[RdmaDevice, RdmaPort]"

_ROCE_V2: Final = "RoCE v2"
_IPOIB_BYTES: Final = 20


@dataclass(frozen=True, slots=True)
class Rail:
    """A port of an RDMA device that is this pod's, the link above it if there is one, and why."""

    device: RdmaDevice
    port: RdmaPort
    link: Link | None
    because: str

    @property
    def name(self) -> str:
        """The port as NCCL and UCX write it, such as ``mlx5_3:1``."""
        return f"{self.device.name}:{self.port.number}"

    @property
    def infiniband(self) -> bool:
        """Whether the port's link layer is InfiniBand."""
        return self.port.link_layer == "InfiniBand"

    @property
    def ready(self) -> bool:
        """Whether the device can be used and the port is active."""
        return usable(self.device) and self.port.state == "ACTIVE"


def interfaces(link: Link) -> tuple[Interface, ...]:
    """Give a link's addresses that a peer can use: no loopback and no link-local ones."""
    unusable = {*link.tentative, *link.duplicate}
    if unusable:
        return _interfaces(tuple(item for item in link.addresses if item not in unusable))
    return _interfaces(link.addresses)


def coming(link: Link) -> tuple[Interface, ...]:
    """Give those that can't be used yet: the kernel still looks whether another host has them."""
    return _interfaces(link.tentative)


def refused(link: Link) -> tuple[Interface, ...]:
    """Give those that the kernel refuses: another host has them."""
    return _interfaces(link.duplicate)


@functools.lru_cache(maxsize=1 << 16)
def _interfaces(texts: tuple[str, ...]) -> tuple[Interface, ...]:
    found = map(addresses.interface, texts)
    return tuple(
        item
        for item in found
        if item and not (item.is_loopback or item.is_link_local or item.is_unspecified)
    )


def usable(device: RdmaDevice) -> bool:
    """Whether a device opens, and the RDMA library has a driver for it, as far as is known."""
    return device.opens == "ok" and device.library in ("", "ok")


def is_efa(device: RdmaDevice) -> bool:
    """Whether a device is AWS's EFA: it has no link, and NCCL's own IB transport skips it."""
    return device.driver.lower().startswith("efa") or (
        device.node_type.lower() in ("unspecified", "7") and not device.protocol
    )


def ports(devices: Iterable[RdmaDevice]) -> tuple[Found, ...]:
    """List all ports with their devices, without EFA's."""
    return tuple(
        (device, port) for device in devices if not is_efa(device) for port in device.ports
    )


def is_entry_of(gid: Gid, link: Link) -> bool:
    """Whether a RoCE v2 entry may be this link's, by name and index; the address is not looked at.

    Another pod's link can have the same name, and seldom the same index as well; the name is
    missing where sysfs is only partly there.
    """
    return gid.kind == _ROCE_V2 and gid.netdev in (link.name, "") and gid.link in (link.index, 0)


def _by_kernel(link: Link, fabric: Fabric, _: Sequence[Link]) -> list[Found]:
    # Given only for a link of the asking network namespace: the one exact answer.
    return [item for item in ports(fabric.devices) if item[1].netdev == link.name]


def _by_lower_link(link: Link, fabric: Fabric, links: Sequence[Link]) -> list[Found]:
    below = {other.index: other for other in links}
    seen: set[int] = set()
    # A VLAN in a VLAN stands on the link below both.
    while link.kind == "vlan" and link.lower in below and link.lower not in seen:
        seen.add(link.lower)
        link = below[link.lower]
    return [item for item in ports(fabric.devices) if seen and item[1].netdev == link.name]


def _by_hardware(link: Link, fabric: Fabric, _: Sequence[Link]) -> list[Found]:
    # IPoIB: 4 bytes of flags and queue pair, then the port's GID; also for P_Key children.
    try:
        raw = bytes.fromhex(link.hardware.replace(":", ""))
    except ValueError:
        return []
    if len(raw) != _IPOIB_BYTES:
        return []
    own = ipaddress.IPv6Address(raw[4:])
    return [
        item
        for item in ports(fabric.devices)
        if any(nccl.address(gid) == own for gid in item[1].gids)
    ]


def _by_function(link: Link, fabric: Fabric, _: Sequence[Link]) -> list[Found]:
    return [
        (device, port)
        for device, port in ports(fabric.devices)
        if link.pci and device.pci == link.pci
        # A function may have several ports, as ConnectX-3's has.
        if len(device.ports) == 1 or port.number == link.dev_port + 1
    ]


def _by_platform(link: Link, fabric: Fabric, _: Sequence[Link]) -> list[Found]:
    said = [item for item in fabric.attachments if item.link == link.name]
    return [item for item in ports(fabric.devices) if any(_names(one, item[0]) for one in said)]


def _by_gid(link: Link, fabric: Fabric, _: Sequence[Link]) -> list[Found]:
    own = {item.ip for item in interfaces(link)}
    return [
        item
        for item in ports(fabric.devices)
        if any(
            gid.netdev == link.name and is_entry_of(gid, link) and nccl.address(gid) in own
            for gid in item[1].gids
        )
    ]


_RULES: Final[tuple[tuple[Callable[[Link, Fabric, Sequence[Link]], list[Found]], str], ...]] = (
    (_by_kernel, "the kernel says that this port drives it"),
    (_by_lower_link, "the kernel says that this port drives the link below the VLAN"),
    (_by_hardware, "its hardware address holds this port's GID"),
    (_by_function, "link and device are one PCI function"),
    (_by_platform, "the platform says so"),
    (_by_gid, "its address is in this port's GID table under its name"),
)


def _names(said: Attachment, device: RdmaDevice) -> bool:
    return bool((said.rdma and said.rdma == device.name) or (said.pci and said.pci == device.pci))


def named_by_platform(device: RdmaDevice, fabric: Fabric) -> str:
    """Tell which platform evidence names this device as this container's; empty for none."""
    return next((item.by for item in fabric.attachments if _names(item, device)), "")


def behind(link: Link, fabric: Fabric, links: Sequence[Link]) -> tuple[tuple[Found, ...], str]:
    """Find the port behind a link by the first rule that answers.

    Several ports of one answer are narrowed to those whose entries hold the link's address, then
    to those whose device opens.

    Returns:
        The ports (none: a link without RDMA; several: they can't be told apart) and the evidence.
    """
    for rule, because in _RULES:
        found = rule(link, fabric, links)
        if len(found) > 1:
            by_gid = _by_gid(link, fabric, links)
            found = [item for item in found if item in by_gid] or found
        if len(found) > 1:
            found = [item for item in found if item[0].opens == "ok"] or found
        if found:
            return tuple(found), because
    return (), ""
