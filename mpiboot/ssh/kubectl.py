"""kubectl's command lines: into a pod, and for its addresses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from mpiboot.core.addresses import is_address
from mpiboot.ssh.commands import SHELL

# How kubectl reports a remote command's exit status; its own failures have other words, and both
# may have status 1 (kubectl's pkg/cmd/util, client-go's util/exec).
KUBECTL_ENDED: Final = "command terminated with exit code"
# The variables by which kubectl finds the API server; mpirun's environment may lack them.
KUBECTL_ENVIRONMENT: Final = (
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "KUBECONFIG",
    "HTTPS_PROXY",
    "NO_PROXY",
)
# How kubectl says that this pod's service account may not (apimachinery's api/errors, client-go).
_DENIED: Final = re.compile(r"\(Forbidden\)|is forbidden:|Unauthorized|must be logged in")


@dataclass(frozen=True, slots=True)
class PodAccess:
    """How a job's pods are entered.

    ``kubectl`` is the program's path; ``namespace`` the pods' (empty: that of kubectl's own
    configuration). Of a pod's containers kubectl enters the one that an annotation names, else the
    first.
    """

    kubectl: str
    namespace: str = ""

    def addresses(self, pod: str) -> tuple[str, ...]:
        """Build the line that prints a pod's addresses.

        The caller limits its time: with --request-timeout kubectl ignores its service account and
        tries localhost:8080 (kubernetes/kubernetes 93474).
        """
        return (*self._words(), "get", "pod", pod, "--output=jsonpath={.status.podIPs[*].ip}")

    def run(self, pod: str) -> tuple[str, ...]:
        """Build the line that runs the script in a pod that kubectl reads."""
        return (*self._words(), "exec", "-i", pod, "--", *SHELL)

    def _words(self) -> tuple[str, ...]:
        namespace = (f"--namespace={self.namespace}",) if self.namespace else ()
        return (self.kubectl, *namespace)


def pod_of(host: str) -> str:
    """Give the name of a host's pod, its first label; empty for an address."""
    return "" if is_address(host) else host.partition(".")[0]


def is_denied(message: str) -> bool:
    """Whether the API server refuses this pod's service account."""
    return bool(_DENIED.search(message))
