"""Hosts from which nothing comes: waited for until the keep-alive of their sessions is over."""

from __future__ import annotations

import signal
import time

import pytest

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import (
    OWN_SSH,
    PATIENCE,
    alive,
    end_line,
    held,
    kill,
    let_go,
    python,
    with_own_ssh,
)
from tests.pods.marks import ONE_IMAGE
from tests.pods.operator import Job
from tests.pods.pod import Pod, Process

DROP = "add chain inet loss {0} {{ type filter hook {0} priority 0; policy drop; }}"


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


@pytest.mark.full
@OWN_SSH
def test_a_network_that_loses_all_for_90_s(cluster: Cluster, image: Image, own_ssh: str) -> None:
    """Kubernetes takes the records of a node away meanwhile that is NotReady."""
    chosen, details = with_own_ssh(own_ssh, image)
    job = held(cluster, chosen, **details)
    lose_packets(job)
    job.workers[1].unpublish()
    time.sleep(90)
    job.workers[1].network.run("nft", "delete table inet loss")
    succeeds(job)


@OWN_SSH
@pytest.mark.full
def test_an_sshd_that_is_stopped_for_a_minute(cluster: Cluster, image: Image, own_ssh: str) -> None:
    """As on a node under pressure."""
    chosen, details = with_own_ssh(own_ssh, image)
    job = held(cluster, chosen, **details)
    # Its own clock stands still, too: no keep-alive of its own ends the session.
    servers = ssh_servers(job.workers[1])
    kill(servers, signal.SIGSTOP)
    time.sleep(60)
    kill(servers, signal.SIGCONT)
    succeeds(job)


@ONE_IMAGE
def test_a_launcher_that_stands_still_while_names_vanish(cluster: Cluster, image: Image) -> None:
    job = held(cluster, image, env={"MPIBOOT_SSH_KEEPALIVE": "20"})
    for pod in job.pods:
        pod.unpublish()
    kill(python(job.launcher), signal.SIGSTOP)
    time.sleep(8)
    kill(python(job.launcher), signal.SIGCONT)
    succeeds(job)
