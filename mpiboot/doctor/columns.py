"""The columns in which findings are shown, with the references that stand in each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mpiboot.core.doctor_checks import DATA_CHECKS

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "image": (
        *("program-missing", "mpi-daemon", "shared-libraries", "python-modules", "shims"),
        *("passwd-entry", "mpi-versions", "bug"),
    ),
    "job": (
        *("hostfile-missing", "hostfile-invalid", "slots", "role", "usage", "settings-conflict"),
        *("several-programs", "agent-not-started", "offline", "daemon-failed", "launch-timeout"),
        *(
            "host-lost",
            "launcher-limits",
            "launcher-memory",
            "ssh-client-lost",
            "hosts-missing",
            "hosts-differ",
        ),
        "worker-checks",
    ),
    "files": ("runtime-folder", "tmpdir", "output"),
    "ssh": (
        *("ssh-key", "ssh-denied", "host-key-differs", "kubectl-denied", "sshd", "workers-held"),
        *(
            "openssh-server",
            "sshd-settings",
            "other-ssh-server",
            "workers-unreachable",
            "worker-facts",
        ),
    ),
    "limits": ("memlock", "shm", "session-limits", "processes", "shm-full", "memory-limit"),
    "network": (
        *("names-unresolved", "interface-missing", "ip-version", "worker-pairs", "service-mesh"),
        *("worker-address", "master-port", "control-mtu", "ranks-unanswered", "rp-filter"),
        *("default-routes", "control-link", "control-subnet", "name-answers"),
        *("launcher-unreached", "network-reach", "path-mtu", "path-speed"),
    ),
    "data": (
        *(
            row.reference
            for row in DATA_CHECKS
            if row.reference
            not in ("memlock", "shm", "nccl-value", "control-link", "control-subnet")
        ),
        "rdma-counters",
    ),
    "gpus": ("gpus", "gpu-distance", "cuda-library", "imex-channels"),
    "variables": (
        *("unsafe-value", "env-profile", "debug-output", "two-settings", "nccl-prefix"),
        *("nccl-value", "named-links", "unread-parameters"),
    ),
}
GROUP_OF: Final = {item: name for name, listed in GROUPS.items() for item in listed}
