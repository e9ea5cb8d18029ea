"""The rows of what only ``mpiboot doctor`` looks at; to be read with ``checks.CHECKS``. Pure."""

from __future__ import annotations

from typing import Final

from mpiboot.core.exit_codes import Check, ExitCode
from mpiboot.core.model import Role


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
