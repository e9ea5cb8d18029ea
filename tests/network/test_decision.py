"""Which variables follow for the ranks, from whole workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core.facts import Gid, GidType, Variable, Worker
from mpiboot.core.model import Level
from mpiboot.core.setting_types import DataNetworkUse, MpiNetwork, NcclSocket
from mpiboot.core.settings import Settings
from mpiboot.network import cluster_view, nccl
from mpiboot.network.decision import DataNetwork
from tests.fakes import networks
from tests.fakes import workers as w

DEFAULT = Settings(nccl_version="2.28.9")
STRICT = replace(DEFAULT, data_network=DataNetworkUse.REQUIRE)
MPI_DATA = replace(DEFAULT, mpi_network=MpiNetwork.DATA)
INCLUDE = "OMPI_MCA_btl_tcp_if_include"


def decide(
    workers: Sequence[Worker],
    settings: Settings = DEFAULT,
    taken: Mapping[str, str] | None = None,
    values: Mapping[str, str] | None = None,
    blocked: str = "",
) -> DataNetwork:
    return networks.decide(workers, settings, taken, values, blocked=blocked)


def value(found: DataNetwork, name: str, host: str = "w-0") -> str | None:
    return {**found.common, **found.per_host[host]}.get(name)


def checks(found: DataNetwork) -> set[str]:
    return {finding.check for finding in found.findings}


def reason(found: DataNetwork, name: str) -> str:
    return next(item.reason for item in found.decisions if item.name == name)


def sockets(name: str) -> dict[str, str]:
    return {"NCCL_SOCKET_IFNAME": f"={name}", "GLOO_SOCKET_IFNAME": name, "TP_SOCKET_IFNAME": name}


def test_rails_in_two_partitions_are_said_and_no_partition_is_named() -> None:
    worker = w.ipoib(0, "net1", pkey=1)
    assert worker.facts is not None
    second = replace(
        w.link("net2", "10.8.0.5/24", index=26, kind="ipoib", pkey=0xFFFF),
        hardware="00:00:00:11:fe:80:00:00:00:00:00:00:00:10:00:e0:00:00:00:77",
    )
    entry = Gid(0, "fe80:0:0:0:10:e0:0:77", GidType.ROCE_V1, "")
    port = w.port((entry,), layer="InfiniBand")
    devices = (*worker.facts.fabric.devices, w.device("mlx5_9", port))
    links = (*worker.facts.links, second)
    found = decide([w.changed(worker, links=links, fabric={"devices": devices})])
    assert found.common["UCX_NET_DEVICES"] == "mlx5_4:1,mlx5_9:1"
    assert not {"NCCL_IB_PKEY", "UCX_IB_PKEY"} & found.common.keys()
    (finding,) = [one for one in found.findings if one.check == "data-ambiguous"]
    assert "partitions 0x0001, 0x7fff" in finding.message


@pytest.mark.parametrize(
    ("settings", "level"), [(DEFAULT, Level.WARN), (STRICT, Level.FAIL)], ids=["prefer", "require"]
)
def test_efa_without_what_uses_it_is_said_before_nccl_takes_tcp(
    settings: Settings, level: Level
) -> None:
    lacks = {"missing": ("libfabric.so.1", "libnccl-net.so")}
    found = decide([w.efa(0), w.changed(w.efa(1), fabric=lacks)], settings)
    (finding,) = [one for one in found.findings if one.check == "efa-library"]
    assert "aws-ofi-nccl" in finding.hint
    assert finding.level is level


def test_a_plugin_of_the_users_own_needs_no_other_for_efa() -> None:
    worker = w.changed(w.efa(0), fabric={"missing": ("libnccl-net.so",)})
    values = {"NCCL_NET_PLUGIN": "ofi"}
    assert not decide([worker], taken={"NCCL_NET_PLUGIN": "line"}, values=values).findings
    # Where one worker has no EFA, the plugin's variables are still the user's.
    mixed = decide([worker, w.plain(1)], taken={"NCCL_NET_PLUGIN": "env"}, values=values)
    assert [name for name in mixed.common if name.startswith("NCCL_")] == ["NCCL_SOCKET_IFNAME"]


def test_require_makes_a_fall_to_tcp_an_error_of_the_run() -> None:
    assert decide([w.sriov(0), w.sriov(1)], STRICT).common["NCCL_NET"] == "IB"
    assert "NCCL_NET" not in decide([w.efa(0)], STRICT).common
    bare = decide([w.plain(0), w.plain(1)], STRICT)
    assert "NCCL_NET" not in bare.common
    assert {item.level for item in bare.findings if item.check == "rdma-missing"} == {Level.FAIL}


BLOCKED = "w-0 can't reach w-1 (192.168.5.8 port 40009): no answer in 2 s, twice"


def test_sockets_stay_on_control_where_tcp_does_not_pass_beside_rdma() -> None:
    found = decide([w.sriov(0), w.sriov(1)], blocked=BLOCKED)
    for name, own in sockets("eth0").items():
        assert found.common[name] == own
        assert reason(found, name) == f"the control link: {BLOCKED}; on all workers"
    (told,) = [item for item in found.findings if item.check == "data-sockets"]
    assert (told.level, BLOCKED in told.message) == (Level.WARN, True)
    # A fabric for RDMA alone is in order.
    strict = decide([w.sriov(0), w.sriov(1)], STRICT, blocked=BLOCKED)
    assert {item.level for item in strict.findings if item.check == "data-sockets"} == {Level.WARN}
    assert strict.common == {**found.common, "NCCL_NET": "IB"}


def test_nothing_that_takes_tcp_uses_a_data_network_where_it_does_not_pass() -> None:
    workers = [w.tcp(0), w.tcp(1)]
    assert decide(workers, blocked=BLOCKED).common["UCX_NET_DEVICES"] == "eth0"
    moved = decide(workers, MPI_DATA, blocked=BLOCKED)
    assert INCLUDE not in moved.common
    message = f"MPI's data stays on the control link: {BLOCKED}"
    assert message in [item.message for item in moved.findings]
    # Where sockets would stay there anyway, nothing is said of TCP.
    control = replace(DEFAULT, nccl_socket=NcclSocket.CONTROL)
    assert "data-sockets" not in checks(decide(workers, control))


def test_the_socket_setting_decides() -> None:
    control = decide([w.sriov(0), w.sriov(1)], replace(DEFAULT, nccl_socket=NcclSocket.CONTROL))
    assert control.common["NCCL_SOCKET_IFNAME"] == "=eth0"
    data = decide([w.plain(0)], replace(DEFAULT, nccl_socket=NcclSocket.DATA))
    assert data.common["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert "data-networks" in checks(data)


def test_off_sets_nothing_and_still_shows_the_table() -> None:
    found = decide([w.sriov(0), w.sriov(1)], replace(DEFAULT, data_network=DataNetworkUse.OFF))
    assert found.common == {}
    assert found.per_host == {"w-0": {}, "w-1": {}}
    assert not found.findings
    assert cluster_view.row(found.networks[0]).hca == "mlx5_3:1"
    assert decide([]).common == {}


@pytest.mark.parametrize(
    ("workers", "taken", "left", "kept"),
    [
        # The user's value stands, and so does what hangs on it.
        ([w.sriov(0)], "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", {"GLOO_SOCKET_IFNAME": "net1"}),
        ([w.macvlan(0)], "UCX_TLS", "UCX_NET_DEVICES", {"NCCL_IB_GID_INDEX": "9"}),
        ([w.sriov(0)], "UCX_TLS", "UCX_NET_DEVICES", {"GLOO_SOCKET_IFNAME": "net1"}),
    ],
)
def test_what_the_user_has_set_is_left_alone(
    workers: list[Worker], taken: str, left: str, kept: dict[str, str]
) -> None:
    found = decide(workers, taken={taken: "-x on the mpirun line"}, values={taken: "eth0"})
    assert left not in {**found.common, **found.per_host["w-0"]}
    assert kept.items() <= found.common.items()
    shown = next(item for item in found.decisions if item.name == left)
    assert shown.value == ("eth0" if left == taken else "")
    assert "-x on the mpirun line" in shown.reason
    assert left == taken or f"{taken} is set" in shown.reason


def test_a_worker_pods_own_name_wins_on_that_worker_alone() -> None:
    own = w.changed(w.sriov(1), environment=("UCX_NET_DEVICES",))
    found = decide([w.sriov(0), own])
    assert value(found, "UCX_NET_DEVICES", "w-0") == "mlx5_3:1"
    assert value(found, "UCX_NET_DEVICES", "w-1") is None
    assert "UCX_NET_DEVICES" not in found.common


def test_mpi_data_moves_to_the_data_link_only_when_asked() -> None:
    assert not [name for name in decide([w.tcp(0)]).common if name.startswith("OMPI")]
    assert decide([w.tcp(0), w.tcp(1)], MPI_DATA).common[INCLUDE] == "net1"
    assert decide([w.sriov(0), w.sriov(1)], MPI_DATA).common["OMPI_MCA_pml"] == "ucx"
    assert decide([w.efa(0)], MPI_DATA).common["OMPI_MCA_mtl"] == "ofi"
    names = decide([w.tcp(0), w.tcp(1, "dranet0")], MPI_DATA)
    assert INCLUDE not in names.common
    (finding,) = [item for item in names.findings if item.check == "data-networks"]
    assert "the data links' names differ" in finding.message
    nowhere = decide([w.plain(0)], MPI_DATA)
    assert INCLUDE not in nowhere.common
    assert "data-networks" in checks(nowhere)


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
    found = decide([w.tcp(0, name), w.tcp(1, name)])
    assert sockets(name).items() <= found.common.items()
    assert [row.data.split()[0] for row in map(cluster_view.row, found.networks)] == [name] * 2
    rdma = decide([w.sriov(0, netdev=name), w.sriov(1, netdev=name)])
    assert rdma.common["UCX_NET_DEVICES"] == "mlx5_3:1"
    assert not found.findings


def test_the_link_of_mpis_own_messages_comes_before_ours() -> None:
    others = [Variable("UCX_NET_DEVICES", "eth0", "MPI on the control link")]
    control = replace(DEFAULT, mpi_network=MpiNetwork.CONTROL)
    found = networks.decide((w.sriov(0), w.sriov(1)), control, others=others)
    assert found.common == {**sockets("net1"), "UCX_NET_DEVICES": "eth0"}
    assert not found.findings


def test_each_workers_own_decisions_are_shown_once() -> None:
    alike = [item for item in decide([w.sriov(0), w.sriov(1)]).decisions if "rdma" in item.name]
    assert [(item.name, item.value) for item in alike] == [("rdma-port", "mlx5_3:1")]
    differing = decide([w.sriov(0), w.sriov(1, hca="mlx5_9")]).decisions
    ports = [(item.value, item.reason[:5]) for item in differing if item.name == "rdma-port"]
    assert ports == [("mlx5_3:1", "w-0: "), ("mlx5_9:1", "w-1: ")]


KINDS = (
    w.sriov, w.rails8, w.macvlan, w.ipoib, w.aks, w.efa, w.tcp, w.plain, w.host_network
)  # fmt: skip
NAMES = [
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"),
    *("NCCL_NET", "NCCL_IB_PKEY", "UCX_IB_PKEY", "OMPI_MCA_pml", "OMPI_MCA_mtl", INCLUDE),
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
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            assert set(both.get(name, "").removeprefix("=").split(",")) <= links | {""}
        for name in ("NCCL_IB_HCA", "UCX_NET_DEVICES"):
            assert set(both.get(name, "").removeprefix("=").split(",")) <= links | ports | {""}
    assert found == decide(list(workers), settings, dict.fromkeys(reversed(taken), "-x"))
