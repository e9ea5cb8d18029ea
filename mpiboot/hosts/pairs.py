"""Workers try the network between them: while the gate waits, and for ``validate pairs``.

Each host that passes the gate runs ``worker/probe.py`` over the gate's own connection, and it and a
few that were there before dial each other; the one just before it at its data addresses, too. What
they find is collected after the plan is made, that of the data network before: no host waits for
another one. A host without mpiboot is not checked.

For ``validate pairs``, ``MeasuringHosts`` logs in to each host once more: what is run by that login
ends with it, also where the launcher is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from mpiboot.core import log
from mpiboot.core.facts import Worker
from mpiboot.core.settings import Settings
from mpiboot.core.wording import counted
from mpiboot.hosts import host_shell
from mpiboot.hosts.access import SshAccess
from mpiboot.network import worker_pairs
from mpiboot.network.worker_pairs import KEPT, Dial, Reached
from mpiboot.ssh import attempt as ssh_attempt
from mpiboot.ssh.attempt import WORKER, Attempt, LoginTimeouts, Outcome, Target

if TYPE_CHECKING:
    from mpiboot.ssh.login import Connection, Dialogue

_LISTENS: Final = "mpiboot-probe "
# What an answer may take beyond the dials themselves: a session's start on a loaded worker.
_MARGIN: Final = 5.0


def _none(_: Worker) -> Sequence[str]:
    return ()


def _port(text: str) -> int:
    return int(text) if text.isdecimal() else 0


async def _listens(probe: Dialogue | None) -> int:
    """Read at which port a probe listens; 0 where it doesn't."""
    line = await probe.line() if probe else ""
    return _port(line.removeprefix(_LISTENS)) if line.startswith(_LISTENS) else 0


async def _listen(probe: Dialogue, address: str) -> int:
    """Have a probe listen at another address of its own; 0 where it can't."""
    return _port(await probe.ask(f"listen {address}"))


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
        self._dialled: list[tuple[Worker, Worker, Dial]] = []
        self._dialled_data: list[tuple[Worker, Worker, Dial]] = []

    @property
    def wanted(self) -> bool:
        """Whether anything is tried."""
        return self._seconds > 0

    def keep(self, target: Target, greeting: str, connection: Connection) -> None:
        """Take over a connection, and start its program beside the gate's command.

        Whether the host may dial is known from that command's answer; the start takes as long.
        """
        started = None
        others = self._logins or self._ready or self._began  # alone it has nobody to dial
        if others and WORKER in greeting:  # another server may take one session at a time
            started = asyncio.ensure_future(self._start(target.address, connection))
        self._logins[target] = _PairLogin(connection, started)

    def join(self, worker: Worker, target: Target) -> None:
        """Let a host that has just passed the gate begin."""
        login = self._logins.pop(target, None)
        if login is None:
            return
        before = self._by_name.pop(worker.host.name, None)
        if before is not None:
            before.replaced = True
            self._end(before)
        if not worker.runs_mpiboot:
            self._ends.add(asyncio.ensure_future(login.connection.close()))
            _not_checked(worker, "it does not run mpiboot")
        else:
            self._ready.append((worker, login))
        if self._began or len(self._ready) > 1:
            self._began = True
            for one in self._ready:
                self._do(self._begin(*one))
            self._ready.clear()

    async def results(self, workers: Sequence[Worker]) -> tuple[Dial, ...]:
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
        return await connection.start(host_shell.probe(address, self._ports))

    async def _begin(self, worker: Worker, login: _PairLogin) -> None:
        connection = login.connection
        dialogue = await login.started if login.started else None
        dialogue = dialogue or await self._start(worker.address, connection)
        port = await _listens(dialogue)
        if dialogue is None or not port:
            _not_checked(worker, "it has an older mpiboot, or no free port at that address")
            await connection.close()
            return
        data = [(one, await _listen(dialogue, one)) for one in self._data_addresses(worker)]
        new = _PairHost(worker, port, dialogue, connection, tuple(data))
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
        to = target.worker
        found = await self._reach(source, target, to.address, target.port, to.port)
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
            self._dialled_data.append((source.worker, target.worker, found))
            if found.reached.blocked:
                return

    async def _reach(
        self, source: _PairHost, target: _PairHost, address: str, port: int, ssh_port: int = 0
    ) -> Dial | None:
        """Have a host dial; None where it gives no answer, or where nobody listens there."""
        names = source.worker.host.name, target.worker.host.name
        dial = Dial(*names, address, port, self._seconds, ssh_port=ssh_port)
        found = await _ask(source.dialogue, dial)
        if found is not None and found.reached.blocked:
            # One that is gone, or whose program has ended, was not dropped on the way.
            itself = await _ask(target.dialogue, dial)
            if itself is None or itself.reached is not Reached.ANSWERED:
                _not_checked(target.worker, "it answers itself no more")
                return None
        return found


async def _ask(probe: Dialogue | None, dial: Dial) -> Dial | None:
    """Have a probe dial; None where it gives no answer."""
    return dial.answered(await probe.ask(dial.request)) if probe else None


def _among(
    workers: Sequence[Worker], dialled: Sequence[tuple[Worker, Worker, Dial]]
) -> tuple[Dial, ...]:
    """Leave out what was found of hosts that are not there any more."""
    there = set(map(_place, workers))
    return tuple(
        found for source, target, found in dialled if {_place(source), _place(target)} <= there
    )


def _place(worker: Worker) -> tuple[str, str]:
    return worker.host.name, worker.address


def _not_checked(worker: Worker, why: str) -> None:
    log.debug("worker-pairs", f"{worker.host.name} tries no connections to other workers: {why}")


class MeasuringHosts:
    """Logins to hosts that measure; what runs there by them ends with them."""

    def __init__(self, settings: Settings, access: SshAccess) -> None:
        """Begin without any host; of the settings ``host_keys`` is read."""
        # ssh keeps no connection for more commands.
        self._login = replace(access, client=None).login(settings.host_keys)
        self.connections: dict[str, Connection] = {}

    async def log_in(self, worker: Worker) -> None:
        """Log in once more; who does not let us in takes no part."""
        target = Target(worker.host.name, worker.address, worker.port, worker.user)
        opened = await ssh_attempt.connect(target, LoginTimeouts())
        if isinstance(opened, Attempt):
            return
        kept: list[Connection] = []
        with opened.sock:
            attempt = await self._login.log_in(opened, host_shell.ask("memory"), keep=kept.append)
        if attempt.outcome is Outcome.OK:
            self.connections[worker.host.name] = kept[0]

    async def close(self) -> None:
        """Log out of all hosts."""
        await asyncio.gather(*(one.close() for one in self.connections.values()))
