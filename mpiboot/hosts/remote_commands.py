"""Commands on workers that have passed the gate, and what is checked there before mpirun starts.

Workers whose facts are late, or whose data network is not ready, are asked again until the
deadline; for a data network that is not required, for a minute at most. Nothing is changed on a
worker but its file of facts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, failed
from mpiboot.core.facts import NoFacts, Worker
from mpiboot.core.model import Finding
from mpiboot.core.setting_types import DataNetworkUse, HostKeys
from mpiboot.core.settings import Settings
from mpiboot.core.wording import counted, first_few
from mpiboot.hosts import host_shell
from mpiboot.hosts.access import Kubectl, PodError, SshAccess, pod_of
from mpiboot.hosts.pipeline import facts_of
from mpiboot.job.program_words import Rendezvous
from mpiboot.network import worker_network
from mpiboot.network.records import WorkerNetwork
from mpiboot.ssh.attempt import Attempt, LoginTimeouts, Outcome, Target
from mpiboot.system import programs

if TYPE_CHECKING:
    from mpiboot.ssh.login import Login

_AT_ONCE: Final = 32


class RemoteCommands:
    """Runs commands on workers at the address and port where the gate logged in."""

    def __init__(
        self, access: SshAccess, host_keys: HostKeys, limits: LoginTimeouts | None = None
    ) -> None:
        self._access = access
        self._mode = host_keys
        self._limits = limits or LoginTimeouts()
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._login: Login | None = None
        self._pods = Kubectl(access.pods, limit=self._limits.command) if access.pods else None

    async def run(self, worker: Worker, command: str) -> str | None:
        """Give the command's output; None if the worker does not answer or the command failed."""
        if self._pods is not None:
            try:
                return await self._pods.run(pod_of(worker.host.name), command)
            except PodError:
                return None
        target = Target(worker.host.name, worker.address, worker.port, worker.user)
        async with self._free:
            found = await self._access.connect(target, command, self._limits)
            if not isinstance(found, Attempt):
                with found.sock:
                    found = await self._load().log_in(found, command)
        return found.output if found.outcome is Outcome.OK else None

    def _load(self) -> Login:
        self._login = self._login or self._access.login(self._mode, self._limits)
        return self._login


# The state of a port on another pod can only be polled. Each look costs a worker half a second of
# one core.
_FIRST, _LAST = 0.5, 5.0


async def wait_until_settled(
    workers: Sequence[Worker],
    decide: Callable[[Worker], WorkerNetwork],
    settings: Settings,
    access: SshAccess,
) -> tuple[tuple[Worker, ...], dict[str, WorkerNetwork]]:
    """Ask workers again until their facts and data networks are ready, or the time is over.

    Args:
        workers: who passed the gate.
        decide: gives a worker's network, with what is still pending there; the plan judges what
            stays so.
        settings: ``timeout`` is what is left of the one deadline; with ``data_network`` off
            nothing depends on a worker's facts, and late ones are not waited for.
        access: how to log in.

    Returns:
        The workers in their order, with their latest facts; and their networks, by host.

    Raises:
        MpibootError: ``worker-facts``; workers without facts would get other values than the rest.
    """
    began, patience = time.monotonic(), worker_network.patience(settings)
    known = {worker.host.name: worker for worker in workers}
    wanted = settings.data_network is not DataNetworkUse.OFF
    remote = RemoteCommands(access, settings.host_keys)
    pause, said, first = _FIRST, "", True
    networks = {name: decide(worker) for name, worker in known.items()}
    while True:
        late = [name for name, worker in known.items() if wanted and worker.late]
        waiting = {name: network.pending for name, network in networks.items() if network.pending}
        names = [*late, *waiting]
        if not names:
            return tuple(known.values()), networks
        line = _waiting_line(late, waiting)
        if line != said:
            said = line
            log.info("data-network", line, hosts=len(names))
        left = began + (settings.timeout if late else patience) - time.monotonic()
        if left <= 0:
            break
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, _LAST)
        answers = await asyncio.gather(
            *(_ask_again(known[name], remote, first=first) for name in names)
        )
        for worker in answers:
            known[worker.host.name] = worker
            networks[worker.host.name] = decide(worker)
        first = False
    if late:
        raise _failure([known[name] for name in late], len(workers))
    if settings.data_network is not DataNetworkUse.REQUIRE:
        hosts = f" of {counted(len(waiting), 'host')}"
        line = worker_network.not_ready(hosts, _each(waiting), patience)
        log.warning("data-network", line, hosts=len(waiting))
    return tuple(known.values()), networks


def late_finding(worker: Worker) -> Finding:
    """Make a finding of a worker's missing facts, with its own reason if it has one."""
    why = f": {worker.look_failed}" if worker.look_failed else ""
    message = f"it {NoFacts.LATE.value}{why}"
    return failed("worker-facts", message, host=worker.host.name)


def _failure(late: Sequence[Worker], count: int) -> MpibootError:
    found = tuple(late_finding(worker) for worker in late)
    message = (
        f"{len(late)} of {counted(count, 'worker')} did not gather their facts in time; "
        "without them their ranks would get other network settings than the rest"
    )
    evidence = tuple(f"{item.host}: {item.message}" for item in found)
    return MpibootError(failed("worker-facts", message, evidence=evidence), others=found)


def _waiting_line(late: Sequence[str], waiting: Mapping[str, Sequence[str]]) -> str:
    parts = [f"the facts of {first_few(late)}"] if late else []
    if waiting:
        parts.append(f"the data network of {first_few(_each(waiting))}")
    return f"waiting for {'; and for '.join(parts)}"


def _each(waiting: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{host} ({', '.join(items)})" for host, items in waiting.items()]


async def _ask_again(worker: Worker, remote: RemoteCommands, *, first: bool) -> Worker:
    """Fetch a worker's current facts; unchanged if it does not answer.

    The child that gathers them may only be slow, so the first time they are only fetched; later on
    they are gathered again, as it may have ended.
    """
    questions = ("facts",) if worker.late and first else ("look", "facts")
    output = await remote.run(worker, host_shell.ask(*questions))
    if output is None:
        return worker
    answer = host_shell.read(output)
    facts, reason = facts_of(answer)
    if facts is not None:
        return replace(worker, facts=facts, mpi=facts.mpi)
    if worker.facts is not None or reason is NoFacts.NO_MPIBOOT:
        return worker
    return replace(worker, no_facts=reason, look_failed=answer.look_failed)


async def look_at_master_port(
    meeting: Rendezvous, worker: Worker | None, settings: Settings, access: SshAccess
) -> tuple[Finding, ...]:
    """Ask rank 0's host which process listens at the port; without an answer there is no finding.

    Args:
        meeting: the host and the port.
        worker: that host; None for this pod itself.
        settings: ``host_keys`` is read.
        access: how to log in.
    """
    command = host_shell.ask(f"listener {meeting.port}")
    if worker is None:
        output: str | None = await programs.shell(command, LoginTimeouts().command)
    else:
        output = await RemoteCommands(access, settings.host_keys).run(worker, command)
    listener = host_shell.read(output or "").listener
    if listener is None:
        log.debug("master-port", f"nobody listens at port {meeting.port} of {meeting.host}")
        return ()
    who = listener or "a process that can't be seen from this pod"
    message = f"port {meeting.port}, where ranks are to meet ({meeting.by}), is taken by {who}"
    return (failed("master-port", message, host=meeting.host),)
