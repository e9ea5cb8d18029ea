"""The table of checks of one pod: what each looks at, what its outcomes mean, how it is judged.

A row shares title, hint and roles with its row of ``checks.CHECKS``. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from mpiboot.checks import BY_REFERENCE
from mpiboot.data_checks import DATA_CHECKS
from mpiboot.doctor.judge import environment, hardware, image, pod, private
from mpiboot.doctor.report import PodReport
from mpiboot.exit_codes import Check
from mpiboot.model import Finding, Level, Role

Judge = Callable[..., Iterable[Finding]]
_OK, _WARN, _FAIL = Level.OK, Level.WARN, Level.FAIL


@dataclass(frozen=True, slots=True)
class PodCheck:
    """A check of one pod.

    ``needs`` names the parts of the report that ``judge`` gets, in its order; ``outcomes`` say
    what each level means; ``at_build`` tells whether an image can be asked before it is a pod.
    """

    reference: str
    looks_at: str
    needs: tuple[str, ...]
    judge: Judge
    outcomes: Mapping[Level, str] = field(default_factory=dict)
    at_build: bool = False

    @property
    def row(self) -> Check:
        """The row of the table of references."""
        return BY_REFERENCE[self.reference]


_IMAGE: Final = (
    PodCheck(
        "program-missing",
        "mpirun and mpiexec on PATH, and what `mpirun --version` says; ssh on PATH",
        ("image",),
        image.programs,
        {_OK: "they are there; a worker needs no ssh", _FAIL: "there is no mpirun"},
        at_build=True,
    ),
    PodCheck(
        "mpi-daemon",
        "orted, prted or hydra_pmi_proxy, beside mpirun and on PATH",
        ("image",),
        image.daemon,
        {_OK: "it is there", _FAIL: "mpirun is there without it: no host can be joined"},
        at_build=True,
    ),
    PodCheck(
        "shared-libraries",
        "what the loader says of mpirun, its daemon, ssh and sshd (`ld.so --list`, as ldd does)",
        ("image",),
        image.libraries,
        {_OK: "every library is found", _FAIL: "one is not: that program does not start"},
        at_build=True,
    ),
    PodCheck(
        "python-modules",
        "the modules that mpiboot imports",
        ("image",),
        image.python,
        {_OK: "all can be found", _FAIL: "mpiboot was installed without one"},
        at_build=True,
    ),
    PodCheck(
        "openssh-server",
        "sshd's file, capabilities, /run/sshd, the account and its shell",
        ("sshd", "identity"),
        image.openssh,
        {
            _OK: "sshd can serve; or it is not there, and mpiboot's own server is used",
            _WARN: "sshd is there, and something keeps it from serving",
        },
        at_build=True,
    ),
    PodCheck(
        "passwd-entry",
        "the passwd entry of the pod's uid",
        ("identity",),
        image.passwd,
        {_OK: "there is one", _WARN: "there is none, as under OpenShift's random uid"},
    ),
    PodCheck(
        "shims",
        "the first mpirun and mpiexec on PATH, and this container's first process",
        ("shims",),
        image.shims,
        {_OK: "they start mpiboot", _WARN: "a shim is there and has no effect, or was passed by"},
    ),
)
_POD: Final = (
    PodCheck(
        "runtime-folder",
        "the folder for private files: it is made, written, and taken away",
        ("folder",),
        private.folder,
        {_OK: "it can be written", _FAIL: "none can"},
    ),
    PodCheck(
        "tmpdir",
        "the folder that TMPDIR names",
        ("folder",),
        private.tmpdir,
        {_FAIL: "MPI can't write there"},
    ),
    PodCheck(
        "ssh-key",
        "the job's key: file, type, fingerprint, mode and owner, and authorized_keys beside it",
        ("key",),
        private.key,
        {
            _OK: "it can be read; its mode does not count, as roles use a private copy",
            _WARN: "authorized_keys beside it has another key",
            _FAIL: "there is none, or this user can't read it, or it is no key",
        },
    ),
    PodCheck(
        "service-mesh",
        "listening ports and annotations of Istio and Linkerd",
        ("mesh", "settings"),
        pod.mesh,
        {_WARN: "a proxy takes this pod's connections"},
    ),
    PodCheck(
        "other-ssh-server",
        "who listens on the worker's port, or on 22, 2222 and 222, and how it greets",
        ("servers",),
        pod.ssh_servers,
        {
            _OK: "the job's port is mpiboot's",
            _WARN: "no worker of mpiboot's runs here, and another SSH server does",
            _FAIL: "another SSH server has the worker's port",
        },
    ),
    PodCheck(
        "session-limits",
        "/proc/PID/limits of the SSH server and of the pod's first process",
        ("limits",),
        pod.limits,
        {_OK: "sessions have what the pod has", _WARN: "ranks get less than the pod was given"},
    ),
    PodCheck(
        "processes",
        "pids.current and pids.max of the control group",
        ("limits",),
        pod.processes,
        {_OK: "there is room", _WARN: "more than 90% are taken: threads soon can't be started"},
    ),
    PodCheck(
        "shm-full",
        "the shared memory: what is in use, and files nccl-* that no process has in memory",
        ("shm",),
        pod.shm,
        {_OK: "there is room", _WARN: "it is full to 90%, or ended ranks left files there"},
    ),
    PodCheck(
        "memory-limit",
        "memory.max, memory.current and memory.events of the control group",
        ("memory",),
        pod.memory,
        {
            _OK: "there is room, and nothing was killed",
            _WARN: "more than 90% is in use, or the kernel has killed a process of this container",
        },
    ),
    PodCheck(
        "rp-filter",
        "net.ipv4.conf.*.rp_filter of a pod with several links",
        ("routing", "facts"),
        pod.rp_filter,
        {_OK: "no link is strict", _WARN: "a link drops what its own route would not answer"},
    ),
    PodCheck(
        "default-routes",
        "the routes of the main table",
        ("facts",),
        pod.default_routes,
        {_OK: "one link has it", _WARN: "several links have one"},
    ),
    PodCheck(
        "debug-output",
        "NCCL_DEBUG, UCX_LOG_LEVEL, FI_LOG_LEVEL, I_MPI_DEBUG, *_MCA_*_verbose and the like",
        ("environ",),
        environment.debug,
        {_WARN: "one is on, and nothing sends its output to a file"},
    ),
    PodCheck(
        "unread-parameters",
        "OMPI_MCA_* and PRTE_MCA_* against what this version of Open MPI knows",
        ("environ", "image"),
        environment.unread,
        {_WARN: "one was written for another version, and has no effect"},
    ),
    PodCheck(
        "two-settings",
        "variables of MPI that exclude each other",
        ("environ",),
        environment.two_settings,
        {_WARN: "both are set"},
    ),
    PodCheck(
        "nccl-prefix",
        "NCCL_SOCKET_IFNAME and NCCL_IB_HCA against the links and devices of this pod",
        ("facts",),
        environment.prefixes,
        {_WARN: "a name in the list takes others that begin with it: mlx5_1 and mlx5_10"},
    ),
    PodCheck(
        "gpus",
        "/dev, sysfs and, where there is an NVLink fabric, `nvidia-smi -q`",
        ("facts",),
        hardware.gpus,
        {_OK: "as many as the pod was given", _WARN: "one is lost, or the fabric is not ready"},
    ),
    PodCheck(
        "gpu-distance",
        "the PCI tree in sysfs, with NCCL's names: PIX, PXB, PHB, SYS",
        ("pci", "environ"),
        hardware.gpu_distance,
        {
            _OK: "a device is below the same switches, or a variable says what NCCL may use",
            _WARN: "NCCL does not use GPUDirect RDMA from there",
        },
    ),
)
_DATA: Final = tuple(
    PodCheck(
        row.reference,
        "links, RDMA devices, ports and GIDs as `mpiboot facts` shows them",
        ("facts", "settings"),
        hardware.data_network,
        {_WARN: "it does not hold", _FAIL: "the same, where MPIBOOT_DATA_NETWORK=require"},
    )
    for row in DATA_CHECKS
)

TABLE: Final = (*_IMAGE, *_POD, *_DATA)

# The columns in which findings are shown, with the references that stand in each.
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "image": (
        *("program-missing", "mpi-daemon", "shared-libraries", "python-modules", "shims"),
        *("passwd-entry", "mpi-versions", "bug"),
    ),
    "job": (
        *("hostfile-missing", "hostfile-invalid", "slots", "role", "usage", "settings-conflict"),
        *("several-programs", "agent-not-started", "offline", "daemon-failed", "launch-timeout"),
        *("host-lost", "launcher-limits", "launcher-memory"),
    ),
    "files": ("runtime-folder", "tmpdir"),
    "ssh": (
        *("ssh-key", "ssh-denied", "host-key-differs", "kubectl-denied", "sshd", "workers-held"),
        *("openssh-server", "other-ssh-server", "workers-unreachable", "worker-facts"),
    ),
    "limits": ("memlock", "shm", "session-limits", "processes", "shm-full", "memory-limit"),
    "network": (
        *("names-unresolved", "interface-missing", "ip-version", "worker-pairs", "service-mesh"),
        *("worker-address", "master-port", "control-mtu", "ranks-unanswered", "rp-filter"),
        *("default-routes", "control-link", "control-subnet"),
    ),
    "data": tuple(
        row.reference
        for row in DATA_CHECKS
        if row.reference not in ("memlock", "shm", "nccl-value", "control-link", "control-subnet")
    ),
    "gpus": ("gpus", "gpu-distance"),
    "variables": (
        *("unsafe-value", "env-profile", "debug-output", "two-settings", "nccl-prefix"),
        *("nccl-value", "unread-parameters"),
    ),
}
GROUP_OF: Final = {item: name for name, listed in GROUPS.items() for item in listed}


def chosen(
    role: Role, only: Collection[str] = (), *, at_build: bool = False
) -> tuple[PodCheck, ...]:
    """Give the rows that count in a pod of this role; with ``only`` those of these references.

    Where nothing tells the role, the pod may become either.
    """
    return tuple(
        row
        for row in TABLE
        if (row.at_build or not at_build)
        and (not only or row.reference in only)
        and (role is Role.NONE or role in row.row.roles)
        and not (role is Role.LAUNCHER and row.judge in _OF_ALL_PODS)
    )


# A launcher has the plan's findings of all pods for these, its own among them.
_OF_ALL_PODS: Final = (hardware.data_network, hardware.gpus, pod.mesh)


def judge(report: PodReport, rows: Iterable[PodCheck]) -> Iterator[Finding]:
    """Judge each row once; a row whose part is missing is unknown, with the reason."""
    asked = list(rows)
    references = {row.reference for row in asked}
    # Rows that share a judge are judged together: it tells of each by its reference.
    first: dict[Judge, PodCheck] = {}
    for row in asked:
        first.setdefault(row.judge, row)
    for row in first.values():
        parts = {name: getattr(report, name) for name in row.needs}
        missing = [name for name, value in parts.items() if value is None]
        if missing:
            why = "; ".join(
                dict.fromkeys(report.unseen.get(name, "not looked at") for name in missing)
            )
            yield Finding(row.reference, Level.UNKNOWN, f"not known: {why}")
            continue
        yield from (item for item in row.judge(*parts.values()) if item.check in references)
