"""Commands on workers that have passed the gate, and what is asked of them before mpirun starts.

Workers that are not settled yet are asked again until the deadline: late facts are waited for, and
so is what a worker's data network still waits for; that for a minute at most where it is not
required. Nothing is changed on a worker but its file of facts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mpiboot.core import log
from mpiboot.core.checks import failed
from mpiboot.core.errors import MpibootError
from mpiboot.core.model import Finding, NoFacts, Worker
from mpiboot.core.setting_types import DataNetworkUse, HostKeys
from mpiboot.core.settings import Settings
from mpiboot.core.wording import counted, first_few
from mpiboot.hosts import host_shell
from mpiboot.hosts.access import Kubectl, SshAccess, Trouble, pod_of
from mpiboot.hosts.pipeline import facts_of
from mpiboot.job.program_words import Rendezvous
from mpiboot.network import worker_network
from mpiboot.network.records import WorkerNetwork
from mpiboot.ssh import attempt as ssh_attempt
from mpiboot.ssh.attempt import Attempt, LoginTimeouts, Outcome, Target
from mpiboot.system import programs

if TYPE_CHECKING:
    from mpiboot.hosts.stale_processes import OtherLauncher
    from mpiboot.ssh.login import Login

_AT_ONCE: Final = 32


class RemoteCommands:
    """Runs commands on workers at the address and port where they let us in before."""

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
        """Give the command's output; None where the worker does not answer or it failed."""
        if self._pods is not None:
            output = await self._pods.run(pod_of(worker.host.name), command)
            return output if isinstance(output, str) else None
        target = Target(worker.host.name, worker.address, worker.port, worker.user)
        async with self._free:
            opened = await ssh_attempt.connect(target, self._limits)
            if isinstance(opened, Attempt):
                return None
            with opened.sock:
                login = self._load()
                attempt = await login.log_in(target, opened.sock, opened.greeting, command)
        return attempt.output if attempt.outcome is Outcome.OK else None

    async def is_there(self, other: OtherLauncher, port: int) -> bool:
        """Tell whether a launcher may still be there: a refused connection is an answer too."""
        if self._pods is not None:
            found = await self._pods.look(pod_of(other.name))
            gone = (Trouble.NO_POD, Trouble.NOT_RUNNING)
            return found.obstacle is None or found.obstacle.trouble not in gone
        opened = await ssh_attempt.connect(Target("", other.address, port, ""), self._limits)
        if isinstance(opened, Attempt):
            return opened.outcome not in (Outcome.TIMEOUT, Outcome.UNREACHABLE)
        opened.sock.close()
        return True

    def _load(self) -> Login:
        if self._login is None:
            from mpiboot.ssh.login import Login  # noqa: PLC0415 - loaded by the gate already

            self._login = Login(
                self._access.key,
                host_key=self._access.host_key,
                mode=self._mode,
                limits=self._limits,
            )
        return self._login


# A port's state sends no event that crosses to another pod. Looking costs a worker half a second
# of one core.
_FIRST, _LAST = 0.5, 5.0


async def wait_until_settled(
    workers: Sequence[Worker],
    decide: Callable[[Worker], WorkerNetwork],
    settings: Settings,
    access: SshAccess,
) -> tuple[tuple[Worker, ...], dict[str, WorkerNetwork]]:
    """Ask the workers that are not settled again, until all are or the time for it is over.

    Args:
        workers: who passed the gate.
        decide: tells what a worker's networks are, and what is still to come there; what never
            comes is the plan's to judge.
        settings: ``timeout`` is what is left of the one deadline; ``data_network``: where it is
            off, nothing depends on a worker's facts and none are waited for.
        access: how to log in.

    Returns:
        The workers in their order, with their latest facts; and their networks, by host.

    Raises:
        MpibootError: ``worker-facts``; without the facts of some workers, these would get other
            values than the rest.
    """
    began, patience = time.monotonic(), worker_network.patience(settings)
    known = {worker.host.name: worker for worker in workers}
    wanted = settings.data_network is not DataNetworkUse.OFF
    remote = RemoteCommands(access, settings.host_keys)
    pause, message, first = _FIRST, "", True
    networks = {name: decide(worker) for name, worker in known.items()}
    while True:
        late = [name for name, worker in known.items() if wanted and worker.late]
        waiting = {name: network.pending for name, network in networks.items() if network.pending}
        names = [*late, *waiting]
        if not names:
            return tuple(known.values()), networks
        line = _waiting_line(late, waiting)
        if line != message:
            message = line
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
    """Say that a worker's facts are missing, and why as far as it told."""
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
    """Bring a worker's facts of now; as they were where it does not answer.

    The child that gathers them may only be slow, and is waited for once more; later on they are
    gathered anew, as it may have ended.
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
    """Ask rank 0's host who listens at the port; a host that does not answer is not judged.

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
