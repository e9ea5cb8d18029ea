"""The parameter names in warnings are those that the installed Open MPI lists."""

from __future__ import annotations

import re
import subprocess

import pytest

from mpiboot.job.dialects import OPENMPI5, parameter
from mpiboot.job.mpi_environment import KEPT, NEWER, OLDER
from tests.pods import images

OLD, NEW = images.NAMES


def listed(name: str, *command: str) -> set[str]:
    """The parameters that an installed program lists."""
    root = images.built(name) / "root"
    done = subprocess.run(
        ["chroot", str(root), *command], capture_output=True, text=True, check=True
    )
    found = re.findall(r":param:([a-z0-9_]+):|MCA \w+: \"([a-z0-9_]+)\"", done.stdout)
    return {first or second for first, second in found}


MPI = ["ompi_info", "--param", "all", "all", "--level", "9", "--parsable"]


def named(rows: dict[str, str]) -> set[str]:
    """The names that rows without a pattern tell to write."""
    variables = (item for item in rows.values() if item.startswith(("OMPI_MCA_", "PRTE_MCA_")))
    return {parameter(name) for name in variables if "*" not in name}


@pytest.mark.full
def test_each_name_that_is_told_is_one_of_the_version_for_which_it_is_told(rig: None) -> None:
    old, mpi, runtime = listed(OLD, *MPI), listed(NEW, *MPI), listed(NEW, "prte_info", "-a")
    # 3.0 of PRRTE lists no parameter of hwloc's; this one is in the row, by what was measured.
    runtime.add(OPENMPI5.bind_var.partition("_MCA_")[2])
    assert named(OLDER) <= runtime, named(OLDER) - runtime
    assert named(NEWER) <= old, named(NEWER) - old
    # What 5.0 is said to ignore is none of MPI's, and what was renamed none of the runtime's.
    assert not {name for name in OLDER if "*" not in name} & mpi
    assert not {name for name in mpi if name.startswith("btl_openib_")}
    assert not {name for name in mpi | runtime if name.startswith(("orte_", "plm_rsh_"))}
    assert {f"orte_{name}" for name in KEPT} <= old
