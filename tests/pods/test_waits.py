"""Waits that can't succeed: the obstacle is named, and how to fix it."""

from __future__ import annotations

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.jobs import PATIENCE, ended
from tests.pods.network import DNS_ADDRESSES
from tests.pods.oci import PodSpec
from tests.pods.operator import mpijob
from tests.waiting import until

pytestmark = pytest.mark.full
NAME = images.NAMES[-1]
CHAIN = ("add table ip t", "add chain ip t i { type filter hook input priority 0; }")


def test_an_ssh_port_that_is_filtered(cluster: Cluster, rig: None) -> None:
    """As by a NetworkPolicy or a node's firewall, which drop."""
    job = mpijob(cluster, images.image(NAME), env={"MPIBOOT_TIMEOUT": "10"}).start(publish=False)
    for rule in (*CHAIN, "add rule ip t i tcp dport 22 drop"):
        job.workers[1].network.run("nft", rule)
    job.publish()
    assert job.wait(PATIENCE) == 69
    message = job.launcher.termination_log()
    assert ", though other ports refuse" in message
    assert "port 22 of pi-worker-1.pi.default.svc is filtered: its pod is there" in message
    assert "A NetworkPolicy or firewall must let the launcher connect to port 22" in message
    assert "look closer: kubectl exec -n default pi-worker-1 -- mpiboot doctor" in message


def test_a_launcher_with_its_nodes_nameserver(cluster: Cluster, rig: None) -> None:
    job = mpijob(
        cluster,
        images.image(NAME),
        workers=1,
        env={"MPIBOOT_TIMEOUT": "15"},
        launcher={"host_network": "node-1", "cluster_dns": False},
    )
    job.start(publish=False)  # that nameserver has no name of the cluster
    assert job.wait(PATIENCE) == 68
    message = job.launcher.termination_log()
    assert "/etc/resolv.conf is not the cluster's (no search list)" in message
    assert "`dnsPolicy: ClusterFirstWithHostNet`" in message


def test_a_nameserver_that_never_answers_is_named(cluster: Cluster, rig: None) -> None:
    cluster.dns.behave(drop=1_000_000)
    job = ended(cluster, images.image(NAME), code=68, workers=1, env={"MPIBOOT_TIMEOUT": "15"})
    message = job.launcher.termination_log()
    assert message.startswith("names-unresolved: 1 of 1 hosts do not resolve after ")
    assert DNS_ADDRESSES[0] in message


def test_both_ports_of_a_node_are_taken(cluster: Cluster, rig: None) -> None:
    """The node's sshd has 22 and something else 2222: neither is what to try next."""
    image = images.image(NAME)
    script = "mkdir -p /run/sshd; ssh-keygen -A; exec /usr/sbin/sshd -De -p 22 -p 2222 -o UsePAM=no"
    node = PodSpec(name="sshd", image=image, command=["sh", "-c", script], host_network="node-1")
    taken = cluster.pod(node).start()
    until(lambda: taken.stderr().count("Server listening on 0.0.0.0") == 2)
    job = mpijob(cluster, image, workers=1, worker={"host_network": "node-1"})
    worker = job.workers[0].start()
    assert worker.wait(PATIENCE) == 69
    message = worker.termination_log()
    assert "name a free one with MPIBOOT_SSH_PORT" in message
    assert "MPIBOOT_SSH_PORT=2222" not in message
