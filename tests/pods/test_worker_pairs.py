"""Workers that can't reach each other or the launcher: policies, proxies and NAT between pods."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, RING, spanned, spans
from tests.pods.marks import MOMENT, OLD
from tests.pods.mesh import accepting
from tests.pods.operator import Job, mpijob
from tests.pods.pod import Pod
from tests.pods.test_foreign import plain_worker
from tests.pods.test_split import on, pods, shown
from tests.waiting import until

# As a node's masquerade rule that is too wide: a worker's connections come from another address.
SNAT = """
table ip wide {
    chain input {
        type nat hook input priority 100;
        ip saddr { %s } snat to 10.244.0.250
    }
}
"""
# What comes by a link to another port than SSH's: a policy's verdict on it, and a sidecar's way.
POLICY = """
table inet verdict {
    chain input {
        type filter hook input priority 0;
        ct state established,related accept
        iifname "%s" tcp dport != 22 %s
    }
}
"""
PROXY = """
table ip accept_all {
    chain inbound {
        type nat hook prerouting priority dstnat;
        iifname "%s" tcp dport != 22 redirect to :15006
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


WAYS = {
    "drops": "no answer in 2 s, twice",
    "rejects": "the connection is refused, although that port is listened at: a firewall or "
    "NetworkPolicy that rejects",
    "accepts": "a proxy does that, such as a service mesh's sidecar",
}


def stopped(cluster: Cluster, pods: Sequence[Pod], way: str, link: str = "eth0") -> None:
    """Have what comes to these pods by a link dropped, rejected, or accepted by a stand-in."""
    for pod in pods:
        if way == "accepts":
            pod.network.run("nft", "-f", "-", stdin=PROXY % link)
            accepting(cluster, pod)
        else:
            verdict = "drop" if way == "drops" else "reject with tcp reset"
            pod.network.run("nft", "-f", "-", stdin=POLICY % (link, verdict))


def ways(quick: str) -> pytest.MarkDecorator:
    rows = [pytest.param(way, marks=() if way == quick else pytest.mark.full) for way in WAYS]
    return pytest.mark.parametrize("way", rows)


@pytest.mark.parametrize("image", [OLD], indirect=True)
@ways("rejects")
@pytest.mark.parametrize("to", ["worker", pytest.param("launcher", marks=pytest.mark.full)])
def test_a_blocked_dial_is_named(cluster: Cluster, image: Image, to: str, way: str) -> None:
    line = ("mpirun", "sh", "-c", f"{MOMENT}true")
    job = mpijob(cluster, image, launcher_args=line)
    targets = NAMES[::-1] if to == "worker" else ["the launcher"] * 2
    can = "may not" if way == "accepts" else "can't"
    stopped(cluster, job.workers if to == "worker" else [job.launcher], way)
    job.start()
    if way == "accepts":  # mpirun's daemons would wait forever at the launcher's
        until(lambda: "starting mpirun" in job.launcher.stderr())
        message = " ".join(job.launcher.stderr().split())
        job.launcher.signal(15)
        job.wait(PATIENCE)
    else:
        assert job.wait(PATIENCE) == 69
        assert "starting mpirun" not in job.launcher.stderr()
        message = said_at_the_end(job)
        assert ("; its SSH port 22 answers" in message) == (to == "worker")
    pairs = zip(NAMES, targets, strict=True)
    assert any(f"{one} {can} reach {other} (10.244." in message for one, other in pairs)
    assert WAYS[way] in message
    assert "; 1 more of " in message


@pytest.mark.parametrize("image", [OLD], indirect=True)
@ways("accepts")
def test_a_blocked_data_link_carries_no_sockets(cluster: Cluster, image: Image, way: str) -> None:
    job = pods(cluster, image)
    stopped(cluster, job.workers, way, "net1")
    on_control = {**on("eth0"), "UCX_NET_DEVICES": "eth0"}
    assert shown(job.start()) == {worker.hostname: on_control for worker in job.workers}
    message = " ".join(job.launcher.stderr().split())
    assert "[data-sockets] TCP does not pass on the data network: pi-worker-" in message
    assert any(
        f" reach {name} ({worker.network.addresses('net1')[0]} port" in message
        for name, worker in zip(NAMES, job.workers, strict=True)
    )
    assert "(and 1 more); the control addresses answer, so mpiboot puts no sockets on it" in message
    assert WAYS[way] in message
    assert "[worker-pairs]" not in message


@pytest.mark.full
def test_one_way_is_a_warning(cluster: Cluster, image: Image) -> None:
    """The ring's first message opens the connection by which the second worker answers."""
    job = mpijob(cluster, image, launcher_args=["mpirun", RING, "--bytes", "1"])
    stopped(cluster, job.workers[:1], "drops")
    assert job.start().wait(PATIENCE) == 0
    spans(job)
    message = " ".join(job.launcher.stderr().split())
    assert f"warning: [worker-pairs] {NAMES[1]} can't reach {NAMES[0]}" in message


@pytest.mark.full
def test_source_nat_between_workers(cluster: Cluster, image: Image) -> None:
    job = mpijob(cluster, image, launcher_args=["mpirun", RING, "--bytes", "1"])
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
        *("mpirun", RING, "--bytes", "1"),
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
    assert "4 connections tried" in message
