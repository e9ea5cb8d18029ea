"""Workers dial each other and the launcher.

When all hosts have passed the gate, each runs ``worker/probe.py`` over the gate's own connection,
which listens there for this launch. Neighbours dial each other, and each dials the launcher, which
listens as well; where control addresses answer, the data addresses follow. A dial counts only where
its target answers itself. Of a host without mpiboot, or with one of a release that knows no
launch's ID, nothing is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from mpiboot.core import log
from mpiboot.core.facts import Worker
from mpiboot.core.wording import counted
from mpiboot.hosts import host_shell
from mpiboot.network import worker_pairs
from mpiboot.network.worker_pairs import LAUNCHER, Dial, Reached
from mpiboot.ssh.attempt import HostCommand
from mpiboot.ssh.pool import Pool

_LISTENS: Final = "mpiboot-probe "
# What an answer may take beyond the dials themselves: a session's start on a loaded worker.
_MARGIN_S: Final = 5.0
_BACKLOG: Final = 4096  # all workers dial at once; the kernel has a limit of its own


def _port(text: str) -> int:
    return int(text) if text.isdecimal() else 0


@dataclass(frozen=True, slots=True, eq=False)
class _PairHost:
    """A host that listens and dials."""

    worker: Worker
    port: int
    probe: HostCommand

    @property
    def name(self) -> str:
        return self.worker.host.name

    async def dial(self, dial: Dial) -> Dial | None:
        """Dial from this host; None where it gives no answer."""
        return dial.answered(await self.probe.ask(dial.request))


_Pairs: TypeAlias = Sequence[tuple[_PairHost, _PairHost]]


class _Greeter(asyncio.Protocol):
    """The launcher's side of a dial, as the workers' probe has it."""

    def __init__(self, launch: str) -> None:
        self._launch = launch

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answer; whoever dials closes, so that no port stays in TIME_WAIT here."""
        if isinstance(transport, asyncio.WriteTransport):
            peer = transport.get_extra_info("peername")
            transport.write(f"{self._launch} {peer[0]}\n".encode())


class PairCheck:
    """The check of one gate."""

    def __init__(self, seconds: float, port_range: str, launch: str, pool: Pool) -> None:
        """Begin without any host.

        Args:
            seconds: how long a dial may take; 0: nothing is tried.
            port_range: the setting: launcher and hosts listen at one of these ports.
            launch: the launch's ID, which a dial must read.
            pool: reaches the hosts.
        """
        self._seconds, self._ports = seconds, port_range
        self._launch, self._pool = launch, pool
        self._probes: list[HostCommand] = []
        self._pairs: _Pairs = ()
        self._servers: list[asyncio.Server] = []
        self._dialling: asyncio.Future[None] | None = None
        self._dialled: list[Dial] = []

    def begin(self, workers: Sequence[Worker]) -> None:
        """Have these hosts listen, neighbours dial each other, and each dial the launcher."""
        if self._seconds:
            self._dialling = asyncio.ensure_future(self._dial_all(workers))

    async def results(self) -> tuple[Dial, ...]:
        """Wait for what is still to be answered; ``close`` is to be called some time after it.

        The launcher listens no more then.
        """
        if self._dialling is not None:
            await self._finished(self._dialling)
        for server in self._servers:
            server.close()
        if self._dialled:
            log.debug("worker-pairs", f"{counted(len(self._dialled), 'connection')} tried")
        return tuple(self._dialled)

    async def blocked_on_data(self, addresses: Mapping[str, Sequence[str]]) -> str:
        """Describe where TCP is blocked on the data network; empty where it is not, or not tried.

        Args:
            addresses: those of each host that sockets may use there, by its name.
        """
        if not any(addresses.values()) or self._dialling is None:
            return ""
        await self._finished(self._dialling)
        good = {(item.source, item.target) for item in self._dialled if not item.reached.blocked}
        ways = [
            (one, other)
            for one, other in self._pairs
            if {(one.name, other.name), (other.name, one.name)} <= good
        ]
        dialled: list[Dial] = []
        await self._finished(asyncio.ensure_future(self._dial_data(ways, addresses, dialled)))
        return worker_pairs.blocked_on_data(dialled)

    def close(self) -> None:
        """End the probes on all hosts."""
        if self._dialling is not None:
            self._dialling.cancel()
        for probe in self._probes:
            probe.end()

    async def _finished(self, work: asyncio.Future[None]) -> None:
        """Wait until dials have an answer; what has none by then stays unknown."""
        # A dial may be made twice, after the start of its host's probe.
        await asyncio.wait({work}, timeout=2 * (self._seconds + _MARGIN_S))
        if work.done():
            work.result()

    async def _join(self, worker: Worker) -> _PairHost | None:
        """Let a host listen."""
        if not worker.runs_mpiboot:
            _not_checked(worker, "it does not run mpiboot")
            return None
        command = host_shell.probe(worker.address, self._ports, self._launch)
        why = "its mpiboot is of another release, or no port is free at its address"
        try:
            probe = await self._pool.start(worker.host.name, command, _MARGIN_S)
            self._probes.append(probe)
            line = await asyncio.wait_for(probe.line(), _MARGIN_S) or ""
            if line.startswith(_LISTENS) and (port := _port(line.removeprefix(_LISTENS))):
                return _PairHost(worker, port, probe)
        except Exception as exc:  # noqa: BLE001 - asyncssh's, which is not loaded here
            why = str(exc) or "its probe does not answer"
        _not_checked(worker, why)
        return None

    async def _dial_all(self, workers: Sequence[Worker]) -> None:
        hosts = [host for host in await asyncio.gather(*map(self._join, workers)) if host]
        self._pairs = worker_pairs.neighbours(hosts)
        ports = {
            address: await self._serve(address)
            for address in {host.worker.local_address for host in hosts} - {""}
        }
        dials = []
        for host in hosts:
            address = host.worker.local_address
            if port := ports.get(address):
                dial = Dial(host.name, LAUNCHER, address, port, self._seconds)
                dials.append(self._reach(host, None, dial, self._dialled))
        for source, target in _both_ways(self._pairs):
            to = target.worker
            names, where = (source.name, target.name), (to.address, target.port)
            dial = Dial(*names, *where, self._seconds, ssh_port=to.port)
            dials.append(self._reach(source, target, dial, self._dialled))
        await asyncio.gather(*dials)

    async def _serve(self, address: str) -> int:
        """Listen at an address of this pod, as the workers' probe does; 0 where no port is free."""
        loop = asyncio.get_running_loop()
        if "%" in address:  # of this pod alone, as a zone is
            return 0
        lowest, _, highest = (self._ports or "0-0").partition("-")
        for port in range(int(highest), int(lowest) - 1, -1):
            try:
                server = await loop.create_server(
                    lambda: _Greeter(self._launch), address, port, backlog=_BACKLOG
                )
            except OSError:
                continue
            self._servers.append(server)
            found: int = server.sockets[0].getsockname()[1]
            return found
        return 0

    async def _dial_data(
        self, pairs: _Pairs, addresses: Mapping[str, Sequence[str]], dialled: list[Dial]
    ) -> None:
        """Have neighbours dial each other's data addresses."""
        hosts = dict.fromkeys(host for pair in pairs for host in pair)

        async def listen(host: _PairHost) -> list[tuple[str, int]]:
            places = addresses.get(host.name, ())
            query = host.probe.ask
            return [(address, _port(await query(f"listen {address}"))) for address in places]

        ends = dict(zip(hosts, await asyncio.gather(*map(listen, hosts)), strict=True))

        async def dial(source: _PairHost, target: _PairHost) -> None:
            """Dial one after the other, up to the first that can't be reached."""
            for (local, _), (address, port) in zip(ends[source], ends[target], strict=False):
                if not port or (":" in local) != (":" in address):
                    continue
                request = Dial(source.name, target.name, address, port, self._seconds)
                if not await self._reach(source, target, request, dialled):
                    return

        await asyncio.gather(*(dial(*way) for way in _both_ways(pairs)))

    async def _reach(
        self, source: _PairHost, target: _PairHost | None, dial: Dial, dialled: list[Dial]
    ) -> bool:
        """Have a host dial, and note the result; whether its target answered.

        There is none where the host gives no answer, or nobody listens at the target, which is None
        for the launcher, this very program.
        """
        found = await source.dial(dial)
        if found is not None and found.reached is Reached.CONNECTED:
            found = await source.dial(dial)  # a busy listener answers late
        if found is None:
            return False
        answered = found.reached is Reached.ANSWERED
        if not answered and target is not None:
            # One that is gone, or whose program has ended, was not dropped on the way.
            itself = await target.dial(dial)
            if itself is None or itself.reached is not Reached.ANSWERED:
                _not_checked(target.worker, "it answers itself no more")
                return False
        dialled.append(found)
        return answered


def _both_ways(pairs: _Pairs) -> _Pairs:
    return [way for one, other in pairs for way in ((one, other), (other, one))]


def _not_checked(worker: Worker, why: str) -> None:
    log.debug("worker-pairs", f"{worker.host.name} tries no connections to other workers: {why}")
