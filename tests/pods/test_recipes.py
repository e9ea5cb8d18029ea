"""The Containerfiles of examples/images, with stand-ins for the images that they begin with.

NVIDIA's, Intel's and the MPI Operator's can't be had here; what their stand-ins have of them is in
`chained`, and here. Horovod's begins with Debian, and is built in `test_frameworks`.
"""

from __future__ import annotations

import pytest

from tests.pods import images
from tests.pods.chained import NVIDIA, ONEAPI, PROGRAM, Chained
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import ended, spans
from tests.pods.recipes import FOLDER, MPIBOOT, built
from tests.pods.test_chaining import shows
from tests.pods.test_manifests import base
from tests.pods.test_validate import PERF, STAND_IN

# No Python is in the operator's images.
PYTHONS = tuple(f"/usr/bin/{name}" for name in ("python3", "python3.11", "python3.13"))


def recipe(name: str, stands_for: Image, *passed_over: str) -> Image:
    text = (FOLDER / f"{name}.Containerfile").read_text()
    return built(text, stands_for.without(*MPIBOOT), *passed_over)


@pytest.mark.full
@pytest.mark.parametrize(("name", "kind"), [("ngc", NVIDIA), ("oneapi", ONEAPI)])
def test_behind_the_images_own_script(
    cluster: Cluster, rig: None, name: str, kind: Chained
) -> None:
    image = recipe(name, kind.image(), "apt-get")
    old = {1: {"env": {"NODE_DRIVER": "old"}}}
    job = ended(cluster, image, "mpirun", PROGRAM, each_worker=old)
    shows(kind, job)


@pytest.mark.full
@pytest.mark.parametrize("user", [0, 1000])
@pytest.mark.parametrize("name", ["openmpi-5.0", "mpich-5.0"])
def test_the_mpi_operators_own_image(cluster: Cluster, rig: None, name: str, user: int) -> None:
    image = recipe("mpi-operator", base(name).without(*PYTHONS))
    words = ("mpirun", "/home/mpiuser/pi")
    job = ended(cluster, image, *words, user=user)
    spans(job)
    assert f":{2222 if user else 22} as" in job.workers[0].stderr()


@pytest.mark.full
def test_nccl_tests(cluster: Cluster, rig: None) -> None:
    """It is built with CUDA, which is not there: a script prints what it prints."""
    program = images.image("openmpi-4.1").with_files({PERF: STAND_IN}, 0o755)
    image = recipe("nccl-tests", program, "apt-get", "git", "make")
    words = ("validate", "job", "--tool", "nccl-tests")  # there is no GPU
    job = ended(cluster, image, *words, data_link="net1")
    assert "\nall_reduce_perf on 2 hosts, 2 ranks\n" in job.launcher.stdout()
