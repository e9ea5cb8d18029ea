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
from functools import partial
from typing import Final

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
    """A host that dials, and listens at its control address and then its data addresses."""

    worker: Worker
    ends: Sequence[tuple[str, int]]
    probe: HostCommand

    async def dial(self, dial: Dial) -> Dial | None:
        """Dial from this host; None where it gives no answer."""
        try:
            return dial.answered(await self.probe.ask(dial.request))
        except Exception as exc:  # noqa: BLE001 - asyncssh's: the connection is lost
            _not_checked(self.worker, str(exc))
            return None


class _Greeter(asyncio.Protocol):
    """The launcher's side of a dial; what a stranger sends is dropped."""

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
        self._addresses: Mapping[str, Sequence[str]] = {}
        self._probes: list[HostCommand] = []
        self._servers: list[asyncio.Server] = []
        self._dialling: asyncio.Future[None] | None = None
        self._dialled, self._on_data = list[Dial](), list[Dial]()

    def begin(self, workers: Sequence[Worker], addresses: Mapping[str, Sequence[str]]) -> None:
        """Have hosts listen, neighbours dial each other, and each dial the launcher.

        Args:
            workers: the hosts.
            addresses: those of each host that sockets may use on the data network, by its name.
        """
        self._addresses = addresses
        if self._seconds:
            self._dialling = asyncio.ensure_future(self._dial_all(workers))

    async def results(self) -> tuple[Dial, ...]:
        """Wait for what is still to be answered; ``close`` is to be called some time after it.

        The launcher listens no more then.
        """
        await self._finished()
        for server in self._servers:
            server.close()
        if self._dialled:
            log.debug("worker-pairs", f"{counted(len(self._dialled), 'connection')} tried")
        return tuple(self._dialled)

    async def blocked_on_data(self) -> str:
        """Describe where TCP is blocked on the data network; empty where nothing shows that."""
        if any(self._addresses.values()):
            await self._finished()
        return worker_pairs.blocked_on_data(self._on_data)

    def close(self) -> None:
        """End the probes on all hosts."""
        if self._dialling is not None:
            self._dialling.cancel()
        for probe in self._probes:
            probe.end()

    async def _finished(self) -> None:
        """Wait until dials have an answer; what has none by then stays unknown."""
        if self._dialling is not None:
            # A dial may be made twice, after the start of its host's probe.
            await asyncio.wait({self._dialling}, timeout=2 * (self._seconds + _MARGIN_S))
            if self._dialling.done():
                self._dialling.result()

    async def _join(self, worker: Worker) -> _PairHost | None:
        """Let a host listen."""
        if not worker.runs_mpiboot:
            _not_checked(worker, "it does not run mpiboot")
            return None
        name, control = worker.host.name, worker.address
        command = host_shell.probe(control, self._ports, self._launch)
        try:
            probe = await self._pool.start(name, command, _MARGIN_S)
            self._probes.append(probe)
            line = await asyncio.wait_for(probe.line(), _MARGIN_S) or ""
            places = self._addresses.get(name, ())
            listened = [await probe.ask(f"listen {address}") for address in places]
        except Exception as exc:  # noqa: BLE001 - asyncssh's, which is not loaded here
            _not_checked(worker, str(exc) or "its probe does not answer")
            return None
        if not line.startswith(_LISTENS):
            _not_checked(worker, "its mpiboot is of another release, or no port is free there")
            return None
        control_end = control, _port(line.removeprefix(_LISTENS))
        return _PairHost(
            worker, [control_end, *zip(places, map(_port, listened), strict=True)], probe
        )

    async def _dial_all(self, workers: Sequence[Worker]) -> None:
        hosts = [host for host in await asyncio.gather(*map(self._join, workers)) if host]
        ports = {
            address: await self._serve(address)
            for address in {host.worker.local_address for host in hosts} - {""}
        }
        to_launcher = (
            self._dial(host, None, (address, ports[address]))
            for host in hosts
            if ports.get(address := host.worker.local_address)
        )
        pairs = (self._dial_pair(*pair) for pair in worker_pairs.neighbours(hosts))
        await asyncio.gather(*to_launcher, *pairs)

    async def _serve(self, address: str) -> int:
        """Listen at an address of this pod, as the workers' probe does; 0 where no port is free."""
        if "%" in address:  # of this pod alone, as a zone is
            return 0
        lowest, _, highest = (self._ports or "0-0").partition("-")
        loop, greeter = asyncio.get_running_loop(), partial(_Greeter, self._launch)
        for port in range(int(highest), int(lowest) - 1, -1):
            try:
                server = await loop.create_server(greeter, address, port, backlog=_BACKLOG)
            except OSError:
                continue
            self._servers.append(server)
            found: int = server.sockets[0].getsockname()[1]
            return found
        return 0

    async def _dial_pair(self, one: _PairHost, other: _PairHost) -> None:
        """Have two hosts dial each other, up to the first network on which one is not answered."""
        for place, (here, there) in enumerate(zip(one.ends, other.ends, strict=False)):
            same_version = (":" in here[0]) == (":" in there[0])
            if here[1] and there[1] and same_version:
                ways = (one, other, there), (other, one, here)
                answered = [self._dial(*way, on_data=bool(place)) for way in ways]
                if not all(await asyncio.gather(*answered)):
                    return

    async def _dial(
        self,
        source: _PairHost,
        target: _PairHost | None,
        end: tuple[str, int],
        *,
        on_data: bool = False,
    ) -> bool:
        """Have a host dial, and note the result; whether its target answered.

        There is none where the host gives no answer, or nobody listens at the target, which is None
        for the launcher, this very program.
        """
        names = source.worker.host.name, target.worker.host.name if target else LAUNCHER
        ssh_port = target.worker.port if target and not on_data else 0
        dial = Dial(*names, *end, self._seconds, ssh_port=ssh_port)
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
        (self._on_data if on_data else self._dialled).append(found)
        return answered


def _not_checked(worker: Worker, why: str) -> None:
    log.debug("worker-pairs", f"{worker.host.name} tries no connections to other workers: {why}")
