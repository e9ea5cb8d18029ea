"""Networks as clusters have them: policies, one family of addresses, odd names; whole jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pods import images
from tests.pods.operator import mpijob
from tests.pods.test_job import PATIENCE, RING, spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.pods.cluster import Cluster
    from tests.pods.images import Image
    from tests.pods.operator import Job

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


def only(job: Job, ports: Sequence[str]) -> None:
    """A NetworkPolicy that lets nothing else into any pod."""
    for pod in job.pods:
        pod.network.run("nft", "-f", "-", stdin=POLICY % ", ".join(ports))


def test_a_policy_that_allows_ssh_and_one_range_of_ports(cluster: Cluster, image: Image) -> None:
    job = mpijob(
        cluster,
        image,
        workers=2,
        slots=2,
        launcher_args=[RING, "--bytes", "1"],
        env={"MPIBOOT_PORT_RANGE": "40000-40009"},
    )
    only(job, ["22", "40000-40009"])
    assert job.start().wait(PATIENCE) == 0
    spans(job, slots=2)


@pytest.mark.full
def test_a_launcher_that_runs_ranks_too_keeps_to_its_ports(cluster: Cluster, image: Image) -> None:
    job = mpijob(
        cluster,
        image,
        workers=1,
        launcher_args=[RING],
        as_worker=True,
        env={"MPIBOOT_PORT_RANGE": "40000-40009"},
    )
    only(job, ["22", "40000-40009"])
    assert job.start().wait(PATIENCE) == 0


@pytest.mark.full
def test_such_a_policy_without_the_setting(cluster: Cluster, image: Image) -> None:
    """So that the test above proves something."""
    job = mpijob(
        cluster, image, workers=2, launcher_args=[RING], env={"MPIBOOT_LAUNCH_TIMEOUT": "5"}
    )
    only(job, ["22", "40000-40009"])
    assert job.start().wait(PATIENCE) == 69
    assert "NetworkPolicy" in job.launcher.termination_log()


def test_a_range_that_is_too_small_is_said(cluster: Cluster, rig: None) -> None:
    job = mpijob(
        cluster,
        images.image("openmpi-5.0"),
        workers=1,
        slots=4,
        launcher_args=[RING],
        env={"MPIBOOT_PORT_RANGE": "40000-40003"},
    ).start()
    assert job.wait(PATIENCE) == 78
    assert "daemons need 2, and a host has 4 slots" in job.launcher.termination_log()
