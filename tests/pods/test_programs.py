"""Frameworks of PyPI (PyTorch, Horovod, JAX, …), mpi4py, LAMMPS and HPC Challenge: in pods."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.manifests import examples
from tests.pods import images, same
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, RING, alive, held, kill, let_go, ranks, slow_to_launch, spans
from tests.pods.operator import Job, mpijob
from tests.pods.platforms import play_indexed_job
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
# The second host is found when the test says so.
DISCOVER = """#!/bin/sh
echo pi-worker-0.pi.default.svc
[ ! -e /tmp/joins ] || echo pi-worker-1.pi.default.svc
"""
# Without the link's name it waits for a second host before it starts any rank.
ELASTIC = (
    *("horovodrun", "--gloo", "--network-interfaces", "eth0", "-np", "1", "--max-np", "2"),
    *("--slots-per-host", "1", "--host-discovery-script", "/discover", "python3", "/elastic.py"),
)
RUNNER = "#!/usr/bin/python3\nfrom deepspeed.launcher.runner import main\nmain()\n"
TORCHRUN = "#!/usr/bin/python3\nfrom torch.distributed.run import main\nmain()\n"


def source(name: str) -> str:
    return (images.PROGRAMS / name).read_text()


@pytest.fixture(scope="module")
def frameworks(rig: None) -> Image:
    """Open MPI 4.1 with the packages for its own Python, 6 GB in one layer, and the programs."""
    image = images.image("openmpi-4.1").with_packages(*PACKAGES)
    path = {"/usr/lib/python3/dist-packages/frameworks.pth": "/opt/packages\n"}
    files = {**path, "/train.py": source("ddp.py"), "/jax_sum.py": source("jax_sum.py")}
    return image.with_files(files).with_files({"/usr/local/bin/torchrun": TORCHRUN}, 0o755)


def horovod(name: str = "openmpi-4.1", **mpi: str) -> Image:
    """Horovod as its recipe builds it, and the programs."""
    text = (RECIPES / "horovod.Containerfile").read_text()
    programs = {"/train.py": "horovod_benchmark.py", "/elastic.py": "horovod_elastic.py"}
    image = built(text, online(name), **mpi)
    return image.with_files({path: source(file) for path, file in programs.items()})


def one_model(output: str) -> None:
    """Four ranks ended with the same weights."""
    found = re.findall(r"^model (.*)$", output, re.MULTILINE)
    assert len(found) == 4
    assert len(set(found)) == 1


def ended_well(cluster: Cluster, image: Image, *line: str, **details: Any) -> Job:
    """A job of four ranks that takes its time to load."""
    job = mpijob(cluster, image, slots=2, launcher_args=line, **details).start()
    assert job.wait(LOADING) == 0, job.log
    spans(job, slots=2)
    return job


BY_SETTING = {"MPIBOOT_RANK_ENV": "on"}


@pytest.mark.parametrize(("env", "words"), [(BY_SETTING, ()), ({}, ("mpiboot", "rank"))])
def test_ddp_under_mpirun_ends_with_one_model(
    cluster: Cluster, frameworks: Image, env: dict[str, str], words: tuple[str, ...]
) -> None:
    line, launcher = ("mpirun", *words, "python3", "train.py"), {"env": env}
    job = ended_well(cluster, frameworks, *line, data_link="net1", launcher=launcher)
    one_model(job.output)


@pytest.mark.parametrize("env", [{}, BY_SETTING], ids=["mpi4py", "variables"])
def test_processes_of_jax_find_each_other(
    cluster: Cluster, frameworks: Image, env: dict[str, str]
) -> None:
    line = ("mpirun", "python3", "jax_sum.py")
    job = ended_well(cluster, frameworks, *line, launcher={"env": env})
    assert re.findall(r"^sum (.*)$", job.output, re.MULTILINE) == ["10"] * 4


def test_torchrun_whose_pod_0_has_its_name_late(cluster: Cluster, frameworks: Image) -> None:
    manifests = examples.read("jobs/torchrun.yaml")
    first, second = play_indexed_job(cluster, frameworks, manifests, {})
    second.start()
    second.logs("waiting for DNS for train-0.train (NXDOMAIN)")
    first.start()
    first.publish()
    assert [pod.wait(LOADING) for pod in (first, second)] == [0, 0], second.stderr()
    output = first.stdout() + second.stdout()
    assert ranks(output) == [(n, 4, f"train-{n // 2}") for n in range(4)]
    one_model(output)


@pytest.mark.parametrize(
    ("program", "env"),
    [
        (("mpirun", "python3", "zero.py"), {"MPIBOOT_RANK_ENV": "on"}),
        (("deepspeed", "--launcher", "openmpi", "--hostfile", "/etc/mpi/hostfile", "/zero.py"), {}),
    ],
    ids=["ranks", "own launcher"],
)
def test_deepspeed_ends_with_one_model(
    cluster: Cluster, frameworks: Image, program: tuple[str, ...], env: dict[str, str]
) -> None:
    """Its own launcher logs in to the first host and runs a line of mpirun, both as they are."""
    image = frameworks.with_packages(*ITS_NEEDS).with_packages(DEEPSPEED, needs=False)
    image = image.with_files({"/zero.py": source("zero.py")})
    image = image.with_files({"/usr/local/bin/deepspeed": RUNNER}, 0o755)
    job = ended_well(cluster, image, *program, env={"DS_ACCELERATOR": "cpu", **env})
    one_model(job.output)


def test_a_host_joins_the_ranks_of_horovodrun(cluster: Cluster) -> None:
    """Its driver on the launcher logs in to each host by itself, and starts the rank there."""
    image = horovod().with_files({"/discover": DISCOVER}, 0o755)
    job = mpijob(cluster, image, launcher_args=ELASTIC).start()

    def alone() -> bool:
        assert job.launcher.running, job.log[-3000:]
        return "1 of 2 ranks are here" in job.output

    until(alone, LOADING)
    job.launcher.shell("touch /tmp/joins")
    assert job.wait(LOADING) == 0, job.log
    sums = re.findall(r"sum (\S+) on (\S+)$", job.output, re.MULTILINE)
    assert sorted(sums) == [("3", worker.hostname) for worker in job.workers]


BY_MPI = ("horovodrun", "--mpi", "-np", "4", "--hostfile", "/etc/mpi/hostfile")
# Its horovodrun knows no MPICH: `mpirun --version` doesn't say that it is one.
MPICH = {"name": "mpich-4.0", "MPI": "mpich libmpich-dev"}


@pytest.mark.parametrize(
    ("built_for", "run"),
    [({}, ("mpirun",)), ({}, BY_MPI), (MPICH, ("mpirun",))],
    ids=["mpirun", "horovodrun", "mpich"],
)
def test_horovod_of_its_recipe_ends_with_one_model(
    cluster: Cluster, built_for: dict[str, str], run: tuple[str, ...]
) -> None:
    words = [*run, "python3", "/train.py", "--batch_size=8"]
    job = mpijob(cluster, horovod(**built_for), slots=2, launcher_args=words).start()
    if built_for:  # Debian's 4.0 may hang in MPI_Finalize
        until(lambda: job.output.count("images/sec") == 4, LOADING)
    else:
        assert job.wait(LOADING) == 0, job.log
    # horovodrun has mpirun tag each piece of a line.
    output = re.sub(r"\[1,\d+\]<\w+>: ?", "", job.output)
    hosts = [worker.hostname for worker in job.workers for _ in range(2)]
    assert [host for _, _, host in ranks(output)] == hosts
    one_model(output)
    assert re.findall(r"^sum (.*)$", output, re.MULTILINE) == ["10"] * 4


VERSION = "mpi4py==4.1.2"
# Debian's MPICH 4.0 hangs in MPI_Finalize now and then.
EACH = pytest.mark.parametrize("name", [name for name in images.ALL if name != "mpich-4.0"])
# Seconds for two thousand tests; ranks poll, maybe on fewer cores.
WHOLE = 1000
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


def python_job(cluster: Cluster, image: Image, *words: str, **worker: Any) -> Job:
    """A job of one rank on each of two workers."""
    line = ["mpirun", "python3", *words]
    return mpijob(cluster, image, launcher_args=line, worker=worker).start()


@pytest.mark.parametrize("name", LEFT_OUT)
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


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("image", ["mpich-4.0.3"], indirect=True)
def test_children_end_before_their_parents(cluster: Cluster, image: Image, ranks: int) -> None:
    """By MPI_Comm_spawn; with one parent a host has nobody but a child."""
    job = started(cluster, image, "mpirun", "-n", str(ranks), UNEVEN, "spawn", "70")
    still_well(job)
    children = [line for line in job.output.splitlines() if line.startswith("child ")]
    assert len(children) == ranks + 1
    assert {line.split()[-1] for line in children} == {"pi-worker-0", "pi-worker-1"}


@pytest.mark.parametrize("image", [MPICH4, "mpich-5.0", INTEL], indirect=True)
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
