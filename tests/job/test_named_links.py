"""A link of the user's that a pod does not have is reported before the start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Fabric, MpiParameter, RdmaDevice, RdmaPort
from mpiboot.job import control_links
from mpiboot.job.control_links import NAME_LINKS
from mpiboot.job.plan_input import Observed
from tests.fakes.plans import POD, both, failing, link, observed, planned, warned

BOTH = "w-0.job.ns.svc, w-1.job.ns.svc has no such link (there are lo, eth0)"
BTL, OOB = "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"
GLOO = "GLOO_SOCKET_IFNAME"


def known(seen: Observed) -> Observed:
    """The same, with the facts of the launcher's pod."""
    facts = seen.workers[0].facts
    assert facts is not None
    return replace(seen, own=replace(facts, hostname="job-launcher", links=seen.links))


def first_has(seen: Observed, name: str, *parameters: MpiParameter) -> Observed:
    """The same, with a link and parameters of files that the first worker alone has."""
    first, second = seen.workers
    assert first.facts is not None
    links = (*first.facts.links, link(name, "10.1.0.5/24"))
    facts = replace(first.facts, links=links, parameters=parameters)
    return replace(seen, workers=(replace(first, facts=facts), second))


@pytest.mark.parametrize(
    ("name", "value", "lacking"),
    [
        *((name, "ens5", True) for name in (BTL, GLOO, "TP_SOCKET_IFNAME", "UCX_NET_DEVICES")),
        (BTL, "ens5,ens6", True),
        (BTL, "10.99.0.0/16", True),  # in which no pod has an address
        # One of a list or a network is enough.
        *((BTL, value, False) for value in ("eth0", "ens5,eth0", "10.244.0.0/16")),
        *((BTL, value, False) for value in ("^lo", "all", "")),
    ],
)
@pytest.mark.parametrize("where", ["variable", "line", "file"])
def test_workers_without_a_link_are_named_with_what_they_have_and_what_follows(
    name: str, value: str, where: str, *, lacking: bool
) -> None:
    seen = known(observed(environ={**POD, name: value} if where == "variable" else POD))
    of_mpi = name.startswith("OMPI_MCA_")
    option = f"--mca {name.removeprefix('OMPI_MCA_')} {value}" if of_mpi else f"-x {name}={value}"
    if where == "file" and of_mpi and value:
        seen = replace(seen, parameters=(MpiParameter(name, value, "/etc/x.conf"),))
    words = option if where == "line" or (where == "file" and not of_mpi) else ""
    plan = planned(["mpirun", *(words.split(" ") if words else ()), "./train"], seen)
    assert failing(plan) == []
    assert warned(plan) == ([f"{name}={value}: {BOTH}: {NAME_LINKS[name]}"] if lacking else [])


def test_only_the_workers_that_lack_it_are_named() -> None:
    seen = first_has(known(observed(environ={**POD, GLOO: "net1"})), "net1")
    (message,) = warned(planned("./train", seen))
    assert f"{GLOO}=net1: w-1.job.ns.svc has no such link" in message


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("openmpi4", OOB),
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


def test_a_link_in_the_file_of_one_worker_holds_there_alone() -> None:
    seen = first_has(known(observed()), "ens5", MpiParameter(OOB, "ens5", "/etc/x.conf"))
    plan = planned("./train", seen)
    assert (failing(plan), warned(plan), plan.set_env.get(OOB)) == ([], [], None)


def test_a_link_of_the_daemons_that_only_workers_lack_is_a_warning() -> None:
    seen = observed(environ={**POD, OOB: "ens5"})
    seen = known(replace(seen, links=(*seen.links, link("ens5", "10.1.0.9/24"))))
    plan = planned("./train", seen)
    assert failing(plan) == []
    assert warned(plan) == [f"{OOB}=ens5: {BOTH}: mpirun's daemon ends there"]


@both
def test_variables_of_another_mpi_are_not_checked(family: str) -> None:
    environ = {**POD, "HYDRA_IFACE": "ens5", "I_MPI_HYDRA_IFACE": "ens5"}
    assert warned(planned("./train", known(observed(family, environ)))) == []


def test_devices_of_ucx_are_no_links() -> None:
    facts = known(observed()).own
    assert facts is not None
    device = RdmaDevice("mlx5_0", ports=(RdmaPort(1),))
    here = replace(facts, fabric=Fabric(devices=(device,)))
    # UCX takes a device by its port alone.
    for value, gone in (("mlx5_0:1,eth0", []), ("mlx5_0", ["mlx5_0"]), ("mlx5_0:2", ["mlx5_0:2"])):
        assert control_links.links_gone(here, value) == gone
    assert control_links.links_gone(here, "mlx5_[1-2]:1") == []
    for unseen in (Fabric(refused="x"), Fabric(devices=(RdmaDevice("mlx5_0"),))):
        assert control_links.links_gone(replace(here, fabric=unseen), "mlx5_1:1") == []
