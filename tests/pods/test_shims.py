"""Manifests and scripts written for plain images: names that lead to mpiboot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pods import images
from tests.pods.oci import PodSpec
from tests.pods.operator import mpijob
from tests.pods.test_job import PATIENCE, RING, ranks

if TYPE_CHECKING:
    from tests.pods.cluster import Cluster
    from tests.pods.images import Image

INSTALL = "mpiboot shims install --folder /tmp/shims >&2; PATH=/tmp/shims:$PATH; "


def test_a_batch_script_that_calls_mpirun_twice(cluster: Cluster, image: Image) -> None:
    script = f"set -e; {INSTALL} mpirun -n 2 {RING}; mpirun -n 1 {RING}"
    worker = ["sh", "-c", f"{INSTALL} exec sshd -De"]
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_command=["sh", "-c", script],
        worker_command=worker,
        worker_args=(),
    ).start()
    assert job.wait(PATIENCE) == 0
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
ls -d /tmp/mpiboot-0/launcher/launch* /run/mpiboot/launcher/launch* 2> /dev/null | wc -l
"""


def test_two_mpiruns_at_once_in_one_script(cluster: Cluster, image: Image) -> None:
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_command=["sh", "-c", INSTALL + AT_ONCE],
    ).start()
    assert job.wait(PATIENCE) == 0
    said = job.launcher.stdout().splitlines()
    assert said[:2] == ["second 0", "first 143"]
    assert ranks(job.launcher.stdout()) == [
        (0, 2, "pi-worker-0"),
        (1, 2, "pi-worker-1"),
    ]
    assert said[-1] == "2"  # a folder for each
    assert "lost" not in job.launcher.stderr()


@pytest.mark.parametrize("name", images.NAMES)
def test_without_a_role_the_real_program_runs(cluster: Cluster, rig: None, name: str) -> None:
    script = f"{INSTALL} mpirun --version; mpiboot shims remove --folder /tmp/shims"
    spec = PodSpec(name="a", image=images.image(name), command=["sh", "-c", script])
    pod = cluster.pod(spec).start()
    assert pod.wait(PATIENCE) == 0
    assert "(Open" in pod.stdout()
    assert pod.stdout().count("removed") == 3


def test_a_path_in_which_a_shim_finds_only_itself(cluster: Cluster, rig: None) -> None:
    image = images.image("openmpi-5.0").without("/usr/bin/mpirun")
    script = f"{INSTALL} exec mpirun -n 1 true"
    pod = cluster.pod(PodSpec(name="a", image=image, command=["sh", "-c", script])).start()
    assert pod.wait(PATIENCE) == 127
    assert "is mpiboot's own shim" in pod.stderr()
