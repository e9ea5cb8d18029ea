"""PyTorch, torchrun, JAX, DeepSpeed and Horovod of PyPI, on CPUs: real programs in pods."""

from __future__ import annotations

import re

import pytest

from tests.manifests import examples
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.indexed import play_indexed_job
from tests.pods.jobs import PATIENCE, ranks, spans
from tests.pods.operator import mpijob
from tests.pods.recipes import FOLDER, built, online
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
    text = (FOLDER / "horovod.Containerfile").read_text()
    programs = {"/train.py": "horovod_benchmark.py", "/elastic.py": "horovod_elastic.py"}
    image = built(text, online(name), **mpi)
    return image.with_files({path: source(file) for path, file in programs.items()})


def one_model(output: str) -> None:
    """Four ranks ended with the same weights."""
    found = re.findall(r"^model (.*)$", output, re.MULTILINE)
    assert len(found) == 4
    assert len(set(found)) == 1


@pytest.mark.parametrize("asked", ["setting", "line"])
def test_ddp_under_mpirun_ends_with_one_model(
    cluster: Cluster, frameworks: Image, asked: str
) -> None:
    program = ["python3", "train.py"]
    job = mpijob(
        cluster,
        frameworks,
        workers=2,
        slots=2,
        data_link="net1",
        launcher_args=["mpirun", *(() if asked == "setting" else ("mpiboot", "rank")), *program],
        launcher={"env": {"MPIBOOT_RANK_ENV": "on"} if asked == "setting" else {}},
    ).start()
    assert job.wait(LOADING) == 0, job.launcher.stderr()
    spans(job, slots=2)
    one_model(job.launcher.stdout())


@pytest.mark.parametrize("env", [{}, {"MPIBOOT_RANK_ENV": "on"}], ids=["mpi4py", "variables"])
def test_processes_of_jax_find_each_other(
    cluster: Cluster, frameworks: Image, env: dict[str, str]
) -> None:
    program = ["mpirun", "python3", "jax_sum.py"]
    job = mpijob(
        cluster,
        frameworks,
        workers=2,
        slots=2,
        launcher_args=program,
        launcher={"env": env},
    ).start()
    assert job.wait(LOADING) == 0, job.launcher.stderr()
    spans(job, slots=2)
    assert re.findall(r"^sum (.*)$", job.launcher.stdout(), re.MULTILINE) == ["10"] * 4


def test_torchrun_whose_pod_0_has_its_name_late(cluster: Cluster, frameworks: Image) -> None:
    manifests = examples.read("jobs/torchrun.yaml")
    first, second = play_indexed_job(cluster, frameworks, manifests, {})
    second.start()
    until(lambda: "waiting for DNS for train-0.train (NXDOMAIN)" in second.stderr())
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
    job = mpijob(
        cluster,
        frameworks.with_packages(*ITS_NEEDS)
        .with_packages(DEEPSPEED, needs=False)
        .with_files({"/zero.py": source("zero.py")})
        .with_files({"/usr/local/bin/deepspeed": RUNNER}, 0o755),
        workers=2,
        slots=2,
        launcher_args=program,
        env={"DS_ACCELERATOR": "cpu", **env},
    ).start()
    assert job.wait(LOADING) == 0, job.launcher.stderr()
    spans(job, slots=2)
    one_model(job.launcher.stdout())


def test_a_host_joins_the_ranks_of_horovodrun(cluster: Cluster, rig: None) -> None:
    """Its driver on the launcher logs in to each host by itself, and starts the rank there."""
    image = horovod().with_files({"/discover": DISCOVER}, 0o755)
    job = mpijob(cluster, image, workers=2, launcher_args=ELASTIC).start()

    def alone() -> bool:
        assert job.launcher.running, job.launcher.stderr()[-3000:]
        return "1 of 2 ranks are here" in job.launcher.stdout()

    until(alone, LOADING)
    job.launcher.shell("touch /tmp/joins")
    assert job.wait(LOADING) == 0, job.launcher.stderr()
    sums = re.findall(r"sum (\S+) on (\S+)$", job.launcher.stdout(), re.MULTILINE)
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
    cluster: Cluster, rig: None, built_for: dict[str, str], run: tuple[str, ...]
) -> None:
    words = [*run, "python3", "/train.py", "--batch_size=8"]
    job = mpijob(cluster, horovod(**built_for), workers=2, slots=2, launcher_args=words).start()
    if built_for:  # Debian's 4.0 may hang in MPI_Finalize
        until(lambda: job.launcher.stdout().count("images/sec") == 4, LOADING)
    else:
        assert job.wait(LOADING) == 0, job.launcher.stderr()
    # horovodrun has mpirun tag each piece of a line.
    output = re.sub(r"\[1,\d+\]<\w+>: ?", "", job.launcher.stdout())
    hosts = [worker.hostname for worker in job.workers for _ in range(2)]
    assert [host for _, _, host in ranks(output)] == hosts
    one_model(output)
    assert re.findall(r"^sum (.*)$", output, re.MULTILINE) == ["10"] * 4
