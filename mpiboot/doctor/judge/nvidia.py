"""NVIDIA's user space against its driver in the kernel, and IMEX channels. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mpiboot.core.checks import failed
from mpiboot.core.model import Finding, PodFacts
from mpiboot.doctor.judge.image import ok, warned
from mpiboot.doctor.report import NvidiaPart

_PREFIX: Final = "libcuda.so."
_COMPAT: Final = "compat"  # /usr/local/cuda/compat, of the package cuda-compat


def cuda_library(seen: NvidiaPart, facts: PodFacts) -> Iterable[Finding]:
    """Compare the library with the driver; a newer one of cuda-compat is meant to be used."""
    if not seen.driver or not facts.gpus.count:
        return
    name = seen.library.rpartition("/")[2]
    version = name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else ""
    compat = _COMPAT in seen.found.split("/") or _COMPAT in seen.library.split("/")
    if not seen.library:
        yield failed("cuda-library", f"no {_PREFIX}1, and the node's driver is {seen.driver}")
    elif not version or version == "1":
        yield ok("cuda-library", f"{seen.library}; the driver is {seen.driver}")
    elif version == seen.driver or (compat and _number(version) > _number(seen.driver)):
        yield ok("cuda-library", f"{seen.library} fits the driver {seen.driver}")
    else:
        said = f"{seen.library} is of driver {version}, the node's driver is {seen.driver}"
        hint = None
        if compat:
            hint = "take its folder out of LD_LIBRARY_PATH: cuda-compat is for older drivers"
        yield failed("cuda-library", f"{said}: CUDA does not start (error 803)", hint=hint)


def _number(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def imex(seen: NvidiaPart) -> Iterable[Finding]:
    """Judge whether ranks may use NVLink between nodes; without such a fabric there is nothing."""
    if not seen.cluster:
        return
    said = f"the GPUs' NVLink reaches other nodes (cluster {seen.cluster})"
    if seen.channels:
        yield ok("imex-channels", f"{said}, and this pod has an IMEX channel")
    else:
        more = "but no IMEX channel is in this pod: between nodes NCCL uses the network"
        yield warned("imex-channels", f"{said}, {more}")
