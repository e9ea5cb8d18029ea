"""Names are looked up once: what each mpirun is told of that, and where the plan says otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Host, Hostfile
from mpiboot.core.model import Mpi, MpiFamily, Source
from mpiboot.job.plan import Plan
from mpiboot.job.plan_builder import Observed
from tests.fakes.plans import POD, observed, planned, reason

VARIABLES = {
    "openmpi4": "OMPI_MCA_if_base_do_not_resolve",
    "openmpi5": "PRTE_MCA_prte_do_not_resolve",
}
each = pytest.mark.parametrize(("family", "name"), VARIABLES.items())
OWN = Host("w-launcher.job.ns.svc", 1, slots_given=True)


def with_own_ranks(family: str) -> Observed:
    seen = observed(family)
    file = Hostfile("/etc/mpi/hostfile", "default", (OWN, *seen.hostfile.hosts))
    return replace(seen, hostfile=file, local=(OWN,))


def told(plan: Plan) -> list[tuple[str, Source]]:
    return [(item.value, item.source) for item in plan.decisions if item.name == "names"]


@each
def test_open_mpi_is_told_not_to_ask_again(family: str, name: str) -> None:
    for seen in (observed(family), with_own_ranks(family)):
        plan = planned("mpirun -n 2 ./train", seen)
        assert plan.set_env[name] == "1"
        assert told(plan) == []


@each
def test_a_users_own_wish_wins_and_is_told(family: str, name: str) -> None:
    plan = planned(seen=observed(family, {**POD, name: "0"}))
    assert name not in plan.set_env
    assert reason(plan, name)[:2] == ("0", Source.ENVIRONMENT)
    parameter = name.partition("_MCA_")[2]
    plan = planned(f"mpirun --mca {parameter} 0 ./train", observed(family))
    assert name not in plan.set_env
    assert reason(plan, name)[:2] == ("0", Source.FLAG)


@each
@pytest.mark.parametrize("line", ["--rankfile /r ./train", "--app /a"])
def test_a_line_that_may_name_this_pod_otherwise_is_left_alone(
    family: str, name: str, line: str
) -> None:
    plan = planned(f"mpirun {line}", with_own_ranks(family))
    assert (name in plan.set_env, told(plan)) == (
        False,
        [("asked again by mpirun", Source.FLAG)],
    )
    # Nothing on the line means a pod that is no host.
    assert planned(f"mpirun {line}", observed(family)).set_env[name] == "1"


@pytest.mark.parametrize(
    ("family", "version", "asks"),
    [
        ("mpich", "4.0.2", False),
        ("mpich", "4.3.0", False),
        ("mpich", "4.3.2", True),
        ("mpich", "5.0.2", True),
        ("intel", "2021.18", False),
    ],
)
def test_an_mpirun_that_asks_again_is_named(
    family: str,
    version: str,
    asks: bool,  # noqa: FBT001 - a row of the table
) -> None:
    seen = observed(family)
    plan = planned(seen=replace(seen, mpi=Mpi(MpiFamily(family), version, "/m", "mpirun")))
    assert told(plan) == ([("asked again by mpirun", Source.DETECTED)] if asks else [])
