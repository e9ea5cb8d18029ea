"""GPUs as /dev and sysfs have them: built folders stand in for a machine that has some."""

from __future__ import annotations

from pathlib import Path

from mpiboot.core.facts import Gpus
from mpiboot.network import rdma


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


def test_a_gpu_that_fell_off_the_bus_is_lost(tmp_path: Path) -> None:
    node(tmp_path, *(f"nvidia{number}" for number in range(4)))
    for place in range(3):
        function(tmp_path, f"0000:0{place}:00.0", "0x10de", "0x030000")
    assert seen(tmp_path) == Gpus(3, lost=1)


def test_a_sysfs_that_can_not_be_read_loses_nothing(tmp_path: Path) -> None:
    node(tmp_path, "nvidia0", "nvidia1")
    assert seen(tmp_path) == Gpus(2)


def test_amds_gpus_are_those_of_the_render_nodes(tmp_path: Path) -> None:
    node(tmp_path, "kfd", "dri/card0", "dri/renderD128", "dri/renderD129", "dri/renderD130")
    render(tmp_path, "renderD128", "0x1002")
    render(tmp_path, "renderD129", "0x8086")
    render(tmp_path, "renderD131", "0x1002")  # another pod's
    assert seen(tmp_path) == Gpus(1, lost=1)
