from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Fabric, Host, Link, RdmaDevice, Worker
from mpiboot.core.model import Source
from mpiboot.core.settings import Settings, resolve
from mpiboot.job.plan import Plan
from mpiboot.job.plan_input import Observed
from mpiboot.network import worker_network
from mpiboot.network.records import Transport
from tests.fakes.plans import POD, both, hosts, link, observed, planned, reason
from tests.fakes.workers import sriov

TCP = {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES"}


def with_links(seen: Observed, *names: str) -> Observed:
    """Give each worker a data link of that name."""
    workers = []
    for number, (worker, name) in enumerate(zip(seen.workers, names, strict=True)):
        assert worker.facts is not None
        more = link(name, f"192.168.0.{number + 1}/24")
        facts = replace(worker.facts, links=(*worker.facts.links, replace(more, index=9)))
        workers.append(replace(worker, facts=facts))
    return replace(seen, workers=tuple(workers))


def sets(plan: Plan, host: str = "w-0.job.ns.svc") -> dict[str, str]:
    return dict(plan.per_host.get(host, {}))


@both
def test_what_is_equal_everywhere_goes_in_the_environment_of_mpirun(family: str) -> None:
    plan = planned("./train", with_links(observed(family), "net1", "net1"))
    assert plan.per_host == {}
    assert plan.set_env["NCCL_SOCKET_IFNAME"] == "=net1"
    assert plan.set_env["UCX_NET_DEVICES"] == "net1"
    assert plan.mpi_link == "eth0"
    assert {*plan.argv} >= TCP
    assert [row.data for row in plan.rows] == ["net1 192.168.0.1", "net1 192.168.0.2"]


@both
@pytest.mark.parametrize("own", [{}, {"UCX_TLS": "tcp,self"}], ids=["", "UCX without RDMA"])
def test_report_decides_and_sets_nothing(family: str, own: dict[str, str]) -> None:
    def plan(use: str) -> Plan:
        seen = observed(family, {**POD, **own, "MPIBOOT_DATA_NETWORK": use})
        return planned("./train", with_links(seen, "net1", "dra0"))

    off, report = plan("off"), plan("report")
    assert (report.set_env, report.per_host, report.argv) == (off.set_env, off.per_host, off.argv)
    assert reason(report, "data-network")[0] == "TCP"
    sockets, *_ = reason(report, "NCCL_SOCKET_IFNAME")
    assert sockets == "=net1 (w-0.job.ns.svc), =dra0 (w-1.job.ns.svc)"
    assert reason(report, "data-network-use")[2] == "MPIBOOT_DATA_NETWORK=report: nothing is set"


@both
def test_what_differs_is_each_hosts_own_and_never_forwarded(family: str) -> None:
    long = {"w-0.job.ns.svc": "w-0.job.ns.svc.cluster.local"}
    plan = planned("./train", with_links(observed(family, renamed=long), "net1", "dranet0"))
    assert sets(plan, "w-0.job.ns.svc.cluster.local")["NCCL_SOCKET_IFNAME"] == "=net1"
    assert sets(plan, "w-1.job.ns.svc")["NCCL_SOCKET_IFNAME"] == "=dranet0"
    assert TCP & plan.set_env.keys() == set()
    assert not any(name in word for name in TCP for word in plan.argv)


@pytest.mark.parametrize(
    ("line", "environ"),
    [
        ("mpirun -x NCCL_SOCKET_IFNAME=eth0 ./train", {}),
        ("./train", {"NCCL_SOCKET_IFNAME": "eth0"}),
        ("./train", {"NCCL_SOCKET_IFNAME": ""}),
        ("./train", {"OMPI_MCA_mca_base_env_list": "NCCL_SOCKET_IFNAME=eth0"}),
    ],
)
@both
def test_the_users_own_value_is_left_alone_everywhere(
    family: str, line: str, environ: dict[str, str]
) -> None:
    seen = with_links(observed(family, {**POD, **environ}), "net1", "dranet0")
    plan = planned(line, seen)
    assert "NCCL_SOCKET_IFNAME" not in plan.set_env
    for host in ("w-0.job.ns.svc", "w-1.job.ns.svc"):
        assert sets(plan, host).keys() & TCP == TCP - {"NCCL_SOCKET_IFNAME"}
    assert reason(plan, "NCCL_SOCKET_IFNAME")[1] is Source.ENVIRONMENT


@both
def test_mpi_on_the_data_link_takes_the_place_of_the_control_pin(family: str) -> None:
    seen = with_links(observed(family), "net1", "net1")
    plan = planned("./train", seen, {"mpi_network": "data"})
    assert plan.set_env["OMPI_MCA_btl_tcp_if_include"] == "net1"
    assert plan.mpi_link == ""
    daemons = "OMPI_MCA_oob_tcp_if_include" if family == "openmpi4" else "PRTE_MCA_prte_if_include"
    assert plan.set_env[daemons] == "eth0"
    assert [d.value for d in plan.decisions if d.name == "OMPI_MCA_btl_tcp_if_include"] == ["net1"]


@both
def test_where_nothing_else_may_be_forwarded_each_host_gets_it_all(family: str) -> None:
    seen = with_links(observed(family), "net1", "net1")
    plan = planned("./train", seen, {"no_forward": "NCCL_*,UCX_*"})
    assert sets(plan)["NCCL_SOCKET_IFNAME"] == "=net1"
    assert sets(plan)["UCX_NET_DEVICES"] == "net1"
    assert plan.set_env["GLOO_SOCKET_IFNAME"] == "net1"


@both
def test_a_value_of_the_launchers_that_may_not_be_forwarded_is_nobody_elses(family: str) -> None:
    seen = with_links(observed(family, {**POD, "NCCL_SOCKET_IFNAME": "lo"}), "net1", "net1")
    plan = planned("./train", seen, {"no_forward": "NCCL_*"})
    assert sets(plan)["NCCL_SOCKET_IFNAME"] == "=net1"
    assert plan.set_env["GLOO_SOCKET_IFNAME"] == "net1"
    assert [row.value for row in plan.decisions if row.name == "NCCL_SOCKET_IFNAME"] != ["lo"]


@both
def test_the_launchers_own_ranks_get_its_own_values(family: str) -> None:
    own = Host("launcher.job.ns.svc", 2, slots_given=True)
    seen = observed(family, listed=(own, *hosts(2)), local=(own,))
    seen = with_links(seen, "net1")
    facts = seen.workers[0].facts
    assert facts is not None
    links = (*seen.links, link("dranet0", "192.168.0.9/24"))
    mine = replace(facts, links=links, control_address="10.244.0.9", environment=())
    plan = planned("./train", replace(seen, own=mine))
    assert plan.set_env["NCCL_SOCKET_IFNAME"] == "=dranet0"
    assert sets(plan)["NCCL_SOCKET_IFNAME"] == "=net1"
    assert not any("NCCL_SOCKET_IFNAME" in word for word in plan.argv)


def test_ucx_without_rdma_ports_carries_mpichs_messages_on_the_control_link() -> None:
    seen = with_links(observed("mpich"), "net1", "net1")
    plan = planned("./train", seen)
    assert plan.set_env["UCX_NET_DEVICES"] == plan.set_env["FI_TCP_IFACE"] == "eth0"
    moved = planned("./train", seen, {"mpi_network": "data"})
    assert moved.set_env["UCX_NET_DEVICES"] == "net1"


def test_what_has_no_address_yet_is_pending_over_a_device_that_opens() -> None:
    (worker, _) = observed().workers
    assert worker.facts is not None
    bare = Link(9, "net1", "macvlan", up=True, mtu=1500, addresses=())
    message = Fabric(devices=(RdmaDevice("mlx5_0"),))
    facts = replace(worker.facts, links=(*worker.facts.links, bare), fabric=message)
    late: Worker = replace(worker, facts=facts)
    assert worker_network.choose(late, Settings()).pending == ("link net1 has no address yet",)
    off = resolve({"data_network": "off"}, {}).settings
    assert worker_network.choose(late, off).pending == ()
    assert worker_network.choose(worker, Settings()).pending == ()


@pytest.mark.parametrize("by", ["--data-network", "MPIBOOT_DATA_NETWORK"])
def test_a_data_network_that_is_left_out_names_who_said_so(by: str) -> None:
    flag = by.startswith("--")
    seen = observed(environ=POD if flag else {**POD, by: "off"})
    plan = planned("./train", seen, {"data_network": "off"} if flag else {})
    source = Source.FLAG if flag else Source.ENVIRONMENT
    assert reason(plan, "data-network") == ("off", source, f"{by}=off: nothing is set")


@pytest.mark.parametrize(
    ("line", "environ", "told"),
    [
        ("mpirun -x NCCL_SOCKET_IFNAME=ib7 ./train", {}, ["ib7"]),
        ("mpirun -x NCCL_SOCKET_IFNAME=eth0 ./train", {"NCCL_SOCKET_IFNAME": "ib7"}, []),
        ("mpirun -x NCCL_SOCKET_IFNAME ./train", {"NCCL_SOCKET_IFNAME": "ib7"}, ["ib7"]),
    ],
)
@both
def test_a_value_on_the_mpirun_line_is_checked_like_any_other(
    family: str, line: str, environ: dict[str, str], told: list[str]
) -> None:
    plan = planned(line, with_links(observed(family, {**POD, **environ}), "net1", "net1"))
    bad = [item.message for item in plan.findings if item.check == "nccl-value"]
    assert len(bad) == len(told)
    assert all(f"NCCL_SOCKET_IFNAME={value} fits nothing" in bad[0] for value in told)


def test_what_was_decided_while_waiting_is_not_decided_again() -> None:
    seen = with_links(observed(), "net1", "net1")
    # A record that the facts don't give: only the one that is handed over can show it.
    decided = [worker_network.choose(one, Settings()) for one in seen.workers]
    networks = {one.host: replace(one, data=(), transport=Transport.NONE) for one in decided}
    plan = planned("./train", replace(seen, networks=networks))
    assert [row.data for row in plan.rows] == ["none", "none"]
    assert [row.data.partition(" ")[0] for row in planned("./train", seen).rows] == ["net1"] * 2


def with_rdma(seen: Observed) -> Observed:
    """Give each worker the facts of a pod with an SR-IOV VF."""
    found = tuple(
        replace(worker, facts=sriov(place).facts) for place, worker in enumerate(seen.workers)
    )
    return replace(seen, workers=found)


@pytest.mark.parametrize(
    ("environ", "flags", "proved"),
    [
        ({}, {}, True),
        ({"NCCL_IB_DISABLE": "0"}, {}, True),
        ({"NCCL_IB_DISABLE": "1"}, {}, False),
        ({"NCCL_NET": "Socket"}, {}, False),
        ({"UCX_TLS": "tcp"}, {}, True),
        ({}, {"prove_transport": "off"}, False),
        ({}, {"data_network": "off"}, False),
    ],
)
def test_counters_prove_what_was_planned_unless_the_user_wants_another_way(
    environ: dict[str, str], flags: dict[str, str], *, proved: bool
) -> None:
    plan = planned("./train", with_rdma(observed("openmpi5", {**POD, **environ})), flags)
    assert plan.proved == proved
    assert not planned("./train", observed("openmpi5")).proved
    assert planned("./train", with_links(observed("openmpi5"), "net1", "net1")).proved
