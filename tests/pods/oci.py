"""The OCI configuration that containerd gives runc: capabilities, masked paths, mounts, limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.pods.images import Image
from tests.pods.network import Link
from tests.pods.volumes import Mount, Volume

# What a container may do when its manifest says nothing about it.
CONTAINERD = tuple(
    f"CAP_{name}"
    for name in (
        *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID"),
        *("SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
    )
)
_NOT_OF_CRIO = {"CAP_MKNOD", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SYS_CHROOT", "CAP_AUDIT_WRITE"}
CRIO = tuple(name for name in CONTAINERD if name not in _NOT_OF_CRIO)
NO_CAPABILITIES: tuple[str, ...] = ()

_MASKED = (
    *("/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi"),
    *("/sys/firmware", "/sys/devices/virtual/powercap"),
)
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

# What the runtimes' default profiles refuse to a container without further capabilities. They are
# lists of what is allowed; to a program that asks for one of these, the answer is the same.
_REFUSED_CALLS = (
    *("acct", "add_key", "bpf", "clock_settime", "delete_module", "finit_module", "fsconfig"),
    *("fsmount", "fsopen", "fspick", "init_module", "io_uring_enter", "io_uring_register"),
    *("io_uring_setup", "ioperm", "iopl", "kexec_file_load", "kexec_load", "keyctl", "mount"),
    *("mount_setattr", "move_mount", "open_by_handle_at", "open_tree", "perf_event_open"),
    *("pivot_root", "quotactl", "reboot", "request_key", "setdomainname", "sethostname", "setns"),
    *("settimeofday", "swapoff", "swapon", "syslog", "umount2", "unshare", "userfaultfd"),
)


@dataclass(frozen=True, kw_only=True)
class PodSpec:
    """All fields that a manifest has for a pod of one container, with a cluster's defaults.

    `stdout_reader` is the program that reads its stdout by a pipe, as a container runtime does.

    `before` are its init containers: what of them is not as the container's own.

    `args` follow the image's ENTRYPOINT; `command` replaces both. `host_network` names the node
    whose network the pod shares. With `share_processes` (shareProcessNamespace) its first process
    is not the container's.
    """

    name: str
    image: Image
    args: Sequence[str] = ()
    command: Sequence[str] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    user: int = 0
    group: int | None = None
    groups: Sequence[int] = ()
    capabilities: Sequence[str] = CONTAINERD
    read_only_root: bool = False
    no_new_privileges: bool = False
    seccomp: bool = False
    refused_calls: Sequence[str] = ()
    volumes: Sequence[Volume] = ()
    working_dir: str = "/"
    hostname: str | None = None
    subdomain: str | None = None
    cluster_domain: str = "cluster.local"
    cluster_dns: bool = True
    namespace: str = "default"
    links: Sequence[Link] = (Link(),)
    extra_hosts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    searches: Sequence[str] = ()
    host_network: str | None = None
    share_processes: bool = False
    stdout_reader: Sequence[str] = ("cat",)
    memory: int | None = None
    # Soft and hard limit.
    rlimits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    before: Sequence[Mapping[str, Any]] = ()

    @property
    def argv(self) -> list[str]:
        if self.command is not None:
            return [*self.command, *self.args]
        return [*self.image.entrypoint, *self.args]


_QUIET = ("nosuid", "noexec", "nodev")
_PTS = ("nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5")
_OWN_MOUNTS = (
    Mount("/proc", "proc", "proc", _QUIET),
    Mount("/dev", "tmpfs", "tmpfs", ("nosuid", "strictatime", "mode=755", "size=65536k")),
    Mount("/dev/pts", "devpts", "devpts", _PTS),
    Mount("/dev/mqueue", "mqueue", "mqueue", _QUIET),
    Mount("/sys", "sysfs", "sysfs", (*_QUIET, "ro")),
    Mount("/sys/fs/cgroup", "cgroup", "cgroup", (*_QUIET, "relatime", "ro")),
)


def configuration(
    spec: PodSpec,
    *,
    hostname: str,
    env: Mapping[str, str],
    root: str,
    network: str,
    cgroup: str,
    mounts: Sequence[Mount],
    processes: str = "",
) -> dict[str, object]:
    """The `config.json` of a bundle, as containerd writes it for this pod."""
    capabilities = list(spec.capabilities)
    linux: dict[str, object] = {
        "cgroupsPath": cgroup,
        "namespaces": [
            *({"type": kind} for kind in ("ipc", "uts", "mount")),
            {"type": "pid", **({"path": processes} if processes else {})},
            {"type": "network", "path": network},
        ],
        "resources": {
            "devices": [{"allow": False, "access": "rwm"}],
            **({"memory": {"limit": spec.memory}} if spec.memory else {}),
        },
        "maskedPaths": list(_MASKED),
        "readonlyPaths": list(_READ_ONLY),
    }
    calls = [*(_REFUSED_CALLS if spec.seccomp else ()), *spec.refused_calls]
    if calls:
        linux["seccomp"] = {
            "defaultAction": "SCMP_ACT_ALLOW",
            "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_AARCH64"],
            "syscalls": [{"names": calls, "action": "SCMP_ACT_ERRNO"}],
        }
    return {
        "ociVersion": "1.0.2",
        "hostname": hostname,
        "root": {"path": root, "readonly": spec.read_only_root},
        "mounts": [asdict(mount) for mount in (*_OWN_MOUNTS, *mounts)],
        "process": {
            "terminal": False,
            "args": spec.argv,
            "env": [f"{name}={value}" for name, value in env.items()],
            "cwd": spec.working_dir,
            "user": {
                "uid": spec.user,
                "gid": spec.group if spec.group is not None else _group_of(spec),
                "additionalGids": list(spec.groups),
            },
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "noNewPrivileges": spec.no_new_privileges,
            "rlimits": [
                {"type": name, "soft": soft, "hard": hard}
                for name, (soft, hard) in spec.rlimits.items()
            ],
        },
        "linux": linux,
    }


def _group_of(spec: PodSpec) -> int:
    """A user of the image's passwd has its own group there; any other number gets group 0."""
    try:
        passwd = spec.image.read_text("/etc/passwd")
    except FileNotFoundError:  # an image with nothing but a program
        return 0
    for line in passwd.splitlines():
        fields = line.split(":")
        if fields[2] == str(spec.user):
            return int(fields[3])
    return 0
