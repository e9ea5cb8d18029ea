"""Which variables follow for the ranks, whatever the workers; each topology is in its own text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core.facts import Variable, Worker
from mpiboot.core.model import DataNetworkUse, MpiNetwork, NcclSocket
from mpiboot.core.settings import Settings
from mpiboot.network import cluster_view, nccl
from tests.fakes import workers as w
from tests.fakes.networks import decide

DEFAULT = Settings(nccl_version="2.28.9")
SOCKETS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
# What the kernel allows in a name: all but blanks, a slash and a colon (dev_valid_name); a comma
# can't stand in NCCL's list.
LEGAL = "".join(chr(code) for code in range(33, 127) if chr(code) not in "/:,")


@pytest.mark.parametrize(
    "name",
    [
        *("n" + LEGAL[place : place + 5] for place in range(0, len(LEGAL), 5)),
        *("-x", "'", "$(reboot)", "net\x1b[2J", "é"),
    ],
)
def test_a_link_may_have_any_name_that_the_kernel_allows(name: str) -> None:
    found = decide([w.tcp(0, name), w.tcp(1, name)], DEFAULT)
    assert [found.common[key] for key in SOCKETS] == [f"={name}", name, name]
    assert [row[2].split()[0] for row in map(cluster_view.row, found.networks)] == [name] * 2
    rdma = decide([w.sriov(0, netdev=name), w.sriov(1, netdev=name)], DEFAULT)
    assert rdma.common["UCX_NET_DEVICES"] == "mlx5_3:1"
    assert not found.findings


def test_the_link_of_mpis_own_messages_comes_before_ours() -> None:
    others = [Variable("UCX_NET_DEVICES", "eth0", "MPI on the control link")]
    for mpi, device in ((MpiNetwork.CONTROL, "eth0"), (MpiNetwork.AUTO, "mlx5_3:1")):
        settings = replace(DEFAULT, mpi_network=mpi)
        found = decide((w.sriov(0), w.sriov(1)), settings, others=others)
        assert found.common["UCX_NET_DEVICES"] == device
        assert not found.findings


KINDS = (
    w.sriov, w.rails8, w.macvlan, w.ipoib, w.aks, w.efa, w.tcp, w.plain, w.host_network
)  # fmt: skip
NAMES = [
    *SOCKETS,
    *(
        "NCCL_NET",
        "NCCL_IB_PKEY",
        "UCX_IB_PKEY",
        "OMPI_MCA_pml",
        "OMPI_MCA_mtl",
        "OMPI_MCA_btl_tcp_if_include",
    ),
    *nccl.NCCL_GID,
    *nccl.UCX_GID,
]


@st.composite
def clusters(draw: st.DrawFn) -> list[Worker]:
    made = []
    for place in range(draw(st.integers(1, 4))):
        worker = draw(st.sampled_from(KINDS))(place)
        own = tuple(draw(st.lists(st.sampled_from(NAMES), max_size=2)))
        known = w.changed(worker, environment=own)
        made.append(draw(st.sampled_from([known, known, known, replace(known, facts=None)])))
    return made


SETTINGS = st.builds(
    Settings,
    data_network=st.sampled_from(DataNetworkUse),
    data_ifname=st.sampled_from([(), (), ("net1",), ("net1", "nosuch"), ("nosuch",)]),
    rdma_device=st.sampled_from([(), (), ("mlx5_3",), ("mlx5_2:1",), ("nosuch",)]),
    nccl_socket=st.sampled_from(NcclSocket),
    mpi_network=st.sampled_from(MpiNetwork),
    nccl_version=st.sampled_from(["", "2.18.3", "2.28.9"]),
)
NOT_NAMES = {"NCCL_NET", "OMPI_MCA_pml", "OMPI_MCA_mtl"}


@given(clusters(), SETTINGS, st.lists(st.sampled_from(NAMES), max_size=3, unique=True))
def test_any_cluster_keeps_the_rules(
    workers: list[Worker], settings: Settings, taken: list[str]
) -> None:
    found = decide(workers, settings, dict.fromkeys(taken, "-x"))
    assert list(found.per_host) == [worker.host.name for worker in workers]
    assert [network.host for network in found.networks] == list(found.per_host)
    for worker in workers:
        mine = found.per_host[worker.host.name]
        assert not set(mine) & set(found.common)
        both = {**found.common, **mine}
        own = set(worker.facts.environment) if worker.facts else set()
        assert not set(both) & {*taken, *own}
        if worker.facts is None:
            assert set(both) <= NOT_NAMES
            continue
        links = {link.name for link in worker.facts.links}
        ports = {
            f"{device.name}:{port.number}"
            for device in worker.facts.fabric.devices
            for port in device.ports
        }
        for name in SOCKETS:
            assert set(both.get(name, "").removeprefix("=").split(",")) <= links | {""}
        for name in ("NCCL_IB_HCA", "UCX_NET_DEVICES"):
            assert set(both.get(name, "").removeprefix("=").split(",")) <= links | ports | {""}
    assert found == decide(list(workers), settings, dict.fromkeys(reversed(taken), "-x"))
