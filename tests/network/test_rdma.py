from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.facts import Fabric, Gid, GidType
from mpiboot.network import rdma, sysfs
from mpiboot.network.rdma import KernelRdma
from tests.data.build_sysfs import build, kernel
from tests.data.rdma_nodes import TREES, Tree


def seen(tree: Tree, folder: Path) -> Fabric:
    return rdma.assemble(kernel(tree), *build(tree, folder))


def port_folder(sys_root: Path, device: str) -> Path:
    return sys_root / "class" / "infiniband" / device / "ports" / "1"


def test_the_vf_of_this_pod_is_told_from_the_others_by_its_link(tmp_path: Path) -> None:
    fabric = seen(TREES["mlx5-vfs"], tmp_path)
    assert fabric.netns_mode == "shared"
    assert fabric.infiniband_folder
    assert not fabric.unreadable
    assert {item.name: item.ports[0].netdev for item in fabric.devices} == {
        "mlx5_0": "",
        "mlx5_2": "",
        "mlx5_5": "net1",
    }
    ours = fabric.devices[2]
    assert (ours.driver, ours.pci, ours.node_type) == ("mlx5", "0000:08:00.5", "CA")
    port = ours.ports[0]
    assert (port.state, port.link_layer) == ("ACTIVE", "Ethernet")
    assert (port.rate, port.mtu, port.pkeys) == (100.0, 4096, (0xFFFF,))
    assert port.gids[3] == Gid(3, "::ffff:172.16.5.7", GidType.ROCE_V2, "net1")


def test_only_the_node_that_is_in_this_pod_opens(tmp_path: Path) -> None:
    sys_root, dev_root = build(TREES["mlx5-vfs"], tmp_path)
    fabric = rdma.assemble(kernel(TREES["mlx5-vfs"]), sys_root, dev_root)
    other, ours = fabric.devices[1], fabric.devices[2]
    assert (ours.uverbs, ours.open_error) == (str(dev_root / "infiniband" / "uverbs5"), "")
    assert other.uverbs == ""
    assert other.open_error == f"{dev_root}/infiniband/uverbs2 is not in this pod"


def test_macvlan_over_a_shared_device_shows_everybodys_addresses(tmp_path: Path) -> None:
    port = seen(TREES["macvlan"], tmp_path).devices[0].ports[0]
    assert (port.netdev, port.mtu) == ("", 0)
    assert port.gids[3] == Gid(3, "::ffff:10.0.0.1", GidType.ROCE_V2, "pf0")
    assert port.gids[11] == Gid(11, "::ffff:10.0.0.12", GidType.ROCE_V2, "net1")


def test_eight_rails_are_eight_devices_with_a_link_each(tmp_path: Path) -> None:
    fabric = seen(TREES["rails"], tmp_path)
    assert fabric.netns_mode == "exclusive"
    assert [item.ports[0].netdev for item in fabric.devices] == [f"net{n}" for n in range(1, 9)]
    assert {item.ports[0].mtu for item in fabric.devices} == {4096}
    assert all(item.opens for item in fabric.devices)


def test_efa_has_no_link_and_no_protocol(tmp_path: Path) -> None:
    fabric = seen(TREES["efa"], tmp_path)
    assert len(fabric.devices) == 4
    for item in fabric.devices:
        assert (item.driver, item.node_type, item.protocol) == ("efa", "unspecified", "")
        assert (item.ports[0].link_layer, item.ports[0].netdev) == ("Unspecified", "")
        assert item.opens


def test_the_hardware_address_of_ipoib_links_holds_the_ports_gid(tmp_path: Path) -> None:
    tree = TREES["ipoib"]
    port = seen(tree, tmp_path).devices[0].ports[0]
    assert port.link_layer == "InfiniBand"
    # A key's place in the table is what NCCL_IB_PKEY names, so the hole stays.
    assert port.pkeys == (0x7FFF, 0, 0x8001)
    for address in tree.addresses.values():
        raw = bytes.fromhex(address.replace(":", ""))[4:]
        assert sysfs.canonical(raw.hex(":", 2)) == port.gids[0].value


def test_one_of_twenty_six_devices_is_ours(tmp_path: Path) -> None:
    fabric = seen(TREES["crowd"], tmp_path)
    assert len(fabric.devices) == 26
    assert [item.name for item in fabric.devices if item.ports[0].netdev] == ["mlx5_17"]
    assert [item.name for item in fabric.devices if item.opens] == ["mlx5_17"]


def test_a_sub_function_belongs_to_the_function_above_it(tmp_path: Path) -> None:
    assert seen(TREES["sub-function"], tmp_path).devices[0].pci == "0000:08:00.0"


def test_without_netlink_sysfs_tells_what_it_can(tmp_path: Path) -> None:
    sys_root, dev_root = build(TREES["mlx5-vfs"], tmp_path)
    fabric = rdma.assemble(None, sys_root, dev_root, "Operation not permitted")
    ours = next(item for item in fabric.devices if item.name == "mlx5_5")
    assert (ours.driver, ours.open_error, ours.index) == ("mlx5", "", -1)
    # The folder of the PCI function's links is one of this network namespace.
    assert ours.ports[0].netdev == "net1"
    assert [item.ports[0].netdev for item in fabric.devices if item is not ours] == ["", ""]
    assert fabric.netns_mode == ""
    assert fabric.unreadable[0].startswith(
        "netlink: Operation not permitted: RDMA devices are read"
    )


def test_without_netlink_links_of_one_function_are_told_by_their_port(tmp_path: Path) -> None:
    sys_root, dev_root = build(TREES["mlx5-vfs"], tmp_path)
    function = sys_root / "bus" / "pci" / "devices" / "0000:08:00.5"
    (function / "net" / "other").mkdir()
    (function / "net" / "other" / "dev_port").write_text("1\n")
    fabric = rdma.assemble(None, sys_root, dev_root)
    assert fabric.devices[2].ports[0].netdev == "net1"


def test_without_netlink_infiniband_has_no_link_and_efa_its_driver(tmp_path: Path) -> None:
    infiniband = rdma.assemble(None, *build(TREES["ipoib"], tmp_path / "one")).devices[0]
    efa = rdma.assemble(None, *build(TREES["efa"], tmp_path / "two")).devices[0]
    assert (infiniband.ports[0].link_layer, infiniband.ports[0].netdev) == ("InfiniBand", "")
    assert (efa.protocol, efa.driver, efa.node_type) == ("", "efa", "unspecified")


def test_sysfs_adds_no_device_to_a_whole_list(tmp_path: Path) -> None:
    # In exclusive mode a bound sysfs of the host shows devices that are not this pod's.
    sys_root, dev_root = build(TREES["mlx5-vfs"], tmp_path)
    told = kernel(TREES["mlx5-vfs"])
    fabric = rdma.assemble(told._replace(devices=told.devices[2:]), sys_root, dev_root)
    assert [item.name for item in fabric.devices] == ["mlx5_5"]
    assert not fabric.unreadable


def test_sysfs_completes_a_list_that_is_cut_short(tmp_path: Path) -> None:
    sys_root, dev_root = build(TREES["mlx5-vfs"], tmp_path)
    told = kernel(TREES["mlx5-vfs"])
    short = KernelRdma(
        "shared", told.devices[:1], complete=False, unreadable=("netlink: cut short",)
    )
    fabric = rdma.assemble(short, sys_root, dev_root)
    assert [item.name for item in fabric.devices] == ["mlx5_0", "mlx5_2", "mlx5_5"]
    assert fabric.unreadable == ("netlink: cut short",)


def test_netlink_alone_tells_devices_where_sysfs_is_hidden(tmp_path: Path) -> None:
    _, dev_root = build(TREES["rails"], tmp_path)
    fabric = rdma.assemble(kernel(TREES["rails"]), tmp_path / "none", dev_root)
    first = fabric.devices[0]
    assert (first.driver, first.pci) == ("", "")
    assert (first.ports[0].netdev, first.ports[0].link_layer) == ("net1", "Ethernet")
    assert first.ports[0].gids == ()
    assert fabric.unreadable[0].startswith("mlx5_10: not in ")


def test_a_device_that_goes_away_while_it_is_read_is_said(tmp_path: Path) -> None:
    sys_root, dev_root = build(TREES["mlx5-vfs"], tmp_path)
    told = kernel(TREES["mlx5-vfs"])
    gone = replace(told.devices[1], ports=())
    (sys_root / "class" / "infiniband" / "mlx5_2").unlink()
    fabric = rdma.assemble(
        told._replace(devices=(told.devices[0], gone, told.devices[2])), sys_root, dev_root
    )
    assert [item.name for item in fabric.devices] == ["mlx5_0", "mlx5_5"]
    assert fabric.unreadable == ("mlx5_2: went away while it was read",)


def test_entries_that_vanish_or_make_no_sense_are_left_out(tmp_path: Path) -> None:
    sys_root, dev_root = build(TREES["mlx5-vfs"], tmp_path)
    port = port_folder(sys_root, "mlx5_5")
    (port / "gids" / "0").unlink()
    (port / "gids" / "1").write_text("no GID at all\n")
    (port / "gid_attrs" / "types" / "2").unlink()
    (port / "gid_attrs" / "ndevs" / "3").write_bytes(b"\xff\xfe\n")
    (port / "rate").write_text("fast\n")
    (port / "pkeys" / "0").write_text("-1\n")
    fabric = rdma.assemble(kernel(TREES["mlx5-vfs"]), sys_root, dev_root)
    found = fabric.devices[2].ports[0]
    assert [(gid.index, gid.kind) for gid in found.gids] == [(2, ""), (3, "RoCE v2")]
    assert (found.rate, found.pkeys) == (0.0, ())
    assert fabric.unreadable == ("mlx5_5 port 1: GID 1 can't be read: 'no GID at all'",)


def test_whatever_vanishes_from_the_tree_the_rest_is_read(tmp_path: Path) -> None:
    tree = TREES["mlx5-vfs"]
    sys_root, dev_root = build(tree, tmp_path)
    aside = tmp_path / "aside"
    paths = sorted(path for path in sys_root.rglob("*") if "mlx5_5" in path.parts)
    assert len(paths) > 30
    for path in paths:
        path.rename(aside)
        with_kernel = rdma.assemble(kernel(tree), sys_root, dev_root)
        alone = rdma.assemble(None, sys_root, dev_root)
        aside.rename(path)
        for found in (with_kernel, alone):
            assert {"mlx5_0", "mlx5_2"} <= {item.name for item in found.devices}, path


def test_a_tree_of_folders_where_files_should_be_is_read_without_an_error(tmp_path: Path) -> None:
    sys_root, dev_root = build(TREES["macvlan"], tmp_path)
    port = port_folder(sys_root, "mlx5_2")
    (port / "state").unlink()
    (port / "state").mkdir()
    (port / "gids" / "5").unlink()
    (port / "gids" / "5").mkdir()
    fabric = rdma.assemble(None, sys_root, dev_root)
    assert fabric.devices[0].ports[0].state == ""
    assert f"{port}/gids/5: Is a directory" in fabric.unreadable


@pytest.mark.parametrize(
    ("link", "port"), [(1500, 1024), (4000, 2048), (4200, 4096), (9000, 4096), (300, 0)]
)
def test_the_ports_mtu_follows_the_links(tmp_path: Path, link: int, port: int) -> None:
    tree = replace(TREES["mlx5-vfs"], links=(("net1", link, "0000:08:00.5"),))
    assert seen(tree, tmp_path).devices[2].ports[0].mtu == port


def test_a_node_that_is_another_device_does_not_count_as_open(tmp_path: Path) -> None:
    tree = TREES["macvlan"]
    sys_root, dev_root = build(tree, tmp_path)
    node = dev_root / "infiniband" / "uverbs2"
    node.unlink()
    node.symlink_to("/dev/zero")
    found = rdma.assemble(kernel(tree), sys_root, dev_root).devices[0]
    assert (found.uverbs, found.open_error) == (str(node), "is device 1:5 instead of 1:3")


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device node")
def test_a_node_that_is_refused_says_why(tmp_path: Path) -> None:
    tree = TREES["macvlan"]
    sys_root, dev_root = build(tree, tmp_path)
    node = dev_root / "infiniband" / "uverbs2"
    node.unlink()
    try:
        os.mknod(node, 0o20600, os.makedev(231, 1023))  # no driver has it
    except PermissionError:
        pytest.skip("may not make a device node")
    found = rdma.assemble(kernel(tree), sys_root, dev_root).devices[0]
    assert found.uverbs == str(node)
    assert found.open_error in {"No such device or address", "Operation not permitted"}


def test_a_device_without_a_node_says_so(tmp_path: Path) -> None:
    tree = TREES["macvlan"]
    changed = replace(tree, devices=(replace(tree.devices[0], uverbs=None),))
    found = seen(changed, tmp_path).devices[0]
    assert (found.uverbs, found.open_error) == ("", "the kernel names no device node for it")


def test_a_machine_without_rdma_has_an_empty_fabric(tmp_path: Path) -> None:
    assert rdma.assemble(None, tmp_path, tmp_path, "Protocol not supported") == Fabric()


def test_this_machine_can_be_observed() -> None:
    fabric = rdma.observe()
    assert isinstance(fabric, Fabric)


async def test_it_can_be_observed_beside_a_running_loop() -> None:
    assert isinstance(rdma.observe(), Fabric)


@pytest.mark.parametrize(
    ("number", "unreadable"),
    [
        (errno.EMFILE, ("netlink: Too many open files: RDMA devices are not known",)),
        (
            errno.EAFNOSUPPORT,
            ("netlink: Address family not supported by protocol: RDMA devices are not known",),
        ),
        (errno.EPROTONOSUPPORT, ()),
    ],
)
def test_a_socket_that_cannot_be_made_is_told_from_a_kernel_without_rdma(
    number: int, unreadable: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(rdma, "ask_kernel", refuse)
    found = rdma.observe(tmp_path, tmp_path)
    assert found.unreadable == unreadable
    assert found.refused == (os.strerror(number) if unreadable else "")
