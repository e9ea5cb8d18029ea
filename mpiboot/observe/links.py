"""Network links of this pod and the routes to a peer, as netlink tells them.

It names no link as the right one: that is decided from these facts.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from mpiboot import addresses
from mpiboot.data_network.observe.sysfs import PCI_FUNCTION, number, pci_function
from mpiboot.data_network.observe.sysfs import text as content
from mpiboot.fabric import Route
from mpiboot.model import Link

# What pyroute2's attributes decode to: numbers, text, bytes that are no UTF-8, nested messages.
_Value: TypeAlias = "int | str | bytes | list[_Message] | None"

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


class _Message(Protocol):
    """What is used of pyroute2's messages, which have no types."""

    def get_attr(self, attr: str) -> _Value: ...

    def get_nested(self, *attrs: str) -> _Value: ...

    def __getitem__(self, key: str) -> int: ...


def observe(
    sys_root: Path = Path("/sys"),
) -> tuple[tuple[Link, ...], tuple[Route, ...], tuple[str, ...]]:
    """List links and routes; empty, with a sentence on why, where netlink can't be asked.

    A sandbox may have no netlink, and a pod no descriptor left for it.
    """
    from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415

    try:
        return links(sys_root), routes(), ()
    except (OSError, NetlinkError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        return (), (), (f"netlink: {why}: links and routes are not known",)


def links(sys_root: Path = Path("/sys")) -> tuple[Link, ...]:
    """List the links with their addresses, in the kernel's order; it blocks for milliseconds.

    ``kind`` is the driver's (veth, macvlan, ipvlan, vlan, ipoib, …); for a link of a device
    ``vf`` or ``physical``; else ether or loopback.
    """
    # 120 ms to load, and never on the way of a worker to its sshd.
    from pyroute2 import IPRoute  # noqa: PLC0415

    with IPRoute() as netlink:
        known: dict[int, list[tuple[str, int]]] = {}
        for item in netlink.get_addr():
            # On a point-to-point link IFA_ADDRESS is the peer's, IFA_LOCAL is ours.
            own = item.get_attr("IFA_LOCAL") or item.get_attr("IFA_ADDRESS")
            if own:
                flags = item.get_attr("IFA_FLAGS")
                pair = f"{own}/{item['prefixlen']}", flags if isinstance(flags, int) else 0
                known.setdefault(item["index"], []).append(pair)
        return tuple(
            _link(item, known.get(item["index"], ()), sys_root) for item in netlink.get_links()
        )


def routes() -> tuple[Route, ...]:
    """List the unicast routes of the main table; one for each way of a route that has several.

    Tables of policy routing are left out, as they hold for some sources only, and link-local
    destinations, which every link has.
    """
    from pyroute2 import IPRoute  # noqa: PLC0415

    with IPRoute() as netlink:
        names = {item["index"]: _name(item.get_attr("IFLA_IFNAME")) for item in netlink.get_links()}
        return tuple(
            route
            for family in _DEFAULTS
            for item in netlink.get_routes(family=family)
            if item["type"] == _UNICAST and item.get_attr("RTA_TABLE") == _MAIN_TABLE
            for route in _routes(item, names, family)
        )


def _link(item: _Message, own: Sequence[tuple[str, int]], sys_root: Path) -> Link:
    name = _name(item.get_attr("IFLA_IFNAME"))
    folder = sys_root / "class" / "net" / name
    if content(folder / "ifindex") != str(item["index"]):
        folder = sys_root / "none"  # this sysfs is of another network namespace, as the host's is
    pci = _pci(item, folder)
    mtu = item.get_attr("IFLA_MTU")
    # The kernel adds the other namespace's number only where it isn't this one.
    lower, elsewhere = item.get_attr("IFLA_LINK"), item.get_attr("IFLA_LINK_NETNSID") is not None
    return Link(
        index=item["index"],
        name=name,
        kind=_kind(item, folder, sys_root / "bus" / "pci" / "devices" / pci if pci else None),
        up=bool(item["flags"] & _IFF_UP),
        mtu=mtu if isinstance(mtu, int) else 0,
        addresses=tuple(text for text, _ in own),
        # pyroute2 decodes six bytes only; those of IPoIB are twenty, and name its port.
        hardware=content(folder / "address") or _name(item.get_attr("IFLA_ADDRESS")),
        pci=pci,
        pkey=_pkey(item, folder),
        carrier=bool(item["flags"] & _IFF_RUNNING),
        lower=0 if elsewhere or not isinstance(lower, int) else lower,
        dev_port=number(folder / "dev_port") or 0,
        tentative=tuple(
            text
            for text, flags in own
            if flags & _TENTATIVE and not flags & (_OPTIMISTIC | _DADFAILED)
        ),
        duplicate=tuple(text for text, flags in own if flags & _DADFAILED),
    )


def _kind(item: _Message, folder: Path, function: Path | None) -> str:
    kind = item.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND")
    if isinstance(kind, str) and kind:
        return kind
    known = _TYPES.get(item["ifi_type"], f"type {item['ifi_type']}")
    if known == "ether" and (function or (folder / "device").exists()):
        return "vf" if function and (function / "physfn").exists() else "physical"
    return known


def _pci(item: _Message, folder: Path) -> str:
    # By netlink since kernel 5.14, whatever sysfs is mounted here.
    parent = item.get_attr("IFLA_PARENT_DEV_NAME")
    if isinstance(parent, str) and PCI_FUNCTION.fullmatch(parent):
        return parent
    return pci_function(folder / "device")


def _pkey(item: _Message, folder: Path) -> int | None:
    if item["ifi_type"] != _INFINIBAND:
        return None
    pkey = item.get_nested("IFLA_LINKINFO", "IFLA_INFO_DATA", "IFLA_IPOIB_PKEY")
    if isinstance(pkey, int):
        return pkey
    try:
        return int(content(folder / "pkey"), 16)
    except ValueError:
        return None


def _routes(item: _Message, names: dict[int, str], family: int) -> Iterator[Route]:
    destination = _name(item.get_attr("RTA_DST"))
    target = f"{destination}/{item['dst_len']}" if destination else _DEFAULTS[family]
    if target.startswith("fe80:"):
        return
    source = _name(item.get_attr("RTA_PREFSRC"))
    several = item.get_attr("RTA_MULTIPATH")
    for way in several if isinstance(several, list) else [item]:
        index = way.get_attr("RTA_OIF") if way is item else way["oif"]
        link = names.get(index, "") if isinstance(index, int) else ""
        if link:
            yield Route(target, link, _name(way.get_attr("RTA_GATEWAY")), source)


def _name(value: _Value) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, str) else ""


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
