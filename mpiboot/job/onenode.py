"""Pods of one job that share a node's network (hostNetwork), and so an address. Pure.

Their names lead to one address: which pod a name means can't be told there, and mpirun would put
two hosts' ranks into one of them, or a worker's into the launcher.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from mpiboot.checks import failed
from mpiboot.job.names import short
from mpiboot.job.plan_builder import Observed
from mpiboot.model import Finding

_HINT: Final = (
    "give each pod with hostNetwork a node of its own (podAntiAffinity on the job's label, with "
    "topologyKey kubernetes.io/hostname); the launcher needs no hostNetwork"
)


def findings(observed: Observed) -> Iterator[Finding]:
    """Find hosts of the hostfile that are not each a pod of its own."""
    servers: dict[tuple[str, int], list[str]] = {}
    for worker in observed.workers:
        servers.setdefault((worker.address, worker.port), []).append(worker.host.name)
    for (address, port), names in servers.items():
        if len(names) > 1:
            said = f"{', '.join(names)} lead to one and the same SSH server, {address} port {port}"
            yield failed("settings-conflict", said, hint=_HINT)
    pattern = observed.platform.worker_names
    for host in observed.local:
        if pattern and re.search(pattern, short(host.name)):
            said = "this worker's name leads to the launcher's own address"
            yield failed("settings-conflict", said, hint=_HINT, host=host.name)
