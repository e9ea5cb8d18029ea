"""Network links of this pod and the routes to a peer, as netlink tells them.

It names no link as the right one: that is decided from these facts.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from mpiboot.core import addresses
from mpiboot.core.model import Link, Route
from mpiboot.network import netlink
from mpiboot.network.sysfs import PCI_FUNCTION, number, pci_function
from mpiboot.network.sysfs import text as content

_Attributes = Mapping[int, bytes]

# linux/rtnetlink.h, if_link.h, if_addr.h: questions, what stands before their attributes, and the
# attributes' numbers.
_ROUTE_PROTOCOL: Final = 0  # NETLINK_ROUTE
_GET_LINK, _GET_ADDRESS, _GET_ROUTE = 18, 22, 26
_LINK: Final = struct.Struct("=BxHiII")  # family, ARPHRD_, index, flags, change
_ADDRESS: Final = struct.Struct("=BBBBI")  # family, length of the prefix, flags, scope, index
# Family, lengths of both prefixes, TOS, table, protocol, scope, type, flags.
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_NEXT_HOP: Final = struct.Struct("=HBBi")  # length, flags, weight, index
_IFLA_ADDRESS, _IFLA_NAME, _IFLA_MTU, _IFLA_LINK, _IFLA_INFO = 1, 3, 4, 5, 18
_IFLA_LINK_NETNS, _IFLA_PARENT_DEVICE = 37, 56
_INFO_KIND, _INFO_DATA, _IPOIB_PKEY = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PREFSRC, _RTA_MULTIPATH, _RTA_TABLE = 1, 4, 5, 7, 9, 15
_IFF_UP: Final = 0x1
_IFF_RUNNING: Final = 0x40
# IFA_F_ of linux/if_addr.h: an optimistic address is used while it is still tentative.
_OPTIMISTIC, _DADFAILED, _TENTATIVE = 0x4, 0x8, 0x40
_DISCARD: Final = 9  # a port is needed to ask the kernel for a route; nothing is sent to it
_INFINIBAND: Final = 32
# ARPHRD_ of linux/if_arp.h, for links that have no driver kind of their own.
_TYPES: Final = {1: "ether", _INFINIBAND: "ipoib", 772: "loopback"}
_MAIN_TABLE: Final = 254
_UNICAST: Final = 1
_DEFAULTS: Final = {int(socket.AF_INET): "0.0.0.0/0", int(socket.AF_INET6): "::/0"}


def observe(
    sys_root: Path = Path("/sys"),
) -> tuple[tuple[Link, ...], tuple[Route, ...], tuple[str, ...]]:
    """List links and routes; empty, with a sentence on why, where netlink can't be asked.

    A sandbox may have no netlink, and a pod no descriptor left for it.
    """
    try:
        return links(sys_root), routes(), ()
    except (OSError, ValueError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        return (), (), (f"netlink: {why}: links and routes are not known",)


def links(sys_root: Path = Path("/sys")) -> tuple[Link, ...]:
    """List the links with their addresses, in the kernel's order; it blocks for milliseconds.

    ``kind`` is the driver's (veth, macvlan, ipvlan, vlan, ipoib, …); for a link of a device
    ``vf`` or ``physical``; else ether or loopback.

    Raises:
        OSError: netlink can't be asked.
        ValueError: its answer can't be read.
    """
    with netlink.connect(_ROUTE_PROTOCOL) as channel:
        questions = netlink.Questions(channel)
        known: dict[int, list[tuple[str, int]]] = {}
        for data in questions.ask(_GET_ADDRESS, bytes(_ADDRESS.size)):
            (family, prefix, _, _, index), found = netlink.split(_ADDRESS, data)
            # On a point-to-point link IFA_ADDRESS is the peer's, IFA_LOCAL is ours.
            own = _address(family, found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS))
            if own:
                flags = netlink.number(found.get(_IFA_FLAGS, b""))
                known.setdefault(index, []).append((f"{own}/{prefix}", flags))
        return tuple(
            link(data, known, sys_root) for data in questions.ask(_GET_LINK, bytes(_LINK.size))
        )


def routes() -> tuple[Route, ...]:
    """List the unicast routes of the main table; one for each way of a route that has several.

    Tables of policy routing are left out, as they hold for some sources only, and link-local
    destinations, which every link has.

    Raises:
        OSError: netlink can't be asked.
        ValueError: its answer can't be read.
    """
    with netlink.connect(_ROUTE_PROTOCOL) as channel:
        questions = netlink.Questions(channel)
        answers = questions.ask(_GET_LINK, bytes(_LINK.size))
        names = {
            index: _name(found)
            for (_, _, index, _, _), found in (netlink.split(_LINK, data) for data in answers)
        }
        return tuple(
            route
            for family in _DEFAULTS
            for data in questions.ask(_GET_ROUTE, bytes([family]) + bytes(_ROUTE.size - 1))
            for route in _routes(data, names)
        )


def link(data: bytes, known: Mapping[int, Sequence[tuple[str, int]]], sys_root: Path) -> Link:
    """Read a link from netlink's answer, with the addresses (and their flags) of all links.

    Raises:
        ValueError: the answer is cut short.
    """
    (_, arp, index, flags, _), found = netlink.split(_LINK, data)
    info = netlink.attributes(found.get(_IFLA_INFO, b""))
    own = known.get(index, ())
    name = _name(found)
    folder = sys_root / "class" / "net" / name
    if content(folder / "ifindex") != str(index):
        folder = sys_root / "none"  # this sysfs is of another network namespace, as the host's is
    # By netlink since kernel 5.14, whatever sysfs is mounted here.
    parent = netlink.text(found.get(_IFLA_PARENT_DEVICE, b""))
    pci = parent if PCI_FUNCTION.fullmatch(parent) else pci_function(folder / "device")
    function = sys_root / "bus" / "pci" / "devices" / pci if pci else None
    # The kernel adds the other namespace's number only where it isn't this one.
    below = b"" if _IFLA_LINK_NETNS in found else found.get(_IFLA_LINK, b"")
    return Link(
        index=index,
        name=name,
        kind=netlink.text(info.get(_INFO_KIND, b"")) or _kind(arp, folder, function),
        up=bool(flags & _IFF_UP),
        mtu=netlink.number(found.get(_IFLA_MTU, b"")),
        addresses=tuple(text for text, _ in own),
        hardware=content(folder / "address") or found.get(_IFLA_ADDRESS, b"").hex(":"),
        pci=pci,
        pkey=_pkey(info, folder) if arp == _INFINIBAND else None,
        carrier=bool(flags & _IFF_RUNNING),
        lower=netlink.number(below),
        dev_port=number(folder / "dev_port") or 0,
        tentative=tuple(
            text
            for text, flags in own
            if flags & _TENTATIVE and not flags & (_OPTIMISTIC | _DADFAILED)
        ),
        duplicate=tuple(text for text, flags in own if flags & _DADFAILED),
    )


def _name(found: _Attributes) -> str:
    return netlink.text(found.get(_IFLA_NAME, b""))


def _address(family: int, value: bytes | None) -> str:
    return socket.inet_ntop(family, value) if value and family in _DEFAULTS else ""


def _kind(arp: int, folder: Path, function: Path | None) -> str:
    known = _TYPES.get(arp, f"type {arp}")
    if known == "ether" and (function or (folder / "device").exists()):
        return "vf" if function and (function / "physfn").exists() else "physical"
    return known


def _pkey(info: _Attributes, folder: Path) -> int | None:
    pkey = netlink.attributes(info.get(_INFO_DATA, b"")).get(_IPOIB_PKEY)
    if pkey is not None:
        return netlink.number(pkey)
    try:
        return int(content(folder / "pkey"), 16)
    except ValueError:
        return None


def _routes(data: bytes, names: Mapping[int, str]) -> Iterator[Route]:
    (family, prefix, *_, kind, _), found = netlink.split(_ROUTE, data)
    if kind != _UNICAST or netlink.number(found.get(_RTA_TABLE, b"")) != _MAIN_TABLE:
        return
    destination = _address(family, found.get(_RTA_DST))
    target = f"{destination}/{prefix}" if destination else _DEFAULTS[family]
    if target.startswith("fe80:"):
        return
    source = _address(family, found.get(_RTA_PREFSRC))
    several = found.get(_RTA_MULTIPATH)
    alone = [(netlink.number(found.get(_RTA_OIF, b"")), found)]
    for index, way in alone if several is None else _next_hops(several):
        if index in names:
            yield Route(target, names[index], _address(family, way.get(_RTA_GATEWAY)), source)


def _next_hops(data: bytes) -> Iterator[tuple[int, _Attributes]]:
    while data:
        length = netlink.number(data[:2])
        (_, _, _, index), found = netlink.split(_NEXT_HOP, data[:length])
        yield index, found
        data = data[(length + 3) & ~3 :]


def source_address(address: str) -> str:
    """Give the address from which the kernel would talk to a peer; empty if there is no route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, _DISCARD))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def is_local(address: str) -> bool:
    """Tell whether an address is this pod's own.

    The kernel talks to an own address from that address. The rest of 127/8 is not counted: it is
    talked to from 127.0.0.1, and workers may stand on it in a trial without a cluster.
    """
    wanted = addresses.parse(address)
    return wanted is not None and addresses.parse(source_address(address)) == wanted
