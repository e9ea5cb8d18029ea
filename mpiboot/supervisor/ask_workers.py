"""Asks the workers why a job failed, and how many ranks they have; changes nothing there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from mpiboot.hosts import host_shell
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.network.counters import QUESTION
from mpiboot.supervisor import evidence
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.supervisor.host_commands import HostCommands, in_time
from mpiboot.supervisor.state import HostFacts
from mpiboot.system.process import working_directory

SECONDS: Final = 4.0
_SECONDS_BESIDE_THE_JOB: Final = 20.0  # its hosts are busy, and nobody waits
# After the job many a pod is gone, and an address without a pod answers nothing: within this a SYN
# that was lost is sent again.
LOGIN: Final = 2.0
# What a host may still say whose name has gone.
_LAST_WORD: Final = 0.5

_MEMORY: Final = ("memory", "memory_sizes")


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


class _Inquiry:
    """What became of asking one host after the job: each part counts, whatever the others do."""

    def __init__(self, before: HostSnapshot) -> None:
        self._before = before
        self._answered: bool | None = None
        self._why = ""
        self._addresses: tuple[str, ...] | None = None
        self.answer: HostAnswer | None = None

    def facts(self) -> HostFacts:
        """Say what is known by now."""
        return evidence.facts_of(
            self._before,
            self.answer,
            answered=self._answered,
            why=self._why,
            addresses=self._addresses,
        )

    async def run(self, commands: HostCommands, command: str) -> None:
        """Ask the host, and the nameserver beside it."""
        asking = asyncio.ensure_future(self._ask(commands, command))
        resolving = asyncio.ensure_future(self._resolve())
        try:
            await asyncio.wait((asking, resolving), return_when=asyncio.FIRST_COMPLETED)
            # A name goes before its pod does. One that leads elsewhere needs no further patience.
            gone = evidence.moved(self._before, self._addresses)
            await asyncio.wait((asking,), timeout=_LAST_WORD if gone else None)
            if self.answer is None:
                await resolving
        finally:
            asking.cancel()
            resolving.cancel()

    async def _ask(self, commands: HostCommands, command: str) -> None:
        async with commands.turn():
            self._answered = False
            try:
                output = await commands.output(self._before, command, LOGIN)
            except Exception as exc:  # noqa: BLE001 - asyncssh's own errors, which are not loaded here
                self._why = " ".join(str(exc).split())
                return
        self._answered = output is not None
        self.answer = None if output is None else host_shell.read(output)

    async def _resolve(self) -> None:
        self._addresses = await _addresses(self._before)


async def after_job(
    commands: HostCommands,
    hosts: Sequence[HostSnapshot],
    environ: Mapping[str, str],
    words: Sequence[str],
    tell: Callable[[HostFacts], None],
) -> dict[str, HostAnswer]:
    """Ask all hosts at once for what explains a failure; give what they answered.

    Args:
        commands: runs them.
        hosts: all of the job's.
        environ: mpirun's environment.
        words: the program of which hosts are asked whether they can run it, empty for none, and
            hosts that are asked first.
        tell: called with what is known of each host, as soon as it is.
    """
    program, *named = words
    path, folder = environ.get("PATH", ""), working_directory(environ)
    wanted = host_shell.lacks(program, path, folder) if program else ()
    inquiries = {host.name: _Inquiry(host) for host in hosts}
    late = dict(inquiries)

    async def inquire(host: HostSnapshot) -> None:
        # Of the launcher's programs only where it has ranks.
        programs = () if host.here and host.may_idle else wanted
        counted = (QUESTION,) if host.counted else ()
        await late[host.name].run(commands, host_shell.ask(*_MEMORY, *programs, *counted))
        tell(late.pop(host.name).facts())

    first = sorted(hosts, key=lambda host: (not host.here, host.name not in named))
    await in_time(map(inquire, first), SECONDS)
    for inquiry in late.values():
        tell(inquiry.facts())
    return {name: one.answer for name, one in inquiries.items() if one.answer}


async def _beside_the_job(
    commands: HostCommands, hosts: Sequence[HostSnapshot], question: str
) -> list[tuple[HostSnapshot, host_shell.HostAnswer]]:
    """Ask hosts while the job runs; who has not answered in time is left out."""
    command, seconds = host_shell.ask(question), _SECONDS_BESIDE_THE_JOB
    tasks = await in_time((commands.run(host, command, seconds) for host in hosts), seconds)
    texts = [None if task.cancelled() else task.result() for task in tasks]
    return [
        (host, host_shell.read(text))
        for host, text in zip(hosts, texts, strict=True)
        if text is not None
    ]


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
