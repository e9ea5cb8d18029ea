"""What a failed try points to beyond its own words: a mesh's proxy, lost packets, `command:`.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from mpiboot.core.model import Mesh
from mpiboot.hosts.dns_answers import NoAddress
from mpiboot.hosts.resolv_conf import ResolvConf
from mpiboot.job import names
from mpiboot.network import service_mesh as meshes
from mpiboot.ssh.attempt import Attempt, Outcome

# What a proxy makes of a server that speaks first, or of a peer without its mTLS.
PROXIED: Final = frozenset({Outcome.SILENT, Outcome.CLOSED})
# Images that install or fetch something before their sshd are met in the field, so that it is said
# and nothing ends by it.
LONG: Final = 60.0
_COMMAND_HINT: Final = (
    "does the worker's container run mpiboot? A `command:` in its spec replaces it, and without "
    "command and args the MPI Operator starts the image's own sshd: write `args: [worker]`, or "
    "`args: [worker, --, PROGRAM]`; else the worker's log says what it waits for"
)
# A packet filter drops, or answers with an ICMP error that reads as a missing route.
_FILTERED: Final = frozenset({Outcome.TIMEOUT, Outcome.UNREACHABLE})
_FILTERED_HINT: Final = (
    "port {port} of {host} is filtered: its pod is there, and refuses connections to port {other}. "
    "A NetworkPolicy or firewall must let the launcher connect to port {port} of the workers"
)
_LOST: Final = "are large packets lost (MTU)?"
_LOST_HINT: Final = (
    "try `ping -M do -s 1472 ADDRESS` between nodes, and give the pod network the MTU that its "
    "path carries (CNI configuration); or the worker is overloaded"
)
_SILENT_HINT: Final = (
    "is a service mesh's sidecar in front of the worker? Its log tells (`mpiboot doctor` there "
    "too); else its sshd hangs"
)


def why(
    attempt: Attempt,
    mesh: Mesh | None,
    ports: Collection[int],
    port_range: str,
    refused: float = 0.0,
    refusing: Collection[int] = (),
) -> tuple[str, str | None]:
    """Give the reason in a few steady words, and what to do about it; None: the check's own hint.

    Args:
        attempt: the attempt that came furthest.
        mesh: what stands in front of the launcher's own pod.
        ports: the SSH ports that are tried.
        port_range: the setting, for the annotation that excludes ports.
        refused: the seconds for which every port has refused connections.
        refusing: other ports of that address that have just refused connections.
    """
    said = attempt.outcome.value
    if attempt.outcome in PROXIED and mesh is not None:
        hint = meshes.advice(mesh, ports, port_range)
        return f"{said}, and {mesh.name}'s proxy is in front of this pod", hint
    if attempt.outcome is Outcome.REFUSED:
        long = f", nothing has listened for {LONG:g} s" if refused >= LONG else ""
        return f"{said}{long}", _COMMAND_HINT
    if attempt.outcome in _FILTERED and refusing:
        port = attempt.target.port
        hint = _FILTERED_HINT.format(port=port, host=attempt.target.host, other=min(refusing))
        return f"{said}, though other ports refuse", hint
    if attempt.stalled:
        return f"{said}: {_LOST}", _LOST_HINT
    if attempt.outcome is Outcome.SILENT:
        return said, _SILENT_HINT
    return said, None


def more(reason: str, attempt: Attempt) -> str:
    """Give what a reason has beyond the attempt's own words, to stand behind them."""
    said = reason.removeprefix(attempt.outcome.value).lstrip(":, ")
    return f"; {said}" if said else ""


def unresolved(reason: NoAddress | None, conf: ResolvConf) -> str | None:
    """Say what to do about a name without address; None: the check's own hint.

    A pod on the node's network gets the node's resolv.conf unless its dnsPolicy says otherwise, and
    the node's nameserver has no name of the cluster (Kubernetes, "Pod's DNS Policy").
    """
    if reason not in (NoAddress.NXDOMAIN, NoAddress.NO_RECORD) or names.cluster_domain(conf.search):
        return None
    has = f"search {' '.join(conf.search)}" if conf.search else "no search list"
    return (
        f"this pod's /etc/resolv.conf is not the cluster's ({has}): with `hostNetwork: true` a pod "
        "needs `dnsPolicy: ClusterFirstWithHostNet`"
    )
