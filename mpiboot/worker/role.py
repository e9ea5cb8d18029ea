"""The worker role: serve this pod over SSH, pass its environment on, leave nothing behind.

The process stays as the pod's small parent: no asyncio, no polling, and no third party but psutil,
once there are sessions.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.launch_spec import BY_SIGNAL, LAUNCH_ID, NOTICE
from mpiboot.core.model import (
    Decision,
    Finding,
    Level,
    Source,
    WorkerExit,
)
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import lasting
from mpiboot.network import pod
from mpiboot.ssh import openssh, sessions
from mpiboot.ssh.openssh import WorkerSetup
from mpiboot.ssh.server import WORKER_STATE, WorkerServer
from mpiboot.ssh.sessions import MARK, Sessions
from mpiboot.system import files, keys, process, processes, programs
from mpiboot.system.process import exit_status
from mpiboot.system.spawn import reap

FACTS_FILE: Final = "facts.json"
_CLI: Final = "from mpiboot.cli.main import main; main()"
# Has a copy of the worker answer the words of this shell's command line (worker/answer.py).
_ANSWER: Final = """cd "$MPIBOOT_WORKER_DIR" && rm -f reply-$$ && mkfifo -m 600 reply-$$ || exit
exec 3<> reply-$$  # nobody waits for it to be opened
echo query $$ 1<> sessions && read -r line <&3 && printf '%s\\n' "$line"
rm -f reply-$$
"""
_STOP: Final = "import sys; from mpiboot.worker import answer; answer.stop(*sys.argv[1:])"
_PROBE: Final = "import sys; sys.path.append(sys.argv.pop(1)); import probe; probe.run()"
# Signals that end a worker.
ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


def prepare(
    resolved: Resolved, environ: Mapping[str, str], loop: process.SignalLoop, program: Sequence[str]
) -> WorkerSetup:
    """Prepare what the server needs; become the program where a worker runs here already.

    Raises:
        MpibootError: something that the server needs isn't there.
        SignalledError: a signal ended the wait for the key.
    """
    settings = resolved.settings
    identity = pod.identity(environ)
    named = environ.get("TMPDIR", "")
    files.check_tmpdir(named)
    folder = files.runtime_dir(settings.runtime_dir, identity.uid, "worker", tmpdir=named)
    with suppress(OSError):  # no FIFO there, or no worker that reads it
        os.close(os.open(folder / sessions.FIFO, os.O_WRONLY | os.O_NONBLOCK))
        log.ends_container(False)
        if program:  # of `kubectl exec`
            process.replace(program, environ)
        raise error("usage", "this container's worker runs already")
    environ = {**environ, **files.complete_tmpdir(environ, folder)}
    files.remove_stale_sessions(environ, socket.gethostname(), identity.uid)
    for name in (FACTS_FILE, WORKER_STATE):
        (folder / name).unlink(missing_ok=True)  # an earlier start of this container wrote them
    home = folder / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    place = (settings.ssh_key, (identity.home, environ.get("HOME", "")), identity.uid)
    mounted = keys.wait(*place, settings.timeout, partial(_wait, loop))
    key = keys.load(mounted)
    wanted, api = settings.control_ifname, environ.get(pod.API, "")
    address, reason = pod.control_address(wanted, socket.gethostname(), api=api)
    if not address:
        raise error("interface-missing", f"this pod has no address to serve SSH on: {reason}")
    given = resolved.given["ssh_port"]
    if given.source is Source.DEFAULT:
        port = openssh.choose_port(environ, identity.home, address)
    else:
        port = Decision("ssh-port", str(settings.ssh_port), given.source, str(given))
    write = log.warning if reason.startswith(pod.NO_DEFAULT_ROUTE) else log.debug
    write("control-address", f"control address {address} ({reason})")
    log.debug("ssh-port", f"port {port.value} ({port.reason})")
    session = {**environ, **pod.user_environment(identity, environ, home)}
    if settings.env_profile:
        session, warning = evaluate_profile(settings.env_profile, session)
        if warning:
            log.finding(warning)
    # The last step: the worker removes the copy at its end.
    key = keys.copy(key, folder / "key")
    return WorkerSetup(
        identity=identity,
        folder=folder,
        key=key,
        address=address,
        port=int(port.value),
        token=os.urandom(8).hex(),  # no other worker has it
        keepalive=settings.ssh_keepalive,
        environ=session,
    )


class SignalledError(Exception):
    """A signal, by its number, came that ends this worker."""


def _wait(loop: process.SignalLoop, seconds: float) -> None:
    for number in loop.wait(seconds):
        if number in ENDING:
            raise SignalledError(number)


def write_scripts(folder: Path) -> None:
    """Write the scripts that a launcher may run here."""
    scripts = {
        # Dials other workers, or measures TCP to one. Imported: what is run by its path is compiled
        # anew each time, a quarter of its start.
        "probe": [sys.executable, "-I", "-S", "-c", _PROBE, str(Path(__file__).parent)],
        "doctor": ["env", "MPIBOOT_ROLE=worker", *process.python(_CLI, "doctor")],
        "stop": process.python(_STOP),
    }
    for name, argv in scripts.items():
        files.write_private(folder / name, f'exec {shlex.join(argv)} "$@"\n')
    files.write_private(folder / "answer", _ANSWER)
    # By a script of its own, as earlier workers have it and earlier launchers call it.
    look = 'printf "mpiboot-answer "; exec /bin/sh "$MPIBOOT_WORKER_DIR/answer" look\n'
    files.write_private(folder / "look", look)


def gather_facts(resolved: Resolved, setup: WorkerSetup) -> dict[str, Any]:
    """Gather this pod's facts for the launcher, in a child; log and give the error, if any."""
    from mpiboot.worker import facts  # noqa: PLC0415 - not for the process that stays

    environ = {**setup.environ, "MPIBOOT_WORKER_DIR": str(setup.folder)}
    try:
        facts.write(resolved, environ, setup.folder / FACTS_FILE)
    except Exception as error:  # noqa: BLE001 - a copy of the worker has no other boundary
        from mpiboot.hosts import error_report  # noqa: PLC0415 - as above

        found = error if isinstance(error, MpibootError) else error_report.bug(error)
        error_report.report(found)
        return {"facts_error": found.finding.message}
    return {}


_QUERY: Final = re.compile(rb"query ([1-9]\d{0,6})")


def answer_query(folder: Path, pid: int, look: Callable[[], dict[str, Any]]) -> None:
    """Answer a session's shell, in a child."""
    from mpiboot.worker import answer  # noqa: PLC0415 - not for the process that stays

    answer.reply(folder, pid, look=look)


_PROFILE_LIMIT_S: Final = 10.0
_MAX_SHOWN: Final = 200  # characters
# The shell's own, which any script changes.
_SHELL: Final = frozenset(("_", "PWD", "OLDPWD", "SHLVL", "PPID"))
# Each variable ends with a zero byte; it is read from /proc, as not every env knows -0.
# Of a folder dash reads nothing, and nothing would be reported.
_READER: Final = (
    '{ [ ! -d "$1" ] && . "$1"; } < /dev/null > /dev/null || exit; '
    "command -p cat /proc/self/environ"
)
_HINT: Final = "none of its variables reaches the ranks; run it by hand: sh -c '. SCRIPT; env'"


def evaluate_profile(
    path: str, environ: Mapping[str, str], limit: float = _PROFILE_LIMIT_S
) -> tuple[dict[str, str], Finding | None]:
    """Give the environment as the script leaves it; as it was, and a warning, where it fails.

    Args:
        path: the script; bash reads it where there is one, else sh.
        environ: what it starts with.
        limit: seconds that it may take.
    """
    before = dict(environ)
    path = os.path.abspath(path)  # noqa: PTH100 - the shell would look for a bare name on PATH
    shell = shutil.which("bash", path=environ.get("PATH", "")) or "/bin/sh"
    argv = (shell, "-c", _READER, "profile", path)
    try:
        done = programs.run(argv, limit, environ, errors="surrogateescape")
    except OSError as problem:
        return before, _warning(f"{path} can't be run: {problem.strerror}")
    if done is None:
        return before, _warning(f"{path} took longer than {limit:g} s, and was ended")
    pairs = (item.partition("=") for item in done.stdout.split("\0"))
    # A function that bash exports has a name that no shell can name.
    after = {name: value for name, _, value in pairs if name.isidentifier()}
    if done.status or not after:
        status = 128 - done.status if done.status < 0 else done.status
        how = f"ended with {status}, before its environment could be read"
        words = " ".join(done.stderr[-4 * _MAX_SHOWN :].split())
        shown = "".join(char if char.isprintable() else "?" for char in words)[-_MAX_SHOWN:]
        return before, _warning(f"{path} {how}: {shown}".rstrip(": "))
    # A shell drops variables that it can't name: the script did not unset those.
    unset = {name for name in before.keys() - after.keys() if name.isidentifier()} - _SHELL
    result = {name: value for name, value in before.items() if name not in unset}
    return result | {name: after[name] for name in after.keys() - _SHELL}, None


def _warning(message: str) -> Finding:
    return Finding("env-profile", Level.WARN, f"MPIBOOT_ENV_PROFILE: {message}", hint=_HINT)


_PASSED_ON: Final = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGCONT)
_SIGNALS: Final = (signal.SIGCHLD, *ENDING, *_PASSED_ON)
_END: Final = sessions.GRACE + 3.0  # seconds that the end of everything may take


def run(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> int:
    """Serve until a signal comes or the program ends; the exit code of the container.

    Args:
        resolved: the settings.
        program: what runs beside the SSH server; empty for the server alone.
        environ: the pod's environment.

    Returns:
        The program's exit status (128+n for signal n). Without a program 0 after SIGTERM, which is
        how a worker ends in good order, and 128+n after another signal.

    Raises:
        MpibootError: the worker can't serve, with the reason.
    """
    with ExitStack() as ending:
        loop = process.SignalLoop(_SIGNALS)
        ending.callback(loop.close)
        try:
            setup = prepare(resolved, environ, loop, program)
        except SignalledError as came:
            code = _stopped_by(came.args[0])
        else:
            ending.callback(setup.key.path.unlink, missing_ok=True)
            worker = _WorkerProcess(resolved, program, setup, loop)
            ending.callback(worker.close)
            code = worker.serve()
    log.ended(code, ("program" if program else "signal") if code else "")
    return code


def _stopped_by(number: int) -> int:
    """Log that a signal ends this worker; its exit code."""
    log.info("signal", f"{signal.Signals(number).name}: worker stops")
    return 0 if number == signal.SIGTERM else BY_SIGNAL + number


class _WorkerProcess:
    """The pod's first process: SSH server, sessions, the program beside them, every orphan.

    Every end goes through one state, ENDING (``_deadline`` is set): the ranks save and the program
    ends, for the grace at most, while the server goes on. Then the sessions and the server end.
    """

    def __init__(
        self,
        resolved: Resolved,
        program: tuple[str, ...],
        setup: WorkerSetup,
        loop: process.SignalLoop,
    ) -> None:
        from mpiboot.job import platforms  # noqa: PLC0415 - not for facts

        self._settings = settings = resolved.settings
        self._gather = partial(gather_facts, resolved, setup)
        self._program = program
        self._setup = setup
        self._loop = loop
        text, left = sessions.environment(setup.environ)
        files.write_private(setup.folder / sessions.ENVIRONMENT, text)
        write_scripts(setup.folder)
        if left:
            names = ", ".join(sorted(left))
            log.warning("environment", f"not given to the ranks, as no shell can set it: {names}")
        self._sessions = Sessions(setup.folder, loop, settings.grace, self._read_line)
        path = setup.folder / ATTEMPTS
        self._launchers = Launchers(path, settings.launcher_away, settings.timeout)
        # With a program beside the server it is that program's end that ends the worker.
        self._exit = WorkerExit.NEVER if program else platforms.worker_exit(settings, setup.environ)
        self._server = WorkerServer(settings.sshd, setup, loop, self._sessions)
        self._queries: dict[int, int] = {}  # the shell that waits for the answer of each copy
        self._program_pid = 0
        self._saving = 0  # the process that waits for the ranks' end
        self._deadline: float | None = None  # of ENDING
        self._code = 0

    def serve(self) -> int:
        """Serve until something ends this worker, and its ranks and program have ended."""
        self._server.start()
        while self._deadline is None or self._saving or self._program_pid:
            self._turn()
        return self._finish()

    def _turn(self) -> None:
        """Sleep until something happens, and deal with it."""
        dues = (self._sessions.due, self._server.due, self._deadline, self._idle_end)
        due = min((due for due in dues if due is not None), default=math.inf)
        for number in self._loop.wait(due - time.monotonic()):
            self._signalled(number)
        # Children are reaped at every turn: cheap, and no signal can be missed.
        for pid, status in reap():
            self._child_ended(pid, status)
        if self._server.began_to_listen():
            self._launchers.connected(time.monotonic())  # nobody could come before
            self._fork(self._gather)  # once the server listens: that delays no login
            if self._program and not self._program_pid and self._deadline is None:
                self._program_pid = process.start(self._program, self._setup.environ)
        self._sessions.step()
        self._server.step()
        if len(self._sessions):
            self._launchers.connected(time.monotonic())
        now = time.monotonic()
        idle = self._idle_end
        if idle is not None and idle <= now:
            away = lasting(self._launchers.patience)
            log.info("stop", f"no launcher for {away}; worker stops (MPIBOOT_WORKER_EXIT)")
            self._end(0)
        if self._deadline is not None and self._deadline <= now:
            self._deadline = math.inf
            if self._saving:
                log.warning("signal", "ranks did not end within MPIBOOT_GRACE; stopping them")
            self._end_sessions()
            self._send(signal.SIGKILL)

    def _fork(self, work: Callable[[], object]) -> int:
        try:
            return self._loop.fork(work)
        except OSError as why:
            log.warning("facts", f"can't fork: {why.strerror}")
            return 0

    def _read_line(self, line: bytes) -> None:
        """Read a line that a launcher has sent."""
        if query := _QUERY.fullmatch(line):
            folder, pid = self._setup.folder, int(query[1])
            if copy := self._fork(partial(answer_query, folder, pid, self._gather)):
                self._queries[copy] = pid
            else:
                self._give_up(pid)
            return
        if line != b"over":
            self._launchers.read_line(line, time.monotonic())
            return
        self._launchers.forget()
        if self._exit is not WorkerExit.NEVER and self._deadline is None:
            log.info("stop", "job succeeded; worker stops")
            self._end(0)

    @property
    def _idle_end(self) -> float | None:
        """When this worker ends because no launcher is there; None while one may be."""
        alone = self._deadline is None and not len(self._sessions)
        return self._launchers.due if alone and self._exit is WorkerExit.AFTER_JOB else None

    def _give_up(self, shell: int) -> None:
        """End a shell's wait for an answer that won't come."""
        from mpiboot.worker import answer  # noqa: PLC0415 - as for its copies

        with suppress(OSError):
            answer.write(self._setup.folder, shell, "")

    def _child_ended(self, pid: int, status: int) -> None:
        self._server.child_ended(pid, status)
        if (shell := self._queries.pop(pid, 0)) and status:  # such as one that the kernel killed
            self._give_up(shell)
        if pid == self._saving:
            self._saving = 0
            self._end_sessions()
        elif pid == self._program_pid:
            self._program_pid = 0
            code = exit_status(status)
            log.info("program", f"{self._program[0]} ended with {code}", code=code)
            self._end(code)

    def _signalled(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        self._send(number)
        if number not in ENDING:
            return
        if self._deadline is not None:  # a second signal: no more grace
            self._end_sessions(at_once=True)
        elif self._program_pid:
            log.info("signal", f"{signal.Signals(number).name} is passed on to the program")
            self._end(0)
        else:
            self._end(_stopped_by(number))

    def _end(self, code: int) -> None:
        """Enter ENDING; a program's code replaces that of the signal that was passed on to it."""
        self._code = code
        if self._deadline is not None:
            return
        grace = self._settings.grace
        self._deadline = time.monotonic() + grace
        if len(self._sessions) and grace:
            number = getattr(signal, f"SIG{self._settings.stop_signal}")
            self._saving = self._fork(partial(save_ranks, self._setup, number, grace))
        if not self._saving:
            self._end_sessions()

    def _end_sessions(self, *, at_once: bool = False) -> None:
        """End them, as their ranks have ended or get no more time."""
        if self._saving:
            os.kill(self._saving, signal.SIGTERM)  # not reaped yet: the number is still its own
        self._saving = 0
        self._sessions.end_all(at_once=at_once)

    def _send(self, number: int) -> None:
        if self._program_pid:
            with suppress(ProcessLookupError):
                os.kill(self._program_pid, number)

    def _finish(self) -> int:
        """End the server and every session; what can't be killed is left to the system."""
        self._server.stop()
        self._sessions.end_all()  # those too that began since the others were ended
        self._deadline = time.monotonic() + _END
        while (self._server.pid or len(self._sessions)) and self._deadline != math.inf:
            self._turn()
        return self._code

    def close(self) -> None:
        """Release everything; after an error end the server and the program too."""
        self._send(signal.SIGTERM)
        self._server.close()
        self._sessions.close()


# A file in the worker's folder, a line for each launcher: its name, and how it ended.
ATTEMPTS: Final = "attempts"
_MAX_ATTEMPTS: Final = 100
# "launcher NAME STAYS" and "ended NAME HOLD REASON"; the reason is quoted as in a URL. A script one
# of whose launches failed may go on: its HOLD is "-".
_BEGUN: Final = re.compile(rb"launcher ([\w.@:-]{1,200}) ([01])")
_ENDED: Final = re.compile(rb"ended ([\w.@:-]{1,200}) (\d{1,9}|-) ([\w.~%-]{0,3000})")


class Launchers:
    """What is known of this worker's launchers.

    ``patience`` is how many seconds the next line of one is waited for: while one runs that keeps
    no connection, as a script between two launches, forever.
    """

    def __init__(self, path: Path, away: float, waits: float) -> None:
        """Read what an earlier start of this container has left.

        Args:
            path: the file of earlier launchers.
            away: seconds without a launcher after which this worker may end.
            waits: seconds that a launcher may wait for other hosts, without a line to this one.
        """
        self._path = path
        self._away = away
        self._longest = self.patience = max(away, waits)
        self._running = self._longest  # the patience while the latest one runs
        lines = (line.partition(" ") for line in processes.text(path).splitlines())
        self._seen = {name: why for name, _, why in lines}
        self._silent_since: float | None = None  # None: none was here yet, or one still is

    def read_line(self, line: bytes, now: float) -> None:
        """Read a line that a launcher has sent; any other is ignored.

        Args:
            line: without its end.
            now: the monotonic clock.
        """
        if begun := _BEGUN.fullmatch(line):
            name = begun[1].decode("ascii", "replace")
            self._running = self.patience = math.inf if begun[2] == b"1" else self._longest
            why = ""  # a script went on after a launch of it had ended
        elif ended := _ENDED.fullmatch(line):
            name = ended[1].decode("ascii", "replace")
            self.patience = self._running if ended[2] == b"-" else self._away + float(ended[2])
            why = ended[3].decode("ascii")
        else:
            return
        self._seen.pop(name, None)  # the latest is the last line
        self._silent_since = now
        self._seen[name] = why
        self._write()

    def forget(self) -> None:
        """The job has succeeded: the next launcher starts another one."""
        self._seen.clear()
        self._silent_since = None
        self._write()

    def connected(self, now: float) -> None:
        """Somebody is connected, or was until now."""
        if self._silent_since is not None:
            self._silent_since = now

    @property
    def due(self) -> float | None:
        """When this worker has been without a launcher for too long; None: none was here yet."""
        return None if self._silent_since is None else self._silent_since + self.patience

    def _write(self) -> None:
        self._seen = dict(list(self._seen.items())[-_MAX_ATTEMPTS:])
        lines = (f"{name} {why}\n" for name, why in self._seen.items())
        try:
            files.write_private(self._path, "".join(lines))
        except MpibootError as error:  # such as a full disk: only the next launcher misses it
            log.warning("attempt", f"earlier attempts can't be noted: {error.finding.message}")


# Seconds; its ranks wait for this. A launcher on the same network answers in a millisecond, where
# its node isn't overloaded.
_PATIENCE: Final = 2.0


def launcher(environ: Mapping[str, str], token: str) -> tuple[str, int, str] | None:
    """Read from a daemon's environment which launcher to notify; None where it names none.

    That is where it listens, and the line that it expects, with its name for this host.
    ``token`` begins the marks of this worker's sessions: where pods share their processes (hostPID,
    shareProcessNamespace), others' sessions are seen too, and are left alone. The address is the
    one from which the daemon's SSH connection came.
    """
    port, _, host = environ.get(NOTICE, "").partition("/")
    address = environ.get("SSH_CONNECTION", "").partition(" ")[0]
    is_here = environ.get(MARK, "").startswith(f"{token}-")
    if not (is_here and port.isdigit() and host and address):
        return None
    return address, int(port), f"ending {environ.get(LAUNCH_ID, '')} {host}\n"


def notify_launchers(token: str) -> None:
    """Notify every launcher with daemons in this worker's sessions that this pod is ending."""
    every = {launcher(environ, token) for environ in processes.environments()}
    for address, port, line in filter(None, every):
        with suppress(OSError), socket.create_connection((address, port), _PATIENCE) as connection:
            connection.sendall(line.encode())
            connection.recv(1)


_PAUSE: Final = 0.05  # seconds


def save_ranks(setup: WorkerSetup, number: int, seconds: float) -> None:
    """Signal the ranks of this worker's sessions, and wait until they have ended, in a child."""
    from mpiboot.worker import answer  # noqa: PLC0415 - not for the process that stays

    until = time.monotonic() + seconds
    notify_launchers(setup.token)
    left = answer.stop_ranks(number, f"{MARK}={setup.token}-", str(setup.folder))
    while left and time.monotonic() < until:
        time.sleep(_PAUSE)
        left = answer.running(left)
