"""The MPI Operator's own examples, command lines unchanged, on an image that has shims."""

from __future__ import annotations

import pytest

from tests.pages import named
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import RING, spanned
from tests.pods.recipes import instructions

OLD, NEW = (pytest.param(name, marks=pytest.mark.full) for name in images.NAMES)
# What an image's Containerfile RUNs.
ON_PATH = ("mpiboot", "shims", "install")
# The real ones move, and links take their place.
IN_PLACE = ("sh", "-ec", dict(instructions(named("shims-in-place")))["RUN"])
# mpioperator/base: its port, and the mounted key as host key.
SSHD_CONFIG = (
    "PidFile /home/mpiuser/sshd.pid\nHostKey /home/mpiuser/.ssh/id_rsa\nStrictModes no\nPort 2222\n"
)
SSHD = ["/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config"]


# Of the example tensorflow-benchmarks: `test_docs` plays it.
BENCHMARK = "scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py"
TENSORFLOW = (
    *("mpirun", "--allow-run-as-root", "-np", "2", "-bind-to", "none", "-map-by", "slot"),
    *("-x", "NCCL_DEBUG=INFO", "-x", "LD_LIBRARY_PATH", "-x", "PATH"),
    *("-mca", "pml", "ob1", "-mca", "btl", "^openib"),
    *("python", BENCHMARK, "--model=resnet101", "--batch_size=64", "--variable_update=horovod"),
)


def base(name: str) -> Image:
    """mpioperator/mpi-pi: a configuration of sshd and the program in the home of user 1000."""
    plain = images.image(name)
    assert plain.programs is not None
    program = (plain.programs / "ring").read_bytes()
    return plain.with_files({"/home/mpiuser/.sshd_config": SSHD_CONFIG}).with_program(
        "/home/mpiuser/pi", program
    )


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(ON_PATH, id="on PATH", marks=pytest.mark.full),
        pytest.param(IN_PLACE, id="in place"),
    ],
)
@pytest.mark.parametrize("name", [OLD, images.NAMES[1]])
def test_the_example_pi(cluster: Cluster, rig: None, name: str, run: tuple[str, ...]) -> None:
    job = spanned(
        cluster,
        base(name).after(*run),
        "-n",
        "2",
        "/home/mpiuser/pi",
        launcher_command=["/usr/bin/mpirun" if run == IN_PLACE else "mpirun"],
        worker_command=SSHD[:1],
        worker_args=SSHD[1:],
        user=1000,
    )
    assert "job ended" in job.launcher.stderr()
    # sshd by absolute path is the image's own, unless its place was taken.
    assert ("mpiboot: sshd (openssh)" in job.workers[0].stderr()) == (run == IN_PLACE)


def test_what_stands_beside_the_shims_is_still_found(cluster: Cluster, rig: None) -> None:
    """In /usr/local/bin an image may have its python."""
    own = {"/usr/local/bin/train": f"#!/bin/sh\nexec {RING}\n"}
    image = images.image("openmpi-5.0").with_files(own, 0o755).after(*ON_PATH)
    spanned(cluster, image, launcher_command=["mpirun", "train"])


# MPICH's mpirun calls its proxies in the folder that it was found in itself.
@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("mpich-4.0", ON_PATH),
        pytest.param("mpich-4.0", IN_PLACE, marks=pytest.mark.full),
        pytest.param(images.NAMES[0], ON_PATH, marks=pytest.mark.full),
        pytest.param(images.NAMES[1], IN_PLACE, marks=pytest.mark.full),
    ],
)
def test_args_behind_the_entrypoint_of_an_image_with_shims(
    cluster: Cluster, rig: None, name: str, run: tuple[str, ...]
) -> None:
    image = images.image(name).after(*run)
    line = ["mpirun", "-n", "2", RING]
    job = spanned(cluster, image, *line)
    # Once: mpirun is the real one, and no shim on the way to it.
    assert job.launcher.stderr().count("role launcher") == 1
    assert "sshd (openssh) listens" in job.workers[0].stderr()
