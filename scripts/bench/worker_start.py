"""A worker on loopback, as this user, and the sshds that it is compared with."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from common import ROOT, Results
from processes import below, cpu, private

GUARD = 60.0
BARE, WORKER = "sshd -D", "mpiboot worker"
MAIN = (
    "import sys; sys.path[:0] = sys.argv.pop(1).split(':');"
    "from mpiboot.__main__ import main; sys.argv[0] = 'mpiboot'; main()"
)


def listens(port: int) -> bool:
    """Whether a TCP socket over IPv4 listens at a port here; costs less than psutil's look."""
    return f":{port:04X} 00000000:0000 0A " in Path("/proc/net/tcp").read_text()


def paths(source: Path) -> str:
    """Where Python finds an mpiboot and what it needs, without the hooks of an editable install."""
    return ":".join((str(source), *(item for item in sys.path if item.endswith("-packages"))))


def call(source: Path) -> list[str]:
    """How mpiboot is called, as in an image."""
    return [sys.executable, "-I", "-S", "-c", MAIN, paths(source)]


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def until_listening(port: int, child: subprocess.Popen[bytes], started: float) -> float:
    """Milliseconds until a connection is accepted."""
    while time.perf_counter() - started < GUARD:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return (time.perf_counter() - started) * 1000
        if child.poll() not in (None, 0):
            break
        time.sleep(0.0005)
    sys.exit(f"{child.args!r} never listened on port {port}")


class Bench:
    """A folder with keys and configurations, and one measurement of each case."""

    def __init__(self, folder: Path) -> None:
        """Make the keys that exist before the start."""
        self.folder = folder
        self.sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") or sys.exit("no sshd")
        self.key = folder / "mount" / "id_rsa"
        self.key.parent.mkdir()
        self._keygen(self.key)
        self.host_key = folder / "host_key"
        self._keygen(self.host_key)
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)

    def _keygen(self, path: Path) -> None:
        argv = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-m", "PEM", "-N", "", "-f"]
        subprocess.run([*argv, str(path)], check=True)

    def _config(self, port: int, *host_keys: Path) -> Path:
        path = self.folder / "sshd_config"
        lines = [f"Port {port}", "ListenAddress 127.0.0.1", "PidFile none"]
        path.write_text("\n".join([*lines, *(f"HostKey {key}" for key in host_keys)]) + "\n")
        return path

    @contextlib.contextmanager
    def child(
        self, argv: list[str], env: Mapping[str, str] | None = None
    ) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
        """Start a server; when that was."""
        started = time.perf_counter()
        child = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield child, started
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(GUARD)

    def bare(self) -> dict[str, float]:
        """Start sshd alone, with a host key that is there."""
        port = free_port()
        argv = [self.sshd, "-D", "-f", str(self._config(port, self.host_key))]
        with self.child(argv) as (child, started):
            return {BARE: until_listening(port, child, started)}

    def older(self) -> dict[str, float]:
        """Start as the older scripts do; sshd stays in the foreground so that it can be ended."""
        port = free_port()
        prefix = self.folder / f"older-{port}"
        (prefix / "etc" / "ssh").mkdir(parents=True)
        keys = [prefix / "etc" / "ssh" / f"ssh_host_{kind}_key" for kind in ("rsa", "ecdsa")]
        config = self._config(port, *keys)
        script = 'ssh-keygen -A -f "$1" && { "$2" -D -f "$3" & sleep 2; touch "$1/on"; wait; }'
        argv = ["sh", "-c", f"trap 'kill $!' TERM; {script}", "sh", str(prefix), self.sshd]
        with self.child([*argv, str(config)]) as (child, started):
            listening = until_listening(port, child, started)
            while not (prefix / "on").exists():
                time.sleep(0.001)
            on = (time.perf_counter() - started) * 1000
        return {"ssh-keygen -A; sshd (listens)": listening, "ssh-keygen -A; sshd; sleep 2": on}

    def worker(self, kind: str) -> dict[str, float]:
        """Start mpiboot's worker with OpenSSH or with the embedded server."""
        port = free_port()
        with self.child(*self.worker_line(call(ROOT), kind, port)) as (child, started):
            took = until_listening(port, child, started)
        return {WORKER if kind == "openssh" else f"{WORKER} --sshd {kind}": took}

    def bare_cost(self) -> dict[str, float]:
        """Start sshd alone; its CPU time in milliseconds."""
        port = free_port()
        argv = [self.sshd, "-D", "-f", str(self._config(port, self.host_key))]
        with self.child(argv) as (child, _):
            while not listens(port):
                time.sleep(0.005)
            return {BARE: sum(map(cpu, below(child.pid))) * 1000}

    def cost(self, name: str, source: Path, memory: Results) -> dict[str, float]:
        """Start a worker and wait until it rests; its CPU time in milliseconds.

        Nobody connects: one who comes and does not log in makes it try its server by a login.
        """
        run, port = self.folder / "run", free_port()
        shutil.rmtree(run, ignore_errors=True)
        with self.child(*self.worker_line(call(source), "openssh", port)) as (child, started):
            # Of the processes only the worker and its server stay.
            while not list(run.rglob("facts.json")) or len(below(child.pid)) > 2:
                if time.perf_counter() - started > GUARD:
                    sys.exit("the worker never came to rest")
                time.sleep(0.005)
            took = sum(map(cpu, below(child.pid))) * 1000
            time.sleep(1)
            memory.add({name: private(child.pid) / 1024})
        return {name: took}

    def worker_line(
        self, mpiboot: list[str], kind: str, port: int
    ) -> tuple[list[str], dict[str, str]]:
        """A worker's words and environment, by how mpiboot is called."""
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "MPIBOOT_SSHD": kind,
            "MPIBOOT_SSH_KEY": str(self.key),
            "MPIBOOT_SSH_PORT": str(port),
            "MPIBOOT_CONTROL_IFNAME": "127.0.0.1",
            "MPIBOOT_RUNTIME_DIR": str(self.folder / "run"),
            "MPIBOOT_TERMINATION_LOG": str(self.folder / "termination-log"),
        }
        return [*mpiboot, "worker"], env
