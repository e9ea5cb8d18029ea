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
from tests.pods.jobs import (
    NO_MPI,
    ONE_IMAGE,
    PATIENCE,
    RING,
    each,
    ended,
    held,
    let_go,
    rank_processes,
    ranks,
    running,
    spans,
)
from tests.pods.operator import Job, mpijob
from tests.pods.pod import Pod
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


def again(cluster: Cluster, job: Job, *args: str, name: str = "pi-launcher-2") -> Pod:
    """The Job's next launcher: another pod with another name."""
    return cluster.pod(replace(job.launcher.spec, name=name, args=args)).start()


def attempts_said(launcher: Pod, words: str) -> list[str]:
    """Its lines with these words; they are in its termination message too."""
    assert words in launcher.termination_log()
    return [line for line in launcher.stderr().splitlines() if words in line]


def test_the_next_launcher_reports_the_last_ones_end(cluster: Cluster, rig: None) -> None:
    """Nobody sets anything: the workers are the operator's, and wait for the next launcher."""
    job = ended(
        cluster,
        images.image(NAME),
        *("mpirun", RING, "--exit", "3"),
        code=3,
        launcher={"env": {"MY_CHOICE": "1"}},
        worker={"env": {"MPIBOOT_LAUNCHER_AWAY": "15"}},
    )
    assert "not forwarded to ranks: MY_CHOICE (" in job.launcher.stderr()
    assert "attempt" not in job.launcher.termination_log()
    # Refused before mpirun.
    second = again(cluster, job, "launcher", "--data-network", "require", "--", "mpirun", RING)
    assert second.wait(PATIENCE) == 72
    (line,) = attempts_said(second, "attempt 2; the last one (pi-launcher of 20")
    assert " ended: program: " in line
    assert line.endswith("exit 3")
    third = again(cluster, job, "mpirun", RING, "--exit", "4", name="pi-launcher-3")
    assert third.wait(PATIENCE) == 4
    (line,) = attempts_said(third, "attempt 3; the last one (pi-launcher-2 of 20")
    assert " ended: rdma-missing: " in line
    assert line.endswith("exit 72")
    # Nobody comes any more.
    assert [worker.wait(PATIENCE) for worker in job.workers] == [0, 0]
    assert "no launcher for 15s; worker stops" in job.workers[0].stderr()


RANKS = ("mpirun", RING)
SCRIPT = ("sh", "-c", f"mpirun {RING}")


@pytest.mark.full
@pytest.mark.parametrize(
    ("args", "number", "ended"),
    [
        (RANKS, 0, "names-unresolved: 1 of 2 hosts do not resolve after "),
        (SCRIPT, signal.SIGTERM, "signal: SIGTERM while waiting for hosts: nothing was started"),
    ],
)
def test_a_launcher_that_ends_while_hosts_are_waited_for_tells_the_one_that_is_ready(
    cluster: Cluster, rig: None, args: tuple[str, ...], number: int, ended: str
) -> None:
    # The time for its hosts is over when one of them is ready, and not before.
    env = {} if number else {"MPIBOOT_TIMEOUT": "30"}
    job = mpijob(cluster, images.image(NAME), launcher_args=args, launcher={"env": env})
    job.workers[0].start().publish()
    until(lambda: "listens" in job.workers[0].stderr())
    job.launcher.start()
    until(lambda: "1/2 hosts ready" in job.launcher.stderr())
    if number:
        job.launcher.signal(number)
    code = 128 + number if number else 68
    assert job.launcher.wait(PATIENCE) == code
    assert "attempt" not in job.launcher.stderr()
    job.workers[1].start().publish()
    second = again(cluster, job, "mpirun", RING, "--exit", "3")
    assert second.wait(PATIENCE) == 3
    (line,) = attempts_said(second, "attempt 2; the last one (pi-launcher of 20")
    # A script tells its own end, with the reason of the launch below it.
    script = f" ended: program: sh ended with {code}; " if args is SCRIPT else " ended: "
    script = script.replace("program", "signal") if number else script
    assert f"{script}{ended}" in line
    assert args is SCRIPT or line.endswith(f"exit {code}")


@pytest.mark.full
@pytest.mark.parametrize("server", ["openssh", "embedded"])
def test_a_launcher_that_was_killed_told_nothing(cluster: Cluster, rig: None, server: str) -> None:
    """It may be one that waits for other hosts, until the time for that is over too."""
    env = {"MPIBOOT_LAUNCHER_AWAY": "1", "MPIBOOT_TIMEOUT": "20", "MPIBOOT_SSHD": server}
    job = running(cluster, images.image(NAME), worker={"env": env})
    job.launcher.kill()
    job.launcher.wait(PATIENCE)
    second = again(cluster, job, "mpirun", RING)
    assert second.wait(PATIENCE) == 0
    assert "(killed, or lost)" in second.stderr()
    assert [worker.wait(PATIENCE) for worker in job.workers] == [0, 0]
    assert "job succeeded" in job.workers[0].stderr()


@pytest.mark.full
def test_a_script_is_one_attempt_and_tells_of_its_own_end(cluster: Cluster, rig: None) -> None:
    """No launcher is connected between its launches, and it may go on after a failed one."""
    script = f"mpirun {RING} --exit 3; sleep 5; mpirun {RING} || exit 9; exit 7"
    job = ended(
        cluster,
        images.image(NAME),
        *("sh", "-c", script),
        code=7,
        worker={"env": {"MPIBOOT_LAUNCHER_AWAY": "1", "MPIBOOT_TIMEOUT": "2"}},
    )
    assert "attempt" not in job.launcher.stderr()
    assert [worker.wait(PATIENCE) for worker in job.workers] == [0, 0]


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
