"""Data network and GPUs of one pod, by the rules that a launcher applies to all of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from mpiboot.core.model import Finding, Host, PodFacts, Worker
from mpiboot.core.settings import Settings
from mpiboot.core.wording import counted, first_few
from mpiboot.doctor.judge.image import ok, warned
from mpiboot.doctor.report import PciPart
from mpiboot.job import pods
from mpiboot.network import cluster_view, worker_network
from mpiboot.network.records import RDMA

_SSH: Final = 22
_FUNCTION: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# NCCL's names, the nearest first (graph/topo.cc): one PCI switch, several, one CPU, two CPUs.
NEAR: Final = ("PIX", "PXB", "PHB", "SYS")
_DIRECT: Final = NEAR[:2]  # the default of NCCL_NET_GDR_LEVEL
_TOLD: Final = ("NCCL_TOPO_FILE", "NCCL_NET_GDR_LEVEL")


def _alone(facts: PodFacts) -> Worker:
    """Take this pod as a job's only worker, with as many ranks as it has GPUs."""
    host = Host(facts.hostname, slots=max(facts.gpus.count, 1))
    return Worker(host, facts.control_address, _SSH, "", "", facts)


def data_network(facts: PodFacts, settings: Settings) -> Iterable[Finding]:
    """Apply the rules for one worker; those that compare workers say nothing of one."""
    network = worker_network.choose(_alone(facts), settings)
    found = cluster_view.findings((network,), settings, (), {})
    yield from (replace(item, host="") for item in found)
    if network.transport in RDMA:
        rails = first_few(rail.name for rail in network.rails)
        said = f"{counted(len(network.rails), network.transport.value + ' port')}: {rails}"
        yield ok("rdma-missing", said)
    else:
        links = first_few(link.name for link in network.data)
        said = f"no RDMA device of this pod; data goes over TCP{f' on {links}' if links else ''}"
        yield ok("rdma-missing", said)


def gpus(facts: PodFacts) -> Iterable[Finding]:
    """Judge this pod's GPUs."""
    found = tuple(pods.gpus((_alone(facts),)))
    yield from (replace(item, host="") for item in found)
    if pods.wants_gpu_memory(facts) and not facts.gpus.peer_memory:
        said = "RDMA devices reach no GPU memory: neither nvidia_peermem nor DMA-BUF"
        yield warned("gpus", said, hint=pods.PEER_MEMORY)
    elif not found and facts.gpus.count:
        yield ok("gpus", f"{counted(facts.gpus.count, 'GPU')}: {facts.gpus.kind}")


def _switches(path: str) -> list[str]:
    """List the PCI switches above a device, the nearest first: every second bridge, as NCCL does.

    A switch is two steps of the path, its upstream and its downstream port (graph/xml.cc).
    """
    parts = [part for part in path.split("/") if part]
    found = []
    while len(parts) > 2 and _FUNCTION.fullmatch(parts[-3]):  # noqa: PLR2004 - device, port, port
        found.append(parts[-3])
        parts = parts[:-2]
    return found


def distance(one: str, other: str, numa: tuple[int, int] = (-1, -1)) -> str:
    """Name the way between two PCI devices as NCCL does.

    Args:
        one: a device's path in sysfs, below ``/sys/devices``.
        other: the other one's.
        numa: the NUMA node of each, -1 where the kernel knows none.
    """
    ours, theirs = _switches(one), _switches(other)
    shared = next((name for name in ours if name in theirs), "")
    if not shared:
        return "PHB" if numa[0] == numa[1] else "SYS"
    return "PIX" if ours[0] == theirs[0] == shared else "PXB"


def gpu_distance(seen: PciPart, environ: Mapping[str, str]) -> Iterable[Finding]:
    """Judge how far each GPU is from the nearest RDMA device.

    Farther than PXB, NCCL copies through the host's memory unless it is told otherwise.
    """
    if not seen.gpus or not seen.devices:
        return
    far, told = [], []
    for gpu, place in seen.gpus.items():
        ways = {
            name: distance(place, other, (seen.numa.get(gpu, -1), seen.numa.get(name, -1)))
            for name, other in seen.devices.items()
        }
        nearest = min(ways, key=lambda name: NEAR.index(ways[name]))
        told.append(f"{gpu}: {nearest} {ways[nearest]}")
        if ways[nearest] not in _DIRECT:
            far.append(gpu)
    if far and not any(environ.get(name) for name in _TOLD):
        said = f"NCCL takes no RDMA device as near to {counted(len(far), 'GPU')} ({first_few(far)})"
        yield warned("gpu-distance", f"{said}: GPUDirect RDMA is off there", *told)
    else:
        yield ok("gpu-distance", "; ".join(told))
