"""A link of the user's that no pod has, as a line of another cluster's names it."""

from __future__ import annotations

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, RING, ended
from tests.pods.marks import OLD_IMAGE, ONE_IMAGE
from tests.pods.operator import mpijob

OLD = images.NAMES[0]
BOTH = "pi-worker-0.pi.default.svc, pi-worker-1.pi.default.svc has no such link"


@OLD_IMAGE
def test_a_link_that_no_worker_has_is_said_before_the_start(cluster: Cluster, image: Image) -> None:
    """MPI itself ends with "unable to reach" then, far from the cause."""
    line = ["mpirun", "--mca", "btl_tcp_if_include", "ens5", RING]
    job = mpijob(cluster, image, workers=2, launcher_args=line).start()
    assert job.wait(PATIENCE) != 0
    before, starting, _ = job.launcher.stderr().partition("mpiboot: starting mpirun")
    assert starting
    message = f"--mca btl_tcp_if_include ens5: {BOTH} (there are lo, eth0)"
    assert message in before


@ONE_IMAGE
@pytest.mark.full
def test_a_link_of_the_daemons_that_the_launcher_lacks_is_refused_as_mpirun_refuses_it(
    cluster: Cluster, image: Image
) -> None:
    name = "oob_tcp_if_include" if image.name == OLD else "prte_if_include"
    prefix = "OMPI_MCA_" if image.name == OLD else "PRTE_MCA_"
    job = ended(
        cluster, image, "mpirun", RING, code=72, launcher={"env": {f"{prefix}{name}": "ens5"}}
    )
    message = f"{prefix}{name}=ens5: no such link in the launcher's pod (there are lo, eth0)"
    assert message in job.launcher.stderr()
    assert "starting mpirun" not in job.launcher.stderr()
