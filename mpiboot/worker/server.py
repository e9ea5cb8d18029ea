"""Which SSH server a worker runs, and what becomes of it: started again, or replaced by the other.

OpenSSH's sshd serves where it can; the embedded server where it can't, which at times only a login
shows.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict

from mpiboot.core import log
from mpiboot.core.choices import AUTO, Auto
from mpiboot.core.errors import MpibootError, error
from mpiboot.core.model import SshKind
from mpiboot.ssh import openssh
from mpiboot.ssh import server_port as ports
from mpiboot.ssh.openssh import WorkerSetup
from mpiboot.ssh.server_child import ChildOutput, SshServer
from mpiboot.ssh.sessions import Sessions
from mpiboot.system import executables, files, process
from mpiboot.system.os_calls import exit_status
from mpiboot.system.worker_state import STATE, WorkerState
from mpiboot.worker.setup import embedded_argv


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
        self._asked = None if wanted is AUTO else wanted  # None: whichever can serve
        self._setup = setup
        self._loop = loop
        self._sessions = sessions
        self._told: SshServer | None = None  # the one of which it was told that it listens
        self._login: tuple[int, ChildOutput] | None = None
        self._restarted = False
        self._because = ""  # why the running server is to be replaced by the embedded one
        self._reason = ""  # why the running server is the embedded one

    def listens_now(self) -> bool:
        """Whether it has begun to listen since this was asked last; then it is tried."""
        running = self.running
        if running is None or not running.listening or running is self._told:
            return False
        self._told = running
        self._listens(running)
        return True

    def child_ended(self, pid: int, status: int) -> None:
        """Take in that a child has ended, which may be the server or a helper."""
        self.helpers.discard(pid)
        if self.running is not None and pid == self.running.pid:
            self._ended(status)
        elif self._login is not None and pid == self._login[0]:
            self._proved(status, self._login[1])

    def hand_over(self) -> SshServer | None:
        """Give the server to whoever ends it: from here on its end is what is wanted."""
        running, self.running = self.running, None
        return running

    def start(self) -> None:
        """Start OpenSSH's sshd, or the embedded server with the reason why."""
        setup = self._setup
        if self._asked is SshKind.EMBEDDED:
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
                against = wrong.finding.said
        if against:
            self._fall_back(against)

    def _fall_back(self, reason: str, evidence: tuple[str, ...] = ()) -> None:
        if self._asked is SshKind.OPENSSH:
            said = f"OpenSSH's sshd can't serve this pod: {reason}"
            raise error("sshd", said, evidence=evidence, hint=self._hint(SshKind.OPENSSH))
        self._start_embedded(reason)

    def _hint(self, failed: SshKind) -> str | None:
        """Say what to do where a server can't serve, and never to try what has failed already."""
        port = self._setup.port
        if not ports.can_bind(self._setup.address, port):
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

    def _listens(self, running: SshServer) -> None:
        """Tell that it listens, and try it."""
        setup = self._setup
        because = self._reason if running.kind is SshKind.EMBEDDED else ""
        state = WorkerState(os.getpid(), running.kind.value, setup.address, setup.port, because)
        files.write_private(setup.folder / STATE, json.dumps(asdict(state)))
        where = f"[{setup.address}]" if ":" in setup.address else setup.address
        log.info(
            "sshd",
            f"sshd ({running.kind.value}) listens on {where}:{setup.port} "
            f"as {setup.identity.user}, key {setup.key.fingerprint}",
            sshd=running.kind.value,
            address=setup.address,
            port=setup.port,
        )
        ssh = executables.find("ssh", setup.environ.get("PATH", ""))
        if running.kind is SshKind.OPENSSH and ssh:
            self._prove(ssh)

    def _prove(self, ssh: str) -> None:
        """Log in to ourselves: what facts can't tell (PAM, sandboxes, user namespaces) shows."""
        setup = self._setup
        argv = openssh.login(ssh, setup)
        lines = ChildOutput(self._loop, lambda line: log.debug("sshd", f"login: {line}"))
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        pid = process.start(
            argv, setup.environ, stdin=null, stdout=lines.writer, stderr=lines.writer
        )
        os.close(null)
        lines.started()
        self._login = (pid, lines)
        self.helpers.add(pid)

    def _proved(self, status: int, lines: ChildOutput) -> None:
        lines.read()
        lines.close()
        self._login = None
        if status == 0:
            log.debug("sshd", "a test login to this worker works")
            return
        said = "; ".join(lines.last) or f"ssh ended with {exit_status(status)}"
        if self._asked is SshKind.OPENSSH or self.running is None or self._sessions.begun:
            # Where any session has begun, sshd lets people in, and replacing it would end them.
            log.warning("sshd", f"a test login to this worker fails: {said}")
            return
        self._because = f"a test login through OpenSSH's sshd fails: {said}"
        self.running.stop()

    def _ended(self, status: int) -> None:
        """Start it again once; a server that never listened makes room for the embedded one."""
        gone, self.running = self.running, None
        if gone is None:
            return
        words = gone.last_words()
        gone.close()
        if self._because:
            self._start_embedded(self._because)
            self._because = ""
            return
        how = f"it ended with {exit_status(status)}"
        how += f": {words[-1]}" if words else ""
        if gone.kind is SshKind.OPENSSH and not gone.listening:
            self._fall_back(how, words)
            return
        if not gone.listening or self._restarted:
            said = f"the SSH server ({gone.kind.value}) doesn't run: {how}"
            raise error("sshd", said, evidence=words, hint=self._hint(gone.kind))
        self._restarted = True
        log.warning(
            "sshd", f"the SSH server ({gone.kind.value}) ended by itself and is started again"
        )
        if self._asked is None:
            self._start_embedded(how)
        else:
            self.start()
