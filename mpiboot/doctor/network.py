"""The data network, GPUs and the links that variables name, of one pod. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from mpiboot.core.checks import DATA_CHECKS
from mpiboot.core.facts import Host, PodFacts, Worker
from mpiboot.core.model import Finding
from mpiboot.core.settings import Settings
from mpiboot.core.wording import counted, first_few
from mpiboot.doctor.checks import DoctorCheck, check, ok, warned, worker_check
from mpiboot.job import pods
from mpiboot.job.control_links import NAME_LINKS, links_gone
from mpiboot.network import cluster_view, worker_network
from mpiboot.network.records import RDMA

_SSH: Final = 22


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
        message = f"{counted(len(network.rails), network.transport.value + ' port')}: {rails}"
        yield ok("rdma-missing", message)
    else:
        links = first_few(link.name for link in network.data)
        message = f"no RDMA device of this pod; data goes over TCP{f' on {links}' if links else ''}"
        yield ok("rdma-missing", message)


DATA_NETWORK: Final = tuple(
    DoctorCheck(row.reference, data_network, by_plan=True) for row in DATA_CHECKS
)


@check("gpus", by_plan=True)
def gpus(facts: PodFacts) -> Iterable[Finding]:
    """Judge this pod's GPUs.

    Looks at /dev, sysfs and, where there is an NVLink fabric, `nvidia-smi -q`.
    """
    found = tuple(pods.gpus((_alone(facts),)))
    yield from (replace(item, host="") for item in found)
    if not found and facts.gpus.count:
        yield ok("gpus", f"{counted(facts.gpus.count, 'GPU')}: {facts.gpus.kind}")


@worker_check(
    "named-links",
    title="links that variables name exist in this pod",
    hint="name a link that the workers have (`mpiboot facts` lists them), or unset it: mpiboot "
    "sets what it can",
)
def named_links(environ: Mapping[str, str], facts: PodFacts) -> Iterable[Finding]:
    """Name variables that name a link which this pod does not have."""
    there = [link.name for link in facts.links]
    for name in NAME_LINKS:
        gone = links_gone(facts, environ.get(name, ""))
        if gone:
            message = f"{name}={environ[name]}: no link {first_few(gone)} here"
            yield warned("named-links", f"{message} (there are {first_few(there) or 'none'})")
