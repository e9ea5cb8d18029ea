"""Hand-made starts of mpirun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mpiboot.core.facts import Host
from mpiboot.core.model import Decision, LaunchAgent, Mpi, MpiFamily, Source
from mpiboot.core.settings import resolve
from mpiboot.job.plan import Plan
from mpiboot.job.plan_input import LaunchPaths
from mpiboot.supervisor.job import LaunchSpec
from tests.fakes import plans

KUBECTL = Decision("launch-agent", LaunchAgent.KUBECTL.value, Source.DETECTED, "")


def spec(
    family: str = "openmpi4",
    *,
    folder: str = "/nowhere",
    argv: tuple[str, ...] = (),
    hosts: int = 0,
    remote_hosts: tuple[str, ...] = (),
    addresses: tuple[str, ...] = (),
    by_kubectl: bool = False,
    flags: Mapping[str, str] | None = None,
    **plan: Any,  # noqa: ANN401 - fields of the plan
) -> LaunchSpec:
    """A start on ``remote_hosts``, and on this pod where ``hosts`` is larger than their number."""
    more = max(0, hosts - len(remote_hosts))
    here = tuple(Host(f"here-{number}") for number in range(more))
    seen = plans.observed(listed=(*map(Host, remote_hosts), *here), local=here)
    mpi = Mpi(MpiFamily(family), "", "mpirun", "")
    workers = tuple(
        replace(plans.worker(Host(f"w-{at}"), at, None), local_address=address)
        for at, address in enumerate(addresses)
    )
    client = KUBECTL if by_kubectl else None
    seen = replace(seen, mpi=mpi, workers=workers, client=client)
    made = Plan((), (), argv, remote_hosts=remote_hosts, **plan)
    return LaunchSpec(made, seen, resolve(flags or {}, {}), LaunchPaths(folder, ""))
