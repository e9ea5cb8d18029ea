"""The plans of each MPI on each platform, and of each case, are those that were reviewed."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot.core.model import Level
from tests.fakes import plan_rows, platform_plans
from tests.fakes.plans import planned
from tests.fakes.platform_plans import HYDRA, KNOWN, SAMPLES, seen

FOLDER = Path(__file__).parents[1] / "data" / "plans"
MADE = {**platform_plans.files(), **plan_rows.files()}


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
        copy = "/run/mpiboot/launcher/launch/hostfile"
        assert {"/opt/agent", copy} <= {*plan.set_env.values()}
        assert len(plan.hostfile.splitlines()) == len(plan.remote_hosts) + bool(sample.own)
        # What says who this pod is must not reach ranks on others.
        own = {"HOSTNAME", "HOME", "K_MPI_JOB_ROLE", "JOB_COMPLETION_INDEX"}
        assert mpi not in HYDRA or not own & {*plan.environment(seen(platform, mpi).environ)}
