"""Workers that can't reach each other: firewalls and NAT between pods, and jobs without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pods import images
from tests.pods.jobs import PATIENCE, RING, spanned, spans
from tests.pods.operator import mpijob
from tests.pods.test_foreign import plain_worker
from tests.pods.test_network import BETWEEN
from tests.waiting import until

if TYPE_CHECKING:
    from tests.pods.cluster import Cluster
    from tests.pods.images import Image
    from tests.pods.operator import Job

# All that another worker sends is dropped, SSH too.
ALL = """
table inet between {
    chain input {
        type filter hook input priority 0;
        ct state established,related accept
        ip saddr { %s } drop
    }
}
"""
# As a node's masquerade rule that is too wide: a worker's connections come from another address.
SNAT = """
table ip wide {
    chain input {
        type nat hook input priority 100;
        ip saddr { %s } snat to 10.244.0.250
    }
}
"""
NAMES = "pi-worker-0.pi.default.svc", "pi-worker-1.pi.default.svc"


def both_ways(job: Job, rules: str) -> None:
    """Rules in each of the first two workers, for what the other one sends."""
    first, second = job.workers[:2]
    for one, other in ((first, second), (second, first)):
        one.network.run("nft", "-f", "-", stdin=rules % other.address)


def said_at_the_end(job: Job) -> str:
    return " ".join(job.launcher.termination_log().split())


@pytest.mark.parametrize(
    "image",
    ["openmpi-4.1", pytest.param("openmpi-5.0", marks=pytest.mark.full)],
    indirect=True,
)
def test_a_firewall_between_workers_ends_the_job_before_mpirun(
    cluster: Cluster, image: Image
) -> None:
    job = mpijob(cluster, image, workers=2, launcher_args=["mpirun", RING, "--bytes", "1"])
    both_ways(job, BETWEEN)
    assert job.start().wait(PATIENCE) == 69
    message = said_at_the_end(job)
    assert any(
        f"worker-pairs: {NAMES[one]} can't reach {NAMES[other]} "
        f"({job.workers[other].address} port " in message
        for one, other in ((0, 1), (1, 0))
    )
    assert (
        "): no answer in 2 s, twice; its SSH port 22 answers; 1 more of 2 that were tried"
        in message
    )
    assert "NetworkPolicy or firewall" in message
    assert "starting mpirun" not in job.launcher.stderr()


@pytest.mark.full
def test_nothing_at_all_comes_through_to_a_range_of_ports(cluster: Cluster, rig: None) -> None:
    job = mpijob(
        cluster,
        images.image("openmpi-5.0"),
        workers=2,
        launcher_args=["mpirun", RING],
        env={"MPIBOOT_PORT_RANGE": "40000-40009", "MPIBOOT_PAIR_CHECK": "1"},
    )
    both_ways(job, ALL)
    assert job.start().wait(PATIENCE) == 69
    message = said_at_the_end(job)
    assert "port 40009): no answer in 1 s, twice; its SSH port 22 does not answer either" in message


@pytest.mark.full
def test_one_way_is_a_warning(cluster: Cluster, image: Image) -> None:
    """The ring's first message opens the connection by which the second worker answers."""
    job = mpijob(cluster, image, workers=2, launcher_args=["mpirun", RING, "--bytes", "1"])
    first, second = job.workers
    first.network.run("nft", "-f", "-", stdin=BETWEEN % second.address)
    assert job.start().wait(PATIENCE) == 0
    spans(job)
    message = " ".join(job.launcher.stderr().split())
    assert f"warning: [worker-pairs] {NAMES[1]} can't reach {NAMES[0]}" in message


@pytest.mark.full
def test_source_nat_between_workers(cluster: Cluster, image: Image) -> None:
    job = mpijob(cluster, image, workers=2, launcher_args=["mpirun", RING, "--bytes", "1"])
    both_ways(job, SNAT)
    assert job.start().wait(PATIENCE) == 78
    message = said_at_the_end(job)
    assert any(
        f"worker-address: {NAMES[other]} sees connections of {NAMES[one]} come from 10.244.0.250, "
        f"not from its own address {job.workers[one].address}" in message
        for one, other in ((0, 1), (1, 0))
    )


@pytest.mark.full
def test_a_worker_of_somebody_elses_is_not_checked(cluster: Cluster, rig: None) -> None:
    job = spanned(
        cluster,
        images.image("openmpi-5.0"),
        "mpirun",
        RING,
        "--bytes",
        "1",
        workers=3,
        each_worker={
            1: {
                "image": plain_worker("openmpi-5.0"),
                "command": ["/usr/sbin/sshd", "-De"],
                "args": (),
            }
        },
    )
    message = " ".join(job.launcher.stderr().split())
    assert f"{NAMES[1]} tries no connections to other workers: it does not run mpiboot" in message
    assert "2 connections between workers tried" in message


@pytest.mark.full
def test_a_worker_that_never_says_anything_holds_nobody_up(cluster: Cluster, image: Image) -> None:
    job = mpijob(cluster, image, workers=2, launcher_args=["mpirun", RING, "--bytes", "1"])
    for worker in job.workers:
        worker.start()
    folder = "/run/mpiboot/*/worker"
    until(lambda: job.workers[1].exec("sh", "-c", f"[ -e {folder}/probe ]").returncode == 0)
    job.workers[1].shell(f"for d in {folder}; do echo 'exec cat' > $d/probe; done")
    job.publish()
    job.launcher.start()
    assert job.wait(PATIENCE) == 0
    spans(job)
    assert "tries of connections are not waited for" in job.launcher.stderr()


@pytest.mark.full
def test_doctor_and_wait_look_too(cluster: Cluster, rig: None) -> None:
    job = mpijob(
        cluster, images.image("openmpi-5.0"), workers=2, launcher_command=["sleep", "1000"]
    ).start()
    doctor = ("mpiboot", "doctor")
    assert job.launcher.exec("mpiboot", "wait").returncode == 0
    good = job.launcher.exec(*doctor)
    assert "workers reach each other: 2 connections tried" in good.stdout
    both_ways(job, ALL)
    bad = job.launcher.exec(*doctor)
    assert bad.returncode == 1
    assert "its SSH port 22 does not answer either" in " ".join(bad.stdout.split())
    waited = job.launcher.exec("mpiboot", "wait")
    assert waited.returncode == 0
    message = " ".join(waited.stderr.split())
    assert "[worker-pairs]" in message
    assert "a warning only: what will be started is not known here" in message
