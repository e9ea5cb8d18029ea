"""``mpiboot doctor --network``: the workers measure the ways between them, for a bounded while."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from mpiboot.core import log
from mpiboot.core.model import Finding, Level, Worker
from mpiboot.core.settings import Settings
from mpiboot.doctor.rows import hosts as rows
from mpiboot.hosts import pairs
from mpiboot.hosts.access import SshAccess
from mpiboot.network import paths, worker_network
from mpiboot.network.control import link_of
from mpiboot.network.paths import PathEnd, PathHost
from mpiboot.network.records import usable

_TWO: Final = 2
_NOT_MEASURED: Final = "takes no part in the measurement: "


def measure(workers: Sequence[Worker], settings: Settings, access: SshAccess) -> Iterator[Finding]:
    """Say what will be done, do it, and judge it."""
    if access.pods is not None:
        yield _unknown((), "hosts that kubectl enters can't measure the ways between them")
        return
    hosts = [host for worker in workers if (host := _host(worker, settings)) is not None]
    known = {host.name for host in hosts}
    yield from _without(
        (one.host.name for one in workers if one.host.name not in known),
        "its links are not known, as without mpiboot",
    )
    chosen = paths.ways(hosts)
    if len(hosts) < _TWO:
        yield _unknown((), "there are no two hosts whose ways could be measured")
        return
    log.info("network", paths.announcement(chosen, hosts))
    by_name = {one.host.name: one for one in workers}
    seen, without = asyncio.run(pairs.measure_paths(hosts, by_name, chosen, settings, access))
    yield from _without(without, "another version of mpiboot, no free port, or no login")
    yield from rows.judge_measured(seen)


def _without(names: Iterable[str], why: str) -> Iterator[Finding]:
    listed = tuple(names)
    if listed:
        yield _unknown(listed, f"{_NOT_MEASURED}{why}")


def _unknown(names: tuple[str, ...], said: str) -> Finding:
    several = len(names) > 1
    host = names[0] if names and not several else ""
    return Finding("network-reach", Level.UNKNOWN, said, host, hosts=names if several else ())


def _host(worker: Worker, settings: Settings) -> PathHost | None:
    """Give a worker's ends: its control link's, then those of its data links."""
    if worker.facts is None:
        return None
    control = link_of(worker.address, worker.facts.links)
    if control is None:
        return None
    ends = [PathEnd(control.name, worker.address, control.mtu)]
    data = worker_network.choose(worker, settings).plain
    ends += [PathEnd(link.name, str(usable(link)[0].ip), link.mtu) for link in data]
    return PathHost(worker.host.name, tuple(ends))
