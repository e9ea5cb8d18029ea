"""A job that fails and is tried again: what its workers remember, and when they end."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.jobs import PATIENCE, RING, ended, running
from tests.pods.operator import Job, mpijob
from tests.pods.pod import Pod
from tests.waiting import until

NAME = "openmpi-5.0"


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
