"""Images that lack something, and workers that are somebody else's: whole jobs all the same."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.pods import images
from tests.pods.oci import PodSpec
from tests.pods.operator import KeyPair, mpijob
from tests.pods.test_job import PATIENCE, RING, ranks, spans, until
from tests.pods.volumes import Files

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


# Kubeflow Trainer's deepspeed-runtime: mpiuser, and the configuration of mpioperator/base.
TRAINER_SSHD = (
    "PidFile /home/mpiuser/sshd.pid\nHostKey /home/mpiuser/.ssh/id_rsa\nStrictModes no\nPort 2222\n"
)
TRAINER_MOUNT = "/home/mpiuser/.ssh"


def trainer_image(name: str) -> Image:
    plain = images.image(name)
    passwd = plain.read_text("/etc/passwd").replace("mpi:", "mpiuser:", 1)
    return plain.with_files(
        {
            "/etc/passwd": passwd.replace("/home/mpi:", "/home/mpiuser:"),
            "/home/mpiuser/.sshd_config": TRAINER_SSHD,
        }
    )


@pytest.mark.parametrize(
    "name", ["openmpi-4.1", pytest.param("openmpi-5.0", marks=pytest.mark.full)]
)
def test_a_trainjob_with_trainers_own_workers(cluster: Cluster, rig: None, name: str) -> None:
    """Its plugin's names, variables, modes and fsGroup (kubeflow/trainer pkg/.../plugins/mpi)."""
    keys = KeyPair.make()
    secret = {"id_rsa": 0o640, "id_rsa.pub": 0o644, "authorized_keys": 0o644}
    hosts = [f"train-node-0-{index}" for index in range(2)]
    hostfile = "".join(f"{host}.train slots=2\n" for host in hosts)
    common = PodSpec(
        name="train",
        image=trainer_image(name),
        subdomain="train",
        user=1000,
        groups=[1000],
        env={"HOME": "/home/mpiuser"},
        volumes=[Files(TRAINER_MOUNT, keys.files(), modes=secret, fs_group=1000)],
    )
    sshd = ["/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config"]
    workers = [
        cluster.pod(replace(common, name=host, hostname=host, command=sshd)).start()
        for host in hosts
    ]
    launcher = cluster.pod(
        replace(
            common,
            name="train-launcher-0-0",
            # The TrainJob's trainer.command.
            command=["mpiboot", "launcher", "--", RING],
            env={
                **common.env,
                "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
                "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
                "OMPI_MCA_orte_set_default_slots": "2",
                "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
            },
            volumes=[
                Files(TRAINER_MOUNT, keys.files(), modes=secret, fs_group=1000),
                Files("/etc/mpi", {"hostfile": hostfile}, 0o444),
            ],
        )
    ).start()
    for worker in workers:
        worker.publish()
    assert launcher.wait(PATIENCE) == 0
    assert ranks(launcher.stdout()) == [(rank, 4, hosts[rank // 2]) for rank in range(4)]
    assert "mpiboot" not in workers[0].stderr()
