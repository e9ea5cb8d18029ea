"""One mpirun: started, slept beside until something happens, and judged.

It looks at processes and connections only while mpirun launches; after that nothing wakes it but
signals, agents and the end. It never writes to stdout, and stdin is never read; what an event
means is decided in ``verdicts``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from mpiboot import log
from mpiboot.parent import mpirun_messages, verdicts
from mpiboot.parent.end import end_all, reap, send, survivors
from mpiboot.parent.events import (
    Action,
    AgentConnected,
    AgentEnded,
    AgentStarted,
    CheckHost,
    DaemonJoined,
    Event,
    Finish,
    HostChecked,
    HostEnding,
    JoinsUnseen,
    KillMpirun,
    MpirunEnded,
    RankEnded,
    RankSeen,
    RanksLeft,
    ReleaseMpirun,
    Say,
    SendSignal,
    Signalled,
    StartTimer,
    StopRanks,
    Timer,
    TimerFired,
    Verdict,
)
from mpiboot.parent.launch_spec import EVENTS, JOB_MARK, NOTICE, LaunchSpec
from mpiboot.parent.loop import EventLoop, HostChecks
from mpiboot.parent.mpirun_messages import MpirunMessages
from mpiboot.parent.mpirun_pipes import MpirunPipe, MpirunPipes, open_stderr
from mpiboot.parent.notice import Notices
from mpiboot.parent.os_calls import (
    has_terminal,
    last_words,
    open_fifo,
    process_handle,
    spawn,
)
from mpiboot.parent.saving import Saving
from mpiboot.parent.signals import Signals, name
from mpiboot.parent.state import FAMILIES, UNKNOWN, Job, Phase
from mpiboot.parent.stderr import Stderr
from mpiboot.parent.unanswered_connections import ConnectionWatch
from mpiboot.parent.unused_hosts import UnusedHosts
from mpiboot.parent.watch import Processes, find_mpiruns, joined, peers, running

_LOOK_FIRST, _LOOK_LAST, _LOOK_GROWTH = 0.05, 0.25, 1.5
_AGENT_KILLED: Final = -signal.SIGKILL
# An mpirun that gives up kills its agents: the one whose ssh has ended by itself comes first.
_AGENT_PATIENCE: Final = 0.5
_PIECE: Final = 65536


class Mpirun:
    """One mpirun, from its start to its verdict."""

    def __init__(
        self,
        spec: LaunchSpec,
        environ: Mapping[str, str],
        loop: EventLoop,
        signals: Signals,
        stderr: Stderr,
    ) -> None:
        """Get ready to start what ``spec`` says; ``environ`` is mpirun's environment."""
        self.spec = spec
        self.folder = spec.folder
        self.child = 0
        self.verdict: Verdict | None = None
        self._environ = environ
        self._loop = loop
        self._signals = signals
        self._stderr = stderr
        self._pipes = MpirunPipes(loop, stderr, self._ranks_ended)
        self._remotes = {remote.name: remote for remote in spec.daemons}
        self._family = FAMILIES.get(spec.family, UNKNOWN)
        self._deadlines: dict[Timer, float] = {}
        self._checks = HostChecks(self._loop, self._answered)
        self._agents: dict[int, int] = {}
        self._real: dict[int, int] = {}
        self._gone: dict[int, tuple[str, float]] = {}
        self._rest = b""
        self._unused = UnusedHosts(spec.left_to_mpirun)
        self._started_by: float | None = None
        seconds = spec.connect_check if spec.daemons else 0.0
        self._connecting = ConnectionWatch(loop, self.folder, environ, seconds)
        self._look_step, self._look_at = _LOOK_FIRST, 0.0
        # A terminal's Ctrl-C reaches all of its foreground group: with mpirun in ours it gets
        # that, and reads the terminal; without a terminal each signal comes to us alone.
        self._shared = has_terminal()
        self._state, self._first = verdicts.initial(
            Job(
                self._family,
                tuple(self._remotes),
                spec.launch_timeout,
                spec.grace,
                spec.obstacles,
                spec.goes_on,
                spec.stop_signal,
            )
        )
        self._notices = Notices(
            loop,
            environ.get(JOB_MARK, ""),
            lambda host: self._feed(HostEnding(self._known(host))),
        )
        self._saving = Saving(
            loop, self._mpiruns, lambda ranks: self._feed(RanksLeft(ranks)), spec.ranks
        )

    def start(self, mask: set[signal.Signals | int]) -> None:
        """StartTimer it, with what it needs beside it; ``mask`` is its signal mask.

        Raises:
            OSError: it can't be started.
        """
        spec = self.spec
        # A FIFO that nobody has open forgets what was written to it.
        self._fifo = open_fifo(f"{self.folder}/{EVENTS}")
        self._loop.on(self._fifo, self._read_events)
        self._loop.on(self._signals.handle, self._read_signals)
        pipe = mpirun_messages.open_pipe(spec.family, self._environ, local=spec.local)
        stderr = open_stderr() if self._family.writes_nul else None
        more = pipe.environ if pipe else {}
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
                stderr=stderr[1] if stderr else None,
            )
        finally:
            if pipe:
                self._pipes.add(MpirunMessages(pipe.started(), self._stderr.write))
            if stderr:
                os.close(stderr[1])
                self._pipes.add(MpirunPipe(stderr[0], self._stderr.write))

    def result(self) -> Verdict:
        """Wait for the end, and judge it."""
        self._do(self._first)
        if self.spec.left_to_mpirun:
            self._started_by = time.monotonic() + self.spec.launch_timeout
        while self.verdict is None:
            self._turn()
        if not self.verdict.code:
            self._name_unused()
        self._notices.close()
        self._connecting.stop()
        self._saving.release()
        # The agents of those that ask the workers now are nobody's concern.
        self._loop.on(self._fifo, self._drain)
        return self._placed(self.verdict)

    def end_left(self) -> int:
        """End what it left on this pod, and pass on what that wrote; give how many there were."""
        left = end_all(self.child, self.folder)
        self._pipes.read_last()
        return left

    def _drain(self) -> None:
        os.read(self._fifo, _PIECE)

    def _placed(self, verdict: Verdict) -> Verdict:
        """Name the host of a rank of which mpirun told none: its table is written late."""
        if verdict.rank is None or verdict.host:
            return verdict
        return replace(
            verdict, host=self._known(mpirun_messages.host_of(self.folder, verdict.rank))
        )

    def _turn(self) -> None:
        launching = self._state.phase is Phase.LAUNCHING
        times = [*self._deadlines.values(), *self._checks.deadlines()]
        times += [until for _, until in self._gone.values()]
        if launching:
            times.append(self._look_at)
        if self._started_by is not None:
            times.append(self._started_by)
        if self._saving.due is not None:
            times.append(self._saving.due)
        goes = self._state.phase is not Phase.ENDING
        if goes and self._connecting.due is not None:
            times.append(self._connecting.due)
        self._loop.wait(min(times, default=None))
        if self._gone:
            self._settle_gone()
        now = time.monotonic()
        for timer, when in list(self._deadlines.items()):
            if when <= now and self._deadlines.pop(timer, None) is not None:
                self._feed(TimerFired(timer))
        self._checks.give_up(now)
        if self._started_by is not None and self._started_by <= now:
            self._started_by = None
            self._name_unused()
        self._saving.look()
        if goes:
            self._connecting.look()
        if launching and self.verdict is None and self._look_at <= now:
            self._look()

    def _name_unused(self) -> None:
        said = self._unused.said(mpirun_messages.hosts_with_ranks(self.folder))
        if said:
            log.warning("unused-hosts", said)

    def _feed(self, event: Event) -> None:
        self._state, actions = verdicts.step(self._state, event)
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
                    self._saving.start(self.folder, self._environ, number, seconds)
                case ReleaseMpirun():
                    self._saving.release()
                case KillMpirun():
                    self._saving.release()
                    found = survivors(self.child, self.folder, reaped=False)
                    send([self.child, *found], signal.SIGKILL)
                case CheckHost(host=host):
                    self._ask(host)
                case Say(level=level, event=event, said=said, host=host):
                    say = {"debug": log.debug, "warning": log.warning}.get(level, log.info)
                    say(event, f"{host}: {said}" if host else said, host=host)
                case Finish(verdict=verdict):
                    self.verdict = verdict
        for timer in self._deadlines.keys() - self._state.pending:
            del self._deadlines[timer]

    def _mpiruns(self) -> list[int]:
        return sorted({self.child, *find_mpiruns(self.child, Processes())})

    # What comes in

    def _read_signals(self) -> None:
        for number, by_terminal in self._signals.read():
            if number == signal.SIGCHLD:
                self._reap()
            else:
                log.info("signal", f"got {name(number)}")
                self._feed(Signalled(number, direct=by_terminal and self._shared))

    def _reap(self) -> None:
        for pid, status in reap():
            if pid != self.child:
                continue
            self._read_events()  # what was told before mpirun ended comes before its end
            self._pipes.read_last()
            code = os.waitstatus_to_exitcode(status)
            self._feed(MpirunEnded(max(code, 0), max(-code, 0)))

    def _read_events(self) -> None:
        while True:
            try:
                data = os.read(self._fifo, _PIECE)
            except BlockingIOError:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._agent_told(line.decode("utf-8", "replace").split())

    def _ranks_ended(self, ends: list[RankEnded]) -> None:
        for found in ends:
            self._feed(replace(found, host=self._known(found.host)))

    def _agent_told(self, words: list[str]) -> None:
        match words:
            case ["started", name, pid] if pid.isdigit():
                self._watch_agent(self._known(name), int(pid))
            case ["running", _, real, pid] if real.isdigit() and pid.isdigit():
                self._real[int(pid)] = int(real)
            case ["connected", name, *_]:
                self._feed(AgentConnected(self._known(name)))
            case ["ended", name, status, pid, *signals] if status.isdigit() and pid.isdigit():
                self._agent_ended(self._known(name), int(pid), int(status), bool(signals))
            case _:
                log.debug("agent", f"not understood: {' '.join(words)!r}")

    def _known(self, name: str) -> str:
        """Find the host that mpirun calls so: some cut names at the first dot."""
        if name in self._remotes:
            return name
        short = [host for host in self._remotes if host.partition(".")[0] == name]
        return short[0] if len(short) == 1 else name

    def _watch_agent(self, host: str, pid: int) -> None:
        self._unused.started(host)
        self._feed(AgentStarted(host, pid))
        try:
            handle = process_handle(pid)
        except ProcessLookupError:
            self._agent_gone(host, pid)
            return
        if handle is None:  # the agent's word must do
            return
        self._agents[pid] = handle
        self._loop.on(handle, lambda: self._agent_gone(host, pid))

    def _agent_gone(self, host: str, pid: int) -> None:
        """Take note that an agent isn't there any more; what it told may not be read yet."""
        handle = self._agents.pop(pid, None)
        if handle is not None:
            self._loop.off(handle)
            os.close(handle)
        self._gone[pid] = (host, time.monotonic())
        try:
            ssh = process_handle(self._real.pop(pid))
        except (KeyError, ProcessLookupError):  # it has ended too
            return
        if ssh is None:
            return
        self._gone[pid] = (host, time.monotonic() + _AGENT_PATIENCE)
        self._loop.on(ssh, lambda: self._ssh_gone(host, pid, ssh))

    def _ssh_gone(self, host: str, pid: int, handle: int) -> None:
        self._loop.off(handle)
        os.close(handle)
        if pid in self._gone:
            self._gone[pid] = (host, time.monotonic())

    def _settle_gone(self) -> None:
        """Take in that an agent was killed: it is gone, and did not tell its end."""
        self._read_events()
        now = time.monotonic()
        for pid, (host, until) in sorted(self._gone.items(), key=lambda item: item[1][1]):
            if (host, pid) not in self._state.agents:
                del self._gone[pid]
            elif until <= now:
                del self._gone[pid]
                said = ("its launch agent was killed",)
                self._feed(AgentEnded(host, pid, _AGENT_KILLED, said, killed=True))

    def _agent_ended(self, host: str, pid: int, status: int, signalled: bool) -> None:  # noqa: FBT001
        words = last_words(f"{self.folder}/stderr/{host}") if status else ()
        self._feed(AgentEnded(host, pid, status, words, signalled=signalled))

    # What is asked

    def _look(self) -> None:
        """Look at mpirun once: what it runs here, and whose daemons are connected to it."""
        state = self._state
        agents = [pid for _, pid in state.agents]
        seen = running(self.child, agents, self._family.proxies, Processes())
        self._read_events()  # an agent is started before any rank is
        if seen.program and seen.settled:
            self._feed(RankSeen(seen.program))
        if seen.mpiruns and not state.joins_unseen:
            try:
                connections = peers(seen.mpiruns)
            except OSError as wrong:
                self._feed(JoinsUnseen(f"/proc: {wrong.strerror}"))
            else:
                waiting = [item for item in self.spec.daemons if item.name in self._state.no_daemon]
                for host in joined(waiting, self.spec.daemons, connections):
                    self._feed(DaemonJoined(host))
        self._look_at = time.monotonic() + self._look_step
        self._look_step = min(self._look_step * _LOOK_GROWTH, _LOOK_LAST)

    def _ask(self, host: str) -> None:
        remote = self._remotes.get(host)
        if remote is None:
            self._feed(HostChecked(host, reachable=None))
            return
        self._checks.ask(host, remote.address, remote.port)

    def _answered(self, host: str, reachable: bool | None, said: str) -> None:  # noqa: FBT001
        self._feed(HostChecked(host, reachable, said))
