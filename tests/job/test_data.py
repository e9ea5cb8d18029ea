from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Fabric, Host, Link, RdmaDevice
from mpiboot.core.model import Source
from mpiboot.core.settings import Settings, resolve
from mpiboot.job.plan import Plan
from mpiboot.job.plan_input import Observed
from mpiboot.network import worker_network
from mpiboot.network.records import Transport
from tests.fakes.plans import POD, both, hosts, link, observed, planned, reason
from tests.fakes.workers import sriov

SOCKETS, GLOO, UCX = "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES"
TCP = {SOCKETS, GLOO, "TP_SOCKET_IFNAME", UCX}
FIRST, SECOND = "w-0.job.ns.svc", "w-1.job.ns.svc"


def with_links(seen: Observed, *names: str) -> Observed:
    """Give each worker a data link of that name."""
    workers = []
    for number, (worker, name) in enumerate(zip(seen.workers, names, strict=True)):
        assert worker.facts is not None
        more = link(name, f"192.168.0.{number + 1}/24")
        facts = replace(worker.facts, links=(*worker.facts.links, replace(more, index=9)))
        workers.append(replace(worker, facts=facts))
    return replace(seen, workers=tuple(workers))


def with_rdma(seen: Observed) -> Observed:
    """Give each worker the facts of a pod with an SR-IOV VF."""
    found = (replace(one, facts=sriov(place).facts) for place, one in enumerate(seen.workers))
    return replace(seen, workers=tuple(found))


@both
def test_what_is_equal_everywhere_goes_in_the_environment_of_mpirun(family: str) -> None:
    plan = planned("./train", with_links(observed(family), "net1", "net1"))
    assert plan.per_host == {}
    assert (plan.set_env[SOCKETS], plan.set_env[UCX], plan.mpi_link) == ("=net1", "net1", "eth0")
    assert {*plan.argv} >= TCP
    assert [row.data for row in plan.rows] == ["net1 192.168.0.1", "net1 192.168.0.2"]


@both
def test_what_differs_is_each_hosts_own_and_never_forwarded(family: str) -> None:
    long = f"{FIRST}.cluster.local"
    seen = with_links(observed(family, renamed={FIRST: long}), "net1", "dranet0")
    plan = planned("./train", seen)
    assert [plan.per_host[host][SOCKETS] for host in (long, SECOND)] == ["=net1", "=dranet0"]
    assert TCP & plan.set_env.keys() == set()
    assert not any(name in word for name in TCP for word in plan.argv)


@both
@pytest.mark.parametrize("own", [{}, {"UCX_TLS": "tcp,self"}], ids=["", "UCX without RDMA"])
def test_report_decides_and_sets_nothing(family: str, own: dict[str, str]) -> None:
    def plan(use: str) -> Plan:
        seen = observed(family, {**POD, **own, "MPIBOOT_DATA_NETWORK": use})
        return planned("./train", with_links(seen, "net1", "dra0"))

    off, report = plan("off"), plan("report")
    assert (report.set_env, report.per_host, report.argv) == (off.set_env, off.per_host, off.argv)
    assert reason(report, "data-network")[0] == "TCP"
    assert reason(report, SOCKETS)[0] == f"=net1 ({FIRST}), =dra0 ({SECOND})"
    assert reason(report, "data-network-use")[2] == "MPIBOOT_DATA_NETWORK=report: nothing is set"


@both
@pytest.mark.parametrize(
    ("line", "environ"),
    [
        (f"mpirun -x {SOCKETS}=eth0 ./train", {}),
        ("./train", {SOCKETS: "eth0"}),
        ("./train", {SOCKETS: ""}),
        ("./train", {"OMPI_MCA_mca_base_env_list": f"{SOCKETS}=eth0"}),
    ],
)
def test_the_users_own_value_is_left_alone_everywhere(
    family: str, line: str, environ: dict[str, str]
) -> None:
    seen = with_links(observed(family, {**POD, **environ}), "net1", "dranet0")
    plan = planned(line, seen)
    assert SOCKETS not in plan.set_env
    for host in (FIRST, SECOND):
        assert plan.per_host[host].keys() & TCP == TCP - {SOCKETS}
    assert reason(plan, SOCKETS)[1] is Source.ENVIRONMENT


@both
@pytest.mark.parametrize(
    ("environ", "no_forward", "of_hosts"),
    [({}, "NCCL_*,UCX_*", {SOCKETS: "=net1", UCX: "net1"}), ({SOCKETS: "lo"}, "NCCL_*", {})],
)
def test_what_may_not_be_forwarded_each_host_gets_by_its_agent(
    family: str, environ: dict[str, str], no_forward: str, of_hosts: dict[str, str]
) -> None:
    seen = with_links(observed(family, {**POD, **environ}), "net1", "net1")
    plan = planned("./train", seen, {"no_forward": no_forward})
    assert plan.per_host[FIRST].items() >= {SOCKETS: "=net1", **of_hosts}.items()
    assert plan.set_env[GLOO] == "net1"
    assert [row.value for row in plan.decisions if row.name == SOCKETS] != ["lo"]


@both
def test_mpi_on_the_data_link_takes_the_place_of_the_control_pin(family: str) -> None:
    plan = planned("./train", with_links(observed(family), "net1", "net1"), {"mpi_network": "data"})
    name = "OMPI_MCA_btl_tcp_if_include"
    assert (plan.set_env[name], plan.mpi_link, reason(plan, name)[0]) == ("net1", "", "net1")
    daemons = "OMPI_MCA_oob_tcp_if_include" if family == "openmpi4" else "PRTE_MCA_prte_if_include"
    assert plan.set_env[daemons] == "eth0"


@both
def test_the_launchers_own_ranks_get_its_own_values(family: str) -> None:
    own = Host("launcher.job.ns.svc", 2, slots_given=True)
    seen = with_links(observed(family, listed=(own, *hosts(2)), local=(own,)), "net1")
    facts = seen.workers[0].facts
    assert facts is not None
    links = (*seen.links, link("dranet0", "192.168.0.9/24"))
    mine = replace(facts, links=links, control_address="10.244.0.9", environment=())
    plan = planned("./train", replace(seen, own=mine))
    assert (plan.set_env[SOCKETS], plan.per_host[FIRST][SOCKETS]) == ("=dranet0", "=net1")
    assert not any(SOCKETS in word for word in plan.argv)


def test_ucx_without_rdma_ports_carries_mpichs_messages_on_the_control_link() -> None:
    seen = with_links(observed("mpich"), "net1", "net1")
    plan, moved = (planned("./train", seen, more) for more in ({}, {"mpi_network": "data"}))
    assert (plan.set_env[UCX], plan.set_env["FI_TCP_IFACE"]) == ("eth0", "eth0")
    assert moved.set_env[UCX] == "net1"


def test_what_has_no_address_yet_is_pending_over_a_device_that_opens() -> None:
    (worker, _) = observed().workers
    assert worker.facts is not None
    bare = Link(9, "net1", "macvlan", up=True, mtu=1500, addresses=())
    fabric = Fabric(devices=(RdmaDevice("mlx5_0"),))
    facts = replace(worker.facts, links=(*worker.facts.links, bare), fabric=fabric)
    overdue = replace(worker, facts=facts)
    off = resolve({"data_network": "off"}, {}).settings
    assert worker_network.choose(overdue, Settings()).pending == ("link net1 has no address yet",)
    assert worker_network.choose(overdue, off).pending == ()
    assert worker_network.choose(worker, Settings()).pending == ()


@pytest.mark.parametrize("by", ["--data-network", "MPIBOOT_DATA_NETWORK"])
def test_a_data_network_that_is_left_out_names_who_said_so(by: str) -> None:
    flag = by.startswith("--")
    seen = observed(environ=POD if flag else {**POD, by: "off"})
    plan = planned("./train", seen, {"data_network": "off"} if flag else {})
    source = Source.FLAG if flag else Source.ENVIRONMENT
    assert reason(plan, "data-network") == ("off", source, f"{by}=off: nothing is set")


@both
@pytest.mark.parametrize(
    ("words", "own", "wrong"), [("=ib7", "", "ib7"), ("=eth0", "ib7", ""), ("", "ib7", "ib7")]
)
def test_a_value_on_the_mpirun_line_is_checked_like_any_other(
    family: str, words: str, own: str, wrong: str
) -> None:
    seen = observed(family, {**POD, SOCKETS: own} if own else POD)
    plan = planned(f"mpirun -x {SOCKETS}{words} ./train", with_links(seen, "net1", "net1"))
    bad = [item.message for item in plan.findings if item.check == "nccl-value"]
    assert [text.partition(" fits")[0] for text in bad] == [f"{SOCKETS}={wrong}"] * bool(wrong)


def test_what_was_decided_while_waiting_is_not_decided_again() -> None:
    seen = with_links(observed(), "net1", "net1")
    # A record that the facts don't give: only the one that is handed over can show it.
    decided = [worker_network.choose(one, Settings()) for one in seen.workers]
    networks = {one.host: replace(one, data=(), transport=Transport.NONE) for one in decided}
    plan = planned("./train", replace(seen, networks=networks))
    assert [row.data for row in plan.rows] == ["none", "none"]


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
