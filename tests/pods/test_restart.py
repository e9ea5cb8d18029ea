"""Containers that start again: what the last try left behind, addresses that changed meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.pods import images
from tests.pods.operator import mpijob
from tests.pods.test_job import PATIENCE, RING, program_runs, spans, until
from tests.pods.volumes import EmptyDir

if TYPE_CHECKING:
    from tests.pods.cluster import Cluster
    from tests.pods.images import Image

NAME = "openmpi-5.0"


def folder() -> dict[str, Any]:
    """A pod's own emptyDir, which outlives its containers, with mpiboot's files in it."""
    return {"volumes": [EmptyDir("/scratch")], "env": {"MPIBOOT_RUNTIME_DIR": "/scratch/run"}}


def test_a_launcher_that_starts_again_in_its_pod(cluster: Cluster, image: Image) -> None:
    """Its first try is killed while ranks run; half-written files lie in its folder."""
    once = 'test -e /scratch/again && exec mpiboot "$@"; : > /scratch/again; exec mpiboot "$@" {}'
    script = once.format("--sleep 1000")
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_command=["sh", "-c", script, "sh", RING],
        launcher=folder(),
        worker=folder(),
    ).start()
    until(lambda: all(program_runs(worker) for worker in job.workers))
    job.launcher.kill()
    job.launcher.wait(PATIENCE)
    volume = job.launcher.spec.volumes[-1]
    assert isinstance(volume, EmptyDir)
    assert volume.host is not None
    launch = volume.host / "run/launcher/launch"
    (launch / "spec.json").write_text('{"argv": ["half')
    (launch / ".hostfile.1").write_text("pi-work")
    (volume.host / "run/launcher/.key.1").write_text("half")
    until(lambda: not any(program_runs(worker) for worker in job.workers))
    job.launcher.start()
    assert job.wait(PATIENCE) == 0
    spans(job)


def test_a_worker_that_starts_again_in_its_pod(cluster: Cluster, rig: None) -> None:
    job = mpijob(
        cluster,
        images.image(NAME),
        workers=2,
        launcher_args=[RING],
        launcher={"env": {"MPIBOOT_TIMEOUT": "60"}},
        each_worker={1: folder()},
    )
    job.workers[0].start()
    job.workers[1].start()
    until(lambda: "listens on" in job.workers[1].stderr())
    job.workers[1].restart()
    job.launcher.start()
    job.publish()
    assert job.wait(PATIENCE) == 0
    spans(job)


def test_a_worker_that_is_replaced_while_its_gate_is_open(cluster: Cluster, rig: None) -> None:
    """Its name has the address of the pod that is gone, and then that of the new one."""
    job = mpijob(
        cluster,
        images.image(NAME),
        workers=2,
        launcher_args=[RING],
        each_worker={1: {"command": ["sleep", "1000"]}},
    ).start()
    until(lambda: "waiting for SSH on" in job.launcher.stderr())
    job.workers[1].delete()
    job.workers[1] = cluster.pod(replace(job.workers[0].spec, name="pi-worker-1")).start()
    job.workers[1].publish()
    assert job.wait(PATIENCE) == 0
    spans(job)


@pytest.mark.parametrize("name", images.NAMES)
def test_a_second_launcher_for_the_same_workers(cluster: Cluster, rig: None, name: str) -> None:
    """Nothing forbids it: each has daemons and sessions of its own, and ends its own alone."""
    job = mpijob(
        cluster, images.image(name), workers=2, launcher_args=[RING, "--sleep", "1000"]
    ).start()
    until(lambda: all(program_runs(worker) for worker in job.workers))
    done = job.launcher.exec(
        "mpiboot", RING, env={"MPIBOOT_RUNTIME_DIR": "/tmp/second", "K_MPI_JOB_ROLE": "launcher"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rank ") == 2
    assert job.launcher.running
    assert all(program_runs(worker) for worker in job.workers)
