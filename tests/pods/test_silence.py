"""Silent hosts: lost where that is proved, waited for where it isn't.

With a keep-alive of 60 s a host is looked for after 6 s of silence, by default after 30 of 300 s.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.pods.jobs import (
    OWN_SSH,
    PATIENCE,
    PROMISED,
    alive,
    end_line,
    held,
    kill,
    left,
    let_go,
    running,
    with_own_ssh,
)
from tests.pods.marks import EACH_CLIENT, OLD_IMAGE, ONE_IMAGE
from tests.waiting import until

if TYPE_CHECKING:
    from tests.pods.cluster import Cluster
    from tests.pods.images import Image
    from tests.pods.operator import Job
    from tests.pods.pod import Pod
    from tests.pods.processes import Process

MINUTE = {"MPIBOOT_SSH_KEEPALIVE": "60"}
SILENT = "pi-worker-1.pi.default.svc: nothing came over its SSH connection for "
DROP = "add chain inet loss {0} {{ type filter hook {0} priority 0; policy drop; }}"


def warning(job: Job, *words: str) -> str:
    """Wait for the warning of silence with these words."""

    def message() -> list[str]:
        assert job.launcher.running, job.launcher.stderr()[-3000:]
        lines = job.launcher.stderr().splitlines()
        return [line for line in lines if SILENT in line and all(word in line for word in words)]

    until(message, PATIENCE)
    return message()[-1]


def succeeds(job: Job) -> None:
    """The job is let go, and ends well."""
    let_go(job)
    assert job.wait(PATIENCE) == 0
    assert "the program succeeded" in end_line(job.launcher.stderr())
    assert "lost" not in job.launcher.stderr()


def ssh_servers(pod: Pod) -> list[Process]:
    """OpenSSH's processes, or the embedded server's."""
    found = [item for item in pod.processes() if "sshd" in " ".join(item.args[:3])]
    return found or alive(pod, "python3")


def lose_packets(job: Job) -> None:
    """Every packet of the second worker is lost, in and out."""
    job.workers[1].network.run("nft", "add table inet loss")
    for hook in ("input", "output"):
        job.workers[1].network.run("nft", DROP.format(hook))


@EACH_CLIENT
@OWN_SSH
@ONE_IMAGE
def test_a_network_that_loses_every_packet_for_a_while(
    cluster: Cluster, image: Image, own_ssh: str
) -> None:
    chosen, details = with_own_ssh(own_ssh, image)
    job = held(cluster, chosen, env=MINUTE, **details)
    lose_packets(job)
    message = warning(job, "still has the address", "port 22 does not answer")
    assert message.endswith("Look closer: mpiboot doctor --host pi-worker-1.pi.default.svc")
    job.workers[1].network.run("nft", "delete table inet loss")
    until(lambda: "its SSH connection is alive again" in job.launcher.stderr(), PATIENCE)
    succeeds(job)


@EACH_CLIENT
@OWN_SSH
@OLD_IMAGE
@pytest.mark.full
def test_an_sshd_that_is_stopped_for_longer_than_the_keep_alive(
    cluster: Cluster, image: Image, own_ssh: str
) -> None:
    """As on a node under pressure: its port answers, so that the host is never lost."""
    chosen, details = with_own_ssh(own_ssh, image)
    env = {"MPIBOOT_SSH_KEEPALIVE": "5"}
    job = held(cluster, chosen, env=env, **details)
    # Its own clock stands still, too: no keep-alive of its own ends the session.
    servers = ssh_servers(job.workers[1])
    kill(servers, signal.SIGSTOP)
    warning(job, "accepts connections, but sshd says nothing")
    time.sleep(8)
    assert job.launcher.running
    kill(servers, signal.SIGCONT)
    succeeds(job)


@EACH_CLIENT
@OWN_SSH
@ONE_IMAGE
def test_a_pod_that_is_deleted_without_a_word(cluster: Cluster, image: Image, own_ssh: str) -> None:
    chosen, details = with_own_ssh(own_ssh, image)
    job = running(cluster, chosen, env=MINUTE, **details)
    job.workers[1].link_down(silent=True)
    job.workers[1].delete()
    assert job.wait(PATIENCE) == 69
    message = job.launcher.termination_log()
    assert message.startswith(f"host-lost: {SILENT}")
    assert "pi-worker-1.pi.default.svc does not resolve any more" in message.splitlines()[0]
    until(lambda: not left(job.workers[:1]), PROMISED)


@EACH_CLIENT
@OLD_IMAGE
@pytest.mark.full
def test_a_pod_that_was_made_anew(cluster: Cluster, image: Image) -> None:
    job = running(cluster, image, env=MINUTE)
    old = job.workers[1]
    old.link_down(silent=True)
    old.delete()
    again = cluster.pod(old.spec).start()
    again.publish(when_port=22)
    assert job.wait(PATIENCE) == 69
    message = job.launcher.termination_log().splitlines()[0]
    assert message.startswith(f"host-lost: {SILENT}")
    assert f"now has the address {again.address}" in message


@pytest.mark.full
def test_nothing_answers_for_a_host_until_the_keep_alive_is_over(
    cluster: Cluster, image: Image
) -> None:
    job = running(cluster, image, env={"MPIBOOT_SSH_KEEPALIVE": "20"})
    lose_packets(job)
    warning(job, "port 22 does not answer")
    assert job.wait(PATIENCE) == 69
    message = job.launcher.termination_log()
    assert message.startswith(f"host-lost: {SILENT}2")
    assert "still has the address" in message


@pytest.mark.full
def test_by_default_a_network_may_be_away_for_a_minute_and_a_half(
    cluster: Cluster, image: Image
) -> None:
    job = held(cluster, image)
    lose_packets(job)
    time.sleep(90)
    job.workers[1].network.run("nft", "delete table inet loss")
    warning(job, "port 22 does not answer")
    until(lambda: "its SSH connection is alive again" in job.launcher.stderr(), PATIENCE)
    succeeds(job)


@pytest.mark.full
def test_by_default_an_sshd_may_be_stopped_for_longer_than_half_a_minute(
    cluster: Cluster, image: Image
) -> None:
    job = held(cluster, image)
    servers = ssh_servers(job.workers[1])
    kill(servers, signal.SIGSTOP)
    time.sleep(45)
    kill(servers, signal.SIGCONT)
    succeeds(job)
