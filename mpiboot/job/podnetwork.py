"""What the pods' own network does to a job: proxies in front of pods, MTUs that differ. Pure."""

from __future__ import annotations

from mpiboot.job.plan_builder import Observed
from mpiboot.model import Finding
from mpiboot.network import mtu, service_mesh
from mpiboot.settings import Resolved


def findings(observed: Observed, resolved: Resolved) -> tuple[Finding, ...]:
    """Find it on the launcher and on every worker that tells."""
    meshes = {"the launcher": observed.own.mesh if observed.own else None}
    meshes |= {worker.host.name: worker.facts.mesh for worker in observed.workers if worker.facts}
    ports = {worker.port for worker in observed.workers} or {22}
    found = service_mesh.findings(meshes, ports, resolved.settings.port_range)
    return (*found, *mtu.findings(observed.links, observed.workers))
