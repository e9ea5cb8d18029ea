"""Names are looked up once: what each mpirun is told of that, and where the plan says otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Host, Hostfile
from mpiboot.core.model import Source
from mpiboot.job.plan_input import Observed
from tests.fakes.plans import POD, observed, planned, reason

NAME = "OMPI_MCA_if_base_do_not_resolve"
OWN = Host("w-launcher.job.ns.svc", 1, slots_given=True)


def with_own_ranks() -> Observed:
    seen = observed("openmpi4")
    file = Hostfile("/etc/mpi/hostfile", "default", (OWN, *seen.hostfile.hosts))
    return replace(seen, hostfile=file, local=(OWN,))


def test_open_mpi_is_told_not_to_ask_again() -> None:
    for seen in (observed("openmpi4"), with_own_ranks()):
        plan = planned("mpirun -n 2 ./train", seen)
        assert plan.set_env[NAME] == "1"


def test_a_users_own_wish_wins_and_is_told() -> None:
    plan = planned(seen=observed("openmpi4", {**POD, NAME: "0"}))
    assert NAME not in plan.set_env
    assert reason(plan, NAME)[:2] == ("0", Source.ENVIRONMENT)
    plan = planned("mpirun --mca if_base_do_not_resolve 0 ./train", observed("openmpi4"))
    assert NAME not in plan.set_env
    assert reason(plan, NAME)[:2] == ("0", Source.FLAG)


@pytest.mark.parametrize("line", ["--rankfile /r ./train", "--app /a"])
def test_a_line_that_may_name_this_pod_otherwise_is_left_alone(
    line: str,
) -> None:
    plan = planned(f"mpirun {line}", with_own_ranks())
    assert NAME not in plan.set_env
    # Nothing on the line means a pod that is no host.
    assert planned(f"mpirun {line}", observed("openmpi4")).set_env[NAME] == "1"
