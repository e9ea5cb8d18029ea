"""mpi4py over two pods: an exception in one of the ranks."""

from __future__ import annotations

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import ended

pytestmark = [pytest.mark.full, pytest.mark.timeout(1200)]

VERSION = "mpi4py==4.1.2"
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


@pytest.mark.parametrize("name", ["openmpi-4.1", "openmpi-5.0", "mpich-5.0"])
def test_an_exception_under_mpi4py_ends_all_ranks(cluster: Cluster, rig: None, name: str) -> None:
    words = ("mpirun", "python3", "-m", "mpi4py", "/raises.py")
    job = ended(cluster, with_mpi4py(name), *words, code=1)
    assert "ValueError: rank 1's own" in job.launcher.stderr()
