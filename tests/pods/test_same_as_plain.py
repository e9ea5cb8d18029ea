"""What runs well without mpiboot runs the same with it: each line twice in the same pods."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from itertools import chain

import pytest

from mpiboot.job import forward
from tests.fakes.plans import planned
from tests.fakes.platform_plans import KNOWN, SAMPLES, seen
from tests.pods import images, same
from tests.pods.changes import CHANGED, CHANGES
from tests.pods.cluster import Cluster
from tests.pods.same_lines import AS_WORKER, COMMANDS, LINES

ALL = [line for lines in LINES.values() for line in lines]
# All lines of an MPI run in parts that share their pods.
EACH = 20


def quick(name: str) -> list[same.Line]:
    """A spread selection; of the lines that two MPIs share, each runs every other one."""
    lines = [line for line in LINES[name] if line.quick]
    shared = [line for line in lines if ALL.count(line) > 1]
    turn = list(LINES).index(name) % 2
    return [line for line in lines if line not in shared or shared.index(line) % 2 == turn]


PARTS = [pytest.param(name, quick(name), id=f"{name}-quick") for name in LINES] + [
    pytest.param(name, lines[at : at + EACH], id=f"{name}-{at}", marks=pytest.mark.full)
    for name, lines in LINES.items()
    for at in range(0, len(lines), EACH)
]


@pytest.mark.parametrize(("name", "lines"), PARTS)
def test_a_line_runs_the_same(cluster: Cluster, name: str, lines: list[same.Line]) -> None:
    """Status, hosts, binding, folder, arguments and variables of each rank, and the output."""
    compare(same.pods(cluster, images.image(name)), lines)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        pytest.param("openmpi-5.0", [line for line in COMMANDS if line.quick], id="quick"),
        *(
            pytest.param(name, COMMANDS[at::2], id=f"{name}-{at}", marks=pytest.mark.full)
            for name in LINES
            for at in (0, 1)
        ),
    ],
)
def test_a_command_that_is_no_mpirun_is_the_same_with_mpiboot(
    cluster: Cluster, name: str, lines: list[same.Line]
) -> None:
    compare(same.pods(cluster, images.image(name)), lines)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in LINES if name != "intel-mpi"])
def test_the_same_with_ranks_in_the_launcher(cluster: Cluster, name: str) -> None:
    """Not with Intel MPI, whose mpirun logs in to its own pod, where no SSH server is."""
    stage = same.pods(cluster, images.image(name), as_worker=True)
    compare(stage, AS_WORKER)


def compare(stage: same.Stage, lines: Iterable[same.Line]) -> None:
    wrong = []
    for line in lines:
        plain, ours = same.run(stage, line), same.run(stage, line, "mpiboot")
        found = same.differences(stage, line, plain, ours)
        unmeant = {what: message for what, message in found.items() if what not in line.meant}
        if unmeant:
            differences = "\n".join(f"  {what}: {message}" for what, message in unmeant.items())
            wrong.append(
                f"{line.text} {dict(line.env)}\n{differences}\n{plain.message}\n---\n{ours.message}"
            )
    assert not wrong, "\n\n".join(wrong)


def test_what_is_meant_to_differ_is_on_the_page_and_the_page_has_nothing_else() -> None:
    meant = {(what, key) for line in (*ALL, *COMMANDS) for what, key in line.meant.items()}
    assert meant == {(what, key) for key, row in CHANGES.items() for what in row.differs}


@pytest.mark.parametrize("platform", SAMPLES)
@pytest.mark.parametrize("mpi", KNOWN)
def test_every_variable_that_a_plan_changes_is_on_the_page(platform: str, mpi: str) -> None:
    sample = SAMPLES[platform]
    for line in sample.lines(mpi):
        plan = planned(line, seen(platform, mpi), sample.flags)
        changed = {*plan.set_env, *plan.unset_env, *chain(*plan.per_host.values())}
        told = {item.name: item.value for item in plan.decisions}
        taken_out = {name for name, value in told.items() if value == "(removed)"}
        taken_out.update(told.get("kept-from-ranks", "").split())
        known = (*CHANGED, *forward.DENIED, *forward.POD_LOCAL)
        unknown = {
            name for name in changed - taken_out if not any(fnmatchcase(name, x) for x in known)
        }
        assert not unknown
