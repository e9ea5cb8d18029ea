"""Workers try the network between them: while the gate waits, and for ``doctor --network``.

Each host that passes the gate runs ``worker/pairs.py`` over the gate's own connection, and it and a
few that were there before dial each other; the one just before it at its data addresses, too. What
they find is collected after the plan is made, that of the data network before: no host waits for
another one. A host without mpiboot is not checked.

For doctor, ``measure_paths`` logs in to each host once more and runs ``worker/path_probe.py``,
which ends with that login, also where the launcher is gone. A host has a part in one way at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from mpiboot.core import log
from mpiboot.core.model import Worker
from mpiboot.core.settings import Settings
from mpiboot.core.wording import counted
from mpiboot.hosts import host_shell
from mpiboot.hosts.access import SshAccess
from mpiboot.network import paths, worker_pairs
from mpiboot.network.paths import PathHost, PathSeen, PathTest
from mpiboot.network.worker_pairs import KEPT, Dialled, Reached
from mpiboot.ssh import attempt as ssh_attempt
from mpiboot.ssh.attempt import Attempt, LoginTimeouts, Outcome, Target

if TYPE_CHECKING:
    from mpiboot.ssh.login import Connection, Dialogue, Login

_LISTENS: Final = "mpiboot-pairs "
# What an answer may take beyond the dials themselves: a session's start on a loaded worker.
_MARGIN: Final = 5.0


def _none(_: Worker) -> Sequence[str]:
    return ()


@dataclass(slots=True, eq=False)
class _PairHost:
    """A host that listens and dials.

    ``data`` are its addresses on the data network, each with the port at which it listens there.
    ``busy`` counts the pairs that it still has a part in; ``replaced`` tells that its pod is gone.
    After its end nothing is left of its connection: a thousand of them are felt in memory.
    """

    worker: Worker
    port: int
    dialogue: Dialogue | None
    connection: Connection | None
    data: tuple[tuple[str, int], ...]
    busy: int = 0
    replaced: bool = False

    async def end(self) -> None:
        """Close its connection."""
        connection, self.connection, self.dialogue = self.connection, None, None
        if connection is not None:
            await connection.close()


@dataclass(frozen=True, slots=True)
class _PairLogin:
    """A host's login; ``started`` is its program where that was not worth waiting for the facts."""

    connection: Connection
    started: asyncio.Future[Dialogue | None] | None


class PairCheck:
    """The check of one gate."""

    def __init__(
        self,
        seconds: float,
        port_range: str,
        data_addresses: Callable[[Worker], Sequence[str]] = _none,
    ) -> None:
        """Begin without any host.

        Args:
            seconds: how long a dial may take; 0: nothing is tried.
            port_range: the setting: hosts listen at one of these ports.
            data_addresses: gives those of a host that sockets may use on the data network.
        """
        self._data_addresses = data_addresses
        self._seconds = seconds
        self._ports = port_range
        self._logins: dict[Target, _PairLogin] = {}
        self._ready: list[tuple[Worker, _PairLogin]] = []
        self._began = False
        self._hosts: list[_PairHost] = []
        self._by_name: dict[str, _PairHost] = {}
        self._work: set[asyncio.Future[None]] = set()
        self._ends: set[asyncio.Future[None]] = set()  # connections that are being closed
        self._dialled: list[tuple[Worker, Worker, Dialled]] = []
        self._dialled_data: list[tuple[Worker, Worker, Dialled]] = []

    @property
    def wanted(self) -> bool:
        """Whether anything is tried."""
        return self._seconds > 0

    def keep(self, target: Target, connection: Connection) -> None:
        """Take over a connection, and start its program beside the gate's command.

        Whether the host may dial is known from that command's answer; the start takes as long.
        """
        started = None
        if self._logins or self._ready or self._began:  # alone it has nobody to dial
            started = asyncio.ensure_future(self._start(target.address, connection))
        self._logins[target] = _PairLogin(connection, started)

    def join(self, worker: Worker, target: Target) -> None:
        """Let a host that has just passed the gate begin, unless a mesh would answer for it."""
        login = self._logins.pop(target, None)
        if login is None:
            return
        before = self._by_name.pop(worker.host.name, None)
        if before is not None:
            before.replaced = True
            self._end(before)
        mesh = worker.facts.mesh if worker.facts else None
        if not worker.runs_mpiboot or mesh is not None:
            self._ends.add(asyncio.ensure_future(login.connection.close()))
            _not_checked(worker, f"a proxy of {mesh.name}" if mesh else "it does not run mpiboot")
        else:
            self._ready.append((worker, login))
        if self._began or len(self._ready) > 1:
            self._began = True
            for one in self._ready:
                self._do(self._begin(*one))
            self._ready.clear()

    async def results(self, workers: Sequence[Worker]) -> tuple[Dialled, ...]:
        """Wait for what is still to be answered; ``close`` is to be called some time after it.

        Args:
            workers: who has passed the gate; what was found of others counts for nothing.
        """
        await self._answered()
        found = _among(workers, self._dialled)
        if found:
            log.debug("worker-pairs", f"{counted(len(found), 'connection')} between workers tried")
        return found

    async def blocked_on_data(self, workers: Sequence[Worker]) -> str:
        """Say where TCP does not pass on the data network, empty where it does or none was tried.

        The arguments are those of ``results``.
        """
        await self._answered()
        found = _among(workers, self._dialled_data)
        if found:
            count = counted(len(found), "connection")
            log.debug("worker-pairs", f"{count} between workers' data addresses tried")
        return worker_pairs.blocked_on_data(found)

    async def _answered(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + 2 * self._seconds + _MARGIN  # a dial may be made twice
        while pending := {task for task in self._work if not task.done()}:
            if (left := end - loop.time()) <= 0:
                log.debug("worker-pairs", f"{len(pending)} tries of connections are not waited for")
                self._work -= pending
                break
            await asyncio.wait(pending, timeout=left)
        for task in self._work:
            task.result()

    async def close(self) -> None:
        """Let go of all hosts."""
        left = [*self._logins.values(), *(login for _, login in self._ready)]
        ends = [*(one.connection.close() for one in left), *(host.end() for host in self._hosts)]
        await asyncio.gather(*ends, *self._ends)

    def _end(self, host: _PairHost) -> None:
        """Close a host's connection, for which nobody waits."""
        self._ends.add(asyncio.ensure_future(host.end()))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        self._work.add(asyncio.ensure_future(work))

    async def _start(self, address: str, connection: Connection) -> Dialogue | None:
        return await connection.start(host_shell.pairs(address, self._ports))

    async def _begin(self, worker: Worker, login: _PairLogin) -> None:
        connection = login.connection
        dialogue = await login.started if login.started else None
        # A server that takes one session at a time refused it then.
        dialogue = dialogue or await self._start(worker.address, connection)
        message = await dialogue.line() if dialogue else ""
        port = message.removeprefix(_LISTENS)
        if dialogue is None or port == message or not port.isdecimal():
            _not_checked(worker, "it has an older mpiboot, or no free port at that address")
            await connection.close()
            return
        data = [
            (address, worker_pairs.read_port(await dialogue.ask(f"{address} 0 0 0")))
            for address in self._data_addresses(worker)
        ]
        new = _PairHost(worker, int(port), dialogue, connection, tuple(data))
        self._hosts.append(new)
        self._by_name[worker.host.name] = new
        places = worker_pairs.partners(len(self._hosts) - 1)
        others = [self._hosts[place] for place in places if not self._hosts[place].replaced]
        for host in (new, *others):
            host.busy += 1 if host is not new else len(others)
        for other in others:
            # One neighbour on each side: a dial that fails takes twice the patience.
            before = other is self._hosts[-2]
            self._do(self._both_ways(new, other, data=before))
        for host in others:
            self._let_go(host)

    async def _both_ways(self, one: _PairHost, other: _PairHost, *, data: bool) -> None:
        works = await asyncio.gather(self._dial(one, other), self._dial(other, one))
        if all(works) and data:
            await asyncio.gather(self._dial_data(one, other), self._dial_data(other, one))
        for host in (one, other):
            host.busy -= 1
            self._let_go(host)

    def _let_go(self, host: _PairHost) -> None:
        """Close a host's connection where nobody who comes later will meet it."""
        last = host is self._hosts[-1]
        if not host.busy and not last and host not in self._hosts[:KEPT]:
            self._end(host)

    async def _dial(self, source: _PairHost, target: _PairHost) -> bool:
        """Dial a host's control address; whether that was answered."""
        found = await self._reach(source, target, target.worker.address, target.port)
        if found is not None:
            self._dialled.append((source.worker, target.worker, found))
        return found is not None and not found.reached.blocked

    async def _dial_data(self, source: _PairHost, target: _PairHost) -> None:
        """Dial a host's data addresses, up to the first one that can't be reached."""
        for (own, _), (address, port) in zip(source.data, target.data, strict=False):
            if not port or (":" in own) != (":" in address):
                continue
            found = await self._reach(source, target, address, port)
            if found is None:
                return
            self._dialled_data.append((source.worker, target.worker, replace(found, ssh=None)))
            if found.reached.blocked:
                return

    async def _reach(
        self, source: _PairHost, target: _PairHost, address: str, port: int
    ) -> Dialled | None:
        """Have a host dial; None where it gives no answer, or where nobody listens there."""
        found = await self._ask(source, target, address, port)
        if found is None:
            return None
        reached, own, seen, ssh = found
        if reached.blocked:
            # One that is gone, or whose program has ended, was not dropped on the way.
            itself = await self._ask(target, target, address, port)
            if itself is None or itself[0] is not Reached.ANSWERED:
                _not_checked(target.worker, "it answers itself no more")
                return None
        return Dialled(
            source.worker.host.name,
            target.worker.host.name,
            address,
            port,
            self._seconds,
            reached,
            own,
            seen,
            target.worker.port,
            ssh,
        )

    async def _ask(
        self, source: _PairHost, target: _PairHost, address: str, port: int
    ) -> tuple[Reached, str, str, Reached | None] | None:
        line = f"{address} {port} {target.worker.port} {self._seconds:g}"
        message = await source.dialogue.ask(line) if source.dialogue else ""
        return worker_pairs.read(message)


def _among(
    workers: Sequence[Worker], dialled: Sequence[tuple[Worker, Worker, Dialled]]
) -> tuple[Dialled, ...]:
    """Leave out what was found of hosts that are not there any more."""
    there = set(map(_place, workers))
    return tuple(
        found for source, target, found in dialled if {_place(source), _place(target)} <= there
    )


def _place(worker: Worker) -> tuple[str, str]:
    return worker.host.name, worker.address


def _not_checked(worker: Worker, why: str) -> None:
    log.debug("worker-pairs", f"{worker.host.name} tries no connections to other workers: {why}")


_PATHS_LISTEN = "mpiboot-paths "


@dataclass(slots=True, eq=False)
class _Probe:
    """A host's program, and where it listens in each network; ``free`` is held by each way."""

    dialogue: Dialogue
    ports: tuple[int, ...]
    free: asyncio.Lock


async def measure_paths(
    hosts: Sequence[PathHost],
    workers: Mapping[str, Worker],
    chosen: Sequence[PathTest],
    settings: Settings,
    access: SshAccess,
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
    from mpiboot.ssh.login import Login  # noqa: PLC0415 - the gate loads it while it waits

    login = Login(access.key, host_key=access.host_key, mode=settings.host_keys)
    connections: list[Connection] = []
    found: dict[PathTest, PathSeen] = {}
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


def _takes_part(way: PathTest, probes: Sequence[_Probe | None]) -> bool:
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
    message = await dialogue.line() if dialogue else ""
    words = message.removeprefix(_PATHS_LISTEN).split()
    if dialogue is None or words == message.split() or len(words) != len(host.ends):
        return None
    return _Probe(dialogue, tuple(map(int, words)), asyncio.Lock())


async def _measure(
    way: PathTest,
    hosts: Sequence[PathHost],
    probes: Sequence[_Probe | None],
    found: dict[PathTest, PathSeen],
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
        message = await source.dialogue.ask(
            f"{own.address} {far.address} {port} {mtu} {paths.SECONDS:g} {stream}"
        )
    answer = paths.read(message)
    if answer:
        found[way] = _seen(way, hosts, *answer)


def _seen(
    way: PathTest,
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
