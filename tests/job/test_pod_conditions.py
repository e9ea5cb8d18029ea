"""On what terms pods run: a line of the plan each, and none where all is as usual."""

from __future__ import annotations

import pytest

from mpiboot.core.model import Level
from mpiboot.core.settings import resolve
from mpiboot.job.plan import make
from mpiboot.job.plan_input import LaunchPaths
from tests.fakes.plans import POD, observed, planned


@pytest.mark.parametrize(
    ("folder", "environ", "rows"),
    [
        ("/run/mpiboot/launcher", {}, []),
        ("/run/mpiboot/launcher", {"HOME": "/run/mpiboot/launcher"}, ["home detected"]),
        ("/x", {"TMPDIR": "/x/tmp"}, ["tmpdir detected"]),
    ],
)
def test_folders_of_the_launcher_that_are_not_the_usual_ones_are_shown(
    folder: str, environ: dict[str, str], rows: list[str]
) -> None:
    seen = observed(environ={**POD, **environ})
    plan = make(seen, resolve({}, seen.environ), LaunchPaths(f"{folder}/launch-17", "/opt/agent"))
    names = ("home", "tmpdir")
    found = [f"{item.name} {item.source.value}" for item in plan.decisions if item.name in names]
    assert found == rows


@pytest.mark.parametrize(
    ("family", "name", "level"),
    [
        ("openmpi4", "OMPI_UNIVERSE_SIZE", Level.FAIL),
        ("openmpi4", "OMPI_COMM_WORLD_LOCAL_RANK", Level.WARN),
        ("openmpi4", "PMIX_RANK", Level.WARN),
        ("openmpi5", "OMPI_UNIVERSE_SIZE", Level.WARN),
        ("mpich", "OMPI_UNIVERSE_SIZE", Level.WARN),
    ],
)
def test_a_ranks_variables_in_the_pod_are_told(family: str, name: str, level: Level) -> None:
    """Of each that was tried mpirun 4.1 alone refuses, and over one of them."""
    plan = planned("mpirun -n 2 ./a", observed(family, environ={**POD, name: "1"}))
    (only,) = [item for item in plan.findings if item.message.startswith(f"{name} in this pod's")]
    assert (only.check, only.level) == ("usage", level)
