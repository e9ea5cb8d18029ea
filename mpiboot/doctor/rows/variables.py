"""The rows of the pod's variables. Pure."""

from __future__ import annotations

from typing import Final

from mpiboot.core.model import Level
from mpiboot.doctor.judge import environment
from mpiboot.doctor.rows.pod_check import PodCheck

ROWS: Final = (
    PodCheck(
        "debug-output",
        "NCCL_DEBUG, UCX_LOG_LEVEL, FI_LOG_LEVEL, I_MPI_DEBUG, *_MCA_*_verbose and the like",
        ("environ",),
        environment.debug,
        {Level.WARN: "one is on, and nothing sends its output to a file"},
    ),
    PodCheck(
        "unread-parameters",
        "OMPI_MCA_* and PRTE_MCA_* against what this version of Open MPI knows",
        ("environ", "image"),
        environment.unread,
        {Level.WARN: "one was written for another version, and has no effect"},
    ),
    PodCheck(
        "two-settings",
        "variables of MPI that exclude each other",
        ("environ",),
        environment.two_settings,
        {Level.WARN: "both are set"},
    ),
    PodCheck(
        "named-links",
        "GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME, UCX_NET_DEVICES, FI_TCP_IFACE, FI_SOCKETS_IFACE, "
        "HYDRA_IFACE, I_MPI_HYDRA_IFACE and Open MPI's *_if_include against the links of this pod",
        ("environ", "facts"),
        environment.named_links,
        {Level.WARN: "one names a link that is not there"},
    ),
    PodCheck(
        "nccl-prefix",
        "NCCL_SOCKET_IFNAME and NCCL_IB_HCA against the links and devices of this pod",
        ("facts",),
        environment.prefixes,
        {Level.WARN: "a name in the list takes others that begin with it: mlx5_1 and mlx5_10"},
    ),
)
