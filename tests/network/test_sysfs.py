"""Small pieces of sysfs: a number, a text, the PCI function behind a device, tables with holes."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    assert rdma.canonical(value) == written


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
