"""Network links of this pod and its routes, by routing netlink in pyroute2's messages.

Which link is used for what is decided from these facts elsewhere. pyroute2 takes long to load, so
this module is loaded only where links are listed. ``nldev`` lists what else of pyroute2 is worked
around; it cuts an IPoIB link's address to 6 bytes (``IFLA_ADDRESS`` is an ``l2addr``,
netlink/rtnl/ifinfmsg), which is read from the attribute's bytes here.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from mpiboot.core.model import Link, Route
from mpiboot.network import nldev
from mpiboot.network.records import PCI_FUNCTION
from mpiboot.network.sysfs import number, pci_function
from mpiboot.network.sysfs import text as content

with nldev.only_parts():
    from pyroute2.netlink import NETLINK_ROUTE, rtnl
    from pyroute2.netlink.rtnl.ifaddrmsg import (
        IFA_F_DADFAILED,
        IFA_F_OPTIMISTIC,
        IFA_F_TENTATIVE,
        ifaddrmsg,
    )
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
    from pyroute2.netlink.rtnl.rtmsg import rtmsg

_Message = nldev.Message
_IFF_UP: Final = 0x1
_IFF_RUNNING: Final = 0x40
_INFINIBAND: Final = 32
# ARPHRD_ of linux/if_arp.h, for links that have no driver kind of their own.
_TYPES: Final = {1: "ether", _INFINIBAND: "ipoib", 772: "loopback"}
_ATTRIBUTE: Final = 4  # bytes of an attribute's length and type
_MAIN_TABLE: Final = 254
_UNICAST: Final = 1
_DEFAULTS: Final = {int(socket.AF_INET): "0.0.0.0/0", int(socket.AF_INET6): "::/0"}


# Routing netlink's messages, as far as they are asked for.
_MESSAGES: Final = {
    rtnl.RTM_NEWADDR: ifaddrmsg,
    rtnl.RTM_NEWLINK: ifinfmsg,
    rtnl.RTM_NEWROUTE: rtmsg,
}


def observe(
    sys_root: Path = Path("/sys"),
) -> tuple[tuple[Link, ...], tuple[Route, ...], tuple[str, ...]]:
    """List links and routes; empty, with a sentence on why, where netlink can't be asked.

    A sandbox may have no netlink, and a pod no descriptor left for it.
    """
    try:
        return *_observe(sys_root), ()
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        return (), (), (f"netlink: {why}: links and routes are not known",)


def _observe(sys_root: Path) -> tuple[tuple[Link, ...], tuple[Route, ...]]:
    """List the links with their addresses, in the kernel's order, and the routes.

    ``kind`` is the driver's (veth, macvlan, ipvlan, vlan, ipoib, …); for a link of a device
    ``vf`` or ``physical``; else ether or loopback. The routes are the unicast ones of the main
    table, one for each way of a route that has several: tables of policy routing hold for some
    sources only, and every link has link-local destinations.
    """
    with closing(nldev.Kernel(NETLINK_ROUTE, _MESSAGES)) as kernel:
        addresses = list(kernel.ask(rtnl.RTM_GETADDR, ifaddrmsg()))
        links = list(kernel.ask(rtnl.RTM_GETLINK, ifinfmsg()))
        routes: list[_Message] = []
        for family in _DEFAULTS:
            question = rtmsg()
            question["family"] = family
            routes += kernel.ask(rtnl.RTM_GETROUTE, question)
    known: dict[int, list[tuple[str, int]]] = {}
    for message in addresses:
        # On a point-to-point link IFA_ADDRESS is the peer's, IFA_LOCAL is ours.
        own = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
        if own and message["family"] in _DEFAULTS:
            own = f"{own}/{message['prefixlen']}"
            flags = message.get_attr("IFA_FLAGS") or 0
            known.setdefault(message["index"], []).append((own, flags))
    seen = tuple(link(message, known, sys_root) for message in links)
    names = {item.index: item.name for item in seen}
    return seen, tuple(route for message in routes for route in _routes(message, names))


def link(message: _Message, known: Mapping[int, Sequence[tuple[str, int]]], sys_root: Path) -> Link:
    """Read a link from netlink's answer, with the addresses (and their flags) of all links."""
    arp, index, flags = message["ifi_type"], message["index"], message["flags"]
    own = known.get(index, ())
    name = _text(message.get_attr("IFLA_IFNAME"))
    info = message.get_attr("IFLA_LINKINFO")
    folder = sys_root / "class" / "net" / name
    if content(folder / "ifindex") != str(index):
        folder = sys_root / "none"  # this sysfs is of another network namespace, as the host's is
    # By netlink since kernel 5.14, whatever sysfs is mounted here.
    parent = _text(message.get_attr("IFLA_PARENT_DEV_NAME"))
    pci = parent if PCI_FUNCTION.fullmatch(parent) else pci_function(folder / "device")
    function = sys_root / "bus" / "pci" / "devices" / pci if pci else None
    # The kernel adds the other namespace's number only where it isn't this one.
    here = message.get_attr("IFLA_LINK_NETNSID") is None
    return Link(
        index=index,
        name=name,
        kind=_text(info and info.get_attr("IFLA_INFO_KIND")) or _kind(arp, folder, function),
        up=bool(flags & _IFF_UP),
        mtu=message.get_attr("IFLA_MTU") or 0,
        addresses=tuple(text for text, _ in own),
        hardware=content(folder / "address") or _hardware(message),
        pci=pci,
        pkey=_pkey(info, folder) if arp == _INFINIBAND else None,
        carrier=bool(flags & _IFF_RUNNING),
        lower=(here and message.get_attr("IFLA_LINK")) or 0,
        dev_port=number(folder / "dev_port") or 0,
        # An optimistic address is used while it is still tentative.
        tentative=tuple(
            text
            for text, flags in own
            if flags & IFA_F_TENTATIVE and not flags & (IFA_F_OPTIMISTIC | IFA_F_DADFAILED)
        ),
        duplicate=tuple(text for text, flags in own if flags & IFA_F_DADFAILED),
    )


def _text(value: str | bytes | None) -> str:
    """Give an attribute's text; what is no UTF-8, which pyroute2 gives as bytes, escaped."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value or ""


def _hardware(message: _Message) -> str:
    for slot in message["attrs"]:
        name, attribute = slot.cell
        if name == "IFLA_ADDRESS":
            begin = attribute.offset + _ATTRIBUTE
            return bytes(attribute.data[begin : attribute.offset + attribute.length]).hex(":")
    return ""


def _kind(arp: int, folder: Path, function: Path | None) -> str:
    known = _TYPES.get(arp, f"type {arp}")
    if known == "ether" and (function or (folder / "device").exists()):
        return "vf" if function and (function / "physfn").exists() else "physical"
    return known


def _pkey(info: _Message, folder: Path) -> int | None:
    data = info and info.get_attr("IFLA_INFO_DATA")
    pkey: int | None = data and data.get_attr("IFLA_IPOIB_PKEY")
    if pkey is not None:
        return pkey
    try:
        return int(content(folder / "pkey"), 16)
    except ValueError:
        return None


def _routes(message: _Message, names: Mapping[int, str]) -> Iterator[Route]:
    if message["type"] != _UNICAST or message.get_attr("RTA_TABLE") != _MAIN_TABLE:
        return
    destination, prefix = message.get_attr("RTA_DST"), message["dst_len"]
    target = f"{destination}/{prefix}" if destination else _DEFAULTS[message["family"]]
    if target.startswith("fe80:"):
        return
    source = message.get_attr("RTA_PREFSRC") or ""
    several = message.get_attr("RTA_MULTIPATH")
    alone = [(message.get_attr("RTA_OIF"), message)]
    for index, way in alone if several is None else [(hop["oif"], hop) for hop in several]:
        if index in names:
            yield Route(target, names[index], way.get_attr("RTA_GATEWAY") or "", source)
