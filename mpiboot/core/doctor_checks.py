"""The rows of what only ``mpiboot doctor`` looks at; to be read with ``checks.CHECKS``. Pure."""

from __future__ import annotations

from typing import Final

from mpiboot.core.exit_codes import Check, ExitCode
from mpiboot.core.model import Role

_DEVICE, _CONFLICT = ExitCode.DEVICE_MISSING, ExitCode.CONFLICT


def _data_row(reference: str, title: str, hint: str, code: ExitCode = _DEVICE) -> Check:
    return Check(reference, title, code, hint)


DATA_CHECKS: Final = (
    _data_row(
        "data-link",
        "the links that MPIBOOT_DATA_IFNAME names are there",
        "name links that the workers have (`mpiboot facts` lists them), or unset it",
    ),
    _data_row(
        "rdma-device",
        "the devices that MPIBOOT_RDMA_DEVICE names are there",
        "name devices that the workers have (`mpiboot facts` lists them), or unset it",
    ),
    _data_row(
        "control-link",
        "every worker's control link is known",
        "name it with MPIBOOT_CONTROL_IFNAME",
    ),
    _data_row(
        "rdma-missing",
        "every worker has an RDMA device of its own",
        "ask for the device in the worker's container, and attach its network: "
        'resources: {limits: {<the RDMA resource of your nodes>: "1"}}, '
        "annotations: {k8s.v1.cni.cncf.io/networks: <network>}; `kubectl describe node NODE` lists "
        "what it has to give (Allocatable)",
    ),
    _data_row(
        "rdma-differs",
        "all workers have the same number and kind of RDMA devices",
        "put all workers on nodes of one kind (nodeSelector), with the same resources",
    ),
    _data_row(
        "rdma-node",
        "the RDMA device's file in /dev/infiniband can be opened",
        "ask for the RDMA resource in this container, which brings the file: "
        'resources: {limits: {<the RDMA resource of your nodes>: "1"}}',
    ),
    _data_row(
        "rdma-library",
        "the image's RDMA library has a driver for the device",
        "add it to the image (Debian: libibverbs1 and ibverbs-providers, RPM: libibverbs), or its "
        "folder to LD_LIBRARY_PATH in the worker's pod",
    ),
    _data_row(
        "efa-library",
        "the image has libfabric, and NCCL's plugin for it",
        "add them to the image (AWS's EFA installer, aws-ofi-nccl), or their folders to "
        "LD_LIBRARY_PATH in the worker's pod; without the plugin NCCL takes TCP",
    ),
    _data_row(
        "rdma-port",
        "every RDMA port is active",
        "look at cable, switch port and, for InfiniBand, at the subnet manager "
        "(a VF stays INIT until its GUID is known there)",
        ExitCode.NOT_READY,
    ),
    _data_row(
        "rdma-gid",
        "every RoCE port has a RoCE v2 entry for an address of this pod",
        "the data link needs an address (its network's IPAM), and the node RoCE v2",
        code=ExitCode.NOT_READY,
    ),
    _data_row(
        "rdma-gid-index",
        "NCCL and UCX can be told the GID index",
        "use NCCL 2.21 or later, or a network of its own for the rails; "
        "or set NCCL_IB_HCA and NCCL_IB_GID_INDEX for each rank",
        _CONFLICT,
    ),
    _data_row(
        "rdma-mtu",
        "an RDMA port's MTU fits its link's",
        "give the link the MTU of the device below it (`mtu` in its network's definition)",
        _CONFLICT,
    ),
    _data_row(
        "rdma-mtu-low",
        "an RDMA port uses the largest MTU that its link allows",
        "look at the port's largest MTU on the node (`ibv_devinfo -v`: max_mtu)",
        _CONFLICT,
    ),
    _data_row(
        "rdma-rails",
        "the rails have the same order on all workers",
        "on a flat network set NCCL_CROSS_NIC=1; else give the rails in one order on every node",
        _CONFLICT,
    ),
    _data_row(
        "data-ambiguous",
        "the data links and devices can be told apart",
        "set MPIBOOT_DATA_IFNAME or MPIBOOT_RDMA_DEVICE",
        _CONFLICT,
    ),
    _data_row(
        "data-carrier",
        "every data link that has an address is up",
        "look at the node's adapter below it: cable, switch port, `ip link` on the node",
        ExitCode.NOT_READY,
    ),
    _data_row(
        "data-address",
        "every data link gets its address",
        "look at the network's IPAM: its range (`kubectl get network-attachment-definitions -o "
        "yaml`), its pods and their log",
        ExitCode.NOT_READY,
    ),
    _data_row(
        "data-mtu",
        "all workers' data links have one MTU",
        "set the same `mtu` in the network's definition for all nodes",
        _CONFLICT,
    ),
    _data_row(
        "data-networks",
        "the workers' data networks reach each other",
        "attach all workers to one network, or add routes to its definition (`routes` of its IPAM)",
        _CONFLICT,
    ),
    _data_row(
        "data-sockets",
        "TCP passes between the workers' data addresses",
        "let TCP pass there (an ACL of the fabric, a firewall, a MultiNetworkPolicy); where only "
        "RDMA is meant to, MPIBOOT_NCCL_SOCKET=control says so",
        _CONFLICT,
    ),
    _data_row(
        "data-subnet",
        "no two data links of a worker are in one subnet",
        "give each rail a subnet of its own, or routing rules for each source address",
        _CONFLICT,
    ),
    _data_row(
        "control-subnet",
        "control and data link are in different subnets",
        "give the data network a subnet that the cluster's pod network does not use",
        _CONFLICT,
    ),
    _data_row(
        "data-facts",
        "every worker's data network is known",
        "run mpiboot on the workers (`args: [worker]`)",
        _CONFLICT,
    ),
    _data_row(
        "memlock",
        "the memory lock limit is high enough for RDMA",
        "securityContext: {capabilities: {add: [IPC_LOCK]}} for a container that runs as root; "
        "for others raise the container runtime's limit (LimitMEMLOCK=infinity)",
        _CONFLICT,
    ),
    _data_row(
        "shm",
        "the shared memory in /dev/shm is large enough",
        "volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}], "
        "volumeMounts: [{name: shm, mountPath: /dev/shm}]",
        _CONFLICT,
    ),
    _data_row(
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


def _row(reference: str, title: str, hint: str, *roles: Role) -> Check:
    return Check(reference, title, ExitCode.FOUND, hint, roles or (Role.LAUNCHER, Role.WORKER))


DOCTOR_CHECKS: Final = (
    _row(
        "mpi-daemon",
        "the program that mpirun starts on every host is installed",
        "install the whole MPI in the image of launcher and workers (Debian: openmpi-bin, mpich)",
    ),
    _row(
        "shared-libraries",
        "the programs of MPI and SSH find their shared libraries",
        "install the library in the image, or put its folder into LD_LIBRARY_PATH of the pod "
        "(`env:` of the container), from where every session gets it",
    ),
    _row(
        "python-modules",
        "mpiboot's own Python modules are installed",
        "install the wheel with what it needs: `pip install mpiboot-*.whl`, without --no-deps",
    ),
    _row(
        "passwd-entry",
        "the pod's user has a passwd entry",
        "runAsUser: a uid that the image has, or add a line for this one to /etc/passwd in the "
        "image; ssh, sshd and the user's own programs may ask for it, mpiboot goes without",
    ),
    _row(
        "openssh-server",
        "OpenSSH's server can serve this pod",
        "securityContext: {capabilities: {add: [SETUID, SETGID, SYS_CHROOT]}} for a pod that "
        "runs as root; or leave it: mpiboot's own server takes its place",
        Role.WORKER,
    ),
    _row(
        "session-limits",
        "SSH sessions have the limits of the pod's first process",
        "start the SSH server by mpiboot (`args: [worker]`), not by an entrypoint that lowers "
        "limits (ulimit, PAM's limits.conf)",
        Role.WORKER,
    ),
    _row(
        "processes",
        "the pod may start more processes",
        "raise the node's limit of processes for a pod (kubelet: podPidsLimit), or start fewer "
        "threads (OMP_NUM_THREADS)",
    ),
    _row(
        "shm-full",
        "the shared memory has room, and holds nothing of ended jobs",
        "remove the files, or delete the pod; raise sizeLimit of the volume that is mounted there",
        Role.WORKER,
    ),
    _row(
        "memory-limit",
        "the container is within its memory limit",
        "raise resources.limits.memory of this container; `kubectl describe pod POD` tells whether "
        "it was ended so before (Last State: OOMKilled)",
    ),
    _row(
        "rp-filter",
        "answers may come by another link than the question",
        "securityContext: {sysctls: [{name: net.ipv4.conf.all.rp_filter, value: '2'}]} of the pod "
        "(the kubelet must allow it), or the tuning plugin in the network's definition",
        Role.WORKER,
    ),
    _row(
        "default-routes",
        "one link has the default route",
        "give one network alone a gateway (its IPAM's routes: `kubectl get "
        "network-attachment-definitions -o yaml`, or "
        "`default-route` in the networks annotation)",
    ),
    _row(
        "debug-output",
        "no variable makes libraries write debug output",
        "unset it once it is no longer needed: it slows ranks down and floods the log",
    ),
    _row(
        "unread-parameters",
        "the MPI of this pod knows the parameters that are set",
        "write what stands in brackets, or unset it: an unknown parameter is ignored without a "
        "word",
        Role.WORKER,
    ),
    _row(
        "other-ssh-server",
        "the SSH server where the job looks for one is mpiboot's",
        "start the worker by mpiboot (`args: [worker]`) and no sshd beside it; with hostNetwork "
        "the node's own sshd has port 22: set MPIBOOT_SSH_PORT to a free one",
        Role.WORKER,
    ),
    _row(
        "sshd-settings",
        "the settings of the OpenSSH server that runs let this user in with a key",
        "start the worker by mpiboot (`args: [worker]`), whose settings are its own; or mend the "
        "image's sshd_config",
        Role.WORKER,
    ),
    _row(
        "rdma-counters",
        "RDMA ports count no errors while doctor looks",
        "out_of_sequence, retries and discards: packets are lost on the way (flow control or ECN "
        "of switches and node, MTU); symbol_error, link_downed: the cable; "
        "out_of_buffer: a slow rank",
        Role.WORKER,
    ),
    _row(
        "named-links",
        "variables that name links name links of this pod",
        "name a link that the workers have (`mpiboot facts` lists them), or unset it: mpiboot sets "
        "what it can",
        Role.WORKER,
    ),
    _row(
        "cuda-library",
        "the CUDA library fits the node's driver",
        "leave libcuda out of the image: the node's container toolkit brings it "
        "(NVIDIA_DRIVER_CAPABILITIES with `compute`); after an update of the driver restart "
        "the pod",
        Role.WORKER,
    ),
    _row(
        "imex-channels",
        "GPUs whose NVLink reaches other nodes have an IMEX channel",
        "claim one: a ComputeDomain of NVIDIA's DRA driver, named in resourceClaims of launcher "
        "and workers (`kubectl get computedomains`)",
        Role.WORKER,
    ),
    _row(
        "two-settings",
        "no two variables set the same thing",
        "unset one of them",
    ),
    _row(
        "nccl-prefix",
        "names in NCCL's lists mean no more than themselves",
        "write `=` in front of the list: then a name is that name alone",
        Role.WORKER,
    ),
    _row(
        "gpu-distance",
        "each GPU has an RDMA device that is near",
        "ask for GPU and device of one PCI switch (Topology Manager of the kubelet, or DRA); "
        "in a virtual machine NCCL_TOPO_FILE tells NCCL what the hypervisor hides",
        Role.WORKER,
    ),
    _row(
        "hosts-missing",
        "every host of the job was scheduled",
        "`kubectl get pods -o wide` shows which pods are Pending, `kubectl describe pod` why; with "
        "a gang scheduler (Volcano, Kueue, coscheduling) all pods of a job start, or none",
        Role.LAUNCHER,
    ),
    _row(
        "name-answers",
        "every question for a host's name has one answer, and soon",
        "several pods have that name, or a nameserver is behind: look at the job's headless "
        "Service and its EndpointSlices",
        Role.LAUNCHER,
    ),
    _row(
        "launcher-unreached",
        "hosts reach the launcher's ports",
        "let the workers in: the policy of the launcher's pod needs an ingress rule for them "
        "(`ingress: [{from: [{podSelector: ...}]}]`) without `ports:`, or with the range of "
        "MPIBOOT_PORT_RANGE",
        Role.LAUNCHER,
    ),
    _row(
        "hosts-differ",
        "hosts have the same MPI, limits, devices and links",
        "use one image and one pod template for all workers, on nodes of one kind (nodeSelector)",
        Role.LAUNCHER,
    ),
    _row(
        "worker-checks",
        "each worker's own checks are known",
        "run mpiboot on the workers (`args: [worker]`), of the launcher's version",
        Role.LAUNCHER,
    ),
    _row(
        "network-reach",
        "workers reach each other on every link, measured by --network",
        "a NetworkPolicy, firewall or missing route between these pods drops it; on a data link "
        "look at the network's definition (VLAN, subnet) and the switch",
        Role.LAUNCHER,
    ),
    _row(
        "path-mtu",
        "packets as large as the links' MTU come through, measured by --network",
        "give the links the MTU of the path (`mtu` in the network's definition, or in the CNI's "
        "configuration), or the switches and tunnels between them that of the links",
        Role.LAUNCHER,
    ),
    _row(
        "path-speed",
        "no way between workers is much slower than the others, measured by --network",
        "look at that node's link (speed, errors, cable), and at what else runs on the node",
        Role.LAUNCHER,
    ),
)
