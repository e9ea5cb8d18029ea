"""The SSH server as a child of the worker: started, listened to until it listens, stopped.

Which server it is and why is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mpiboot.core import log
from mpiboot.core.model import SshKind
from mpiboot.ssh.openssh import LISTENING
from mpiboot.system import process, processes

_KEPT: Final = 6  # lines of a server's last words
_LOUD: Final = ("error:", "fatal:", "Missing privilege", "Bad configuration", "Could not load")


class ChildOutput:
    """Hands on what a child writes, line by line, until it ends."""

    def __init__(self, loop: process.SignalLoop, call: Callable[[str], None]) -> None:
        """Make the pipe; ``writer`` is for the child, and closed by ``started``."""
        self._loop = loop
        self._call = call
        self._rest = b""
        self.last: deque[str] = deque(maxlen=_KEPT)
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        loop.on(self._reader, self.read)

    def started(self) -> None:
        """Leave the pipe's other end to the child alone."""
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
    """A server that runs; ``listening`` turns true when it says so."""

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
        self.listening = False
        self.lines = ChildOutput(loop, self._said)
        # In a group of its own: on a terminal Ctrl-C is for the worker, which ends it last.
        # Nothing is ever written here: the embedded server sees its end when this process is gone.
        stdin, self._life = os.pipe2(os.O_CLOEXEC)
        writer = self.lines.writer
        try:
            self.pid = process.start(
                argv, environ, stdin=stdin, stdout=writer, stderr=writer, group=True
            )
        except BaseException:
            self.lines.close()
            os.close(self._life)
            raise
        finally:
            os.close(stdin)
            self.lines.started()

    def _said(self, line: str) -> None:
        if line.startswith(LISTENING):
            self.listening = True
        loud = line.startswith(_LOUD) and "[preauth]" not in line
        (log.warning if loud and self.listening else log.debug)("sshd", f"sshd: {line}")

    def last_words(self) -> tuple[str, ...]:
        """What it said last, once it has ended."""
        self.lines.read()
        return tuple(self.lines.last)

    def stop(self) -> None:
        """Ask it and its connections to end."""
        for pid in (self.pid, *processes.children(self.pid)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)

    def close(self) -> None:
        """Let go of what belongs to it, after its end."""
        self.lines.close()
        os.close(self._life)
