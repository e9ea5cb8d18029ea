"""A real worker on loopback in a folder of its own, and real ssh clients that talk to it."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mpiboot.system import files

# The guard of every wait; never a measure.
PATIENCE: Final = 60.0
MAIN: Final = (
    "import os, sys\n"
    "from mpiboot.cli import main as cli\n"
    "sys.exit(cli.run(['worker', '--', *sys.argv[1:]] if sys.argv[1:] else ['worker']))\n"
)
# A passwd file of the test's own: the machine's may name a shell whose start files do anything.
OWN_PASSWD: Final = (
    *("unshare", "--mount", "sh", "-c"),
    'mount --bind "$1" /etc/passwd && shift && exec "$@"',
    "sh",
)
HAVE_SSH: Final = bool(shutil.which("ssh") and shutil.which("ssh-keygen"))
HAVE_SSHD: Final = bool(shutil.which("sshd", path="/usr/sbin:/usr/local/sbin"))
# The shells that are here, as words.
SHELLS: Final = [
    words
    for words in (["dash"], ["bash"], ["bash", "--posix"], ["busybox", "sh"])
    if shutil.which(words[0])
]


@functools.cache
def can_mount() -> bool:
    """Whether this machine lets a test have its own view of /etc/passwd."""
    if os.getuid() != 0 or not shutil.which("unshare"):
        return False
    argv = [*OWN_PASSWD, "/etc/passwd", "true"]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def reserve() -> tuple[int, int]:
    """A port that nobody else is given at any address, and the descriptor by which it is held.

    It is bound and nobody listens: a server may, as all of them set SO_REUSEADDR.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return int(held.getsockname()[1]), held.detach()


def free_port() -> int:
    """A port that nobody else is given as long as this process runs."""
    return reserve()[0]


def make_key(path: Path, *options: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-f", str(path), *options], check=True)
    return path


class Client:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.stdin = process.stdin
        self.stdout = process.stdout

    def numbers(self, count: int) -> list[int]:
        return [int(self.stdout.readline()) for _ in range(count)]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def finish(self, data: bytes = b"") -> bytes:
        return self.process.communicate(data, PATIENCE)[0]


@dataclass
class Worker:
    """A worker process; ``log`` is what it has said so far."""

    folder: Path
    kind: str
    program: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    shell: str = "/bin/sh"
    port: int = 0  # where none is told, one that is held until the worker is stopped
    with_key: bool = True
    own_session: bool = False  # as the job of a terminal that this test doesn't share

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._held = -1
        if not self.port:
            self.port, self._held = reserve()
        self.mount = self.folder / "mount"
        self.key = self.mount / "id_rsa"
        if self.with_key:
            # As the MPI Operator makes it: the name says RSA, and it isn't.
            make_key(self.key, "-t", "ecdsa", "-b", "521", "-m", "PEM")
            self.key.chmod(0o644)
        self.home = self.folder / "home"
        self.home.mkdir(exist_ok=True)
        # What its process is started by; a test may add to it.
        self.wrap = (*OWN_PASSWD, str(self._passwd())) if can_mount() else ()
        self.lines: list[str] = []
        self._heard = threading.Condition()
        self._ended = False

    def _passwd(self) -> Path:
        path = self.folder / "passwd"
        others = Path("/etc/passwd").read_text().partition("\n")[2]
        path.write_text(f"root:x:0:0:root:{self.home}:{self.shell}\n{others}")
        path.chmod(0o644)
        return path

    def start(self) -> Worker:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TMPDIR": str(self.folder),
            "MPIBOOT_SSHD": self.kind,
            "MPIBOOT_SSH_KEY": str(self.mount),
            "MPIBOOT_SSH_PORT": str(self.port),
            "MPIBOOT_CONTROL_IFNAME": "127.0.0.1",
            "MPIBOOT_RUNTIME_DIR": str(self.folder / "run time"),
            "MPIBOOT_TERMINATION_LOG": str(self.folder / "termination-log"),
            "MPIBOOT_LOG_LEVEL": "debug",
            "MPIBOOT_GRACE": "5",
            **self.environ,
        }
        self.process = subprocess.Popen(
            [*self.wrap, sys.executable, "-c", MAIN, *self.program],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            start_new_session=self.own_session,
        )
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()
        return self

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._heard:
                self.lines.append(line.decode("utf-8", "backslashreplace").rstrip("\n"))
                self._heard.notify_all()
        with self._heard:
            self._ended = True
            self._heard.notify_all()

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, words: str) -> str:
        """Wait until a line holds ``words``; that line."""
        with self._heard:
            self._heard.wait_for(lambda: self._ended or words in self.log, PATIENCE)
            found = next((line for line in self.lines if words in line), "")
        assert found, f"{words!r} never came:\n{self.log}"
        return found

    def listens(self) -> Worker:
        self.wait_for("listens on")
        return self

    @property
    def runtime(self) -> Path:
        return self.folder / "run time" / files.container_name() / "worker"

    def argv(
        self, *command: str, key: Path | None = None, user: str = "", options: Sequence[str] = ()
    ) -> list[str]:
        private = key or self.folder / "client"
        if key is None and not private.exists():
            shutil.copy(self.key, private)
            private.chmod(0o600)
        known = self.folder / "known_hosts"
        if not known.exists():
            public = self.key.with_suffix(".pub").read_text()
            known.write_text(f"[127.0.0.1]:{self.port} {public}")
        given = [
            *("-F", "/dev/null", "-T", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes"),
            *("-o", f'UserKnownHostsFile="{known}"', "-o", "LogLevel=ERROR"),
            *("-o", "StrictHostKeyChecking=yes", "-i", str(private), "-p", str(self.port)),
        ]
        who = ["-l", user or self.user] if user or self.user else []
        return ["ssh", *given, *who, *options, "127.0.0.1", *command]

    def ssh(
        self, *command: str, data: bytes = b"", **options: object
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.argv(*command, **options),  # type: ignore[arg-type]
            input=data,
            capture_output=True,
            check=False,
            timeout=PATIENCE,
        )

    def run(self, script: str) -> subprocess.CompletedProcess[bytes]:
        """Run a script as the pool does."""
        return self.ssh("/bin/sh -s", data=f"{script}\n".encode())

    @contextmanager
    def client(self, *command: str) -> Iterator[Client]:
        """A client that talks to its command, and is killed where the test doesn't end it."""
        process = subprocess.Popen(
            self.argv(*command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield Client(process)
        finally:
            process.kill()
            process.communicate()

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        code = self.process.wait(PATIENCE)
        self._thread.join()
        return code

    def stop(self) -> int:
        """End it as a kubelet does; its exit status."""
        if self.process.poll() is None:
            self.signal()
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.wait()
            raise
        finally:
            assert self.process.stdout is not None
            self.process.stdout.close()
            if self._held >= 0:
                os.close(self._held)
                self._held = -1


@contextmanager
def serving(kind: str) -> Iterator[Worker]:
    """A worker that listens, in a folder of its own; it must end well."""
    with tempfile.TemporaryDirectory(prefix="mpiboot-test-") as folder:
        running = Worker(Path(folder), kind).start()
        try:
            yield running.listens()
        finally:
            assert running.stop() == 0, running.log
