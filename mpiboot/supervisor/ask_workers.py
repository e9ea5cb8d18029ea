"""Asks the workers why a job failed, and who waits while it runs; changes nothing on a worker."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from mpiboot.core.addresses import address_of
from mpiboot.hosts import host_shell
from mpiboot.hosts.host_shell import Connecting, HostAnswer
from mpiboot.network.counters import QUESTION
from mpiboot.supervisor import evidence
from mpiboot.supervisor.asking import FarEnd
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.supervisor.host_commands import HostCommands, in_time
from mpiboot.system.process import working_directory


@dataclass(frozen=True, slots=True)
class Waiting:
    """A rank on ``host`` that waits for an answer from a port; ``key`` is its connection's name."""

    host: str
    found: Connecting

    @property
    def key(self) -> str:
        """Give what tells this connection from others of the job, later ones too."""
        return f"{self.host}/{self.found.inode}"

    @property
    def address(self) -> str:
        """Give the far address."""
        return address_of(self.found.far.partition(":")[0])

    @property
    def port(self) -> int:
        """Give the far port."""
        return int(self.found.far.partition(":")[2], 16)


def connection_line(kind: FarEnd, item: Waiting, message: str = "") -> str:
    """Write a line for the parent."""
    return f"{kind.value} {item.key} {message}".rstrip()


def judge_connection(item: Waiting, far: HostSnapshot | None, answer: HostAnswer | None) -> str:
    """Say who waits for whom, and whether the far end is slow or gets nothing.

    Args:
        item: a connection that has waited for long.
        far: the job's host that it is for; None where it is for none of them.
        answer: what that host says of its port; None where it said nothing.
    """
    who = f"rank {item.found.rank}" if item.found.rank else "a process of the job"
    where = f"{item.address} port {item.port}"
    text = f"{who} on {item.host} gets no answer from "
    text += f"{far.name} ({where})" if far else where
    text += f": tried {item.found.again + 1} times by TCP"
    if far is None:
        return connection_line(FarEnd.ELSEWHERE, item, text)
    if answer is None:
        return connection_line(
            FarEnd.DROPPED, item, f"{text}; that host did not tell whether it listens there"
        )
    if answer.to_accept or (answer.overflows and answer.listener is not None):
        text += f"; the process that listens there is slow to accept: {answer.to_accept} wait for "
        text += f"it, and {answer.overflows} found a full backlog. The network is not to blame"
        return connection_line(FarEnd.SLOW, item, text)
    listens = "nobody listens" if answer.listener is None else "a process listens"
    return connection_line(FarEnd.DROPPED, item, f"{text}; {listens} there, and nothing reaches it")


SECONDS: Final = 4.0
_SECONDS_BESIDE_THE_JOB: Final = 20.0  # its hosts are busy, and nobody waits
# After the job many a pod is gone, and an address without a pod answers nothing: within this a SYN
# that was lost is sent again.
LOGIN: Final = 2.0
T = TypeVar("T")

# Of a job's hosts so many are asked while it runs for connections that nobody answers: one that is
# missing is missed by many.
_HOSTS: Final = 96
_FAR_ENDS: Final = 8
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


async def unanswered(
    commands: HostCommands, hosts: Sequence[HostSnapshot], known: Sequence[str]
) -> list[str]:
    """Ask hosts for connections that nobody answers, and the far ends of those that are known."""
    by_address = {host.address: host for host in hosts if host.address}
    found = {
        item.key: item
        for host, answer in await _beside_the_job(commands, hosts[:_HOSTS], "connecting")
        for item in (Waiting(host.name, each) for each in answer.connecting)
    }
    lines = [connection_line(FarEnd.NEW, item) for key, item in found.items() if key not in known]
    # Many ranks may wait for one: each far end is asked once, and told of once.
    ends = {(item.address, item.port): item for key, item in found.items() if key in known}
    for (address, port), item in list(ends.items())[:_FAR_ENDS]:
        far = by_address.get(address)
        asked = await _beside_the_job(commands, (far,), f"listener {port}") if far else []
        answer = asked[0][1] if asked else None
        lines.append(judge_connection(item, far, answer))
    return lines


async def in_mpi(commands: HostCommands, hosts: Sequence[HostSnapshot]) -> list[str]:
    """Ask hosts for ranks that have not left MPI: a line for each host that has some."""
    found = await _beside_the_job(commands, hosts, "in_mpi")
    return [f"{host.name} {answer.in_mpi}" for host, answer in found if answer.in_mpi]


async def ranks(
    commands: HostCommands, hosts: Iterable[HostSnapshot], launch_id: str
) -> list[tuple[str, int, tuple[str, ...]]]:
    """Count each host's ranks, and name their MPI libraries; who does not answer is left out.

    So is one that shows no process of the launch.
    """
    asked = [host for host in hosts if not (host.here and host.may_idle)]
    found = await _beside_the_job(commands, asked, f"ranks {launch_id}")
    return [
        (host.name, answer.ranks, answer.libraries)
        for host, answer in found
        if answer.ranks is not None
    ]


def _is(host: HostSnapshot, where: str) -> bool:
    """Whether mpirun's name for a host is that host: its own it may have long or short."""
    return host.name in (where, where.partition(".")[0] if host.here else where)
