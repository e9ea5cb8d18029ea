"""Networks as clusters have them: policies, one family of addresses, odd names; whole jobs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, RING, ended, ranks, spanned, spans
from tests.pods.marks import NEW, OLD, ONE_IMAGE
from tests.pods.mesh import istio
from tests.pods.network import Link
from tests.pods.operator import Job, mpijob
from tests.pods.volumes import SubPath

POLICY = """
table inet allowed {
    chain input {
        type filter hook input priority 0; policy drop;
        iifname "lo" accept
        ct state established,related accept
        meta l4proto ipv6-icmp accept
        tcp dport { %s } accept
    }
}
"""


# A path that carries less than the links say, and tells nobody.
BLACK_HOLE = """
table inet hole {
    chain input {
        type filter hook input priority -300;
        iifname "eth0" meta length > %d drop
    }
}
"""
DEBIAN_HOSTS = "127.0.0.1 localhost\n127.0.1.1 {0}\n::1 localhost ip6-localhost\n"


def only(job: Job, ports: Sequence[str]) -> None:
    """Apply a NetworkPolicy that drops everything else in every pod."""
    for pod in job.pods:
        pod.network.run("nft", "-f", "-", stdin=POLICY % ", ".join(ports))


PORTS = {"MPIBOOT_PORT_RANGE": "40000-40009"}
LINKS = {
    "IPv4": Link(),
    "IPv6": Link(ipv4=False, ipv6=True),
    "both": Link(ipv6=True, ipv6_first=True),
}


@pytest.mark.parametrize(
    ("image", "link"),
    [
        pytest.param(
            image,
            link,
            id=f"{image}-{name}",
            marks=() if (image, name) == (NEW, "IPv4") else pytest.mark.full,
        )
        # The daemons of 5.0.7 crash on IPv6 alone.
        for image, name in ((NEW, "IPv4"), (OLD, "IPv4"), (OLD, "IPv6"), (NEW, "both"))
        for link in [LINKS[name]]
    ],
    indirect=["image"],
)
def test_a_policy_that_allows_ssh_and_a_range(cluster: Cluster, image: Image, link: Link) -> None:
    pod, program = {"links": (link,)}, ["mpirun", RING, "--bytes", "1"]
    job = mpijob(
        cluster, image, slots=2, launcher_args=program, env=PORTS, launcher=pod, worker=pod
    )
    only(job, ["22", "40000-40009"])
    assert job.start().wait(PATIENCE) == 0
    spans(job, slots=2)


@pytest.mark.full
def test_a_launcher_that_runs_ranks_too_keeps_to_its_ports(cluster: Cluster, image: Image) -> None:
    job = mpijob(cluster, image, workers=1, as_worker=True, env=PORTS)
    only(job, ["22", "40000-40009"])
    assert job.start().wait(PATIENCE) == 0


@pytest.mark.full
def test_a_range_that_is_too_small_is_said(cluster: Cluster, rig: None) -> None:
    job = ended(
        cluster,
        images.image("openmpi-5.0"),
        code=78,
        workers=1,
        slots=4,
        env={"MPIBOOT_PORT_RANGE": "40000-40003"},
    )
    assert "daemons need 2, and a host has 4 slots" in job.launcher.termination_log()


def test_a_sidecar_in_front_of_every_pod_is_hinted_at(cluster: Cluster, rig: None) -> None:
    job = mpijob(
        cluster,
        images.image("openmpi-5.0"),
        env={"MPIBOOT_TIMEOUT": "20", "MPIBOOT_SSH_PORT": "22"},
    )
    for pod in job.pods:
        istio(cluster, pod)
    assert job.start().wait(PATIENCE) == 69
    message = job.launcher.termination_log()
    assert "no SSH greeting: a proxy in front of the pod (a service mesh's sidecar)?" in message


@pytest.mark.full
def test_the_annotation_that_excludes_the_jobs_ports(cluster: Cluster, image: Image) -> None:
    """The annotation of docs/pod-network.md: the job runs, and no worker is accused."""
    job = mpijob(
        cluster,
        image,
        launcher_args=["mpirun", RING, "--bytes", "1"],
        env={"MPIBOOT_PORT_RANGE": "40000-40009"},
    )
    for pod in job.pods:
        istio(cluster, pod, excluded=["22", "40000-40009"])
    assert job.start().wait(PATIENCE) == 0
    spans(job)
    assert "[worker-" not in job.launcher.stderr()


@pytest.mark.full
def test_names_on_127_0_1_1(cluster: Cluster, image: Image) -> None:
    """As on Debian: by a mounted /etc/hosts on one worker, by hostAliases on the other pods."""
    job = ended(
        cluster,
        image,
        *("mpirun", RING, "--bytes", "1"),
        as_worker=True,
        launcher={"extra_hosts": {"127.0.1.1": ["pi-launcher", "pi-launcher.pi.default.svc"]}},
        each_worker={
            0: {"volumes": [SubPath("/etc/hosts", DEBIAN_HOSTS.format("pi-worker-0"))]},
            1: {"extra_hosts": {"127.0.1.1": ["pi-worker-1"]}},
        },
    )
    hosts = [pod.hostname for pod in job.pods]
    assert ranks(job.launcher.stdout()) == [(n, 3, host) for n, host in enumerate(hosts)]
    for worker in job.workers:
        assert f"listens on {worker.address}:22" in worker.stderr()


@ONE_IMAGE
def test_a_smaller_mtu_on_one_node(cluster: Cluster, image: Image) -> None:
    job = spanned(
        cluster,
        image,
        *("mpirun", RING, "--bytes", "8"),
        each_worker={1: {"links": (Link(mtu=1400),)}},
    )
    message = " ".join(job.launcher.stderr().split())
    assert (
        "[workers-differ] workers differ: pi-worker-1.pi.default.svc: 0 GPUs, 0 RDMA ports, "
        "MTU 1400; the others (1): 0 GPUs, 0 RDMA ports, MTU 1500"
    ) in message


@pytest.mark.full
def test_a_path_that_loses_large_packets(cluster: Cluster, rig: None) -> None:
    """The server's greeting fits any packet; its half of the key exchange is the first to hang."""
    job = mpijob(cluster, images.image("openmpi-5.0"), workers=1, env={"MPIBOOT_TIMEOUT": "30"})
    job.launcher.network.run("nft", "-f", "-", stdin=BLACK_HOLE % 1400)
    assert job.start().wait(PATIENCE) == 69
    message = job.launcher.termination_log()
    assert "SSH login timed out: are large packets lost (MTU)?" in message
    assert "CNI configuration" in message
