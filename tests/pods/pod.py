"""One pod: a sandbox and the container that runs in it, more than once if need be."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.pods import kubelet
from tests.pods.network import Netns
from tests.pods.oci import PodSpec, configuration
from tests.pods.processes import Process, processes_of
from tests.pods.sandbox import Place, Sandbox
from tests.pods.terminal import Terminal
from tests.pods.users import FIRST

# Seconds for what an ended container wrote to be in the file.
_LAST_WORDS = 10


def _reader(argv: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Reads a container's stream by a pipe, as a container runtime does."""
    return subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=output, start_new_session=True, bufsize=0
    )


class PodError(Exception):
    """The container couldn't be started at all: what a kubelet reports as StartError."""


class Pod(Sandbox):
    """A pod of one container, made by `Cluster.pod`."""

    def __init__(self, place: Place, spec: PodSpec, network: Netns | None) -> None:
        super().__init__(place, spec, network)
        self.restarts = -1
        self.before: list[Pod] = []
        self._runc_root = place.folder / "runc"
        self._cluster = place.cluster
        self._runner: subprocess.Popen[bytes] | None = None
        self._readers: list[subprocess.Popen[bytes]] = []
        self._pidfd: int | None = None
        self._pid: int | None = None

    # --- the container's life ---

    def start(self) -> Pod:
        """Starts the container and returns as soon as its first process runs.

        Its init containers run first, with the pod's first start.
        """
        for init in self.before if self.restarts < 0 else ():
            if code := init.start().wait():
                raise PodError(f"{init.spec.name} ended with {code}:\n{init.stderr()}")
        self.restarts += 1
        self._id = f"{self._key}-{self.restarts}"
        bundle = self._folder / f"container-{self.restarts}"
        bundle.mkdir()
        config = configuration(
            self.spec,
            hostname=self.hostname,
            env=kubelet.environment(self.spec, self.hostname),
            root=self._mount_root(),
            network=self.network.path,
            cgroup=f"mpiboot-{self._cluster}-{self._id}",
            mounts=self._mounts,
            users=self._users.path if self._users else "",
            processes=self._processes.path if self._processes else "",
        )
        (bundle / "config.json").write_text(json.dumps(config))
        argv = [
            *self._runc("--log", str(bundle / "log"), "--log-format", "json"),
            *("run", "--no-new-keyring", "--bundle", str(bundle)),
            *("--pid-file", str(bundle / "pid"), self._id),
        ]
        with (
            (self._folder / "stdout").open("ab") as out,
            (self._folder / "stderr").open("ab") as err,
        ):
            self._readers = [_reader(self.spec.stdout_reader, out), _reader(("cat",), err)]
            to, to_err = (reader.stdin for reader in self._readers)
            self._runner = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=to, stderr=to_err, start_new_session=True
            )
            for pipe in filter(None, (to, to_err)):
                pipe.close()
        self._await_start(bundle)
        return self

    def wait(self, timeout: float = 60) -> int:
        """Waits for the container's end and returns its exit code (128+n for a signal)."""
        if self._runner is None:
            raise PodError(f"{self.spec.name} was never started")
        try:
            for reader in self._readers:
                reader.wait(timeout)  # it reads to the container's end
            return self._runner.wait(timeout)
        except subprocess.TimeoutExpired as error:
            msg = f"{self.spec.name} still runs after {timeout} s:\n{self.stderr()[-4000:]}"
            raise TimeoutError(msg) from error

    @property
    def running(self) -> bool:
        """Whether the container runs."""
        return self._runner is not None and self._runner.poll() is None

    def signal(self, number: int) -> None:
        """Sends a signal to the container's first process."""
        if self._pidfd is not None and self.running:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                signal.pidfd_send_signal(self._pidfd, number)  # type: ignore[attr-defined,unused-ignore]

    def stop(self, grace: float = 30) -> int:
        """Stops the container as a kubelet does: SIGTERM, the grace period, SIGKILL."""
        self.signal(signal.SIGTERM)
        try:
            return self.wait(grace)
        except TimeoutError:
            self.kill()
            return self.wait()

    def kill(self) -> None:
        """Ends all processes of the container at once; its address stays."""
        self.signal(signal.SIGKILL)

    def restart(self) -> Pod:
        """Starts the container again in the same pod: same address, emptyDirs and volumes."""
        self.kill()
        self.wait()
        return self.start()

    def delete(self) -> None:
        """Deletes the pod as an eviction does: its name, its container and its network."""
        self.unpublish()
        if self.running:
            self.kill()
            self.wait()
        self.end_processes()
        self.delete_network()

    def close(self) -> None:
        """Waits for the container's end and frees what the test process holds for it."""
        self.end_processes()
        for reader in self._readers:
            reader.kill()
            reader.wait()
        if self._runner is not None:
            self._runner.wait()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    # --- what a test looks at ---

    def stdout(self) -> str:
        """What the container wrote to its standard output."""
        return self._written("stdout")

    def stderr(self) -> str:
        """What the container wrote to its standard error output."""
        return self._written("stderr")

    def termination_log(self) -> str:
        """What the container left in /dev/termination-log, of which a kubelet keeps 4,096 bytes."""
        return (self._folder / "termination-log").read_text(errors="replace")[:4096]

    def _written(self, stream: str) -> str:
        if not self.running:
            for reader in self._readers[1 if stream == "stderr" else 0 :][:1]:
                with contextlib.suppress(subprocess.TimeoutExpired):  # nobody lets it read
                    reader.wait(_LAST_WORDS)
        return (self._folder / stream).read_text(errors="replace")

    @property
    def root(self) -> Path:
        """The root of the running container, as seen from the host."""
        return Path(f"/proc/{self.pid}/root")

    @property
    def pid(self) -> int:
        """The number of the container's first process on the host."""
        if self._pid is None:
            raise PodError(f"{self.spec.name} was never started")
        return self._pid

    def processes(self) -> list[Process]:
        """The processes in the container, by their numbers there."""
        return processes_of(self.pid) if self.running else []

    def exec(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        user: int | None = None,
        stdin: str = "",
        timeout: float = 240,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in the container, as `kubectl exec` does (as root with `user=0`)."""
        options = [f"--env={name}={value}" for name, value in (env or {}).items()]
        if user is not None:
            options.append(f"--user={user}")
        return subprocess.run(
            [*self._runc("exec", *options, self._id), *argv],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def popen(self, *argv: str) -> subprocess.Popen[bytes]:
        """Starts a command in the container, all of whose streams are pipes."""
        pipe = subprocess.PIPE
        words = [*self._runc("exec", self._id), *argv]
        return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)

    def shell(self, script: str) -> str:
        """What a shell script in the container prints, stripped; it has to succeed."""
        done = self.exec("sh", "-ec", script)
        if done.returncode != 0:
            raise AssertionError(f"{script!r} in {self.spec.name}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def exec_in_terminal(self, *argv: str) -> Terminal:
        """Runs a command in the container on a terminal, as `kubectl exec -it` does."""
        output = self._folder / f"terminal-{time.monotonic_ns()}"
        return Terminal([*self._runc("exec", "--tty", self._id), *argv], output)

    # --- how it is made ---

    def _runc(self, *arguments: str) -> list[str]:
        # Go sends itself SIGURG on a busy machine, and the container would get it from runc.
        quiet = ("env", "GODEBUG=asyncpreemptoff=1")
        return [*self._node.prefix(), *quiet, "runc", "--root", str(self._runc_root), *arguments]

    def _mount_root(self) -> str:
        """A fresh overlay over the image: a restarted container sees nothing of its first life."""
        base = self._scratch / str(self.restarts)
        layers = [str(layer) for layer in self.spec.image.layers]
        owner = FIRST if self._users else 0
        lower = ":".join(self._users.mapped(layers) if self._users else layers)
        options = f"lowerdir={lower},upperdir={base}/upper,workdir={base}/work"
        script = (
            'mkdir -p "$1/upper" "$1/work" "$1/root"; chown "$3:$3" "$1/upper"; '
            'mount -t overlay -o "$2" pod "$1/root"'
        )
        self._node.run("sh", "-ec", script, "sh", str(base), options, str(owner))
        return f"{base}/root"

    def _await_start(self, bundle: Path) -> None:
        pid_file = bundle / "pid"
        while True:
            # Asked before the file is looked for: one that ends at once was started all the same.
            ended = self._runner is not None and self._runner.poll() is not None
            if pid_file.exists() and pid_file.read_text():
                break
            if ended:
                log = bundle / "log"
                message = log.read_text() if log.exists() else self.stderr()
                raise PodError(f"{self.spec.name} didn't start: {message}")
            time.sleep(0.002)
        self._pid = int(pid_file.read_text())
        if self._pidfd is not None:
            os.close(self._pidfd)
        try:
            self._pidfd = os.pidfd_open(self._pid)
        except ProcessLookupError:  # it has ended already
            self._pidfd = None
