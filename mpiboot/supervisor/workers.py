"""The hosts of a launch: how many ranks they have, and what they answer at the end of the job.

An mpirun is held while ranks save. After a failure each host is queried for what explains it.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, Final, TypeVar

from mpiboot.core import log
from mpiboot.core.facts import HostAnswer
from mpiboot.core.launch_spec import LAUNCH_ID
from mpiboot.core.wording import counted, first_few
from mpiboot.hosts import host_shell
from mpiboot.hosts.dns import NoAddress, Resolver
from mpiboot.hosts.host_shell import JOB_IS_OVER
from mpiboot.network.records import Counters
from mpiboot.ssh.attempt import HostCommand
from mpiboot.ssh.pool import Pool
from mpiboot.supervisor import evidence
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.supervisor.job import HostFacts, RanksLeft
from mpiboot.supervisor.processes import send, unread
from mpiboot.system.process import working_directory
from mpiboot.system.programs import end_tasks, in_thread

SECONDS: Final = 4.0
_SECONDS_DURING_JOB: Final = 20.0  # its hosts are busy, and nobody waits
# After the job many a pod is gone, and an address without a pod answers nothing: within this a SYN
# that was lost is sent again.
LOGIN: Final = 2.0
# Of these seconds, for the answer of a host; then its name is resolved.
_ANSWER_S: Final = 3.0

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


# Other reasons leave unknown whether a name has an address.
_NONE: Final = (NoAddress.NXDOMAIN, NoAddress.NO_RECORD)
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
        self._resolver = Resolver()
        self._idle: dict[str, bool] = {}  # whether a host has no rank, as far as that is known

    async def after_job(
        self, program: str, report: Callable[[HostFacts], None]
    ) -> dict[str, Any] | None:
        """Query all hosts at once for what explains a failure.

        Args:
            program: what hosts check, empty for nothing.
            report: called with what is known of each host, as soon as it is.

        Returns:
            What carried the job's data; None where nobody counts.
        """
        wanted: tuple[str, ...] = ()
        if program:
            folder = await in_thread(working_directory, self._environ)
            wanted = (host_shell.lacks(program, self._environ.get("PATH", ""), folder),)
        counters: dict[str, Counters] = {}

        async def inquire(host: HostSnapshot) -> None:
            # Of the launcher's programs only where it has ranks.
            programs = () if host.here and host.may_idle else wanted
            script = host_shell.ask(host_shell.counts(traffic=bool(host.counted)), *programs)
            if answer := await self._inquire(host, script, report):
                counters[host.name] = answer.counters

        # On a busy machine what resolves names takes a second to load, which is all that is left.
        loading = asyncio.ensure_future(in_thread(import_module, "dns.asyncresolver"))
        await in_time(map(inquire, self.hosts), SECONDS)
        await end_tasks([loading])
        return self._carried(counters, strict=False)

    async def _inquire(
        self, before: HostSnapshot, script: str, report: Callable[[HostFacts], None]
    ) -> HostAnswer | None:
        """Query a host, and where it gives no answer the nameserver; report what is known then."""
        facts = HostFacts(before.name, here=before.here)

        def begin() -> None:
            nonlocal facts
            facts = replace(facts, answered=False)

        try:
            end = await self.pool.run(
                before.reached_as, script, _ANSWER_S, login_seconds=LOGIN, begun=begin
            )
            if end.answer is not None:
                facts = evidence.facts_of(before, answer := host_shell.read(end.answer))
                return answer
            facts = replace(facts, why="" if end.status else end.error)
            if before.dns:  # no nameserver knows what became of an address
                found = await self._resolver.resolve(before.dns)
                if found.addresses or found.reason in _NONE:
                    facts = replace(facts, gone=evidence.moved(before, found.addresses))
            return None
        finally:
            report(facts)

    async def ranks(self) -> dict[str, HostAnswer]:
        """Count each host's ranks, and name their MPI libraries; give the answers by host.

        Hosts that do not answer are left out. The number is None where a worker with mpiboot of
        this version shows no process of the launch. Another host that shows none is left out, too:
        they may be hidden there.
        """
        queried = [host for host in self.hosts if not (host.here and host.may_idle)]
        command = host_shell.ask(host_shell.query("ranks", self._environ[LAUNCH_ID]))
        outputs = await self._run_on(queried, command, _SECONDS_DURING_JOB)
        answers = [(host, host_shell.read(output)) for host, output in outputs]
        found = {
            host.name: answer
            for host, answer in answers
            if answer.ranks is not None or (host.mpiboot and answer.version)
        }
        self._idle = {name: not answer.ranks for name, answer in found.items()}
        return found

    async def _run_on(
        self, hosts: Sequence[HostSnapshot], script: str, seconds: float
    ) -> list[tuple[HostSnapshot, str]]:
        """Run a script on hosts at once; give the outputs of those where it succeeded in time."""
        login = LOGIN if seconds != _SECONDS_DURING_JOB else seconds
        run = partial(self.pool.run, script=script, seconds=seconds, login_seconds=login)
        tasks = await in_time((run(host.reached_as) for host in hosts), seconds)
        outputs = (None if task.cancelled() else task.result().answer for task in tasks)
        return [(host, out) for host, out in zip(hosts, outputs, strict=True) if out is not None]

    def stop_ranks(self, number: int) -> list[Coroutine[Any, Any, StopScript]]:
        """Give what signals the ranks of each host to save and end, this one's too."""
        mark = f"{LAUNCH_ID}={self._environ[LAUNCH_ID]}"
        command = host_shell.stop_ranks(number, mark)
        return [StopScript.start(self.pool, host, command) for host in self.hosts]

    async def notify(self, attempt: str, hold: float | None, why: str) -> None:
        """Notify those that run mpiboot how the job has ended.

        Args:
            attempt: the launcher's name for workers.
            hold: as for ``host_shell.job_failed``.
            why: the reason; empty after a good end.
        """
        order = host_shell.job_failed(attempt, hold, why) if why else host_shell.ask(JOB_IS_OVER)
        workers = [host for host in self.hosts if host.mpiboot]
        await self._run_on(workers, order, SECONDS)

    async def count(self, *, strict: bool) -> dict[str, Any] | None:
        """Read the counters of ports and links after a job that ended well.

        Args:
            strict: whether the job's exit code depends on them.

        Returns:
            What carried the job's data; None where nobody counts.
        """
        hosts = [host for host in self.hosts if host.counted]
        script = host_shell.ask(host_shell.counts(traffic=True))
        outputs = await self._run_on(hosts, script, SECONDS_FOR_PROOF if strict else SECONDS)
        found = {host.name: host_shell.read(text).counters for host, text in outputs}
        return self._carried(found, strict=strict)

    def _carried(self, counters: Mapping[str, Counters], *, strict: bool) -> dict[str, Any] | None:
        idle = self._idle
        hosts = [
            replace(host, may_idle=idle.get(host.name, True)) if idle else host
            for host in self.hosts
            if host.counted
        ]
        return evidence.judge_transport(hosts, counters, strict=strict) if hosts else None


_POLL_S: Final = 0.1
_COUNT_EVERY_S: Final = 0.25
# For a login, and for the first answer: half of the grace that jobs have by default. A host that
# gives none has lost its ranks, or they can't be signalled.
_LOGIN_S: Final = 10.0


class StopScript:
    """``host_shell.stop_ranks`` on one host, and how many ranks are left there."""

    def __init__(self, command: HostCommand) -> None:
        self.command = command
        self.left = 0

    @classmethod
    async def start(cls, pool: Pool, host: HostSnapshot, command: str) -> StopScript:
        """Start it there, and wait for its first number, of all ranks that there are."""
        script = cls(await pool.start(host.reached_as, command, _LOGIN_S))
        try:
            await asyncio.wait_for(script._answer(), _LOGIN_S)
        except BaseException:
            script.command.end()
            raise
        return script

    async def count(self) -> None:
        """Count those that are left now; none where the host is lost."""
        if self.left:
            self.left = 0
            self.command.write("")
            await self._answer()

    async def _answer(self) -> None:
        while (line := await self.command.line()) is not None:
            # A login shell may write more.
            if found := re.fullmatch(r"ranks (\d+)", line, re.ASCII):
                self.left = int(found[1])
                return


@dataclass(eq=False)
class Saving:
    """Ranks that save, and an mpirun that is held meanwhile.

    An mpirun that is signalled kills its ranks within a second or two (4.1), or less (5.0), and so
    does one that sees a first rank end badly. So only the ranks are signalled, and mpirun is
    stopped meanwhile: it can't order anything. Its daemons go on. What they send while every rank
    is still there (output, the barrier of MPI_Finalize) mpirun is let run for; once a rank has
    ended it could only be the order to kill the others.

    Attributes:
        scripts: gives what signals each host's ranks, for a signal.
        mpiruns: finds the processes that are mpirun.
        feed: called with each number of ranks that are left.
        ranks: how many were started, where that is known.
    """

    scripts: Callable[[int], Iterable[Coroutine[Any, Any, StopScript]]]
    mpiruns: Callable[[], Iterable[int]]
    feed: Callable[[RanksLeft], None]
    ranks: int | None

    _pids: Sequence[int] = ()
    _task: asyncio.Task[None] | None = None  # None where mpirun is not held
    _found: bool = False  # any rank was seen

    def start(self, number: int) -> None:
        """Hold mpirun and signal the ranks to end."""
        self._pids = list(self.mpiruns())
        self._signal(signal.SIGSTOP)
        self._task = asyncio.ensure_future(self._run(number))

    def release(self) -> None:
        """Let mpirun run, and count ranks no more."""
        task, self._task = self._task, None
        if task:
            self._signal(signal.SIGCONT)
            task.cancel()

    async def _run(self, number: int) -> None:
        scripts: list[StopScript] = []
        try:
            # A host that fails has no ranks that can be signalled: the others' save all the same.
            found = await asyncio.gather(*self.scripts(number), return_exceptions=True)
            scripts += (one for one in found if isinstance(one, StopScript))
            await self._wait_for_ranks(scripts)
        except Exception as error:  # noqa: BLE001 - mpirun is let go, and ends its ranks
            log.failed("letting ranks save", error)
        finally:
            for script in scripts:
                script.command.end()
        if self._task:
            self.feed(RanksLeft(0 if self._found else None))

    async def _wait_for_ranks(self, scripts: list[StopScript]) -> None:
        left = sum(script.left for script in scripts)
        everybody = max(self.ranks or 0, left)
        # The first numbers are of different times: they don't show that all are there.
        waiting = free = False
        while left:
            self._found = True
            self.feed(RanksLeft(left))
            count_at = time.monotonic() + _COUNT_EVERY_S
            while time.monotonic() < count_at:
                await asyncio.sleep(_POLL_S)
                before, waiting = waiting, unread(self._pids)
                if waiting and not before:
                    break  # only a count that begins now shows that it is not about a rank's end
                self._signal(signal.SIGCONT if waiting and free else signal.SIGSTOP)
            self._signal(signal.SIGSTOP)
            await asyncio.gather(*(script.count() for script in scripts), return_exceptions=True)
            left = sum(script.left for script in scripts)
            free = waiting and left >= everybody
            self._signal(signal.SIGCONT if free else signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        send(self._pids, number)


def unused_hosts(
    hosts: Collection[str], ranks: Mapping[str, int | None], without_agent: Collection[str]
) -> str:
    """Name the job's hosts on which mpirun runs nothing: a job of many hosts may run on few.

    Args:
        hosts: the job's remote ones.
        ranks: how many each has, as far as that is known; empty where no host was queried, and then
            hosts without a launch agent are meant.
        without_agent: hosts for which mpirun started none.
    """
    if ranks and not any(ranks.values()):  # none has started yet, or all have ended
        return ""
    unused = [name for name in hosts if not ranks.get(name, name not in without_agent)]
    what = "no rank runs on" if ranks else "mpirun started no daemon on"
    which = f"{what} {len(unused)} of {counted(len(hosts), 'host')}: {first_few(unused)}"
    return which if unused else ""
