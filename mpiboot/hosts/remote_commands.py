"""What workers have answered, and commands there between the gate and mpirun's start.

Workers whose facts are overdue, or whose data network is not ready, are queried again until the
deadline; for a data network that is not required, for a minute at most. What an earlier launcher of
this job has left is ended; nothing else is changed on a worker but its file of facts.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, failed
from mpiboot.core.facts import Host, NoFacts, PodFacts, Worker, facts_from_json
from mpiboot.core.launch_spec import LAUNCH_ID
from mpiboot.core.model import DataNetworkUse, Finding
from mpiboot.core.settings import Settings
from mpiboot.core.wording import counted, first_few
from mpiboot.hosts import host_shell
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.network import worker_network
from mpiboot.network.records import WorkerNetwork
from mpiboot.ssh.attempt import Attempt
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
        oom_kills=answer.oom_kills,
        launches=answer.launches,
        attempts=answer.attempts,
        held=answer.held,
        called_mpi=programs.recognise(*answer.mpirun_by_path) if answer.mpirun_by_path else None,
        counters=answer.counters,
        no_facts=reason,
        missing_workdir=any(way == "folder" for way, _ in answer.lacks),
        doctor=answer.doctor,
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
    found = [each for each in worker.launches if each.startswith(start) and _ID.fullmatch(each)]
    running = running_here() if found else set()
    return tuple(each for each in found if each not in running)


def holder(worker: Worker, job: str) -> str:
    """Name the other launcher of this job that is connected to a worker; empty where none is."""
    earlier = earlier_launches(worker, job)
    held = sorted(item for item in worker.held if item[0] in earlier)
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
        line = worker_network.not_ready(f" of {counted(len(hosts), 'host')}", hosts, patience)
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

    async def end_on(name: str, launches: Sequence[str]) -> tuple[str, HostAnswer]:
        end = await pool.run(name, host_shell.end_processes(launches), _COMMAND_S)
        return name, host_shell.read(end.answer or "")

    found = [(worker.host.name, earlier_launches(worker, job)) for worker in workers]
    answers = await asyncio.gather(*(end_on(*item) for item in found if item[1]))
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
