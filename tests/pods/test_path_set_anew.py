"""Scripts that set PATH anew, as an MPI's own init file does, and call its real mpirun."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pods import images
from tests.pods.jobs import PATIENCE, RING, ended, ranks
from tests.pods.operator import mpijob
from tests.pods.test_once import BOTH, EACH_MPI
from tests.waiting import until

if TYPE_CHECKING:
    from tests.pods.cluster import Cluster
    from tests.pods.images import Image

# An HPC-X-like init file: the MPI's folder comes first. A login shell: /etc/profile sets PATH.
ANEW = "PATH=${PATH#*:}; export PATH; "
LOGIN = f"mpirun -n 2 {RING}"
# Workers can't look up the launcher's name, which Hydra's would connect to.
BY_LINK = f"mpirun -iface eth0 -n 2 {RING}"
SCRIPTS = [
    *[
        pytest.param(name, ["sh", "-c", ANEW + line], marks=pytest.mark.full)
        for name, line in zip(EACH_MPI, (LOGIN, LOGIN, BY_LINK, BY_LINK), strict=True)
    ],
    ("openmpi-4.1", ["bash", "-lc", LOGIN]),
]
# A real mpirun of Open MPI's asks for them.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
PASSED_BY = "its mpirun was not mpiboot's"


@pytest.mark.parametrize(("image", "args"), SCRIPTS, indirect=["image"])
def test_a_real_mpirun_waits_for_a_host_that_is_late(
    cluster: Cluster, image: Image, args: list[str]
) -> None:
    job = mpijob(
        cluster,
        image,
        mpi=EACH_MPI[image.name],
        workers=2,
        launcher_args=args,
        launcher={"env": AS_ROOT},
    ).start(publish=False)
    job.workers[0].publish()
    until(lambda: "DNS for pi-worker-1" in job.launcher.stderr())
    job.workers[1].publish()
    assert job.wait(PATIENCE) == 0, job.launcher.stderr()
    assert ranks(job.launcher.stdout()) == BOTH
    assert PASSED_BY in job.launcher.stderr()


@pytest.mark.parametrize("image", EACH_MPI, indirect=True)
@pytest.mark.full
def test_a_launch_of_mpiboots_has_none_of_the_commands_values(
    cluster: Cluster, image: Image
) -> None:
    """It has no agent but its own; ``docs/reference/changes.md`` has what ranks see."""
    script = f"mpirun -n 2 {RING}"
    job = ended(cluster, image, "sh", "-c", script, mpi=EACH_MPI[image.name])
    assert ranks(job.launcher.stdout()) == BOTH
    assert PASSED_BY not in job.launcher.stderr()
    assert "kept behind mpiboot's" not in job.launcher.stderr()


@pytest.mark.full
def test_what_is_beside_mpirun_is_the_mpis_own(cluster: Cluster, rig: None) -> None:
    """Scripts look for an MPI's libraries there, and hand its prefix on."""
    script = (
        "set -e; prefix=$(dirname $(which mpirun))/..; ls $prefix/lib >/dev/null; "
        f"LD_LIBRARY_PATH=$prefix/lib mpirun --prefix $prefix -n 2 {RING}"
    )
    job = ended(cluster, images.image(images.NAMES[0]), "sh", "-c", script)
    assert ranks(job.launcher.stdout()) == BOTH
