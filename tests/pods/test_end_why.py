"""Why a job failed, said where people look; and what becomes of workers after a good end."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from tests.pods.ends import PATIENCE, RING, end_line, ranks, running, until
from tests.pods.operator import mpijob
from tests.pods.volumes import Files

if TYPE_CHECKING:
    from tests.pods.cluster import Cluster
    from tests.pods.images import Image

MEMORY = 300 << 20
EATER = """#!/bin/sh
case $(hostname) in *worker-1) exec python3 -c 'x = bytearray(1 << 30)';; *) sleep 1000;; esac
"""


def test_a_rank_that_is_out_of_memory(cluster: Cluster, image: Image) -> None:
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_args=["/opt/eater/eat"],
        worker={"volumes": [Files("/opt/eater", {"eat": EATER}, 0o755)], "memory": MEMORY},
        launcher={"volumes": [Files("/opt/eater", {"eat": EATER}, 0o755)]},
    ).start()
    assert job.wait(PATIENCE) == 137
    said = job.launcher.termination_log().splitlines()
    assert "SIGKILL" in said[0]
    assert "pi-worker-1" in said[1]
    assert "out of memory: the kernel killed a process of this pod (limit 300 MiB" in said[1]
    assert "out of memory" in end_line(job.launcher.stderr())


def test_a_segmentation_fault_is_no_kill(cluster: Cluster, image: Image) -> None:
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_args=[RING, "--segv"],
        env={"MPIBOOT_LOG_FORMAT": "json"},
    ).start()
    assert job.wait(PATIENCE) == 139
    assert "out of memory" not in job.launcher.termination_log()
    lines = [line for line in job.launcher.stderr().splitlines() if '"event": "ended"' in line]
    told = json.loads(lines[-1])
    assert (told["exit"], told["hosts"], told["ranks"]) == (139, 2, 2)
    assert "SIGSEGV" in told["cause"]


def test_shared_memory_that_is_full(cluster: Cluster, image: Image) -> None:
    job = mpijob(cluster, image, workers=2, launcher_args=[RING, "--exit", "4"])
    for worker in job.workers:
        worker.start()
    job.workers[1].shell("head -c 80000000 /dev/zero > /dev/shm/full || true")
    job.launcher.start()
    job.publish()
    code = job.wait(PATIENCE)
    assert code not in (0, 69)
    assert "/dev/shm is full" in job.launcher.termination_log()


def test_a_container_that_was_restarted(cluster: Cluster, image: Image) -> None:
    job = running(cluster, image)
    job.workers[1].restart()
    assert job.wait(PATIENCE) == 69
    said = job.launcher.termination_log()
    assert "pi-worker-1" in said.splitlines()[0]
    assert "restarted, probably out of memory" in said
    assert "kubectl get pod pi-worker-1 -n default" in said


def test_a_pod_that_is_gone(cluster: Cluster, image: Image) -> None:
    job = running(cluster, image)
    job.workers[1].delete()
    assert job.wait(PATIENCE) == 69
    assert "its pod is gone" in job.launcher.termination_log()


def test_a_failed_launcher_is_kept_for_a_look_inside(cluster: Cluster, image: Image) -> None:
    job = mpijob(
        cluster,
        image,
        workers=1,
        launcher_args=[RING, "--exit", "3"],
        env={"MPIBOOT_HOLD_ON_FAILURE": "1000"},
    ).start()
    until(lambda: "held for 1000 s" in job.launcher.stderr())
    assert job.launcher.running
    assert "3" in job.launcher.termination_log()
    job.launcher.signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == 3


@pytest.mark.parametrize("server", ["openssh", "embedded"])
def test_workers_end_with_a_job_that_ended_well(
    cluster: Cluster, image: Image, server: str
) -> None:
    env = {"MPIBOOT_SSHD": server}
    job = mpijob(cluster, image, workers=2, launcher_args=[RING], env=env).start()
    assert job.wait(PATIENCE) == 0
    assert [worker.wait(PATIENCE) for worker in job.workers] == [0, 0]


def test_workers_stay_after_a_failure_and_where_they_are_told_to(
    cluster: Cluster, image: Image
) -> None:
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_args=[RING],
        each_worker={1: {"env": {"MPIBOOT_WORKER_EXIT": "never"}}},
    ).start()
    assert job.wait(PATIENCE) == 0
    assert job.workers[0].wait(PATIENCE) == 0
    assert job.workers[1].running
    failed = mpijob(
        cluster, image, workers=1, launcher_args=[RING, "--exit", "3"], name="failed"
    ).start()
    assert failed.wait(PATIENCE) == 3
    assert failed.workers[0].running
    assert not ranks(failed.workers[0])


def test_a_worker_of_no_operator_stays(cluster: Cluster, image: Image) -> None:
    """A StatefulSet would start it again for ever."""
    job = mpijob(
        cluster, image, workers=1, launcher_args=[RING], worker={"env": {"K_MPI_JOB_ROLE": ""}}
    ).start()
    assert job.wait(PATIENCE) == 0
    assert job.workers[0].running
