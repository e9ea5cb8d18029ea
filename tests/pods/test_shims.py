"""Manifests and scripts written for plain images: names that lead to mpiboot."""

from __future__ import annotations

import pytest

from mpiboot.system.spawn import DEFAULT_PATH
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import RING, ended, ranks, spanned
from tests.pods.marks import OLD_IMAGE, ONE_IMAGE
from tests.pods.test_foreign import plain_worker

INSTALL = "mpiboot shims install --folder /tmp/shims >&2; PATH=/tmp/shims:$PATH; "


@ONE_IMAGE
def test_a_batch_script_that_calls_mpirun_twice(cluster: Cluster, image: Image) -> None:
    script = f"set -e; {INSTALL} mpirun -n 2 {RING}; mpirun -n 1 {RING}"
    worker = ["sh", "-c", f"{INSTALL} exec sshd -De"]
    job = ended(
        cluster, image, launcher_command=["sh", "-c", script], worker_command=worker, worker_args=()
    )
    first, second = (worker.hostname for worker in job.workers)
    assert ranks(job.launcher.stdout()) == [(0, 1, first), (0, 2, first), (1, 2, second)]
    assert "sshd (openssh) listens" in job.workers[0].stderr()


# Both begin together; the second ends while the first still runs, and then the first is ended.
AT_ONCE = f"""
mpirun -n 2 {RING} --sleep 1000 > /tmp/first & first=$!
mpirun -n 2 {RING} > /tmp/second & second=$!
wait $second
echo "second $?"
while kill -0 $first && [ "$(grep -c rank /tmp/first)" != 2 ]; do sleep 0.2; done
kill -TERM $first
wait $first
echo "first $?"
cat /tmp/second
"""


@OLD_IMAGE
def test_two_mpiruns_at_once_in_one_script(cluster: Cluster, image: Image) -> None:
    job = ended(cluster, image, launcher_command=["sh", "-c", INSTALL + AT_ONCE])
    message = job.launcher.stdout().splitlines()
    assert message[:2] == ["second 0", "first 143"]
    assert ranks(job.launcher.stdout()) == [
        (0, 2, "pi-worker-0"),
        (1, 2, "pi-worker-1"),
    ]
    assert "lost" not in job.launcher.stderr()


# An Open MPI that no login finds by PATH: plain mpirun, called by its path, calls daemons so. A
# shim is in its place.
APART = """
to=/opt/mpi/bin; mkdir -p $to; cd /usr/bin; mv orted orterun $to
ln -s orterun $to/mpirun; rm mpirun mpiexec
"""
IN_PLACE = """
real=/usr/local/lib/mpiboot/real; mkdir -p $real
ln -s /opt/mpi/bin/orterun $real/mpirun; ln -sf $(command -v mpiboot) /opt/mpi/bin/mpirun
"""


@pytest.mark.full
@pytest.mark.parametrize("front", ["", "/opt/mpi/bin:"])
def test_a_shim_that_is_called_by_its_path_calls_daemons_by_theirs(
    cluster: Cluster, rig: None, front: str
) -> None:
    image = images.image("openmpi-4.1").after("sh", "-ec", APART + IN_PLACE)
    job = spanned(
        cluster,
        image,
        *("-n", "2", RING),
        launcher_command=["/opt/mpi/bin/mpirun"],
        launcher={"env": {"PATH": f"{front}{DEFAULT_PATH}"}},
        worker_args=(),
        worker={"image": plain_worker("openmpi-4.1").after("sh", "-ec", APART)},
    )
    assert "plan prefix=/opt/mpi (detected: no login" in job.launcher.stderr()
