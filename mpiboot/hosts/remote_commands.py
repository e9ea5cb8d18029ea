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
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
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
_ID: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}(?:@([A-Za-z0-9.-]*)@([0-9TZ:-]+))?", re.ASCII)


def job_id(job: str) -> str:
    """Derive the job's ID from what only its pods have, as its key."""
    return hashlib.sha256(job.encode()).hexdigest()[:16]


def new_launch_id(job: str) -> str:
    """Make the ID of one launch: job, launch, the launcher's host name and start time."""
    return f"{job_id(job)}-{os.urandom(8).hex()}@{process.host_and_time()}"


def running_here() -> set[str]:
    """Find the launches that run in this pod, this one included."""
    return {environ[LAUNCH_ID] for environ in processes.environments() if LAUNCH_ID in environ}


def launches_of_job(worker: Worker, job: str) -> tuple[str, ...]:
    """Give a worker's launches that belong to this job."""
    own = job_id(job) + "-"
    return tuple(each for each in worker.launches if each.startswith(own) and _ID.fullmatch(each))


def earlier_launches(worker: Worker, job: str) -> tuple[str, ...]:
    """Give a worker's launches of this job whose launcher is not in this pod."""
    found = launches_of_job(worker, job)
    running = running_here() if found else set()
    return tuple(each for each in found if each not in running)


def holder(worker: Worker, job: str) -> str:
    """Name the other launcher of this job that is connected to a worker; empty where none is."""
    earlier = earlier_launches(worker, job)
    held = sorted(item for item in worker.held if item[0] in earlier)
    if not held:
        return ""
    launch, address = held[0]
    parts = _ID.fullmatch(launch)
    name, since = (parts[1] or "", parts[2] or "") if parts else ("", "")
    place = f" ({address})" if address else ""
    who = f"launcher {name}{place}" if name else address or "a launcher"
    return f"in use by {who}" + (f" since {since}" if since else "")


_COMMAND_S: Final = 50.0  # a login on a busy node, and the command


# The state of a port on another pod can only be polled. Each query costs a worker half a second of
# one core.
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.5, 5.0


async def wait_until_settled(
    workers: Sequence[Worker],
    decide: Callable[[Worker], WorkerNetwork],
    settings: Settings,
    fetch: Callable[..., Awaitable[Worker]],
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
    pause, logged, first = _MIN_PAUSE_S, "", True
    networks = {name: decide(worker) for name, worker in known.items()}
    while True:
        overdue = [name for name, worker in known.items() if wanted and worker.pending]
        waiting = {name: network.pending for name, network in networks.items() if network.pending}
        names = [*overdue, *waiting]
        if not names:
            return tuple(known.values()), networks
        line = _waiting_line(overdue, waiting)
        if line != logged:
            logged = line
            log.info("data-network", line, hosts=len(names))
        left = began + (settings.timeout if overdue else patience) - time.monotonic()
        if left <= 0:
            break
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, _MAX_PAUSE_S)
        for worker in await asyncio.gather(*(fetch(known[name], first=first) for name in names)):
            known[worker.host.name] = worker
            networks[worker.host.name] = decide(worker)
        first = False
    if overdue:
        raise _failure([known[name] for name in overdue], len(workers))
    if settings.data_network is not DataNetworkUse.REQUIRE:
        hosts = f" of {counted(len(waiting), 'host')}"
        line = worker_network.not_ready(hosts, _each(waiting), patience)
        log.warning("data-network", line, hosts=len(waiting))
    return tuple(known.values()), networks


def overdue_finding(worker: Worker) -> Finding:
    """Make a finding of a worker's missing facts, with its own reason if it has one."""
    why = f": {worker.facts_error}" if worker.facts_error else ""
    message = f"it {NoFacts.PENDING.value}{why}"
    return failed("worker-facts", message, host=worker.host.name)


def _failure(overdue: Sequence[Worker], count: int) -> MpibootError:
    found = tuple(overdue_finding(worker) for worker in overdue)
    message = (
        f"{len(overdue)} of {counted(count, 'worker')} did not gather their facts in time; "
        "without them their ranks would get other network settings than the rest"
    )
    evidence = tuple(f"{item.host}: {item.message}" for item in found)
    return MpibootError(failed("worker-facts", message, evidence=evidence), others=found)


def _waiting_line(overdue: Sequence[str], waiting: Mapping[str, Sequence[str]]) -> str:
    parts = [f"the facts of {first_few(overdue)}"] if overdue else []
    if waiting:
        parts.append(f"the data network of {first_few(_each(waiting))}")
    return f"waiting for {'; and for '.join(parts)}"


def _each(waiting: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{host} ({', '.join(items)})" for host, items in waiting.items()]


async def fetch_facts(pool: Pool, worker: Worker, *, first: bool) -> Worker:
    """Fetch a worker's current facts; unchanged if it does not answer.

    The child that gathers them may only be slow, so the first time they are only fetched; later on
    they are gathered again, as it may have ended.
    """
    questions = ("facts",) if worker.pending and first else ("look", "facts")
    end = await pool.run(worker.host.name, host_shell.ask(*questions), _COMMAND_S)
    if end.answer is None:
        return worker
    answer = host_shell.read(end.answer)
    facts, reason = facts_of(answer)
    if facts is not None:
        return replace(worker, facts=facts, mpi=facts.mpi)
    if worker.facts is not None or reason is NoFacts.NO_MPIBOOT:
        return worker
    return replace(worker, no_facts=reason, facts_error=answer.facts_error)


def _name_others_of_this_pod(workers: Iterable[Worker], job: str) -> None:
    """Log other launches of this pod, as of a script; a launch inside a launch is part of it."""
    others = running_here() - {os.environ.get(LAUNCH_ID, "")}
    hosts = [item.host.name for item in workers if others.intersection(launches_of_job(item, job))]
    if hosts:
        where = first_few(hosts)
        message = f"another launch of this pod already runs on {where}; this one runs beside it"
        log.info("stale-processes", message, hosts=len(hosts))


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
    workers = [worker for worker in workers if launches_of_job(worker, job)]
    if not workers:
        return
    _name_others_of_this_pod(workers, job)
    answers: dict[str, HostAnswer] = {}

    async def one(worker: Worker, left: tuple[str, ...]) -> None:
        end = await pool.run(worker.host.name, host_shell.end_processes(left), _COMMAND_S)
        if end.answer is not None:
            answers[worker.host.name] = host_shell.read(end.answer)

    found = [(worker, earlier_launches(worker, job)) for worker in workers]
    await asyncio.gather(*(one(worker, left) for worker, left in found if left))
    _log_ended(answers)


def _log_ended(answers: Mapping[str, HostAnswer]) -> None:
    """Log what was ended and what could not be."""
    ended = {host: answer.ended for host, answer in answers.items() if answer.ended}
    left = {host: answer.left for host, answer in answers.items() if answer.left}
    for counts, write, text in (
        (ended, log.info, "ended {} left by an earlier launcher of this job"),
        (left, log.warning, "{} of an earlier launcher of this job can't be ended"),
    ):
        if counts:
            count, where = sum(counts.values()), first_few(tuple(counts))
            message = text.format(counted(count, "process", "processes"))
            write("stale-processes", f"{where}: {message}", hosts=len(counts), processes=count)
