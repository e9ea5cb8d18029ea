"""The hosts of a launch: how many ranks they have, why the job failed, what carried its data."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from signal import Signals
from typing import Any, Final, TypeVar

from mpiboot.core.launch_spec import LAUNCH_ID
from mpiboot.hosts import host_shell
from mpiboot.hosts.host_shell import JOB_IS_OVER, HostAnswer
from mpiboot.network import counters
from mpiboot.network.counters import QUESTION
from mpiboot.ssh.commands import CommandEnd
from mpiboot.ssh.pool import Pool
from mpiboot.supervisor import evidence, transport
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.supervisor.saving import StopScript
from mpiboot.supervisor.state import HostFacts
from mpiboot.system.process import working_directory
from mpiboot.system.threads import end_tasks, in_thread

SECONDS: Final = 4.0
_SECONDS_DURING_JOB: Final = 20.0  # its hosts are busy, and nobody waits
# After the job many a pod is gone, and an address without a pod answers nothing: within this a SYN
# that was lost is sent again.
LOGIN: Final = 2.0
# Seconds for an answer of a host whose name has gone.
_AFTER_NAME_S: Final = 0.5

_MEMORY: Final = ("memory", "memory_sizes")

T = TypeVar("T")


async def in_time(work: Iterable[Coroutine[Any, Any, T]], seconds: float) -> list[asyncio.Task[T]]:
    """Run all at once, and give their tasks; who is overdue is cancelled, and all with this."""
    tasks = [asyncio.create_task(item) for item in work]
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
    finally:
        await end_tasks(tasks)
    return tasks


async def _addresses(before: HostSnapshot) -> tuple[str, ...] | None:
    """Resolve a host's name: no address where it has none, None where that is unknown."""
    if not before.dns:  # no nameserver knows what became of an address
        return None
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(before.dns, None, type=socket.SOCK_STREAM)
    except socket.gaierror as why:
        return () if why.errno in (socket.EAI_NONAME, socket.EAI_NODATA) else None
    return tuple(str(item[4][0]) for item in found)


# The job's exit code depends on the answer.
SECONDS_FOR_PROOF: Final = 60.0


class Workers:
    """The hosts of a launch, and what the gate saw of them.

    ``environ`` is mpirun's environment. Queries that fail or hang cost their time and nothing else.
    """

    def __init__(
        self, pool: Pool, hosts: Iterable[HostSnapshot], environ: Mapping[str, str]
    ) -> None:
        self.pool, self.hosts, self._environ = pool, tuple(hosts), environ
        self._idle: dict[str, bool] = {}  # whether a host has no rank, as far as that is known

    async def after_job(
        self, words: Sequence[str], report: Callable[[HostFacts], None]
    ) -> dict[str, Any] | None:
        """Query all hosts at once for what explains a failure.

        Args:
            words: the program that hosts check, empty for none, and hosts that are queried first.
            report: called with what is known of each host, as soon as it is.

        Returns:
            What carried the job's data; None where nobody counts.
        """
        program, *named = words
        wanted: tuple[str, ...] = ()
        if program:
            folder = await in_thread(working_directory, self._environ)
            wanted = (host_shell.lacks(program, self._environ.get("PATH", ""), folder),)
        answers: dict[str, HostAnswer] = {}

        async def inquire(host: HostSnapshot) -> None:
            # Of the launcher's programs only where it has ranks.
            programs = () if host.here and host.may_idle else wanted
            counted = (QUESTION,) if host.counted else ()
            script = host_shell.ask(*_MEMORY, *programs, *counted)
            if answer := await self._inquire(host, script, report):
                answers[host.name] = answer

        first = sorted(self.hosts, key=lambda host: (not host.here, host.name not in named))
        await in_time(map(inquire, first), SECONDS)
        measured = [host for host in self.hosts if host.counted]
        found = {name: answer.counters for name, answer in answers.items()}
        return transport.judge(measured, found, strict=False) if measured else None

    async def _inquire(
        self, before: HostSnapshot, script: str, report: Callable[[HostFacts], None]
    ) -> HostAnswer | None:
        """Query a host, and the nameserver at the same time; report what is known by the end."""
        facts = HostFacts(before.name, here=before.here)
        answer: HostAnswer | None = None

        def begin() -> None:
            nonlocal facts
            facts = replace(facts, answered=False)

        run = self.pool.run(before.reached_as, script, SECONDS, login_seconds=LOGIN, begun=begin)
        querying = asyncio.ensure_future(run)
        resolving = asyncio.ensure_future(_addresses(before))
        try:
            await asyncio.wait((querying, resolving), return_when=asyncio.FIRST_COMPLETED)
            if resolving.done():
                facts = replace(facts, gone=evidence.moved(before, resolving.result()))
            # A name goes before its pod does. One that leads elsewhere needs no longer wait.
            await asyncio.wait((querying,), timeout=_AFTER_NAME_S if facts.gone else None)
            end = querying.result() if querying.done() else CommandEnd()
            if end.answer is not None:
                answer = host_shell.read(end.answer)
                facts = evidence.facts_of(before, answer)
            else:
                facts = replace(facts, why="" if end.status else end.error)
                facts = replace(facts, gone=evidence.moved(before, await resolving))
        finally:
            querying.cancel()
            resolving.cancel()
            report(facts)
        return answer

    async def ranks(self) -> list[tuple[str, int | None, tuple[str, ...]]]:
        """Count each host's ranks, and name their MPI libraries.

        Hosts that do not answer are left out. The number is None where a worker with mpiboot of
        this version shows no process of the launch. Another host that shows none is left out, too:
        they may be hidden there.
        """
        queried = [host for host in self.hosts if not (host.here and host.may_idle)]
        command = host_shell.ask(host_shell.query("ranks", self._environ[LAUNCH_ID]))
        outputs = await self._run_on(queried, command, _SECONDS_DURING_JOB)
        found = list[tuple[str, int | None, tuple[str, ...]]]()
        for host, output in outputs:
            answer = host_shell.read(output)
            if answer.ranks is not None or (host.mpiboot and answer.version):
                found.append((host.name, answer.ranks, answer.libraries))
        self._idle = {name: not number for name, number, _ in found}
        return found

    async def _run_on(
        self,
        hosts: Sequence[HostSnapshot],
        script: str,
        seconds: float,
        login_seconds: float | None = None,
    ) -> list[tuple[HostSnapshot, str]]:
        """Run a script on hosts at once; give the outputs of those where it succeeded in time."""
        runs = (
            self.pool.run(host.reached_as, script, seconds, login_seconds=login_seconds)
            for host in hosts
        )
        tasks = await in_time(runs, seconds)
        outputs = (None if task.cancelled() else task.result().answer for task in tasks)
        return [(host, out) for host, out in zip(hosts, outputs, strict=True) if out is not None]

    def stop_ranks(self, number: int, seconds: float) -> dict[str, Coroutine[Any, Any, StopScript]]:
        """Give what signals the ranks of each host to save and end, this one's too."""
        mark = f"{LAUNCH_ID}={self._environ[LAUNCH_ID]}"
        command = host_shell.stop_ranks(Signals(number), int(seconds) + 1, mark)
        return {host.name: StopScript.start(self.pool, host, command) for host in self.hosts}

    async def notify(self, attempt: str, hold: float | None, why: str) -> None:
        """Notify those that run mpiboot how the job has ended.

        Args:
            attempt: the launcher's name for workers.
            hold: as for ``host_shell.job_failed``.
            why: the reason; empty after a good end.
        """
        over = host_shell.order(JOB_IS_OVER)
        order = host_shell.job_failed(attempt, hold, why) if why else over
        workers = [host for host in self.hosts if host.mpiboot]
        await self._run_on(workers, order, SECONDS, LOGIN)

    async def count(self, *, strict: bool) -> dict[str, Any] | None:
        """Read the counters of ports and links after a job that ended well.

        Args:
            strict: whether the job's exit code depends on them.

        Returns:
            What carried the job's data; None where nobody counts.
        """
        idle = self._idle
        hosts = [
            replace(host, may_idle=idle.get(host.name, True)) if idle else host
            for host in self.hosts
            if host.counted
        ]
        if not hosts:
            return None
        seconds = SECONDS_FOR_PROOF if strict else SECONDS
        outputs = await self._run_on(hosts, host_shell.order(QUESTION), seconds, LOGIN)
        found = {host.name: counters.read(text.splitlines()) for host, text in outputs}
        return transport.judge(hosts, found, strict=strict)
