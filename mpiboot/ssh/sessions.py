"""The worker's SSH sessions: their environment, and their end when the connection ends.

OpenSSH sends no hang-up to a session without a terminal: ranks whose launcher was killed would live
on. Ended are an MPI's daemons with their ranks, by the session's mark in their environment, which
only a login with a launch ID has, and what is still in the login's POSIX session. What has called
setsid(2) in a login without a launch ID is free, as with plain sshd.
"""

from __future__ import annotations

import os
import re
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
from mpiboot.system.os_calls import process_handle
from mpiboot.system.process import SignalLoop
from mpiboot.system.processes import RunningProcess

MARK: Final = "MPIBOOT_SESSION"


@dataclass(slots=True, eq=False)
class Session:
    """A session: its mark, its leader, and the process that stands for its connection."""

    mark: str
    leader: int
    identity: int
    connection: int = -1  # pidfd, where the system has any
    look_from: float | None = None  # monotonic clock; None: it is still connected
    looked_empty: bool = False  # nobody was found at the last look
    deadline: float | None = None
    victims: dict[int, int] = field(default_factory=dict)  # pid -> pidfd (-1: none to be had)


def session_processes(
    session: Session, running: Mapping[int, RunningProcess], marks: Mapping[int, str]
) -> set[int]:
    """Choose the processes that end with a session: the marked, and its POSIX session. Pure."""
    leader = running.get(session.leader)
    # A later process may have got the leader's number, and then its session is another one.
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
# The session's own, set by its sshd and not by the pod.
_OWN: Final = frozenset(
    ("PWD", "OLDPWD", "SHLVL", "_", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "MAIL")
)
# Names that some /bin/sh refuses to set, which would end the session before it begins.
_READ_ONLY: Final = frozenset(
    ("UID", "EUID", "PPID", "BASHOPTS", "SHELLOPTS", "BASH_VERSINFO", "OPTIND", "LINENO")
)
# A process that a command leaves in the background may be about to call setsid(2) when the command
# and its connection have ended: it has this time, on a busy node too.
_SETTLE: Final = 1.0
# While a process executes a new program, its environment reads as empty: it is looked for twice.
_SECOND_LOOK: Final = 0.2
# Lines of the FIFO: "begin MARK LEADER CONNECTION" and "end MARK"; process numbers have at most
# seven digits (PID_MAX_LIMIT).
_BEGIN: Final = re.compile(rb"begin (\S+) ([1-9]\d{0,6}) ([1-9]\d{0,6})")
_END: Final = re.compile(rb"end (\S+)")


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
        quoted = "'" + value.replace("'", "'\\''") + "'"
        lines.append(f"export {name}={quoted}\n")
    return "".join(lines), tuple(refused)


def read_begin(line: bytes) -> tuple[str, int, int] | None:
    """Read the line of a new session: mark, leader, connection.

    None for any other line: the worker goes on, whatever is written to its FIFO. Pure.
    """
    begin = _BEGIN.fullmatch(line)
    if begin is None:
        return None
    return begin[1].decode("ascii", "replace"), int(begin[2]), int(begin[3])


class Sessions:
    """Learns of sessions by a FIFO, and ends what each leaves behind with its connection."""

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
            loop: what listens.
            grace: seconds between TERM and KILL for what a lost connection leaves behind, which may
                be saving; not less than GRACE.
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
        self._dirty = False
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
            if begun := read_begin(line):
                self._on_begin(*begun)
            elif ended := _END.fullmatch(line):
                if session := self._sessions.get(ended[1].decode("ascii", "replace")):
                    self._on_end(session)
            else:
                self._other_lines(line)
        except Exception as wrong:  # noqa: BLE001 - a FIFO that nobody reads fills, and sessions hang
            log.failed("a line of a session's", wrong)

    def _on_begin(self, mark: str, leader: int, connection: int) -> None:
        found = processes.find(leader)
        session = Session(mark, leader, found.identity if found else -1)
        self._sessions[mark] = session
        self.begun += 1
        log.debug("session", f"session {mark} begins", leader=leader)
        watch = None
        # A shell whose connection ended before it began is the child of what adopts orphans.
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
        """Begin to end every session, or with ``at_once`` kill what is still there of them."""
        self._grace = min(self._grace, GRACE)
        latest = 0.0 if at_once else time.monotonic() + self._grace
        for session in self._sessions.values():
            self._on_end(session)
            session.look_from = 0.0
            if at_once or (session.deadline or 0.0) > latest:
                session.deadline = latest
        self._dirty = True

    @property
    def due(self) -> float | None:
        """When ``step`` must be called next (monotonic clock); None: not at all."""
        if self._dirty:
            return 0.0
        limits = (item.deadline or item.look_from for item in self._sessions.values())
        return min((limit for limit in limits if limit is not None), default=None)

    def step(self) -> None:
        """Look at the sessions that are ending: signal what is left, forget those that are gone."""
        due, now = self.due, time.monotonic()
        if due is None or due > now:
            return
        self._dirty = False
        sessions = tuple(self._sessions.values())
        ending = [one for one in sessions if one.look_from is not None and one.look_from <= now]
        running = processes.table()
        # Older processes too: no clock that may be set tells which ones started before a session.
        marks = {pid: processes.environ(pid).get(MARK, "") for pid in running}
        for session in ending:
            members = session_processes(session, running, marks) - {os.getpid()}
            for pid in [pid for pid, watch in session.victims.items() if watch < 0]:
                if pid not in members:
                    del session.victims[pid]
            if not members and not session.victims:
                if session.looked_empty:
                    log.debug("session", f"session {session.mark} has ended")
                    del self._sessions[session.mark]
                else:
                    session.looked_empty = True
                    session.deadline = time.monotonic() + _SECOND_LOOK
                continue
            if session.looked_empty:
                session.looked_empty, session.deadline = False, None
            self._signal(session, [running[pid] for pid in sorted(members)])

    def _signal(self, session: Session, members: list[RunningProcess]) -> None:
        now = time.monotonic()
        if session.deadline is None:
            session.deadline = now + self._grace
        late = session.deadline <= now
        if late:
            session.deadline = now + self._grace  # looked at once more, for what can't be killed
        for member in members:
            fresh = member.pid not in session.victims
            if not fresh and not late:
                continue
            if fresh and not self._watch(session, member):
                self._dirty = True
                continue
            # A stopped process takes its TERM only when it goes on.
            watch = session.victims[member.pid]
            for number in (signal.SIGKILL,) if late else (signal.SIGTERM, signal.SIGCONT):
                with suppress(OSError):
                    if watch >= 0:
                        signal.pidfd_send_signal(watch, number)
                    elif processes.find(member.pid) == member:
                        os.kill(member.pid, number)

    def _watch(self, session: Session, member: RunningProcess) -> bool:
        """Watch a process that is going to be ended; False where it has ended already."""
        try:
            watch = process_handle(member.pid)
        except ProcessLookupError:
            return False
        found = processes.find(member.pid)
        if found is None or found.identity != member.identity:
            if watch is not None:
                os.close(watch)
            return False
        session.victims[member.pid] = -1 if watch is None else watch
        if watch is not None:
            self._loop.on(watch, partial(self._on_exit, session, member.pid))
        return True

    def _on_exit(self, session: Session, pid: int) -> None:
        descriptor = session.victims.pop(pid)
        self._loop.off(descriptor)
        os.close(descriptor)
        if not session.victims:
            self._dirty = True  # look again: it may have left a child

    def close(self) -> None:
        """Stop listening; what is still running is left."""
        self._loop.off(self._fifo)
        os.close(self._fifo)
