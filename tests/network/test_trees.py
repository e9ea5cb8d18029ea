"""From the kernel's own form to the variables: built trees of hardware that tests can't have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.facts import Fabric, Link, Worker
from mpiboot.core.settings import Settings
from mpiboot.network import rdma
from tests.data.build_sysfs import build, kernel
from tests.data.rdma_nodes import TREES, Tree
from tests.fakes import networks
from tests.fakes import workers as w

# The addresses of each tree's links in the pod, as its GID tables have them.
ADDRESSES: Mapping[str, Mapping[str, str]] = {
    "mlx5-vfs": {"net1": "172.16.5.7/24"},
    "ipoib": {"net1": "10.9.0.7/24"},
    "efa": {},
    "rails": {f"net{number}": f"10.{number + 9}.0.7/24" for number in range(1, 9)},
    "macvlan": {"net1": "10.0.0.12/24"},
    "crowd": {"net1": "10.56.17.7/24"},
    "sub-function": {"net1": "fd00:5::7/64"},
}
KINDS = {"macvlan": "macvlan", "ipoib": "ipoib"}


def pod(name: str, fabric: Fabric) -> Worker:
    """A pod with this tree's links beside its control link."""
    tree: Tree = TREES[name]
    known = ADDRESSES[name]
    links = [
        Link(
            number,
            link,
            KINDS.get(name, "ether"),
            up=True,
            mtu=mtu,
            addresses=(known[link],) if link in known else (),
            hardware=tree.addresses.get(link, f"02:00:00:00:00:{number:02x}"),
            pkey=0x8001 if name == "ipoib" and link == "net1" else None,
        )
        for number, (link, mtu, _) in enumerate(tree.links, start=2)
        if link != "eth0"
    ]
    found = w.worker("w-0", w.eth0(), *links)
    assert found.facts is not None
    return replace(found, facts=replace(found.facts, fabric=fabric))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mlx5-vfs", {"UCX_NET_DEVICES": "mlx5_5:1"}),
        # The P_Key child has the address; its partition is at place 2 of the port's table.
        ("ipoib", {"UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1", "NCCL_IB_PKEY": "2"}),
        ("efa", {"NCCL_SOCKET_IFNAME": "=eth0"}),
        ("rails", {"UCX_NET_DEVICES": ",".join(f"mlx5_{number}:1" for number in range(10, 18))}),
        (
            "macvlan",
            {"UCX_NET_DEVICES": "mlx5_2:1", "NCCL_IB_GID_INDEX": "11", "UCX_IB_GID_INDEX": "11"},
        ),
        ("crowd", {"UCX_NET_DEVICES": "mlx5_17:1"}),
    ],
)
def test_a_trees_own_ports_become_the_variables(
    name: str, expected: Mapping[str, str], tmp_path: Path
) -> None:
    fabric = rdma.assemble(kernel(TREES[name]), *build(TREES[name], tmp_path))
    found = networks.decide([pod(name, fabric)], Settings(nccl_version="2.28.9"))
    assert expected.items() <= found.common.items()
    assert not {"NCCL_IB_HCA", "NCCL_NET"} & found.common.keys()  # no other device opens
    assert ("NCCL_IB_GID_INDEX" in found.common) == ("NCCL_IB_GID_INDEX" in expected)
    assert not found.findings
    assert not found.networks[0].pending


def test_a_sub_function_whose_table_lacks_its_address_waits_and_is_said(tmp_path: Path) -> None:
    fabric = rdma.assemble(kernel(TREES["sub-function"]), *build(TREES["sub-function"], tmp_path))
    found = networks.decide([pod("sub-function", fabric)], Settings())
    assert found.networks[0].pending == ("port mlx5_4:1 has no RoCE v2 entry for net1 yet",)
    assert [item.check for item in found.findings] == ["rdma-gid"]
