"""A link of the user's that a pod does not have is said before the start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Fabric, MpiParameter, RdmaDevice
from mpiboot.job import control_links
from mpiboot.job.control_links import NAME_LINKS
from mpiboot.job.plan_input import Observed
from tests.fakes.plans import POD, both, failing, link, observed, planned, warned

BOTH = "w-0.job.ns.svc, w-1.job.ns.svc has no such link (there are lo, eth0)"


def known(seen: Observed) -> Observed:
    """The same, with the facts of the launcher's own pod."""
    facts = seen.workers[0].facts
    assert facts is not None
    return replace(seen, own=replace(facts, hostname="job-launcher", links=seen.links))


def test_the_workers_without_a_link_are_named_with_what_they_have_and_what_follows() -> None:
    environ = {**POD, "OMPI_MCA_btl_tcp_if_include": "ens5"}
    plan = planned("./train", known(observed(environ=environ)))
    assert failing(plan) == []
    message = f"OMPI_MCA_btl_tcp_if_include=ens5: {BOTH}: ranks there have no TCP to other hosts"
    assert warned(plan) == [message]
    network = {
        **POD,
        "OMPI_MCA_btl_tcp_if_include": "10.99.0.0/16",
    }  # in which no pod has an address
    (message,) = warned(planned("./train", known(observed(environ=network))))
    assert message.startswith(f"OMPI_MCA_btl_tcp_if_include=10.99.0.0/16: {BOTH}")


@pytest.mark.parametrize("name", ["GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES"])
@pytest.mark.parametrize("how", ["variable", "line"])
def test_what_libraries_read_is_looked_at_too(name: str, how: str) -> None:
    seen = known(observed(environ={**POD, name: "ens5"} if how == "variable" else POD))
    line = f"mpirun -x {name}=ens5 ./train" if how == "line" else "./train"
    (message,) = warned(planned(line, seen))
    assert message == f"{name}=ens5: {BOTH}: {NAME_LINKS[name]}"


def test_a_parameter_of_the_line_or_of_a_file_is_looked_at_as_well() -> None:
    seen = known(observed())
    (message,) = warned(planned("mpirun --mca btl_tcp_if_include ens5,ens6 ./train", seen))
    assert message.startswith(f"OMPI_MCA_btl_tcp_if_include=ens5,ens6: {BOTH}")
    of_file = (MpiParameter("OMPI_MCA_btl_tcp_if_include", "ens5", "/etc/x.conf"),)
    (message,) = warned(planned("./train", replace(seen, parameters=of_file)))
    assert message.startswith(f"OMPI_MCA_btl_tcp_if_include=ens5: {BOTH}")


@pytest.mark.parametrize("value", ["eth0", "ens5,eth0", "10.244.0.0/16", "^lo", "all", ""])
def test_one_of_a_list_or_a_network_is_enough(value: str) -> None:
    environ = {**POD, "OMPI_MCA_btl_tcp_if_include": value}
    assert warned(planned("./train", known(observed(environ=environ)))) == []


def test_only_the_workers_that_lack_it_are_named() -> None:
    seen = known(observed(environ={**POD, "GLOO_SOCKET_IFNAME": "net1"}))
    first, second = seen.workers
    assert first.facts is not None
    facts = replace(first.facts, links=(*first.facts.links, link("net1", "10.1.0.5/24")))
    seen = replace(seen, workers=(replace(first, facts=facts), second))
    (message,) = warned(planned("./train", seen))
    assert "GLOO_SOCKET_IFNAME=net1: w-1.job.ns.svc has no such link" in message


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("openmpi4", "OMPI_MCA_oob_tcp_if_include"),
        ("openmpi5", "PRTE_MCA_prte_if_include"),
        ("mpich", "HYDRA_IFACE"),
        ("intel", "I_MPI_HYDRA_IFACE"),
    ],
)
def test_a_link_of_the_daemons_that_the_launcher_lacks_is_refused_as_mpirun_does(
    family: str, name: str
) -> None:
    seen = known(observed(family, {**POD, name: "ens5"}))
    plan = planned("./train", seen)
    assert failing(plan) == ["interface-missing"]
    (message,) = [item.message for item in plan.findings if item.check == "interface-missing"]
    there = "(there are lo, eth0)"
    assert message == f"{name}=ens5: no such link in the launcher's pod {there}, and mpirun ends"
    # What is not known of the launcher is no proof.
    assert failing(planned("./train", replace(seen, own=None))) == []


def test_a_link_in_the_file_of_a_worker_alone_is_that_worker_s_own() -> None:
    seen = known(observed())
    first, second = seen.workers
    assert first.facts is not None
    name = "OMPI_MCA_oob_tcp_if_include"
    facts = replace(first.facts, links=(*first.facts.links, link("ens5", "10.1.0.5/24")))
    facts = replace(facts, parameters=(MpiParameter(name, "ens5", "/etc/x.conf"),))
    plan = planned("./train", replace(seen, workers=(replace(first, facts=facts), second)))
    assert (failing(plan), warned(plan)) == ([], [])
    assert name not in plan.set_env


def test_a_link_of_the_daemons_that_only_workers_lack_is_a_warning() -> None:
    seen = observed(environ={**POD, "OMPI_MCA_oob_tcp_if_include": "ens5"})
    seen = known(replace(seen, links=(*seen.links, link("ens5", "10.1.0.9/24"))))
    plan = planned("./train", seen)
    assert failing(plan) == []
    assert warned(plan) == [f"OMPI_MCA_oob_tcp_if_include=ens5: {BOTH}: mpirun's daemon ends there"]


@both
def test_variables_of_another_mpi_are_nobodys_business(family: str) -> None:
    environ = {**POD, "HYDRA_IFACE": "ens5", "I_MPI_HYDRA_IFACE": "ens5"}
    assert warned(planned("./train", known(observed(family, environ)))) == []


def test_devices_of_ucx_are_no_links() -> None:
    facts = known(observed()).own
    assert facts is not None
    device = RdmaDevice("mlx5_0")
    here = replace(facts, fabric=Fabric(devices=(device,)))
    assert control_links.links_gone(here, "mlx5_0:1,eth0,mlx5_1:1") == ["mlx5_1:1"]
    assert control_links.links_gone(replace(here, fabric=Fabric(refused="x")), "mlx5_1:1") == []
