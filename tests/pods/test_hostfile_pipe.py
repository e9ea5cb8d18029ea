"""A hostfile that is a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.pods import images
from tests.pods.jobs import RING, ended, hosts
from tests.pods.marks import each

if TYPE_CHECKING:
    from tests.pods.cluster import Cluster


@each("openmpi-4.1", "openmpi-5.0", "mpich-4.0", "mpich-5.0", "intel-mpi")
def test_a_hostfile_may_be_a_pipe(cluster: Cluster, rig: None, name: str) -> None:
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
        launcher_command=("bash", "-c", script),
        launcher=env,
        worker=env,
    )
    assert hosts(job) == ["pi-worker-0"] * 4 + ["pi-worker-1"] * 4
