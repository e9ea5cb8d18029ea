"""What workers have answered, and commands there between the gate and mpirun's start.

Workers whose facts are overdue, or whose data network is not ready, are queried again until the
deadline; for a data network that is not required, for a minute at most. What an earlier launcher of
this job has left is ended; nothing else is changed on a worker but its file of facts. Last, workers
dial each other and the launcher (``PairCheck``).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, failed
from mpiboot.core.facts import Host, HostAnswer, NoFacts, PodFacts, Worker, facts_from_json
from mpiboot.core.launch_spec import LAUNCH_ID
from mpiboot.core.model import DataNetworkUse, Finding
from mpiboot.core.settings import Settings
from mpiboot.core.wording import counted, first_few, took
from mpiboot.hosts import host_shell
from mpiboot.network import worker_network, worker_pairs
from mpiboot.network.records import WorkerNetwork
from mpiboot.network.worker_pairs import LAUNCHER, Dial, Reached
from mpiboot.ssh.attempt import Attempt, HostCommand
from mpiboot.ssh.pool import Pool
from mpiboot.system import process, processes, programs


def worker_of(host: Host, attempt: Attempt, dns_name: str = "") -> Worker:
    """Build a worker's record from a successful attempt; ``dns_name`` resolved to its address."""
    answer, target = host_shell.read(attempt.output), attempt.target
    facts, reason = facts_of(answer)
    return Worker(
        host=host,
        dns_name=dns_name,
        address=target.address,
        port=target.port,
        user=target.user,
        local_address=attempt.local_address,
        facts=facts,
        mpi=programs.recognise(*answer.mpirun) if answer.mpirun else None,
        called_mpi=programs.recognise(*answer.mpirun_by_path) if answer.mpirun_by_path else None,
        answer=replace(answer, facts=None),
        no_facts=reason,
    )


def facts_of(answer: HostAnswer) -> tuple[PodFacts | None, NoFacts]:
    """Read a host's facts, or give the reason why there are none."""
    if answer.late:
        return None, NoFacts.PENDING
    if answer.facts is None:
        return None, NoFacts.NO_MPIBOOT
    return facts_from_json(answer.facts), NoFacts.UNREADABLE


# Job and launch; the launcher's host name and the time of day at its start.
_ID: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}@[A-Za-z0-9.-]*@[0-9TZ:-]+", re.ASCII)


def job_id(job: str) -> str:
    """Derive the job's ID from what only its pods have, as its key."""
    return hashlib.sha256(job.encode()).hexdigest()[:16]


def new_launch_id(job: str) -> str:
    """Make the ID of one launch: job, launch, the launcher's host name and start time."""
    return f"{job_id(job)}-{os.urandom(8).hex()}@{process.host_and_time()}"


def running_here() -> set[str]:
    """Find the launches that run in this pod, this one included."""
    return {environ[LAUNCH_ID] for environ in processes.environments() if LAUNCH_ID in environ}


def earlier_launches(worker: Worker, job: str) -> tuple[str, ...]:
    """Give a worker's launches of this job whose launcher is not in this pod."""
    start = job_id(job) + "-"
    launches = worker.answer.launches
    found = [each for each in launches if each.startswith(start) and _ID.fullmatch(each)]
    running = running_here() if found else set()
    return tuple(each for each in found if each not in running)


def holder(worker: Worker, job: str) -> str:
    """Name the other launcher of this job that is connected to a worker; empty where none is."""
    earlier = earlier_launches(worker, job)
    held = sorted(item for item in worker.answer.held if item[0] in earlier)
    if not held:
        return ""
    launch, address = held[0]
    _, name, since = launch.split("@")
    place = f" ({address})" if address else ""
    return f"in use by launcher {name}{place} since {since}"


_COMMAND_S: Final = 50.0  # a login on a busy node, and the command


# The state of a port on another pod can only be polled. Each query costs a worker half a second of
# one core.
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.5, 5.0


async def wait_until_settled(
    workers: Sequence[Worker],
    decide: Callable[[Worker], WorkerNetwork],
    settings: Settings,
    fetch: Callable[[Worker], Awaitable[Worker]],
) -> tuple[tuple[Worker, ...], dict[str, WorkerNetwork]]:
    """Query workers again until their facts and data networks are ready, or the time is over.

    Args:
        workers: who passed the gate.
        decide: gives a worker's network, with what is still pending there; the plan judges what
            stays so.
        settings: ``timeout`` is what is left of the one deadline; with ``data_network`` off
            nothing depends on a worker's facts, and overdue ones are not waited for.
        fetch: as ``fetch_facts``, for a pool.

    Returns:
        The workers in their order, with their latest facts; and their networks, by host.

    Raises:
        MpibootError: ``worker-facts``; workers without facts would get other values than the rest.
    """
    began, patience = time.monotonic(), worker_network.patience(settings)
    known = {worker.host.name: worker for worker in workers}
    wanted = settings.data_network is not DataNetworkUse.OFF
    networks = {name: decide(worker) for name, worker in known.items()}
    pause, logged = _MIN_PAUSE_S, ""
    while True:
        overdue = [worker for worker in known.values() if wanted and worker.pending]
        waiting = {name: network.pending for name, network in networks.items() if network.pending}
        waiting |= {worker.host.name: ("its facts",) for worker in overdue}
        if not waiting:
            return tuple(known.values()), networks
        hosts = [f"{host} ({', '.join(items)})" for host, items in waiting.items()]
        line = f"waiting for the data network of {first_few(hosts)}"
        if line != logged:
            logged = line
            log.info("data-network", line, hosts=len(hosts))
        left = began + (settings.timeout if overdue else patience) - time.monotonic()
        if left <= 0:
            break
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, _MAX_PAUSE_S)
        for worker in await asyncio.gather(*(fetch(known[name]) for name in waiting)):
            known[worker.host.name] = worker
            networks[worker.host.name] = decide(worker)
    if overdue:
        message = (
            f"{len(overdue)} of {counted(len(workers), 'worker')} did not gather their facts in "
            "time; without them their ranks would get other network settings than the rest"
        )
        others = tuple(map(overdue_finding, overdue))
        raise MpibootError(failed("worker-facts", message), others=others)
    if settings.data_network is not DataNetworkUse.REQUIRE:
        line = (
            f"the data network of {counted(len(hosts), 'host')} is not ready after "
            f"{took(patience)}: {first_few(hosts)}; the start goes on without it "
            "(MPIBOOT_DATA_NETWORK=require waits until the deadline)"
        )
        log.warning("data-network", line, hosts=len(hosts))
    return tuple(known.values()), networks


def overdue_finding(worker: Worker) -> Finding:
    """Make a finding of a worker's missing facts, with its own reason if it has one."""
    why = f": {worker.facts_error}" if worker.facts_error else ""
    message = f"it {NoFacts.PENDING.value}{why}"
    return failed("worker-facts", message, host=worker.host.name)


async def fetch_facts(pool: Pool, worker: Worker) -> Worker:
    """Have a worker gather its facts anew; unchanged if it does not answer."""
    end = await pool.run(worker.host.name, host_shell.ask("run_script look", "facts"), _COMMAND_S)
    answer = host_shell.read(end.answer or "")
    facts, reason = facts_of(answer)
    if facts is not None:
        return replace(worker, facts=facts, mpi=facts.mpi)
    if worker.facts is not None or reason is NoFacts.NO_MPIBOOT:
        return worker
    return replace(worker, no_facts=reason, facts_error=answer.facts_error)


async def end_leftovers(workers: Sequence[Worker], job: str, pool: Pool) -> None:
    """End what an earlier launcher of this job left running on the workers.

    Only processes that carry the ID of a launch of this job are ended, never by name; while their
    launcher is connected the gate is not passed. Workers are not queried again if the gate saw
    nothing. What can't be ended is a warning.

    Args:
        workers: who passed the gate.
        job: what identifies it (``job_id``).
        pool: reaches them.
    """
    found = {worker.host.name: earlier_launches(worker, job) for worker in workers}
    names = [name for name, launches in found.items() if launches]
    ends = await asyncio.gather(
        *(pool.run(name, host_shell.end_processes(found[name]), _COMMAND_S) for name in names)
    )
    answers = [*zip(names, (host_shell.read(end.answer or "") for end in ends), strict=True)]
    ended = {host: answer.ended for host, answer in answers if answer.ended}
    left = {host: answer.left for host, answer in answers if answer.left}
    for counts, write, text in (
        (ended, log.info, "ended {} left by an earlier launcher of this job"),
        (left, log.warning, "{} of an earlier launcher of this job can't be ended"),
    ):
        if counts:
            count, where = sum(counts.values()), first_few(counts)
            message = text.format(counted(count, "process", "processes"))
            write("stale-processes", f"{where}: {message}", hosts=len(counts), processes=count)


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

    async def dial(self, dial: Dial) -> Dial:
        """Dial from this host; the result is unknown where it gives no answer."""
        line = f"dial {dial.address} {dial.port} {dial.ssh_port} {dial.seconds:g}"
        try:
            return dial.answered(await self.probe.ask(line))
        except Exception as exc:  # noqa: BLE001 - asyncssh's: the connection is lost
            _not_checked(self.worker, str(exc))
            return dial


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
    """The dials of one gate's workers.

    When all hosts have passed the gate, each runs ``worker/probe.py`` over the gate's own
    connection, which listens there for this launch. Neighbours dial each other, and each dials the
    launcher, which listens as well; where control addresses answer, the data addresses follow. A
    dial counts only where its target answers itself. Of a host without mpiboot, or with one of a
    release that knows no launch's ID, nothing is known.
    """

    def __init__(
        self,
        settings: Settings,
        launch: str,
        pool: Pool,
        workers: Sequence[Worker],
        addresses: Mapping[str, Sequence[str]],
    ) -> None:
        """Have hosts listen, neighbours dial each other, and each dial the launcher.

        Args:
            settings: ``pair_check`` is how long a dial may take (0: nothing is tried); launcher and
                hosts listen at a port of ``port_range``.
            launch: the launch's ID, which a dial must read.
            pool: reaches the hosts.
            workers: the hosts.
            addresses: those of each host that sockets may use on the data network, by its name.
        """
        self._seconds, self._ports = settings.pair_check, settings.port_range or "0-0"
        self._launch, self._pool, self._addresses = launch, pool, addresses
        self._probes, self._servers = list[HostCommand](), list[asyncio.Server]()
        self._dialled, self._on_data = list[Dial](), list[Dial]()
        self._dialling = asyncio.ensure_future(self._dial_all(workers if self._seconds else ()))

    async def results(self) -> tuple[Dial, ...]:
        """Wait for what is still to be answered, and end: nothing listens or dials any more."""
        await self._finished()
        self._dialling.cancel()
        for server in self._servers:
            server.close()
        for probe in self._probes:
            probe.end()
        return tuple(self._dialled)

    async def blocked_on_data(self) -> str:
        """Describe where TCP is blocked on the data network; empty where nothing shows that."""
        if any(self._addresses.values()):
            await self._finished()
        return worker_pairs.blocked_on_data(self._on_data)

    async def _finished(self) -> None:
        """Wait until dials have an answer; what has none by then stays unknown."""
        # A dial may be made twice, after the start of its host's probe.
        await asyncio.wait({self._dialling}, timeout=2 * (self._seconds + _MARGIN_S))
        if self._dialling.done():
            self._dialling.result()

    async def _join(self, worker: Worker) -> _PairHost | None:
        """Let a host listen; None where it can't."""
        name, control = worker.host.name, worker.address
        command = host_shell.probe(control, self._ports, self._launch)
        try:
            probe = await self._pool.start(name, command, _MARGIN_S)
            self._probes.append(probe)
            line = await asyncio.wait_for(probe.line(), _MARGIN_S) or ""
            if not line.startswith(_LISTENS):
                why = "its mpiboot is of another release, or no port is free there"
                raise ConnectionError(why)  # noqa: TRY301 - its reason is logged as any other's
            places = self._addresses.get(name, ())
            listened = [await probe.ask(f"listen {address}") for address in places]
        except Exception as exc:  # noqa: BLE001 - asyncssh's, which is not loaded here
            _not_checked(worker, str(exc) or "its probe does not answer")
            return None
        control_end = control, _port(line.removeprefix(_LISTENS))
        return _PairHost(
            worker, [control_end, *zip(places, map(_port, listened), strict=True)], probe
        )

    async def _dial_all(self, workers: Sequence[Worker]) -> None:
        joining = (self._join(worker) for worker in workers if worker.runs_mpiboot)
        hosts = [host for host in await asyncio.gather(*joining) if host]
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
        lowest, _, highest = self._ports.partition("-")
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
        if found.reached is Reached.CONNECTED:
            found = await source.dial(dial)  # a busy listener answers late
        if found.reached is Reached.UNKNOWN:
            return False
        answered = found.reached is Reached.ANSWERED
        # One that is gone, or whose program has ended, was not dropped on the way.
        if target and not answered and (await target.dial(dial)).reached is not Reached.ANSWERED:
            _not_checked(target.worker, "its probe went silent")
            return False
        (self._on_data if on_data else self._dialled).append(found)
        return answered


def _not_checked(worker: Worker, why: str) -> None:
    log.debug("worker-pairs", f"pair check skipped on {worker.host.name}: {why}")
