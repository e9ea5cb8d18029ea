"""Binding and mapping are mpirun's, but where pods share their CPUs and nobody says anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Cpus
from mpiboot.core.model import Source
from mpiboot.job.plan import Plan
from mpiboot.job.plan_input import Observed
from tests.fakes.plans import POD, both, observed, planned, reason

BIND = {
    "openmpi4": "OMPI_MCA_hwloc_base_binding_policy",
    "openmpi5": "PRTE_MCA_hwloc_default_binding_policy",
    "intel": "I_MPI_PIN",
}
SHARED, OWN = Cpus(64, 32, 64), Cpus(4, 2, 64)


def pods(seen: Observed, *cpus: Cpus | None) -> Observed:
    """The same, with workers of such CPUs."""
    found = tuple(
        replace(worker, facts=replace(worker.facts, cpus=own))
        for worker, own in zip(seen.workers, cpus, strict=True)
        if worker.facts
    )
    return replace(seen, workers=found)


def settled(plan: Plan) -> set[str]:
    """What the plan sets of mapping and binding."""
    words = ("binding", "mapping", "I_MPI_PIN")
    return {name for name in plan.set_env if any(word in name for word in words)}


@pytest.mark.parametrize("family", list(BIND))
@pytest.mark.parametrize(
    ("cpus", "message"),
    [
        (
            (SHARED, OWN),
            (
                "ranks are not bound: other pods of the node may use the CPUs of w-0.job.ns.svc, "
                "too, and mpirun would bind ranks of several pods to the same ones"
            ),
        ),
        (
            (OWN, None),
            "ranks are not bound: whether w-1.job.ns.svc has CPUs of its own is not known",
        ),
        (
            (OWN, Cpus(2, 1, 64)),
            (
                "ranks are not bound: w-1.job.ns.svc has fewer cores than slots, where mpirun may "
                "refuse"
            ),
        ),
        # The pool of a node whose kubelet gives other pods CPUs of their own: all but those.
        (
            (Cpus(60, 30, 64, quota=4.0), OWN),
            (
                "ranks are not bound: other pods of the node may use the CPUs of w-0.job.ns.svc, "
                "too, and mpirun would bind ranks of several pods to the same ones"
            ),
        ),
    ],
)
def test_ranks_are_not_bound_where_others_may_use_their_cpus(
    family: str, cpus: tuple[Cpus | None, ...], message: str
) -> None:
    plan = planned("./train", pods(observed(family), *cpus))
    assert settled(plan) == {BIND[family]}
    assert plan.set_env[BIND[family]] == ("0" if family == "intel" else "none")
    assert reason(plan, BIND[family])[1:] == (Source.DETECTED, message)


@pytest.mark.parametrize("family", list(BIND))
@pytest.mark.parametrize("quota", [0.0, 4.0])
def test_binding_is_mpiruns_where_each_pod_has_cpus_of_its_own(family: str, quota: float) -> None:
    plan = planned("./train", pods(observed(family), OWN, replace(OWN, quota=quota)))
    assert not settled(plan)
    assert reason(plan, "binding") == (
        "left to mpirun",
        Source.DETECTED,
        "each pod has CPUs of its own, and a core for each slot",
    )


@both
@pytest.mark.parametrize(
    "words",
    [
        *("--rankfile rf", "-rf rf", "--cpu-set 0", "--cpu-list 0", "--cpus-per-proc 1"),
        *("--map-by ppr:2:node:PE=1", "--map-by slot:PE=1", "--map-by :PE=2", "--map-by node"),
        *("-N 2", "--npernode 2", "--npersocket 1", "--bycore", "--rank-by node"),
        *("--bind-to core", "--bind-to-core", "--use-hwthread-cpus", "--mca rmaps ppr"),
        "--some-new-option 3 --rankfile rf",
    ],
)
def test_nothing_is_set_beside_what_the_line_says_of_mapping_ranking_binding_or_cpus(
    family: str, words: str
) -> None:
    assert not settled(planned(f"mpirun {words} ./train", observed(family)))


@both
@pytest.mark.parametrize("words", ["--map-by :nooversubscribe", "--tag-output", "-n 2"])
def test_what_says_nothing_of_it_leaves_ranks_unbound(family: str, words: str) -> None:
    assert settled(planned(f"mpirun {words} ./train", observed(family))) == {BIND[family]}


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("openmpi4", "OMPI_MCA_rmaps_base_mapping_policy"),
        ("openmpi4", "OMPI_MCA_rmaps_base_cpus_per_proc"),
        ("openmpi4", "OMPI_MCA_rmaps_ppr_n_pernode"),
        ("openmpi4", "OMPI_MCA_orte_rankfile"),
        ("openmpi4", "OMPI_MCA_hwloc_base_cpu_list"),
        ("openmpi5", "PRTE_MCA_rmaps_default_ranking_policy"),
        ("openmpi5", "OMPI_MCA_rmaps_default_mapping_policy"),
        ("openmpi5", "PRTE_MCA_hwloc_default_cpu_list"),
        ("intel", "I_MPI_PIN_DOMAIN"),
        ("intel", "I_MPI_PIN_PROCESSOR_LIST"),
    ],
)
def test_nothing_is_set_beside_variables_of_the_users_that_say_so(family: str, name: str) -> None:
    plan = planned("./train", observed(family, {**POD, name: "1"}))
    assert not settled(plan)
    assert reason(plan, "binding") == (
        f"{name}=1",
        Source.ENVIRONMENT,
        "set in this pod, and kept",
    )


@pytest.mark.parametrize("words", ["-genv I_MPI_PIN_DOMAIN omp", "-env I_MPI_PIN_CELL=core"])
def test_nothing_is_set_beside_a_variable_of_hydras_line_that_says_so(words: str) -> None:
    assert not settled(planned(f"mpirun {words} ./train", observed("intel")))


@pytest.mark.parametrize(
    "name", ["OMPI_MCA_rmaps_base_oversubscribe", "OMPI_MCA_rmaps_base_display_map"]
)
def test_variables_about_something_else_leave_ranks_unbound(name: str) -> None:
    assert settled(planned("./train", observed(environ={**POD, name: "1"}))) == {BIND["openmpi4"]}
