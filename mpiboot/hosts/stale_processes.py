"""Ends what an earlier launcher of this job left running on the workers, before mpirun starts.

Only processes that carry the ID of a launch of this job are ended, never by name, and not while
their launcher is still connected to its workers. What can't be ended is a warning. A launcher that
has ended or was killed has no connection any more.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.facts import Worker
from mpiboot.core.launch_names import LAUNCH_ID
from mpiboot.core.settings import Settings
from mpiboot.core.wording import MOST_LINES, counted, first_few
from mpiboot.hosts import host_shell
from mpiboot.hosts.access import SshAccess
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.hosts.remote_commands import RemoteCommands
from mpiboot.system import process, processes

# Job and launch; the launcher's host name and the time of day at its start.
_ID: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}(?:@([A-Za-z0-9.-]*)@([0-9TZ:-]+))?", re.ASCII)
_MARGIN: Final = 5.0
# Kubernetes gives a pod 30 s to end where its manifest says nothing else.
GRACE: Final = 30.0 + _MARGIN
# sshd ends a connection after one more probe than the three that its keep-alive is divided by.
_PROBES: Final = 4 / 3


@dataclass(frozen=True, slots=True)
class OtherLauncher:
    """A launcher that uses workers; empty is what its launch ID does not contain.

    ``monitored``: one of its workers runs mpiboot's server with keep-alives, which closes dead
    connections: one that is still open after that time belongs to a living launcher.
    """

    name: str
    since: str
    address: str
    hosts: tuple[str, ...]
    monitored: bool


def patience_for(keepalive: float) -> float:
    """Give the seconds after which workers have dropped a launcher whose node vanished."""
    return max(GRACE, keepalive * _PROBES + _MARGIN)


def connected(
    workers: Iterable[Worker], launches: Mapping[str, Sequence[str]], keepalive: float
) -> tuple[OtherLauncher, ...]:
    """Find the connected launchers among those with one of these launch IDs, given by host.

    ``keepalive`` is the setting in seconds; with 0 a server keeps a dead launcher's connection.
    """
    hosts: dict[tuple[str, str], list[Worker]] = {}
    for worker in workers:
        for launch, address in worker.held:
            if launch in launches.get(worker.host.name, ()):
                hosts.setdefault((launch, address), []).append(worker)
    found = []
    for (launch, address), held in hosts.items():
        parts = _ID.fullmatch(launch)
        name, since = (parts[1] or "", parts[2] or "") if parts else ("", "")
        hosts_held = tuple(worker.host.name for worker in held)
        monitored = keepalive > 0 and any(worker.runs_mpiboot for worker in held)
        found.append(OtherLauncher(name, since, address, hosts_held, monitored))
    return tuple(found)


def others_line(others: Sequence[OtherLauncher]) -> str:
    """Say which launcher uses which workers, and since when."""
    first = others[0]
    place = f" ({first.address})" if first.address else ""
    who = f"launcher {first.name}{place}" if first.name else first.address or "a launcher"
    since = f" since {first.since}" if first.since else ""
    more = f", and {len(others) - 1} more launchers use some of them" if len(others) > 1 else ""
    verb = "is" if len(first.hosts) == 1 else "are"
    return f"{first_few(first.hosts)} {verb} in use by {who}{since}{more}"


def error_of(others: Sequence[OtherLauncher], seconds: float) -> MpibootError:
    """Make the error for workers that another launcher uses."""
    message = f"{others_line(others)}, still after {seconds:.0f} s: nothing was started"
    return error("workers-held", message)


# Often at first: a launcher that is just ending is gone in a moment.
_FIRST, _LAST = 0.2, 1.0
_SILENT: Final = 3  # looks


def job_id(job: str) -> str:
    """Derive the job's ID from what only its pods have, as its key."""
    return hashlib.sha256(job.encode()).hexdigest()[:16]


def new_launch_id(job: str) -> str:
    """Make the ID of one launch: job, launch, the launcher's host name and start time."""
    return f"{job_id(job)}-{os.urandom(8).hex()}@{process.host_and_time()}"


def _running() -> set[str]:
    """Find the launches that run in this pod, this one included."""
    return {environ[LAUNCH_ID] for environ in processes.environments() if LAUNCH_ID in environ}


def of_job(worker: Worker, job: str) -> tuple[str, ...]:
    """Give a worker's launches that belong to this job."""
    own = job_id(job) + "-"
    return tuple(each for each in worker.launches if each.startswith(own) and _ID.fullmatch(each))


def of_earlier(workers: Iterable[Worker], job: str) -> dict[str, tuple[str, ...]]:
    """Give, by host, the launches of this job whose launcher is not in this pod."""
    seen = {worker.host.name: of_job(worker, job) for worker in workers}
    if not any(seen.values()):
        return {}
    running = _running()
    kept = {host: tuple(one for one in ids if one not in running) for host, ids in seen.items()}
    return {host: ids for host, ids in kept.items() if ids}


def _name_others_of_this_pod(workers: Iterable[Worker], job: str) -> None:
    """Log other launches of this pod, as of a script; a launch inside a launch is part of it."""
    seen = {worker.host.name: set(of_job(worker, job)) for worker in workers}
    if not any(seen.values()):
        return
    beside = _running() - {os.environ.get(LAUNCH_ID, "")}
    hosts = [host for host, launches in seen.items() if beside & launches]
    if hosts:
        where = first_few(hosts)
        message = f"another launch of this pod already runs on {where}; this one runs beside it"
        log.info("stale-processes", message, hosts=len(hosts))


async def end(workers: Sequence[Worker], job: str, settings: Settings, access: SshAccess) -> None:
    """End what is left; workers are not asked again if the gate saw nothing.

    Args:
        workers: who passed the gate.
        job: what identifies it (``job_id``).
        settings: ``timeout`` is what is left of the one deadline; ``host_keys``, ``ssh_keepalive``.
        access: how to log in.

    Raises:
        MpibootError: ``workers-held``; another launcher uses the workers.
    """
    _name_others_of_this_pod(workers, job)
    found = of_earlier(workers, job)
    if not found:
        return
    remote = RemoteCommands(access, settings.host_keys)
    workers = [worker for worker in workers if worker.host.name in found]
    found = await _wait_for_others(workers, found, job, settings, remote)

    answers: dict[str, HostAnswer] = {}

    async def one(worker: Worker, launches: tuple[str, ...]) -> None:
        output = await remote.run(worker, host_shell.end_processes(launches))
        if output is not None:
            answers[worker.host.name] = host_shell.read(output)

    await asyncio.gather(
        *(one(item, found[item.host.name]) for item in workers if item.host.name in found)
    )
    _say(answers)


async def _wait_for_others(
    workers: Sequence[Worker],
    found: dict[str, tuple[str, ...]],
    job: str,
    settings: Settings,
    remote: RemoteCommands,
) -> dict[str, tuple[str, ...]]:
    """Wait until no other launcher is connected; give what it has left.

    A pod that is being replaced gets time to end its job. A launcher that answers after that time
    is alive; one that doesn't may have lost its node, which workers notice by their keep-alive.
    """
    started, told, pause = time.monotonic(), False, _FIRST
    silent: Counter[str] = Counter()
    patience = min(settings.timeout, patience_for(settings.ssh_keepalive))
    look_at = min(patience, GRACE)
    while True:
        others = connected(workers, found, settings.ssh_keepalive)
        if not others:
            return found
        if not told:
            told = True
            line = f"{others_line(others)}; waiting until it ends"
            log.info("other-launchers", line, launchers=len(others))
        elapsed = time.monotonic() - started
        if elapsed >= look_at:
            look_at = patience
            sure = elapsed >= patience and any(other.monitored for other in others)
            for other in others:
                if sure or await remote.is_there(other, workers[0].port):
                    raise error_of(others, time.monotonic() - started)
            if elapsed >= patience:
                return found
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LAST)
        workers = await asyncio.gather(*(_ask_again(item, silent, remote) for item in workers))
        found = of_earlier(workers, job)


async def _ask_again(worker: Worker, silent: Counter[str], remote: RemoteCommands) -> Worker:
    """Ask a worker again for its launches; one that stays silent counts as having none."""
    output = await remote.run(worker, host_shell.ask("launches"))
    if output is not None:
        silent[worker.host.name] = 0
        seen = host_shell.read(output)
        return replace(worker, launches=seen.launches, held=seen.held)
    silent[worker.host.name] += 1
    # It may have ended with the other launcher's job; then mpirun will fail on it.
    return replace(worker, launches=(), held=()) if silent[worker.host.name] >= _SILENT else worker


def _say(answers: Mapping[str, HostAnswer]) -> None:
    """Log what was ended and what could not be: a line for each host, or one for very many."""
    ended = {host: answer.ended for host, answer in answers.items() if answer.ended}
    left = {host: answer.left for host, answer in answers.items() if answer.left}
    for counts, write, text in (
        (ended, log.info, "ended {} left by an earlier launcher of this job"),
        (left, log.warning, "{} of an earlier launcher of this job can't be ended"),
    ):
        lines = [(host, host, count) for host, count in counts.items()]
        if len(lines) > MOST_LINES:
            where = f"{len(counts):,} hosts ({first_few(tuple(counts))})"
            lines = [(where, "", sum(counts.values()))]
        for where, host, count in lines:
            message = text.format(counted(count, "process", "processes"))
            write("stale-processes", f"{where}: {message}", host=host, processes=count)
