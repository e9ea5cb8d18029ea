"""MPIBOOT_TAG_OUTPUT: by each MPI's own option, or rank 0's output alone; no byte is lost."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.pods import images
from tests.pods.jobs import PATIENCE
from tests.pods.operator import mpijob

if TYPE_CHECKING:
    from tests.pods.cluster import Cluster
    from tests.pods.operator import Job

# Workers stay to be looked into.
ENV = {"MPIBOOT_OUTPUT_DIR": "/tmp/my out", "MPIBOOT_WORKER_EXIT": "never"}
LINES = 4000
# One piece to mpirun: 4.1 cuts off what labels make longer than two pieces; of many pieces plain
# 5.0.7 loses a few bytes now and then.
FEW = 100
NUMBER = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
# Each rank writes its number in lines, with an argument all but rank 0 more than a pipe holds, and
# one line to stderr.
WRITES = (
    f'r={NUMBER}; n={LINES}; [ $r != 0 ] && [ "$1" ] || n={FEW}; yes "rank $r" | head -n $n; '
    'echo "wrong $r" >&2; sleep 0.3'
)
LABELS = {
    "openmpi-4.1": "[1,{}]<stdout>:",
    "openmpi-5.0": "[1,{}]<stdout>: ",
    **dict.fromkeys(("mpich-4.0", "mpich-5.0", "intel-mpi"), "[{}] "),
}
MPI = {"mpich-4.0": "MPICH", "mpich-5.0": "MPICH", "intel-mpi": "Intel"}


def one_quick(quick: str) -> pytest.MarkDecorator:
    names = [pytest.param(x, marks=() if x == quick else pytest.mark.full) for x in LABELS]
    return pytest.mark.parametrize("name", names)


def ended(cluster: Cluster, name: str, *words: str, **env: str) -> Job:
    """A job of four ranks on two workers, after its good end."""
    job = mpijob(
        cluster,
        images.image(name),
        mpi=MPI.get(name, "OpenMPI"),
        workers=2,
        slots=2,
        launcher_args=("sh", "-c", WRITES, *words),
        launcher={"env": env},
    ).start()
    assert job.wait(PATIENCE) == 0
    return job


@one_quick("openmpi-5.0")
def test_each_line_names_its_rank(cluster: Cluster, rig: None, name: str) -> None:
    """Where much comes at once, MPIs have it within lines too, or not at the beginning of some."""
    job = ended(cluster, name, MPIBOOT_TAG_OUTPUT="on")
    text = job.launcher.stdout()
    for rank in range(4):
        label = LABELS[name].format(rank)
        assert f"\n{label}rank {rank}\n" in text
        text = text.replace(label, "")
    assert Counter(text) == Counter("".join(f"rank {rank}\n" for rank in range(4)) * FEW)


@one_quick("openmpi-4.1")
def test_the_launchers_log_has_the_output_of_rank_0_alone(
    cluster: Cluster, rig: None, name: str
) -> None:
    job = ended(cluster, name, "sh", "many", **ENV, MPIBOOT_TAG_OUTPUT="rank0")
    assert job.launcher.stdout() == "rank 0\n" * FEW
    log = job.launcher.stderr()
    assert "wrong 0" in log
    assert "wrong 1" not in log
    assert "ranks' output: /tmp/my out/rank.N" in log
    for rank, worker in enumerate(job.workers[at // 2] for at in range(4)):
        if rank:
            text = worker.shell(f"cat '/tmp/my out/rank.{rank}'").strip()
            assert text == "\n".join([*[f"rank {rank}"] * LINES, f"wrong {rank}"])
