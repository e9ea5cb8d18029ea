from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.core.model import (
    Attachment,
    AttachmentSource,
    Gid,
    GidType,
    Level,
    Route,
    Source,
    Variable,
    Worker,
)
from mpiboot.core.setting_types import DataNetworkUse, MpiNetwork, NcclSocket
from mpiboot.core.settings import Settings
from mpiboot.network import decision, worker_network
from mpiboot.network.decision import DataNetwork
from tests.fakes import workers as w

DEFAULT = Settings(nccl_version="2.28.9")


def decide(
    workers: Sequence[Worker],
    settings: Settings = DEFAULT,
    taken: Mapping[str, str] | None = None,
    values: Mapping[str, str] | None = None,
    blocked: str = "",
) -> DataNetwork:
    return decision.decide(
        [worker_network.choose(one, settings) for one in workers],
        settings,
        taken or {},
        values=values or {},
        blocked=blocked,
    )


def value(found: DataNetwork, name: str, host: str = "w-0") -> str | None:
    return {**found.common, **found.per_host[host]}.get(name)


def checks(found: DataNetwork) -> set[str]:
    return {finding.check for finding in found.findings}


def reason(found: DataNetwork, name: str) -> str:
    return next(item.reason for item in found.decisions if item.name == name)


def test_one_sriov_vf_on_each_worker() -> None:
    found = decide([w.sriov(0), w.sriov(1)])
    assert found.common == {
        "NCCL_SOCKET_IFNAME": "=net1",
        "GLOO_SOCKET_IFNAME": "net1",
        "TP_SOCKET_IFNAME": "net1",
        "NCCL_IB_HCA": "=mlx5_3:1",
        "UCX_NET_DEVICES": "mlx5_3:1",
    }
    assert found.per_host == {"w-0": {}, "w-1": {}}
    assert not found.findings
    assert "reaches the others" in reason(found, "NCCL_SOCKET_IFNAME")


def test_different_device_names_reach_only_their_own_worker() -> None:
    found = decide([w.sriov(0, "mlx5_3"), w.sriov(1, "mlx5_7")])
    assert found.per_host == {
        "w-0": {"NCCL_IB_HCA": "=mlx5_3:1", "UCX_NET_DEVICES": "mlx5_3:1"},
        "w-1": {"NCCL_IB_HCA": "=mlx5_7:1", "UCX_NET_DEVICES": "mlx5_7:1"},
    }
    assert found.common["NCCL_SOCKET_IFNAME"] == "=net1"
    assert "per worker" in reason(found, "NCCL_IB_HCA")
    assert not found.findings


def test_different_link_names_reach_only_their_own_worker() -> None:
    found = decide([w.sriov(0, netdev="net1"), w.sriov(1, netdev="dranet0")])
    assert value(found, "NCCL_SOCKET_IFNAME", "w-0") == "=net1"
    assert value(found, "NCCL_SOCKET_IFNAME", "w-1") == "=dranet0"
    assert value(found, "GLOO_SOCKET_IFNAME", "w-1") == "dranet0"


def test_eight_rails_are_listed_in_order_and_bootstrap_takes_the_first() -> None:
    found = decide([w.rails8(0), w.rails8(1)])
    listed = ",".join(f"mlx5_{20 - rail}:1" for rail in range(1, 9))
    assert found.common["NCCL_IB_HCA"] == "=" + listed
    assert found.common["UCX_NET_DEVICES"] == listed
    assert found.common["NCCL_SOCKET_IFNAME"] == "=net1"
    assert not found.findings


def test_a_macvlan_on_a_shared_device_gets_its_own_index() -> None:
    found = decide([w.macvlan(0), w.macvlan(1)])
    assert found.common["NCCL_IB_HCA"] == "=mlx5_2:1"
    assert found.common["NCCL_IB_GID_INDEX"] == "9"
    assert found.common["UCX_IB_GID_INDEX"] == "9"


@pytest.mark.parametrize(
    ("data_network", "level"), [("prefer", Level.WARN), ("require", Level.FAIL)]
)
def test_of_rails_whose_indexes_differ_those_are_used_that_one_index_fits(
    data_network: str, level: Level
) -> None:
    """By itself NCCL would take the node's entry, and send with the node's address."""
    workers = [w.macvlan(0, rails=2), w.macvlan(1, rails=2)]
    found = decide(workers, replace(DEFAULT, data_network=DataNetworkUse(data_network)))
    message = [item for item in found.findings if item.check == "rdma-gid-index"]
    assert {item.level for item in message} == {level}
    assert all("used: mlx5_2:1; left out: mlx5_3:1" in item.message for item in message)
    assert found.common["NCCL_IB_HCA"] == "=mlx5_2:1"
    assert found.common["UCX_NET_DEVICES"] == "mlx5_2:1"
    assert found.common["NCCL_IB_GID_INDEX"] == found.common["UCX_IB_GID_INDEX"] == "9"
    assert "NCCL_IB_DISABLE" not in found.common


def without_address(worker: Worker, name: str) -> Worker:
    assert worker.facts is not None
    links = tuple(
        replace(item, addresses=()) if item.name == name else item for item in worker.facts.links
    )
    return replace(worker, facts=replace(worker.facts, links=links))


def test_a_rail_without_an_address_on_one_worker_is_left_out_on_all() -> None:
    """It would send with an address of somebody else's."""
    found = decide([w.rails8(0), without_address(w.rails8(1), "net3")])
    names = [f"mlx5_{20 - rail}:1" for rail in (1, 2, 4, 5, 6, 7, 8)]
    assert found.common["NCCL_IB_HCA"] == "=" + ",".join(names)
    assert found.common["UCX_NET_DEVICES"] == ",".join(names)
    message = {item.check: item for item in found.findings}
    assert "link net3 of mlx5_17:1 has no address" in message["rdma-gid"].message
    assert message["rdma-gid-index"].message.startswith(
        "UCX can't use all ports of every worker; used: "
    )
    assert message["rdma-gid-index"].message.endswith("; left out: mlx5_17:1")
    assert message["rdma-gid-index"].hint.startswith("give every port an address; or keep to ")
    users = decide(
        [w.rails8(0), without_address(w.rails8(1), "net3")],
        taken={"NCCL_IB_GID_INDEX": "-x on the mpirun line"},
    )
    assert "mlx5_17:1" in users.common["NCCL_IB_HCA"]
    assert "mlx5_17:1" not in users.common["UCX_NET_DEVICES"]


def test_workers_that_have_no_rail_in_common_use_tcp() -> None:
    one, other = (
        without_address(item, name) for item, name in ((w.rails8(0), "net1"), (w.rails8(1), "net2"))
    )
    some = decide([one, other], Settings(nccl_version="2.28.9", rdma_device=("mlx5_19", "mlx5_18")))
    assert some.common["NCCL_IB_DISABLE"] == "1"
    message = [item.message for item in some.findings if item.check == "rdma-gid-index"]
    assert (
        "NCCL 2.28.9 can't use all ports of every worker; used: none; left out: mlx5_19:1, "
        in (message[0])
    )


def test_each_worker_gets_the_index_of_its_own() -> None:
    second = w.macvlan(1, rails=2)
    assert second.facts is not None
    one, other = second.facts.fabric.devices
    # A pod that came later stands before ours in the first table.
    entries = list(one.ports[0].gids)
    moved = [replace(gid, index=gid.index + 2) if gid.index > 7 else gid for gid in entries]
    one = replace(one, ports=(replace(one.ports[0], gids=tuple(moved)),))
    fabric = replace(second.facts.fabric, devices=(one, other))
    found = decide([w.macvlan(0, 2), replace(second, facts=replace(second.facts, fabric=fabric))])
    assert [mine["NCCL_IB_GID_INDEX"] for mine in found.per_host.values()] == ["9", "11"]
    assert found.common["NCCL_IB_HCA"] == "=mlx5_2:1"


def test_with_an_index_of_the_users_own_all_ports_are_used() -> None:
    workers = [w.macvlan(0, rails=2), w.macvlan(1, rails=2)]
    found = decide(workers, taken={"NCCL_IB_GID_INDEX": "-x on the mpirun line"})
    assert found.common["NCCL_IB_HCA"] == "=mlx5_2:1,mlx5_3:1"
    # Those that UCX can be told are fewer.
    assert found.common["UCX_NET_DEVICES"] == "mlx5_2:1"


def test_ipoib_needs_no_index_and_a_partition_child_names_its_partition() -> None:
    found = decide([w.ipoib(0), w.ipoib(1)])
    assert found.common["NCCL_IB_HCA"] == "=mlx5_4:1"
    assert found.common["NCCL_SOCKET_IFNAME"] == "=ib0"
    assert not set(found.common) & {"NCCL_IB_GID_INDEX", "NCCL_IB_PKEY", "UCX_IB_PKEY"}
    child = decide([w.ipoib(0, "net1", pkey=1), w.ipoib(1, "net1", pkey=1)])
    assert child.common["NCCL_IB_PKEY"] == "1"
    assert child.common["UCX_IB_PKEY"] == "0x1"


def test_rails_in_two_partitions_are_said_and_no_partition_is_named() -> None:
    worker = w.ipoib(0, "net1", pkey=1)
    assert worker.facts is not None
    facts = worker.facts
    gid = "fe80:0:0:0:10:e0:0:77"
    second = replace(
        w.link("net2", "10.8.0.5/24", index=26, kind="ipoib", pkey=0xFFFF),
        hardware="00:00:00:11:fe:80:00:00:00:00:00:00:00:10:00:e0:00:00:00:77",
    )
    port = w.port((Gid(0, gid, GidType.ROCE_V1, ""),), layer="InfiniBand")
    devices = (*facts.fabric.devices, w.device("mlx5_9", port, index=9, protocol="ib"))
    facts = replace(
        facts, links=(*facts.links, second), fabric=replace(facts.fabric, devices=devices)
    )
    found = decide([replace(worker, facts=facts)])
    assert found.common["NCCL_IB_HCA"] == "=mlx5_4:1,mlx5_9:1"
    assert not {"NCCL_IB_PKEY", "UCX_IB_PKEY"} & found.common.keys()
    (finding,) = [one for one in found.findings if one.check == "data-ambiguous"]
    assert "partitions 0x7fff, 0x0001" in finding.message


def test_infiniband_without_a_link_keeps_sockets_on_the_control_link() -> None:
    found = decide([w.aks(0), w.aks(1)])
    assert found.common["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert found.common["NCCL_IB_HCA"].count("mlx5") == 8
    assert "no worker has a second link" in reason(found, "NCCL_SOCKET_IFNAME")


def test_efa_sets_the_provider_and_nothing_of_nccls_ib() -> None:
    found = decide([w.efa(0), w.efa(1)])
    assert found.common["FI_PROVIDER"] == "efa"
    assert not [name for name in found.common if name.startswith(("NCCL_IB", "UCX", "NCCL_NET"))]
    assert not found.findings


def lacking(worker: Worker, *names: str) -> Worker:
    assert worker.facts is not None
    fabric = replace(worker.facts.fabric, missing=names)
    return replace(worker, facts=replace(worker.facts, fabric=fabric))


@pytest.mark.parametrize(("network", "level"), [("prefer", Level.WARN), ("require", Level.FAIL)])
def test_efa_without_what_uses_it_is_said_before_nccl_takes_tcp(network: str, level: Level) -> None:
    workers = [w.efa(0), lacking(w.efa(1), "libfabric.so.1", "libnccl-net.so")]
    found = decide(workers, replace(DEFAULT, data_network=DataNetworkUse(network)))
    (finding,) = [one for one in found.findings if one.check == "efa-library"]
    assert "w-1: EFA devices, but in the image no libfabric.so.1 and no" in finding.message
    assert "aws-ofi-nccl" in finding.hint
    assert finding.level is level
    # The variable is right for MPI's messages, and harms nobody.
    assert found.common["FI_PROVIDER"] == "efa"


def test_a_plugin_of_the_users_own_needs_no_other_for_efa() -> None:
    worker = lacking(w.efa(0), "libnccl-net.so")
    values = {"NCCL_NET_PLUGIN": "ofi"}
    found = decide([worker], taken={"NCCL_NET_PLUGIN": "the mpirun line"}, values=values)
    assert not found.findings
    # Where one worker has no EFA, the plugin's variables are still the user's.
    mixed = decide([worker, w.plain(1)], taken={"NCCL_NET_PLUGIN": "env"}, values=values)
    assert not [name for name in mixed.common if name.startswith("NCCL_")]


def test_a_second_link_without_rdma_carries_tcp() -> None:
    found = decide([w.tcp(0), w.tcp(1)])
    assert found.common == {
        "NCCL_IB_DISABLE": "1",
        "NCCL_SOCKET_IFNAME": "=net1",
        "GLOO_SOCKET_IFNAME": "net1",
        "TP_SOCKET_IFNAME": "net1",
        "UCX_NET_DEVICES": "net1",
    }
    assert not found.findings


def test_no_second_link_leaves_all_on_the_control_link() -> None:
    found = decide([w.plain(0), w.plain(1)])
    assert found.common["NCCL_IB_DISABLE"] == "1"
    assert found.common["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert "UCX_NET_DEVICES" not in found.common
    assert not found.findings


def test_host_network_names_the_nodes_ports() -> None:
    found = decide([w.host_network(0), w.host_network(1)])
    assert found.common["NCCL_IB_HCA"] == "=" + ",".join(f"mlx5_{n}:1" for n in range(1, 9))
    assert "mlx5_0" not in str(found.common)


def test_require_makes_a_fall_to_tcp_an_error_of_the_run() -> None:
    strict = replace(DEFAULT, data_network=DataNetworkUse.REQUIRE)
    assert decide([w.sriov(0), w.sriov(1)], strict).common["NCCL_NET"] == "IB"
    assert "NCCL_NET" not in decide([w.efa(0)], strict).common
    bare = decide([w.plain(0), w.plain(1)], strict)
    assert "NCCL_NET" not in bare.common
    assert {item.level for item in bare.findings if item.check == "rdma-missing"} == {Level.FAIL}


def test_one_worker_without_rdma_puts_all_on_tcp_and_it_is_said() -> None:
    found = decide([w.sriov(0), w.sriov(1), w.plain(2)])
    assert found.common["NCCL_IB_DISABLE"] == "1"
    assert not [host for host in found.per_host if value(found, "NCCL_IB_HCA", host)]
    assert found.common["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert {"rdma-missing", "rdma-differs"} <= checks(found)
    missing = next(item for item in found.findings if item.check == "rdma-missing")
    assert missing.host == "w-2"


def test_a_worker_without_efa_keeps_the_others_plugin_from_using_it() -> None:
    found = decide([w.efa(0), w.efa(1, open_error="no device node")])
    assert found.common["NCCL_NET"] == "Socket"
    assert "FI_PROVIDER" not in found.common


def test_a_port_that_stays_in_init_puts_all_on_tcp() -> None:
    found = decide([w.ipoib(0), w.ipoib(1, state="INIT")])
    pending = [network.pending for network in found.networks]
    assert pending == [(), ("port mlx5_4:1 is INIT, not yet ACTIVE",)]
    assert found.common["NCCL_IB_DISABLE"] == "1"
    assert "rdma-port" in checks(found)


def test_data_links_that_do_not_reach_each_other_keep_sockets_on_control() -> None:
    workers = [w.tcp(0, subnet="192.168.7"), w.tcp(1, subnet="192.168.8")]
    found = decide(workers)
    assert found.common["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert found.common["UCX_NET_DEVICES"] == "eth0"
    assert "no route over net1" in reason(found, "NCCL_SOCKET_IFNAME")
    assert "data-networks" in checks(found)


BLOCKED = "w-0 can't reach w-1 (192.168.5.8 port 40009): no answer in 2 s, twice"


def test_sockets_stay_on_control_where_tcp_does_not_pass_beside_rdma() -> None:
    found = decide([w.sriov(0), w.sriov(1)], blocked=BLOCKED)
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        assert found.common[name].lstrip("=") == "eth0"
        assert reason(found, name) == f"the control link: {BLOCKED}; on all workers"
    assert found.common["NCCL_IB_HCA"] == "=mlx5_3:1"
    (told,) = [item for item in found.findings if item.check == "data-sockets"]
    assert (told.level, BLOCKED in told.message) == (Level.WARN, True)
    # A fabric for RDMA alone is in order.
    required = replace(DEFAULT, data_network=DataNetworkUse.REQUIRE)
    strict = decide([w.sriov(0), w.sriov(1)], required, blocked=BLOCKED)
    assert {item.level for item in strict.findings if item.check == "data-sockets"} == {Level.WARN}
    assert strict.common == {**found.common, "NCCL_NET": "IB"}


def test_nothing_that_takes_tcp_uses_a_data_network_where_it_does_not_pass() -> None:
    workers = [w.tcp(0), w.tcp(1)]
    found = decide(workers, blocked=BLOCKED)
    assert found.common["UCX_NET_DEVICES"] == "eth0"
    moved = decide(workers, replace(DEFAULT, mpi_network=MpiNetwork.DATA), blocked=BLOCKED)
    assert "OMPI_MCA_btl_tcp_if_include" not in moved.common
    assert f"MPI's data stays on the control link: {BLOCKED}" in [
        item.message for item in moved.findings
    ]


def test_nothing_is_said_of_tcp_where_sockets_would_stay_anyway() -> None:
    apart = [w.tcp(0, subnet="192.168.7"), w.tcp(1, subnet="192.168.8")]
    control = replace(DEFAULT, nccl_socket=NcclSocket.CONTROL)
    for found in (decide(apart, blocked=BLOCKED), decide([w.tcp(0), w.tcp(1)], control)):
        assert "data-sockets" not in checks(found)


def test_routes_over_the_data_link_count_as_reaching() -> None:
    routed = []
    for worker in (w.tcp(0, subnet="192.168.7"), w.tcp(1, subnet="192.168.8")):
        assert worker.facts is not None
        fabric = replace(worker.facts.fabric, routes=(Route("192.168.0.0/16", "net1"),))
        routed.append(replace(worker, facts=replace(worker.facts, fabric=fabric)))
    assert decide(routed).common["NCCL_SOCKET_IFNAME"] == "=net1"


def test_the_socket_setting_decides() -> None:
    workers = [w.sriov(0), w.sriov(1)]
    control = decide(workers, replace(DEFAULT, nccl_socket=NcclSocket.CONTROL))
    assert control.common["NCCL_SOCKET_IFNAME"] == "=eth0"
    data = decide([w.plain(0)], replace(DEFAULT, nccl_socket=NcclSocket.DATA))
    assert data.common["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert "data-networks" in checks(data)


def test_off_sets_nothing_and_still_shows_the_table() -> None:
    found = decide([w.sriov(0), w.sriov(1)], replace(DEFAULT, data_network=DataNetworkUse.OFF))
    assert found.common == {}
    assert found.per_host == {"w-0": {}, "w-1": {}}
    assert not found.findings
    assert found.rows[0].hca == "mlx5_3:1"
    assert reason(found, "data-network") == "MPIBOOT_DATA_NETWORK=off: nothing is set"


def test_no_workers_is_no_error() -> None:
    found = decide([])
    assert found.common == {}
    (shown,) = found.decisions
    assert (shown.value, shown.source) == ("unknown", Source.DETECTED)
    assert "no worker was reached" in shown.reason


def test_the_users_own_value_wins_and_is_shown() -> None:
    taken = {"NCCL_SOCKET_IFNAME": "-x on the mpirun line"}
    found = decide([w.sriov(0), w.sriov(1)], taken=taken, values={"NCCL_SOCKET_IFNAME": "eth0"})
    assert "NCCL_SOCKET_IFNAME" not in found.common
    shown = next(item for item in found.decisions if item.name == "NCCL_SOCKET_IFNAME")
    assert shown.value == "eth0"
    assert "-x on the mpirun line" in shown.reason
    assert found.common["GLOO_SOCKET_IFNAME"] == "net1"


def test_a_worker_pods_own_name_wins_on_that_worker_alone() -> None:
    own = w.sriov(1)
    assert own.facts is not None
    own = replace(own, facts=replace(own.facts, environment=("UCX_NET_DEVICES",)))
    found = decide([w.sriov(0), own])
    assert value(found, "UCX_NET_DEVICES", "w-0") == "mlx5_3:1"
    assert value(found, "UCX_NET_DEVICES", "w-1") is None
    assert "UCX_NET_DEVICES" not in found.common


def test_with_the_users_devices_our_index_is_left_alone() -> None:
    found = decide([w.macvlan(0)], taken={"NCCL_IB_HCA": "the launcher's environment"})
    assert "NCCL_IB_GID_INDEX" not in {**found.common, **found.per_host["w-0"]}
    assert found.common["UCX_IB_GID_INDEX"] == "9"
    assert "NCCL_IB_HCA is set" in reason(found, "NCCL_IB_GID_INDEX")


def test_ucx_on_tcp_by_the_users_word_is_not_given_rdma_ports() -> None:
    found = decide([w.sriov(0)], taken={"UCX_TLS": "the launcher's environment"})
    assert "UCX_NET_DEVICES" not in found.common


@pytest.mark.parametrize(
    "name", ["NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME"]
)
def test_a_plugin_environment_keeps_all_of_nccls_variables(name: str) -> None:
    worker = w.sriov(0)
    assert worker.facts is not None
    worker = replace(worker, facts=replace(worker.facts, environment=(name,)))
    found = decide([worker], replace(DEFAULT, data_network=DataNetworkUse.REQUIRE))
    assert not [one for one in found.common if one.startswith("NCCL_")]
    assert found.common["UCX_NET_DEVICES"] == "mlx5_3:1"
    assert name in reason(found, "data-network")


def test_the_folder_of_gkes_transport_keeps_all_of_nccls_variables() -> None:
    worker = w.sriov(0)
    assert worker.facts is not None
    fabric = replace(
        worker.facts.fabric,
        attachments=(Attachment(AttachmentSource.GIB, resource="/usr/local/gib"),),
    )
    found = decide([replace(worker, facts=replace(worker.facts, fabric=fabric))])
    assert not [one for one in found.common if one.startswith("NCCL_")]
    assert found.common["UCX_NET_DEVICES"] == "mlx5_3:1"
    assert "/usr/local/gib is there" in reason(found, "data-network")


def test_the_built_in_transport_by_name_is_no_plugin() -> None:
    found = decide([w.sriov(0)], taken={"NCCL_NET": "env"}, values={"NCCL_NET": "IB"})
    assert found.common["NCCL_IB_HCA"] == "=mlx5_3:1"
    assert "NCCL_NET" not in found.common


def test_two_rules_that_want_a_variable_differently_are_shown_and_the_owner_wins() -> None:
    other = Variable("UCX_NET_DEVICES", "eth0", "MPI on the control link", rule="mpi-network")
    workers = [w.sriov(0), w.sriov(1)]
    found = decision.decide(
        [worker_network.choose(one, DEFAULT) for one in workers], DEFAULT, {}, others=(other,)
    )
    assert found.common["UCX_NET_DEVICES"] == "mlx5_3:1"
    conflict = next(item for item in found.findings if item.check == "settings-conflict")
    assert "mpi-network wants eth0" in conflict.message
    assert conflict.evidence == ("w-0", "w-1")


def test_two_rules_that_want_the_same_are_no_conflict() -> None:
    other = Variable("UCX_NET_DEVICES", "mlx5_3:1", "MPI on the same port", rule="mpi-network")
    found = decision.decide(
        [worker_network.choose(w.sriov(0), DEFAULT)], DEFAULT, {}, others=(other,)
    )
    assert found.common["UCX_NET_DEVICES"] == "mlx5_3:1"
    assert not found.findings


def test_of_two_rules_that_do_not_own_a_variable_the_first_has_it() -> None:
    wanted = [
        Variable("MY_LINK", "eth0", "reason", rule="first"),
        Variable("MY_LINK", "net1", "reason", rule="second"),
    ]
    networks = [worker_network.choose(one, DEFAULT) for one in (w.plain(0), w.plain(1))]
    found = decision.decide(networks, DEFAULT, {}, others=wanted)
    assert found.common["MY_LINK"] == "eth0"
    conflict = next(item for item in found.findings if item.check == "settings-conflict")
    assert "second wants net1; it belongs to first" in conflict.message


def test_workers_with_one_ip_version_each_keep_their_sockets_on_the_control_link() -> None:
    other = w.tcp(1)
    assert other.facts is not None
    data = w.link("net1", "fd00:7::6/64", index=21, kind="macvlan")
    six = replace(other, facts=replace(other.facts, links=(w.eth0("10.244.1.6/24"), data)))
    found = decide([w.tcp(0), six])
    for host in ("w-0", "w-1"):
        assert value(found, "NCCL_SOCKET_IFNAME", host) == "=eth0"
        assert value(found, "GLOO_SOCKET_IFNAME", host) == "eth0"
    assert "no IP version in common" in reason(found, "NCCL_SOCKET_IFNAME")


def test_each_workers_own_decisions_are_shown_once() -> None:
    alike = [item for item in decide([w.sriov(0), w.sriov(1)]).decisions if "rdma" in item.name]
    assert [(item.name, item.value) for item in alike] == [("rdma-port", "mlx5_3:1")]
    odd = decide([w.sriov(0), w.sriov(1, hca="mlx5_9")]).decisions
    ports = [(item.value, item.reason) for item in odd if item.name == "rdma-port"]
    assert [name for name, _ in ports] == ["mlx5_3:1", "mlx5_9:1"]
    assert ports[0][1].startswith("w-0: ")
    assert ports[1][1].startswith("w-1: ")


def test_an_index_in_a_workers_pod_answers_for_its_ports() -> None:
    worker = w.macvlan(0, rails=2)
    assert worker.facts is not None
    names = ("NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX")
    found = decide([replace(worker, facts=replace(worker.facts, environment=names))])
    assert found.common["NCCL_IB_HCA"] == "=mlx5_2:1,mlx5_3:1"
    assert not set(names) & found.common.keys()
    assert not [one for one in found.findings if one.check == "rdma-gid-index"]


def test_every_variable_has_one_owner() -> None:
    names = [row.name for row in decision.VARIABLES]
    assert len(names) == len(set(names))


def test_mpi_data_moves_to_the_data_link_only_when_asked() -> None:
    asked = replace(DEFAULT, mpi_network=MpiNetwork.DATA)
    assert not [name for name in decide([w.tcp(0)]).common if name.startswith("OMPI")]
    assert decide([w.tcp(0), w.tcp(1)], asked).common["OMPI_MCA_btl_tcp_if_include"] == "net1"
    assert decide([w.sriov(0), w.sriov(1)], asked).common["OMPI_MCA_pml"] == "ucx"
    assert decide([w.efa(0)], asked).common["OMPI_MCA_mtl"] == "ofi"
    names = decide([w.tcp(0), w.tcp(1, "dranet0")], asked)
    assert names.common["OMPI_MCA_btl_tcp_if_include"] == "192.168.7.0/24"
    nowhere = decide([w.plain(0)], asked)
    assert "OMPI_MCA_btl_tcp_if_include" not in nowhere.common
    assert "data-networks" in checks(nowhere)


def on_ipv6(place: int, *more: str, name: str = "net1") -> Worker:
    """A data link with IPv6 alone, as well as further addresses."""
    data = w.link(name, f"fd00:7::{place + 1}/64", "fe80::1/64", *more, index=20, kind="macvlan")
    return w.worker(f"w-{place}", w.eth0(f"10.244.1.{5 + place}/24"), data)


def test_nccl_is_told_the_ip_version_of_links_without_ipv4() -> None:
    alone = decide([on_ipv6(0), on_ipv6(1)])
    assert alone.common["NCCL_SOCKET_IFNAME"] == "=net1"
    assert alone.common["NCCL_SOCKET_FAMILY"] == "AF_INET6"
    both = decide([on_ipv6(0, "192.168.7.1/24"), on_ipv6(1, "192.168.7.2/24")])
    assert "NCCL_SOCKET_FAMILY" not in both.common
    users = decide([on_ipv6(0), on_ipv6(1)], taken={"NCCL_SOCKET_IFNAME": "-x"})
    assert "NCCL_SOCKET_FAMILY" not in users.common


def test_mpi_gets_no_network_of_ipv6() -> None:
    asked = replace(DEFAULT, mpi_network=MpiNetwork.DATA)
    found = decide([on_ipv6(0), on_ipv6(1, name="dranet0")], asked)
    assert "OMPI_MCA_btl_tcp_if_include" not in found.common
    assert "takes no IPv6 network" in reason(found, "mpi-network")
    both = [on_ipv6(0, "192.168.7.1/24"), on_ipv6(1, "192.168.7.2/24", name="dranet0")]
    assert decide(both, asked).common["OMPI_MCA_btl_tcp_if_include"] == "192.168.7.0/24"


def test_a_worker_without_facts_gets_only_what_must_be_the_same_everywhere() -> None:
    found = decide([w.tcp(0), w.without_facts("w-1")])
    assert found.common == {"NCCL_IB_DISABLE": "1"}
    assert value(found, "NCCL_SOCKET_IFNAME", "w-0") == "=eth0"
    assert found.per_host["w-1"] == {}
    assert "data-facts" in checks(found)


# What the kernel allows in a name: all but blanks, a slash and a colon (dev_valid_name).
LEGAL = "".join(chr(code) for code in range(33, 127) if chr(code) not in "/:")


@pytest.mark.parametrize("place", range(0, len(LEGAL), 5))
def test_a_link_may_have_any_name_that_the_kernel_allows(place: int) -> None:
    name = "n" + LEGAL[place : place + 5]
    found = decide([w.tcp(0, name), w.tcp(1, name)])
    odd = "," in name
    assert found.common["NCCL_SOCKET_IFNAME"] == ("=eth0" if odd else f"={name}")
    assert found.common["GLOO_SOCKET_IFNAME"] == ("eth0" if odd else name)
    assert [row.data.split()[0] for row in found.rows] == [name, name]
    rdma = decide([w.sriov(0, netdev=name), w.sriov(1, netdev=name)])
    assert rdma.common["NCCL_IB_HCA"] == "=mlx5_3:1"
    assert not found.findings


@pytest.mark.parametrize("name", ["=net1", "^net1", "-x", "'", "$(reboot)", "net\x1b[2J", "é"])
def test_an_odd_name_is_delivered_whole_or_not_at_all(name: str) -> None:
    found = decide([w.tcp(0, name), w.tcp(1, name)])
    expected = "=eth0" if name[0] in "=^" else f"={name}"
    assert found.common["NCCL_SOCKET_IFNAME"] == expected


def test_a_link_name_that_nccl_cannot_be_told_keeps_sockets_on_control() -> None:
    found = decide([w.sriov(0, netdev="a,b"), w.sriov(1, netdev="a,b")])
    assert found.common["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert "a,b" in reason(found, "NCCL_SOCKET_IFNAME")


KINDS = (
    w.sriov, w.rails8, w.macvlan, w.ipoib, w.aks, w.efa, w.tcp, w.plain, w.host_network
)  # fmt: skip
NAMES = [row.name for row in decision.VARIABLES]


@st.composite
def clusters(draw: st.DrawFn) -> list[Worker]:
    made = []
    for place in range(draw(st.integers(1, 4))):
        worker = draw(st.sampled_from(KINDS))(place)
        assert worker.facts is not None
        own = tuple(draw(st.lists(st.sampled_from(NAMES), max_size=2)))
        facts = replace(worker.facts, environment=own)
        made.append(replace(worker, facts=draw(st.sampled_from([facts, facts, facts, None]))))
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
NOT_NAMES = {"NCCL_IB_DISABLE", "NCCL_NET", "FI_PROVIDER", "OMPI_MCA_pml", "OMPI_MCA_mtl"}


@given(clusters(), SETTINGS, st.lists(st.sampled_from(NAMES), max_size=3, unique=True))
def test_any_cluster_keeps_the_rules(
    workers: list[Worker], settings: Settings, taken: list[str]
) -> None:
    found = decide(workers, settings, dict.fromkeys(taken, "-x"))
    assert list(found.per_host) == [worker.host.name for worker in workers]
    assert [row.worker for row in found.rows] == list(found.per_host)
    for worker in workers:
        mine = found.per_host[worker.host.name]
        assert not set(mine) & set(found.common)
        both = {**found.common, **mine}
        own = set(worker.facts.environment) if worker.facts else set()
        assert not set(both) & {*taken, *own}
        if worker.facts is None:
            # A list of networks names no link of anybody's.
            assert set(both) <= NOT_NAMES | {"OMPI_MCA_btl_tcp_if_include"}
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
