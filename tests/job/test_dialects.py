from __future__ import annotations

from dataclasses import fields, replace
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import pytest

from mpiboot.core.checks import ExitCode
from mpiboot.core.errors import MpibootError
from mpiboot.core.model import Mpi, MpiFamily
from mpiboot.job import dialects, plan
from mpiboot.job.dialects import DIALECTS, HOSTFILE_VARS, Dialect, parameter
from mpiboot.job.hostfile import Syntax
from mpiboot.job.mpirun_line import read
from tests.fakes.plans import failing, observed, planned, reason, warned

OPEN_MPI = [row for row in DIALECTS.values() if row.family.startswith("openmpi")]
# Columns that only Hydra's rows, and series that were not tried, need.
NOT_OPEN_MPIS = {
    "agent_aliases",
    "agent_args_aliases",
    "agent_kind_aliases",
    "hostfile_option",
    "on_control_link",
    "program",
    "untried",
    "own_transports",
    "resolves_since",
}
# Intents that a version may do without; each with the reason in its row's absence.
MAY_LACK = {
    "openmpi5": {
        "keep_fqdn_var",
        "evaluated_but",
        "leaving_var",
        "attached",
        "messages_var",
        "daemon_range_vars",
        "range_vars",
        "exit_codes_option",
    },
    "openmpi4": {
        "rank_table",
        "keep_own_names_var",
        "ipv6",
        "cut_prefix_var",
        "never_empty",
        "several_programs",
        "daemon_range_vars",
        "range_vars",
        "exit_codes_option",
    },
}


@pytest.mark.parametrize("row", OPEN_MPI, ids=lambda row: row.family)
def test_a_row_of_open_mpi_says_something_of_every_intent(row: Dialect) -> None:
    empty = {
        item.name
        for item in fields(row)
        if getattr(row, item.name) in ("", ())
        and item.name not in MAY_LACK[row.family] | NOT_OPEN_MPIS
    }
    assert empty == set()


@pytest.mark.parametrize("row", DIALECTS.values(), ids=lambda row: row.family)
def test_every_row_can_be_written_read_and_explained(row: Dialect) -> None:
    assert row.grammar.options
    assert isinstance(row.syntax, Syntax)
    assert row.hostfile_var in HOSTFILE_VARS
    assert all(item.reason and item.name for item in (*row.constants, *row.root))
    assert row.lost_without_parent


@pytest.mark.parametrize("row", DIALECTS.values(), ids=lambda row: row.family)
def test_every_column_is_of_its_own_type(row: Dialect) -> None:
    """A name that an MPI lacks is the empty one: only what is a whole record may be None."""
    hints = get_type_hints(Dialect)
    for item in fields(row):
        hint = hints[item.name]
        parts = get_args(hint) if get_origin(hint) is UnionType else (hint,)
        kinds = tuple(get_origin(part) or part for part in parts)
        assert isinstance(getattr(row, item.name), kinds), item.name


@pytest.mark.parametrize("row", OPEN_MPI, ids=lambda row: row.family)
def test_open_mpis_parameters_are_named_by_the_prefix_that_this_version_reads(row: Dialect) -> None:
    own = "OMPI_MCA_" if row.family == "openmpi4" else "PRTE_MCA_"
    for name in (
        row.hostfile_var,
        row.agent_var,
        row.agent_args_var,
        row.keep_fqdn_var,
        row.keep_own_names_var,
        row.daemon_link_var,
        row.concurrency_var,
        row.bind_var,
        row.map_var,
        row.oversubscribe_var,
    ):
        assert not name or name.startswith(own)
    assert row.evaluated == own
    assert all(name.startswith("OMPI_MCA_") for name in row.mpi_link_vars)


def test_no_constant_holds_what_a_remote_shell_would_read() -> None:
    for row in DIALECTS.values():
        for item in (*row.constants, *row.root):
            assert not set(item.value) & set("\"'$\\`;&|<>() \n"), item


def test_the_launch_is_flat_and_attached() -> None:
    constants = {row.family: {item.name: item.value for item in row.constants} for row in OPEN_MPI}
    assert constants[MpiFamily.OPENMPI4]["OMPI_MCA_routed"] == "direct"
    assert "OMPI_MCA_plm_rsh_no_tree_spawn" not in constants[MpiFamily.OPENMPI4]
    assert constants[MpiFamily.OPENMPI5]["PRTE_MCA_plm_ssh_no_tree_spawn"] == "1"


def test_only_version_five_takes_a_single_link() -> None:
    assert not dialects.OPENMPI4.one_link
    assert dialects.OPENMPI5.one_link


def test_collectives_that_open_rdma_devices_are_off() -> None:
    for row in OPEN_MPI:
        names = {item.name for item in row.constants}
        assert {"OMPI_MCA_coll_hcoll_enable", "OMPI_MCA_coll_ucc_enable"} <= names


@pytest.mark.parametrize(
    ("mpi", "message"),
    [
        (Mpi(MpiFamily.UNKNOWN, "", "/usr/bin/mpirun", "it said nothing"), "it said nothing"),
        (Mpi(MpiFamily.UNKNOWN, "", "/usr/bin/mpirun", ""), "/usr/bin/mpirun is not recognised"),
    ],
)
def test_an_unknown_mpi_without_a_line_is_refused_with_what_works(mpi: Mpi, message: str) -> None:
    with pytest.raises(MpibootError) as refused:
        plan.refuse_unknown(mpi, read(["./train"], mpi.family))
    assert refused.value.code == ExitCode.CONFLICT
    assert message in refused.value.finding.message
    assert mpi.path in refused.value.finding.message
    assert (
        "Open MPI 4.1 (ORTE), Open MPI 5.0 (PRRTE), MPICH (Hydra)" in refused.value.finding.message
    )
    assert "MPIBOOT_MPI" in refused.value.finding.hint


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("OMPI_MCA_btl", "btl"),
        ("PRTE_MCA_prte_if_include", "prte_if_include"),
        ("PMIX_MCA_x", "x"),
        ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT"),
    ],
)
def test_a_variable_is_known_by_the_name_that_mca_takes(variable: str, name: str) -> None:
    assert parameter(variable) == name


@pytest.mark.parametrize("version", ["5.1.0a1", "6.0.0", "10.0"])
def test_a_series_that_was_not_tried_gets_what_is_safe_and_the_rest_is_named(version: str) -> None:
    seen = observed("openmpi5")
    mpi = replace(seen.mpi, version=version, banner=f"mpirun (Open MPI) {version}")
    workers = tuple(replace(w, facts=w.facts and replace(w.facts, mpi=mpi)) for w in seen.workers)
    newer = planned("./train", replace(seen, mpi=mpi, workers=workers))
    usual = planned("./train", seen)
    gone = usual.set_env.keys() - newer.set_env.keys()
    assert gone == {item.name for item in dialects.OPENMPI5.constants if "OMPI" in item.name}
    assert newer.set_env.items() <= usual.set_env.items()
    assert newer.argv == ("mpirun", "-n", "4", "./train")
    assert newer.daemons == usual.daemons
    (message,) = warned(newer)
    assert message.startswith(f"mpirun (Open MPI) {version}: mpiboot was not tried with it")
    assert "OMPI_MCA_btl" in message


@pytest.mark.parametrize(
    ("family", "version", "option"),
    [("openmpi5", "6.0.0", "--novm"), ("openmpi4", "4.0.7", "--display map")],
)
def test_only_a_series_that_was_tried_is_known_to_refuse_an_option(
    family: str, version: str, option: str
) -> None:
    seen = observed(family)
    line = f"mpirun {option} -n 4 ./train"
    assert failing(planned(line, seen)) == ["usage"]
    untried = planned(line, replace(seen, mpi=replace(seen.mpi, version=version)))
    assert failing(untried) == []
    assert "the rest of the line is passed on unread" in " ".join(warned(untried))


@pytest.mark.parametrize("version", ["3.0.0", "4.0.7", "2.1.1"])
def test_a_series_before_the_tried_one_gets_the_same_with_a_warning(version: str) -> None:
    seen = observed("openmpi4")
    mpi = replace(seen.mpi, version=version, banner=f"mpirun (Open MPI) {version}")
    workers = tuple(replace(w, facts=w.facts and replace(w.facts, mpi=mpi)) for w in seen.workers)
    older = planned("./train", replace(seen, mpi=mpi, workers=workers))
    usual = planned("./train", seen)
    assert (older.set_env, older.argv) == (usual.set_env, usual.argv)
    (message,) = warned(older)
    assert message.startswith(f"mpirun (Open MPI) {version}: mpiboot was not tried with it")
    assert reason(older, "mpi")[0] == f"Open MPI before 4.1: {version}"
    assert warned(usual) == []


def test_an_unknown_mpi_is_started_by_the_users_own_line_and_by_nothing_else() -> None:
    seen = observed("openmpi4", {"PATH": "/bin", "HOSTNAME": "x", "NCCL_DEBUG": "INFO"})
    mpi = Mpi(MpiFamily.UNKNOWN, "", "/usr/bin/mpirun", "mpirun 1.0 by someone")
    made = planned("mpirun --hosts /etc/mpi/hostfile -n 4 ./train", replace(seen, mpi=mpi))
    assert made.argv == ("mpirun", "--hosts", "/etc/mpi/hostfile", "-n", "4", "./train")
    assert made.environment(seen.environ) == seen.environ
    assert (made.daemons, made.left_to_mpirun, made.per_host) == ((), (), {})
    (message,) = warned(made)
    assert message.startswith("/usr/bin/mpirun says 'mpirun 1.0 by someone': mpiboot does not know")
    assert "Left out are" in message
