"""The parent of mpirun: starts it, sleeps until something happens, and makes its end honest.

Entered by exec as ``python -I -S supervise.py FOLDER``; stdlib only, without asyncio, so that a
few megabytes stay. It looks at processes and connections only while mpirun launches; after that
nothing wakes it but signals, agents and the end. It never writes to stdout, and stdin is never
read; what an event means is decided in ``verdicts``.
"""

# ruff: noqa: PTH, E402 - pathlib costs a megabyte; run by path, the package must be found first
from __future__ import annotations

import _thread
import errno
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from mpiboot import log, verdicts
from mpiboot.supervise_end import end_all, reap, send, survivors, tell
from mpiboot.supervise_events import (
    Action,
    AgentConnected,
    AgentEnded,
    AgentStarted,
    DaemonJoined,
    Event,
    Finish,
    Forward,
    JoinsUnseen,
    Kill,
    MpirunEnded,
    Probe,
    Probed,
    RankSeen,
    Say,
    Signalled,
    Start,
    Timer,
    TimerFired,
    Verdict,
)
from mpiboot.supervise_spec import EVENTS, FILE, MARK, SIGNALS, LaunchSpec
from mpiboot.supervise_state import FAMILIES, UNKNOWN, Job, Phase
from mpiboot.supervise_watch import Processes, find_mpiruns, joined, peers, running

# What the kernel writes as the sender of a terminal's signal (siginfo.h: SI_KERNEL).
_SI_KERNEL: Final = 0x80
# Python ignores these for itself, and what is ignored stays so over exec.
_IGNORED: Final = (signal.SIGPIPE, signal.SIGXFSZ)
_LOOK_FIRST, _LOOK_LAST, _LOOK_GROWTH = 0.05, 0.25, 1.5
_PROBE_PATIENCE: Final = 2.0
_WORDS: Final = 3
_NOISE: Final = ("Warning: Permanently added", "debug", "Authenticated to", "Transferred:", "Bytes")
_AGENT_KILLED: Final = 137

Evidence = Callable[[Verdict, LaunchSpec], tuple[str, ...]]


def no_evidence(_verdict: Verdict, _spec: LaunchSpec) -> tuple[str, ...]:
    """Ask nobody."""
    return ()


class Parent:
    """One mpirun, from its start to its verdict."""

    def __init__(self, spec: LaunchSpec, folder: str, environ: Mapping[str, str]) -> None:
        self.spec = spec
        self.folder = folder
        self.child = 0
        self.verdict: Verdict | None = None
        self._environ = environ
        self._remotes = {remote.name: remote for remote in spec.daemons}
        self._family = FAMILIES.get(spec.family, UNKNOWN)
        self._deadlines: dict[Timer, float] = {}
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._agents: dict[int, int] = {}
        self._probes: dict[str, tuple[socket.socket, float]] = {}
        self._rest = b""
        self._look_step, self._look_at = _LOOK_FIRST, 0.0
        # A terminal's Ctrl-C reaches all of its foreground group: with mpirun in ours it gets
        # that, and reads the terminal; without a terminal each signal comes to us alone.
        self._shared = _has_terminal()
        self._state, self._first = verdicts.initial(
            Job(
                self._family,
                tuple(self._remotes),
                spec.launch_timeout,
                spec.grace,
                spec.suspects,
            )
        )

    def run(self, mask: set[signal.Signals | int]) -> Verdict:
        """Start mpirun and wait for the verdict; ``mask`` is the signal mask that it gets."""
        self._fifo = _open_fifo(f"{self.folder}/{EVENTS}")
        self._on(self._fifo, self._read_events)
        self._signals = _listen()
        self._on(self._signals, self._read_signals)
        try:
            self.child = self._spawn(mask)
        except OSError as wrong:
            said = f"{self.spec.argv[0]}: {wrong.strerror}: mpirun was not started"
            return Verdict(127, "program-missing", said)
        self._do(self._first)
        while self.verdict is None:
            self._turn()
        return self.verdict

    def hold(self, seconds: float) -> None:
        """Stay for a look inside, until the time is over or a signal ends it."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(self._signals, select.POLLIN)
            if poll.poll(left * 1000):
                told = os.read(self._signals, 2)[0]
                reap()
                if told not in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2):
                    return

    def _spawn(self, mask: set[signal.Signals | int]) -> int:
        # One call in C: no Python runs in the child, and no copy of this process is made.
        start = os.posix_spawn if "/" in self.spec.argv[0] else os.posix_spawnp
        own = {} if self._shared else {"setpgroup": 0}
        return start(
            self.spec.argv[0],
            self.spec.argv,
            self._environ,
            setsigmask=mask,
            setsigdef=_IGNORED,
            **own,
        )

    def _on(self, handle: int, do: Callable[[], None], events: int = select.POLLIN) -> None:
        self._handlers[handle] = do
        self._poll.register(handle, events)

    def _off(self, handle: int) -> None:
        self._handlers.pop(handle, None)
        try:
            self._poll.unregister(handle)
        except KeyError:
            return

    def _turn(self) -> None:
        launching = self._state.phase is Phase.LAUNCHING
        times = [*self._deadlines.values(), *(until for _, until in self._probes.values())]
        if launching:
            times.append(self._look_at)
        wait = None if not times else max(0.0, min(times) - time.monotonic()) * 1000
        for handle, _ in self._poll.poll(wait):
            do = self._handlers.get(handle)
            if do:
                do()
        now = time.monotonic()
        for timer, when in list(self._deadlines.items()):
            if when <= now and self._deadlines.pop(timer, None) is not None:
                self._feed(TimerFired(timer))
        for host, (_, until) in list(self._probes.items()):
            if until <= now:
                self._answered(host, reachable=False, said=f"no answer in {_PROBE_PATIENCE:g} s")
        if launching and self.verdict is None and self._look_at <= now:
            self._look()

    def _feed(self, event: Event) -> None:
        self._state, actions = verdicts.step(self._state, event)
        self._do(actions)

    def _do(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            match action:
                case Start(timer=timer, seconds=seconds):
                    self._deadlines[timer] = time.monotonic() + seconds
                case Forward(number=number):
                    pids = {self.child, *find_mpiruns(self.child, Processes())}
                    send(sorted(pids), number)
                case Kill():
                    found = survivors(self.child, self.folder, reaped=False)
                    send([self.child, *found], signal.SIGKILL)
                case Probe(host=host):
                    self._ask(host)
                case Say(level=level, event=event, said=said, host=host):
                    say = {"debug": log.debug, "warning": log.warning}.get(level, log.info)
                    say(event, f"{host}: {said}" if host else said, host=host)
                case Finish(verdict=verdict):
                    self.verdict = verdict
        for timer in self._deadlines.keys() - self._state.pending:
            del self._deadlines[timer]

    # What comes in

    def _read_signals(self) -> None:
        told = os.read(self._signals, 512)
        for number, kernel in zip(told[::2], told[1::2], strict=True):
            if number == signal.SIGCHLD:
                self._reap()
            else:
                log.info("signal", f"got {signal.Signals(number).name}")
                self._feed(Signalled(number, direct=bool(kernel) and self._shared))

    def _reap(self) -> None:
        for pid, status in reap():
            if pid != self.child:
                continue
            self._read_events()  # what was told before mpirun ended comes before its end
            code = os.waitstatus_to_exitcode(status)
            self._feed(MpirunEnded(max(code, 0), max(-code, 0)))

    def _read_events(self) -> None:
        while True:
            try:
                data = os.read(self._fifo, 65536)
            except BlockingIOError:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._agent_told(line.decode("utf-8", "replace").split())

    def _agent_told(self, words: list[str]) -> None:
        match words:
            case ["started", name, pid] if pid.isdigit():
                self._watch_agent(self._known(name), int(pid))
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
        self._feed(AgentStarted(host, pid))
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            self._agent_gone(host, pid)
            return
        except OSError:  # an older kernel, or a sandbox that forbids it: the agent's word must do
            return
        self._agents[pid] = handle
        self._on(handle, lambda: self._agent_gone(host, pid))

    def _agent_gone(self, host: str, pid: int) -> None:
        """Take in that an agent isn't there any more; one that was killed couldn't tell."""
        handle = self._agents.pop(pid, None)
        if handle is not None:
            self._off(handle)
            os.close(handle)
        self._read_events()
        if (host, pid) in self._state.live:
            self._feed(AgentEnded(host, pid, _AGENT_KILLED, ("its launch agent was killed",)))

    def _agent_ended(self, host: str, pid: int, status: int, told: bool) -> None:  # noqa: FBT001
        words = _words(f"{self.folder}/stderr/{host}") if status else ()
        self._feed(AgentEnded(host, pid, status, words, signalled=told))

    # What is asked

    def _look(self) -> None:
        """Look at mpirun once: what it runs here, and whose daemons are connected to it."""
        state = self._state
        agents = [pid for _, pid in state.live]
        seen = running(self.child, agents, self._family.proxies, Processes())
        self._read_events()  # an agent is started before any rank is
        if seen.program and seen.settled:
            self._feed(RankSeen(seen.program))
        if seen.mpiruns and not state.blind:
            try:
                connections = peers(seen.mpiruns)
            except OSError as wrong:
                self._feed(JoinsUnseen(f"/proc: {wrong.strerror}"))
            else:
                waiting = [item for item in self.spec.daemons if item.name in self._state.waiting]
                for host in joined(waiting, self.spec.daemons, connections):
                    self._feed(DaemonJoined(host))
        self._look_at = time.monotonic() + self._look_step
        self._look_step = min(self._look_step * _LOOK_GROWTH, _LOOK_LAST)

    def _ask(self, host: str) -> None:
        remote = self._remotes.get(host)
        if remote is None:
            self._feed(Probed(host, reachable=None))
            return
        try:
            version = socket.AF_INET6 if ":" in remote.address else socket.AF_INET
            asking = socket.socket(version, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:
            self._feed(Probed(host, reachable=None))
            return
        self._probes[host] = (asking, time.monotonic() + _PROBE_PATIENCE)
        code = asking.connect_ex((remote.address, remote.port))
        if code == errno.EINPROGRESS:
            self._on(asking.fileno(), lambda: self._connected(host, asking), select.POLLOUT)
        else:
            self._answered(host, reachable=code == 0, said=os.strerror(code))

    def _connected(self, host: str, asking: socket.socket) -> None:
        code = asking.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._answered(host, reachable=code == 0, said=os.strerror(code))

    def _answered(self, host: str, *, reachable: bool, said: str) -> None:
        asking, _ = self._probes.pop(host)
        self._off(asking.fileno())
        asking.close()
        self._feed(Probed(host, reachable, said))


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _open_fifo(path: str) -> int:
    try:
        os.mkfifo(path, 0o600)
    except FileExistsError:
        pass
    # For writing too: with a writer of its own it is never at its end.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def _listen() -> int:
    """Take signals in by a thread: only sigwaitinfo tells who sent them.

    The signals are blocked, so that one for PID 1 waits instead of being dropped.
    """
    read, write = os.pipe()

    def wait() -> None:
        while True:
            info = signal.sigwaitinfo(SIGNALS)
            os.write(write, bytes((info.si_signo, info.si_code == _SI_KERNEL)))

    _thread.start_new_thread(wait, ())
    return read


def _words(path: str) -> tuple[str, ...]:
    """Read ssh's own last words."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file.read()[-4096:].splitlines()]
    except OSError:
        return ()
    return tuple(line for line in lines if line and not line.startswith(_NOISE))[-_WORDS:]


def run(folder: str, environ: Mapping[str, str], evidence: Evidence = no_evidence) -> int:
    """Be the parent of the mpirun that a launch folder describes; give the exit code."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS) - SIGNALS
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(f"{folder}/{FILE}", encoding="utf-8") as file:
        spec = LaunchSpec.from_json(file.read())
    log.configure(level=spec.log_level, form=spec.log_format, role="launcher")
    parent = Parent(spec, folder, {**environ, MARK: folder})
    verdict = parent.run(mask)
    left = end_all(parent.child, folder) if parent.child else 0
    if left:
        log.debug("ended", f"ended {left} processes that mpirun left")
    tell(verdict, spec, evidence(verdict, spec) if verdict.code else ())
    by_signal = verdict.said.startswith("ended by")
    if verdict.code and spec.hold_on_failure and not by_signal:
        log.info("hold", f"held for {spec.hold_on_failure:g} s; SIGTERM ends it")
        parent.hold(spec.hold_on_failure)
    return verdict.code


def main() -> NoReturn:
    """Run as a program; whatever goes wrong here is said in one line."""
    try:
        code = run(sys.argv[1], os.environ)
    except Exception as wrong:  # noqa: BLE001 - the last line of defence: never a traceback
        log.error("bug", f"[bug] the parent of mpirun failed: {type(wrong).__name__}: {wrong}")
        code = 70
    # The thread that waits for signals never ends, and nothing here is to be tidied up.
    os._exit(code)


if __name__ == "__main__":
    main()
