"""Frameworks of PyPI (PyTorch, DeepSpeed, Horovod, JAX), and ranks that end at odd times."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, RING, held, kill, let_go, ranks, slow_to_launch
from tests.pods.operator import Job, mpijob
from tests.pods.recipes import RECIPES, built, online
from tests.pods.test_hydra import INTEL, MPICH4, started

# Horovod is compiled on first use.
pytestmark = [pytest.mark.full, pytest.mark.timeout(2400)]

# PyTorch loads 4 GB of CUDA's libraries, on CPUs too, and reads them from the disk the first time.
LOADING = 5 * PATIENCE
# The newest for the Python of this image's Debian; mpi4py takes the MPI that it finds.
PACKAGES = ("torch==2.15.0", "jax==0.10.2", "mpi4py==4.1.2")
# What DeepSpeed needs beside PyTorch; it is in source alone, without anything to compile.
DEEPSPEED = "deepspeed==0.19.8"
ITS_NEEDS = (
    *("einops==0.8.2", "hjson==3.1.0", "msgpack==1.2.4", "ninja==1.13.2", "packaging==26.3"),
    *("psutil==7.2.2", "py-cpuinfo==9.0.0", "pydantic==2.14.3", "tqdm==4.70.1"),
)
RUNNER = "#!/usr/bin/python3\nfrom deepspeed.launcher.runner import main\nmain()\n"
RANK_ENV = {"MPIBOOT_RANK_ENV": "on"}


def source(name: str) -> str:
    return (images.PROGRAMS / name).read_text()


@pytest.fixture(scope="module")
def frameworks(rig: None) -> Image:
    """Open MPI 4.1 with the packages for its own Python, 6 GB in one layer, and the programs."""
    path = {"/usr/lib/python3/dist-packages/frameworks.pth": "/opt/packages\n"}
    files = {"/train.py": source("ddp.py"), "/jax_sum.py": source("jax_sum.py")}
    return images.image("openmpi-4.1").with_packages(*PACKAGES).with_files({**path, **files})


def one_model(cluster: Cluster, image: Image, *line: str, **details: Any) -> str:
    """What four ranks wrote that took their time to load, and ended with the same weights."""
    job = mpijob(cluster, image, slots=2, launcher_args=line, **details).start()
    assert job.wait(LOADING) == 0, job.log
    # horovodrun has mpirun tag each piece of a line.
    output = re.sub(r"\[1,\d+\]<\w+>: ?", "", job.output)
    hosts = [worker.hostname for worker in job.workers for _ in range(2)]
    assert [host for _, _, host in ranks(output)] == hosts
    found = re.findall(r"^(?:model|sum) (.*)$", output, re.MULTILINE)
    assert len(found) >= 4
    assert {found.count(item) for item in found} == {4}
    return output


@pytest.mark.parametrize(("env", "words"), [(RANK_ENV, ()), ({}, ("mpiboot", "rank"))])
def test_ddp_under_mpirun_ends_with_one_model(
    cluster: Cluster, frameworks: Image, env: dict[str, str], words: tuple[str, ...]
) -> None:
    line = ("mpirun", *words, "python3", "train.py")
    one_model(cluster, frameworks, *line, data_link="net1", launcher={"env": env})


@pytest.mark.parametrize("env", [{}, RANK_ENV], ids=["mpi4py", "variables"])
def test_processes_of_jax_find_each_other(
    cluster: Cluster, frameworks: Image, env: dict[str, str]
) -> None:
    line = ("mpirun", "python3", "jax_sum.py")
    assert "sum 10\n" in one_model(cluster, frameworks, *line, launcher={"env": env})


def test_deepspeeds_own_launcher_ends_with_one_model(cluster: Cluster, frameworks: Image) -> None:
    """It logs in to the first host and runs a line of mpirun, both as they are."""
    image = frameworks.with_packages(*ITS_NEEDS).with_packages(DEEPSPEED, needs=False)
    image = image.with_files({"/zero.py": source("zero.py")})
    image = image.with_files({"/usr/local/bin/deepspeed": RUNNER}, 0o755)
    line = ("deepspeed", "--launcher", "openmpi", "--hostfile", "/etc/mpi/hostfile", "/zero.py")
    one_model(cluster, image, *line, env={"DS_ACCELERATOR": "cpu"})


BY_MPI = ("horovodrun", "--mpi", "-np", "4", "--hostfile", "/etc/mpi/hostfile")


@pytest.mark.parametrize("run", [("mpirun",), BY_MPI], ids=["mpirun", "horovodrun"])
def test_horovod_of_its_recipe_ends_with_one_model(cluster: Cluster, run: tuple[str, ...]) -> None:
    image = built((RECIPES / "horovod.Containerfile").read_text(), online("openmpi-4.1"))
    image = image.with_files({"/train.py": source("horovod_benchmark.py")})
    line = (*run, "python3", "/train.py", "--batch_size=8")
    assert "sum 10\n" in one_model(cluster, image, *line)


UNEVEN = "/opt/programs/uneven"
LONG = 600


def still_well(job: Job) -> str:
    """Wait for exit code 0; the launcher's log."""
    code, message = job.wait(LONG), job.log
    assert code == 0, message
    assert "the program succeeded" in message
    return message


@pytest.mark.parametrize("image", ["mpich-4.0.3"], indirect=True)
def test_ranks_compute_while_one_has_finalized(cluster: Cluster, image: Image) -> None:
    """MPI_Finalize waits for nobody there."""
    job = started(cluster, image, "mpirun", UNEVEN, "early", "70")
    still_well(job)
    assert job.output.count("4.0.3") == 2


@pytest.mark.parametrize("image", ["mpich-4.0.3"], indirect=True)
def test_children_end_before_their_parents(cluster: Cluster, image: Image) -> None:
    """By MPI_Comm_spawn; with one parent a host has nobody but a child."""
    job = started(cluster, image, "mpirun", "-n", "1", UNEVEN, "spawn", "70")
    still_well(job)
    children = [line for line in job.output.splitlines() if line.startswith("child ")]
    assert len(children) == 2
    assert {line.split()[-1] for line in children} == {"pi-worker-0", "pi-worker-1"}


@pytest.mark.parametrize("image", [MPICH4, INTEL], indirect=True)
def test_a_rank_writes_results_after_mpi_finalize(cluster: Cluster, image: Image) -> None:
    job = started(
        cluster, image, "mpirun", RING, "--rank", "0", "--after", "90", workers=1, as_worker=True
    )
    still_well(job)


@pytest.mark.parametrize("image", images.NAMES, indirect=True)
def test_an_ssh_session_ends_long_after_its_job(cluster: Cluster, image: Image) -> None:
    """As on a node under pressure: mpirun has reported success by then."""
    job = held(cluster, image)
    worker = job.workers[1]
    names = ("sshd: root", "sshd-session: root")
    sessions = [item for item in worker.processes() if item.args[0].startswith(names)]
    kill(sessions, signal.SIGSTOP)
    let_go(job)
    assert "its session was still open 5 s after mpirun ended" in still_well(job)
    kill(sessions, signal.SIGCONT)


@pytest.mark.parametrize("image", images.NAMES, indirect=True)
def test_daemons_join_one_long_after_the_other(cluster: Cluster, image: Image) -> None:
    """As where images are loaded lazily: nobody but the user knows how long is too long."""
    late = 'case "$*" in *worker-0*) sleep 40 ;; *) sleep 130 ;; esac'
    job = slow_to_launch(cluster, image, late, "mpirun", RING)
    assert "the job goes on" in still_well(job)
