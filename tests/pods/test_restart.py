"""Containers that start again: what the last try left behind, addresses that changed meanwhile."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, RING, rank_processes, ranks, running, spans
from tests.pods.marks import NO_MPI, ONE_IMAGE, each
from tests.pods.operator import Job, mpijob
from tests.pods.volumes import EmptyDir
from tests.waiting import until

NAME = "openmpi-5.0"


def folder() -> dict[str, Any]:
    """A pod's own emptyDir, which outlives its containers, with mpiboot's files in it."""
    return {"volumes": [EmptyDir("/scratch")], "env": {"MPIBOOT_RUNTIME_DIR": "/scratch/run"}}


def stale(volume: EmptyDir, name: str) -> None:
    """Leave the session folders that PRRTE would have left, whatever number it had."""
    assert volume.host is not None
    for pid in range(2, 99):
        (volume.host / f"{name}.{pid}.0/0").mkdir(parents=True, exist_ok=True)


def replaced(cluster: Cluster, job: Job, index: int) -> None:
    """Delete a worker's pod, and start a new one of that name at another address."""
    old = job.workers[index]
    address = old.address
    old.delete()
    job.workers[index] = cluster.pod(old.spec).start()
    assert job.workers[index].address != address
    job.workers[index].publish()


@ONE_IMAGE
def test_a_launcher_that_starts_again_in_its_pod(cluster: Cluster, image: Image) -> None:
    """Its first try is killed while ranks run, and its files lie in its folder.

    Its /tmp lives on too, with the session folders of an mpirun that had the same number; and a
    worker has another address by then.
    """
    once = 'test -e /scratch/again && exec mpiboot "$@"; : > /scratch/again; exec mpiboot "$@" {}'
    script = once.format("--sleep 1000")
    kept = folder()
    kept["volumes"] = [EmptyDir("/tmp", mode=0o1777), *kept["volumes"]]
    job = mpijob(
        cluster,
        image,
        launcher_command=["sh", "-c", script, "sh", "mpirun", RING],
        launcher=kept,
        worker=folder(),
    ).start()
    until(lambda: all(rank_processes(worker) for worker in job.workers))
    job.launcher.kill()
    job.launcher.wait(PATIENCE)
    stale(kept["volumes"][0], "prterun.pi-launcher")
    until(lambda: not any(rank_processes(worker) for worker in job.workers))
    replaced(cluster, job, 1)
    first = job.launcher.stdout()
    job.launcher.start()
    assert job.wait(PATIENCE) == 0
    again = ranks(job.launcher.stdout()[len(first) :])  # the first try may have printed some too
    assert again == [(0, 2, "pi-worker-0"), (1, 2, "pi-worker-1")]


@pytest.mark.full
def test_a_suspended_job_is_resumed(cluster: Cluster, image: Image) -> None:
    """Kueue's suspend takes all pods away; the resumed job has new pods of the same names."""
    job = running(cluster, image)
    for pod in reversed(job.pods):
        pod.signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == 143
    assert job.launcher.termination_log().startswith("signal: ")
    for index, worker in enumerate(job.workers):
        assert worker.wait(PATIENCE) == 0
        replaced(cluster, job, index)
    job.launcher.delete()
    job.launcher = cluster.pod(replace(job.launcher.spec, args=["mpirun", RING])).start()
    assert job.wait(PATIENCE) == 0
    spans(job)


def message(job: Job, text: str) -> int:
    """How many lines of the launcher's log have a text."""
    return sum(text in line for line in job.launcher.stderr().splitlines())


@each("openmpi-4.1", NAME)
def test_a_hostfile_that_shrinks(cluster: Cluster, rig: None, name: str) -> None:
    """The MPI Operator writes its ConfigMap anew, and the kubelet swaps `..data`."""
    job = mpijob(cluster, images.image(name), workers=3)
    for pod in job.pods[:3]:
        pod.start()
    job.publish()
    until(lambda: "waiting for SSH on pi-worker-2" in job.launcher.stderr())
    job.config.update({"hostfile": "".join(job.hostfile.splitlines(keepends=True)[:2])})
    assert job.wait(PATIENCE) == 0
    del job.workers[2]
    spans(job)
    assert message(job, "the hostfile has changed: 2 hosts now, ") == 1


@pytest.mark.full
def test_a_hostfile_that_grows(cluster: Cluster, image: Image) -> None:
    """Half-written and empty at first, as by an editor that doesn't rename."""
    job = mpijob(cluster, image, workers=3)
    first, second, third = job.hostfile.splitlines(keepends=True)
    job.config.update({"hostfile": first + second})
    job.start(publish=False)
    job.workers[0].publish()
    until(lambda: "DNS for pi-worker-1" in job.launcher.stderr())
    job.config.update({"hostfile": first + second + third.removesuffix("1\n")})
    time.sleep(3)  # it is looked at once a second
    assert "the hostfile has changed" not in job.launcher.stderr()
    job.config.update({"hostfile": third + second.replace("slots=1", "slots=2") + first})
    job.publish()
    assert job.wait(PATIENCE) == 0
    assert message(job, "the hostfile has changed: 3 hosts now, ") == 1
    two, one, none = (worker.hostname for worker in reversed(job.workers))
    expected = [(0, 4, two), (1, 4, one), (2, 4, one), (3, 4, none)]
    assert ranks(job.launcher.stdout()) == expected


def test_a_worker_that_starts_again_in_its_pod(cluster: Cluster, rig: None) -> None:
    kept, tmp = folder(), EmptyDir("/tmp", mode=0o1777)
    kept["volumes"] = [tmp, *kept["volumes"]]
    job = mpijob(
        cluster,
        images.image(NAME),
        launcher={"env": {"MPIBOOT_TIMEOUT": "60"}},
        each_worker={1: kept},
    )
    job.workers[0].start()
    job.workers[1].start()
    until(lambda: "listens on" in job.workers[1].stderr())
    job.workers[1].kill()
    job.workers[1].wait(PATIENCE)
    stale(tmp, "prted.pi-worker-1")
    job.workers[1].start()
    job.launcher.start()
    job.publish()
    assert job.wait(PATIENCE) == 0
    spans(job)


def test_a_worker_that_is_replaced_while_its_gate_is_open(cluster: Cluster, rig: None) -> None:
    """Its name has the address of the pod that is gone, and then that of the new one."""
    job = mpijob(
        cluster, images.image(NAME), each_worker={1: {"command": ["sleep", "1000"]}}
    ).start()
    until(lambda: "waiting for SSH on" in job.launcher.stderr())
    job.workers[1].delete()
    job.workers[1] = cluster.pod(replace(job.workers[0].spec, name="pi-worker-1")).start()
    job.workers[1].publish()
    assert job.wait(PATIENCE) == 0
    spans(job)


def one_ready(cluster: Cluster, image: Image) -> Job:
    """A job whose first worker is ready, and whose second one is still waited for."""
    job = mpijob(cluster, image)
    job.launcher.start()
    job.workers[0].start()
    job.workers[0].publish()
    until(lambda: "1/2 hosts ready, waiting for DNS for pi-worker-1" in job.launcher.stderr())
    return job


@pytest.mark.full
def test_a_worker_that_is_replaced_after_it_was_ready(cluster: Cluster, image: Image) -> None:
    """Others are still waited for: without a recheck mpirun would be the first to notice."""
    job = one_ready(cluster, image)
    replaced(cluster, job, 0)
    job.workers[1].start()
    job.workers[1].publish()
    assert job.wait(PATIENCE) == 0
    assert message(job, "pi-worker-0.pi.default.svc was ready at ") == 1
    spans(job)


@NO_MPI
def test_a_worker_that_starts_again_after_it_was_ready(cluster: Cluster, image: Image) -> None:
    """At the same address; its connection alone tells that it is not ready any more."""
    job = one_ready(cluster, image)
    job.workers[0].kill()
    job.workers[0].wait(PATIENCE)
    until(lambda: message(job, "but its connection broke; waiting for it again") == 1)
    job.workers[1].start()
    job.workers[1].publish()
    until(lambda: "waiting for SSH on pi-worker-0" in job.launcher.stderr())
    job.workers[0].start()
    assert job.wait(PATIENCE) == 0
    spans(job)
