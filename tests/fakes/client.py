"""mpiboot's own SSH client as a launch has it: one process, and agents that connect to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mpiboot.core.launch_names import CLIENT_SOCKET
from mpiboot.ssh import client_start, connect
from mpiboot.ssh.config import LaunchHost, SshTimeouts
from mpiboot.system.os_calls import start_listening
from tests.fakes.worker import PATIENCE, Worker

CONNECT: Final = str(Path(connect.__file__))


@dataclass
class Launch:
    """A launch folder with a client that serves one worker under the name ``w``."""

    folder: Path
    worker: Worker
    key: Path | None = None
    pinned: str | None = None
    user: str = "root"
    port: int = 0
    patience: SshTimeouts | None = None
    pid: int = field(default=0, init=False)

    def start(self) -> Launch:
        (self.folder / "stderr").mkdir(parents=True)
        os.mkfifo(self.folder / "events", 0o600)
        self.events = os.open(self.folder / "events", os.O_RDWR | os.O_NONBLOCK)
        private = self.key or self.folder / "key"
        if self.key is None:
            private.write_bytes(self.worker.key.read_bytes())
            private.chmod(0o600)
        public = self.worker.key.with_suffix(".pub").read_text()
        remote = LaunchHost(
            "w",
            "127.0.0.1",
            self.port or self.worker.port,
            self.user,
            public if self.pinned is None else self.pinned,
        )
        config = client_start.ClientConfig(
            hosts=(remote,),
            key=str(private),
            patience=SshTimeouts(3, 30, 10, 3) if self.patience is None else self.patience,
            events=str(self.folder / "events"),
            errors=str(self.folder / "stderr"),
            parent=os.getpid(),
        )
        argv = client_start.write(self.folder, config)
        self.pid = start_listening(argv, os.environ, str(self.folder), CLIENT_SOCKET)
        return self

    def argv(self, *command: str, options: Sequence[str] = ()) -> list[str]:
        return [sys.executable, "-I", "-S", CONNECT, str(self.folder), *options, "w", *command]

    def run(self, *command: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        argv = self.argv(*command)
        return subprocess.run(argv, input=data, capture_output=True, check=False, timeout=PATIENCE)

    def told(self) -> str:
        """What the parent of mpirun would have heard so far."""
        try:
            return os.read(self.events, 65536).decode()
        except BlockingIOError:
            return ""

    def memory(self) -> int:
        """Kilobytes that the client holds."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0])

    def stop(self) -> None:
        os.close(self.events)
        if self.pid:
            os.kill(self.pid, signal.SIGTERM)
            os.waitpid(self.pid, 0)
