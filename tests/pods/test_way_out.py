"""Without mpiboot: the image's own mpirun in the launcher, its own sshd in a worker.

Beside that one a worker of mpiboot's, which a manifest may keep.
"""

from __future__ import annotations

from itertools import product

import pytest

from tests.pages import named
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.jobs import PATIENCE, RING, spans
from tests.pods.operator import mpijob
from tests.pods.recipes import built
from tests.waiting import until

# Where each MPI's mpirun is, and its words: 5.0 doesn't read the operator's name of the hostfile.
OPENMPI = ("--allow-run-as-root", "--hostfile", "/etc/mpi/hostfile", RING)
LINES = {
    "openmpi-4.1": ("/usr/bin", OPENMPI),
    "openmpi-5.0": ("/usr/bin", OPENMPI),
    # Debian's MPICH 4.0 hangs in MPI_Finalize now and then, with nothing but sshd in the workers.
    "mpich-4.0": ("/usr/bin", ("sh", "-c", "echo rank $PMI_RANK of 2 on $(hostname)")),
    "mpich-5.0": ("/opt/mpi/bin", (RING,)),
    "intel-mpi": ("/opt/mpi/bin", ("-n", "2", RING)),
}

FILES = (
    *("/etc/ssh/ssh_config.d/mpi.conf", "/etc/ssh/sshd_config.d/mpi.conf"),
    "/home/mpiuser/.sshd_config",
)
QUICK = ("openmpi-5.0", 1000)


def test_the_lines_of_the_page_are_those_of_the_images(rig: None) -> None:
    whole = images.image("openmpi-5.0", programs=False)
    stock = whole.without(*FILES[:2], "/run/sshd").after("userdel", "--remove", "mpiuser")
    made = built(named("way-out"), stock)
    assert [made.read_text(path) for path in FILES] == [whole.read_text(path) for path in FILES]


@pytest.mark.parametrize(
    ("name", "user"),
    [
        pytest.param(*row, marks=[] if row == QUICK else pytest.mark.full)
        for row in product(LINES, (0, 1000))
    ],
)
def test_mpirun_and_sshd_without_mpiboot(cluster: Cluster, rig: None, name: str, user: int) -> None:
    """User 1000's image has shims as well, so that the manifest names the real one's path."""
    folder, words = LINES[name]
    image = images.image(name)
    line = ("mpirun", *words)
    if user:
        image, line = image.after("mpiboot", "shims", "install"), (f"{folder}/mpirun", *words)
    job = mpijob(
        cluster,
        image,
        launcher_command=line,
        each_worker={1: {"command": ["/usr/sbin/sshd", "-De"], "args": ()}},
        user=user,
    )
    for worker in job.workers:
        worker.start().publish()
    until(lambda: "listens" in job.workers[0].stderr())
    until(lambda: "Server listening" in job.workers[1].stderr())
    job.launcher.publish()
    job.launcher.start()
    assert job.wait(PATIENCE) == 0
    assert "mpiboot" not in job.launcher.stderr()
    spans(job)
