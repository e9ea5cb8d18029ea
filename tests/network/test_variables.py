"""Whose value a variable gets, and with which of the user's own it is left alone."""

from __future__ import annotations

import pytest

from mpiboot.core.facts import Variable
from mpiboot.core.settings import Settings
from mpiboot.network import decision, worker_network
from tests.fakes import workers as w

NETWORKS = [worker_network.choose(worker, Settings()) for worker in (w.plain(0), w.plain(1))]
GID = ("NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ADDR_FAMILY")
UCX = ("UCX_NET_DEVICES", "UCX_TLS")

# Each with what of the user's it would contradict beside itself.
ROWS = {
    "NCCL_SOCKET_IFNAME": (),
    "NCCL_SOCKET_FAMILY": ("NCCL_SOCKET_IFNAME",),
    "GLOO_SOCKET_IFNAME": (),
    "TP_SOCKET_IFNAME": (),
    "NCCL_IB_HCA": (),
    "NCCL_IB_PKEY": ("NCCL_IB_HCA",),
    "NCCL_NET": ("NCCL_NET_PLUGIN", "NCCL_IB_DISABLE", "NCCL_IB_HCA"),
    **dict.fromkeys(GID, ("NCCL_IB_HCA", "NCCL_IB_ROCE_VERSION_NUM", *GID)),
    "UCX_NET_DEVICES": ("UCX_TLS",),
    "UCX_IB_PKEY": UCX,
    "UCX_IB_GID_INDEX": (*UCX, "UCX_IB_ROCE_SUBNETS"),
    "UCX_IB_ROCE_SUBNETS": (*UCX, "UCX_IB_GID_INDEX"),
    "FI_TCP_IFACE": (),
    "FI_SOCKETS_IFACE": (),
    "OMPI_MCA_pml": (),
    "OMPI_MCA_mtl": ("OMPI_MCA_pml",),
    "OMPI_MCA_btl_tcp_if_include": ("OMPI_MCA_btl_tcp_if_exclude", "OMPI_MCA_btl"),
}
EVERY = sorted({*ROWS, *(other for others in ROWS.values() for other in others)})


def test_the_table_is_whole() -> None:
    assert list(decision.VARIABLES) == list(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_a_variable_is_left_alone_with_some_of_the_users_own(name: str) -> None:
    wanted = [Variable(name, "value", "why", host="w-1")]
    for own in EVERY:
        found = decision.settle(NETWORKS, wanted, {own: "-x"})
        left = own in (name, *ROWS[name])
        assert found.values == {"w-0": {}, "w-1": {} if left else {name: "value"}}, own
        why = "-x" if own == name else f"{own} is set (-x)"
        assert found.kept == ({(name, why): ["w-1"]} if left else {}), own
        assert found.reason == ({} if left else {name: "why"})
