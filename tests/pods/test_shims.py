"""Manifests and scripts written for plain images: names that lead to mpiboot."""

from __future__ import annotations

import signal

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, RING, ended, rank_processes, ranks
from tests.pods.marks import OLD_IMAGE, ONE_IMAGE
from tests.pods.oci import PodSpec
from tests.pods.operator import mpijob
from tests.waiting import until

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


@ONE_IMAGE
def test_a_batch_script_that_is_ended(cluster: Cluster, image: Image) -> None:
    """The signal reaches the job below the script, which may end it in its own way."""
    script = f"mpirun -n 2 {RING} --sleep 1000; echo went on; exit 0"
    flags = ["launcher", "--grace", "9", "--", "sh", "-c", script]
    job = mpijob(cluster, image, launcher_args=flags).start()
    until(lambda: len(ranks(job.launcher.stdout())) == 2)
    job.launcher.signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == 143
    assert "ended by SIGTERM" in job.launcher.stderr()
    assert all(worker.running for worker in job.workers)
    until(lambda: not any(map(rank_processes, job.workers)))


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


def test_a_path_in_which_a_shim_finds_only_itself(cluster: Cluster, rig: None) -> None:
    image = images.image("openmpi-5.0").without("/usr/bin/mpirun")
    script = f"{INSTALL} exec mpirun -n 1 true"
    pod = cluster.pod(PodSpec(name="a", image=image, command=["sh", "-c", script])).start()
    assert pod.wait(PATIENCE) == 127
    assert "is mpiboot's own shim" in pod.stderr()
