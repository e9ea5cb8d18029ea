"""Whether hosts are reached by SSH or by ``kubectl exec``, and what kubectl needs for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from mpiboot.core.errors import error
from mpiboot.core.model import Decision, Source
from mpiboot.core.setting_types import LaunchAgent
from mpiboot.core.settings import Resolved
from mpiboot.hosts.kubectl_pods import PodAccess
from mpiboot.system import executables

# Where a kubelet mounts what a pod needs for the API server.
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Where the MPI Operator of v1 delivers it, beside its kubexec.sh.
_DELIVERED: Final = "/opt/kube"
# What kubectl reads of its environment to find the API server; mpirun's may lack it.
ENVIRONMENT: Final = (
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "KUBECONFIG",
    "HTTPS_PROXY",
    "NO_PROXY",
)
NAME: Final = "launch-agent"


def find(environ: Mapping[str, str]) -> str:
    """Find kubectl; empty where there is none."""
    places = os.pathsep.join((environ.get("PATH", ""), _DELIVERED))
    return executables.find("kubectl", places) or ""


def choose(
    resolved: Resolved,
    environ: Mapping[str, str],
    key_is_there: Callable[[], bool],
    account: Path = ACCOUNT,
) -> tuple[PodAccess, Decision] | None:
    """Choose; None where hosts are reached by SSH.

    Args:
        resolved: the settings.
        environ: this pod's environment.
        key_is_there: tells, after a little patience, whether the job has an SSH key.
        account: where the service account is mounted.

    Raises:
        MpibootError: ``program-missing``; kubectl is asked for, and is not there.
    """
    settings, given = resolved.settings, resolved.given["launch_agent"]
    if settings.launch_agent is LaunchAgent.SSH:
        return None
    kubectl = find(environ)
    if settings.launch_agent is LaunchAgent.KUBECTL:
        if not kubectl:
            raise error(
                "program-missing",
                f"no kubectl in a folder of PATH, and {given} asks for it",
                evidence=(f"PATH={environ.get('PATH', '')}",),
                hint="put kubectl into the launcher's image",
            )
        source, because = given.source, str(given)
    else:
        # Without both of these nobody can be asked; with a key, SSH is what works everywhere.
        if not kubectl or not (account / "token").exists() or key_is_there():
            return None
        source = Source.DETECTED
        because = "there is no SSH key of the job, but kubectl and a service account's token"
    namespace = settings.kubectl_namespace or own_namespace(account)
    access = PodAccess(kubectl, namespace, settings.kubectl_container)
    return access, Decision(NAME, LaunchAgent.KUBECTL.value, source, because)


def own_namespace(account: Path = ACCOUNT) -> str:
    """Give this pod's namespace; empty where no service account is mounted."""
    try:
        return (account / "namespace").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
