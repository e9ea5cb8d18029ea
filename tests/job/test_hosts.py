"""Names are looked up once: what each mpirun is told of that, and where the plan says otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Host, Hostfile
from mpiboot.core.model import Source
from mpiboot.job.plan_input import Observed
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


@each
def test_open_mpi_is_told_not_to_ask_again(family: str, name: str) -> None:
    for seen in (observed(family), with_own_ranks(family)):
        plan = planned("mpirun -n 2 ./train", seen)
        assert plan.set_env[name] == "1"


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
    assert name not in plan.set_env
    # Nothing on the line means a pod that is no host.
    assert planned(f"mpirun {line}", observed(family)).set_env[name] == "1"
