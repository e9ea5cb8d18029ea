"""How many GPUs this pod has, of which kind, and what stands between them and their networks.

/dev has the pod's own GPUs, sysfs all of the node: no library of theirs is asked, and nvidia-smi
alone for what only the driver knows. The names are those of the kernel's drivers (nvidia, amdgpu);
PCI vendors and classes are those of pci.ids.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Final

from mpiboot.core.model import Gpus
from mpiboot.network.sysfs import text
from mpiboot.system import executables, programs

_NVIDIA: Final = "0x10de"
_AMD: Final = "0x1002"
# VGA, and 3D controllers, which have no display.
_CLASSES: Final = ("0x0300", "0x0302")
_NODE: Final = re.compile(r"nvidia[0-9]+")
_RENDER: Final = re.compile(r"renderD[0-9]+")
_BRIDGE: Final = "0x0680"  # an NVSwitch is one, without a name of its own for it
# By these an RDMA device reaches an NVIDIA GPU's memory: the files are those that NCCL looks for
# (its gdr.cc). For DMA-BUF it asks CUDA, which has it with the open kernel driver alone.
_PEER_MEMORY: Final = {
    "nvidia_peermem": "module/nvidia_peermem/version",
    "nv_peer_mem": "kernel/mm/memory_peers/nv_mem/version",
    "nv_peer_mem (nc)": "kernel/mm/memory_peers/nv_mem_nc/version",
}
_DMA_BUF: Final = "DMA-BUF"
_OPEN_DRIVER: Final = "Open Kernel Module"
# nvidia-smi waits for a GPU that is broken.
_PATIENCE: Final = 5.0  # seconds
_FABRIC: Final = re.compile(r"^ {4}Fabric\n((?: {8,}.*\n)+)", re.MULTILINE)
_FIELD: Final = re.compile(r"^ {8}(State|Status) +: (.+)$", re.MULTILINE)
_NOTHING: Final = ("N/A", "")


def seen(
    dev: Path = Path("/dev"),
    sys_root: Path = Path("/sys"),
    proc: Path = Path("/proc"),
    search: str = "",
) -> Gpus:
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
        kind, peer = _named("NVIDIA", kinds), _peer_memory(sys_root, proc)
        return Gpus(len(nodes) - lost, kind, lost, peer, _fabric(dev, sys_root, search))
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


def _peer_memory(sys_root: Path, proc: Path) -> tuple[str, ...]:
    ways = [name for name, path in _PEER_MEMORY.items() if text(sys_root / path)]
    if _OPEN_DRIVER in text(proc / "driver/nvidia/version"):
        ways.append(_DMA_BUF)
    return tuple(ways)


def _fabric(dev: Path, sys_root: Path, search: str) -> str:
    """Ask nvidia-smi, but only where GPUs have an NVLink fabric: elsewhere it costs a second."""
    functions = (sys_root / "bus/pci/devices" / name for name in _pci(sys_root))
    switches = any(
        text(item / "vendor") == _NVIDIA and text(item / "class").startswith(_BRIDGE)
        for item in functions
    )
    # Of a rack's fabric (NVL72) a node has the GPUs and no switch.
    if not switches and "nvidia-caps-imex-channels" not in _listed(dev):
        return ""
    return fabric(nvidia_smi(search))


def nvidia_smi(search: str = "") -> str:
    """Give what ``nvidia-smi -q`` says; empty where it isn't there, or takes too long."""
    program = executables.find("nvidia-smi", search or executables.DEFAULT_PATH)
    if program is None:
        return ""
    try:
        done = programs.run((program, "-q"), _PATIENCE)
    except OSError:
        return ""
    return done.stdout if done else ""


def fabric(message: str) -> str:
    """Read the state of the NVLink fabric out of what ``nvidia-smi -q`` said.

    Returns:
        ``Completed`` where all is well, another word of the driver's, with the number of GPUs that
        it is about; empty where there is no such fabric.
    """
    states = []
    for section in _FABRIC.findall(message):
        fields = dict(_FIELD.findall(section))
        state, status = (fields.get(name, "").strip() for name in ("State", "Status"))
        if state not in _NOTHING:
            bad = "" if status in (*_NOTHING, "Success") else f", {status}"
            states.append(state + bad)
    odd = Counter(state for state in states if state != Gpus.FABRIC_READY)
    parts = (f"{state} on {count} of {len(states)} GPUs" for state, count in odd.items())
    return "; ".join(parts) or (Gpus.FABRIC_READY if states else "")


def _pci(sys_root: Path) -> list[str]:
    return _listed(sys_root / "bus/pci/devices")


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names only
    except OSError:
        return []


def _named(vendor: str, kinds: list[str]) -> str:
    return f"{vendor} {'+'.join(sorted(set(kinds)))}".strip()
