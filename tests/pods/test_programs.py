"""Frameworks of PyPI, mpi4py, and ranks that end at odd times."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, RING, alive, held, kill, let_go, ranks, slow_to_launch
from tests.pods.operator import Job, mpijob
from tests.pods.recipes import RECIPES, built, online
from tests.pods.test_hydra import INTEL, MPICH4, started
from tests.pods.volumes import HostPath
from tests.waiting import until

# Horovod is compiled on first use.
pytestmark = [pytest.mark.full, pytest.mark.timeout(2400)]

# PyTorch loads 4 GB of CUDA's libraries, on CPUs too, and reads them from the disk the first time.
LOADING = 5 * PATIENCE
# The newest for the Python of this image's Debian; mpi4py takes the MPI that it finds.
PACKAGES = ("torch==2.15.0", "jax==0.10.2", "mpi4py==4.1.2")
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


DDP, JAX = ("python3", "train.py"), ("python3", "jax_sum.py")


@pytest.mark.parametrize(
    ("env", "words"), [(RANK_ENV, DDP), ({}, ("mpiboot", "rank", *DDP)), ({}, JAX), (RANK_ENV, JAX)]
)
def test_processes_of_a_framework_find_each_other(
    cluster: Cluster, frameworks: Image, env: dict[str, str], words: tuple[str, ...]
) -> None:
    more: dict[str, Any] = {"data_link": "net1", "launcher": {"env": env}}
    output = one_model(cluster, frameworks, "mpirun", *words, **more)
    assert words != JAX or "sum 10\n" in output


BY_MPI = ("horovodrun", "--mpi", "-np", "4", "--hostfile", "/etc/mpi/hostfile")


@pytest.mark.parametrize("run", [("mpirun",), BY_MPI], ids=["mpirun", "horovodrun"])
def test_horovod_of_its_recipe_ends_with_one_model(cluster: Cluster, run: tuple[str, ...]) -> None:
    image = built((RECIPES / "horovod.Containerfile").read_text(), online("openmpi-4.1"))
    image = image.with_files({"/train.py": source("horovod_benchmark.py")})
    line = (*run, "python3", "/train.py", "--batch_size=8")
    assert "sum 10\n" in one_model(cluster, image, *line)


VERSION = "mpi4py==4.1.2"
# Seconds for two thousand tests; ranks poll, maybe on fewer cores.
WHOLE = 1000
# Beside tests that start or meet processes, what fails by plain mpirun, too. Debian's MPICH 4.0
# hangs in MPI_Finalize now and then.
NO_FORTRAN = ("-x", "testGetFortranInfo")
LEFT_OUT = {
    # It lacks windows over TCP with threads: MPI_ERR_WIN.
    "openmpi-4.1": ("-e", "rma", "-e", "sync", "-e", "win"),
    "openmpi-5.0": (),
    # MPI_Dist_graph_create never returns between hosts.
    "mpich-5.0": (*NO_FORTRAN, "-x", "testDistgraphcomm"),
    # In place, its MPI_Reduce_scatter between hosts gives wrong numbers on some machines.
    "intel-mpi": (*NO_FORTRAN, "-x", "testReduceScatter", "-x", "testReduceScatterBlock"),
}
EACH = pytest.mark.parametrize("name", LEFT_OUT)
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
    python = "3.13" if name == "openmpi-5.0" else "3.11"
    path = {"/usr/lib/python3/dist-packages/mpi4py.pth": "/opt/packages\n", "/raises.py": RAISES}
    return images.image(name).with_packages(VERSION, python=python).with_files(path)


def python_job(cluster: Cluster, image: Image, *words: str, **details: Any) -> Job:
    return mpijob(cluster, image, launcher_args=["mpirun", "python3", *words], **details).start()


@EACH
def test_mpi4pys_own_tests(cluster: Cluster, tmp_path: Path, name: str) -> None:
    """Ranks open files together, in a folder that the pods share."""
    words = ("-e", "spawn", "-e", "dynproc", *LEFT_OUT[name])
    volumes = [HostPath("/shared", tmp_path, writable=True)]
    image = with_mpi4py(name).with_source(VERSION)
    main = "/usr/src/mpi4py-4.1.2/test/main.py"
    shared = {"volumes": volumes, "env": {"TMPDIR": "/shared"}}
    job = python_job(cluster, image, main, "--no-builddir", *words, worker=shared)
    assert job.wait(WHOLE) == 0, job.log[-3000:]
    assert len(re.findall(r"Ran \d{4} tests in", job.log)) == 2


@EACH
def test_an_exception_ends_all_ranks_under_mpi4py_alone(cluster: Cluster, name: str) -> None:
    """Else no MPI ends it, nor does mpiboot: docs/how-to/frameworks.md says what to write."""
    job = python_job(cluster, with_mpi4py(name), "-m", "mpi4py", "/raises.py")
    assert job.wait() == 1, job.log[-3000:]
    assert "ValueError: rank 1's own" in job.log
    waits = python_job(cluster, with_mpi4py(name), "/raises.py", name="waits")
    until(lambda: "ValueError: rank 1's own" in waits.log, PATIENCE)
    waits.launcher.exec("sleep", "10")
    assert waits.launcher.running
    assert all(alive(worker, "python3") for worker in waits.workers)


UNEVEN = "/opt/programs/uneven"
LONG = 600


def still_well(job: Job) -> str:
    code, message = job.wait(LONG), job.log
    assert code == 0, message
    assert "the program succeeded" in message
    return message


# One finalizes before the others compute (MPI_Finalize waits for nobody there), or writes results
# after it; children of MPI_Comm_spawn end before their parent, and a host has nobody but a child.
ALONE: dict[str, Any] = {"workers": 1, "as_worker": True}
ENDS: list[tuple[str, tuple[str, ...], dict[str, Any], str]] = [
    ("mpich-4.0.3", (UNEVEN, "early", "70"), {}, "4.0.3"),
    ("mpich-4.0.3", ("-n", "1", UNEVEN, "spawn", "70"), {}, "child "),
    (MPICH4, (RING, "--rank", "0", "--after", "90"), ALONE, "rank "),
    (INTEL, (RING, "--rank", "0", "--after", "90"), ALONE, "rank "),
]


@pytest.mark.parametrize(("image", "words", "details", "printed"), ENDS, indirect=["image"])
def test_ranks_that_end_at_odd_times_end_no_job(
    cluster: Cluster, image: Image, words: tuple[str, ...], details: dict[str, Any], printed: str
) -> None:
    job = started(cluster, image, "mpirun", *words, **details)
    still_well(job)
    lines = [line for line in job.output.splitlines() if printed in line]
    assert len(lines) == 2
    if printed == "child ":
        assert {line.split()[-1] for line in lines} == {"pi-worker-0", "pi-worker-1"}


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
