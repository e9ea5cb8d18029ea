"""A worker's SSH server: what it needs, which one runs, how it is started, tested and replaced.

OpenSSH's sshd serves where it can; the embedded server where it can't, which at times only a login
shows. All of this runs before sshd listens, so nothing heavy is imported.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.model import Decision, Finding, Level, Source, SshKind
from mpiboot.core.records_json import values
from mpiboot.core.setting_types import AUTO, Auto
from mpiboot.core.settings import Resolved
from mpiboot.network import pod
from mpiboot.ssh import openssh, sessions
from mpiboot.ssh.openssh import LISTENING, WorkerSetup
from mpiboot.ssh.sessions import Sessions
from mpiboot.system import files, keys, process, processes
from mpiboot.system.os_calls import exit_status
from mpiboot.worker.state import WORKER_STATE, WorkerState

FACTS_FILE: Final = "facts.json"
LOOK: Final = "look"  # a script that writes the facts anew
_CLI: Final = "from mpiboot.cli.main import main; main()"
PROBE: Final = "probe"  # a script that dials other workers, or measures TCP to one
_PROBE: Final = "import sys; sys.path.append(sys.argv.pop(1)); import probe; probe.run()"
DOCTOR: Final = "doctor"  # a script that makes this pod's own checks
# Signals that end a worker.
ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


def prepare(
    resolved: Resolved, environ: Mapping[str, str], loop: process.SignalLoop
) -> WorkerSetup | None:
    """Prepare what the server needs; None where a signal ends the wait for the key.

    Raises:
        MpibootError: something that the server needs isn't there.
    """
    settings = resolved.settings
    identity = pod.identity(environ)
    named = environ.get("TMPDIR", "")
    files.check_tmpdir(named)
    folder = files.runtime_dir(settings.runtime_dir, identity.uid, "worker", tmpdir=named)
    environ = {**environ, **files.complete_tmpdir(environ, folder)}
    files.remove_stale_sessions(environ, socket.gethostname(), identity.uid)
    for name in (FACTS_FILE, WORKER_STATE):
        (folder / name).unlink(missing_ok=True)  # an earlier start of this container wrote them
    home = folder / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    homes = (identity.home, environ.get("HOME", ""))
    try:
        mounted = keys.wait(
            settings.ssh_key, homes, identity.uid, settings.timeout, partial(_wait, loop)
        )
    except _SignalledError:
        return None
    key = keys.load(mounted)
    outlier = keys.check_authorized_keys(key, mounted)
    if outlier:
        log.finding(outlier)
    wanted = settings.control_ifname
    address, reason = pod.control_address(
        wanted, socket.gethostname(), api=environ.get(pod.API, "")
    )
    if not address:
        raise error("interface-missing", f"this pod has no address to serve SSH on: {reason}")
    given = resolved.given["ssh_port"]
    chosen = None
    if given.source is not Source.DEFAULT:
        chosen = Decision("ssh-port", str(settings.ssh_port), given.source, str(given))
    port = openssh.choose_port(chosen, environ, identity.home, address)
    guessed = reason.startswith(pod.NO_DEFAULT_ROUTE)
    say = log.warning if guessed else log.debug
    say("control-address", f"control address {address} ({reason})")
    log.debug("ssh-port", f"port {port.value} ({port.reason})")
    own = {**environ, **pod.user_environment(identity, environ, home)}
    if settings.env_profile:
        own, wrong = evaluate_profile(settings.env_profile, own, folder)
        if wrong:
            log.finding(wrong)
    # The last step: the worker removes the copy at its end.
    key = keys.copy(key, folder / "key")
    return WorkerSetup(
        identity=identity,
        folder=folder,
        key=key,
        address=address,
        port=int(port.value),
        token=sessions.new_token(),
        keepalive=settings.ssh_keepalive,
        environ=own,
    )


class _SignalledError(Exception):
    """A signal came that ends this worker."""


def _wait(loop: process.SignalLoop, seconds: float) -> None:
    if set(loop.wait(seconds)) & set(ENDING):
        raise _SignalledError


def embedded_argv(setup: WorkerSetup) -> list[str]:
    """Write what the embedded server reads; its argv. Its module is never loaded here."""
    identity = setup.identity
    config: dict[str, str | int | float] = {
        "folder": str(setup.folder),
        "token": setup.token,
        "address": setup.address,
        "port": setup.port,
        "user": identity.user,
        "home": identity.home if identity.known else setup.environ["HOME"],
        "shell": openssh.shell_of(identity),
        "public": setup.key.public,
        "keepalive": setup.keepalive,
    }
    path = setup.folder / "embedded.json"
    files.write_private(path, json.dumps(config))
    return process.python("from mpiboot.ssh.embedded import main; main(sys.argv[1])", str(path))


def write_scripts(folder: Path) -> None:
    """Write the scripts that a launcher may run here."""
    argv = process.python(_CLI, "facts", "--write", str(folder / FACTS_FILE))
    # Run again where the data network is not complete yet.
    files.write_private(folder / LOOK, f"exec {shlex.join(argv)}\n")
    # Imported: what is run by its path is compiled anew each time, a quarter of its start.
    argv = [sys.executable, "-I", "-S", "-c", _PROBE, str(Path(__file__).parent)]
    files.write_private(folder / PROBE, f'exec {shlex.join(argv)} "$@"\n')
    checks = shlex.join(process.python(_CLI, "doctor", "--json"))
    files.write_private(folder / DOCTOR, f"MPIBOOT_ROLE=worker exec {checks}\n")


def gather_facts(resolved: Resolved, setup: WorkerSetup) -> None:
    """Gather this pod's facts for the launcher, in a child, which logs its own errors."""
    from mpiboot.worker import facts  # noqa: PLC0415 - not for the process that stays

    environ = {**setup.environ, "MPIBOOT_WORKER_DIR": str(setup.folder)}
    try:
        facts.run(resolved, environ, as_json=False, path=str(setup.folder / FACTS_FILE))
    except Exception as wrong:  # noqa: BLE001 - a copy of the worker has no other boundary
        from mpiboot.hosts import error_report  # noqa: PLC0415 - as above

        error_report.say(wrong if isinstance(wrong, MpibootError) else error_report.bug(wrong))


_LAST_LINES: Final = 6  # lines of a server's last words
# Seconds that a launcher has to log in before the worker tries its server itself: a login takes as
# much CPU time as all that comes before it.
_TEST_AFTER: Final = 2.0
_ACCEPTED: Final = "Accepted "  # what OpenSSH's auth_log begins with for a login that succeeds
_LOUD: Final = ("error:", "fatal:", "Missing privilege", "Bad configuration", "Could not load")


class ChildOutput:
    """Passes on what a child writes, line by line, until it ends."""

    def __init__(self, loop: process.SignalLoop, call: Callable[[str], None]) -> None:
        """Make the pipe; ``writer`` is for the child, and closed by ``started``."""
        self._loop = loop
        self._call = call
        self._rest = b""
        self.last: deque[str] = deque(maxlen=_LAST_LINES)
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        loop.on(self._reader, self.read)

    def started(self) -> None:
        """Close this process's copy of the child's end."""
        os.close(self.writer)

    def read(self) -> None:
        """Read what is there."""
        while self._reader >= 0:
            try:
                data = os.read(self._reader, 1 << 16)
            except BlockingIOError:
                return
            *lines, self._rest = (self._rest + data).replace(b"\r", b"").split(b"\n")
            for line in lines:
                text = line.decode("utf-8", "backslashreplace")
                self.last.append(text)
                self._call(text)
            if not data:
                self.close()

    def close(self) -> None:
        """Read no more."""
        if self._reader >= 0:
            self._loop.off(self._reader)
            os.close(self._reader)
            self._reader = -1


class SshServer:
    """A server that runs; ``listening`` turns true when it says so.

    ``doubtful`` is whether it has logged anything but logins since: one may have failed.
    """

    def __init__(
        self,
        kind: SshKind,
        argv: Sequence[str],
        environ: Mapping[str, str],
        loop: process.SignalLoop,
    ) -> None:
        """Start it.

        Raises:
            MpibootError: ``program-missing``; it can't be started.
        """
        self.kind = kind
        self.listening = self.doubtful = False
        self.lines = ChildOutput(loop, self._read_line)
        # In a group of its own: on a terminal Ctrl-C is for the worker, which ends it last.
        # Nothing is ever written here: the embedded server sees its end when this process is gone.
        stdin, self._life = os.pipe2(os.O_CLOEXEC)
        writer = self.lines.writer
        try:
            self.pid = process.start(
                argv, environ, streams={0: stdin, 1: writer, 2: writer}, own_group=True
            )
        except BaseException:
            self.lines.close()
            os.close(self._life)
            raise
        finally:
            os.close(stdin)
            self.lines.started()

    def _read_line(self, line: str) -> None:
        if line.startswith(LISTENING):
            self.listening = True
        elif self.listening and not line.startswith(_ACCEPTED):
            self.doubtful = True
        loud = line.startswith(_LOUD) and "[preauth]" not in line
        (log.warning if loud and self.listening else log.debug)("sshd", f"sshd: {line}")

    def last_words(self) -> tuple[str, ...]:
        """Its last lines, once it has ended."""
        self.lines.read()
        return tuple(self.lines.last)

    def stop(self) -> None:
        """Send SIGTERM to it and its connections."""
        for item in processes.table().values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if self.pid in (item.pid, item.parent):
                    os.kill(item.pid, signal.SIGTERM)

    def close(self) -> None:
        """Close what belongs to it, after its end."""
        self.lines.close()
        os.close(self._life)


class WorkerServer:
    """The SSH server of a worker, and the login that tries it once it listens."""

    def __init__(
        self,
        wanted: SshKind | Auto,
        setup: WorkerSetup,
        loop: process.SignalLoop,
        sessions: Sessions,
    ) -> None:
        """Start nothing yet; ``wanted`` is the setting ``sshd``."""
        self.running: SshServer | None = None
        self.helpers: set[int] = set()  # a login
        self._wanted = None if wanted is AUTO else wanted  # None: whichever can serve
        self._setup = setup
        self._loop = loop
        self._sessions = sessions
        self._announced: SshServer | None = None  # the one that was logged as listening
        self._login: tuple[int, ChildOutput] | None = None
        self._test_at: float | None = None
        self._restarted = False
        self._replace_reason = ""  # why the running server is to be replaced by the embedded one
        self._reason = ""  # why the running server is the embedded one

    def began_to_listen(self) -> bool:
        """Whether the server has begun to listen since the last call."""
        running = self.running
        if running is None or not running.listening or running is self._announced:
            return False
        self._announced = running
        self._announce(running)
        return True

    @property
    def due(self) -> float | None:
        """When ``step`` has to be called (monotonic clock)."""
        return self._test_at

    def step(self) -> None:
        """Try the server by a login where nobody has come, or who came may not have got in."""
        running = self.running
        if self._test_at is None or running is None:
            return
        now = self._test_at <= time.monotonic() or running.doubtful
        if now or self._sessions.begun:
            self._test_at = None
            if not self._sessions.begun:
                self._test_login()

    def child_ended(self, pid: int, status: int) -> None:
        """Handle the end of a child, which may be the server or a helper."""
        self.helpers.discard(pid)
        if self.running is not None and pid == self.running.pid:
            self._server_ended(status)
        elif self._login is not None and pid == self._login[0]:
            self._test_login_ended(status, self._login[1])

    def release(self) -> SshServer | None:
        """Give the server to the caller, who ends it: its end is expected from here on."""
        running, self.running, self._test_at = self.running, None, None
        return running

    def start(self) -> None:
        """Start OpenSSH's sshd, or the embedded server with the reason why."""
        setup = self._setup
        if self._wanted is SshKind.EMBEDDED:
            self._start_embedded("MPIBOOT_SSHD=embedded")
            return
        conditions = openssh.conditions(setup.identity, setup.environ.get("PATH", ""))
        against = openssh.reason_against(conditions, setup.identity, str(setup.folder))
        if not against:
            try:
                self._start_openssh(conditions.path)
            except MpibootError as wrong:
                if wrong.finding.check != "program-missing":
                    raise
                against = wrong.finding.message
        if against:
            self._fall_back(against)

    def _fall_back(self, reason: str, evidence: tuple[str, ...] = ()) -> None:
        if self._wanted is SshKind.OPENSSH:
            message = f"OpenSSH's sshd can't serve this pod: {reason}"
            raise error("sshd", message, evidence=evidence, hint=self._hint(SshKind.OPENSSH))
        self._start_embedded(reason)

    def _hint(self, failed: SshKind) -> str | None:
        """Give the hint for a server that can't serve; never to try what has failed already."""
        port = self._setup.port
        if not openssh.can_bind(self._setup.address, port):
            return (
                f"port {port} can't be used here (with hostNetwork another program of the node may "
                "have it): name a free one with MPIBOOT_SSH_PORT, on launcher and workers alike"
            )
        return "its own lines say why" if failed is SshKind.EMBEDDED else None

    def _start_openssh(self, binary: str) -> None:
        setup = self._setup
        argv = openssh.prepare(binary, setup)
        self.running = SshServer(SshKind.OPENSSH, argv, setup.environ, self._loop)

    def _start_embedded(self, reason: str) -> None:
        setup = self._setup
        self._reason = reason
        log.info("sshd", f"the embedded SSH server is used: {reason}", reason=reason)
        argv = embedded_argv(setup)
        self.running = SshServer(SshKind.EMBEDDED, argv, setup.environ, self._loop)

    def _announce(self, running: SshServer) -> None:
        """Log that the server listens."""
        setup = self._setup
        reason = self._reason if running.kind is SshKind.EMBEDDED else ""
        state = WorkerState(os.getpid(), running.kind.value, setup.address, setup.port, reason)
        files.write_private(setup.folder / WORKER_STATE, json.dumps(values(state)))
        where = f"[{setup.address}]" if ":" in setup.address else setup.address
        log.info(
            "sshd",
            f"sshd ({running.kind.value}) listens on {where}:{setup.port} "
            f"as {setup.identity.user}, key {setup.key.fingerprint}",
            sshd=running.kind.value,
            address=setup.address,
            port=setup.port,
        )
        own = running.kind is SshKind.EMBEDDED
        self._test_at = None if own else time.monotonic() + _TEST_AFTER

    def _test_login(self) -> None:
        """Log in to this pod: PAM, sandboxes and user namespaces show only by that."""
        setup = self._setup
        ssh = shutil.which("ssh", path=setup.environ.get("PATH", ""))
        if not ssh:
            return
        argv = openssh.login(ssh, setup)
        lines = ChildOutput(self._loop, lambda line: log.debug("sshd", f"login: {line}"))
        streams = {0: None, 1: lines.writer, 2: lines.writer}
        pid = process.start(argv, setup.environ, streams=streams)
        lines.started()
        self._login = (pid, lines)
        self.helpers.add(pid)

    def _test_login_ended(self, status: int, lines: ChildOutput) -> None:
        lines.read()
        lines.close()
        self._login = None
        if status == 0:
            log.debug("sshd", "a test login to this worker works")
            return
        if self.running is None:  # the worker is ending, and sshd with it
            return
        message = "; ".join(lines.last) or f"ssh ended with {exit_status(status)}"
        if self._wanted is SshKind.OPENSSH or self._sessions.begun:
            # Where any session has begun, sshd works, and replacing it would end that session.
            log.warning("sshd", f"a test login to this worker fails: {message}")
            return
        self._replace_reason = f"a test login through OpenSSH's sshd fails: {message}"
        self.running.stop()

    def _server_ended(self, status: int) -> None:
        """Start it again, once; after one that never listened start the embedded server."""
        gone, self.running, self._test_at = self.running, None, None
        if gone is None:
            return
        words = gone.last_words()
        gone.close()
        if self._replace_reason:
            self._start_embedded(self._replace_reason)
            self._replace_reason = ""
            return
        how = f"it ended with {exit_status(status)}"
        how += f": {words[-1]}" if words else ""
        if gone.kind is SshKind.OPENSSH and not gone.listening:
            self._fall_back(how, words)
            return
        if not gone.listening or self._restarted:
            message = f"the SSH server ({gone.kind.value}) doesn't run: {how}"
            raise error("sshd", message, evidence=words, hint=self._hint(gone.kind))
        self._restarted = True
        log.warning(
            "sshd", f"the SSH server ({gone.kind.value}) ended by itself and is started again"
        )
        if self._wanted is None:
            self._start_embedded(how)
        else:
            self.start()


LIMIT: Final = 10.0
_MOST: Final = 1 << 22  # bytes of an environment, which is twice what a system takes
_KEPT: Final = 200
# The shell's own, which any script changes.
_SHELL: Final = frozenset(("_", "PWD", "OLDPWD", "SHLVL", "PPID"))
# Each variable ends with a zero byte. It is read from /proc, as not every env knows -0; a program's
# first is its own.
_READER: Final = '{ . "$1"; } < /dev/null >&2 || exit; command -p cat /proc/self/environ'
_HINT: Final = "none of its variables reaches the ranks; run it by hand: sh -c '. SCRIPT; env'"


def evaluate_profile(
    path: str, environ: Mapping[str, str], folder: Path, limit: float = LIMIT
) -> tuple[dict[str, str], Finding | None]:
    """Give the environment as the script leaves it; as it was, and a warning, where it fails.

    Args:
        path: the script; bash reads it where there is one, else sh.
        environ: what it starts with.
        folder: private, for what it prints.
        limit: seconds that it may take.
    """
    before = dict(environ)
    path = os.path.abspath(path)  # noqa: PTH100 - the shell would look for a bare name on PATH
    if not os.path.isfile(path):  # noqa: PTH113 - raises nothing
        return before, _warning(f"{path} does not exist")
    shell = shutil.which("bash", path=environ.get("PATH", "")) or "/bin/sh"
    try:
        status, output, complaint = _run(
            (shell, "-c", _READER, "profile", path), environ, folder, limit
        )
    except OSError as wrong:
        return before, _warning(f"{path} can't be run: {wrong.strerror}")
    if status is None:
        return before, _warning(f"{path} took longer than {limit:g} s, and was ended")
    after = _read(output)
    if status or not after:
        how = (
            f"ended with {status}"
            if status
            else "ended before its environment could be read (exit?)"
        )
        return before, _warning(f"{path} {how}{f': {complaint}' if complaint else ''}")
    # A shell drops variables that it can't name: the script did not unset those.
    unset = {name for name in before.keys() - after.keys() if name.isidentifier()} - _SHELL
    kept = {name: value for name, value in before.items() if name not in unset}
    return kept | {name: after[name] for name in after.keys() - _SHELL}, None


def _warning(message: str) -> Finding:
    return Finding("env-profile", Level.WARN, f"MPIBOOT_ENV_PROFILE: {message}", hint=_HINT)


def _read(data: bytes) -> dict[str, str]:
    pairs = (os.fsdecode(item).partition("=") for item in data.split(b"\0") if item)
    # A function that bash exports has a name that no shell can name.
    return {name: value for name, equals, value in pairs if equals and name.isidentifier()}


def _run(
    argv: tuple[str, ...], environ: Mapping[str, str], folder: Path, limit: float
) -> tuple[int | None, bytes, str]:
    """Run until the child ends, though others may hold its streams: status, stdout, last line.

    At the limit all of its session is killed; then there is no status.
    """
    import subprocess  # noqa: PLC0415 - these take 15 ms, and only where the setting is given
    import tempfile  # noqa: PLC0415

    # Files: a pipe would be open as long as what the script has left running.
    with tempfile.TemporaryFile(dir=folder) as out, tempfile.TemporaryFile(dir=folder) as err:
        child = subprocess.Popen(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            code: int | None = child.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            code = None
        out.seek(0)
        err.seek(max(0, err.seek(0, os.SEEK_END) - _MOST))
        data, lines = out.read(_MOST), err.read().decode("utf-8", "replace").split("\n")
    words = next((line.strip() for line in reversed(lines) if line.strip()), "")
    shown = "".join(char if char.isprintable() else "?" for char in words)[-_KEPT:]
    return (128 - code if code and code < 0 else code), data, shown
