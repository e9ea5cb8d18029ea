"""What a failed attempt points to beyond its own words: a mesh's proxy, packets that get lost.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from mpiboot.model import Mesh
from mpiboot.network import service_mesh as meshes
from mpiboot.ssh_client.attempt import Attempt, Outcome

# What a proxy makes of a server that speaks first, or of a peer without its mTLS.
PROXIED: Final = frozenset({Outcome.SILENT, Outcome.CLOSED})
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
    attempt: Attempt, mesh: Mesh | None, ports: Collection[int], port_range: str
) -> tuple[str, str | None]:
    """Give the reason in a few steady words, and what to do about it; None: the check's own hint.

    Args:
        attempt: the attempt that came furthest.
        mesh: what stands in front of the launcher's own pod.
        ports: the SSH ports that are tried.
        port_range: the setting, for the annotation that excludes ports.
    """
    said = attempt.outcome.value
    if attempt.outcome in PROXIED and mesh is not None:
        hint = meshes.advice(mesh, ports, port_range)
        return f"{said}, and {mesh.name}'s proxy is in front of this pod", hint
    if attempt.stalled:
        return f"{said}: {_LOST}", _LOST_HINT
    if attempt.outcome is Outcome.SILENT:
        return said, _SILENT_HINT
    return said, None


def more(reason: str, attempt: Attempt) -> str:
    """Give what a reason has beyond the attempt's own words, to stand behind them."""
    said = reason.removeprefix(attempt.outcome.value).lstrip(":, ")
    return f"; {said}" if said else ""
