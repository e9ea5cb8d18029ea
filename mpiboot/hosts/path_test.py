"""Workers measure the ways between them, as ``mpiboot doctor --network`` asks.

A login each; each runs ``worker/path_probe.py`` as long as that lasts, and ends it when it ends,
also with a launcher that is gone. A host has a part in one way at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpiboot.core.model import Worker
from mpiboot.core.settings import Settings
from mpiboot.hosts import host_shell
from mpiboot.hosts.access import Access
from mpiboot.network import paths
from mpiboot.network.paths import PathHost, PathSeen, Way
from mpiboot.network.worker_pairs import Reached
from mpiboot.ssh import attempt as ssh_attempt
from mpiboot.ssh.attempt import Attempt, LoginTimeouts, Outcome, Target
from mpiboot.ssh.login import Connection, Dialogue, Login

_LISTENS = "mpiboot-paths "


@dataclass(slots=True, eq=False)
class _Probe:
    """A host's program, and where it listens in each network; ``free`` is held by each way."""

    dialogue: Dialogue
    ports: tuple[int, ...]
    free: asyncio.Lock


async def run(
    hosts: Sequence[PathHost],
    workers: Mapping[str, Worker],
    chosen: Sequence[Way],
    settings: Settings,
    access: Access,
) -> tuple[tuple[PathSeen, ...], tuple[str, ...]]:
    """Measure; nothing of it is left on any host.

    Args:
        hosts: who is measured.
        workers: how each was reached, by its name.
        chosen: the ways.
        settings: ``host_keys`` and ``port_range`` are read.
        access: how to log in.

    Returns:
        What was measured in time, and the hosts that could not take part.
    """
    login = Login(access.key, host_key=access.host_key, mode=settings.host_keys)
    connections: list[Connection] = []
    found: dict[Way, PathSeen] = {}
    probes: list[_Probe | None] = [None] * len(hosts)

    async def work() -> None:
        starts = (
            _start(login, workers[one.name], one, settings.port_range, connections) for one in hosts
        )
        probes[:] = await asyncio.gather(*starts)
        await asyncio.gather(*(_measure(way, hosts, probes, found) for way in chosen))

    try:
        await asyncio.wait_for(work(), paths.limit(chosen, len(hosts)))
    except asyncio.TimeoutError:
        pass
    finally:
        await asyncio.gather(*(one.close() for one in connections))
    without = tuple(one.name for one, probe in zip(hosts, probes, strict=True) if probe is None)
    seen = tuple(
        found.get(way) or _seen(way, hosts, None) for way in chosen if _takes_part(way, probes)
    )
    return seen, without


def _takes_part(way: Way, probes: Sequence[_Probe | None]) -> bool:
    return probes[way.source] is not None and probes[way.target] is not None


async def _start(
    login: Login, worker: Worker, host: PathHost, ports: str, connections: list[Connection]
) -> _Probe | None:
    """Log in, and start the program; None where that can't be."""
    target = Target(worker.host.name, worker.address, worker.port, worker.user)
    limits = LoginTimeouts()
    opened = await ssh_attempt.connect(target, limits)
    if isinstance(opened, Attempt):
        return None
    kept: list[Connection] = []
    with opened.sock:
        attempt = await login.log_in(
            target, opened.sock, opened.greeting, host_shell.ask("began"), keep=kept.append
        )
    if attempt.outcome is not Outcome.OK:
        return None
    connections += kept
    dialogue = await kept[0].start(host_shell.paths([end.address for end in host.ends], ports))
    said = await dialogue.line() if dialogue else ""
    words = said.removeprefix(_LISTENS).split()
    if dialogue is None or words == said.split() or len(words) != len(host.ends):
        return None
    return _Probe(dialogue, tuple(map(int, words)), asyncio.Lock())


async def _measure(
    way: Way,
    hosts: Sequence[PathHost],
    probes: Sequence[_Probe | None],
    found: dict[Way, PathSeen],
) -> None:
    source, target = probes[way.source], probes[way.target]
    if source is None or target is None:
        return
    # Always in the same order: two ways that wait for each other's host would never end.
    first, second = (source, target) if way.source < way.target else (target, source)
    async with first.free, second.free:
        own, far = (hosts[place].ends[way.network] for place in (way.source, way.target))
        stream = paths.STREAM if way.stream else 0
        port, mtu = target.ports[way.network], min(own.mtu, far.mtu)
        said = await source.dialogue.ask(
            f"{own.address} {far.address} {port} {mtu} {paths.SECONDS:g} {stream}"
        )
    answer = paths.read(said)
    if answer:
        found[way] = _seen(way, hosts, *answer)


def _seen(
    way: Way,
    hosts: Sequence[PathHost],
    how: Reached | None,
    microseconds: int | None = None,
    mtu: int | None = None,
    rate: int | None = None,
) -> PathSeen:
    source, target = hosts[way.source], hosts[way.target]
    own, far = source.ends[way.network], target.ends[way.network]
    return PathSeen(
        source.name,
        target.name,
        own.link,
        way.network == 0,
        far.address,
        how,
        min(own.mtu, far.mtu),
        microseconds,
        mtu,
        rate,
    )
