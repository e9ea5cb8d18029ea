"""Two launchers for one set of workers: the second one waits, or ends and names the first."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, RING, held, let_go, rank_processes, running, spans
from tests.pods.marks import ONE_IMAGE, each
from tests.pods.operator import Job
from tests.pods.pod import Pod
from tests.waiting import until

NAME = "openmpi-5.0"


@ONE_IMAGE
def test_a_second_launch_in_the_same_pod(cluster: Cluster, image: Image) -> None:
    """A script may have several: each has daemons and sessions of its own, and ends these alone."""
    job = running(cluster, image)
    done = job.launcher.exec(
        "mpiboot",
        "mpirun",
        RING,
        env={"MPIBOOT_RUNTIME_DIR": "/tmp/second", "K_MPI_JOB_ROLE": "launcher"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rank ") == 2
    assert "another launch of this pod already runs on pi-worker-0" in done.stderr
    assert job.launcher.running
    assert all(rank_processes(worker) for worker in job.workers)


def second(cluster: Cluster, job: Job, timeout: int) -> Pod:
    """Another launcher of the same job."""
    env = {**job.launcher.spec.env, "MPIBOOT_TIMEOUT": str(timeout)}
    spec = replace(job.launcher.spec, name="pi-second", args=["mpirun", RING], env=env)
    return cluster.pod(spec).start()


HOLDS = "pi-worker-0.pi.default.svc, pi-worker-1.pi.default.svc are in use by launcher pi-launcher "


@each(NAME, "openmpi-4.1")
def test_held_workers_name_their_launcher(cluster: Cluster, rig: None, name: str) -> None:
    job = held(cluster, images.image(name))
    other = second(cluster, job, timeout=20)
    assert other.wait(PATIENCE) == 75
    message = other.termination_log()
    assert message.startswith(f"workers-held: {HOLDS}({job.launcher.address}) since 20")
    assert other.stdout() == ""
    let_go(job)
    assert job.wait(PATIENCE) == 0
    spans(job)


@pytest.mark.full
@pytest.mark.parametrize("server", ["openssh", "embedded"])
def test_a_second_launcher_waits_for_the_first(cluster: Cluster, rig: None, server: str) -> None:
    """As with a Job that replaces a pod while the old one still has its grace."""
    job = held(cluster, images.image(NAME), worker={"env": {"MPIBOOT_SSHD": server}})
    other = second(cluster, job, timeout=60)
    until(lambda: "(in use by launcher pi-launcher " in other.stderr())
    job.launcher.signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == 143
    assert other.wait(PATIENCE) == 0
    assert other.stdout().count("rank ") == 2


@pytest.mark.full
def test_workers_that_end_are_not_held(cluster: Cluster, rig: None) -> None:
    """Workers that have ended are not reported as held."""
    job = held(cluster, images.image(NAME))
    other = second(cluster, job, timeout=60)
    until(lambda: "(in use by launcher pi-launcher " in other.stderr())
    let_go(job)
    assert job.wait(PATIENCE) == 0
    assert other.wait(PATIENCE) == 69
    assert "held" not in other.termination_log()


@pytest.mark.full
def test_held_workers_without_mpiboot(cluster: Cluster, rig: None) -> None:
    """A foreign sshd: the same is found by shell commands."""
    sshd = ["sh", "-c", "mkdir -p /run/sshd; exec /usr/sbin/sshd -De -h /root/.ssh/id_rsa"]
    job = held(cluster, images.image(NAME), worker={"command": sshd, "args": ()})
    other = second(cluster, job, timeout=20)
    assert other.wait(PATIENCE) == 75
    assert HOLDS in other.termination_log()
