"""Binding and mapping are mpirun's, but where pods share their CPUs and nobody says anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.facts import Cpus
from mpiboot.core.model import Source
from mpiboot.job.plan import Plan
from tests.fakes.plans import POD, observed, planned, reason, with_facts

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
FEWER = "w-1.job.ns.svc has fewer cores than slots, where mpirun may refuse"


def of_binding(plan: Plan) -> dict[str, str]:
    """What the plan sets of mapping and binding."""
    words = ("binding", "mapping", "I_MPI_PIN")
    return {name: it for name, it in plan.set_env.items() if any(word in name for word in words)}


@pytest.mark.parametrize("family", list(BIND))
@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (SHARED, EXCLUSIVE, OTHERS),
        # The pool of a node whose kubelet gives other pods CPUs of their own: all but those.
        (Cpus(60, 30, 64, quota=4.0), EXCLUSIVE, OTHERS),
        (EXCLUSIVE, None, "whether w-1.job.ns.svc has CPUs of its own is not known"),
        (EXCLUSIVE, Cpus(2, 1, 64), FEWER),
        (EXCLUSIVE, EXCLUSIVE, ""),
        (EXCLUSIVE, replace(EXCLUSIVE, quota=4.0), ""),
    ],
)
def test_ranks_are_not_bound_where_others_may_use_their_cpus(
    family: str, first: Cpus, second: Cpus | None, message: str
) -> None:
    plan = planned("./train", with_facts(observed(family), cpus=(first, second)))
    name, value = BIND[family]
    assert of_binding(plan) == ({name: value} if message else {})
    shown = (value, f"ranks are not bound: {message}")
    if not message:
        name, shown = "binding", ("left to mpirun", "each pod has CPUs of its own, and a core for")
    found, source, why = reason(plan, name)
    assert (found, source, why.startswith(shown[1])) == (shown[0], Source.DETECTED, True)


OF_LINES = (
    *("--rankfile rf", "-rf rf", "--cpu-set 0", "--cpu-list 0", "--cpus-per-proc 1"),
    *("--map-by ppr:2:node:PE=1", "--map-by slot:PE=1", "--map-by :PE=2", "--map-by node"),
    *("-N 2", "--npernode 2", "--npersocket 1", "--bycore", "--rank-by node"),
    *("--bind-to core", "--bind-to-core", "--use-hwthread-cpus", "--mca rmaps ppr"),
    "--some-new-option 3 --rankfile rf",
)
OF_PODS = {
    "openmpi4": "OMPI_MCA_rmaps_base_mapping_policy OMPI_MCA_rmaps_base_cpus_per_proc "
    "OMPI_MCA_rmaps_ppr_n_pernode OMPI_MCA_orte_rankfile OMPI_MCA_hwloc_base_cpu_list",
    "openmpi5": "PRTE_MCA_rmaps_default_ranking_policy OMPI_MCA_rmaps_default_mapping_policy "
    "PRTE_MCA_hwloc_default_cpu_list",
    "intel": "I_MPI_PIN_DOMAIN I_MPI_PIN_PROCESSOR_LIST",
}


@pytest.mark.parametrize(
    ("family", "words", "name", "kept"),
    [
        *((family, words, "", True) for family in ("openmpi4", "openmpi5") for words in OF_LINES),
        ("intel", "-genv I_MPI_PIN_DOMAIN omp", "", True),
        ("intel", "-env I_MPI_PIN_CELL=core", "", True),
        *((family, "", name, True) for family, names in OF_PODS.items() for name in names.split()),
        # What says nothing of it.
        *((family, "--map-by :nooversubscribe", "", False) for family in ("openmpi4", "openmpi5")),
        ("openmpi4", "--tag-output", "", False),
        ("openmpi5", "-n 2", "", False),
        *(
            (family, "", f"OMPI_MCA_rmaps_base_{name}", False)
            for family in ("openmpi4", "openmpi5")
            for name in ("oversubscribe", "display_map")
        ),
    ],
)
def test_nothing_is_set_beside_what_the_user_says_of_mapping_ranking_binding_or_cpus(
    family: str, words: str, name: str, *, kept: bool
) -> None:
    environ = {**POD, name: "1"} if name else POD
    plan = planned(f"mpirun {words} ./train", observed(family, environ))
    assert of_binding(plan).keys() == (set() if kept else {BIND[family][0]})
    if name and kept:
        shown = (f"{name}=1", Source.ENVIRONMENT, "set in this pod, and kept")
        assert reason(plan, "binding") == shown
