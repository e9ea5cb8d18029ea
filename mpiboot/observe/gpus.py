"""How many GPUs this pod has and of which kind, from /dev and sysfs: no library of theirs is asked.

/dev has the pod's own GPUs, sysfs all of the node. The names are those of the kernel's drivers
(nvidia, amdgpu); PCI vendors and classes are those of pci.ids.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from mpiboot.data_network.observe.sysfs import text
from mpiboot.model import Gpus

_NVIDIA: Final = "0x10de"
_AMD: Final = "0x1002"
# VGA, and 3D controllers, which have no display.
_CLASSES: Final = ("0x0300", "0x0302")
_NODE: Final = re.compile(r"nvidia[0-9]+")
_RENDER: Final = re.compile(r"renderD[0-9]+")
# Lets an RDMA device reach an NVIDIA GPU's memory.
_PEER_MEMORY: Final = "nvidia_peermem"


def seen(dev: Path = Path("/dev"), sys_root: Path = Path("/sys")) -> Gpus:
    """Look; NVIDIA's GPUs are counted where there are any, else AMD's."""
    nodes = [name for name in _listed(dev) if _NODE.fullmatch(name)]
    if nodes:
        kinds = [
            text(function / "device").removeprefix("0x")
            for function in (sys_root / "bus/pci/devices" / name for name in _pci(sys_root))
            if text(function / "vendor") == _NVIDIA
            and text(function / "class").startswith(_CLASSES)
        ]
        # Which node is whose function only the driver tells; one more than there are is lost.
        lost = max(0, len(nodes) - len(kinds)) if _pci(sys_root) else 0
        peer = _PEER_MEMORY if (sys_root / "module" / _PEER_MEMORY).is_dir() else ""
        return Gpus(len(nodes) - lost, _named("NVIDIA", kinds), lost, peer)
    if "kfd" not in _listed(dev):
        return Gpus()
    devices = [
        sys_root / "class/drm" / name / "device"
        for name in _listed(dev / "dri")
        if _RENDER.fullmatch(name)
    ]
    kinds = [
        text(item / "device").removeprefix("0x")
        for item in devices
        if text(item / "vendor") == _AMD
    ]
    lost = sum(not text(item / "vendor") for item in devices)
    return Gpus(len(kinds), _named("AMD", kinds), lost)


def _pci(sys_root: Path) -> list[str]:
    return _listed(sys_root / "bus/pci/devices")


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names only
    except OSError:
        return []


def _named(vendor: str, kinds: list[str]) -> str:
    return f"{vendor} {'+'.join(sorted(set(kinds)))}".strip()
