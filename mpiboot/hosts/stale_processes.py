"""Ends what an earlier launcher of this job left running on the workers, before mpirun starts.

Only processes that carry the ID of a launch of this job are ended, never by name; while their
launcher is connected the gate is not passed. What can't be ended is a warning. A launcher that has
ended or was killed has no connection any more.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence

from mpiboot.core import log
from mpiboot.core.facts import Worker
from mpiboot.core.launch_names import LAUNCH_ID
from mpiboot.core.settings import Settings
from mpiboot.core.wording import MOST_LINES, counted, first_few
from mpiboot.hosts import host_shell, launches
from mpiboot.hosts.access import SshAccess
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.hosts.remote_commands import RemoteCommands


def _name_others_of_this_pod(workers: Iterable[Worker], job: str) -> None:
    """Log other launches of this pod, as of a script; a launch inside a launch is part of it."""
    beside = launches.running_here() - {os.environ.get(LAUNCH_ID, "")}
    hosts = [item.host.name for item in workers if beside.intersection(launches.of_job(item, job))]
    if hosts:
        where = first_few(hosts)
        message = f"another launch of this pod already runs on {where}; this one runs beside it"
        log.info("stale-processes", message, hosts=len(hosts))


async def end(workers: Sequence[Worker], job: str, settings: Settings, access: SshAccess) -> None:
    """End what is left; workers are not asked again if the gate saw nothing.

    Args:
        workers: who passed the gate.
        job: what identifies it (``job_id``).
        settings: ``host_keys`` is read.
        access: how to log in.
    """
    workers = [worker for worker in workers if launches.of_job(worker, job)]
    if not workers:
        return
    _name_others_of_this_pod(workers, job)
    remote = RemoteCommands(access, settings.host_keys)
    answers: dict[str, HostAnswer] = {}

    async def one(worker: Worker, left: tuple[str, ...]) -> None:
        output = await remote.run(worker, host_shell.end_processes(left))
        if output is not None:
            answers[worker.host.name] = host_shell.read(output)

    found = [(worker, launches.of_earlier(worker, job)) for worker in workers]
    await asyncio.gather(*(one(worker, left) for worker, left in found if left))
    _say(answers)


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
