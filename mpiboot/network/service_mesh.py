"""Service meshes: how their proxies are recognised in a pod, and how a job stays out of them. Pure.

A proxy in front of a pod takes its connections in both directions. One that waits for the client
to speak first never passes SSH's greeting on; one that expects mTLS resets what has none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from mpiboot.core.facts import Mesh
from mpiboot.core.model import Finding, Level
from mpiboot.core.wording import first_few

_LISTED: Final = 32  # ports that are written out in an annotation


class _Row(NamedTuple):
    """One mesh: all of ``ports`` listen in its pods, and one of ``also`` where there are any.

    ``annotations`` are those that its injector leaves; ``keep_out`` says how a pod gets none,
    ``skip`` how only some ports do (``ranges`` where it takes first-last).
    """

    name: str
    ports: frozenset[int]
    also: frozenset[int]
    annotations: tuple[str, ...]
    keep_out: str
    skip: str
    ranges: bool = False


# istio.io "Ports used by Istio": 15001 and 15006 take what leaves and enters, 15008 HBONE,
# 15020, 15021 and 15090 are the sidecar's own. linkerd.io "Protocol detection": 4140 and 4143.
_ROWS: Final = (
    _Row(
        "istio",
        frozenset({15001, 15006}),
        frozenset({15020, 15021, 15090}),
        ("sidecar.istio.io/status",),
        'label and annotate launcher and worker templates with sidecar.istio.io/inject: "false"',
        "annotate both with traffic.sidecar.istio.io/excludeInboundPorts and "
        'traffic.sidecar.istio.io/excludeOutboundPorts: "{ports}"',
    ),
    _Row(
        "istio ambient",
        frozenset({15001, 15006, 15008}),
        frozenset(),
        ("ambient.istio.io/redirection",),
        "label launcher and worker templates with istio.io/dataplane-mode: none",
        "",
    ),
    _Row(
        "linkerd",
        frozenset({4140, 4143}),
        frozenset(),
        ("linkerd.io/proxy-version",),
        "annotate launcher and worker templates with linkerd.io/inject: disabled",
        "annotate both with config.linkerd.io/skip-inbound-ports and "
        'config.linkerd.io/skip-outbound-ports: "{ports}"',
        ranges=True,
    ),
)
_BY_NAME: Final = {row.name: row for row in _ROWS}


def recognise(listening: Collection[int], annotations: Collection[str] = ()) -> Mesh | None:
    """Name the mesh whose proxy stands in front of this pod; None where there is none.

    Args:
        listening: TCP ports on which anybody listens in this pod's network.
        annotations: the names of the pod's own annotations, where they are known.
    """
    there = set(listening)
    for row in _ROWS:
        if row.ports <= there and (not row.also or row.also & there):
            seen = sorted((row.ports | row.also) & there)
            return Mesh(row.name, (f"ports {', '.join(map(str, seen))} listen in this pod",))
    for row in _ROWS:
        annotation = next((name for name in row.annotations if name in annotations), "")
        if annotation:
            return Mesh(row.name, (f"the pod has the annotation {annotation}",))
    return None


def advice(mesh: Mesh, ssh: Collection[int], port_range: str = "") -> str:
    """Describe how the job's ports are kept out of the mesh."""
    row = _BY_NAME.get(mesh.name)
    if row is None or not row.skip:
        return row.keep_out if row else ""
    lead, own = "or set MPIBOOT_PORT_RANGE and ", "<its ports>"
    if port_range:
        first, last = map(int, port_range.split("-"))
        lead, own = "or ", port_range
        if not row.ranges:
            listed = last - first < _LISTED
            every = ",".join(map(str, range(first, last + 1)))
            own = every if listed else f"<each port of {port_range}>"
    ports = ",".join(map(str, (*sorted(ssh), own)))
    return f"{row.keep_out}; {lead}{row.skip.replace('{ports}', ports)}"


def findings(
    pods: Mapping[str, Mesh | None], ssh: Collection[int], port_range: str
) -> tuple[Finding, ...]:
    """Make one finding for each mesh, with the pods that it stands in front of."""
    found: dict[str, tuple[Mesh, list[str]]] = {}
    for pod, mesh in pods.items():
        if mesh is not None:
            found.setdefault(mesh.name, (mesh, []))[1].append(pod)
    return tuple(
        Finding(
            "service-mesh",
            Level.WARN,
            message(mesh, where),
            "",
            mesh.evidence,
            advice(mesh, ssh, port_range),
        )
        for mesh, where in found.values()
    )


def message(mesh: Mesh, where: Sequence[str]) -> str:
    """Describe what a mesh does to a job."""
    pods = first_few(where, 1)
    return f"a proxy of {mesh.name} takes every connection of {pods}, MPI's own too"
