"""Small pieces of sysfs: a number, a text, the PCI function behind a device, tables with holes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpiboot.network import sysfs


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4: ACTIVE\n", 4),
        ("  12\n", 12),
        ("0", 0),
        ("-1\n", None),
        ("fast", None),
        ("", None),
        ("1234567890", 123456789),
    ],
)
def test_the_number_at_the_beginning_of_a_file(
    tmp_path: Path, text: str, number: int | None
) -> None:
    (tmp_path / "file").write_text(text)
    assert sysfs.number(tmp_path / "file") == number
    assert sysfs.text(tmp_path / "file") == text.strip()
    assert sysfs.number(tmp_path / "none") is None
    assert sysfs.text(tmp_path / "none") == ""


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
    assert sysfs.pci_function(tmp_path / "device") == function
    assert sysfs.pci_function(tmp_path / "none") == ""


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("fe80:0000:0000:0000:0000:0000:0000:0001", "fe80::1"),
        ("0000:0000:0000:0000:0000:ffff:0a00:0001", "::ffff:10.0.0.1"),
        ("no GID", ""),
        ("fe80\0", ""),
        ("", ""),
    ],
)
def test_a_gid_is_written_as_addresses_are(value: str, written: str) -> None:
    assert sysfs.canonical(value) == written


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
    assert sysfs._pkeys(tmp_path) == keys


@pytest.mark.parametrize(
    ("links", "port", "ports", "found"),
    [
        ({"net1": 0}, 1, 1, "net1"),
        ({"net1": 7}, 1, 1, "net1"),  # one link of a function with one port
        ({"net1": 0, "net2": 1}, 2, 2, "net2"),
        ({"net1": 0, "net2": 1}, 1, 2, "net1"),
        ({"net1": 0}, 2, 2, ""),
        ({"net1": 0, "net2": 0}, 1, 1, ""),
        ({"net1": 0, "net2": 1}, 1, 1, "net1"),
        ({}, 1, 1, ""),
    ],
)
def test_the_link_of_a_port_is_told_where_there_is_one(
    tmp_path: Path, links: dict[str, int], port: int, ports: int, found: str
) -> None:
    for name, number in links.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "dev_port").write_text(f"{number}\n")
    assert sysfs._netdev(tmp_path, port, ports) == found


@pytest.mark.parametrize(
    ("kernel", "driver"),
    [
        ("mlx5_core", "mlx5"),
        ("mlx4_core", "mlx4"),
        ("ice", "irdma"),
        ("i40e", "irdma"),
        ("bnxt_en", "bnxt_re"),
        ("qede", "qedr"),
        ("hns3", "hns"),
        ("efa", "efa"),
    ],
)
def test_the_rdma_driver_of_a_pci_driver(tmp_path: Path, kernel: str, driver: str) -> None:
    (tmp_path / "drivers" / kernel).mkdir(parents=True)
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "driver").symlink_to(tmp_path / "drivers" / kernel)
    assert sysfs._driver(tmp_path) == driver


def test_soft_roce_says_its_link_and_has_no_device(tmp_path: Path) -> None:
    assert sysfs._driver(tmp_path) == ""
    (tmp_path / "parent").write_text("eth0\n")
    assert sysfs._driver(tmp_path) == "rxe"


def test_device_nodes_are_known_by_their_device(tmp_path: Path) -> None:
    assert sysfs.rdma_nodes(tmp_path) == {}
    folder = tmp_path / "class" / "infiniband_verbs"
    for name, owner, numbers in (
        ("uverbs3", "mlx5_3", "231:195"),
        ("uverbs4", "mlx5_4", "231"),
        ("uverbs5", "mlx5_5", "231:x"),
        ("uverbs6", "mlx5_6", "x:1"),
        ("abi_version", "", "1:1"),
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / "ibdev").write_text(f"{owner}\n")
        (folder / name / "dev").write_text(f"{numbers}\n")
    assert sysfs.rdma_nodes(tmp_path) == {
        "mlx5_3": ("uverbs3", os.makedev(231, 195)),
        "mlx5_4": ("uverbs4", None),
        "mlx5_5": ("uverbs5", None),
        "mlx5_6": ("uverbs6", None),
    }


@pytest.mark.parametrize(
    ("text", "layer", "rate"),
    [
        ("100 Gb/sec (4X EDR)", "InfiniBand", 100.0),
        ("2.5 Gb/sec (1X SDR)", "InfiniBand", 2.5),
        ("40 Gb/sec (4X QDR)", "InfiniBand", 40.0),
        ("40 Gb/sec (4X FDR10)", "InfiniBand", 41.25),
        ("40 Gb/sec (4X FDR10)", "Ethernet", 40.0),
        ("10 Gb/sec (1X FDR10)", "Ethernet", 10.0),
        ("Gb/sec", "InfiniBand", 0.0),
        ("", "InfiniBand", 0.0),
    ],
)
def test_a_ports_rate(tmp_path: Path, text: str, layer: str, rate: float) -> None:
    port = tmp_path / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "rate").write_text(f"{text}\n")
    (port / "link_layer").write_text(f"{layer}\n")
    (port.parent / "odd").mkdir()
    assert sysfs.rdma_names(tmp_path) == ("mlx5_0",)
    found = sysfs.rdma_device(tmp_path, "mlx5_0", [])
    assert found is not None
    (one,) = found.ports
    assert (one.number, one.rate, one.netdev) == (1, rate, "")
    assert sysfs.rdma_device(tmp_path, "none", []) is None
