"""Small pieces of sysfs and /dev: PCI functions, tables with holes, GPUs, in built folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot.core.facts import Gpus
from mpiboot.network import rdma


@pytest.mark.parametrize(
    ("path", "function"),
    [
        ("pci0000:00/0000:00:01.0/0000:08:00.5", "0000:08:00.5"),
        ("pci0000:00/0000:08:00.0/mlx5_core.sf.4", "0000:08:00.0"),
        ("pci0000:00/0000:08:00.0/virtio3", "0000:08:00.0"),
        ("pci0000:00/10000:08:1f.7", "10000:08:1f.7"),
        ("pci0000:00/0000:08:1f.8", ""),
        ("platform/0000:08:00.00", ""),
        ("virtual/net", ""),
    ],
)
def test_the_pci_function_behind_a_device(tmp_path: Path, path: str, function: str) -> None:
    (tmp_path / path).mkdir(parents=True)
    (tmp_path / "device").symlink_to(path)
    assert rdma._pci_function(tmp_path / "device") == function
    assert rdma._pci_function(tmp_path / "none") == ""


def test_a_gid_is_written_as_addresses_are() -> None:
    mapped = "0000:0000:0000:0000:0000:ffff:0a00:0001"
    written = {"fe80:0000:0000:0000:0000:0000:0000:0001": "fe80::1", mapped: "::ffff:10.0.0.1"}
    for value in (*written, "no GID", "fe80\0", ""):
        assert rdma.canonical(value) == written.get(value, "")


@pytest.mark.parametrize(
    ("slots", "keys"),
    [
        (["0xffff"], (0xFFFF,)),
        (["0x7fff", "0x0000", "0x8001", "0x0000", "0x0000"], (0x7FFF, 0, 0x8001)),
        (["0x8001", "odd", "0x1", "0x12345"], (0x8001, 0, 1)),
        (["0x0000"], ()),
        ([], ()),
    ],
)
def test_a_keys_place_in_the_table_stays(
    tmp_path: Path, slots: list[str], keys: tuple[int, ...]
) -> None:
    for place, text in enumerate(slots):
        (tmp_path / str(place)).write_text(f"{text}\n")
    assert rdma._pkeys(tmp_path) == keys


def test_device_nodes_are_known_by_their_device(tmp_path: Path) -> None:
    assert rdma.rdma_nodes(tmp_path) == {}
    folder = tmp_path / "class" / "infiniband_verbs"
    for name, owner in (("uverbs3", "mlx5_3"), ("uverbs4", "mlx5_4")):
        (folder / name).mkdir(parents=True)
        (folder / name / "ibdev").write_text(f"{owner}\n")
    assert rdma.rdma_nodes(tmp_path) == {"mlx5_3": "uverbs3", "mlx5_4": "uverbs4"}


@pytest.mark.parametrize(
    ("text", "rate"),
    [("100 Gb/sec (4X EDR)", 100.0), ("2.5 Gb/sec (1X SDR)", 2.5), ("Gb/sec", 0.0), ("", 0.0)],
)
def test_a_ports_rate(tmp_path: Path, text: str, rate: float) -> None:
    port = tmp_path / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "rate").write_text(f"{text}\n")
    (port.parent / "odd").mkdir()
    assert rdma.rdma_names(tmp_path) == ("mlx5_0",)
    found = rdma.rdma_device(tmp_path, "mlx5_0")
    assert found is not None
    (one,) = found.ports
    assert (one.number, one.rate, one.netdev) == (1, rate, "")
    assert rdma.rdma_device(tmp_path, "none") is None


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


def seen(root: Path) -> Gpus:
    return rdma.gpus(root / "dev", root / "sys")


def test_a_pod_without_gpus_has_none(tmp_path: Path) -> None:
    assert seen(tmp_path) == Gpus()
    node(tmp_path, "nvidiactl", "nvidia-uvm", "dri/renderD128")
    function(tmp_path, "0000:01:00.0", "0x10de", "0x030200")
    assert seen(tmp_path) == Gpus()


def test_the_pods_own_gpus_are_counted_and_not_the_nodes(tmp_path: Path) -> None:
    node(tmp_path, "nvidia0", "nvidia10", "nvidiactl", "nvidia-caps/nvidia-cap1")
    for place in range(8):
        function(tmp_path, f"0000:0{place}:00.0", "0x10de", "0x030200")
    function(tmp_path, "0000:0a:00.0", "0x10de", "0x068000")  # an NVSwitch
    function(tmp_path, "0000:0b:00.0", "0x1002", "0x030000")
    assert seen(tmp_path) == Gpus(2)
    node(tmp_path, "nvidia-caps-imex-channels/channel0")
    assert seen(tmp_path) == Gpus(2, imex=True)


def test_a_gpu_that_fell_off_the_bus_is_lost_where_sysfs_can_be_read(tmp_path: Path) -> None:
    node(tmp_path, *(f"nvidia{number}" for number in range(4)))
    assert seen(tmp_path) == Gpus(4)
    for place in range(3):
        function(tmp_path, f"0000:0{place}:00.0", "0x10de", "0x030000")
    assert seen(tmp_path) == Gpus(3, lost=1)


def test_amds_gpus_are_those_of_the_render_nodes(tmp_path: Path) -> None:
    node(tmp_path, "kfd", "dri/card0", "dri/renderD128", "dri/renderD129", "dri/renderD130")
    render(tmp_path, "renderD128", "0x1002")
    render(tmp_path, "renderD129", "0x8086")
    render(tmp_path, "renderD131", "0x1002")  # another pod's
    assert seen(tmp_path) == Gpus(1, lost=1)
