"""The worker's SSH sessions: their environment, and their end when the connection ends.

OpenSSH sends no SIGHUP to a session without a terminal: ranks whose launcher was killed would live
on. Killed are MPI daemons and their ranks, found by the session's mark in their environment (only
logins with a launch ID have one), and whatever is still in the login's POSIX session. A process
that called setsid(2) in a login without a launch ID survives, as with plain sshd.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import mpiboot
from mpiboot.core import log
from mpiboot.system import files, processes
from mpiboot.system.process import SignalLoop, process_handle
from mpiboot.system.processes import RunningProcess

MARK: Final = "MPIBOOT_SESSION"


@dataclass(slots=True, eq=False)
class Session:
    """An SSH session: its mark, its leader, and the process that holds its connection."""

    mark: str
    leader: int
    identity: int
    connection: int = -1  # pidfd, where the system has any
    look_from: float | None = None  # monotonic clock; None: it is still connected
    looked_empty: bool = False  # the last check found no process
    deadline: float | None = None  # SIGKILL from here on (monotonic clock)
    signalled: set[int] = field(default_factory=set)  # identities


def session_processes(
    session: Session, running: Mapping[int, RunningProcess], marks: Mapping[int, str]
) -> set[int]:
    """Choose the processes to kill with a session: by mark or by POSIX session. Pure."""
    leader = running.get(session.leader)
    # The leader's PID may have been reused; then it leads another session.
    reused = leader is not None and leader.identity != session.identity
    return {
        pid
        for pid, item in running.items()
        if marks.get(pid) == session.mark or (item.session == session.leader and not reused)
    }


ENVIRONMENT: Final = "session.env"
FIFO: Final = "sessions"
WRAPPER: Final = Path(mpiboot.__file__).parent / "libexec" / "session"
# Seconds between TERM and KILL for what is left when the worker ends: ranks had their grace before.
GRACE: Final = 5.0

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Set by each session's sshd, not taken from the pod.
_OWN: Final = frozenset(
    ("PWD", "OLDPWD", "SHLVL", "_", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "MAIL")
)
# Names that some /bin/sh refuses to set, which would end the session before it begins.
_READ_ONLY: Final = frozenset(
    ("UID", "EUID", "PPID", "BASHOPTS", "SHELLOPTS", "BASH_VERSINFO", "OPTIND", "LINENO")
)
# A command's background process may be about to call setsid(2) when the command and its connection
# end: this leaves it enough time, even on a busy node.
_SETTLE: Final = 1.0
# While a process executes a new program, its environment reads as empty: check twice.
_CHECK_S: Final = 0.2
# For what SIGKILL does not end: an uninterruptible sleep.
_CHECK_UNKILLABLE_S: Final = 1.0


def environment(environ: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The pod's environment as lines for a POSIX shell, and the names that no shell can set.

    Names of the session itself (its user, home, shell and connection) are left to it.
    """
    lines, refused = [], []
    for name, value in environ.items():
        if name in _OWN or name.startswith("SSH_") or name == MARK:
            continue
        if not _NAME.fullmatch(name) or name in _READ_ONLY:
            refused.append(name)
            continue
        lines.append(f"export {name}={shlex.quote(value)}\n")
    return "".join(lines), tuple(refused)


class Sessions:
    """Kills what each session leaves behind when its connection ends.

    A FIFO carries "begin MARK LEADER CONNECTION" (the last two are PIDs) and "end MARK".
    """

    def __init__(
        self,
        folder: Path,
        loop: SignalLoop,
        grace: float,
        other_lines: Callable[[bytes], None],
    ) -> None:
        """Make the FIFO in the worker's folder and listen on it.

        Args:
            folder: the worker's own.
            loop: the event loop that reads the FIFO.
            grace: seconds between TERM and KILL for processes of a lost connection, which may be
                saving data; not less than GRACE.
            other_lines: gets the lines that are not about a session.
        """
        files.make_fifo(folder / FIFO)
        # Open for writing too: no end of file when the last session has written.
        self._fifo = os.open(folder / FIFO, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._loop = loop
        self._grace = max(GRACE, grace)
        self._other_lines = other_lines
        self._rest = b""
        self._sessions: dict[str, Session] = {}
        self.begun = 0  # sessions so far
        loop.on(self._fifo, self._read_fifo)

    def __len__(self) -> int:
        return len(self._sessions)

    def _read_fifo(self) -> None:
        try:
            data = os.read(self._fifo, 1 << 16)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._read_line(line)

    def _read_line(self, line: bytes) -> None:
        try:
            match line.decode("ascii", "replace").split(" "):
                case ["begin", mark, leader, connection] if f"{leader}{connection}".isdecimal():
                    self._on_begin(mark, int(leader), int(connection))
                case ["end", mark]:
                    if session := self._sessions.get(mark):
                        self._on_end(session)
                case _:
                    self._other_lines(line)
        except Exception as exc:  # noqa: BLE001 - a FIFO that nobody reads fills, and sessions hang
            log.failed("a line of a session's", exc)

    def _on_begin(self, mark: str, leader: int, connection: int) -> None:
        found = processes.find(leader)
        session = Session(mark, leader, found.identity if found else -1)
        self._sessions[mark] = session
        self.begun += 1
        log.debug("session", f"session {mark} begins", leader=leader)
        watch = None
        # If the connection has already ended, the shell was reparented to one of our ancestors.
        ended = connection in processes.ancestors()
        try:
            watch = None if ended else process_handle(connection)
        except ProcessLookupError:
            ended = True
        if ended:
            self._on_end(session)
        if watch is not None:  # else the embedded server writes a line at the end
            session.connection = watch
            self._loop.on(session.connection, partial(self._on_end, session))

    def _on_end(self, session: Session) -> None:
        if session.connection >= 0:
            self._loop.off(session.connection)
            os.close(session.connection)
            session.connection = -1
        if session.look_from is None:
            session.look_from = time.monotonic() + _SETTLE

    def end_all(self, *, at_once: bool = False) -> None:
        """Begin to end every session; with ``at_once``, SIGKILL their remaining processes."""
        self._grace = min(self._grace, GRACE)
        latest = time.monotonic() + (0.0 if at_once else self._grace)
        for session in self._sessions.values():
            self._on_end(session)
            session.look_from = 0.0
            if at_once or (session.deadline or 0.0) > latest:
                session.deadline = latest

    @property
    def due(self) -> float | None:
        """When ``step`` must be called next (monotonic clock); None: not at all."""
        times = (item.look_from for item in self._sessions.values())
        return min((at for at in times if at is not None), default=None)

    def step(self) -> None:
        """Check the ending sessions: signal remaining processes, drop sessions that have none."""
        now = time.monotonic()
        sessions = tuple(self._sessions.values())
        ending = [one for one in sessions if one.look_from is not None and one.look_from <= now]
        if not ending:
            return
        running = processes.table()
        # Includes older processes: a clock can be set, so start times don't tell them apart.
        marks = {pid: processes.environ(pid).get(MARK, "") for pid in running}
        for session in ending:
            overdue = session.deadline is not None and session.deadline + _CHECK_UNKILLABLE_S <= now
            session.look_from = now + (_CHECK_UNKILLABLE_S if overdue else _CHECK_S)
            members = session_processes(session, running, marks) - {os.getpid()}
            if not members and session.looked_empty:
                log.debug("session", f"session {session.mark} has ended")
                del self._sessions[session.mark]
            session.looked_empty = not members
            if members:
                self._signal(session, [running[pid] for pid in sorted(members)])

    def _signal(self, session: Session, members: list[RunningProcess]) -> None:
        now = time.monotonic()
        if session.deadline is None:
            session.deadline = now + self._grace
        late = session.deadline <= now
        for member in members:
            if member.identity in session.signalled and not late:
                continue
            session.signalled.add(member.identity)
            # A stopped process handles SIGTERM only once it continues.
            for number in (signal.SIGKILL,) if late else (signal.SIGTERM, signal.SIGCONT):
                with suppress(OSError):
                    found = processes.find(member.pid)
                    if found and found.identity == member.identity:
                        os.kill(member.pid, number)

    def close(self) -> None:
        """Stop reading the FIFO; running processes are left alone."""
        self._loop.off(self._fifo)
        os.close(self._fifo)
