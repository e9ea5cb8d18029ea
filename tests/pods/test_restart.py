"""Launches one after the other, or two at once: restarts, retries, addresses that changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.pods import images, jobs
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import NEW, OLD, RING
from tests.pods.operator import Job, mpijob
from tests.pods.pod import Pod
from tests.pods.volumes import EmptyDir
from tests.waiting import until

FULL = pytest.mark.full


def folder(*more: EmptyDir, **env: str) -> dict[str, Any]:
    """A pod's own emptyDirs, which outlive its containers, with mpiboot's files in one."""
    env = {"MPIBOOT_RUNTIME_DIR": "/scratch/run", **env}
    return {"volumes": [*more, EmptyDir("/scratch")], "env": env}


def stale(volume: EmptyDir, name: str) -> None:
    """Leave the session folders that PRRTE would have left, whatever number it had."""
    assert volume.host is not None
    for pid in range(2, 99):
        (volume.host / f"{name}.{pid}.0/0").mkdir(parents=True, exist_ok=True)


@jobs.ONE_IMAGE
def test_a_launcher_that_starts_again_in_its_pod(cluster: Cluster, image: Image) -> None:
    """Its first try is killed while ranks run, and its files lie in its folder.

    Its /tmp lives on too, with the session folders of an mpirun that had the same number; and a
    worker has another address by then.
    """
    script = 'test -e /scratch/again && exec mpiboot "$@"; : > /scratch/again; '
    script += 'exec mpiboot "$@" --sleep 1000'
    tmp = EmptyDir("/tmp", mode=0o1777)
    words = ["sh", "-c", script, "sh", "mpirun", RING]
    details: dict[str, Any] = {"launcher": folder(tmp), "worker": folder()}
    job = mpijob(cluster, image, launcher_command=words, **details).start()
    until(lambda: all(jobs.rank_processes(worker) for worker in job.workers))
    job.launcher.kill()
    job.wait()
    stale(tmp, "prterun.pi-launcher")
    until(lambda: not any(jobs.rank_processes(worker) for worker in job.workers))
    old = job.workers[1]
    old.delete()
    job.workers[1] = cluster.pod(old.spec).start()
    assert job.workers[1].address != old.address
    job.workers[1].publish()
    first = job.output
    job.launcher.start()
    assert job.wait() == 0
    again = jobs.ranks(job.output[len(first) :])  # the first try may have printed some too
    assert again == [(0, 2, "pi-worker-0"), (1, 2, "pi-worker-1")]


@jobs.each(OLD, NEW)
def test_a_hostfile_that_shrinks(cluster: Cluster, image: Image) -> None:
    """The MPI Operator writes its ConfigMap anew, and the kubelet swaps `..data`."""
    job = mpijob(cluster, image, workers=3)
    for pod in job.pods[:3]:
        pod.start()
    job.publish()
    job.launcher.logs("waiting for SSH on pi-worker-2")
    job.config.update({"hostfile": "".join(job.hostfile.splitlines(keepends=True)[:2])})
    del job.workers[2]
    jobs.spans(job)
    assert job.log.count("the hostfile changed: now waiting for 2 hosts") == 1


def test_a_worker_that_starts_again_in_its_pod(cluster: Cluster) -> None:
    tmp, env = EmptyDir("/tmp", mode=0o1777), {"MPIBOOT_TIMEOUT": "60"}
    again = {1: folder(tmp)}
    job = mpijob(cluster, images.image(NEW), launcher={"env": env}, each_worker=again)
    first, second = (worker.start() for worker in job.workers)
    second.logs("listens on")
    second.kill()
    second.wait()
    stale(tmp, "prted.pi-worker-1")
    second.start()
    job.launcher.start()
    job.publish()
    jobs.spans(job)
    assert first.restarts == 0


def test_a_worker_that_is_replaced_while_its_gate_is_open(cluster: Cluster) -> None:
    """Its name has the address of the pod that is gone, and then that of the new one."""
    waits = {1: {"command": ["sleep", "1000"]}}
    job = mpijob(cluster, images.image(NEW), each_worker=waits).start()
    job.launcher.logs("waiting for SSH on")
    job.workers[1].delete()
    job.workers[1] = cluster.pod(replace(job.workers[0].spec, name="pi-worker-1")).start()
    job.workers[1].publish()
    jobs.spans(job)


@jobs.NO_MPI
def test_a_worker_that_starts_again_after_it_was_ready(cluster: Cluster, image: Image) -> None:
    """At the same address; its connection alone tells that it is not ready any more."""
    job = mpijob(cluster, image)
    first, second = job.workers
    first.start().publish()
    job.launcher.start()
    job.launcher.logs("1/2 hosts ready, waiting for DNS for pi-worker-1")
    first.kill()
    first.wait()
    second.start().publish()
    job.launcher.logs("but its connection broke; waiting for it again")
    job.launcher.logs("waiting for SSH on pi-worker-0")
    first.start()
    jobs.spans(job)


def again(cluster: Cluster, job: Job, *args: str, name: str = "pi-launcher-2", **env: str) -> Pod:
    """The Job's next launcher: another pod with another name."""
    spec = job.launcher.spec
    return cluster.pod(replace(spec, name=name, args=args, env={**spec.env, **env})).start()


def attempt_line(launcher: Pod, words: str) -> str:
    assert words in launcher.termination_log()
    (line,) = [line for line in launcher.stderr().splitlines() if words in line]
    return line


def test_the_next_launcher_reports_the_last_ones_end(cluster: Cluster) -> None:
    """Nobody sets anything: the workers are the operator's, and wait for the next launcher."""
    job = jobs.ended(
        cluster,
        images.image(NEW),
        *("mpirun", RING, "--exit", "3"),
        code=3,
        launcher={"env": {"MY_CHOICE": "1"}},
        worker={"env": {"MPIBOOT_LAUNCHER_AWAY": "15"}},
    )
    assert "not forwarded to ranks: MY_CHOICE (" in job.log
    assert "attempt" not in job.message
    # Refused before mpirun.
    second = again(cluster, job, "launcher", "--data-network", "require", "--", "mpirun", RING)
    assert second.wait() == 72
    line = attempt_line(second, "attempt 2; the last one (pi-launcher of 20")
    assert " ended: program: " in line
    assert line.endswith("exit 3")
    third = again(cluster, job, "mpirun", RING, "--exit", "4", name="pi-launcher-3")
    assert third.wait() == 4
    line = attempt_line(third, "attempt 3; the last one (pi-launcher-2 of 20")
    assert " ended: rdma-missing: " in line
    assert line.endswith("exit 72")
    # Nobody comes any more.
    assert [worker.wait() for worker in job.workers] == [0, 0]
    assert "no launcher for 15s; worker stops" in job.workers[0].stderr()


@FULL
def test_a_launcher_that_was_killed_told_nothing(cluster: Cluster) -> None:
    """It may be one that waits for other hosts, until the time for that is over too."""
    env = {"MPIBOOT_LAUNCHER_AWAY": "1", "MPIBOOT_TIMEOUT": "20"}
    job = jobs.running(cluster, images.image(NEW), worker={"env": env})
    job.launcher.kill()
    job.wait()
    second = again(cluster, job, "mpirun", RING)
    assert second.wait() == 0
    assert "(killed, or lost)" in second.stderr()
    assert [worker.wait() for worker in job.workers] == [0, 0]
    assert "job succeeded" in job.workers[0].stderr()


@FULL
def test_a_script_is_one_attempt_and_tells_of_its_own_end(cluster: Cluster) -> None:
    """No launcher is connected between its launches, and it may go on after a failed one."""
    script = f"mpirun {RING} --exit 3; sleep 5; mpirun {RING} || exit 9; exit 7"
    worker = {"env": {"MPIBOOT_LAUNCHER_AWAY": "1", "MPIBOOT_TIMEOUT": "2"}}
    job = jobs.ended(cluster, images.image(NEW), "sh", "-c", script, code=7, worker=worker)
    assert "attempt" not in job.log
    assert [worker.wait() for worker in job.workers] == [0, 0]


HOLDS = "pi-worker-0.pi.default.svc, pi-worker-1.pi.default.svc are in use by launcher pi-launcher "


@jobs.ONE_IMAGE
def test_a_second_launch_in_the_same_pod(cluster: Cluster, image: Image) -> None:
    """A script may have several: each has daemons and sessions of its own, and ends these alone."""
    job = jobs.running(cluster, image)
    env = {"MPIBOOT_RUNTIME_DIR": "/tmp/second", "K_MPI_JOB_ROLE": "launcher"}
    done = job.launcher.exec("mpiboot", "mpirun", RING, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rank ") == 2
    assert job.launcher.running
    assert all(jobs.rank_processes(worker) for worker in job.workers)


# A foreign sshd: the same is found by shell commands.
FOREIGN = {
    "command": ["sh", "-c", "mkdir -p /run/sshd; exec /usr/sbin/sshd -De -h /root/.ssh/id_rsa"],
    "args": (),
}


@pytest.mark.parametrize("worker", [{}, pytest.param(FOREIGN, marks=FULL)], ids=["", "foreign"])
def test_held_workers_name_their_launcher(cluster: Cluster, worker: dict[str, Any]) -> None:
    job = jobs.held(cluster, images.image(NEW), worker=worker)
    other = again(cluster, job, "mpirun", RING, MPIBOOT_TIMEOUT="20")
    assert other.wait() == 75
    message = f"workers-held: {HOLDS}({job.launcher.address}) since 20"
    assert other.termination_log().startswith(message)
    assert other.stdout() == ""
    jobs.let_go(job)
    jobs.spans(job)
