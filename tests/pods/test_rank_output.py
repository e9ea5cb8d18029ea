"""What is each MPI's own: options by which lines name their rank, and that of a hostfile."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.pods import images
from tests.pods.jobs import PATIENCE, RING, ended, hosts
from tests.pods.operator import mpijob

if TYPE_CHECKING:
    from tests.pods.cluster import Cluster

# One piece to mpirun: 4.1 cuts off what labels make longer than two pieces; of many pieces plain
# 5.0.7 loses a few bytes now and then.
FEW = 100
NUMBER = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
# Each rank writes its number in lines.
WRITES = f'yes "rank {NUMBER}" | head -n {FEW}; sleep 0.3'
LABELS = {
    "openmpi-4.1": "[1,{}]<stdout>:",
    "openmpi-5.0": "[1,{}]<stdout>: ",
    **dict.fromkeys(("mpich-4.0", "mpich-5.0", "intel-mpi"), "[{}] "),
}
MPI = {"mpich-4.0": "MPICH", "mpich-5.0": "MPICH", "intel-mpi": "Intel"}


def one_quick(quick: str) -> pytest.MarkDecorator:
    names = [pytest.param(x, marks=() if x == quick else pytest.mark.full) for x in LABELS]
    return pytest.mark.parametrize("name", names)


@one_quick("openmpi-5.0")
def test_each_line_names_its_rank(cluster: Cluster, rig: None, name: str) -> None:
    """Where much comes at once, MPIs have it within lines too, or not at the beginning of some."""
    job = mpijob(
        cluster,
        images.image(name),
        mpi=MPI.get(name, "OpenMPI"),
        workers=2,
        slots=2,
        launcher_args=("mpirun", "sh", "-c", WRITES),
        launcher={"env": {"MPIBOOT_TAG_OUTPUT": "on"}},
    ).start()
    assert job.wait(PATIENCE) == 0
    text = job.launcher.stdout()
    for rank in range(4):
        label = LABELS[name].format(rank)
        assert f"\n{label}rank {rank}\n" in text
        text = text.replace(label, "")
    assert Counter(text) == Counter("".join(f"rank {rank}\n" for rank in range(4)) * FEW)


@one_quick("openmpi-4.1")
def test_a_hostfile_that_is_a_pipe_is_read_as_a_file_is(
    cluster: Cluster, rig: None, name: str
) -> None:
    """By a plain mpirun too; each of these pipes can be read once, by one process."""
    flag, start = "--hostfile" if "openmpi" in name else "-f", "mpiboot mpirun -n 2"
    # 4.0.2 may never end.
    rank = "sh -c 'echo rank $PMI_RANK of 2 on $(hostname)'" if name == "mpich-4.0" else RING
    script = (
        f"set -e; h=/etc/mpi/hostfile; {start} {flag} <(grep -v bad $h) {rank}; "
        f"grep . $h | {start} {flag} /dev/stdin {rank}; "
        f"{start} {flag} /dev/fd/3 {rank} 3< <(cat $h); "
        f"env MPIBOOT_HOSTFILE=<(cat $h) {start} {rank}"
    )
    env = {"env": {"MPIBOOT_WORKER_EXIT": "never"}}
    job = ended(
        cluster,
        images.image(name),
        mpi=MPI.get(name, "OpenMPI"),
        launcher_command=("bash", "-c", script),
        launcher=env,
        worker=env,
    )
    assert hosts(job) == ["pi-worker-0"] * 4 + ["pi-worker-1"] * 4
