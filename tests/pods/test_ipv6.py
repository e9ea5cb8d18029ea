"""Pods with IPv6 alone, and with both versions; whole jobs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, RING, ended, spanned, spans
from tests.pods.marks import OLD
from tests.pods.network import Link
from tests.pods.operator import mpijob
from tests.waiting import until

NAME = "openmpi-5.0"
SIX: dict[str, Any] = {"links": (Link(ipv4=False, ipv6=True),)}
# The daemons of 5.0.7 crash there.
ON_SIX = pytest.mark.parametrize("image", [OLD], indirect=True)
BOTH: dict[str, Any] = {"links": (Link(ipv6=True),)}
BOTH_SIX_FIRST: dict[str, Any] = {"links": (Link(ipv6=True, ipv6_first=True),)}
DROPS_SSH_ON_IPV6 = """
table ip6 dropped {
    chain input {
        type filter hook input priority 0;
        tcp dport 22 counter drop
    }
}
"""
# What the MPI of every image answers here; that of a build without IPv6 can't be had as a package.
NO_IPV6 = "#!/bin/sh\necho options:mpi1_compat:no\necho options:ipv6:no\n"


@ON_SIX
def test_a_job_on_ipv6_alone(cluster: Cluster, image: Image) -> None:
    """Names come late, so that the gate queries a name server on IPv6 as well."""
    job = mpijob(
        cluster,
        image,
        slots=2,
        launcher_args=["mpirun", RING, "--bytes", "1"],
        launcher=SIX,
        worker=SIX,
    ).start(publish=False)
    until(lambda: "NXDOMAIN" in job.launcher.stderr())
    job.publish()
    assert job.wait(PATIENCE) == 0
    spans(job, slots=2)
    message = job.launcher.stderr()
    assert "ip-version" in message
    # Open MPI's own complaint about addresses of a version that it isn't meant to use.
    assert "reachable pairing" not in message
    assert "listens on [fd00:10:244::" in job.workers[0].stderr()


@pytest.mark.full
@pytest.mark.parametrize("image", [f"{OLD}-nossh"], indirect=True)
def test_the_embedded_server_and_client_on_ipv6_alone(cluster: Cluster, image: Image) -> None:
    """The launcher's pod runs ranks too."""
    job = ended(cluster, image, workers=1, as_worker=True, launcher=SIX, worker=SIX)
    assert job.launcher.stdout().count("rank ") == 2
    assert "(embedded) listens on [" in job.workers[0].stderr()


@pytest.mark.full
@ON_SIX
def test_a_hostfile_of_ipv6_addresses(cluster: Cluster, image: Image) -> None:
    """In brackets and bare, as people write them; no name of a pod is known to DNS."""
    addresses = [f"fd00:10:244::{number:x}" for number in (11, 12)]
    job = mpijob(
        cluster,
        image,
        hostfile=f"[{addresses[0]}]:1\n{addresses[1]} slots=1\n",
        launcher=SIX,
        worker=SIX,
    ).start(publish=False)
    assert [worker.address for worker in job.workers] == addresses
    assert job.wait(PATIENCE) == 0
    spans(job)
    assert "fd00:10:244::b -> ip-fd00-10-244--b" in job.launcher.stderr()


@pytest.mark.full
@pytest.mark.parametrize(
    ("image", "pod", "version"),
    [
        pytest.param(OLD, BOTH, "IPv4", id="IPv4 first"),
        pytest.param(NAME, BOTH_SIX_FIRST, "IPv6", id="IPv6 first"),
    ],
    indirect=["image"],
)
def test_pods_with_both_versions(
    cluster: Cluster, image: Image, pod: dict[str, Any], version: str
) -> None:
    job = spanned(cluster, image, "mpirun", RING, "--bytes", "1", slots=2, launcher=pod, worker=pod)
    message = job.launcher.stderr()
    assert message.partition("plan ip-version=")[2].split()[0] == version
    assert "reachable pairing" not in message


@pytest.mark.full
def test_the_gate_asks_for_the_version_that_workers_listen_on(cluster: Cluster, rig: None) -> None:
    """The other one may be dropped without a word, and each try would cost its time limit."""
    job = mpijob(cluster, images.image(NAME), launcher=BOTH, worker=BOTH)
    for worker in job.workers:
        worker.network.run("nft", "-f", "-", stdin=DROPS_SSH_ON_IPV6)
        worker.start()
    # Of a host that still refuses SSH by the one version the other one is tried, too.
    until(lambda: all("listens on" in worker.stderr() for worker in job.workers))
    job.publish()
    job.launcher.start()
    assert job.wait(PATIENCE) == 0
    spans(job)
    for worker in job.workers:
        assert "counter packets 0 bytes 0" in worker.network.run("nft", "list", "ruleset")


def test_an_mpi_without_ipv6_is_told_before_the_start(cluster: Cluster, rig: None) -> None:
    image = images.image(NAME).with_files({"/usr/bin/ompi_info": NO_IPV6}, mode=0o755)
    job = ended(cluster, image, code=78, launcher=SIX, worker=SIX)
    message = job.launcher.termination_log()
    assert "is built without IPv6" in message
    assert "--enable-ipv6" in message
    assert job.launcher.stdout() == ""
