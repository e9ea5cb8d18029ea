from __future__ import annotations

import struct
from pathlib import Path

import pytest
from pyroute2 import IPRoute  # noqa: F401 - the package whole, which netlink loads in parts
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from mpiboot.core.facts import Link
from mpiboot.network import netlink
from tests.data.build_sysfs import build
from tests.data.rdma_nodes import TREES

ETHER, INFINIBAND = 1, 32
UP, RUNNING = 0x1, 0x40


def seen(
    sys_root: Path, name: str, index: int, kind: str = "", arp: int = ETHER, **more: object
) -> Link:
    """A link as the kernel's own bytes tell it, by another's hand, with sysfs beside."""
    message = ifinfmsg()
    message["index"], message["ifi_type"], message["flags"] = index, arp, UP | RUNNING
    info: list[object] = [("IFLA_INFO_KIND", kind)]
    if "IFLA_IPOIB_PKEY" in more:
        info.append(("IFLA_INFO_DATA", {"attrs": [tuple(more.popitem())]}))
    message["attrs"] = [("IFLA_IFNAME", name), ("IFLA_MTU", 2044), *more.items()]
    if kind:
        message["attrs"].append(("IFLA_LINKINFO", {"attrs": info}))
    return netlink.link(decoded(message), {}, sys_root)


def decoded(message: ifinfmsg, more: bytes = b"") -> netlink.linkmsg:
    """The message as it comes from the kernel, with further attributes."""
    message.encode()
    data = bytes(message.data) + more
    found = netlink.linkmsg(struct.pack("=I", len(data)) + data[4:])
    found.decode()
    return found


@pytest.fixture
def vfs(tmp_path: Path) -> Path:
    return build(TREES["mlx5-vfs"], tmp_path)[0]


def test_a_vf_is_told_from_other_hardware_by_its_function(vfs: Path) -> None:
    vf = seen(vfs, "net1", 2)
    assert (vf.kind, vf.pci, vf.hardware) == ("vf", "0000:08:00.5", "02:00:00:00:00:02")
    (vfs / "bus/pci/devices/0000:08:00.5/physfn").rmdir()
    assert seen(vfs, "net1", 2).kind == "physical"
    (vfs / "class/net/net1/dev_port").write_text("1\n")
    assert seen(vfs, "net1", 2).dev_port == 1


def test_the_sysfs_of_another_namespace_is_not_believed_but_netlink_is(vfs: Path) -> None:
    other = seen(vfs, "net1", 7)
    assert (other.kind, other.pci, other.hardware) == ("ether", "", "")
    vf = seen(vfs, "net1", 7, IFLA_PARENT_DEV_NAME="0000:08:00.5")
    assert (vf.kind, vf.pci) == ("vf", "0000:08:00.5")


def test_ipoib_links_have_their_whole_address_and_key(tmp_path: Path) -> None:
    tree = TREES["ipoib"]
    sys_root, _ = build(tree, tmp_path)
    (sys_root / "class/net/ib0/pkey").write_text("0xffff\n")
    parent = seen(sys_root, "ib0", 2, "ipoib", INFINIBAND)
    child = seen(sys_root, "net1", 3, "ipoib", INFINIBAND, IFLA_IPOIB_PKEY=0x8001)
    assert (parent.kind, parent.pkey, parent.hardware) == ("ipoib", 0xFFFF, tree.addresses["ib0"])
    assert (child.kind, child.pkey, child.hardware) == ("ipoib", 0x8001, tree.addresses["net1"])
    assert parent.pci == "0000:01:00.0"
    assert child.pci == ""


def test_the_link_below_is_known_by_its_index_unless_it_is_elsewhere(tmp_path: Path) -> None:
    here = seen(tmp_path, "net1.7", 5, "vlan", IFLA_LINK=4)
    elsewhere = seen(tmp_path, "net1.7", 5, "vlan", IFLA_LINK=4, IFLA_LINK_NETNSID=0)
    alone = seen(tmp_path, "net1", 4)
    assert (here.lower, elsewhere.lower, alone.lower) == (4, 0, 0)


def test_a_name_that_is_no_utf8_is_readable(tmp_path: Path) -> None:
    name = struct.pack("=HH5sxxx", 9, 3, b"net\xff\0")
    assert netlink.link(decoded(ifinfmsg(), name), {}, tmp_path).name == r"net\xff"


def test_what_other_drivers_say_of_a_link_is_nothing(tmp_path: Path) -> None:
    """An attribute of one byte, as a bond's first one is, where IPoIB has its key."""
    info = struct.pack("=HH5sxxx", 9, 1, b"bond\0") + struct.pack("=HHHHBxxx", 12, 2, 5, 1, 4)
    found = decoded(ifinfmsg(), struct.pack("=HH", 4 + len(info), 18) + info)
    assert netlink.link(found, {}, tmp_path).kind == "bond"


@pytest.mark.parametrize("length", [4, 6, 20])
def test_an_address_of_any_length_is_whole_where_sysfs_is_hidden(
    length: int, tmp_path: Path
) -> None:
    """A tunnel's has 4 bytes, IPoIB's 20."""
    raw = bytes(range(length)) + bytes(-length % 4)
    found = decoded(ifinfmsg(), struct.pack("=HH", 4 + length, 1) + raw)
    assert netlink.link(found, {}, tmp_path).hardware == raw[:length].hex(":")
