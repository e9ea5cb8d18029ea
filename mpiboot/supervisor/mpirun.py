"""One mpirun: started, and supervised to its end.

Events are signals, agents, what mpirun writes, and its end. It never writes to stdout, and stdin is
never read; what an event means is decided in ``job``.

A launch agent reports on a FIFO that it was started, that its ssh is connected and how it ended; of
a session over the pool the pool reports it. One that is killed reports nothing: its process is
watched too. A worker reports on a port that its pod is being terminated.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from mpiboot.core import log
from mpiboot.core.facts import HostAnswer
from mpiboot.core.launch_spec import EVENTS, LAUNCH_ID, NOTICE
from mpiboot.core.model import Finding, Level
from mpiboot.network.worker_network import launcher_addresses
from mpiboot.supervisor import job, output
from mpiboot.supervisor.output import MpirunStreams, OutputWriter
from mpiboot.supervisor.processes import end_all, find_mpiruns, send, survivors
from mpiboot.supervisor.signals import ENDING, Handles, has_terminal
from mpiboot.supervisor.verdict import other_mpi
from mpiboot.supervisor.workers import Saving, Workers, unused_hosts
from mpiboot.system import processes, programs
from mpiboot.system.process import process_handle
from mpiboot.system.programs import in_thread

_KILLED: Final = -signal.SIGKILL
_READ_BYTES: Final = 1 << 20  # as much as a FIFO holds, also where pages have 64 KiB
_MAX_LINES: Final = 3
_TAIL_CHARACTERS: Final = 4096
_NOISE: Final = ("Warning: Permanently added", "debug", "Authenticated to", "Transferred:", "Bytes")


@dataclass(eq=False)
class Agents:
    """Listens to the agents, and makes events of what becomes of them.

    Attributes:
        loop: where the FIFO and the agents' processes are listened to.
        folder: the launch folder.
        hosts: the remote hosts' names.
        running: the agents, by host and pid, whose end is not known yet; ``feed`` changes them.
        feed: called with each event.
    """

    loop: Handles
    folder: str
    hosts: Collection[str]
    running: Collection[tuple[str, int]]
    feed: Callable[[job.Event], None]

    def __post_init__(self) -> None:
        self._of_pool: set[int] = set()  # agents of which the pool reports how the session ended
        self._short: dict[str, str] = {}
        for host in self.hosts:
            label = host.partition(".")[0]
            # Of several hosts that are called so it could be any.
            self._short[label] = label if label in self._short else host
        self._rest, self._fifo = b"", -1

    def listen(self) -> None:
        """Open the FIFO: one that nobody has open forgets what was written to it."""
        # For writing too: with a writer of its own it is never at its end.
        self._fifo = os.open(f"{self.folder}/{EVENTS}", os.O_RDWR | os.O_NONBLOCK)
        self.loop.on(self._fifo, self.read, vital=True)

    def read(self) -> None:
        """Read the agents' reports."""
        try:
            data = os.read(self._fifo, _READ_BYTES)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._parse(line.decode("utf-8", "replace").split())

    def report(self, line: str) -> None:
        """Take in what the pool reports of a session, behind what its agent has written so far."""
        self.loop.now(partial(self._report, line))

    def _report(self, line: str) -> None:
        self.read()
        self._parse(line.split())

    def _parse(self, words: list[str]) -> None:
        match words:
            case ["started", host, pid, *_] if pid.isdigit():
                self._started(job.AgentStarted(self.host_of(host), int(pid)))
            case ["running", _, "-", pid] if pid.isdigit():
                self._of_pool.add(int(pid))
            case ["connected", host]:
                self.feed(job.AgentConnected(self.host_of(host)))
            case ["ended", host, status, pid, *signals] if status.isdigit() and pid.isdigit():
                self._ended(self.host_of(host), int(pid), int(status), bool(signals))
            case _:
                log.debug("agent", f"not understood: {' '.join(words)!r}")

    def host_of(self, name: str) -> str:
        """Find the host that mpirun calls so: some cut names at the first dot."""
        return name if name in self.hosts else self._short.get(name, name)

    def _started(self, event: job.AgentStarted) -> None:
        self.feed(event)
        host, pid = event.host, event.pid
        try:
            handle = process_handle(pid)
        except ProcessLookupError:  # its end may be among the lines that are just being read
            self.loop.later(0.0, partial(self._has_gone, host, pid))
            return
        if handle is not None:  # else its own report must do
            self.loop.on(handle, partial(self._has_gone, host, pid, handle), vital=True)

    def _has_gone(self, host: str, pid: int, handle: int | None = None) -> None:
        """Note that an agent isn't there any more: killed, where it has not reported its end."""
        if handle is not None:
            self.loop.off(handle)
            os.close(handle)
        self.read()
        if (host, pid) in self.running:
            self.feed(job.AgentEnded(host, pid, _KILLED, killed=True))

    def _ended(self, host: str, pid: int, status: int, signalled: bool) -> None:  # noqa: FBT001
        words = last_words(f"{self.folder}/stderr/{host}") if status else ()
        # The pool writes why a session failed; where it wrote nothing the daemon had that status.
        by_daemon = pid in self._of_pool and status == job.SSH_FAILED and not words
        self._of_pool.discard(pid)
        self.feed(
            job.AgentEnded(host, pid, status, words, signalled=signalled, by_daemon=by_daemon)
        )


def last_words(path: str) -> tuple[str, ...]:
    """Read ssh's own last messages, without those that it always writes."""
    tail = processes.text(Path(path))[-_TAIL_CHARACTERS:]
    lines = [line.strip() for line in tail.splitlines()]
    return tuple(line for line in lines if line and not line.startswith(_NOISE))[-_MAX_LINES:]


# A worker sends its line at once; who sends nothing takes no descriptor for long.
_MAX_SILENCE_S: Final = 10.0


def listen(
    mark: str, heard: Callable[[str], None], addresses: Iterable[str], ports: Iterable[int]
) -> list[socket.socket]:
    """Open a port on which workers report that their pod is ending, before its first rank ends.

    A worker whose node is drained has no other way to report it: its SSH connections belong to
    mpirun's daemons.

    Args:
        mark: the launch ID; messages without it are ignored.
        heard: gets the worker's name.
        addresses: this pod's on the control link, by which the workers' daemons were started;
            nothing listens on any other link. All of them have the one port.
        ports: of these the first that is free, 0 for any.

    Returns:
        What listens; nothing where no port can be opened.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, asyncio.TimeoutError):  # a line may be too long
            line = await asyncio.wait_for(reader.readline(), _MAX_SILENCE_S)
            match line.decode("utf-8", "replace").split():
                case ["ending", launch_id, name] if launch_id == mark:
                    heard(name)
        writer.close()  # only now: that is the answer

    servers = list[socket.socket]()
    for port in ports:
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with suppress(OSError):
                servers.append(socket.create_server((address, port), family=family))
                port = int(servers[0].getsockname()[1])  # noqa: PLW2901 - 0 was any
        if servers:
            break
    serving = (asyncio.start_server(serve, sock=each) for each in servers)
    asyncio.gather(*serving).add_done_callback(asyncio.Future.result)  # the loop keeps the servers
    return servers


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
        spec: job.LaunchSpec,
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
        self._finished, self._job = asyncio.Future[None](), job.Job(spec)
        self.streams = MpirunStreams(loop, stderr, self._ranks_ended, self._job)
        self._timers: dict[job.Timer, asyncio.TimerHandle] = {}
        hosts = frozenset(spec.plan.remote_hosts)
        self._agents = Agents(loop, self.folder, hosts, self._job.agents, self._feed)
        workers.pool.report = self._agents.report
        self._counting, self._counted = asyncio.Future[None](), False
        # A terminal's Ctrl-C reaches all of its foreground group: with mpirun in ours it gets
        # that, and reads the terminal; without a terminal each signal comes to us alone.
        self._shared = has_terminal()
        self._saving = Saving(workers.stop_ranks, self._mpiruns, self._feed, spec.plan.ranks)

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

    async def result(self) -> job.Job:
        """Wait for the end; give all that was observed.

        Raises:
            Exception: what handles an event has failed.
        """
        self._do(self._job.begin())
        if not self._job.finished:
            await self._finished
        if self._job.ended == job.MpirunEnded(0):
            with _watching("naming unused hosts"):
                self._name_unused({})
        for timer in self._timers.values():
            timer.cancel()
        self._counting.cancel()
        self._saving.release()
        self._place()
        return self._job

    async def end_left(self) -> None:
        """End it, and what it left on this pod, and pass on what that wrote."""
        await in_thread(partial(end_all, self._mark, self.folder))
        self.streams.read_last()

    def _place(self) -> None:
        """Name the host of a rank where mpirun did not: its table comes last."""
        first = self._job.first_rank
        if first and first.rank is not None and not first.host:
            host = self._agents.host_of(output.host_of(self.folder, first.rank))
            self._job.first_rank = first._replace(host=host)

    async def _count_ranks(self) -> None:
        """Count each host's ranks; name hosts without one, and ranks of another MPI."""
        found: dict[str, HostAnswer] = {}
        with _watching("counting ranks"):
            found = await self._workers.ranks()
        ranks = {host: answer.ranks for host, answer in found.items()}
        self._loop.now(partial(self._feed, job.RanksCounted(ranks)))
        with _watching("naming unused hosts"):
            self._name_unused(ranks)
            libraries = {name for answer in found.values() for name in answer.libraries}
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

    def _feed(self, event: job.Event) -> None:
        self._do(self._job.step(event))
        if self._job.finished and not self._finished.done():
            self._finished.set_result(None)

    def _do(self, actions: Iterable[job.Action]) -> None:
        for action in actions:
            match action:
                case job.StartTimer(timer=timer, seconds=seconds):
                    if before := self._timers.get(timer):
                        before.cancel()
                    self._timers[timer] = self._loop.later(seconds, partial(self._feed, timer))
                case job.SendSignal(number=signal.SIGKILL):
                    self._saving.release()
                    self._killing = asyncio.ensure_future(self._kill())
                case job.SendSignal(number=number):
                    self._saving.release()  # by SIGCONT
                    if number != signal.SIGCONT:
                        send(self._mpiruns(), number)
                case job.StopRanks(number=number):
                    self._saving.start(number)
                case job.CountRanks():
                    self._counting.cancel()
                    self._counting = asyncio.ensure_future(self._count_ranks())
                case job.LogLine(level=level, event=event, message=message, host=host):
                    log.write(level, event, f"{host}: {message}" if host else message, host=host)

    async def _kill(self) -> None:
        """Kill it with all that it started."""
        with _watching("killing mpirun"):
            found = await in_thread(partial(survivors, self._mark, self.folder))
            send([self.child, *found], signal.SIGKILL)

    def _mpiruns(self) -> list[int]:
        """Find mpirun: those with its name, else the child, and whoever started an agent."""
        parents = {processes.parent(pid) for _, pid in self._job.agents}
        found = {*find_mpiruns(self.child), *parents} - {-1, 1, os.getpid()}
        return sorted(found or {self.child})

    # What comes in

    def receive(self, number: int, by_terminal: bool) -> None:  # noqa: FBT001
        """Handle a signal to the launcher."""
        if self._job.finished and number in ENDING:
            self.signalled = self.signalled or number
            return
        log.info("signal", f"got {job.signal_name(number)}")
        if number in ENDING:
            self.streams.hurry()
        self._feed(job.Signalled(number, direct=by_terminal and self._shared))

    def _is_ending(self, host: str) -> None:
        self._feed(job.HostEnding(self._agents.host_of(host)))

    def _has_ended(self, status: int) -> None:
        self._agents.read()  # what was reported before mpirun ended comes before its end
        self.streams.read_last()
        code = os.waitstatus_to_exitcode(status)
        self._feed(job.MpirunEnded(max(code, 0), max(-code, 0)))

    def _ranks_ended(self, ends: list[job.RankEnded]) -> None:
        for found in ends:
            self._feed(found._replace(host=self._agents.host_of(found.host)))
