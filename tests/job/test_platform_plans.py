"""The plan of each MPI on each platform is the one that was reviewed."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot.core.model import Level
from tests.fakes.plans import planned
from tests.fakes.platform_plans import KNOWN, SAMPLES, files, seen

FOLDER = Path(__file__).parents[1] / "data" / "plans"
MADE = files()


@pytest.mark.parametrize("name", MADE)
def test_the_plan_is_the_one_that_was_reviewed(name: str) -> None:
    """``python -m tests.data.build_plans`` writes the files anew."""
    assert MADE[name] == (FOLDER / name).read_text()


def test_no_plan_is_left_of_what_is_gone() -> None:
    assert {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.txt")} == MADE.keys()


@pytest.mark.parametrize("mpi", KNOWN)
@pytest.mark.parametrize("platform", SAMPLES)
def test_what_holds_for_every_plan(platform: str, mpi: str) -> None:
    sample = SAMPLES[platform]
    for line in sample.lines(mpi):
        plan = planned(line, seen(platform, mpi), sample.flags)
        assert not [item for item in plan.findings if item.level is Level.FAIL]
        assert all(item.reason and item.source for item in plan.decisions)
        # Ranks go to other hosts by launch agents alone, which mpirun finds by its own names.
        assert "/opt/agent" in plan.set_env.values()
        copy = "/run/mpiboot/launcher/launch/hostfile"
        assert copy in plan.set_env.values()
        assert len(plan.hostfile.splitlines()) == len(plan.remote_hosts) + bool(sample.own)
        # What says who this pod is must not reach ranks on others.
        environment = plan.environment(seen(platform, mpi).environ)
        if mpi in ("mpich-4.0", "mpich-5.0", "intel"):
            assert not {"HOSTNAME", "HOME", "K_MPI_JOB_ROLE", "JOB_COMPLETION_INDEX"} & {
                *environment
            }
