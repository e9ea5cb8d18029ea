from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Link
from mpiboot.core.model import Level, Mpi, MpiFamily, Source
from mpiboot.job.plan import Plan
from mpiboot.job.plan_input import Observed
from tests.fakes.plans import HYDRAS, POD, both, failing, observed, planned, reason

FOUR, SIX, LOCAL = "10.244.0.{}/24", "fd00:10:244::{}/64", "fe80::{}/64"


def pods(family: str, *addresses: str, control: str = SIX, **more: object) -> Observed:
    """Pods whose eth0 has these addresses, and which the launcher reaches by the control one."""

    def links(number: int) -> tuple[Link, ...]:
        own = tuple(item.format(number) for item in addresses)
        return (
            Link(1, "lo", "", up=True, mtu=65536, addresses=("127.0.0.1/8", "::1/128")),
            Link(2, "eth0", "veth", up=True, mtu=1500, addresses=own),
        )

    def address(number: int) -> str:
        return control.format(number).partition("/")[0]

    seen = observed(family)
    workers = []
    for number, worker in enumerate(seen.workers, 1):
        assert worker.facts is not None
        facts = replace(worker.facts, links=links(number), control_address=address(number))
        workers.append(
            replace(worker, address=address(number), local_address=address(9), facts=facts)
        )
    own = replace(workers[0].facts, hostname="w-launcher", links=links(9))  # type: ignore[type-var]
    return replace(seen, workers=tuple(workers), links=links(9), own=own, **more)  # type: ignore[arg-type]


def settled(plan: Plan) -> str:
    found = [item.value for item in plan.decisions if item.name == "ip-version"]
    return found[0] if found else ""


@both
@pytest.mark.parametrize("addresses", [(FOUR,), (FOUR, LOCAL)])
def test_pods_with_ipv4_alone_get_nothing(family: str, addresses: tuple[str, ...]) -> None:
    plan = planned(seen=pods(family, *addresses, control=FOUR))
    assert settled(plan) == ""
    assert "OMPI_MCA_btl_tcp_disable_family" not in plan.set_env
    assert "OMPI_MCA_reachable" not in plan.set_env


@both
@pytest.mark.parametrize(("control", "version", "other"), [(FOUR, "IPv4", "6"), (SIX, "IPv6", "4")])
def test_pods_with_both_keep_to_the_control_addresses(
    family: str, control: str, version: str, other: str
) -> None:
    plan = planned(seen=pods(family, FOUR, SIX, LOCAL, control=control))
    assert settled(plan) == version
    assert plan.set_env["OMPI_MCA_btl_tcp_disable_family"] == other
    assert not [item for item in plan.findings if item.check == "ip-version"]


def test_a_users_own_version_is_kept() -> None:
    seen = pods("openmpi5", FOUR, SIX, control=FOUR)
    environ = {**POD, "OMPI_MCA_btl_tcp_disable_family": "4"}
    plan = planned(seen=replace(seen, environ=environ))
    assert "OMPI_MCA_btl_tcp_disable_family" not in plan.set_env
    assert reason(plan, "OMPI_MCA_btl_tcp_disable_family")[:2] == ("4", Source.ENVIRONMENT)


WITHOUT_IPV4 = "pods have no IPv4 address: the launcher, w-0.job.ns.svc, w-1.job.ns.svc"


@both
def test_ipv6_alone(family: str) -> None:
    plan = planned(seen=pods(family, SIX, LOCAL, mpi_ipv6=True))
    assert failing(plan) == []
    assert reason(plan, "ip-version")[2] == WITHOUT_IPV4
    five = family == "openmpi5"
    assert plan.set_env.get("OMPI_MCA_reachable") == ("weighted" if five else None)


@both
def test_an_mpi_without_ipv6_fails_where_any_pod_lacks_ipv4(family: str) -> None:
    seen = pods(family, FOUR, SIX, mpi_ipv6=False)
    plan = planned(seen=seen)
    assert (failing(plan), settled(plan)) == ([], "IPv4")
    last = seen.workers[1]
    bare = replace(last, facts=replace(last.facts, links=pods(family, SIX).links))  # type: ignore[type-var]
    plan = planned(seen=replace(seen, workers=(seen.workers[0], bare)))
    assert failing(plan) == ["ip-version"]
    (found,) = [item for item in plan.findings if item.level is Level.FAIL]
    assert found.message.endswith("pods have no IPv4 address: w-1.job.ns.svc")
    assert "--enable-ipv6" in found.hint


@pytest.mark.parametrize("family", list(HYDRAS))
def test_hydra_speaks_ipv4_alone(family: str) -> None:
    seen = pods(family, FOUR, SIX)
    assert (failing(planned(seen=seen)), settled(planned(seen=seen))) == ([], "IPv4")
    plan = planned(seen=pods(family, SIX))
    assert failing(plan) == ["ip-version"]
    (found,) = [item for item in plan.findings if item.level is Level.FAIL]
    assert found.message.endswith(f"speak IPv4 alone, and {WITHOUT_IPV4}")
    assert "dual stack" in found.hint


@pytest.mark.parametrize(
    ("family", "version", "warned"),
    [
        *(("openmpi5", version, True) for version in ("5.0.0", "5.0.4", "5.0.8")),
        *(("openmpi5", version, False) for version in ("", "5.0.9", "5.0.10", "6.0")),
        ("openmpi4", "4.1.4", False),
    ],
)
def test_a_release_whose_daemons_crash_without_ipv4_is_warned_of(
    family: str, version: str, *, warned: bool
) -> None:
    mpi = Mpi(MpiFamily(family), version, "/usr/bin/mpirun", "mpirun")
    plan = planned(seen=replace(pods(family, SIX, mpi_ipv6=True), mpi=mpi))
    assert failing(plan) == []
    found = [item.message for item in plan.findings if item.check == "ip-version"]
    assert found == [f"Open MPI {version} may crash in pods without an IPv4 address"] * warned


@both
def test_a_control_network_of_ipv6_becomes_the_links_name(family: str) -> None:
    environ = {**POD, "MPIBOOT_CONTROL_IFNAME": "fd00:10:244::/64"}
    plan = planned(seen=replace(pods(family, FOUR, SIX), environ=environ))
    value, source, why = reason(plan, "control-link")
    assert (value, source) == ("eth0", Source.ENVIRONMENT)
    assert "MPIBOOT_CONTROL_IFNAME: the link of fd00:10:244::/64" in why
    assert plan.set_env["OMPI_MCA_btl_tcp_if_include"] == "eth0"


@both
def test_links_of_other_names_are_not_pinned_by_an_ipv6_network(family: str) -> None:
    seen = pods(family, SIX, mpi_ipv6=True)
    first = replace(seen.links[1], name="ens3")
    plan = planned(seen=replace(seen, links=(seen.links[0], first)))
    assert reason(plan, "control-link")[0] == ""
    assert "takes no IPv6 network" in reason(plan, "control-link")[2]
    assert failing(plan) == []
    asked = {**POD, "MPIBOOT_CONTROL_IFNAME": "fd00:10:244::/64"}
    plan = planned(seen=replace(seen, links=(seen.links[0], first), environ=asked))
    assert failing(plan) == ["settings-conflict"]


@both
@pytest.mark.parametrize(
    ("addresses", "control", "version", "other"),
    [
        ((FOUR,), FOUR, 4, 0),
        ((FOUR, SIX), FOUR, 4, 6),
        ((FOUR, SIX), SIX, 6, 4),
        ((SIX,), SIX, 6, 0),
    ],
)
def test_the_daemons_range_is_for_the_version_that_they_speak(
    family: str, addresses: tuple[str, ...], control: str, version: int, other: int
) -> None:
    """With both, the sockets of IPv4 take the ports, and those of IPv6 get none: a hang."""
    environ = {**POD, "MPIBOOT_PORT_RANGE": "40000-40009"}
    plan = planned(seen=replace(pods(family, *addresses, control=control), environ=environ))
    prefix = "PRTE_MCA_" if family == "openmpi5" else "OMPI_MCA_"
    ports = {name: value for name, value in plan.set_env.items() if "oob_tcp_dynamic" in name}
    assert ports == {f"{prefix}oob_tcp_dynamic_ipv{version}_ports": "40000-40001"}
    off = {name: value for name, value in plan.set_env.items() if "oob_tcp_disable" in name}
    assert off == ({f"{prefix}oob_tcp_disable_ipv{other}_family": "1"} if other else {})
