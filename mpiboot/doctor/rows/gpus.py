"""The rows of GPUs. Pure."""

from __future__ import annotations

from typing import Final

from mpiboot.core.model import Level
from mpiboot.doctor.judge import hardware, nvidia
from mpiboot.doctor.rows.pod_check import PodCheck

ROWS: Final = (
    PodCheck(
        "gpus",
        "/dev, sysfs and, where there is an NVLink fabric, `nvidia-smi -q`",
        ("facts",),
        hardware.gpus,
        {
            Level.OK: "as many as the pod was given",
            Level.WARN: "one is lost, or the fabric is not ready",
        },
    ),
    PodCheck(
        "gpu-distance",
        "the PCI tree in sysfs, with NCCL's names: PIX, PXB, PHB, SYS",
        ("pci", "environ"),
        hardware.gpu_distance,
        {
            Level.OK: "a device is below the same switches, or a variable says what NCCL may use",
            Level.WARN: "NCCL does not use GPUDirect RDMA from there",
        },
    ),
    PodCheck(
        "cuda-library",
        "the file behind libcuda.so.1, and /proc/driver/nvidia/version",
        ("nvidia", "facts"),
        nvidia.cuda_library,
        {
            Level.OK: "they are of one version, or the library is a newer one of cuda-compat",
            Level.FAIL: "there is none, or it is of another version: CUDA does not start",
        },
    ),
    PodCheck(
        "imex-channels",
        "ClusterUUID in `nvidia-smi -q`, and /dev/nvidia-caps-imex-channels",
        ("nvidia",),
        nvidia.imex,
        {
            Level.OK: "NVLink reaches other nodes, and the pod has a channel",
            Level.WARN: "NVLink reaches other nodes, and the pod has no channel for it",
        },
    ),
)
