"""The macvlan example as it is: its own pods, with what a cluster's operators would give them.

Its own run of the machine: under emulation it takes minutes. Each worker is on a node of its own,
as far as RDMA goes: a NIC with a device. Multus and the shared device plugin are stood in for by
what the manifest asks them for: a macvlan link over the node's NIC, and the node's device. Ranks
don't send by it: this kernel's soft-RoCE has one network, which is not a pod's (job.py sends).
"""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from tests.manifests.examples import FOLDER
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.network import Link
from tests.pods.play import prepare
from tests.pods.test_job import ranks
from tests.vm.inside.machine import active, has_gid, rdma_links, run

if TYPE_CHECKING:
    from tests.pods.oci import PodSpec
    from tests.pods.pod import Pod

NETWORK = {"k8s.v1.cni.cncf.io/networks": "mpi-rdma"}
DEVICE = {"rdma/rdma_shared_device_a": "1"}
PATIENCE = 800  # seconds, against a hang
# What a rank was given, and the entry of the GID table that NCCL would send from.
TRAIN = """#!/bin/sh
port=/sys/class/infiniband/${NCCL_IB_HCA#=}
port=${port%:*}/ports/${port#*:}
gid=$(cat "$port/gids/$NCCL_IB_GID_INDEX")
type=$(cat "$port/gid_attrs/types/$NCCL_IB_GID_INDEX")
echo "$HOSTNAME $NCCL_SOCKET_IFNAME $NCCL_IB_HCA $UCX_NET_DEVICES $gid $type $*"
exec /opt/programs/ring
"""


class Nodes(Cluster):
    """Nodes with a RoCE NIC each: a pod gets what its template asks for, and else nothing."""

    def __init__(self, templates: dict[str, Any]) -> None:
        super().__init__()
        self._templates = templates

    def pod(self, spec: PodSpec, *, beside: Pod | None = None) -> Pod:
        """The pod, on a node of its own."""
        role, _, number = spec.name.removeprefix("train-").partition("-")
        template = self._templates[role.capitalize()]["template"]
        (container,) = template["spec"]["containers"]
        if template.get("metadata", {}).get("annotations") == NETWORK:
            nic = self._nic(number)
            link = Link("net1", "br-data", kind="macvlan", nic=nic)
            spec = replace(spec, links=(*spec.links, link))
        if container["resources"].get("limits") == DEVICE:
            spec = replace(spec, devices=(f"/dev/infiniband/uverbs{number}",))
        return super().pod(spec, beside=beside)

    def _nic(self, number: str) -> str:
        """A node's NIC, with a device and a cable to the switch of all."""
        name, far = f"ens{number}f0np0", f"far{number}"
        self.node.run("ip", "link", "add", name, "type", "veth", "peer", "name", far)
        self.node.run("ip", "link", "set", far, "master", "br-data", "up")
        self.node.run("ip", "link", "set", name, "up")
        self.node.run("rdma", "link", "add", f"rxe{number}", "type", "rxe", "netdev", name)
        active(f"rxe{number}")
        return name

    def close(self) -> None:
        """Takes the devices away first: with their links they would go at any moment."""
        for name in rdma_links():
            run(f"rdma link delete {name}")
        super().close()


def test_the_macvlan_example_runs_with_the_link_and_the_device_that_it_asks_for() -> None:
    run("mount -t cgroup2 cgroup2 /sys/fs/cgroup")
    image = images.image("openmpi-5.0").with_files({"/train": TRAIN}, 0o755)
    job = prepare(FOLDER / "rdma/macvlan.yaml")
    (mpijob,) = job.documents

    with Nodes(mpijob["spec"]["mpiReplicaSpecs"]) as cluster:
        pods = job.played(cluster, image)
        own = [worker.network.addresses("net1")[0] for worker in pods.workers]
        for number, address in enumerate(own):
            has_gid(f"rxe{number}", f"::ffff:{address}")
        pods.start(PATIENCE)
        code = pods.launcher.wait(PATIENCE)
        said, told = pods.launcher.stdout(), pods.launcher.stderr()

    assert code == 0, told
    hosts = ["train-worker-0", "train-worker-1"]
    assert ranks(said) == [(n, 4, hosts[n // 2]) for n in range(4)]
    assert sorted(re.findall(r"^train-.*", said, re.MULTILINE)) == [
        f"{host} =net1 =rxe{number}:1 rxe{number}:1 "
        f"{ip_address(f'::ffff:{own[number]}').exploded} RoCE v2 --epochs 3"
        for number, host in enumerate(hosts)
        for _ in range(2)
    ]
    assert "data network: RoCE: NCCL's data by ports that differ by worker" in told
    assert "its bootstrap by net1 (every worker has usable RoCE ports)" in told
