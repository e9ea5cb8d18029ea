"""RDMA devices and GPUs as built trees of sysfs and /dev have them, and what follows for ranks."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from mpiboot.core.facts import Fabric, Gid, GidType, Gpus
from mpiboot.network import libraries, rdma
from mpiboot.network.rdma import KernelRdma
from tests.data.build_sysfs import TREES, Hca, build, kernel


def seen(tree: tuple[Hca, ...], folder: Path) -> Fabric:
    return rdma.assemble(kernel(tree), *build(tree, folder))


@pytest.mark.parametrize(
    ("name", "links", "opened"),
    [("mlx5-vfs", {"mlx5_5": "net1"}, ["mlx5_5"]), ("macvlan", {}, ["mlx5_2"]), ("efa", {}, None)],
)
def test_a_pods_own_ports_and_the_devices_that_open(
    tmp_path: Path, name: str, links: dict[str, str], opened: list[str] | None
) -> None:
    fabric = seen(TREES[name], tmp_path)
    every = [hca.name for hca in TREES[name]]
    assert [item.name for item in fabric.devices] == every
    found = {item.name: item.ports[0].netdev for item in fabric.devices}
    assert {device: link for device, link in found.items() if link}.keys() == links.keys()
    assert [item.name for item in fabric.devices if item.opens] == (opened or every)
    assert {item.efa for item in fabric.devices} == {name == "efa"}
    assert fabric.refused == ""


def test_a_vf_is_read_whole(tmp_path: Path) -> None:
    fabric = seen(TREES["mlx5-vfs"], tmp_path)
    _, other, ours = fabric.devices
    assert (ours.driver, ours.pci) == ("mlx5_core", "0000:08:00.5")
    port = ours.ports[0]
    assert (port.netdev, port.state, port.link_layer) == ("net1", "ACTIVE", "Ethernet")
    assert (port.rate, port.pkeys) == (100.0, (0xFFFF,))
    assert port.gids[3] == Gid(3, "::ffff:172.16.5.7", GidType.ROCE_V2, "net1")
    assert other.open_error == f"{tmp_path}/dev/infiniband/uverbs2 is not in this pod"


def test_shared_devices_and_ipoib_are_read_whole(tmp_path: Path) -> None:
    # Macvlan over a shared device shows everybody's addresses.
    port = seen(TREES["macvlan"], tmp_path / "macvlan").devices[0].ports[0]
    assert port.netdev == ""
    assert port.gids[3] == Gid(3, "::ffff:10.0.0.1", GidType.ROCE_V2, "pf0")
    assert port.gids[11] == Gid(11, "::ffff:10.0.0.12", GidType.ROCE_V2, "net1")
    port = seen(TREES["ipoib"], tmp_path / "ipoib").devices[0].ports[0]
    # A key's place in the table is what NCCL_IB_PKEY names, so the hole stays.
    assert (port.link_layer, port.pkeys) == ("InfiniBand", (0x7FFF, 0, 0x8001))
    # An IPoIB link's hardware address: 4 bytes of flags and queue pair, then the port's first GID.
    raw = bytes.fromhex("80000011fe800000000000000c42a10300b60000")[4:]
    assert rdma.canonical(raw.hex(":", 2)) == port.gids[0].value
    # A sub-function belongs to the function above it.
    assert seen(TREES["sub-function"], tmp_path / "sf").devices[0].pci == "0000:08:00.0"


REFUSED = "Operation not permitted"


@pytest.mark.parametrize(
    ("known", "names", "refused"),
    [
        # Netlink is refused: sysfs has what it has, and no port its link.
        (KernelRdma({}, REFUSED), ["mlx5_0", "mlx5_2", "mlx5_5"], REFUSED),
        (KernelRdma({"mlx5_5": {1: "net1"}}, "cut"), ["mlx5_5", "mlx5_0", "mlx5_2"], "cut"),
        # In exclusive mode a bound sysfs of the host shows devices that are not this pod's.
        (KernelRdma({"mlx5_5": {1: "net1"}}), ["mlx5_5"], ""),
        (KernelRdma({"mlx5_5": {}, "mlx5_9": {}}), ["mlx5_5"], "mlx5_9 is not in "),
    ],
)
def test_what_netlink_does_not_list_is_read_from_sysfs_where_its_list_is_cut_short(
    tmp_path: Path, known: KernelRdma, names: list[str], refused: str
) -> None:
    fabric = rdma.assemble(known, *build(TREES["mlx5-vfs"], tmp_path))
    assert [item.name for item in fabric.devices] == names
    assert fabric.refused.startswith(refused)
    assert bool(fabric.refused) == bool(refused)
    links = {item.ports[0].netdev for item in fabric.devices}
    assert links - {""} == ({"net1"} if known.links.get("mlx5_5") else set())


def test_entries_that_vanish_make_no_sense_or_are_folders_are_left_out(tmp_path: Path) -> None:
    sys_root, dev_root = build(TREES["mlx5-vfs"], tmp_path)
    port = sys_root / "class/infiniband/mlx5_5/ports/1"
    (port / "gids" / "0").unlink()
    (port / "gids" / "1").write_text("no GID at all\n")
    (port / "gid_attrs" / "types" / "2").unlink()
    (port / "gid_attrs" / "ndevs" / "3").write_bytes(b"\xff\xfe\n")
    (port / "rate").write_text("fast\n")
    (port / "pkeys" / "0").write_text("-1\n")
    (port / "state").unlink()
    (port / "state").mkdir()
    found = rdma.assemble(kernel(TREES["mlx5-vfs"]), sys_root, dev_root).devices[2].ports[0]
    assert [(gid.index, gid.kind) for gid in found.gids] == [(2, ""), (3, "RoCE v2")]
    assert (found.rate, found.pkeys, found.state) == (0.0, (), "")


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device node")
def test_a_node_that_is_refused_or_not_there_says_why(tmp_path: Path) -> None:
    tree = TREES["macvlan"]
    without = (replace(tree[0], uverbs=False),)
    error = seen(without, tmp_path / "without").devices[0].open_error
    assert error == "the kernel names no device node for it"
    sys_root, dev_root = build(tree, tmp_path)
    node = dev_root / "infiniband" / "uverbs2"
    node.unlink()
    try:
        os.mknod(node, 0o20600, os.makedev(231, 1023))  # no driver has it
    except PermissionError:
        pytest.skip("may not make a device node")
    found = rdma.assemble(kernel(tree), sys_root, dev_root).devices[0]
    assert found.open_error in {"No such device or address", "Operation not permitted"}


@pytest.mark.parametrize(
    ("number", "devices", "refused"),
    [
        (errno.EMFILE, False, "Too many open files"),
        (errno.EAFNOSUPPORT, False, "Address family not supported by protocol"),
        # A kernel without RDMA; a sandbox that has sysfs's devices.
        (errno.EPROTONOSUPPORT, False, ""),
        (errno.EPROTONOSUPPORT, True, "Protocol not supported"),
    ],
)
def test_a_socket_that_cannot_be_made_is_told_from_a_kernel_without_rdma(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, number: int, devices: bool, refused: str
) -> None:
    refused_socket = Mock(side_effect=OSError(number, os.strerror(number)))
    monkeypatch.setattr(rdma, "query_kernel", refused_socket)
    monkeypatch.setattr(libraries, "devices", lambda _: ({}, ""))
    roots = build(TREES["macvlan"], tmp_path) if devices else (tmp_path, tmp_path)
    found = rdma.observe(*roots, gib=tmp_path / "gib")
    assert (bool(found.devices), found.refused) == (devices, refused)


def test_the_folder_of_gkes_transport_is_its_plugin(tmp_path: Path) -> None:
    assert rdma.observe(tmp_path, tmp_path, gib=tmp_path).plugin == "gIB"


def test_the_device_plugin_lists_this_containers_functions() -> None:
    environ = {
        "PCIDEVICE_NVIDIA_COM_RAIL_A": "0000:08:00.2,0000:0A:00.3",
        "PCIDEVICE_NVIDIA_COM_RAIL_A_INFO": '{"0000:08:00.2":{"generic":{}}}',
        "PCIDEVICE_SF": "mlx5_core.sf.4",
        "PCIDEVICE_OPENSHIFT_IO_MLX": "",
        "PATH": "/bin",
    }
    assert rdma.given_functions(environ) == ("0000:08:00.2", "0000:0a:00.3")


def test_a_gid_is_written_as_addresses_are() -> None:
    mapped = "0000:0000:0000:0000:0000:ffff:0a00:0001"
    written = {"fe80:0000:0000:0000:0000:0000:0000:0001": "fe80::1", mapped: "::ffff:10.0.0.1"}
    for value in (*written, "no GID", "fe80\0", ""):
        assert rdma.canonical(value) == written.get(value, "")


def node(root: Path, *names: str) -> None:
    for name in names:
        path = root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def function(root: Path, place: str, vendor: str, kind: str) -> None:
    folder = root / "sys/bus/pci/devices" / place
    folder.mkdir(parents=True)
    for name, text in (("vendor", vendor), ("class", kind)):
        (folder / name).write_text(f"{text}\n")


def render(root: Path, name: str, vendor: str) -> None:
    folder = root / "sys/class/drm" / name / "device"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")


def counted(root: Path) -> Gpus:
    return rdma.gpus(root / "dev", root / "sys")


def test_the_pods_own_gpus_are_counted_and_not_the_nodes(tmp_path: Path) -> None:
    node(tmp_path, "nvidiactl", "nvidia-uvm", "dri/renderD128", "nvidia-caps/nvidia-cap1")
    for place in range(8):
        function(tmp_path, f"0000:0{place}:00.0", "0x10de", "0x030200")
    assert counted(tmp_path) == Gpus()
    node(tmp_path, "nvidia0", "nvidia10")
    function(tmp_path, "0000:0a:00.0", "0x10de", "0x068000")  # an NVSwitch
    function(tmp_path, "0000:0b:00.0", "0x1002", "0x030000")
    assert counted(tmp_path) == Gpus(2)
    node(tmp_path, "nvidia-caps-imex-channels/channel0")
    assert counted(tmp_path) == Gpus(2, imex=True)


def test_a_gpu_that_fell_off_the_bus_is_lost_where_sysfs_can_be_read(tmp_path: Path) -> None:
    node(tmp_path, *(f"nvidia{number}" for number in range(4)))
    assert counted(tmp_path) == Gpus(4)
    for place in range(3):
        function(tmp_path, f"0000:0{place}:00.0", "0x10de", "0x030000")
    assert counted(tmp_path) == Gpus(3, lost=1)


def test_amds_gpus_are_those_of_the_render_nodes(tmp_path: Path) -> None:
    node(tmp_path, "kfd", "dri/card0", "dri/renderD128", "dri/renderD129", "dri/renderD130")
    render(tmp_path, "renderD128", "0x1002")
    render(tmp_path, "renderD129", "0x8086")
    render(tmp_path, "renderD131", "0x1002")  # another pod's
    assert counted(tmp_path) == Gpus(1, lost=1)
