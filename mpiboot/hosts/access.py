"""How a launcher reaches its workers: by SSH, or by ``kubectl exec`` into their pods.

The choice between the two, and kubectl's command lines.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mpiboot.core.addresses import is_address
from mpiboot.core.checks import error
from mpiboot.core.model import Decision, Source
from mpiboot.core.setting_types import HostKeys, LaunchAgent
from mpiboot.core.settings import Resolved
from mpiboot.ssh import attempt as ssh_attempt
from mpiboot.ssh.attempt import Attempt, LoginTimeouts, OpenConnection, Target
from mpiboot.ssh.client import HostSettings, OpensshClient
from mpiboot.ssh.connections import Connections
from mpiboot.system import programs

if TYPE_CHECKING:
    from mpiboot.ssh.login import Login

# How kubectl reports a remote command's exit status; its own failures have other words, and both
# may have status 1 (kubectl's pkg/cmd/util, client-go's util/exec).
KUBECTL_ENDED: Final = "command terminated with exit code"
# How kubectl says that this pod's service account may not (apimachinery's api/errors, client-go).
_DENIED: Final = re.compile(r"\(Forbidden\)|is forbidden:|Unauthorized|must be logged in")
_SHOWN: Final = 300  # characters


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

    def run(self, pod: str, command: str, *, interactive: bool = False) -> tuple[str, ...]:
        """Build the line that runs a command in a pod; ``interactive`` where it reads something."""
        stdin = ("-i",) if interactive else ()
        return (*self._words(), "exec", *stdin, pod, "--", "/bin/sh", "-c", command)

    def _words(self) -> tuple[str, ...]:
        namespace = (f"--namespace={self.namespace}",) if self.namespace else ()
        return (self.kubectl, *namespace)


def pod_of(host: str) -> str:
    """Give the name of a host's pod, its first label; empty for an address."""
    return "" if is_address(host) else host.partition(".")[0]


class PodError(Exception):
    """A pod can't be entered, in kubectl's own words."""

    @property
    def denied(self) -> bool:
        """Whether the API server refuses this pod's service account."""
        return bool(_DENIED.search(str(self)))


# Stock images, the MPI Operator's and Trainer's, and those of Google's gIB.
PORTS: Final = (22, 2222, 222)


@dataclass(frozen=True, slots=True)
class SshAccess:
    """How to log in to the workers.

    ``user`` is the login where the hostfile names none; ``key`` the path of the private key;
    ``host_key`` the pinned public key as a line, empty for the public half of ``key``; ``ports``
    the candidates in order; ``hostname`` is this pod's own, ``fqdns`` its full names; ``ipv6``
    tells whether its own address is of IPv6, None where that isn't known; ``domain`` is the
    cluster's, for the long form of names, empty where there is none. ``attempt`` and
    ``may_disconnect`` are what workers are told of this launcher (``host_shell.gate``). With
    ``pods`` nobody logs in: the hosts' pods are entered by kubectl, and there is no key. ``client``
    is the image's own ssh, None where it can't run.
    """

    user: str
    key: Path
    hostname: str
    host_key: str = ""
    ports: tuple[int, ...] = PORTS
    fqdns: tuple[str, ...] = ()
    ipv6: bool | None = None
    domain: str = ""
    attempt: str = ""
    may_disconnect: bool = False
    pods: PodAccess | None = None
    client: OpensshClient | None = None

    def ssh_settings(self, host: str) -> HostSettings:
        """Give what ssh is set to do for a host, once its pipeline has asked."""
        return self.client.known(host) if self.client else HostSettings(host)

    async def connect(
        self, target: Target, command: str, limits: LoginTimeouts
    ) -> Attempt | OpenConnection:
        """Open a connection to log in over, or run the command where only ssh can connect."""
        if self.client and self.client.known(target.host).proxied:
            return await self.client.log_in(target, command, limits)
        return await ssh_attempt.connect(target, limits)

    def login(
        self, mode: HostKeys, limits: LoginTimeouts | None = None, kept: Connections | None = None
    ) -> Login:
        """Load the SSH library and the key."""
        from mpiboot.ssh.login import Login  # noqa: PLC0415 - heavy

        return Login(
            self.key,
            host_key=self.host_key,
            mode=mode,
            limits=limits,
            kept=kept,
            client=self.client,
        )


# kubectl costs a tenth of a second of a core and 40 MB each.
_AT_ONCE: Final = 16


class Kubectl:
    """Runs kubectl, a bounded number of times at once."""

    def __init__(self, access: PodAccess, *, limit: float = 30.0) -> None:
        """``limit`` is how many seconds a command may take."""
        self._access = access
        self._limit = limit
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def addresses(self, pod: str) -> tuple[str, ...]:
        """Give the addresses of a pod; none before it has one.

        Raises:
            PodError: there is no answer, or no such pod.
        """
        return tuple((await self._run(self._access.addresses(pod))).split())

    async def run(self, pod: str, command: str) -> str:
        """Give a command's output.

        Raises:
            PodError: the pod can't be entered, or the command failed.
        """
        return await self._run(self._access.run(pod, command))

    async def _run(self, words: tuple[str, ...]) -> str:
        async with self._free:
            try:
                done = await programs.run_async(words, self._limit)
            except OSError as why:
                raise PodError(f"{words[0]}: {why.strerror}") from None
        if done is None:
            raise PodError(f"no end of {words[0]} within {self._limit:g} s")
        if done.status != 0:
            # Earlier lines are about the choice of a container, or a cache.
            lines = done.stderr.strip().splitlines() or [f"kubectl ended with {done.status}"]
            raise PodError(lines[-1].strip()[:_SHOWN])
        return done.stdout


# Where a kubelet mounts what a pod needs for the API server.
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Where the MPI Operator of v1 delivers it, beside its kubexec.sh.
_DELIVERED: Final = "/opt/kube"
# The variables by which kubectl finds the API server; mpirun's environment may lack them.
KUBECTL_ENVIRONMENT: Final = (
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "KUBECONFIG",
    "HTTPS_PROXY",
    "NO_PROXY",
)
DECISION: Final = "launch-agent"


def find_kubectl(environ: Mapping[str, str]) -> str:
    """Find kubectl; empty where there is none."""
    places = os.pathsep.join((environ.get("PATH", ""), _DELIVERED))
    return shutil.which("kubectl", path=places) or ""


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
        key_is_there: tells, after a short wait, whether the job has an SSH key.
        account: where the service account is mounted.

    Raises:
        MpibootError: ``program-missing``; kubectl is required, and is not there.
    """
    settings, given = resolved.settings, resolved.given["launch_agent"]
    if settings.launch_agent is LaunchAgent.SSH:
        return None
    kubectl = find_kubectl(environ)
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
