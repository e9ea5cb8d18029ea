"""Images that lack something, and workers that are somebody else's: whole jobs all the same."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.pods import images
from tests.pods.oci import PodSpec
from tests.pods.operator import mpijob
from tests.pods.test_job import PATIENCE, RING, spans, until

if TYPE_CHECKING:
    from tests.pods.cluster import Cluster
    from tests.pods.images import Image
    from tests.pods.pod import Pod

BOTH = ["openmpi-4.1", "openmpi-5.0"]


@pytest.mark.parametrize("name", BOTH)
def test_neither_side_has_any_ssh(cluster: Cluster, rig: None, name: str) -> None:
    job = mpijob(
        cluster, images.image(f"{name}-nossh"), workers=2, slots=2, launcher_args=[RING]
    ).start()
    assert job.wait(PATIENCE) == 0
    spans(job, slots=2)
    assert "there is no ssh on PATH" in job.launcher.stderr()
    assert "embedded" in job.workers[0].stderr()


@pytest.mark.parametrize("name", BOTH)
def test_the_operators_base_image_as_user_1000(cluster: Cluster, rig: None, name: str) -> None:
    """Its sshd_config: the mounted key is the host key, and the port is 2222."""
    config = (
        "PidFile /tmp/sshd.pid\nHostKey /home/mpi/.ssh/id_rsa\nStrictModes no\nPort 2222\n"
        "AuthorizedKeysFile /home/mpi/.ssh/authorized_keys\n"
    )
    job = mpijob(
        cluster,
        images.image(name).with_files({"/home/mpi/.sshd_config": config}),
        workers=2,
        slots=2,
        launcher_args=[RING],
        worker_command=["/usr/sbin/sshd", "-De", "-f", "/home/mpi/.sshd_config"],
        worker_args=(),
        user=1000,
        ssh_mount="/home/mpi/.ssh",
    ).start()
    assert job.wait(PATIENCE) == 0
    spans(job, slots=2)


def root_image(name: str) -> Image:
    """A base image for root: the operator's own command is all that a worker runs."""
    config = (
        "HostKey /root/.ssh/id_rsa\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
        "AuthorizedKeysFile /root/.ssh/authorized_keys\n"
    )
    return images.image(name).with_files({"/etc/ssh/sshd_config": config, "/run/sshd/.keep": ""})


@pytest.mark.parametrize("name", BOTH)
def test_workers_with_the_operators_own_command(cluster: Cluster, rig: None, name: str) -> None:
    job = mpijob(cluster, root_image(name), workers=2, launcher_args=[RING], worker_args=()).start()
    assert job.wait(PATIENCE) == 0
    spans(job)
    assert "mpiboot" not in job.workers[0].stderr()


def listens(pod: Pod) -> bool:
    """A stock sshd says that it is up."""
    return "Server listening" in pod.stderr()


@pytest.mark.parametrize("name", BOTH)
def test_host_network_beside_the_nodes_own_sshd(cluster: Cluster, rig: None, name: str) -> None:
    image = images.image(name)
    nodes = ["node-1", "node-2"]
    script = "mkdir -p /run/sshd; ssh-keygen -A; exec /usr/sbin/sshd -De -o UsePAM=no"
    for node in nodes:
        own = PodSpec(
            name=f"sshd-{node}", image=image, command=["sh", "-c", script], host_network=node
        )
        pod = cluster.pod(own).start()
        until(partial(listens, pod))
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_args=[RING],
        each_worker={index: {"host_network": node} for index, node in enumerate(nodes)},
    ).start()
    assert job.wait(PATIENCE) == 0
    spans(job)
    assert ":2222 as root" in job.workers[0].stderr()
