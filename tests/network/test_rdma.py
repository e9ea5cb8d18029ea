"""RDMA devices and GPUs as built trees of sysfs and /dev have them, and what follows for ranks."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.facts import Fabric, Gid, GidType, Gpus, Link, Worker
from mpiboot.core.settings import Settings
from mpiboot.network import libraries, rdma
from mpiboot.network.rdma import KernelRdma
from tests.data.build_sysfs import build, kernel
from tests.data.rdma_nodes import TREES, Tree
from tests.fakes import networks
from tests.fakes import workers as w


def seen(tree: Tree, folder: Path) -> Fabric:
    return rdma.assemble(kernel(tree), *build(tree, folder))


def port_folder(sys_root: Path, device: str) -> Path:
    return sys_root / "class" / "infiniband" / device / "ports" / "1"


@pytest.mark.parametrize(
    ("name", "links", "opened"),
    [
        ("mlx5-vfs", {"mlx5_5": "net1"}, ["mlx5_5"]),
        ("macvlan", {}, ["mlx5_2"]),
        ("rails", {f"mlx5_{n + 9}": f"net{n}" for n in range(1, 9)}, None),
        ("efa", {}, None),
        ("crowd", {"mlx5_17": "net17"}, ["mlx5_17"]),
    ],
)
def test_a_pods_own_ports_and_the_devices_that_open(
    tmp_path: Path, name: str, links: dict[str, str], opened: list[str] | None
) -> None:
    fabric = seen(TREES[name], tmp_path)
    every = [hca.name for hca in TREES[name].devices]
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
    tree = TREES["ipoib"]
    port = seen(tree, tmp_path / "ipoib").devices[0].ports[0]
    # A key's place in the table is what NCCL_IB_PKEY names, so the hole stays.
    assert (port.link_layer, port.pkeys) == ("InfiniBand", (0x7FFF, 0, 0x8001))
    for address in tree.addresses.values():
        raw = bytes.fromhex(address.replace(":", ""))[4:]
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
    port = port_folder(sys_root, "mlx5_5")
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


def test_whatever_vanishes_from_the_tree_the_rest_is_read(tmp_path: Path) -> None:
    tree = TREES["mlx5-vfs"]
    sys_root, dev_root = build(tree, tmp_path)
    aside = tmp_path / "aside"
    paths = sorted(path for path in sys_root.rglob("*") if "mlx5_5" in path.parts)
    assert len(paths) > 30
    for path in paths:
        path.rename(aside)
        with_kernel = rdma.assemble(kernel(tree), sys_root, dev_root)
        alone = rdma.assemble(KernelRdma({}, REFUSED), sys_root, dev_root)
        aside.rename(path)
        for found in (with_kernel, alone):
            assert {"mlx5_0", "mlx5_2"} <= {item.name for item in found.devices}, path


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device node")
def test_a_node_that_is_refused_or_not_there_says_why(tmp_path: Path) -> None:
    tree = TREES["macvlan"]
    without = replace(tree, devices=(replace(tree.devices[0], uverbs=None),))
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


async def test_this_machine_can_be_observed_beside_a_running_loop() -> None:
    assert isinstance(rdma.observe(), Fabric)


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
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(rdma, "query_kernel", refuse)
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


# The addresses of each tree's links in the pod, as its GID tables have them.
ADDRESSES: Mapping[str, Mapping[str, str]] = {
    "mlx5-vfs": {"net1": "172.16.5.7/24"},
    "ipoib": {"net1": "10.9.0.7/24"},
    "efa": {},
    "rails": {f"net{number}": f"10.{number + 9}.0.7/24" for number in range(1, 9)},
    "macvlan": {"net1": "10.0.0.12/24"},
    "crowd": {"net1": "10.56.17.7/24"},
    "sub-function": {"net1": "fd00:5::7/64"},
}
KINDS = {"macvlan": "macvlan", "ipoib": "ipoib"}


def pod(name: str, fabric: Fabric) -> Worker:
    """A pod with this tree's links beside its control link."""
    tree: Tree = TREES[name]
    known = ADDRESSES[name]
    links = [
        Link(
            number,
            link,
            KINDS.get(name, "ether"),
            up=True,
            mtu=mtu,
            addresses=(known[link],) if link in known else (),
            hardware=tree.addresses.get(link, f"02:00:00:00:00:{number:02x}"),
            pkey=0x8001 if name == "ipoib" and link == "net1" else None,
        )
        for number, (link, mtu, _) in enumerate(tree.links, start=2)
        if link != "eth0"
    ]
    found = w.worker("w-0", w.eth0(), *links)
    assert found.facts is not None
    return replace(found, facts=replace(found.facts, fabric=fabric))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mlx5-vfs", {"UCX_NET_DEVICES": "mlx5_5:1"}),
        # The P_Key child has the address; its partition is at place 2 of the port's table.
        ("ipoib", {"UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1", "NCCL_IB_PKEY": "2"}),
        ("efa", {"NCCL_SOCKET_IFNAME": "=eth0"}),
        ("rails", {"UCX_NET_DEVICES": ",".join(f"mlx5_{number}:1" for number in range(10, 18))}),
        (
            "macvlan",
            {"UCX_NET_DEVICES": "mlx5_2:1", "NCCL_IB_GID_INDEX": "11", "UCX_IB_GID_INDEX": "11"},
        ),
        ("crowd", {"UCX_NET_DEVICES": "mlx5_17:1"}),
    ],
)
def test_a_trees_own_ports_become_the_variables(
    name: str, expected: Mapping[str, str], tmp_path: Path
) -> None:
    fabric = rdma.assemble(kernel(TREES[name]), *build(TREES[name], tmp_path))
    found = networks.decide([pod(name, fabric)], Settings(nccl_version="2.28.9"))
    assert expected.items() <= found.common.items()
    assert not {"NCCL_IB_HCA", "NCCL_NET"} & found.common.keys()  # no other device opens
    assert ("NCCL_IB_GID_INDEX" in found.common) == ("NCCL_IB_GID_INDEX" in expected)
    assert not found.findings
    assert not found.networks[0].pending


def test_a_sub_function_whose_table_lacks_its_address_waits_and_is_said(tmp_path: Path) -> None:
    fabric = rdma.assemble(kernel(TREES["sub-function"]), *build(TREES["sub-function"], tmp_path))
    found = networks.decide([pod("sub-function", fabric)], Settings())
    assert found.networks[0].pending == ("port mlx5_4:1 has no RoCE v2 entry for net1 yet",)
    assert [item.check for item in found.findings] == ["rdma-gid"]
