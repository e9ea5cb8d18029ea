"""mpiboot in a folder with a Python of its own, in images that have none that it could use."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.manifests import check
from tests.manifests.examples import FOLDER
from tests.pages import named
from tests.pods import images
from tests.pods.cache import CACHE, once
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, ended, ranks
from tests.pods.marks import MOMENT
from tests.pods.play import prepare
from tests.pods.recipes import built

# A Python that fails, and variables that would break any other one that hears them.
BROKEN = {
    f"/usr/bin/{name}": "#!/bin/sh\nexit 7\n" for name in ("python3", "python3.11", "python3.13")
}
FOR_ITS_PYTHON = {
    "PYTHONHOME": "/nowhere",
    "PYTHONPATH": "/opt/job/python",
    "PYTHONUNBUFFERED": "1",
    "LD_LIBRARY_PATH": "/opt/job/lib",
    # Names that a launcher's own script might use.
    "here": "the pod's",
    "root": "the pod's",
}
# Each rank says what its program is given.
TELLS = f"{MOMENT}echo host=$(hostname); env | sed 's/^/env /'"


def unchanged(name: str) -> Image:
    """An image with an MPI and OpenSSH, without mpiboot and with a Python that doesn't work."""
    plain = images.image(name).without("/opt/mpiboot", "/usr/local/bin/mpiboot")
    return plain.with_files(BROKEN, 0o755)


def with_folder(image: Image, doctor: str = "mpiboot doctor --image") -> Image:
    """An image after the page's lines; what they RUN is run, and ends with doctor."""
    lines = named("folder")
    assert " && mpiboot doctor --image\n" in lines
    return built(lines.replace("mpiboot doctor --image", doctor), image)


def without_glibc() -> Image:
    """As Alpine: musl, and BusyBox for all programs; no glibc, no Python, no MPI, no SSH."""

    def make(folder: Path) -> None:
        packages = "--include=busybox-static,musl"
        root = str(folder / "root")
        argv = ["mmdebstrap", "--quiet", "--variant=extract", packages, "bookworm", root]
        subprocess.run(argv, check=True)
        subprocess.run(["chroot", root, "/bin/busybox", "--install", "-s", "/bin"], check=True)

    layer = once(CACHE / "images" / "without-glibc-1", make) / "root"
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    base = images.Image("without-glibc", (layer,), (), {"PATH": path})
    return base.with_files(
        {"/usr/local/bin/.keep": "", "/etc/passwd": "root:x:0:0::/root:/bin/sh\n"}
    )


def old_debian() -> Image:
    """Debian 11: glibc 2.31, Python 3.9 where it is installed at all, Open MPI 4.1.0."""

    def make(folder: Path) -> None:
        packages = "--include=openmpi-bin,openssh-server"
        argv = [
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            packages,
            "bullseye",
            str(folder / "root"),
        ]
        subprocess.run(argv, check=True)

    layer = once(CACHE / "images" / "old-debian-1", make) / "root"
    return images.Image(
        "old-debian", (layer,), (), {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    )


@pytest.mark.parametrize("rank_env", [False, pytest.param(True, marks=pytest.mark.full)])
def test_the_unchanged_image_example(cluster: Cluster, rig: None, *, rank_env: bool) -> None:
    """By an init container in each pod, as user 1000 on a read-only root filesystem.

    Its ranks find mpiboot by its path, too, as PATH has none.
    """
    shown = yaml.safe_load(named("unchanged-image"))
    example = check.read(FOLDER / "mpi-operator/unchanged-image.yaml")[0]["spec"]["mpiReplicaSpecs"]
    whole = example["Worker"]["template"]["spec"]
    assert shown["initContainers"][0].items() <= whole["initContainers"][0].items()
    assert shown["containers"][0]["command"] == whole["containers"][0]["command"]
    assert shown["volumes"][0] in whole["volumes"]
    prepared = prepare(FOLDER / "mpi-operator/unchanged-image.yaml")
    assert prepared.told.keys() >= {"readiness is not probed"}
    job = prepared.played(cluster, unchanged("openmpi-4.1"))
    spec = job.launcher.spec
    job.launcher.spec = replace(spec, env={**spec.env, "MPIBOOT_RANK_ENV": str(rank_env)})
    job.start(PATIENCE)
    assert job.launcher.wait(PATIENCE) == 0, job.launcher.stderr()
    hosts = ["train-worker-0", "train-worker-1"]
    assert ranks(job.launcher.stdout()) == [(n, 4, hosts[n // 2]) for n in range(4)]
    assert "warning" not in job.launcher.stderr().lower()
    assert ("/mpiboot/bin/mpiboot rank -- ./train" in job.launcher.stderr()) == rank_env
    assert "sshd (openssh) listens on" in job.workers[0].stderr()
    for init in job.launcher.before:
        assert init.stdout() == "/mpiboot/bin/mpiboot can be started\n"


def test_the_jobs_programs_know_nothing_of_mpiboots_python(cluster: Cluster, rig: None) -> None:
    """Neither by variables that mpiboot adds, nor by those that it would not hear itself."""
    image = with_folder(unchanged("openmpi-5.0"))
    line = ["mpirun", "-n", "2", "sh", "-c", TELLS]
    job = ended(cluster, image, *line, env=FOR_ITS_PYTHON)
    message = job.launcher.stdout().splitlines()
    assert sorted(item for item in message if item.startswith("host=")) == [
        f"host={worker.hostname}" for worker in job.workers
    ]
    given = [item.removeprefix("env ") for item in message if item.startswith("env ")]
    for name, value in FOR_ITS_PYTHON.items():
        assert given.count(f"{name}={value}") == 2, name
    # Its private files and its agents have names of their own.
    leaks = [item for item in given if "/opt/mpiboot" in item and not item.startswith("MPIBOOT_")]
    assert leaks == []


@pytest.mark.full
def test_an_image_with_an_old_c_library_and_no_python(cluster: Cluster, rig: None) -> None:
    base = old_debian()
    libc = (base.layers[0] / "lib/x86_64-linux-gnu/libc.so.6").read_bytes()
    assert b"stable release version 2.31" in libc
    assert not (base.layers[0] / "usr/bin/python3").exists()
    image = with_folder(base)
    line = ["mpirun", "-n", "2", "sh", "-c", "echo rank $OMPI_COMM_WORLD_RANK of 2 on $(hostname)"]
    job = ended(cluster, image, *line)
    hosts = [worker.hostname for worker in job.workers]
    assert ranks(job.launcher.stdout()) == [(n, 2, hosts[n]) for n in range(2)]


@pytest.mark.full
def test_an_image_with_another_c_library(cluster: Cluster, rig: None) -> None:
    """There is no MPI for musl to start: workers serve, and a launcher gets their facts."""
    base = without_glibc()
    assert list((base.layers[-1] / "lib").glob("ld-musl-*"))
    assert not list(base.layers[-1].rglob("libc.so.6"))
    image = with_folder(base, doctor="mpiboot --version")
    waiting = ["mpiboot", "wait"]
    job = ended(cluster, image, launcher_command=waiting)
    assert "2 hosts ready" in job.launcher.stderr()
    assert "sshd (embedded) listens on" in job.workers[0].stderr()
    done = job.workers[0].exec("mpiboot", "doctor")
    assert "no mpirun or mpiexec" in done.stdout
