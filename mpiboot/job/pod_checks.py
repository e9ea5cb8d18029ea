"""What is wrong with a job's pods before it starts: their MPIs, names and network. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from mpiboot.core.checks import BY_REFERENCE, failed
from mpiboot.core.model import Finding, Level, Link, MpiFamily, PodFacts, Source, Worker
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import first_few, majority
from mpiboot.job.names import short
from mpiboot.job.plan_builder import Observed, PlanBuilder
from mpiboot.network import service_mesh
from mpiboot.network.control import launcher_addresses, link_of

_ONE_ADDRESS: Final = (
    "give each pod with hostNetwork a node of its own (podAntiAffinity on the job's label, with "
    "topologyKey kubernetes.io/hostname); the launcher needs no hostNetwork"
)

_FABRIC_MANAGER: Final = (
    "look at nvidia-fabricmanager on that node (`systemctl status`, `nvidia-smi -q`); until then "
    "CUDA fails with error 802, system not yet initialized"
)
PEER_MEMORY: Final = (
    "load nvidia_peermem on the nodes (`modprobe nvidia_peermem`), or use the open kernel driver; "
    "until then NCCL copies through the host's memory, which is slower"
)


def findings(observed: Observed, resolved: Resolved) -> tuple[Finding, ...]:
    """Find all that the launcher and every worker tell."""
    return (
        *mpi_versions(observed),
        *_meshes(observed, resolved),
        *mtus(observed.links, observed.workers),
        *shared_addresses(observed),
        *gpus(observed.workers),
    )


def mpi_versions(observed: Observed) -> Iterator[Finding]:
    """Compare the MPIs of launcher and workers.

    An MPI that the line names by its path is the one whose daemons are started there. What comes
    first on a worker's PATH proves nothing: Hydra calls its proxy by path, Open MPI its daemon.
    """
    ours = observed.mpi
    for worker in observed.workers:
        theirs = worker.called_mpi or (worker.facts.mpi if worker.facts else worker.mpi)
        where = worker.host.name
        if theirs is None:
            if worker.facts:
                said, hint = "no mpirun on its PATH", BY_REFERENCE["mpi-versions"].hint
                yield Finding("mpi-versions", Level.WARN, said, host=where, hint=hint)
            continue
        # By its own words, too: of which family this pod's is, MPIBOOT_MPI may have said.
        is_ours = theirs.family == ours.family or theirs.said == ours.said
        if is_ours and theirs.version == ours.version:
            continue
        said = f"has {theirs.said}, the launcher {ours.said}"
        if worker.called_mpi or theirs.family is MpiFamily.UNKNOWN:
            named = ", which the line names" if worker.called_mpi else ""
            what = theirs.said or "not recognised"
            said = f"{theirs.path}{named}: {what}; the launcher: {ours.said}"
        proof = worker.called_mpi and theirs.said and theirs.family != ours.family
        level, hint = Level.FAIL if proof else Level.WARN, BY_REFERENCE["mpi-versions"].hint
        yield Finding("mpi-versions", level, said, host=where, hint=hint)


def gpus(workers: Sequence[Worker]) -> Iterator[Finding]:
    """Compare the workers' GPUs; what mpiboot starts is the user's to judge, so it only warns."""
    kinds = {}
    for worker in workers:
        if worker.facts is None:
            continue
        own = worker.facts.gpus
        kinds[worker.host.name] = f"{own.count} {own.kind}".strip()
        if own.lost:
            said = f"{own.lost} of {own.lost + own.count} GPUs in /dev, the kernel has no more"
            yield _gpus(said, worker.host.name)
        if own.fabric not in ("", own.FABRIC_READY):
            said = f"NVLink fabric: {own.fabric}; CUDA starts when Fabric Manager has set it up"
            yield Finding("gpus", Level.WARN, said, host=worker.host.name, hint=_FABRIC_MANAGER)
    found = majority(kinds)
    if found:
        yield _gpus(f"GPUs differ: {found.said}")


def gpu_memory(builder: PlanBuilder, workers: Sequence[Worker]) -> None:
    """Tell by what RDMA devices reach the memory of NVIDIA's GPUs; warn where they don't.

    Without it NCCL works all the same, by a copy through the host's memory, and says so at its own
    level INFO alone.
    """
    ways: dict[str, list[str]] = {}
    for worker in workers:
        facts = worker.facts
        if facts and wants_gpu_memory(facts):
            ways.setdefault(" or ".join(facts.gpus.peer_memory), []).append(worker.host.name)
    without = ways.pop("", [])
    for way, names in ways.items():
        because = f"RDMA devices reach GPU memory by it (GPUDirect RDMA) on {first_few(names)}"
        builder.decide("gpu-memory", way, Source.DETECTED, because)
    if without:
        where = "all of them" if not ways else first_few(without)
        said = f"RDMA devices reach no GPU memory on {where}: neither nvidia_peermem nor DMA-BUF"
        builder.warn("gpus", said, PEER_MEMORY)


def wants_gpu_memory(facts: PodFacts) -> bool:
    """Tell whether a pod has NVIDIA's GPUs and RDMA devices, which could reach their memory."""
    return bool(facts.fabric.devices) and facts.gpus.kind.startswith("NVIDIA")


def _gpus(said: str, host: str = "") -> Finding:
    return Finding("gpus", Level.WARN, said, host=host, hint=BY_REFERENCE["gpus"].hint)


def _why_shared(workers: Sequence[Worker]) -> str:
    """A pod on its node's network has the node's name; else the nameserver is wrong for some."""
    names = {short(worker.host.name) for worker in workers}
    one_name_each = len(names) == len(workers)
    there = {short(worker.facts.hostname) for worker in workers if worker.facts}
    if len(there) != 1 or not there <= names or not one_name_each:
        return _ONE_ADDRESS
    return (
        f"that pod is {there.pop()}, so that the nameserver has a wrong or an "
        "old address for the other name: look at the EndpointSlices of the job's headless Service "
        "and at the cluster's DNS pods, and start the launcher again"
    )


def shared_addresses(observed: Observed) -> Iterator[Finding]:
    """Find hosts of the hostfile that are not each a pod of its own.

    Pods that share a node's network (hostNetwork) share an address: which of them a name means
    can't be told there, and mpirun would put two hosts' ranks into one of them, or a worker's into
    the launcher.
    """
    servers: dict[tuple[str, int], list[Worker]] = {}
    for worker in observed.workers:
        servers.setdefault((worker.address, worker.port), []).append(worker)
    for (address, port), workers in servers.items():
        if len(workers) > 1:
            names = first_few(worker.host.name for worker in workers)
            said = f"{names} lead to one and the same SSH server, {address} port {port}"
            yield failed("settings-conflict", said, hint=_why_shared(workers))
    pattern = observed.platform.worker_names
    for host in observed.local:
        if pattern and re.search(pattern, short(host.name)):
            said = "this worker's name leads to the launcher's own address"
            yield failed("settings-conflict", said, hint=_ONE_ADDRESS, host=host.name)


def _meshes(observed: Observed, resolved: Resolved) -> Iterable[Finding]:
    """Find proxies in front of pods."""
    meshes = {"the launcher": observed.own.mesh if observed.own else None}
    meshes |= {worker.host.name: worker.facts.mesh for worker in observed.workers if worker.facts}
    ports = {worker.port for worker in observed.workers} or {22}
    return service_mesh.findings(meshes, ports, resolved.settings.port_range)


def mtus(launcher: Iterable[Link], workers: Sequence[Worker]) -> tuple[Finding, ...]:
    """Tell which pods have which MTU on the link of their control address, where they differ.

    Both ends of a connection agree on the smaller of theirs, so that only what lies between them
    can be too small for it; pods of one network with different MTUs are how that shows.
    """
    pods: dict[int, list[str]] = {}
    mine = tuple(launcher)
    for address in launcher_addresses(workers):
        link = link_of(address, mine)
        if link:
            pods.setdefault(link.mtu, []).append("the launcher")
    for worker in workers:
        link = link_of(worker.address, worker.facts.links) if worker.facts else None
        if link:
            pods.setdefault(link.mtu, []).append(worker.host.name)
    if len(pods) < 2:  # noqa: PLR2004 - two that differ
        return ()
    parts = [f"{size} on {first_few(dict.fromkeys(names))}" for size, names in sorted(pods.items())]
    said = f"MTUs of the control links differ: {'; '.join(parts)}"
    return (Finding("control-mtu", Level.WARN, said, hint=BY_REFERENCE["control-mtu"].hint),)
