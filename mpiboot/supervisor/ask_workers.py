"""Asks the workers why a job failed, and how many ranks they have; changes nothing there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from mpiboot.hosts import host_shell
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.network.counters import QUESTION
from mpiboot.supervisor import evidence
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.supervisor.host_commands import HostCommands, in_time
from mpiboot.system.process import working_directory

SECONDS: Final = 4.0
_SECONDS_BESIDE_THE_JOB: Final = 20.0  # its hosts are busy, and nobody waits
# After the job many a pod is gone, and an address without a pod answers nothing: within this a SYN
# that was lost is sent again.
LOGIN: Final = 2.0
T = TypeVar("T")

_MEMORY: Final = ("memory", "memory_sizes")
Answers: TypeAlias = "dict[str, HostAnswer]"  # by host


async def _addresses(before: HostSnapshot) -> tuple[str, ...] | None:
    """Resolve a host's name: no address where there is none, None where nobody can tell.

    A nameserver that fails for the world outside says nothing of the cluster's own names.
    """
    if not before.dns:  # no nameserver tells what became of an address
        return None
    found = await _resolved(before.dns)
    if found is not None or not before.in_cluster:
        return found
    own = await asyncio.gather(*map(_resolved, before.in_cluster))
    known = tuple(address for addresses in own for address in addresses or ())
    return None if None in own and not known else known


async def _resolved(name: str) -> tuple[str, ...] | None:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as why:
        return () if why.errno in (socket.EAI_NONAME, socket.EAI_NODATA) else None
    return tuple(str(item[4][0]) for item in found)


async def _evidence(
    commands: HostCommands,
    before: HostSnapshot,
    wanted: Sequence[str],
    now: Answers,
    *,
    blamed: bool,
) -> tuple[evidence.Explanation, ...]:
    counted = (QUESTION,) if before.counted else ()
    if before.here:  # of the launcher no more, and of its programs only where it has ranks
        wanted = () if before.may_idle else wanted
    command = host_shell.ask(*_MEMORY, *wanted, *counted)
    if before.here:
        answer = await commands.run(before, command, LOGIN)
        return _judged(before, answer, now) if answer else ()
    resolving = asyncio.ensure_future(_addresses(before))
    asking = asyncio.ensure_future(commands.run(before, command, LOGIN))
    # A host whose name has gone, or leads elsewhere, needs no further patience.
    try:
        if found := evidence.unreachable(before, await resolving):
            return found
        answer = await asking
    finally:
        asking.cancel()
    if answer:
        return _judged(before, answer, now)
    return evidence.silent(before) if blamed else ()


def _judged(before: HostSnapshot, output: str, now: Answers) -> tuple[evidence.Explanation, ...]:
    now[before.name] = host_shell.read(output)
    return evidence.judge(before, now[before.name])


async def _ask_all(
    hosts: Iterable[HostSnapshot],
    ask: Callable[[HostSnapshot], Coroutine[Any, Any, T]],
    seconds: float,
) -> list[tuple[HostSnapshot, T | None]]:
    """Give what each host has answered, None where nothing came in time, or it failed."""
    asked = tuple(hosts)
    tasks = await in_time(map(ask, asked), seconds)
    return [
        (host, None if task.cancelled() or task.exception() else task.result())
        for host, task in zip(asked, tasks, strict=True)
    ]


async def gather(
    commands: HostCommands,
    hosts: Sequence[HostSnapshot],
    environ: Mapping[str, str],
    words: Sequence[str],
    now: Answers,
) -> list[str]:
    """Ask hosts, the first ones first; what has not answered in time is left out.

    Args:
        commands: runs them.
        hosts: all of the job's.
        environ: mpirun's environment.
        words: the host where the first rank was ended, the program of which hosts are asked whether
            they can run it, and other hosts to ask first.
        now: gets what they answered.
    """
    where, program, *named = words
    hosts = sorted(
        hosts, key=lambda host: (not host.here, host.name != where, host.name not in named)
    )
    path, folder = environ.get("PATH", ""), working_directory(environ)
    wanted = host_shell.lacks(program, path, folder) if program else ()

    def explain(host: HostSnapshot) -> Coroutine[Any, Any, tuple[evidence.Explanation, ...]]:
        return _evidence(commands, host, wanted, now, blamed=_is(host, where))

    rows, commands.waiting = [], 0
    for host, answer in await _ask_all(hosts, explain, SECONDS):
        found = evidence.silent(host) if answer is None and host.name == where else answer or ()
        rows += [(item.order, item.line(host.name)) for item in found]
    lines = [line for _, line in sorted(rows, key=lambda row: row[0])]
    if commands.waiting:
        lines.append(f"{commands.waiting} of {len(hosts)} hosts could not be asked in time")
    return lines


async def _beside_the_job(
    commands: HostCommands, hosts: Sequence[HostSnapshot], question: str
) -> list[tuple[HostSnapshot, host_shell.HostAnswer]]:
    """Ask hosts while the job runs; who has not answered in time is left out."""
    command, seconds = host_shell.ask(question), _SECONDS_BESIDE_THE_JOB
    answers = await _ask_all(hosts, lambda host: commands.run(host, command, seconds), seconds)
    return [(host, host_shell.read(output)) for host, output in answers if output]


async def ranks(
    commands: HostCommands, hosts: Iterable[HostSnapshot], launch_id: str
) -> list[tuple[str, int | None, tuple[str, ...]]]:
    """Count each host's ranks, and name their MPI libraries; who does not answer is left out.

    The number is None where a worker with mpiboot shows no process of the launch. Another host that
    shows none is left out, too: they may be hidden there.
    """
    asked = [host for host in hosts if not (host.here and host.may_idle)]
    found = await _beside_the_job(commands, asked, f"ranks {launch_id}")
    return [
        (host.name, answer.ranks, answer.libraries)
        for host, answer in found
        if answer.ranks is not None or host.mpiboot
    ]


def _is(host: HostSnapshot, where: str) -> bool:
    """Whether mpirun's name for a host is that host: its own it may have long or short."""
    return host.name in (where, where.partition(".")[0] if host.here else where)
