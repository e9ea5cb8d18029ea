"""Frameworks of PyPI, mpi4py, LAMMPS and HPC Challenge, and ranks that end at odd times."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.pods import images, same
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
    "intel-mpi": NO_FORTRAN,
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
    """It takes the MPI that it finds."""
    python = "3.13" if name == "openmpi-5.0" else "3.11"
    path = {"/usr/lib/python3/dist-packages/mpi4py.pth": "/opt/packages\n", "/raises.py": RAISES}
    return images.image(name).with_packages(VERSION, python=python).with_files(path)


def python_job(cluster: Cluster, image: Image, *words: str, **worker: Any) -> Job:
    """A job of one rank on each of two workers."""
    line = ["mpirun", "python3", *words]
    return mpijob(cluster, image, launcher_args=line, worker=worker).start()


@EACH
def test_mpi4pys_own_tests(cluster: Cluster, tmp_path: Path, name: str) -> None:
    """Ranks open files together, in a folder that the pods share."""
    words = ("-e", "spawn", "-e", "dynproc", *LEFT_OUT[name])
    volumes = [HostPath("/shared", tmp_path, writable=True)]
    image = with_mpi4py(name).with_source(VERSION)
    main = "/usr/src/mpi4py-4.1.2/test/main.py"
    shared = {"volumes": volumes, "env": {"TMPDIR": "/shared"}}
    job = python_job(cluster, image, main, "--no-builddir", *words, **shared)
    assert job.wait(WHOLE) == 0, job.log[-3000:]
    assert len(re.findall(r"Ran \d{4} tests in", job.log)) == 2


@EACH
def test_an_exception_ends_all_ranks_where_mpi4py_runs_the_program(
    cluster: Cluster, name: str
) -> None:
    job = python_job(cluster, with_mpi4py(name), "-m", "mpi4py", "/raises.py")
    assert job.wait() == 1, job.log[-3000:]
    assert "ValueError: rank 1's own" in job.log


@EACH
def test_after_an_exception_alone_a_rank_waits_for_the_others(cluster: Cluster, name: str) -> None:
    """No MPI ends it, nor does mpiboot: docs/how-to/frameworks.md says what to write."""
    job = python_job(cluster, with_mpi4py(name), "/raises.py")
    until(lambda: "ValueError: rank 1's own" in job.log, PATIENCE)
    job.launcher.exec("sleep", "10")
    assert job.launcher.running
    assert all(alive(worker, "python3") for worker in job.workers)


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


HPCC_INPUT = "/usr/share/doc/hpcc/examples/_hpccinf.txt"
# Ranks wait for each other without pause, and four of them may share one busy core.
GUARD = 600
LAMMPS = ("mpirun", "-n", "4", "lmp", "-log", "none", "-in", "/melt.in")
HPCC = ("mpirun", "-n", "2", "--map-by", "node", "hpcc")
# Energies and pressure at each twentieth step; checks and norms, but no times and rates.
THERMO = r"^ +\d+(?: +-?[\d.]+){5} *$"
CHECKS = (
    r"^(?:Success|CommWorldProcs|HPL_N|HPL_RnormI|HPL_Xnorm1|PTRANS_residual|MPIFFT_maxErr"
    r"|MPIRandomAccess_Errors)=.*$"
)


def with_programs(name: str) -> Image:
    """An image with LAMMPS, HPC Challenge and the input of both."""
    made = images.image(name).with_debian("lammps", "hpcc")
    small = re.sub(r"^1000( +Ns)", r"200\1", made.read_text(HPCC_INPUT), flags=re.MULTILINE)
    small = re.sub(r"^2( +Ps)", r"1\1", small, flags=re.MULTILINE)  # 1 x 2 ranks
    melt = (images.PROGRAMS / "melt.in").read_text()
    return made.with_files({"/hpccinf.txt": small, "/melt.in": melt})


@pytest.mark.parametrize("name", images.NAMES)
def test_a_solver_computes_the_same(cluster: Cluster, name: str) -> None:
    job = same.pods(cluster, with_programs(name)).job
    found = []
    for front in ((), ("mpiboot",)):
        done = job.launcher.exec(*front, *LAMMPS, timeout=GUARD)
        assert done.returncode == 0, done.stderr
        thermo = re.findall(THERMO, done.stdout, re.MULTILINE)
        done = job.launcher.exec(*front, *HPCC, timeout=GUARD)
        assert done.returncode == 0, done.stderr
        # Rank 0 writes it, on the first worker, and adds to what is there.
        results = job.workers[0].shell("cat /hpccoutf.txt; rm /hpccoutf.txt")
        found.append((thermo, re.findall(CHECKS, results, re.MULTILINE)))
    plain, ours = found
    assert plain == ours
    assert len(ours[0]) == 4
    assert {"Success=1", "CommWorldProcs=2", "MPIRandomAccess_Errors=0"} <= set(ours[1])
    assert len(ours[1]) == 8
