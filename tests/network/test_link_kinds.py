from __future__ import annotations

import struct

import pytest
from pyroute2 import IPRoute  # noqa: F401 - the package whole, which netlink loads in parts
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from mpiboot.core.facts import Link
from mpiboot.network import netlink

ETHER, INFINIBAND = 1, 32
UP, RUNNING = 0x1, 0x40


def seen(name: str, kind: str = "", arp: int = ETHER, **more: object) -> Link:
    """A link as the kernel's own bytes tell it, by another's hand."""
    message = ifinfmsg()
    message["index"], message["ifi_type"], message["flags"] = 2, arp, UP | RUNNING
    info: list[object] = [("IFLA_INFO_KIND", kind)]
    if "IFLA_IPOIB_PKEY" in more:
        info.append(("IFLA_INFO_DATA", {"attrs": [tuple(more.popitem())]}))
    message["attrs"] = [("IFLA_IFNAME", name), ("IFLA_MTU", 2044), *more.items()]
    if kind:
        message["attrs"].append(("IFLA_LINKINFO", {"attrs": info}))
    return netlink.link(decoded(message), ())


def decoded(message: ifinfmsg, more: bytes = b"") -> netlink.linkmsg:
    """The message as it comes from the kernel, with further attributes."""
    message.encode()
    data = bytes(message.data) + more
    found = netlink.linkmsg(struct.pack("=I", len(data)) + data[4:])
    found.decode()
    return found


def test_links_have_the_kind_of_their_driver_or_of_their_hardware() -> None:
    assert seen("eth0").kind == "ether"
    assert seen("lo", arp=772).kind == "loopback"
    assert seen("net1.7", "vlan").kind == "vlan"
    assert seen("tun0", arp=65534).kind == "type 65534"


def test_ipoib_links_have_their_key() -> None:
    child = seen("net1", "ipoib", INFINIBAND, IFLA_IPOIB_PKEY=0x8001)
    assert (child.kind, child.pkey) == ("ipoib", 0x8001)
    assert (seen("ib0", arp=INFINIBAND).kind, seen("ib0", arp=INFINIBAND).pkey) == ("ipoib", None)


def test_a_name_that_is_no_utf8_is_readable() -> None:
    name = struct.pack("=HH5sxxx", 9, 3, b"net\xff\0")
    assert netlink.link(decoded(ifinfmsg(), name), ()).name == r"net\xff"


def test_what_other_drivers_say_of_a_link_is_nothing() -> None:
    """An attribute of one byte, as a bond's first one is, where IPoIB has its key."""
    info = struct.pack("=HH5sxxx", 9, 1, b"bond\0") + struct.pack("=HHHHBxxx", 12, 2, 5, 1, 4)
    found = decoded(ifinfmsg(), struct.pack("=HH", 4 + len(info), 18) + info)
    assert netlink.link(found, ()).kind == "bond"


@pytest.mark.parametrize("length", [4, 6, 20])
def test_an_address_of_any_length_is_whole(length: int) -> None:
    """A tunnel's has 4 bytes, IPoIB's 20."""
    raw = bytes(range(length)) + bytes(-length % 4)
    found = decoded(ifinfmsg(), struct.pack("=HH", 4 + length, 1) + raw)
    assert netlink.link(found, ()).hardware == raw[:length].hex(":")
