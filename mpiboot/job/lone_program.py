"""A program that nothing says is a job: it runs once, in this pod alone. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mpiboot.core.model import Finding, Level

# What pods run beside jobs: shells, whoever waits, and mpirun, which counts its ranks itself.
_USUAL: Final = (
    *("sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "busybox", "tini", "dumb-init"),
    *("sleep", "tail", "cat", "env", "true", "false", "id", "ls", "hostname", "catatonit"),
    *("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"),
)
# What tells a program that it is a rank already.
_RANK: Final = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_HINT: Final = (
    "set MPIBOOT_ROLE=launcher and mount a hostfile on the launcher, START_SSHD=true on workers; "
    "or MPIBOOT_ROLE=by-index in all pods, where number 0 is to be the launcher; "
    "MPIBOOT_ROLE=none says that one process is meant"
)


def finding(program: str, environ: Mapping[str, str], hostname: str, hosts: str) -> Finding | None:
    """Say that a program runs alone, where it may well be meant as an MPI job.

    Args:
        program: what would be run; an MPI is known to be installed.
        environ: the pod's environment.
        hostname: the pod's name.
        hosts: the text of /etc/hosts.

    Returns:
        A warning; None for what pods run beside jobs, and for a rank.
    """
    if program.rpartition("/")[2] in _USUAL or any(environ.get(name) for name in _RANK):
        return None
    several = one_of_several(environ, hostname, hosts)
    said = f"{program} runs once in this pod, without mpirun: no hostfile, no role"
    more = f"; but {several}" if several else ""
    return Finding("role", Level.WARN, said + more, hint=_HINT)


def one_of_several(environ: Mapping[str, str], hostname: str, hosts: str) -> str:
    """Tell by what this pod is one of a StatefulSet or an indexed Job; empty where it isn't."""
    if environ.get("JOB_COMPLETION_INDEX"):
        return "JOB_COMPLETION_INDEX says that this is one pod of an indexed Job"
    if re.search(r"-\d+$", hostname):
        # The kubelet writes a name below a Service for pods that have one, as a StatefulSet's.
        named = re.search(rf"\s{re.escape(hostname)}\.[\w-]+\.[\w-]+\.svc", hosts)
        if named:
            return f"the name {named[0].strip()} in /etc/hosts is that of one pod of several"
    return ""
