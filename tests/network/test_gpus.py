"""GPUs as /dev and sysfs have them: built folders stand in for a machine that has some."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot.core.facts import Gpus
from mpiboot.network import sysfs


def node(root: Path, *names: str) -> None:
    for name in names:
        path = root / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def function(root: Path, place: str, vendor: str, kind: str, device: str = "0x2330") -> None:
    folder = root / "sys/bus/pci/devices" / place
    folder.mkdir(parents=True)
    for name, text in (("vendor", vendor), ("class", kind), ("device", device)):
        (folder / name).write_text(f"{text}\n")


def render(root: Path, name: str, vendor: str, device: str) -> None:
    folder = root / "sys/class/drm" / name / "device"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "device").write_text(f"{device}\n")


def seen(root: Path) -> Gpus:
    return sysfs.gpus(root / "dev", root / "sys", root / "proc", str(root / "bin"))


def test_a_pod_without_gpus_has_none(tmp_path: Path) -> None:
    assert seen(tmp_path) == Gpus()
    node(tmp_path, "nvidiactl", "nvidia-uvm", "dri/renderD128")
    function(tmp_path, "0000:01:00.0", "0x10de", "0x030200")
    assert seen(tmp_path) == Gpus()


def test_the_pods_own_gpus_are_counted_and_not_the_nodes(tmp_path: Path) -> None:
    node(tmp_path, "nvidia0", "nvidia10", "nvidiactl", "nvidia-caps/nvidia-cap1")
    for place in range(8):
        function(tmp_path, f"0000:0{place}:00.0", "0x10de", "0x030200")
    function(tmp_path, "0000:0a:00.0", "0x10de", "0x068000", "0x22a3")  # an NVSwitch
    function(tmp_path, "0000:0b:00.0", "0x1002", "0x030000", "0x1234")
    assert seen(tmp_path) == Gpus(2, "NVIDIA 2330")
    assert seen(tmp_path).fabric == ""  # no nvidia-smi


@pytest.mark.parametrize(
    ("path", "way"),
    [
        ("sys/module/nvidia_peermem", "nvidia_peermem"),
        ("sys/kernel/mm/memory_peers/nv_mem", "nv_peer_mem"),
        ("sys/kernel/mm/memory_peers/nv_mem_nc", "nv_peer_mem (nc)"),
        ("proc/driver/nvidia", "DMA-BUF"),
    ],
)
def test_the_ways_to_gpu_memory_are_those_that_nccl_looks_for(
    tmp_path: Path, path: str, way: str
) -> None:
    node(tmp_path, "nvidia0")
    (tmp_path / path).mkdir(parents=True)
    assert seen(tmp_path).peer_memory == ()
    # As the 570 driver writes its version; the closed one says "NVIDIA UNIX x86_64 Kernel Module".
    (tmp_path / path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15\n"
    )
    assert seen(tmp_path).peer_memory == (way,)


def test_the_closed_driver_has_no_dma_buf(tmp_path: Path) -> None:
    node(tmp_path, "nvidia0")
    path = tmp_path / "proc/driver/nvidia"
    path.mkdir(parents=True)
    (path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03\n")
    assert seen(tmp_path).peer_memory == ()


def smi(*states: tuple[str, str]) -> str:
    """The part of `nvidia-smi -q` that counts, in the form of the drivers 535 to 570."""
    gpus = (
        f"GPU 00000000:0{place}:00.0\n    Product Name                          : NVIDIA H100\n"
        "    Fabric\n"
        f"        State                             : {state}\n"
        f"        Status                            : {status}\n"
        "        CliqueId                          : 0\n"
        "        Health\n            State                         : Bad\n"
        "    Processes                             : None\n"
        for place, (state, status) in enumerate(states)
    )
    return "\n==============NVSMI LOG==============\n\n" + "\n".join(gpus)


GOOD, BUSY, BAD = ("Completed", "Success"), ("In Progress", "N/A"), ("Completed", "Unhealthy")


@pytest.mark.parametrize(
    ("message", "state"),
    [
        (smi(GOOD, GOOD), "Completed"),
        (smi(GOOD, BUSY, BUSY), "In Progress on 2 of 3 GPUs"),
        (smi(GOOD, BAD), "Completed, Unhealthy on 1 of 2 GPUs"),
        (smi(BUSY, BAD), "In Progress on 1 of 2 GPUs; Completed, Unhealthy on 1 of 2 GPUs"),
        (smi(("N/A", "N/A")), ""),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", ""),
        ("", ""),
    ],
)
def test_the_fabrics_state_is_read(message: str, state: str) -> None:
    assert sysfs.fabric(message) == state


def program(root: Path, text: str) -> None:
    """A fake nvidia-smi: there is no NVLink fabric where the tests run."""
    path = root / "bin/nvidia-smi"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("what", "asked"),
    [("switch", True), ("imex", True), ("neither", False)],
)
def test_nvidia_smi_is_asked_only_where_there_is_a_fabric(
    tmp_path: Path,
    what: str,
    asked: bool,  # noqa: FBT001 - a row of the table
) -> None:
    node(tmp_path, "nvidia0")
    function(tmp_path, "0000:01:00.0", "0x10de", "0x030200")
    if what == "switch":
        function(tmp_path, "0000:0a:00.0", "0x10de", "0x068000", "0x22a3")
    if what == "imex":
        (tmp_path / "dev/nvidia-caps-imex-channels").mkdir()
    program(tmp_path, f'[ "$*" = -q ] && cat <<"END"\n{smi(BUSY)}END')
    assert seen(tmp_path).fabric == ("In Progress on 1 of 1 GPUs" if asked else "")


def test_an_nvidia_smi_that_hangs_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysfs, "_PATIENCE", 0.1)
    node(tmp_path, "nvidia0", "nvidia-caps-imex-channels/channel0")
    program(tmp_path, "exec sleep 1000")
    assert seen(tmp_path).fabric == ""


def test_a_gpu_that_fell_off_the_bus_is_lost(tmp_path: Path) -> None:
    node(tmp_path, *(f"nvidia{number}" for number in range(4)))
    for place in range(3):
        function(tmp_path, f"0000:0{place}:00.0", "0x10de", "0x030000")
    assert seen(tmp_path) == Gpus(3, "NVIDIA 2330", lost=1)


def test_a_sysfs_that_can_not_be_read_loses_nothing(tmp_path: Path) -> None:
    node(tmp_path, "nvidia0", "nvidia1")
    assert seen(tmp_path) == Gpus(2, "NVIDIA")


def test_amds_gpus_are_those_of_the_render_nodes(tmp_path: Path) -> None:
    node(tmp_path, "kfd", "dri/card0", "dri/renderD128", "dri/renderD129", "dri/renderD130")
    render(tmp_path, "renderD128", "0x1002", "0x74a1")
    render(tmp_path, "renderD129", "0x8086", "0x1234")
    render(tmp_path, "renderD131", "0x1002", "0x74a1")  # another pod's
    assert seen(tmp_path) == Gpus(1, "AMD 74a1", lost=1)
