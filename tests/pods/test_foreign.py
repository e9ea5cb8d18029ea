"""Images that lack something, and workers that are somebody else's: whole jobs all the same."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.pods import images
from tests.pods.cache import CACHE
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import (
    AGENT,
    PATIENCE,
    RING,
    agent_variable,
    ended,
    ranks,
    refused,
    spanned,
    spans,
)
from tests.pods.marks import ONE_IMAGE
from tests.pods.oci import PodSpec
from tests.pods.operator import mpijob
from tests.pods.pod import Pod
from tests.waiting import until

TRAINER_NODE = ["/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config"]


@ONE_IMAGE
def test_neither_side_has_any_ssh(cluster: Cluster, image: Image) -> None:
    job = spanned(cluster, images.image(f"{image.name}-nossh"), slots=2)
    assert "embedded" in job.workers[0].stderr()


def _open_files(pod: Pod, word: str) -> set[str]:
    """The soft limits of the processes that have a word on their command line."""
    found = [item for item in pod.processes() if word in " ".join(item.args[:6])]
    limits = (Path(f"/proc/{item.host_pid}/limits").read_text() for item in found)
    return {line.split()[3] for text in limits for line in text.splitlines() if "files" in line}


@pytest.mark.full
def test_the_launcher_and_mpirun_raise_their_open_files(cluster: Cluster, rig: None) -> None:
    job = mpijob(
        cluster,
        images.image("openmpi-5.0-nossh"),
        launcher_args=["mpirun", RING, "--sleep", "1000"],
        launcher={"rlimits": {"RLIMIT_NOFILE": (256, 4096)}},
    ).start()
    until(lambda: len(ranks(job.launcher.stdout())) == 2)
    assert _open_files(job.launcher, "bin/mpiboot") == {"4096"}  # what waited for the hosts
    assert _open_files(job.launcher, " -n 2 -x ") == {"4096"}  # mpirun: prterun here


# An mpirun that says it is another; what it starts is the image's own.
SAYS = """#!/bin/sh
[ "$1" != --version ] || {{ echo '{}'; exit; }}
exec /usr/bin/mpirun "$@"
"""


@pytest.mark.full
def test_an_mpi_that_nobody_knows_gets_the_users_own_line(cluster: Cluster, rig: None) -> None:
    """The operator's hostfile and keys are there for it; its ssh is the image's own."""
    wrapper = {
        "/usr/local/bin/mpirun": SAYS.format("mpirun 1.0 by someone"),
        "/etc/ssh/ssh_config.d/job.conf": "StrictHostKeyChecking accept-new\n",
    }
    image = images.image("openmpi-4.1").with_files(wrapper, 0o755)
    line = ["mpirun", "--allow-run-as-root", "-n", "2", "sh", "-c", "hostname; exit 3"]
    late = {1: {"command": ["sh", "-c", "sleep 2; exec mpiboot worker"]}}
    job = ended(cluster, image, *line, code=3, each_worker=late)
    assert "mpiboot does not know this MPI" in job.launcher.stderr()


@ONE_IMAGE
def test_the_operators_base_image_as_user_1000(cluster: Cluster, image: Image) -> None:
    """Its sshd_config: the mounted key is the host key, and the port is 2222."""
    config = (
        "PidFile /tmp/sshd.pid\nHostKey /home/mpiuser/.ssh/id_rsa\nStrictModes no\nPort 2222\n"
        "AuthorizedKeysFile /home/mpiuser/.ssh/authorized_keys\n"
    )
    spanned(
        cluster,
        image.with_files({"/home/mpiuser/.sshd_config": config}),
        slots=2,
        worker_command=TRAINER_NODE,
        worker_args=(),
        user=1000,
    )


def plain_worker(name: str) -> Image:
    """An MPI's image for root without any file of mpiboot; it serves with the operator's keys."""
    whole = images.image(name)
    code = [layer for layer in whole.layers if layer.parent == CACHE / "code"]
    below = replace(whole, layers=tuple(layer for layer in whole.layers if layer not in code))
    config = (
        "HostKey /root/.ssh/id_rsa\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
        "AuthorizedKeysFile /root/.ssh/authorized_keys\n"
    )
    return below.without(
        "/opt/mpiboot", "/usr/local/bin/mpiboot", "/usr/local/share/mpiboot"
    ).with_files({"/etc/ssh/sshd_config": config, "/run/sshd/.keep": ""})


# A launch by mpirun itself and by a script.
HYDRAS = ("mpich-5.0", "mpich-4.0", "intel-mpi")
WAYS = {
    "mpirun": ("mpirun", "-np", "2", RING),
    "script": ("sh", "-c", f"mpirun -np 2 {RING}"),
}


# What lets workers start each other's daemons; mpirun itself starts the first 64.
TREES = {
    "openmpi-4.1": {"OMPI_MCA_routed": "radix"},
    "openmpi-5.0": {"PRTE_MCA_plm_ssh_no_tree_spawn": "0"},
}


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((images.NAMES[0], way) for way in WAYS),
        *(
            pytest.param(name, "mpirun", marks=pytest.mark.full)
            for name in (images.NAMES[1], *HYDRAS)
        ),
    ],
)
def test_workers_of_an_image_without_mpiboot(
    cluster: Cluster, rig: None, name: str, way: str
) -> None:
    """The MPI Operator's own command is all that a worker runs."""
    job = spanned(
        cluster,
        images.image(name),
        *WAYS[way],
        worker_args=(),
        worker={"image": plain_worker(name)},
    )
    for worker in job.workers:
        assert not worker.shell("find / -xdev -iname '*mpiboot*'")


@pytest.mark.full
@pytest.mark.parametrize("name", TREES)
def test_an_agent_and_a_tree_without_mpiboot(cluster: Cluster, rig: None, name: str) -> None:
    """The agent is in the launcher's image alone."""
    image = images.image(name)
    job = spanned(
        cluster,
        image.with_files({"/opt/agent": AGENT.format("echo own agent >&2")}, 0o755),
        worker_args=(),
        launcher={"env": {agent_variable(image): "/opt/agent", **TREES[name]}},
        worker={"image": plain_worker(name)},
    )
    assert job.launcher.stderr().count("own agent") == len(job.workers)


@pytest.mark.full
def test_workers_that_can_not_start_each_others_daemons(cluster: Cluster, rig: None) -> None:
    image = images.image(images.NAMES[0])
    refuses = image.with_files({"/usr/local/bin/ssh": "#!/bin/sh\nexit 255\n"}, 0o755)
    line = ("mpirun", "--map-by", "node", "--mca", "routed", "binomial", RING)
    job = mpijob(cluster, image, workers=5, launcher_args=line, worker={"image": refuses}).start()
    assert job.launcher.wait() == 78
    assert "[agent-not-started]" in job.launcher.stderr()
    assert "--mca routed binomial: given on the mpirun line" in job.launcher.stderr()


def listens(pod: Pod) -> bool:
    """A stock sshd says that it is up."""
    return "Server listening" in pod.stderr()


@ONE_IMAGE
def test_host_network_beside_the_nodes_own_sshd(cluster: Cluster, image: Image) -> None:
    nodes = ["node-1", "node-2"]
    script = "mkdir -p /run/sshd; ssh-keygen -A; exec /usr/sbin/sshd -De -p 22"
    for node in nodes:
        own = PodSpec(
            name=f"sshd-{node}", image=image, command=["sh", "-c", script], host_network=node
        )
        pod = cluster.pod(own).start()
        until(partial(listens, pod))
    each = {index: {"host_network": node} for index, node in enumerate(nodes)}
    job = spanned(cluster, image, each_worker=each)
    assert ":2222 as root" in job.workers[0].stderr()


def test_a_node_without_a_default_route(cluster: Cluster, rig: None) -> None:
    job = mpijob(cluster, images.image("openmpi-4.1"), each_worker={0: {"host_network": "node-1"}})
    node = job.workers[0]
    node.network.run("ip", "route", "delete", "default")
    assert job.start().wait(PATIENCE) == 0
    spans(job)
    message = " ".join(node.stderr().split())
    assert (
        f"warning: control address {node.address} (there is no default route and none to the API, "
        "10.96.0.1; an address of " in message
    )


SHARED = {
    "two workers": (
        {"worker": {"host_network": "node-1"}},
        "pi-worker-0.pi.default.svc, pi-worker-1.pi.default.svc lead to one and the same SSH serv",
    ),
    "the launcher and a worker": (
        {"launcher": {"host_network": "node-1"}, "each_worker": {0: {"host_network": "node-1"}}},
        "pi-worker-0.pi.default.svc: this worker's name leads to the launcher's own address",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize(("pods", "message"), SHARED.values(), ids=SHARED)
def test_pods_that_share_a_nodes_network_and_its_address(
    cluster: Cluster, image: Image, pods: dict[str, Any], message: str
) -> None:
    """By itself Open MPI hangs, or runs the worker's ranks in the launcher's pod."""
    refused(cluster, image, 78, f"settings-conflict: {message}", **pods)
