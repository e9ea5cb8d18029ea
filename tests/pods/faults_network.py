"""Pods whose network or variables are broken."""

from __future__ import annotations

from typing import Final

from tests.pods.fault import Fault
from tests.pods.network import Link

_NET1: Final = (Link(), Link("net1", "br-data"))

FAULTS: Final = (
    # -- network -----------------------------------------------------------------------------------
    Fault(
        what="a data link in the pod network's subnet",
        check="control-subnet",
        level="warn",
        message="eth0 (.../24) and net1 (.../24) are in one subnet",
        pod={"links": (Link(), Link("net1", "br-data", ipv4=False))},
        network=("ip address add 10.244.0.222/24 dev net1",),
    ),
    Fault(
        what="two data links in one subnet",
        check="data-subnet",
        level="warn",
        message="net1 (.../24) and net2 (.../24) are in one subnet",
        pod={
            "links": (*_NET1, Link("net2", "br-data")),
            "env": {"MPIBOOT_DATA_IFNAME": "net1,net2"},
        },
    ),
    Fault(
        what="a data link without an address",
        check="data-address",
        level="warn",
        message="link net1 has no address yet",
        pod={
            "links": (Link(), Link("net1", "br-data", ipv4=False)),
            "env": {"MPIBOOT_DATA_IFNAME": "net1"},
        },
    ),
    Fault(
        what="a data link that is down",
        check="data-carrier",
        level="warn",
        message="link net1 has an address, but has no carrier",
        pod={"links": _NET1},
        network=("down net1",),
    ),
    Fault(
        what="MPIBOOT_DATA_IFNAME names no link",
        check="data-link",
        level="fail",
        message="MPIBOOT_DATA_IFNAME: no link net7",
        pod={"links": _NET1, "env": {"MPIBOOT_DATA_IFNAME": "net7"}},
    ),
    Fault(
        what="MPIBOOT_RDMA_DEVICE names no device",
        check="rdma-device",
        level="fail",
        message="MPIBOOT_RDMA_DEVICE: no device mlx5_9",
        pod={"env": {"MPIBOOT_RDMA_DEVICE": "mlx5_9"}},
    ),
    Fault(
        what="RDMA is required and the pod has none",
        check="rdma-missing",
        level="fail",
        message="no RDMA device: ...",
        pod={"env": {"MPIBOOT_DATA_NETWORK": "require"}},
    ),
    # -- variables ---------------------------------------------------------------------------------
    Fault(
        what="NCCL_SOCKET_IFNAME fits no link",
        check="nccl-value",
        level="warn",
        message="NCCL_SOCKET_IFNAME=ens5 fits nothing here (there are lo, eth0)",
        pod={"env": {"NCCL_SOCKET_IFNAME": "ens5"}},
        quick=True,
    ),
    Fault(
        what="GLOO_SOCKET_IFNAME names no link",
        check="named-links",
        level="warn",
        message="GLOO_SOCKET_IFNAME=ens5: no link ens5 here (there are lo, eth0)",
        pod={"env": {"GLOO_SOCKET_IFNAME": "ens5"}},
    ),
    Fault(
        what="an mpirun that was started without mpiboot",
        check="shims",
        level="warn",
        message="this container's first process is mpirun, started without mpiboot",
        runs=("mpirun", "--allow-run-as-root", "-n", "1", "sh", "-c", "echo up >&2; sleep 600"),
        until="up",
    ),
)
