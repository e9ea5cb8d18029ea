"""Exit codes, the table of everything that can be found wrong, and the error that ends a run.

A row of the table says what is checked, which exit code it has when it ends a job, and what to do;
doctor's checks are among them. The reference pages are generated from it. Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, ParamSpec

from mpiboot.core.model import Finding, Level

_Given = ParamSpec("_Given")
# Of a command that checks, and has found something wrong.
FOUND: Final = 1
# Those of failures that a retry can help: no hostfile, names, hosts, what is not ready.
AGAIN: Final = (66, 68, 69, 75)


class Check(NamedTuple):
    """One row: what can be wrong, and what it means for the job; ``group`` is doctor's column."""

    reference: str
    title: str
    code: int
    hint: str
    group: str


# By doctor's columns: the exit code, what is checked, and behind an arrow what to do otherwise.
# Most codes are those of sysexits.h, so that a podFailurePolicy can retry some and not others; a
# program's own code and 128+n of a signal pass through.
TABLE: Final[Mapping[str, Mapping[str, str]]] = {
    "image": {
        "program-missing": "127: required programs are installed -> install it in the image, or "
        "put its folder on PATH",
        "mpi-daemon": "1: the program that mpirun starts on every host is installed -> install "
        "the whole MPI in the image of launcher and workers (Debian: openmpi-bin, mpich)",
        "shared-libraries": "1: the programs of MPI and SSH find their shared libraries -> "
        "install the library in the image, or put its folder into LD_LIBRARY_PATH of the pod "
        "(`env:` of the container), from where every session gets it",
        "python-modules": "127: mpiboot's own Python modules are installed -> install the wheel "
        "with its dependencies: `pip install mpiboot-*.whl`",
        "shims": "78: calling mpirun starts mpiboot -> use `args:`, not `command:`; or `mpiboot "
        "shims install` in the image for calls by name, and a link to mpiboot in place of mpirun "
        "for calls by path",
        "mpi-versions": "78: launcher and workers have the same MPI -> use one image, or images "
        "with the same MPI, for launcher and workers",
        "bug": "70: mpiboot itself works -> please report this with the lines above",
    },
    "job": {
        "hostfile-missing": "66: the hostfile exists -> mount it, or name it with "
        "MPIBOOT_HOSTFILE; `mpiboot mpirun -n 2 ./train` needs none",
        "hostfile-invalid": "65: the hostfile can be read and names hosts -> write one `host "
        "slots=N` or `host:N` per line",
        "slots": "78: a default number of slots is a number",
        "role": "2: the pod's role is known -> set MPIBOOT_ROLE=launcher, worker or none",
        "usage": "2: the command line and the settings can be read -> see `mpiboot --help` and "
        "`mpiboot settings`",
        "settings-conflict": "78: the settings fit each other and the hosts",
        "host-names": "78: host names are short enough -> give the job a shorter name, or use "
        "Open MPI 5.0",
        "working-directory": "78: every host has the working directory -> mount it in every pod, "
        "or name one that all images have (`-wdir`)",
        "entrypoint": "78: Kubernetes's SIGTERM reaches mpiboot -> end that script with `exec "
        'mpiboot "$@"`: else a deleted pod gets only SIGKILL',
        "agent-not-started": "78: mpirun can build its tree of daemons -> remove the variable or "
        "flag by which workers would start daemons",
        "offline": "2: hosts and keys were checked -> run `mpiboot plan` without --offline in the "
        "launcher's pod",
        "daemon-failed": "69: mpirun's daemon starts on every host and ends with the job -> see "
        "the lines of mpirun and of that worker above",
        "launch-timeout": "69: daemons run on all hosts in time, and ranks on some -> let workers "
        "connect to the launcher (NetworkPolicy), or raise MPIBOOT_LAUNCH_TIMEOUT",
        "host-lost": "69: every host stays reachable while the job runs -> see why its pod went "
        "away: `kubectl describe pod POD`, `kubectl get events`",
        "transport": "76: the ports that were planned for the job's data carry it -> "
        "NCCL_DEBUG=INFO shows NCCL's choice; MPI's own messages move by MPIBOOT_MPI_NETWORK=data",
        "launcher-limits": "69: the launcher's limits have room for every host -> raise the limit "
        "that is named; docs/how-to/launcher-size.md has a table",
        "launcher-memory": "69: the launcher's own processes fit its memory limit -> raise "
        "resources.limits.memory of the launcher's container; docs/how-to/launcher-size.md has a "
        "table",
        "hosts-differ": "1: hosts have the same version of mpiboot, user, limits and links -> use "
        "one image and one pod template for all workers, on nodes of one kind (nodeSelector)",
        "worker-checks": "1: each worker's own checks are known -> run mpiboot on the workers "
        "(`args: [worker]`), of the launcher's version",
    },
    "files": {
        "runtime-folder": "73: the private runtime folder can be written -> mount an emptyDir and "
        "name it with MPIBOOT_RUNTIME_DIR",
        "tmpdir": "73: MPI can write its session files to TMPDIR -> mount an emptyDir there, or "
        "unset TMPDIR",
        "output": "73: a command's output can be written -> free space where standard output "
        "goes, or send it elsewhere",
    },
    "ssh": {
        "ssh-key": "77: the job's SSH key exists and can be read -> mount the job's key Secret in "
        "launcher and workers, or name it in MPIBOOT_SSH_KEY",
        "ssh-denied": "77: workers accept the job's key -> launcher and workers must mount the "
        "same key Secret; the user must exist, unlocked",
        "host-key-differs": "77: the host key of every worker is the job's key -> run mpiboot on "
        "the workers (`args: [worker]`), or set MPIBOOT_HOST_KEYS=accept-new",
        "kubectl-denied": "77: kubectl may enter every host's pod -> give the launcher's service "
        "account the Role of examples/kubectl/statefulset.yaml: get pods, get and create pods/exec",
        "sshd": "69: the worker's SSH server runs -> try MPIBOOT_SSHD=embedded; where its port is "
        "in use, name a free one with MPIBOOT_SSH_PORT, on launcher and workers alike",
        "workers-held": "75: no other launcher uses the job's workers -> one launcher at a time: "
        "wait until that one has ended, or end it",
        "workers-unreachable": "69: every worker answers over SSH -> check the worker's log: is "
        "its container running, and sshd in it?",
        "worker-facts": "75: every worker that runs mpiboot reports its links, devices and MPI -> "
        "run `mpiboot facts` on that worker; MPIBOOT_DATA_NETWORK=off starts without facts",
    },
    "limits": {
        "memlock": "78: the memory lock limit is high enough for RDMA -> securityContext: "
        "{capabilities: {add: [IPC_LOCK]}} for a container that runs as root; for others raise "
        "the container runtime's limit (LimitMEMLOCK=infinity)",
        "shm": "78: the shared memory in /dev/shm is large enough -> volumes: [{name: shm, "
        "emptyDir: {medium: Memory, sizeLimit: 8Gi}}], volumeMounts: [{name: shm, mountPath: "
        "/dev/shm}]",
        "shm-full": "1: the shared memory has room -> remove what ended jobs left (`ls -l "
        "/dev/shm`), or delete the pod; raise sizeLimit of the volume that is mounted there",
        "memory-limit": "1: the kernel killed no process for want of memory -> raise "
        "resources.limits.memory of this container; `kubectl describe pod POD` shows whether it "
        "was killed before (Last State: OOMKilled)",
    },
    "network": {
        "names-unresolved": "68: every host name resolves -> check the workers' pods and the "
        "headless Service; raise --timeout for slow pulls",
        "interface-missing": "72: the network link exists -> name a link that launcher and "
        "workers have with MPIBOOT_CONTROL_IFNAME",
        "ip-version": "78: the MPI speaks the IP version of the pods -> use an Open MPI built "
        "with --enable-ipv6, or give the pods IPv4 too (dual stack)",
        "worker-pairs": "69: workers reach each other and the launcher over TCP -> a "
        "NetworkPolicy or firewall stops it (`kubectl get networkpolicy`): allow all ports "
        "between the job's pods, or those of MPIBOOT_PORT_RANGE; MPIBOOT_PAIR_CHECK=0 skips this "
        "check",
        "worker-address": "78: workers see each other at their own addresses -> exempt pod "
        "traffic from source NAT (masquerade); MPIBOOT_PAIR_CHECK=0 skips this",
        "workers-differ": "78: workers have the same GPUs, RDMA ports and MTU -> select nodes of "
        "one kind; a smaller MTU on the way makes large messages hang",
        "control-link": "72: every worker's control link is known -> name it with "
        "MPIBOOT_CONTROL_IFNAME",
        "control-subnet": "78: control and data link are in different subnets -> give the data "
        "network a subnet that the cluster's pod network does not use",
    },
    "data": {
        "data-link": "72: the links that MPIBOOT_DATA_IFNAME names exist -> name links that the "
        "workers have (`mpiboot facts` lists them), or unset it",
        "rdma-device": "72: the devices that MPIBOOT_RDMA_DEVICE names exist -> name devices that "
        "the workers have (`mpiboot facts` lists them), or unset it",
        "rdma-missing": "72: every worker has an RDMA device of its own -> request the device in "
        "the worker's container, and attach its network: resources: {limits: {<the RDMA resource "
        'of your nodes>: "1"}}, annotations: {k8s.v1.cni.cncf.io/networks: <network>}; `kubectl '
        "describe node NODE` lists its resources (Allocatable)",
        "rdma-differs": "72: all workers have the same number and kind of RDMA devices -> put all "
        "workers on nodes of one kind (nodeSelector), with the same resources",
        "rdma-node": "72: the RDMA device's file in /dev/infiniband can be opened -> request it: "
        'resources: {limits: {<the RDMA resource of your nodes>: "1"}}',
        "rdma-library": "72: the image's RDMA library has a driver for the device -> add it to "
        "the image (Debian: libibverbs1 and ibverbs-providers, RPM: libibverbs), or its folder to "
        "LD_LIBRARY_PATH in the worker's pod",
        "efa-library": "72: the image has libfabric, and NCCL's plugin for it -> add them to the "
        "image (AWS's EFA installer, aws-ofi-nccl), or their folders to LD_LIBRARY_PATH in the "
        "worker's pod; without the plugin NCCL takes TCP",
        "rdma-port": "75: every RDMA port is active -> check cable, switch and subnet manager (it "
        "must know a VF's GUID)",
        "rdma-gid": "75: every RoCE port has a RoCE v2 entry for an address of this pod -> the "
        "data link needs an address (its network's IPAM), and the node RoCE v2",
        "rdma-gid-index": "78: NCCL and UCX can be given the GID index -> use NCCL 2.21 or later, "
        "or a network for the rails that the node's own addresses are not in; or keep to one rail "
        "(MPIBOOT_RDMA_DEVICE)",
        "data-ambiguous": "78: the data links and devices are distinguishable -> set "
        "MPIBOOT_DATA_IFNAME or MPIBOOT_RDMA_DEVICE",
        "data-carrier": "75: every data link that has an address is up -> check the node's "
        "adapter below it: cable, switch port, `ip link` on the node",
        "data-address": "75: every data link gets its address -> check the network's IPAM: its "
        "range, pods and log",
        "data-networks": "78: no two workers have one data address, and all that was requested is "
        "on a data network -> attach all workers to one network",
        "data-sockets": "78: TCP passes between the workers' data addresses -> let TCP pass there "
        "(an ACL of the fabric, a firewall, a MultiNetworkPolicy); if only RDMA should pass, set "
        "MPIBOOT_NCCL_SOCKET=control",
        "data-subnet": "78: no two data links of a worker are in one subnet -> give each rail a "
        "subnet of its own, or routing rules for each source address",
        "data-facts": "78: every worker's data network is known -> run mpiboot on the workers "
        "(`args: [worker]`)",
    },
    "gpus": {
        "gpus": "1: GPUs are there and ready -> check that node's GPUs (`nvidia-smi`, `dmesg`); "
        "select nodes of one kind",
    },
    "variables": {
        "env-profile": "78: the script of MPIBOOT_ENV_PROFILE runs without an error -> the ranks "
        "get none of its variables; try sh -c '. SCRIPT; env' in the worker",
        "nccl-value": "78: the user's NCCL and UCX values fit every worker -> correct it, or "
        "unset it: mpiboot then sets it for each worker",
    },
    "validate": {
        "bandwidth": "1: `mpiboot validate` measures what the data network's ports carry -> find "
        "the slow host (`mpiboot validate pairs`) and unused ports (`mpiboot doctor`)",
        "wrong-results": "1: what GPUs compute together is right -> bisect the hosts, and check "
        "`dmesg` and `nvidia-smi -q` of the nodes (Xid, ECC)",
        "not-measured": "1: the tool of `mpiboot validate` ends with a result -> see its output "
        "above, or run it by hand: `mpiboot launcher -- TOOL ARGUMENTS`",
    },
}
# Those of the data network, which also end a job where it is required.
_DATA_ELSEWHERE: Final = ("control-link", "control-subnet", "memlock", "shm", "nccl-value")


def _rows() -> Iterator[Check]:
    for group, rows in TABLE.items():
        for reference, text in rows.items():
            code, _, rest = text.partition(": ")
            title, _, hint = rest.partition(" -> ")
            yield Check(reference, title, int(code), hint, group)


CHECKS: Final = tuple(_rows())
BY_REFERENCE: Final = {row.reference: row for row in CHECKS}
DATA_CHECKS: Final = tuple(
    row for row in CHECKS if row.group == "data" or row.reference in _DATA_ELSEWHERE
)

# Warnings that never end a job. Rails in one flat subnet and several TCP links are in use on
# purpose, a fabric may be for RDMA alone, and a small MTU is slow, but works.
WARNINGS: Final = frozenset(
    "data-sockets data-subnet entrypoint env-profile host-names offline shims slots "  # noqa: SIM905
    "workers-differ working-directory".split()
)


def failed(
    reference: str,
    message: str,
    *,
    host: str = "",
    evidence: tuple[str, ...] = (),
    hint: str | None = None,
    level: Level = Level.FAIL,
) -> Finding:
    """A finding of what goes wrong, by default a failing one; the row's hint where none is given.

    Raises:
        KeyError: no row has that reference.
    """
    row = BY_REFERENCE[reference]
    return Finding(reference, level, message, host, evidence, row.hint if hint is None else hint)


class MpibootError(Exception):
    """Something that ends this run with a clear line.

    ``finding`` is what decides the exit code; ``others`` are findings that belong to the same
    story (the other hosts, for example). ``code`` is set where it isn't the row's own.
    """

    def __init__(
        self, finding: Finding, others: tuple[Finding, ...] = (), code: int | None = None
    ) -> None:
        super().__init__(finding.message)
        self.finding = finding
        self.others = others
        self.code = BY_REFERENCE[finding.check].code if code is None else code


class ShownError(MpibootError):
    """A failed check that the command has printed already: it ends with its code, and no line."""


def _as_error(make: Callable[_Given, Finding]) -> Callable[_Given, MpibootError]:
    return lambda *given, **named: MpibootError(make(*given, **named))


# The exception of what ``failed`` finds; to be raised by the caller.
error: Final = _as_error(failed)
