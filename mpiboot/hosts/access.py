"""How a launcher reaches its workers: by SSH, or by ``kubectl exec`` into their pods."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mpiboot.core.checks import error
from mpiboot.core.model import Decision, LaunchAgent, Source
from mpiboot.core.settings import Resolved
from mpiboot.ssh.client import HostSettings, PodAccess
from mpiboot.ssh.pool import Pool

# Stock images, the MPI Operator's and Trainer's, and those of Google's gIB.
PORTS: Final = (22, 2222, 222)


@dataclass(frozen=True, slots=True)
class SshAccess:
    """How to log in to the workers.

    ``user`` is the login where the hostfile names none; ``pool`` reaches the hosts; ``ports`` are
    the candidates in order; ``hostname`` is this pod's own, ``fqdns`` its full names; ``ipv6``
    is whether its address is of IPv6, None where that isn't known; ``domain`` is the
    cluster's, for the long form of names, empty where there is none. ``attempt`` and
    ``may_disconnect`` are sent to the workers (``host_shell.gate``).
    """

    user: str
    pool: Pool
    hostname: str
    ports: tuple[int, ...] = PORTS
    fqdns: tuple[str, ...] = ()
    ipv6: bool | None = None
    domain: str = ""
    attempt: str = ""
    may_disconnect: bool = False

    def ssh_settings(self, host: str) -> HostSettings:
        """Give what ssh is set to do for a host, once its pipeline has read that."""
        client = self.pool.client
        return client.known(host) if client else HostSettings(host)


# Where a kubelet mounts what a pod needs for the API server.
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Where the MPI Operator of v1 delivers it, beside its kubexec.sh.
_DELIVERED: Final = "/opt/kube"
DECISION: Final = "launch-agent"


def choose_access(
    resolved: Resolved,
    environ: Mapping[str, str],
    key_is_there: Callable[[], bool],
    account: Path = ACCOUNT,
) -> tuple[PodAccess, Decision] | None:
    """Choose how hosts are reached; None for SSH.

    Args:
        resolved: the settings.
        environ: this pod's environment.
        key_is_there: whether, after a short wait, the job has an SSH key.
        account: where the service account is mounted.

    Raises:
        MpibootError: ``program-missing``; kubectl is required, and is not there.
    """
    settings, given = resolved.settings, resolved.given["launch_agent"]
    if settings.launch_agent is LaunchAgent.SSH:
        return None
    places = os.pathsep.join((environ.get("PATH", ""), _DELIVERED))
    kubectl = shutil.which("kubectl", path=places) or ""
    if settings.launch_agent is LaunchAgent.KUBECTL:
        if not kubectl:
            raise error(
                "program-missing",
                f"no kubectl on PATH, and {given} asks for it",
                evidence=(f"PATH={environ.get('PATH', '')}",),
                hint="put kubectl into the launcher's image",
            )
        source, reason = given.source, str(given)
    else:
        # kubectl needs both; with a key, SSH works everywhere.
        if not kubectl or not (account / "token").exists() or key_is_there():
            return None
        source = Source.DETECTED
        reason = "there is no SSH key of the job, but kubectl and a service account's token"
    access = PodAccess(kubectl, own_namespace(account))
    return access, Decision(DECISION, LaunchAgent.KUBECTL.value, source, reason)


def own_namespace(account: Path = ACCOUNT) -> str:
    """Give this pod's namespace; empty where no service account is mounted."""
    try:
        return (account / "namespace").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
