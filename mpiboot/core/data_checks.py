"""The rows of what can be wrong with the data network; to be read with ``checks.CHECKS``. Pure."""

from __future__ import annotations

from typing import Final

from mpiboot.core.exit_codes import Check, ExitCode

_DEVICE, _CONFLICT = ExitCode.DEVICE_MISSING, ExitCode.CONFLICT


def _row(reference: str, title: str, hint: str, code: ExitCode = _DEVICE) -> Check:
    return Check(reference, title, code, hint)


DATA_CHECKS: Final = (
    _row(
        "data-link",
        "the links that MPIBOOT_DATA_IFNAME names are there",
        "name links that the workers have (`mpiboot facts` lists them), or unset it",
    ),
    _row(
        "rdma-device",
        "the devices that MPIBOOT_RDMA_DEVICE names are there",
        "name devices that the workers have (`mpiboot facts` lists them), or unset it",
    ),
    _row(
        "control-link",
        "every worker's control link is known",
        "name it with MPIBOOT_CONTROL_IFNAME",
    ),
    _row(
        "rdma-missing",
        "every worker has an RDMA device of its own",
        "ask for the device in the worker's container, and attach its network: "
        'resources: {limits: {<the RDMA resource of your nodes>: "1"}}, '
        "annotations: {k8s.v1.cni.cncf.io/networks: <network>}; `kubectl describe node NODE` lists "
        "what it has to give (Allocatable)",
    ),
    _row(
        "rdma-differs",
        "all workers have the same number and kind of RDMA devices",
        "put all workers on nodes of one kind (nodeSelector), with the same resources",
    ),
    _row(
        "rdma-node",
        "the RDMA device's file in /dev/infiniband can be opened",
        "ask for the RDMA resource in this container, which brings the file: "
        'resources: {limits: {<the RDMA resource of your nodes>: "1"}}',
    ),
    _row(
        "rdma-library",
        "the image's RDMA library has a driver for the device",
        "add it to the image (Debian: libibverbs1 and ibverbs-providers, RPM: libibverbs), or its "
        "folder to LD_LIBRARY_PATH in the worker's pod",
    ),
    _row(
        "efa-library",
        "the image has libfabric, and NCCL's plugin for it",
        "add them to the image (AWS's EFA installer, aws-ofi-nccl), or their folders to "
        "LD_LIBRARY_PATH in the worker's pod; without the plugin NCCL takes TCP",
    ),
    _row(
        "rdma-port",
        "every RDMA port is active",
        "look at cable, switch port and, for InfiniBand, at the subnet manager "
        "(a VF stays INIT until its GUID is known there)",
        ExitCode.NOT_READY,
    ),
    _row(
        "rdma-gid",
        "every RoCE port has a RoCE v2 entry for an address of this pod",
        "the data link needs an address (its network's IPAM), and the node RoCE v2",
        code=ExitCode.NOT_READY,
    ),
    _row(
        "rdma-gid-index",
        "NCCL and UCX can be told the GID index",
        "use NCCL 2.21 or later, or a network of its own for the rails; "
        "or set NCCL_IB_HCA and NCCL_IB_GID_INDEX for each rank",
        _CONFLICT,
    ),
    _row(
        "rdma-mtu",
        "an RDMA port's MTU fits its link's",
        "give the link the MTU of the device below it (`mtu` in its network's definition)",
        _CONFLICT,
    ),
    _row(
        "rdma-mtu-low",
        "an RDMA port uses the largest MTU that its link allows",
        "look at the port's largest MTU on the node (`ibv_devinfo -v`: max_mtu)",
        _CONFLICT,
    ),
    _row(
        "rdma-rails",
        "the rails have the same order on all workers",
        "on a flat network set NCCL_CROSS_NIC=1; else give the rails in one order on every node",
        _CONFLICT,
    ),
    _row(
        "data-ambiguous",
        "the data links and devices can be told apart",
        "set MPIBOOT_DATA_IFNAME or MPIBOOT_RDMA_DEVICE",
        _CONFLICT,
    ),
    _row(
        "data-carrier",
        "every data link that has an address is up",
        "look at the node's adapter below it: cable, switch port, `ip link` on the node",
        ExitCode.NOT_READY,
    ),
    _row(
        "data-address",
        "every data link gets its address",
        "look at the network's IPAM: its range (`kubectl get network-attachment-definitions -o "
        "yaml`), its pods and their log",
        ExitCode.NOT_READY,
    ),
    _row(
        "data-mtu",
        "all workers' data links have one MTU",
        "set the same `mtu` in the network's definition for all nodes",
        _CONFLICT,
    ),
    _row(
        "data-networks",
        "the workers' data networks reach each other",
        "attach all workers to one network, or add routes to its definition (`routes` of its IPAM)",
        _CONFLICT,
    ),
    _row(
        "data-sockets",
        "TCP passes between the workers' data addresses",
        "let TCP pass there (an ACL of the fabric, a firewall, a MultiNetworkPolicy); where only "
        "RDMA is meant to, MPIBOOT_NCCL_SOCKET=control says so",
        _CONFLICT,
    ),
    _row(
        "data-subnet",
        "no two data links of a worker are in one subnet",
        "give each rail a subnet of its own, or routing rules for each source address",
        _CONFLICT,
    ),
    _row(
        "control-subnet",
        "control and data link are in different subnets",
        "give the data network a subnet that the cluster's pod network does not use",
        _CONFLICT,
    ),
    _row(
        "data-facts",
        "every worker's data network is known",
        "run mpiboot on the workers (`args: [worker]`)",
        _CONFLICT,
    ),
    _row(
        "memlock",
        "the memory lock limit is high enough for RDMA",
        "securityContext: {capabilities: {add: [IPC_LOCK]}} for a container that runs as root; "
        "for others raise the container runtime's limit (LimitMEMLOCK=infinity)",
        _CONFLICT,
    ),
    _row(
        "shm",
        "the shared memory in /dev/shm is large enough",
        "volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}], "
        "volumeMounts: [{name: shm, mountPath: /dev/shm}]",
        _CONFLICT,
    ),
    _row(
        "nccl-value",
        "the user's NCCL values fit every worker",
        "correct it, or unset it: mpiboot then sets it for each worker",
        _CONFLICT,
    ),
)

DATA_ROWS: Final = {row.reference: row for row in DATA_CHECKS}

# Said, but never a stop: rails in one flat subnet and several TCP links are in use on purpose, a
# fabric may be for RDMA alone, and a small MTU is slow, but works.
NEVER_STOP: Final = frozenset({"data-sockets", "data-subnet", "rdma-mtu-low"})
