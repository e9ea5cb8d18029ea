"""Which port of which RDMA device stands behind a link: the rules in order, each with its evidence.

A device's name is never evidence, nor is /dev/infiniband alone, nor an entry's link name alone
(another pod's link may have the same name). Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from mpiboot.core.fabric import Fabric, Gid, GidType, RdmaDevice, RdmaPort
from mpiboot.core.model import Link, Source
from mpiboot.network import nccl
from mpiboot.network.link_addresses import usable
from mpiboot.network.records import Rail

Found: TypeAlias = "tuple[RdmaDevice, RdmaPort]"

_IPOIB_BYTES: Final = 20


def ports(devices: Iterable[RdmaDevice]) -> tuple[Found, ...]:
    """List all ports with their devices, without EFA's."""
    return tuple((device, port) for device in devices if not device.efa for port in device.ports)


def is_entry_of(gid: Gid, link: Link) -> bool:
    """Whether a RoCE v2 entry may be this link's, by name and index; the address is not looked at.

    Another pod's link can have the same name, and seldom the same index as well; the name is
    missing where sysfs is only partly there.
    """
    return (
        gid.kind is GidType.ROCE_V2
        and gid.netdev in (link.name, "")
        and gid.link in (link.index, 0)
    )


def _driving(link: Link, fabric: Fabric) -> list[Found]:
    return [
        (device, port)
        for device in fabric.devices
        for port in device.ports
        if port.netdev == link.name and not device.efa
    ]


def _by_kernel(link: Link, fabric: Fabric, _: Sequence[Link]) -> list[Found]:
    # Given only for a link of the asking network namespace: the one exact answer.
    return _driving(link, fabric)


def _by_lower_link(link: Link, fabric: Fabric, links: Sequence[Link]) -> list[Found]:
    below = {other.index: other for other in links}
    seen: set[int] = set()
    # A VLAN in a VLAN stands on the link below both.
    while link.kind == "vlan" and link.lower in below and link.lower not in seen:
        seen.add(link.lower)
        link = below[link.lower]
    return _driving(link, fabric) if seen else []


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
    return [item for item in ports(fabric.devices) if any(one.names(item[0]) for one in said)]


def _by_gid(link: Link, fabric: Fabric, _: Sequence[Link]) -> list[Found]:
    own = {item.ip for item in usable(link)}
    return [
        item
        for item in ports(fabric.devices)
        if any(
            gid.netdev == link.name and is_entry_of(gid, link) and nccl.address(gid) in own
            for gid in item[1].gids
        )
    ]


_Rule: TypeAlias = "Callable[[Link, Fabric, Sequence[Link]], list[Found]]"
_SEEN, _SAID = Source.DETECTED, Source.PLATFORM
_RULES: Final[tuple[tuple[_Rule, Source, str], ...]] = (
    (_by_kernel, _SEEN, "the kernel says that this port drives it"),
    (_by_lower_link, _SEEN, "the kernel says that this port drives the link below the VLAN"),
    (_by_hardware, _SEEN, "its hardware address holds this port's GID"),
    (_by_function, _SEEN, "link and device are one PCI function"),
    (_by_platform, _SAID, "the platform says so"),
    (_by_gid, _SEEN, "its address is in this port's GID table under its name"),
)


def named_by_platform(device: RdmaDevice, fabric: Fabric) -> bool:
    """Tell whether the platform names this device as this container's."""
    return any(item.names(device) for item in fabric.attachments)


def behind(link: Link, fabric: Fabric, links: Sequence[Link]) -> tuple[Rail, ...]:
    """Find the port behind a link by the first rule that answers.

    Several ports of one answer are narrowed to those whose entries hold the link's address, then
    to those whose device opens.

    Returns:
        The ports; none: a link without RDMA; several: they can't be told apart.
    """
    for rule, source, because in _RULES:
        found = rule(link, fabric, links)
        if len(found) > 1:
            by_gid = _by_gid(link, fabric, links)
            found = [item for item in found if item in by_gid] or found
        if len(found) > 1:
            found = [item for item in found if item[0].opens] or found
        if found:
            return tuple(Rail(device, port, link, because, source) for device, port in found)
    return ()
