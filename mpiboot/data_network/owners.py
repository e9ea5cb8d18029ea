"""Which rule owns which variable of the data network: the table, one owner a name. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Wish:
    """A rule wants a value for a variable, on one worker or (``host`` None) on all."""

    name: str
    value: str
    rule: str
    because: str
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Owned:
    """One row. ``hangs_on``: where the user has one of these, this is left alone as well.

    A GID index decided for our devices is wrong for the user's; UCX_TLS=tcp finds no RDMA port.
    """

    name: str
    rule: str
    hangs_on: tuple[str, ...] = ()


_HCA, _UCX = "NCCL_IB_HCA", "UCX_NET_DEVICES"

OWNED: Final = (
    Owned("NCCL_SOCKET_IFNAME", "nccl-socket"),
    Owned("NCCL_SOCKET_FAMILY", "nccl-socket", ("NCCL_SOCKET_IFNAME",)),
    Owned("GLOO_SOCKET_IFNAME", "nccl-socket"),
    Owned("TP_SOCKET_IFNAME", "nccl-socket"),
    Owned(_HCA, "rdma-ports"),
    Owned("NCCL_IB_PKEY", "rdma-ports", (_HCA,)),
    Owned("NCCL_IB_DISABLE", "transport", (_HCA,)),
    Owned("NCCL_NET", "transport", ("NCCL_NET_PLUGIN", "NCCL_IB_DISABLE")),
    Owned("NCCL_IB_GID_INDEX", "gid", (_HCA, "NCCL_IB_ADDR_RANGE", "NCCL_IB_ADDR_FAMILY")),
    Owned("NCCL_IB_ADDR_RANGE", "gid", (_HCA, "NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY")),
    Owned("NCCL_IB_ADDR_FAMILY", "gid", (_HCA, "NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_RANGE")),
    Owned(_UCX, "rdma-ports", ("UCX_TLS",)),
    Owned("UCX_IB_PKEY", "rdma-ports", (_UCX, "UCX_TLS")),
    Owned("UCX_IB_GID_INDEX", "gid", (_UCX, "UCX_TLS", "UCX_IB_ROCE_SUBNETS")),
    Owned("UCX_IB_ROCE_SUBNETS", "gid", (_UCX, "UCX_TLS", "UCX_IB_GID_INDEX")),
    Owned("FI_PROVIDER", "transport"),
    Owned("OMPI_MCA_pml", "mpi-network"),
    Owned("OMPI_MCA_mtl", "mpi-network", ("OMPI_MCA_pml",)),
    Owned(
        "OMPI_MCA_btl_tcp_if_include",
        "mpi-network",
        ("OMPI_MCA_btl_tcp_if_exclude", "OMPI_MCA_btl"),
    ),
)

_BY_NAME: Final = {row.name: row for row in OWNED}


def owner(name: str) -> str:
    """Give the rule that owns a variable; empty for a name that isn't in the table."""
    return _BY_NAME[name].rule if name in _BY_NAME else ""


def hangs_on(name: str) -> tuple[str, ...]:
    """Give the variables with which a variable is left alone."""
    return _BY_NAME[name].hangs_on if name in _BY_NAME else ()
