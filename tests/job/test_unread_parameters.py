"""What a manifest for another version of Open MPI says is named with its new form."""

from __future__ import annotations

import pytest

from mpiboot.core.model import Level
from mpiboot.job.mpi_environment import NOTHING
from tests.fakes.plans import OPERATOR, POD, observed, planned, warned

FOUR, FIVE = "openmpi4", "openmpi5"


def message(family: str, line: str = "./train", **environ: str) -> list[str]:
    plan = planned(line, observed(family, {**POD, **environ}))
    return [text for text in warned(plan) if "ignores" in text or "openib" in text]


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("OMPI_MCA_orte_abort_timeout", "MPIBOOT_LAUNCH_TIMEOUT for the start"),
        ("OMPI_MCA_orte_startup_timeout", "MPIBOOT_LAUNCH_TIMEOUT"),
        ("OMPI_MCA_orte_tag_output", "`--output tag` on the mpirun line"),
        ("OMPI_MCA_orte_tmpdir_base", "write PRTE_MCA_prte_tmpdir_base"),
        ("OMPI_MCA_orte_enable_recovery", NOTHING),
        ("OMPI_MCA_plm_rsh_no_tree_spawn", "write PRTE_MCA_plm_ssh_no_tree_spawn"),
        ("PRTE_MCA_plm_rsh_num_concurrent", "write PRTE_MCA_plm_ssh_num_concurrent"),
        ("OMPI_MCA_oob_tcp_if_exclude", "write PRTE_MCA_prte_if_exclude"),
        (
            "OMPI_MCA_oob_tcp_static_ipv4_ports",
            "write PRTE_MCA_oob_tcp_static_ipv4_ports",
        ),
        (
            "OMPI_MCA_hwloc_base_binding_policy",
            "write PRTE_MCA_hwloc_default_binding_policy",
        ),
        ("OMPI_MCA_rmaps_base_mapping_policy", "write PRTE_MCA_rmaps_default_mapping_policy"),
        ("OMPI_MCA_btl_openib_allow_ib", "UCX carries InfiniBand and RoCE"),
    ],
)
def test_a_name_of_version_4_is_told_under_5(name: str, instead: str) -> None:
    (text,) = message(FIVE, **{name: "1"})
    assert text.startswith(f"Open MPI 5.0 (PRRTE) ignores {name} (")
    assert instead in text
    assert message(FOUR, **{name: "1"}) == [] or name.startswith("PRTE_")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("PRTE_MCA_prte_tmpdir_base", "write OMPI_MCA_orte_tmpdir_base"),
        ("PRTE_MCA_plm_ssh_num_concurrent", "write OMPI_MCA_plm_rsh_num_concurrent"),
        (
            "PRTE_MCA_hwloc_default_binding_policy",
            "write OMPI_MCA_hwloc_base_binding_policy",
        ),
        ("PRTE_MCA_display", NOTHING),
    ],
)
def test_a_name_of_version_5_is_told_under_4(name: str, instead: str) -> None:
    assert message(FOUR, **{name: "1"}) == [f"Open MPI 4.1 (ORTE) ignores {name} ({instead})"]
    assert message(FIVE, **{name: "1"}) == []


@pytest.mark.parametrize(
    "name", ["PRTE_MCA_oob_tcp_if_exclude", "PRTE_MCA_routed_radix", "OMPI_MCA_btl_vader_flags"]
)
def test_an_older_name_that_version_5_reads_is_not_named(name: str) -> None:
    assert message(FIVE, **{name: "1"}) == []


def test_names_of_both_versions_beside_each_other_are_no_mistake() -> None:
    both = {
        "OMPI_MCA_hwloc_base_binding_policy": "core",
        "PRTE_MCA_hwloc_default_binding_policy": "core",
    }
    assert message(FOUR, **both) == message(FIVE, **both) == []


@pytest.mark.parametrize("family", [FOUR, FIVE])
def test_what_is_taken_over_or_the_platforms_own_is_not_named(family: str) -> None:
    theirs = {
        "OMPI_MCA_plm_rsh_agent": "ssh",
        "PRTE_MCA_plm_ssh_args": "-v",
        "OMPI_MCA_oob_tcp_if_include": "eth0",
        "PRTE_MCA_prte_set_default_slots": "2",
    }
    assert message(family, **{**OPERATOR, **theirs, "OMPI_MCA_orte_report_silent_errors": ""}) == []


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("^openib", "has no openib, and it may be left out"),
        ("^tcp,openib", "has no openib, and it may be left out"),
        ("openib,self,vader", "has no openib, and MPI ends over a transport"),
        ("self,tcp", ""),
    ],
)
@pytest.mark.parametrize("on_the_line", [True, False])
def test_the_transport_that_is_gone_is_named(value: str, told: str, *, on_the_line: bool) -> None:
    line = f"mpirun --mca btl {value} --mca btl_openib_allow_ib 1 ./train"
    environ = {} if on_the_line else {"OMPI_MCA_btl": value}
    found = message(FIVE, line if on_the_line else "./train", **environ)
    assert ("--mca btl_openib_allow_ib (" in found[0]) if on_the_line else True
    assert any(told in text for text in found) if told else len(found) == int(on_the_line)
    assert message(FOUR, line if on_the_line else "./train", **environ) == []


@pytest.mark.parametrize(
    ("family", "option", "instead"),
    [
        (FIVE, "--display-diffable-map", "remove it, or write --display map"),
        (FIVE, "--novm", "has for it (`mpirun --help`)"),
        (FOUR, "--display map", "remove it, or write --display-map, --display-allocation"),
    ],
)
def test_an_option_that_mpirun_ends_over_is_told_with_its_new_form(
    family: str, option: str, instead: str
) -> None:
    plan = planned(f"mpirun {option} ./train", observed(family))
    (found,) = [item for item in plan.findings if item.level is Level.FAIL]
    assert instead in found.hint
