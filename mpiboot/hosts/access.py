"""How a launcher reaches its workers: by SSH, or by ``kubectl exec`` into their pods.

The choice between the two, kubectl's command lines, and what its answers mean.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
# The service account, as the server's refusal names it.
_ACCOUNT: Final = re.compile(r'User "system:serviceaccount:([^:"]+):([^"]+)"')
# The account for the manifest if the refusal names none.
_UNKNOWN_ACCOUNT: Final = "default"
_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
_SHOWN: Final = 300  # characters


@dataclass(frozen=True, slots=True)
class PodAccess:
    """How a job's pods are entered.

    ``kubectl`` is the program's path; ``namespace`` the pods' (empty: that of kubectl's own
    configuration); ``container`` the one to enter in pods with several (empty: kubectl's choice,
    an annotation's, else the first).
    """

    kubectl: str
    namespace: str = ""
    container: str = ""

    def get(self, pod: str) -> tuple[str, ...]:
        """Build the line that shows a pod.

        The caller limits its time: with --request-timeout kubectl ignores its service account and
        tries localhost:8080 (kubernetes/kubernetes 93474).
        """
        return (*self._words(), "get", "pod", pod, "--output=json")

    def run(self, pod: str, command: str, *, interactive: bool = False) -> tuple[str, ...]:
        """Build the line that runs a command in a pod; ``interactive`` where it reads something."""
        container = (f"--container={self.container}",) if self.container else ()
        stdin = ("-i",) if interactive else ()
        return (*self._words(), "exec", *stdin, *container, pod, "--", "/bin/sh", "-c", command)

    def _words(self) -> tuple[str, ...]:
        namespace = (f"--namespace={self.namespace}",) if self.namespace else ()
        return (self.kubectl, *namespace)


def pod_of(host: str) -> str:
    """Give the name of a host's pod, its first label; empty for an address."""
    return "" if is_address(host) else host.partition(".")[0]


class Trouble(Enum):
    """Why a pod was not entered: for a person, by which of kubectl's words, and what to do.

    The first whose words are found is meant. They are those of the API server (apimachinery's
    api/errors), of client-go and of kubectl 1.24 to 1.34.
    """

    FORBIDDEN = "kubectl has no permission", r"\(Forbidden\)|is forbidden:"
    UNAUTHORIZED = (
        "the API server does not know this pod's service account",
        "Unauthorized|must be logged in to the server",
    )
    NO_SUCH_CONTAINER = "no such container", r"container \S+ is not valid for pod"
    NOT_RUNNING = "pod not running", "container not found|cannot exec into a container"
    NO_POD = "pod not found", r"\(NotFound\)"
    NO_SERVER = (
        "the API server is not reachable",
        (
            "connection to the server|Unable to connect to the server|no such host|i/o timeout|"
            "connection refused|TLS handshake|deadline exceeded|no configuration has been"
        ),
    )
    FAILED = "kubectl failed", ""

    def __init__(self, text: str, words: str) -> None:
        self.text, self.words = text, words

    @property
    def hint(self) -> str:
        """What to do about it."""
        return _HINTS[self]

    @property
    def final(self) -> bool:
        """Whether waiting does not help."""
        return self in (Trouble.FORBIDDEN, Trouble.UNAUTHORIZED, Trouble.NO_SUCH_CONTAINER)

    @property
    def is_gone(self) -> bool:
        """Whether nothing runs in that pod."""
        return self in (Trouble.NO_POD, Trouble.NOT_RUNNING)


_HINTS: Final = {
    Trouble.FORBIDDEN: "give the launcher's service account this Role, with `kubectl apply -f`",
    Trouble.UNAUTHORIZED: "is the service account's token mounted, and of this cluster? See "
    "`automountServiceAccountToken` and `serviceAccountName` of the launcher's pod",
    Trouble.NO_SERVER: "is the service account's token mounted (`automountServiceAccountToken`), "
    "and may this pod reach the API server (a NetworkPolicy)?",
    Trouble.NO_POD: "kubectl needs pods whose names are the hosts' first labels, as those of a "
    "StatefulSet or an MPIJob; MPIBOOT_KUBECTL_NAMESPACE names the namespace of others",
    Trouble.NOT_RUNNING: "look at the pod: kubectl describe pod NAME",
    Trouble.NO_SUCH_CONTAINER: "name one of them with MPIBOOT_KUBECTL_CONTAINER",
    Trouble.FAILED: "the container needs /bin/sh; try the same line in the launcher's pod",
}


class PodError(Exception):
    """A pod can't be entered; ``evidence`` are lines that belong to the message."""

    def __init__(self, trouble: Trouble, message: str, evidence: tuple[str, ...] = ()) -> None:
        super().__init__(f"{trouble.text}: {message}")
        self.trouble, self.message, self.evidence = trouble, message, evidence


def pod_error(words: str, access: PodAccess) -> PodError:
    """Tell from kubectl's output what has failed."""
    trouble = next(item for item in Trouble if re.search(item.words, words))
    role: tuple[str, ...] = ()
    if trouble is Trouble.FORBIDDEN:
        account = _ACCOUNT.search(words)
        own, name = (account[1], account[2]) if account else (access.namespace, _UNKNOWN_ACCOUNT)
        role = role_lines(access.namespace or own, own, name)
    return PodError(trouble, _shortened(words), role)


def pod_addresses(text: str, access: PodAccess) -> tuple[str, ...]:
    """Read the addresses of a pod that runs from the API server's answer (core/v1 Pod, as JSON).

    Raises:
        PodError: it can't be entered.
    """
    try:
        pod = json.loads(text)
        spec, status = pod["spec"], pod["status"]
        names = [item["name"] for item in spec["containers"]]
        addresses = tuple(item["ip"] for item in status.get("podIPs", ()))
        annotations = pod["metadata"].get("annotations") or {}
        wanted = access.container or str(annotations.get(_DEFAULT_CONTAINER) or names[0])
        message = _waits_for(pod, wanted)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise PodError(Trouble.FAILED, "its answer is not that of a pod") from None
    if wanted not in names:
        message = f"it has no container {wanted}, but {', '.join(names)}"
        raise PodError(Trouble.NO_SUCH_CONTAINER, message)
    if message or not addresses:
        raise PodError(Trouble.NOT_RUNNING, message or "it has no address yet")
    return addresses


def _waits_for(pod: dict[str, Any], container: str) -> str:
    """Say why nothing can be run in a pod's container; empty where it runs."""
    status = pod["status"]
    if pod["metadata"].get("deletionTimestamp"):
        return "it is being deleted"
    phase = status.get("phase", "Unknown")
    found = [item for item in status.get("containerStatuses", ()) if item["name"] == container]
    current = found[0].get("state", {}) if found else {}
    if phase == "Running" and "running" in current:
        return ""
    if "waiting" in current:
        why = current["waiting"].get("reason", "")
    elif "terminated" in current:
        why = f"its container {container} ended with {current['terminated'].get('exitCode')}"
    else:
        conditions = [item for item in status.get("conditions", ()) if item.get("message")]
        why = _shortened(conditions[0]["message"]) if conditions else ""
    return f"it is {phase}" + (f": {why}" if why else "")


def role_lines(namespace: str, account_namespace: str, account: str) -> tuple[str, ...]:
    """Write the Role and RoleBinding with which a service account may enter pods.

    Since 1.31 kubectl uses WebSocket, which is authorized as ``get``; older ones need ``create``,
    and API servers since 1.35 require both (KEP-4006, kubernetes/kubernetes#133515).
    """
    place = f", namespace: {namespace}" if namespace else ""
    of_account = f", namespace: {account_namespace}" if account_namespace else ""
    return (
        "apiVersion: rbac.authorization.k8s.io/v1",
        "kind: Role",
        f"metadata: {{name: mpiboot-kubectl{place}}}",
        "rules:",
        '- {apiGroups: [""], resources: [pods], verbs: [get]}',
        '- {apiGroups: [""], resources: [pods/exec], verbs: [get, create]}',
        "---",
        "apiVersion: rbac.authorization.k8s.io/v1",
        "kind: RoleBinding",
        f"metadata: {{name: mpiboot-kubectl{place}}}",
        "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: mpiboot-kubectl}",
        "subjects:",
        f"- {{kind: ServiceAccount, name: {account}{of_account}}}",
    )


def _shortened(words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    # Earlier lines are about the choice of a container, or a cache.
    return lines[-1][:_SHOWN] if lines else "it said nothing"


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
_LOOK: Final = 20.0


class Kubectl:
    """Reads pods from the API server, and runs commands in them."""

    def __init__(self, access: PodAccess, *, limit: float = 30.0) -> None:
        """``limit`` is how many seconds a command may take."""
        self._access = access
        self._limit = limit
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def look(self, pod: str) -> tuple[str, ...]:
        """Give the addresses of a pod that runs.

        Raises:
            PodError: it can't be entered.
        """
        return pod_addresses(await self._run(self._access.get(pod), _LOOK), self._access)

    async def run(self, pod: str, command: str) -> str:
        """Give a command's output.

        Raises:
            PodError: the pod can't be entered, or the command failed.
        """
        return await self._run(self._access.run(pod, command), self._limit)

    async def _run(self, words: tuple[str, ...], limit: float) -> str:
        async with self._free:
            try:
                done = await programs.run_async(words, limit)
            except OSError as why:
                raise PodError(Trouble.FAILED, f"{words[0]}: {why.strerror}") from None
        if done is None:
            message = f"no end of `kubectl {words[-1][:20]}` within {limit:g} s"
            raise PodError(Trouble.FAILED, message)
        if done.status != 0:
            raise pod_error(done.stderr, self._access)
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
    namespace = settings.kubectl_namespace or own_namespace(account)
    access = PodAccess(kubectl, namespace, settings.kubectl_container)
    return access, Decision(DECISION, LaunchAgent.KUBECTL.value, source, reason)


def own_namespace(account: Path = ACCOUNT) -> str:
    """Give this pod's namespace; empty where no service account is mounted."""
    try:
        return (account / "namespace").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
