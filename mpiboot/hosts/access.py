"""How a launcher comes to its workers: by SSH, or by ``kubectl exec`` into their pods.

Which of the two is chosen here, and so is what kubectl is asked of a pod and what its answers mean.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

from mpiboot.core.addresses import is_address
from mpiboot.core.errors import error
from mpiboot.core.model import Decision, Source
from mpiboot.core.setting_types import LaunchAgent
from mpiboot.core.settings import Resolved
from mpiboot.system import executables, programs
from mpiboot.system.programs import ProgramEnd

# How kubectl says with what a remote command ended; its own failures it tells in other words, and
# both may have status 1 (kubectl's pkg/cmd/util, client-go's util/exec).
KUBECTL_ENDED: Final = "command terminated with exit code"
# Who asks, as the server's refusal names it.
_ACCOUNT: Final = re.compile(r'User "system:serviceaccount:([^:"]+):([^"]+)"')
# An account in a manifest that nobody has named yet.
_UNKNOWN_ACCOUNT: Final = "default"
_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
_SHOWN: Final = 300  # characters


@dataclass(frozen=True, slots=True)
class PodAccess:
    """How a job's pods are entered.

    ``kubectl`` is the program's path. ``namespace`` is the pods', empty for the one of kubectl's
    own configuration; ``container`` the one to enter in pods with several, empty for kubectl's
    choice (an annotation's, else the first).
    """

    kubectl: str
    namespace: str = ""
    container: str = ""

    def get(self, pod: str) -> tuple[str, ...]:
        """Give the line that tells of a pod.

        Who runs it bounds it: with --request-timeout kubectl leaves its service account aside and
        asks localhost:8080 (kubernetes/kubernetes 93474).
        """
        return (*self._words(), "get", "pod", pod, "--output=json")

    def run(self, pod: str, command: str) -> tuple[str, ...]:
        """Give the line that runs a command in a pod."""
        container = (f"--container={self.container}",) if self.container else ()
        return (*self._words(), "exec", *container, pod, "--", "/bin/sh", "-c", command)

    def _words(self) -> tuple[str, ...]:
        return (
            (self.kubectl, f"--namespace={self.namespace}") if self.namespace else (self.kubectl,)
        )


def pod_of(host: str) -> str:
    """Give the name of the pod that a host is, its first label; empty for an address."""
    return "" if is_address(host) else host.partition(".")[0]


class Trouble(str, Enum):
    """Why a pod was not entered; the value is what a person is told."""

    FORBIDDEN = "kubectl has no right to it"
    UNAUTHORIZED = "the API server does not know this pod's service account"
    NO_SERVER = "the API server is not reachable"
    NO_POD = "pod not found"
    NOT_RUNNING = "pod not running"
    NO_SUCH_CONTAINER = "no such container"
    FAILED = "kubectl failed"

    @property
    def final(self) -> bool:
        """Whether waiting does not help."""
        return self in (Trouble.FORBIDDEN, Trouble.UNAUTHORIZED, Trouble.NO_SUCH_CONTAINER)


# What kubectl says -> what it means; the first that fits. The words are those of the API server
# (apimachinery's api/errors), of client-go and of kubectl 1.24 to 1.34.
_WORDS: Final = (
    (re.compile(r"\(Forbidden\)|is forbidden:"), Trouble.FORBIDDEN),
    (re.compile(r"Unauthorized|must be logged in to the server"), Trouble.UNAUTHORIZED),
    (re.compile(r"container \S+ is not valid for pod"), Trouble.NO_SUCH_CONTAINER),
    (re.compile(r"container not found|cannot exec into a container"), Trouble.NOT_RUNNING),
    (re.compile(r"\(NotFound\)"), Trouble.NO_POD),
    (
        re.compile(
            r"connection to the server|Unable to connect to the server|no such host|i/o timeout"
            r"|connection refused|TLS handshake|deadline exceeded|no configuration has been"
        ),
        Trouble.NO_SERVER,
    ),
)
_HINTS: Final = {
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


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps a pod from being entered; ``evidence`` are lines that belong to it."""

    trouble: Trouble
    message: str
    hint: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodState:
    """What the API server tells of a pod: its addresses, and what keeps it from being entered."""

    addresses: tuple[str, ...] = ()
    obstacle: Obstacle | None = field(default=None)


def obstacle(trouble: Trouble, message: str, evidence: tuple[str, ...] = ()) -> Obstacle:
    """Say what is wrong, with what to do about it."""
    return Obstacle(trouble, message, _HINTS.get(trouble, ""), evidence)


def obstacle_of(words: str, access: PodAccess) -> Obstacle:
    """Tell by kubectl's own words what has failed."""
    message = _shortened(words)
    trouble = next((item for pattern, item in _WORDS if pattern.search(words)), Trouble.FAILED)
    if trouble is not Trouble.FORBIDDEN:
        return obstacle(trouble, message)
    account = _ACCOUNT.search(words)
    own, name = (account[1], account[2]) if account else (access.namespace, _UNKNOWN_ACCOUNT)
    hint = "give the launcher's service account this Role, with `kubectl apply -f`"
    role = role_lines(access.namespace or own, own, name)
    return Obstacle(trouble, message, hint, role)


def pod_state(text: str, access: PodAccess) -> PodState:
    """Read what the API server tells of a pod (core/v1 Pod, as JSON)."""
    try:
        pod = json.loads(text)
        spec, status = pod["spec"], pod["status"]
        names = [item["name"] for item in spec["containers"]]
        addresses = tuple(item["ip"] for item in status.get("podIPs", ()))
        wanted = access.container or _default_container(pod, names)
        message = _waits_for(pod, wanted)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return PodState(obstacle=obstacle(Trouble.FAILED, "its answer is not that of a pod"))
    if wanted not in names:
        message = f"it has no container {wanted}, but {', '.join(names)}"
        return PodState(addresses, obstacle(Trouble.NO_SUCH_CONTAINER, message))
    if not message and not addresses:
        message = "it has no address yet"
    return PodState(addresses, obstacle(Trouble.NOT_RUNNING, message) if message else None)


def _default_container(pod: dict[str, Any], names: list[str]) -> str:
    annotations = pod["metadata"].get("annotations") or {}
    return str(annotations.get(_DEFAULT_CONTAINER) or names[0])


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

    Since 1.31 kubectl asks by WebSocket, which API servers take for ``get``; older ones asked for
    ``create``, and servers since 1.35 want both (KEP-4006, kubernetes/kubernetes#133515).
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
    # What comes before is about the program's own choice of a container, or a cache.
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
    ``pods`` nobody logs in: the hosts' pods are entered by kubectl, and there is no key.
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


# kubectl costs a tenth of a second of a core and 40 MB each.
_AT_ONCE: Final = 16
_LOOK: Final = 20.0
_FAILED: Final = 1


class Kubectl:
    """Asks the API server for pods, and runs commands in them."""

    def __init__(self, access: PodAccess, *, limit: float = 30.0) -> None:
        """Begin; ``limit`` is how many seconds a command may take."""
        self._access = access
        self._limit = limit
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def look(self, pod: str) -> PodState:
        """Ask what a pod is doing."""
        done = await self._run(self._access.get(pod), _LOOK)
        if done.status == 0:
            return pod_state(done.stdout, self._access)
        return PodState(obstacle=obstacle_of(done.stderr, self._access))

    async def run(self, pod: str, command: str) -> str | Obstacle:
        """Give a command's output, or why there is none."""
        done = await self._run(self._access.run(pod, command), self._limit)
        return done.stdout if done.status == 0 else obstacle_of(done.stderr, self._access)

    async def _run(self, words: tuple[str, ...], limit: float) -> ProgramEnd:
        async with self._free:
            try:
                done = await programs.run_async(words, limit)
            except OSError as why:
                return ProgramEnd(_FAILED, "", f"{words[0]}: {why.strerror}")
        late = f"no end of `kubectl {words[-1][:20]}` within {limit:g} s"
        return done or ProgramEnd(_FAILED, "", late)


# Where a kubelet mounts what a pod needs for the API server.
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Where the MPI Operator of v1 delivers it, beside its kubexec.sh.
_DELIVERED: Final = "/opt/kube"
# What kubectl reads of its environment to find the API server; mpirun's may lack it.
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
    return executables.find("kubectl", places) or ""


def choose_access(
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
    kubectl = find_kubectl(environ)
    if settings.launch_agent is LaunchAgent.KUBECTL:
        if not kubectl:
            raise error(
                "program-missing",
                f"no kubectl in a folder of PATH, and {given} asks for it",
                evidence=(f"PATH={environ.get('PATH', '')}",),
                hint="put kubectl into the launcher's image",
            )
        source, reason = given.source, str(given)
    else:
        # Without both of these nobody can be asked; with a key, SSH is what works everywhere.
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
