"""Binding and mapping are mpirun's, but where pods share their CPUs and nobody says anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Cpus
from mpiboot.core.model import Source
from mpiboot.job.plan import Plan
from tests.fakes.plans import POD, both, observed, planned, reason, with_facts

BIND = {
    "openmpi4": ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    "openmpi5": ("PRTE_MCA_hwloc_default_binding_policy", "none"),
    "intel": ("I_MPI_PIN", "0"),
}
SHARED, EXCLUSIVE = Cpus(64, 32, 64), Cpus(4, 2, 64)
OTHERS = (
    "other pods of the node may use the CPUs of w-0.job.ns.svc, too, and mpirun would bind ranks "
    "of several pods to the same ones"
)


def of_binding(plan: Plan) -> set[str]:
    """What the plan sets of mapping and binding."""
    words = ("binding", "mapping", "I_MPI_PIN")
    return {name for name in plan.set_env if any(word in name for word in words)}


@pytest.mark.parametrize("family", list(BIND))
@pytest.mark.parametrize(
    ("cpus", "message"),
    [
        ((SHARED, EXCLUSIVE), OTHERS),
        # The pool of a node whose kubelet gives other pods CPUs of their own: all but those.
        ((Cpus(60, 30, 64, quota=4.0), EXCLUSIVE), OTHERS),
        ((EXCLUSIVE, None), "whether w-1.job.ns.svc has CPUs of its own is not known"),
        (
            (EXCLUSIVE, Cpus(2, 1, 64)),
            "w-1.job.ns.svc has fewer cores than slots, where mpirun may refuse",
        ),
        ((EXCLUSIVE, EXCLUSIVE), ""),
        ((EXCLUSIVE, replace(EXCLUSIVE, quota=4.0)), ""),
    ],
)
def test_ranks_are_not_bound_where_others_may_use_their_cpus(
    family: str, cpus: tuple[Cpus | None, ...], message: str
) -> None:
    plan = planned("./train", with_facts(observed(family), cpus=cpus))
    name, value = BIND[family]
    assert {name: plan.set_env[name] for name in of_binding(plan)} == (
        {name: value} if message else {}
    )
    assert reason(plan, name if message else "binding") == (
        (value, Source.DETECTED, f"ranks are not bound: {message}")
        if message
        else (
            *("left to mpirun", Source.DETECTED),
            "each pod has CPUs of its own, and a core for each slot",
        )
    )


OF_LINES = (
    *("--rankfile rf", "-rf rf", "--cpu-set 0", "--cpu-list 0", "--cpus-per-proc 1"),
    *("--map-by ppr:2:node:PE=1", "--map-by slot:PE=1", "--map-by :PE=2", "--map-by node"),
    *("-N 2", "--npernode 2", "--npersocket 1", "--bycore", "--rank-by node"),
    *("--bind-to core", "--bind-to-core", "--use-hwthread-cpus", "--mca rmaps ppr"),
    "--some-new-option 3 --rankfile rf",
)


@pytest.mark.parametrize(
    ("family", "words", "bound"),
    [
        *((family, words, True) for family in ("openmpi4", "openmpi5") for words in OF_LINES),
        ("intel", "-genv I_MPI_PIN_DOMAIN omp", True),
        ("intel", "-env I_MPI_PIN_CELL=core", True),
        # What says nothing of it.
        *(("openmpi4", words, False) for words in ("--map-by :nooversubscribe", "--tag-output")),
        *(("openmpi5", words, False) for words in ("--map-by :nooversubscribe", "-n 2")),
    ],
)
def test_nothing_is_set_beside_what_the_line_says_of_mapping_ranking_binding_or_cpus(
    family: str, words: str, *, bound: bool
) -> None:
    plan = planned(f"mpirun {words} ./train", observed(family))
    assert of_binding(plan) == (set() if bound else {BIND[family][0]})


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
    assert not of_binding(plan)
    assert reason(plan, "binding") == (f"{name}=1", Source.ENVIRONMENT, "set in this pod, and kept")


@both
@pytest.mark.parametrize("name", ["rmaps_base_oversubscribe", "rmaps_base_display_map"])
def test_variables_about_something_else_leave_ranks_unbound(family: str, name: str) -> None:
    plan = planned("./train", observed(family, {**POD, f"OMPI_MCA_{name}": "1"}))
    assert of_binding(plan) == {BIND[family][0]}
