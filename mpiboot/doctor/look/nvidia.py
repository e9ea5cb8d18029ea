"""NVIDIA's driver and what of it this pod has: its CUDA library, and its IMEX channels; by files.

nvidia-smi alone tells which NVLink fabric the GPUs are in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from mpiboot.doctor.report import NvidiaPart
from mpiboot.network import gpus
from mpiboot.network.sysfs import text

LIBRARY: Final = "libcuda.so.1"
_VERSION: Final = re.compile(r"Kernel Module(?: +for \S+)? +([0-9]+(?:\.[0-9]+)+)")
_CLUSTER: Final = re.compile(r"^ +ClusterUUID +: ([0-9a-f-]{36})$", re.MULTILINE)
_CHANNEL: Final = re.compile(r"channel[0-9]+")
# Where the loader and NVIDIA's container toolkit have it, on Debian, Red Hat and GKE.
_FOLDERS: Final = (
    *("usr/local/nvidia/lib64", "usr/local/nvidia/lib", "lib64", "usr/lib64"),
    *("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib", "usr/lib"),
)


def nvidia(environ: Mapping[str, str], root: Path = Path("/")) -> NvidiaPart:
    """Look; without a driver or without a GPU in this pod nothing more is asked."""
    driver = version(text(root / "proc/driver/nvidia/version"))
    dev = root / "dev"
    if not driver or not any(dev.glob("nvidia[0-9]*")):
        return NvidiaPart(driver)
    found = next((item for item in _folders(environ, root) if (item / LIBRARY).exists()), None)
    library = str((found / LIBRARY).resolve()) if found else ""
    channels = dev / "nvidia-caps-imex-channels"
    listed = os.listdir(channels) if channels.is_dir() else []  # noqa: PTH208 - names only
    count = sum(bool(_CHANNEL.fullmatch(name)) for name in listed)
    fabric = cluster(gpus.nvidia_smi(environ.get("PATH", "")))
    return NvidiaPart(driver, library, str(found or ""), fabric, count)


def version(said: str) -> str:
    """Read the driver's version out of /proc/driver/nvidia/version; empty where it has none."""
    found = _VERSION.search(said)
    return found[1] if found else ""


def cluster(said: str) -> str:
    """Read a fabric's UUID out of ``nvidia-smi -q``; one that ends at the node has zeros."""
    listed = _CLUSTER.findall(said)
    return next((item for item in listed if item.strip("0-")), "")


def _folders(environ: Mapping[str, str], root: Path) -> Iterator[Path]:
    """Give the loader's folders in its order; of its cache, those by which that is made."""
    named = environ.get("LD_LIBRARY_PATH", "").split(":")
    yield from (root / item.lstrip("/") for item in named if item.startswith("/"))
    lists = root / "etc/ld.so.conf.d"
    for path in sorted(lists.glob("*.conf")) if lists.is_dir() else ():
        lines = map(str.strip, text(path).splitlines())
        yield from (root / line.lstrip("/") for line in lines if line.startswith("/"))
    yield from (root / item for item in _FOLDERS)
