"""Programs for torchrun: `mpiboot rank` before each, and where its ranks meet."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from mpiboot.core.model import Source
from mpiboot.job.plan import Plan
from mpiboot.job.plan_input import Observed
from tests.fakes.plans import (
    HYDRAS,
    MPIS,
    POD,
    failing,
    hosts,
    observed,
    planned,
    reason,
    with_facts,
)

ON = {"rank_env": "true"}
BEFORE = ("mpiboot", "rank", "--")
each = pytest.mark.parametrize("family", [*MPIS, *HYDRAS])


def handed_on(plan: Plan, family: str) -> set[str]:
    """The names that ranks get by this MPI's own way."""
    if family in HYDRAS:
        return {*plan.environment({})}
    return {name for word, name in pairwise(plan.argv) if word == "-x"}


@each
def test_the_setting_puts_it_before_a_program_whose_ranks_get_where_rank_0_is(family: str) -> None:
    plan = planned("./train --epochs 3", observed(family), ON)
    assert plan.argv[-6:] == (*BEFORE, "./train", "--epochs", "3")
    assert reason(plan, "rank-env")[:2] == ("mpiboot rank --", Source.FLAG)
    assert plan.set_env["MASTER_ADDR"] == "10.244.0.10"
    assert plan.set_env["MASTER_PORT"] == "29500"
    assert {"MASTER_ADDR", "MASTER_PORT"} <= handed_on(plan, family)
    assert "w-0.job.ns.svc" in reason(plan, "MASTER_ADDR")[2]


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        (("/mpiboot/bin/mpiboot", "/mpiboot/bin/mpiboot"), "/mpiboot/bin/mpiboot"),
        (("/mpiboot/bin/mpiboot", ""), "mpiboot"),
        (("/mpiboot/bin/mpiboot", "/opt/mpiboot/bin/mpiboot"), "mpiboot"),
    ],
)
def test_it_is_named_by_its_path_where_no_hosts_path_leads_to_it(
    programs: tuple[str, ...], expected: str
) -> None:
    plan = planned("./train", with_facts(observed(), program=programs), ON)
    assert plan.argv[-4:] == (expected, "rank", "--", "./train")


@each
def test_by_the_users_own_words_only_where_ranks_meet_is_set(family: str) -> None:
    line = "mpirun -n 4 /usr/bin/mpiboot rank -- ./train"
    plan = planned(line, observed(family))
    assert plan.argv[-6:] == ("-n", "4", "/usr/bin/mpiboot", "rank", "--", "./train")
    assert plan.set_env["MASTER_ADDR"] == "10.244.0.10"
    assert planned(line, observed(family), ON).argv == plan.argv  # not twice


@each
def test_the_users_own_place_to_meet_wins_and_is_shown(family: str) -> None:
    environ = {**POD, "MASTER_ADDR": "head", "MASTER_PORT": "1"}
    plan = planned("./train", observed(family, environ), ON)
    assert not {"MASTER_ADDR", "MASTER_PORT"} & plan.set_env.keys()
    assert {"MASTER_ADDR", "MASTER_PORT"} <= handed_on(plan, family) | (
        environ.keys() - {*plan.unset_env}
    )
    assert reason(plan, "MASTER_ADDR") == ("head", Source.ENVIRONMENT, "set in this pod, and kept")


@each
def test_a_place_that_the_workers_own_pods_set_is_left_to_them(family: str) -> None:
    seen = observed(family)

    def with_own(*names: str) -> Plan:
        environment = [(name,) for name in names]
        return planned("./train", with_facts(seen, environment=environment), ON)

    plan = with_own("MASTER_ADDR", "MASTER_ADDR")
    assert "MASTER_ADDR" not in plan.set_env
    assert reason(plan, "MASTER_ADDR")[2] == "set in w-0.job.ns.svc's pod, and kept"
    assert plan.set_env["MASTER_PORT"] == "29500"
    assert "MASTER_ADDR" not in with_own("OTHER", "MASTER_ADDR").set_env


def as_worker(family: str) -> Observed:
    """The launcher is the second host of its own hostfile."""
    listed = hosts(2, 2)
    seen = observed(family, listed=listed, local=listed[1:])
    facts = seen.workers[0].facts
    assert facts
    return replace(seen, own=replace(facts, control_address="10.244.0.9"))


@pytest.mark.parametrize(
    ("family", "address"), [("openmpi4", "10.244.0.9"), ("openmpi5", "10.244.0.10")]
)
def test_a_launcher_that_is_a_worker_is_where_its_mpi_puts_it(family: str, address: str) -> None:
    # Open MPI 4.1 puts its own host first, wherever it stands.
    assert planned("./train", as_worker(family), ON).set_env["MASTER_ADDR"] == address


@each
def test_where_mpirun_alone_knows_the_host_of_rank_0_none_is_set(family: str) -> None:
    word = "-rankfile f" if family in MPIS else "-rankmap f"
    plan = planned(f"mpirun -n 4 {word} ./train", observed(family), ON)
    assert failing(plan) == []
    (found,) = [item for item in plan.findings if item.check == "settings-conflict"]
    assert found.message.endswith("so MASTER_ADDR is not set")
    assert found.hint.startswith("set MASTER_ADDR to")
    assert "MASTER_ADDR" not in plan.set_env
    environ = {**POD, "MASTER_ADDR": "head"}
    quiet = planned(f"mpirun -n 4 {word} ./train", observed(family, environ), ON)
    assert "settings-conflict" not in [item.check for item in quiet.findings]
