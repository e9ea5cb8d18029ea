"""One mpirun: started, and supervised to its end.

Events are signals, agents, what mpirun writes, and its end. It never writes to stdout, and stdin is
never read; what an event means is decided in ``job``.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from mpiboot.core import log
from mpiboot.core.launch_spec import LAUNCH_ID, NOTICE
from mpiboot.core.model import Finding, Level
from mpiboot.network.worker_network import launcher_addresses
from mpiboot.supervisor import output
from mpiboot.supervisor.agents import Agents, listen
from mpiboot.supervisor.job import (
    Action,
    CountRanks,
    Event,
    HostEnding,
    Job,
    LaunchSpec,
    LogLine,
    MpirunEnded,
    RankEnded,
    RanksCounted,
    RanksLeft,
    SendSignal,
    SessionOver,
    Signalled,
    StartTimer,
    StopRanks,
    Timer,
    TimerFired,
    signal_name,
)
from mpiboot.supervisor.output import MpirunStreams, OutputWriter
from mpiboot.supervisor.processes import end_all, find_mpiruns, send, survivors
from mpiboot.supervisor.signals import ENDING, Handles, has_terminal
from mpiboot.supervisor.verdict import other_mpi
from mpiboot.supervisor.workers import Saving, Workers, unused_hosts
from mpiboot.system import processes, programs
from mpiboot.system.programs import in_thread


@contextmanager
def _watching(what: str) -> Iterator[None]:
    """Warn of an exception in what only watches a job, which it never ends."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - only signals and ends are worth an end
        log.failed(what, error)


class Mpirun:
    """One mpirun, from its start to its end."""

    def __init__(
        self,
        spec: LaunchSpec,
        environ: Mapping[str, str],
        loop: Handles,
        stderr: OutputWriter,
        workers: Workers,
    ) -> None:
        """Get ready to start ``spec``; ``environ`` is mpirun's environment."""
        self.spec, self.folder, self.child = spec, spec.where.launch_dir, 0
        self.signalled = 0  # the signal that came after its end: the rest of the end hurries
        self._environ, self._loop, self._workers = environ, loop, workers
        self._mark = environ.get(LAUNCH_ID, "")
        self._finished, self._job = asyncio.Future[None](), Job(spec)
        self.streams = MpirunStreams(loop, stderr, self._ranks_ended, self._job)
        self._timers: dict[Timer, asyncio.TimerHandle] = {}
        hosts = frozenset(spec.plan.remote_hosts)
        self._agents = Agents(loop, self.folder, hosts, self._job.agents, self._feed)
        workers.pool.report = self._agents.report
        self._counting, self._counted = asyncio.Future[None](), False
        # A terminal's Ctrl-C reaches all of its foreground group: with mpirun in ours it gets
        # that, and reads the terminal; without a terminal each signal comes to us alone.
        self._shared = has_terminal()
        self._saving = Saving(workers.stop_ranks, self._mpiruns, self._ranks_left, spec.plan.ranks)

    def start(self, mask: Iterable[int]) -> None:
        """Start it, with what it needs beside it; ``mask`` is its signal mask.

        Raises:
            OSError: it can't be started.
        """
        spec = self.spec
        self._agents.listen()
        saves = spec.settings.grace and spec.plan.remote_hosts
        addresses = launcher_addresses(spec.observed.workers) if saves else ()
        environ = {**self._environ, **self.streams.open(self._environ)}
        for server in listen(self._mark, self._is_ending, addresses, spec.free_ports)[:1]:
            environ[NOTICE] = str(server.getsockname()[1])
        try:
            started = programs.start(
                spec.plan.argv,
                environ,
                mask=mask,
                own_group=not self._shared,
                streams=self.streams.writers,
            )
        finally:
            self.streams.listen()
        self.child = started.pid
        started.on_end(self._has_ended)

    def fail(self, error: Exception) -> None:
        """Let ``result`` raise an exception."""
        if not self._finished.done():
            self._finished.set_exception(error)

    async def result(self) -> Job:
        """Wait for the end; give all that was observed.

        Raises:
            Exception: what handles an event has failed.
        """
        self._do(self._job.begin())
        if not self._job.finished:
            await self._finished
        if self._job.ended == MpirunEnded(0):
            with _watching("what names unused hosts"):
                self._name_unused({})
        for timer in self._timers.values():
            timer.cancel()
        self._counting.cancel()
        self._saving.release()
        self._agents.ignore()
        self._place()
        return self._job

    async def end_left(self) -> int:
        """End it, and what it left on this pod, and pass on what that wrote; give how many."""
        left = await in_thread(partial(end_all, self._mark, self.folder))
        self.streams.read_last()
        return left

    def _place(self) -> None:
        """Name the host of a rank where mpirun did not: its table comes last."""
        first = self._job.first_rank
        if first and first.rank is not None and not first.host:
            host = self._agents.host_of(output.host_of(self.folder, first.rank))
            self._job.first_rank = first._replace(host=host)

    def _start_timer(self, timer: Timer, seconds: float) -> None:
        if before := self._timers.get(timer):
            before.cancel()
        self._timers[timer] = self._loop.later(seconds, partial(self._feed, TimerFired(timer)))

    async def _count_ranks(self) -> None:
        """Count each host's ranks; name hosts without one, and ranks of another MPI."""
        found: list[tuple[str, int | None, tuple[str, ...]]] = []
        with _watching("what counts ranks"):
            found = await self._workers.ranks()
        ranks = {host: number for host, number, _ in found}
        self._loop.now(partial(self._feed, RanksCounted(ranks)))
        with _watching("what names unused hosts"):
            self._name_unused(ranks)
            libraries = {name for *_, names in found for name in names}
            if message := other_mpi(self.spec.observed.mpi.family.value, libraries):
                hint = "build the program with this MPI, or start it by its own MPI's mpirun"
                log.finding(Finding("mpi-versions", Level.WARN, message, hint=hint))

    def _name_unused(self, ranks: Mapping[str, int | None]) -> None:
        """Name hosts without a rank, by how many each has."""
        message = unused_hosts(self._job.hosts, ranks, self._job.no_agent)
        if message and not self._counted:
            obstacles = "".join(f"; {name}: {why}" for name, why in self.spec.plan.obstacles)
            log.warning("unused-hosts", f"{message}{obstacles}")
        self._counted = self._counted or any(ranks.values())

    def _feed(self, event: Event) -> None:
        self._do(self._job.step(event))
        if self._job.finished and not self._finished.done():
            self._finished.set_result(None)

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case StartTimer(timer=timer, seconds=seconds):
                    self._start_timer(timer, seconds)
                case SendSignal(number=signal.SIGKILL):
                    self._saving.release()
                    self._killing = asyncio.ensure_future(self._kill())
                case SendSignal(number=number):
                    self._saving.release()  # by SIGCONT
                    if number != signal.SIGCONT:
                        send(self._mpiruns(), number)
                case StopRanks(number=number, seconds=seconds):
                    self._saving.start(number, seconds)
                case SessionOver(host=host):
                    self._saving.session_over(host)
                case CountRanks():
                    self._counting.cancel()
                    self._counting = asyncio.ensure_future(self._count_ranks())
                case LogLine(level=level, event=event, message=message, host=host):
                    log.write(level, event, f"{host}: {message}" if host else message, host=host)

    async def _kill(self) -> None:
        """Kill it with all that it started."""
        with _watching("what kills mpirun"):
            found = await in_thread(partial(survivors, self._mark, self.folder))
            send([self.child, *found], signal.SIGKILL)

    def _mpiruns(self) -> list[int]:
        """Find mpirun: the child, those with its name below it, and whoever started an agent."""
        parents = {processes.parent(pid) for _, pid in self._job.agents}
        found = {self.child, *find_mpiruns(self.child), *parents}
        return sorted(found - {-1, 1, os.getpid()})

    # What comes in

    def receive(self, number: int, by_terminal: bool) -> None:  # noqa: FBT001
        """Handle a signal to the launcher."""
        if self._job.finished and number in ENDING:
            self.signalled = self.signalled or number
            return
        log.info("signal", f"got {signal_name(number)}")
        if number in ENDING:
            self.streams.hurry()
        self._feed(Signalled(number, direct=by_terminal and self._shared))

    def _ranks_left(self, ranks: int | None) -> None:
        self._feed(RanksLeft(ranks))

    def _is_ending(self, host: str) -> None:
        self._feed(HostEnding(self._agents.host_of(host)))

    def _has_ended(self, status: int) -> None:
        self._agents.read()  # what was reported before mpirun ended comes before its end
        self.streams.read_last()
        code = os.waitstatus_to_exitcode(status)
        self._feed(MpirunEnded(max(code, 0), max(-code, 0)))

    def _ranks_ended(self, ends: list[RankEnded]) -> None:
        for found in ends:
            self._feed(found._replace(host=self._agents.host_of(found.host)))
