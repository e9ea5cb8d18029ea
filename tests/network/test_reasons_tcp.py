"""What is decided of data networks without RDMA, each with its reason, as the plan shows it."""

from __future__ import annotations

from dataclasses import replace

from mpiboot.core.facts import Attachment, AttachmentSource
from mpiboot.core.setting_types import MpiNetwork, NcclSocket
from tests.fakes import workers as w
from tests.network.test_reasons import (
    ALL,
    DEFAULT,
    NO_RDMA,
    REACHES,
    decide,
    message,
    shown,
    sockets,
)

APART = "w-0 (net1 192.168.7.5/24) has no route over net1 to w-1 (net1 192.168.8.6/24)"


def test_tcp_on_links_of_different_names() -> None:
    asked = replace(DEFAULT, mpi_network=MpiNetwork.DATA)
    found = decide([w.tcp(0), w.tcp(1, "dra0")], asked)
    without = "a second link with an address and without RDMA: TCP"
    assert shown(found) == [
        f"data-network = TCP [detected] {NO_RDMA}",
        f"data-link = net1 [detected] w-0: {without}",
        f"data-link = dra0 [detected] w-1: {without}",
        f"NCCL_IB_DISABLE = 1 [detected] {NO_RDMA}{ALL}",
        f"NCCL_SOCKET_IFNAME = =net1 (w-0), =dra0 (w-1) [detected] {REACHES}; per worker",
        f"GLOO_SOCKET_IFNAME = net1 (w-0), dra0 (w-1) [detected] {REACHES}; per worker",
        f"TP_SOCKET_IFNAME = net1 (w-0), dra0 (w-1) [detected] {REACHES}; per worker",
        (
            "UCX_NET_DEVICES = net1 (w-0), dra0 (w-1) [detected] "
            "TCP: no RDMA port that every worker could use; per worker"
        ),
        f"OMPI_MCA_btl_tcp_if_include = 192.168.7.0/24 [detected] MPIBOOT_MPI_NETWORK=data{ALL}",
    ]
    assert [row.cells[2:] for row in found.rows] == [
        ("net1 192.168.7.5", "", "", "", "1500", ""),
        ("dra0 192.168.7.6", "", "", "", "1500", ""),
    ]
    ucx = decide([w.sriov(0), w.sriov(1)], asked)
    assert (
        f"OMPI_MCA_pml = ucx [detected] MPIBOOT_MPI_NETWORK=data: UCX on the RDMA ports{ALL}"
        in (shown(ucx))
    )
    efa = shown(decide([w.efa(0)], asked))
    for name, value in (("pml", "cm"), ("mtl", "ofi")):
        why = f"MPIBOOT_MPI_NETWORK=data: libfabric's EFA{ALL}"
        assert f"OMPI_MCA_{name} = {value} [detected] {why}" in efa


def test_a_link_that_the_platform_or_the_user_names() -> None:
    named = Attachment(AttachmentSource.MULTUS, link="net1")
    platform = decide([w.changed(w.tcp(0), fabric={"attachments": (named,)})])
    assert shown(platform)[1] == (
        "data-link = net1 [platform] a second link with an address and without RDMA: TCP; the "
        "platform names it"
    )
    user = decide([w.tcp(0)], replace(DEFAULT, data_ifname=("net1",)))
    assert shown(user)[1] == "data-link = net1 [environment] MPIBOOT_DATA_IFNAME"
    assert message(platform) == message(user) == []


def test_links_of_which_nothing_tells_which_is_meant() -> None:
    two = w.worker(
        "w-0",
        w.eth0(),
        w.link("net1", "192.168.7.5/24", index=21, kind="macvlan"),
        w.link("net2", "192.168.8.5/24", index=22, kind="macvlan"),
    )
    (found,) = decide([two]).findings
    assert (found.check, found.message, found.hint) == (
        "data-ambiguous",
        "net1, net2: nothing tells which of these links is the data network; mpiboot uses all",
        "set MPIBOOT_DATA_IFNAME",
    )


def test_data_links_that_do_not_reach_each_other() -> None:
    asked = replace(DEFAULT, mpi_network=MpiNetwork.DATA, nccl_socket=NcclSocket.DATA)
    found = decide([w.tcp(0), w.tcp(1, subnet="192.168.8")], asked)
    assert shown(found) == [
        f"data-network = TCP [detected] {NO_RDMA}",
        f"mpi-network = control [detected] {APART}",
        "data-link = net1 [detected] a second link with an address and without RDMA: TCP",
        f"NCCL_IB_DISABLE = 1 [detected] {NO_RDMA}{ALL}",
        *sockets("eth0", f"the control link: {APART}{ALL}"),
        f"UCX_NET_DEVICES = eth0 [detected] TCP: no RDMA port that every worker could use{ALL}",
    ]
    assert message(found) == [
        f"warn data-networks w-0,w-1: {APART}",
        f"warn data-networks : MPIBOOT_NCCL_SOCKET=data, but {APART}",
        f"warn data-networks : MPI's data stays on the control link: {APART}",
    ]


def test_why_sockets_stay_on_the_control_link() -> None:
    some = decide([w.tcp(0), w.plain(1)])
    assert sockets("eth0", f"the control link: w-1: no data link with an address{ALL}")[0] in (
        shown(some)
    )
    more = w.worker(
        "w-1",
        w.eth0("10.244.1.6/24"),
        w.link("net1", "192.168.7.6/24", index=21, kind="macvlan"),
        w.link("net2", "192.168.8.6/24", index=22, kind="macvlan"),
    )
    counts = "the workers have different numbers of data links"
    assert sockets("eth0", f"the control link: {counts}{ALL}")[0] in shown(decide([w.tcp(0), more]))
    odd = "NCCL can't be told a link named a,b"
    assert sockets("eth0", f"the control link: {odd}{ALL}")[0] in (
        shown(decide([w.tcp(0, "a,b"), w.tcp(1, "a,b")]))
    )
    asked = decide([w.tcp(0)], replace(DEFAULT, nccl_socket=NcclSocket.CONTROL))
    assert sockets("eth0", f"MPIBOOT_NCCL_SOCKET=control{ALL}")[0] in shown(asked)
