"""Two examples as they are: their own pods, with what a cluster's operators would give them.

Its own run of the machine: under emulation it takes minutes. Each worker is on a node of its own,
as far as RDMA goes. Multus and the device plugins are stood in for by what the manifest asks them
for: a macvlan link over the node's NIC and the node's device, or a link with a device of its own,
as a virtual function is. Ranks don't send by it: this kernel's soft-RoCE has one network, which is
not a pod's (job.py sends).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from tests.manifests.examples import FOLDER, read
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.jobs import ranks
from tests.pods.network import Link
from tests.pods.oci import PodSpec
from tests.pods.play import prepare
from tests.pods.pod import Pod
from tests.vm.inside.machine import active, has_gid, rdma_links, run

# By what kind of network, the pod's link, and the resource by which its device is asked for.
NETWORKS = {
    "MacvlanNetwork": ("macvlan", "rdma/rdma_shared_device_a"),
    "SriovNetwork": ("veth", "openshift.io/mellanoxnics"),
}
PATIENCE = 800  # seconds, against a hang
# What a rank was given, and the entry of the GID table that NCCL would send from.
TRAIN = """#!/bin/sh
port=/sys/class/infiniband/$UCX_NET_DEVICES
port=${port%:*}/ports/${port#*:}
gid=$(cat "$port/gids/$NCCL_IB_GID_INDEX")
type=$(cat "$port/gid_attrs/types/$NCCL_IB_GID_INDEX")
echo "$HOSTNAME $NCCL_SOCKET_IFNAME $UCX_NET_DEVICES $gid $type $*"
exec /opt/programs/ring
"""


class Nodes(Cluster):
    """Nodes with a RoCE NIC each: a pod gets what its template asks for, and else nothing."""

    def __init__(self, documents: Sequence[dict[str, Any]]) -> None:
        super().__init__()
        # In this emulated machine mpirun may take longer to say what it is than a launcher waits.
        self.launcher_env = {"MPIBOOT_MPI": "openmpi5"}
        *others, job = documents
        self._networks = {
            item["metadata"]["name"]: NETWORKS[item["kind"]]
            for item in others
            if item["kind"] in NETWORKS
        }
        self._replicas = job["spec"]["mpiReplicaSpecs"]

    def pod(self, spec: PodSpec, *, beside: Pod | None = None) -> Pod:
        """The pod, on a node of its own."""
        role, _, number = spec.name.removeprefix("train-").partition("-")
        template = self._replicas[role.capitalize()]["template"]
        annotations = template.get("metadata", {}).get("annotations", {})
        network = annotations.get("k8s.v1.cni.cncf.io/networks")
        if network is None:
            return super().pod(spec, beside=beside)
        kind, resource = self._networks[network]
        device, nic = f"rxe{number}", self._nic(number)
        link = Link("net1", "br-data", kind=kind, nic=nic)
        made = super().pod(replace(spec, links=(*spec.links, link)), beside=beside)
        add = ("rdma", "link", "add", device, "type", "rxe", "netdev")
        if kind == "macvlan":
            self.node.run(*add, nic)
        else:
            made.network.run(*add, "net1")
        active(device)
        (container,) = template["spec"]["containers"]
        if container["resources"].get("limits") == {resource: "1"}:
            made.spec = replace(made.spec, devices=(device_node(device),))
        return made

    def _nic(self, number: str) -> str:
        """A node's NIC, with a cable to the switch of all."""
        name, far = f"ens{number}f0np0", f"far{number}"
        self.node.run("ip", "link", "add", name, "type", "veth", "peer", "name", far)
        self.node.run("ip", "link", "set", far, "master", "br-data", "up")
        self.node.run("ip", "link", "set", name, "up")
        return name

    def close(self) -> None:
        """Takes the devices away first: with their links they would go at any moment."""
        for name in rdma_links():
            run(f"rdma link delete {name}")
        super().close()


def device_node(device: str) -> str:
    """The file by which programs open a device."""
    (found,) = (
        file.parent.name
        for file in Path("/sys/class/infiniband_verbs").glob("*/ibdev")
        if file.read_text().strip() == device
    )
    return f"/dev/infiniband/{found}"


@pytest.fixture(scope="module", autouse=True)
def control_groups() -> None:
    run("mount -t cgroup2 cgroup2 /sys/fs/cgroup")


@pytest.mark.parametrize("name", ["rdma/macvlan.yaml", "rdma/sriov-openshift.yaml"])
def test_an_example_runs_with_the_link_and_the_device_that_it_asks_for(name: str) -> None:
    image = images.image("openmpi-5.0").with_files({"/train": TRAIN}, 0o755)
    with Nodes(read(name)) as cluster:
        pods = prepare(FOLDER / name).played(cluster, image)
        own = [worker.network.addresses("net1")[0] for worker in pods.workers]
        for number, address in enumerate(own):
            has_gid(f"rxe{number}", f"::ffff:{address}")
        pods.start(PATIENCE)
        code = pods.launcher.wait(PATIENCE)
        message, told = pods.launcher.stdout(), pods.launcher.stderr()
    assert code == 0, told
    hosts = ["train-worker-0", "train-worker-1"]
    assert ranks(message) == [(n, 4, hosts[n // 2]) for n in range(4)]
    assert sorted(re.findall(r"^train-.*", message, re.MULTILINE)) == [
        f"{host} =net1 rxe{number}:1 "
        f"{ip_address(f'::ffff:{own[number]}').exploded} RoCE v2 --epochs 3"
        for number, host in enumerate(hosts)
        for _ in range(2)
    ]
    assert re.search(r"data network: RoCE: rxe\d:1( at [\d.]+ Gb/s)?, rxe\d:1", told)
    assert "Gloo's sockets on net1 (every worker has usable RoCE ports)" in told
