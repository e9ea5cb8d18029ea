"""All checks of doctor, which of them a pod gets, and in which columns they are shown. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from mpiboot.core.checks import Check
from mpiboot.core.model import Role
from mpiboot.doctor import hosts, pod
from mpiboot.doctor.checks import BY_REFERENCE, DoctorCheck, of_area

# Of one pod; of a job's hosts beside each other.
POD: Final = (*of_area(pod), *pod.DATA_NETWORK)
HOSTS: Final = of_area(hosts)
# By their references: what ends or warns of a job, and what doctor alone looks at.
CHECKS: Final[Mapping[str, Check]] = BY_REFERENCE


def chosen(
    role: Role, only: Collection[str] = (), *, at_build: bool = False
) -> tuple[DoctorCheck, ...]:
    """Give the checks that count in a pod of this role; with ``only`` those of these references.

    A pod without a role may become either. A launcher has the plan's findings of
    all pods for what the plan judges, its own among them.
    """
    return tuple(
        row
        for row in POD
        if (row.at_build or not at_build)
        and (not only or row.reference in only)
        and (role is Role.NONE or role in row.row.roles)
        and not (role is Role.LAUNCHER and row.by_plan)
    )


_COLUMNS: Final = {
    "image": "program-missing mpi-daemon shared-libraries python-modules shims passwd-entry "
    "mpi-versions bug",
    "job": "hostfile-missing hostfile-invalid slots role usage settings-conflict several-programs "
    "host-names working-directory "
    "entrypoint agent-not-started offline daemon-failed launch-timeout host-lost transport "
    "launcher-limits launcher-memory ssh-client-lost hosts-differ worker-checks",
    "files": "runtime-folder tmpdir output",
    "ssh": "ssh-key ssh-denied host-key-differs kubectl-denied sshd workers-held "
    "other-ssh-server workers-unreachable worker-facts",
    "limits": "memlock shm session-limits shm-full memory-limit",
    "network": "names-unresolved interface-missing ip-version worker-pairs "
    "worker-address master-port workers-differ "
    "control-link control-subnet launcher-unreached",
    "data": "data-link rdma-device rdma-missing rdma-differs rdma-node rdma-library efa-library "
    "rdma-port rdma-gid rdma-gid-index rdma-mtu rdma-mtu-low data-ambiguous "
    "data-carrier data-address data-mtu data-networks data-sockets data-subnet data-facts",
    "gpus": "gpus",
    "variables": "unsafe-value env-profile nccl-value named-links",
    "validate": "bandwidth wrong-results not-measured",
}
# The columns in which findings are shown, with the references that stand in each.
GROUPS: Final = {name: tuple(listed.split()) for name, listed in _COLUMNS.items()}
GROUP_OF: Final = {item: name for name, listed in GROUPS.items() for item in listed}
