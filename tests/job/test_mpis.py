from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.model import Mpi, MpiFamily
from mpiboot.job import openmpi
from mpiboot.job.mpis import IMPLEMENTATIONS, implementation_of
from mpiboot.job.parameter_files import parameter
from tests.fakes.plans import failing, observed, planned, warned


def test_no_constant_holds_what_a_remote_shell_would_read() -> None:
    for mpi in IMPLEMENTATIONS.values():
        for item in (*mpi.constants, *openmpi.OpenMpi.root):
            assert not set(item.value) & set("\"'$\\`;&|<>() \n"), item


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


@pytest.mark.parametrize(
    ("version", "found"),
    [
        *((version, openmpi.NEWER) for version in ("5.1.0a1", "6.0.0", "10.0")),
        *((version, openmpi.OPENMPI5) for version in ("5.0.7", "5.0.11", "")),
    ],
)
def test_a_series_that_was_not_tried_is_known(version: str, found: openmpi.OpenMpi5) -> None:
    """What it gets is in ``tests/data/plans``."""
    assert implementation_of(Mpi(MpiFamily.OPENMPI5, version, "/usr/bin/mpirun", "")) is found


@pytest.mark.parametrize(
    ("family", "version", "option"),
    [
        *(("openmpi5", version, "--novm") for version in ("5.0.7", "6.0.0")),
        *(("openmpi4", version, "--display map") for version in ("4.1.4", "4.0.7")),
    ],
)
def test_an_option_of_another_series_is_left_to_mpirun(
    family: str, version: str, option: str
) -> None:
    seen = observed(family)
    line = f"mpirun {option} -n 4 ./train"
    plan = planned(line, replace(seen, mpi=replace(seen.mpi, version=version)))
    assert failing(plan) == []
    assert plan.argv[-len(line.split()) + 1 :] == tuple(line.split()[1:])
    assert "the rest of the line is passed on unread" in " ".join(warned(plan))


def test_an_unknown_mpi_is_started_by_the_users_own_line_and_by_nothing_else() -> None:
    seen = observed("openmpi4", {"PATH": "/bin", "HOSTNAME": "x", "NCCL_DEBUG": "INFO"})
    mpi = Mpi(MpiFamily.UNKNOWN, "", "/usr/bin/mpirun", "mpirun 1.0 by someone")
    made = planned("mpirun --hosts /etc/mpi/hostfile -n 4 ./train", replace(seen, mpi=mpi))
    assert made.argv == ("mpirun", "--hosts", "/etc/mpi/hostfile", "-n", "4", "./train")
    assert made.environment(seen.environ) == seen.environ
    assert (made.remote_hosts, made.per_host) == ((), {})
    (message,) = warned(made)
    assert message.startswith("/usr/bin/mpirun says 'mpirun 1.0 by someone': mpiboot does not know")
    assert "Left out are" in message
