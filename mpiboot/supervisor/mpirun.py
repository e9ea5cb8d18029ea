"""One mpirun: started, slept beside until something happens, and judged.

Nothing wakes it but signals, agents, what mpirun writes, and the end. It never writes to stdout,
and stdin is never read; what an event means is decided in ``job``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from mpiboot.core import log
from mpiboot.core.launch_names import LAUNCH_ID, NOTICE
from mpiboot.core.launch_spec import LaunchSpec
from mpiboot.core.model import Finding, Level
from mpiboot.supervisor import job, mpirun_messages
from mpiboot.supervisor.agents import Agents
from mpiboot.supervisor.asking import Queries, Question, Request, Saving
from mpiboot.supervisor.host_watch import Notices, unused_hosts
from mpiboot.supervisor.mpirun_messages import MpirunStreams
from mpiboot.supervisor.output import OutputWriter
from mpiboot.supervisor.processes import (
    Processes,
    end_all,
    find_mpiruns,
    linked_mpi,
    send,
    survivors,
)
from mpiboot.supervisor.signals import ENDING, Signals, has_terminal, name
from mpiboot.supervisor.state import (
    FAMILIES,
    UNKNOWN,
    Action,
    CountRanks,
    Event,
    Finish,
    HostEnding,
    Job,
    KillMpirun,
    MpirunEnded,
    RankEnded,
    RanksCounted,
    RanksLeft,
    ReleaseMpirun,
    Say,
    SendSignal,
    SessionOver,
    Signalled,
    StartTimer,
    State,
    StopRanks,
    Timer,
    TimerFired,
)
from mpiboot.supervisor.verdict import other_mpi, time_limit
from mpiboot.system.loop import EventLoop
from mpiboot.system.os_calls import reap
from mpiboot.system.spawn import spawn


class Mpirun:
    """One mpirun, from its start to its end."""

    def __init__(
        self,
        spec: LaunchSpec,
        environ: Mapping[str, str],
        loop: EventLoop,
        signals: Signals,
        stderr: OutputWriter,
        queries: Queries,
        oom_kills: int,
    ) -> None:
        """Get ready to start what ``spec`` says; ``environ`` is mpirun's environment."""
        self.spec = spec
        self.folder = spec.folder
        self.child = 0
        self.pool = 0  # the process with the hosts' connections
        self.signalled = 0  # the signal that came after its end: whoever ends hurries
        self._environ = environ
        self._loop = loop
        self._signals = signals
        self._oom_kills = oom_kills
        self._remotes = {remote.name: remote for remote in spec.remote_hosts}
        self._family = FAMILIES.get(spec.family, UNKNOWN)
        self.streams = MpirunStreams(
            loop, stderr, self._ranks_ended, spec, self._family, self._one_rank_each
        )
        self._deadlines: dict[Timer, float] = {}
        self._agents = Agents(
            loop, self.folder, self._remotes, lambda: self._state.agents, self._feed
        )
        self._ranks = Question(queries, Request.RANKS, self._ranks_counted)
        self._counted = False
        self._libraries: set[str] = set()
        # A terminal's Ctrl-C reaches all of its foreground group: with mpirun in ours it gets
        # that, and reads the terminal; without a terminal each signal comes to us alone.
        self._shared = has_terminal()
        self._state, self._first = job.initial(
            Job(
                self._family,
                tuple(self._remotes),
                spec.launch_timeout,
                spec.grace,
                spec.obstacles,
                spec.tolerates_failure,
                spec.stop_signal,
                spec.remote,
                launcher_ranks=spec.hosts > len(self._remotes),
                end_late=spec.end_late,
                time_limit=time_limit(environ),
            )
        )
        self._notices = Notices(
            loop,
            environ.get(LAUNCH_ID, ""),
            lambda host: self._feed(HostEnding(self._agents.host_of(host))),
        )
        self._saving = Saving(
            queries, self._mpiruns, lambda ranks: self._feed(RanksLeft(ranks)), spec.ranks
        )

    def start(self, mask: set[signal.Signals | int]) -> None:
        """Start it, with what it needs beside it; ``mask`` is its signal mask.

        Raises:
            OSError: it can't be started.
        """
        spec = self.spec
        self._agents.listen()
        self._loop.on(self._signals.handle, self._read_signals, vital=True)
        more = self.streams.open(self._environ)
        wanted = spec.grace and self._remotes
        port = self._notices.listen(spec.addresses, spec.free_ports) if wanted else 0
        if port:
            more = {**more, NOTICE: str(port)}
        try:
            environ = {**self._environ, **more}
            self.child = spawn(
                spec.argv,
                environ,
                mask,
                own_group=not self._shared,
                streams=self.streams.writers,
            )
        finally:
            self.streams.listen()

    def result(self) -> State:
        """Wait for the end; give all that was observed."""
        self._do(self._first)
        while not self._state.finished:
            self._turn()
        if self._state.ended == MpirunEnded(0):
            self._try("what names unused hosts", lambda: self._name_unused({}))
        self._try("what looks for another MPI", self._check_program)
        self._notices.close()
        self._ranks.stop()
        self._saving.release()
        self._agents.ignore()
        return self._placed()

    def end_left(self, *, running: bool = False) -> int:
        """End what it left on this pod, and pass on what that wrote; give how many there were.

        With ``running`` it is ended, too.
        """
        left = end_all(self.child, self.folder, running=running)
        self.streams.read_last()
        return left

    def _placed(self) -> State:
        """Name the host of a rank of which mpirun told none: its table is written late."""
        first = self._state.first_rank
        if first is None or first.rank is None or first.host:
            return self._state
        host = self._agents.host_of(mpirun_messages.host_of(self.folder, first.rank))
        return replace(self._state, first_rank=replace(first, host=host))

    def _turn(self) -> None:
        times = [*self._deadlines.values(), *self._agents.deadlines()]
        if self._saving.due is not None:
            times.append(self._saving.due)
        self._loop.wait(min(times, default=None))
        self._agents.settle()
        now = time.monotonic()
        for timer, when in list(self._deadlines.items()):
            if when <= now and self._deadlines.pop(timer, None) is not None:
                self._feed(TimerFired(timer))
        if not self._try("what lets ranks save", self._saving.look):
            self._saving.release()  # no mpirun stays held

    @staticmethod
    def _try(what: str, watch: Callable[[], None]) -> bool:
        """Let something watch the job; whether that was without an error, which ends no job."""
        try:
            watch()
        except Exception as wrong:  # noqa: BLE001 - only signals and ends are worth an end
            log.failed(what, wrong)
            return False
        return True

    def _ranks_counted(self, lines: list[str]) -> None:
        """Take in a line of each host: its name, how many ranks it has, their MPI libraries."""
        found = [line.split(" ") for line in lines]
        ranks = {host: int(number) if number.isdigit() else None for host, number, _ in found}
        self._feed(RanksCounted(ranks))
        self._name_unused(ranks)
        self._libraries = {name for *_, names in found for name in filter(None, names.split(","))}
        self._name_other_mpi("the ranks have loaded", self._libraries)

    def _name_unused(self, ranks: Mapping[str, int | None]) -> None:
        """Name hosts without a rank, by how many each has."""
        message = unused_hosts(self._remotes, ranks, self._state.no_agent)
        if message and not self._counted:
            obstacles = "".join(f"; {name}: {why}" for name, why in self.spec.obstacles)
            log.warning("unused-hosts", f"{message}{obstacles}")
        self._counted = self._counted or any(ranks.values())

    def _one_rank_each(self) -> tuple[str, ...]:
        """Give the job's hosts in order where each has one rank: as many as were started."""
        used = [host for host in self._remotes if host not in self._state.no_agent]
        alone = self.spec.ranks == len(used) and self.spec.hosts == len(self._remotes)
        return tuple(used) if alone else ()

    def _name_other_mpi(self, who: str, libraries: Collection[str]) -> None:
        message = other_mpi(self.spec.family, who, libraries)
        if message:
            hint = "build the program with this MPI, or start it by its own MPI's mpirun"
            log.finding(Finding("mpi-versions", Level.WARN, message, hint=hint))

    def _check_program(self) -> None:
        """Look at the file of a program that ended before its ranks were looked at."""
        if not self._libraries:
            found = linked_mpi(self.spec.program, self._environ.get("PATH", ""))
            self._name_other_mpi(f"{self.spec.program} is linked with", found)

    def _feed(self, event: Event) -> None:
        self._state, actions = job.step(self._state, event)
        self._do(actions)

    def _do(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            match action:
                case StartTimer(timer=timer, seconds=seconds):
                    self._deadlines[timer] = time.monotonic() + seconds
                case SendSignal(number=number):
                    self._saving.release()
                    send(self._mpiruns(), number)
                case StopRanks(number=number, seconds=seconds):
                    self._saving.start(number, seconds)
                case SessionOver(host=host):
                    self._saving.session_over(host)
                case ReleaseMpirun():
                    self._saving.release()
                case KillMpirun():
                    self._saving.release()
                    found = survivors(self.child, self.folder, reaped=False)
                    send([self.child, *found], signal.SIGKILL)
                case CountRanks():
                    self._try("what counts ranks", self._ranks.ask)
                case Say(level=level, event=event, message=message, host=host):
                    log.say(level, event, f"{host}: {message}" if host else message, host=host)
                case Finish():  # ``result`` has waited for it
                    pass

    def _mpiruns(self) -> list[int]:
        """Find mpirun: the child, those with its name below it, and whoever started an agent."""
        table = Processes()
        parents = {table.parent(pid) for _, pid in self._state.agents}
        found = {self.child, *find_mpiruns(self.child, table), *parents}
        return sorted(found - {-1, 1, os.getpid()})

    # What comes in

    def _read_signals(self) -> None:
        for number, by_terminal in self._signals.read():
            if number == signal.SIGCHLD:
                self._reap()
            elif self._state.finished and number in ENDING:
                self.signalled = self.signalled or number
            else:
                log.info("signal", f"got {name(number)}")
                if number in ENDING:
                    self.streams.hurry()
                self._feed(Signalled(number, direct=by_terminal and self._shared))

    def _reap(self) -> None:
        # Its end comes before mpirun's, which follows from it.
        for pid, status in sorted(reap(), key=lambda ended: ended[0] != self.pool):
            if pid == self.pool:
                self._agents.pool_ended(status, self._oom_kills)
            if pid != self.child:
                continue
            self._agents.read()  # what was told before mpirun ended comes before its end
            self.streams.read_last()
            code = os.waitstatus_to_exitcode(status)
            self._feed(MpirunEnded(max(code, 0), max(-code, 0)))

    def _ranks_ended(self, ends: list[RankEnded]) -> None:
        for found in ends:
            self._feed(replace(found, host=self._agents.host_of(found.host)))
