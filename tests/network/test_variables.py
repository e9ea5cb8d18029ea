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

# Each with its owner, and what of the user's it would contradict beside itself.
ROWS = {
    "NCCL_SOCKET_IFNAME": ("nccl-socket", ()),
    "NCCL_SOCKET_FAMILY": ("nccl-socket", ("NCCL_SOCKET_IFNAME",)),
    "GLOO_SOCKET_IFNAME": ("nccl-socket", ()),
    "TP_SOCKET_IFNAME": ("nccl-socket", ()),
    "NCCL_IB_HCA": ("rdma-ports", ()),
    "NCCL_IB_PKEY": ("rdma-ports", ("NCCL_IB_HCA",)),
    "NCCL_NET": ("transport", ("NCCL_NET_PLUGIN", "NCCL_IB_DISABLE", "NCCL_IB_HCA")),
    **{name: ("gid", ("NCCL_IB_HCA", *set(GID) - {name})) for name in GID},
    "UCX_NET_DEVICES": ("rdma-ports", ("UCX_TLS",)),
    "UCX_IB_PKEY": ("rdma-ports", UCX),
    "UCX_IB_GID_INDEX": ("gid", (*UCX, "UCX_IB_ROCE_SUBNETS")),
    "UCX_IB_ROCE_SUBNETS": ("gid", (*UCX, "UCX_IB_GID_INDEX")),
    "FI_TCP_IFACE": ("mpi-link", ()),
    "FI_SOCKETS_IFACE": ("mpi-link", ()),
    "OMPI_MCA_pml": ("mpi-network", ()),
    "OMPI_MCA_mtl": ("mpi-network", ("OMPI_MCA_pml",)),
    "OMPI_MCA_btl_tcp_if_include": (
        "mpi-network",
        ("OMPI_MCA_btl_tcp_if_exclude", "OMPI_MCA_btl"),
    ),
}
EVERY = sorted({*ROWS, *(other for _, others in ROWS.values() for other in others)})


def test_the_table_is_whole() -> None:
    assert [row.name for row in decision.VARIABLES] == list(ROWS)
    assert decision.owner("MY_OWN") == ""


@pytest.mark.parametrize("name", ROWS)
def test_a_variable_is_left_alone_with_some_of_the_users_own(name: str) -> None:
    owner, others = ROWS[name]
    assert decision.owner(name) == owner
    wanted = [Variable(name, "value", "why", rule=owner, host="w-1")]
    for own in EVERY:
        found = decision.settle(NETWORKS, wanted, {own: "-x"})
        left = own in (name, *others)
        assert found.values == {"w-0": {}, "w-1": {} if left else {name: "value"}}, own
        why = "-x" if own == name else f"{own} is set (-x)"
        assert found.kept == ({(name, why): ["w-1"]} if left else {}), own
        assert found.reason == ({} if left else {name: "why"})
    assert decision.settle(NETWORKS, wanted, {}).findings == ()


def test_of_two_that_want_it_the_owner_has_it_whoever_came_first() -> None:
    ours = Variable("UCX_NET_DEVICES", "mlx5_0:1", "ours", rule="rdma-ports")
    theirs = Variable("UCX_NET_DEVICES", "eth0", "theirs", rule="mpi-link", host="w-1")
    for wanted in ([ours, theirs], [theirs, ours]):
        found = decision.settle(NETWORKS, wanted, {})
        ports = {"UCX_NET_DEVICES": "mlx5_0:1"}
        assert found.values == {"w-0": ports, "w-1": ports}
        (clash,) = found.findings
        assert (clash.check, clash.host, clash.evidence) == ("settings-conflict", "w-1", ())
        assert clash.message == (
            "UCX_NET_DEVICES: rdma-ports wants mlx5_0:1, mpi-link wants eth0; it belongs to "
            "rdma-ports, whose value is set"
        )
        assert clash.hint == "set the variable yourself to decide"
