"""Launchers that are killed, in each phase of a job: no process is left in any pod."""

from __future__ import annotations

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import (
    FOREVER,
    PATIENCE,
    PROMISED,
    RING,
    kill,
    launched,
    left,
    python,
    running,
    slow_to_launch,
)
from tests.pods.marks import NEW, OLD, OLD_IMAGE, crossed
from tests.pods.operator import mpijob
from tests.waiting import until


@pytest.mark.full
def test_a_launcher_that_is_killed_while_hosts_are_waited_for(cluster: Cluster, rig: None) -> None:
    line = ["mpirun", RING]
    job = mpijob(cluster, images.image(NEW), launcher_args=line).start(publish=False)
    job.workers[0].publish()
    until(lambda: "NXDOMAIN" in job.launcher.stderr())
    job.launcher.kill()
    assert job.wait(PATIENCE) == 137
    job.launcher.start()
    job.publish()
    assert job.wait(PATIENCE) == 0


@pytest.mark.full
def test_a_launcher_killed_while_daemons_are_launched(cluster: Cluster, image: Image) -> None:
    """One worker has its daemon, the other one's agent hangs."""
    job = slow_to_launch(cluster, image, 'case "$*" in *worker-1*) exec sleep 1000;; esac')
    until(lambda: left(job.workers[:1]))
    job.launcher.kill()
    assert job.wait(PATIENCE) == 137
    until(lambda: not left(job.workers), PROMISED)
    assert all(worker.running for worker in job.workers)


@crossed("server", ["openssh", "embedded"])
def test_a_killed_launcher_leaves_nothing(cluster: Cluster, image: Image, server: str) -> None:
    job = running(cluster, image, worker={"env": {"MPIBOOT_SSHD": server}})
    job.launcher.kill()
    assert job.wait(PATIENCE) == 137
    until(lambda: not left(job.workers), PROMISED)
    assert all(worker.running for worker in job.workers)


@pytest.mark.full
def test_a_script_goes_on_after_a_launcher_that_was_killed(cluster: Cluster, image: Image) -> None:
    """Its next launch begins while the first one's processes are still being ended."""
    script = 'mpiboot "$@" --sleep 1000 --ignore-term; mpiboot "$@"; echo next=$? >&2; sleep 1000'
    words = ["sh", "-c", script, "sh", "mpirun", RING]
    job = mpijob(cluster, image, launcher_command=words).start()
    launched(job)
    before = {item.host_pid for item in left(job.workers)}
    kill(python(job.launcher))
    until(lambda: "next=" in job.launcher.stderr())
    assert "next=0\n" in job.launcher.stderr()
    until(lambda: not before & {item.host_pid for item in left(job.workers)}, PROMISED)
    until(lambda: "the launcher was killed" in job.launcher.stderr())


@OLD_IMAGE
def test_a_killed_parent_in_a_script_takes_mpirun_along(cluster: Cluster, image: Image) -> None:
    """It is not PID 1 there, so no end of the container does it."""
    script = 'mpiboot launcher -- "$@"; echo next=$? >&2; exec sleep 1000'
    job = mpijob(cluster, image, launcher_command=["sh", "-c", script, "sh", *FOREVER]).start()
    launched(job)
    kill(python(job.launcher))
    until(lambda: "next=137" in job.launcher.stderr())
    until(lambda: not left(job.workers), PROMISED)
    until(lambda: "the launcher was killed" in job.launcher.stderr())
    names = [" ".join(item.args) for item in job.launcher.processes() if item.state != "Z"]
    assert not [name for name in names if "mpirun" in name or "libexec/agent" in name]


@pytest.mark.full
@pytest.mark.parametrize(
    ("image", "server"), [(NEW, "openssh"), (OLD, "embedded")], indirect=["image"]
)
def test_a_launchers_vanished_node_leaves_nothing(
    cluster: Cluster, image: Image, server: str
) -> None:
    """No FIN ever comes: the worker's keep-alive detects it."""
    job = running(
        cluster,
        image,
        worker={"env": {"MPIBOOT_SSHD": server}},
        env={"MPIBOOT_SSH_KEEPALIVE": "3"},
    )
    job.launcher.link_down(silent=True)
    job.launcher.kill()
    until(lambda: not left(job.workers), 3 + PROMISED)
