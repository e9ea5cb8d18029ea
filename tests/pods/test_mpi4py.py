"""mpi4py over two pods: its own tests, and an exception in one of the ranks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, alive
from tests.pods.operator import Job, mpijob
from tests.pods.volumes import HostPath
from tests.waiting import until

pytestmark = [pytest.mark.full, pytest.mark.timeout(1200)]

VERSION = "mpi4py==4.1.2"
# Seconds for two thousand tests; ranks poll, maybe on fewer cores.
WHOLE = 1000
# Debian's MPICH 4.0 hangs in MPI_Finalize now and then.
EACH = pytest.mark.parametrize("name", [name for name in images.ALL if name != "mpich-4.0"])
# Beside tests that start or meet processes, what fails by plain mpirun, too.
NO_FORTRAN = ("-x", "testGetFortranInfo")
LEFT_OUT = {
    # It lacks windows over TCP with threads: MPI_ERR_WIN.
    "openmpi-4.1": ("-e", "rma", "-e", "sync", "-e", "win"),
    "openmpi-5.0": (),
    # MPI_Dist_graph_create never returns between hosts.
    "mpich-5.0": (*NO_FORTRAN, "-x", "testDistgraphcomm"),
    "intel-mpi": NO_FORTRAN,
}
# Rank 0 waits in MPI for one that ends, whose interpreter then waits in MPI_Finalize.
RAISES = """import sys
from mpi4py import MPI
world = MPI.COMM_WORLD
print(f"rank {world.rank} is here", flush=True)
world.barrier()
if world.rank == 1:
    raise ValueError("rank 1's own")
world.recv(source=1)
"""


def with_mpi4py(name: str) -> Image:
    """It takes the MPI that it finds."""
    python = "3.13" if name == "openmpi-5.0" else "3.11"
    path = {"/usr/lib/python3/dist-packages/mpi4py.pth": "/opt/packages\n", "/raises.py": RAISES}
    return images.image(name).with_packages(VERSION, python=python).with_files(path)


def started(cluster: Cluster, image: Image, *words: str, **worker: Any) -> Job:
    """A job of one rank on each of two workers."""
    line = ["mpirun", "python3", *words]
    return mpijob(cluster, image, launcher_args=line, worker=worker).start()


@pytest.mark.parametrize("name", LEFT_OUT)
def test_mpi4pys_own_tests(cluster: Cluster, rig: None, tmp_path: Path, name: str) -> None:
    """Ranks open files together, in a folder that the pods share."""
    words = ("-e", "spawn", "-e", "dynproc", *LEFT_OUT[name])
    volumes = [HostPath("/shared", tmp_path, writable=True)]
    image = with_mpi4py(name).with_source(VERSION)
    main = "/usr/src/mpi4py-4.1.2/test/main.py"
    shared = {"volumes": volumes, "env": {"TMPDIR": "/shared"}}
    job = started(cluster, image, main, "--no-builddir", *words, **shared)
    assert job.wait(WHOLE) == 0, job.launcher.stderr()[-3000:]
    assert len(re.findall(r"Ran \d{4} tests in", job.launcher.stderr())) == 2


@EACH
def test_an_exception_ends_all_ranks_where_mpi4py_runs_the_program(
    cluster: Cluster, rig: None, name: str
) -> None:
    job = started(cluster, with_mpi4py(name), "-m", "mpi4py", "/raises.py")
    assert job.wait(PATIENCE) == 1, job.launcher.stderr()[-3000:]
    assert "ValueError: rank 1's own" in job.launcher.stderr()


@EACH
def test_after_an_exception_alone_a_rank_waits_for_the_others(
    cluster: Cluster, rig: None, name: str
) -> None:
    """No MPI ends it, nor does mpiboot: docs/how-to/frameworks.md says what to write."""
    job = started(cluster, with_mpi4py(name), "/raises.py")
    until(lambda: "ValueError: rank 1's own" in job.launcher.stderr(), PATIENCE)
    job.launcher.exec("sleep", "10")
    assert job.launcher.running
    assert all(alive(worker, "python3") for worker in job.workers)
