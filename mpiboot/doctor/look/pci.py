"""Where on the PCI tree this pod's GPUs and RDMA devices are; sysfs alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from mpiboot.core.model import PodFacts
from mpiboot.doctor.report import PciPart
from mpiboot.network.sysfs import text

_VENDORS: Final = ("0x10de", "0x1002")
_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")


def pci(facts: PodFacts, sys_root: Path = Path("/sys")) -> PciPart:
    """Read the paths of the functions; a GPU of another pod on the node is left out by its count.

    Which of the node's GPUs are this pod's only the driver tells: where the pod has fewer than
    sysfs shows, none is named.
    """
    folder = sys_root / "bus/pci/devices"
    gpus = [
        name
        for name in (sorted(os.listdir(folder)) if folder.is_dir() else [])  # noqa: PTH208
        if text(folder / name / "vendor") in _VENDORS
        and text(folder / name / "class").startswith(_CLASSES)
    ]
    if len(gpus) != facts.gpus.count:
        gpus = []
    devices = {item.name: item.pci for item in facts.fabric.devices if item.opens and item.pci}
    places = {**{name: name for name in gpus}, **devices}
    base = str((sys_root / "devices").resolve())
    paths = {
        name: str((folder / function).resolve()).removeprefix(base).lstrip("/")
        for name, function in places.items()
    }
    numa = {name: text(folder / function / "numa_node") for name, function in places.items()}
    return PciPart(
        {name: paths[name] for name in gpus},
        {name: paths[name] for name in devices},
        {name: int(value) for name, value in numa.items() if value.lstrip("-").isdigit()},
    )
