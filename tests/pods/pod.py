"""One pod: a sandbox and the container that runs in it, more than once if need be."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tests.pods.network import DNS_ADDRESSES, Netns, Node
from tests.pods.oci import PodSpec, configuration
from tests.pods.volumes import READ_ONLY, READ_WRITE, Mount
from tests.waiting import until

if TYPE_CHECKING:
    from tests.pods.cluster import Cluster

TINI = "/usr/bin/tini-static"
# Seconds, against a hang only.
GUARD = 120
# Seconds for what an ended container wrote to be in the file.
_LAST_WORDS = 10
_HOSTS = """# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""
_API = "tcp://10.96.0.1:443"
# What a kubelet adds to the image's variables.
_VARIABLES = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
    "KUBERNETES_SERVICE_PORT_HTTPS": "443",
    "KUBERNETES_PORT": _API,
    "KUBERNETES_PORT_443_TCP": _API,
    "KUBERNETES_PORT_443_TCP_ADDR": "10.96.0.1",
    "KUBERNETES_PORT_443_TCP_PORT": "443",
    "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
}


class PodError(Exception):
    """The container couldn't be started at all: what a kubelet reports as StartError."""


class Pod:
    """A pod of one container, made by `Cluster.pod`."""

    def __init__(
        self, cluster: Cluster, spec: PodSpec, network: Netns | None, beside: Pod | None
    ) -> None:
        self.spec = spec
        self.restarts = -1
        self.before: list[Pod] = []
        self._cluster, self._node = cluster, cluster.node
        self._key = f"{next(self._node.pods)}-{spec.name}"
        self._folder = cluster.folder / self._key
        self._folder.mkdir()
        self._volumes: Path = beside._volumes if beside else self._folder / "volumes"
        self._scratch = cluster.folder / "scratch" / self._key
        self._shared_network = network is not None
        self.network = network or Netns(self._node, self._key, spec.links)
        self._processes = SharedProcesses(self._node) if spec.share_processes else None
        self._mounts = self._make_mounts()
        self._runner: subprocess.Popen[bytes] | None = None
        self._readers: list[subprocess.Popen[bytes]] = []
        self._pidfd: int | None = None
        self._pid: int | None = None

    def start(self, patience: float = GUARD) -> Pod:
        """Starts the container and returns as soon as its first process runs.

        Its init containers run first, with the pod's first start; each has that many seconds.
        """
        for init in self.before if self.restarts < 0 else ():
            if code := init.start().wait(patience):
                raise PodError(f"{init.spec.name} ended with {code}:\n{init.stderr()}")
        self.restarts += 1
        self._id = f"{self._key}-{self.restarts}"
        bundle = self._folder / f"container-{self.restarts}"
        bundle.mkdir()
        config = configuration(
            self.spec,
            hostname=self.hostname,
            # The image's variables, the kubelet's, then the manifest's own.
            env={**self.spec.image.env, "HOSTNAME": self.hostname, **_VARIABLES, **self.spec.env},
            root=self._mount_root(),
            network=self.network.path,
            cgroup=f"mpiboot-{self._cluster.name}-{self._id}",
            mounts=self._mounts,
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

    def wait(self, timeout: float = GUARD) -> int:
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
        return self._runner is not None and self._runner.poll() is None

    def signal(self, number: int) -> None:
        if self._pidfd is not None and self.running:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                signal.pidfd_send_signal(self._pidfd, number)  # type: ignore[attr-defined,unused-ignore]

    def kill(self) -> None:
        """Ends all processes of the container at once; its address stays."""
        self.signal(signal.SIGKILL)

    def delete(self) -> None:
        """Deletes the pod as an eviction does: its name, its container and its network."""
        self.unpublish()
        if self.running:
            self.kill()
            self.wait()
        if self._processes:
            self._processes.close()  # and with it all in it
        if not self._shared_network:
            self.network.delete()

    def close(self) -> None:
        """Waits for the container's end and frees what the test process holds for it."""
        if self._processes:
            self._processes.close()  # and with it all in it
        for reader in self._readers:
            reader.kill()
            reader.wait()
        if self._runner is not None:
            self._runner.wait()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    @property
    def hostname(self) -> str:
        return self.spec.host_network or (self.spec.hostname or self.spec.name)[:63]

    @property
    def fqdn(self) -> str:
        """The name in the cluster's DNS; a pod without a subdomain has none there but this form."""
        return self._fqdn(self.spec.hostname or self.spec.name)

    def _fqdn(self, hostname: str) -> str:
        spec = self.spec
        parts = (hostname, spec.subdomain, spec.namespace, "svc", spec.cluster_domain)
        return ".".join(filter(None, parts))

    @property
    def address(self) -> str:
        return self.network.addresses()[0]

    def publish(self, *, after: float = 0.0) -> None:
        """Makes the pod's name resolvable: now, or after seconds."""
        self._cluster.dns.publish(self.fqdn, self.network.addresses(), after=after)

    def unpublish(self) -> None:
        self._cluster.dns.unpublish(self.fqdn)

    def link_down(self, link: str = "eth0", *, silent: bool = False) -> None:
        """Cuts a link; with `silent` the pod still sees a carrier, as behind a dead switch."""
        self.network.down(link, silent=silent)

    def stdout(self) -> str:
        return self._written("stdout")

    def stderr(self) -> str:
        return self._written("stderr")

    def logs(self, text: str, count: int = 1) -> None:
        """Waits until a text is so often in its standard error output."""
        until(lambda: self.stderr().count(text) >= count, what=text)

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
        return Path(f"/proc/{self.pid}/root")

    @property
    def pid(self) -> int:
        if self._pid is None:
            raise PodError(f"{self.spec.name} was never started")
        return self._pid

    def processes(self) -> list[Process]:
        return processes_of(self.pid) if self.running else []

    def exec(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout: float = 240,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in the container, as `kubectl exec` does."""
        options = [f"--env={name}={value}" for name, value in (env or {}).items()]
        return subprocess.run(
            [*self._runc("exec", *options, self._id), *argv],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def popen(self, *argv: str, out: int, err: int) -> subprocess.Popen[bytes]:
        """Starts a command in the container, with a pipe to it and these as its output."""
        words, pipe = [*self._runc("exec", self._id), *argv], subprocess.PIPE
        return subprocess.Popen(words, stdin=pipe, stdout=out, stderr=err, start_new_session=True)

    def shell(self, script: str) -> str:
        """What a shell script in the container prints, stripped; it has to succeed."""
        done = self.exec("sh", "-ec", script)
        if done.returncode != 0:
            raise AssertionError(f"{script!r} in {self.spec.name}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def _runc(self, *arguments: str) -> list[str]:
        # Go sends itself SIGURG on a busy machine, and the container would get it from runc.
        quiet = ("env", "GODEBUG=asyncpreemptoff=1")
        root = str(self._cluster.folder / "runc")
        return [*self._node.prefix(), *quiet, "runc", "--root", root, *arguments]

    def _hosts(self) -> str:
        """/etc/hosts; with hostNetwork that of the node, a Debian's, which knows its own name."""
        text, name = _HOSTS, self.hostname
        if self.spec.host_network:
            text += f"127.0.1.1\t{name}\n"
        else:
            names = f"{self._fqdn(name)}\t{name}" if self.spec.subdomain else name
            text += "".join(f"{address}\t{names}\n" for address in self.network.addresses())
        if self.spec.extra_hosts:
            text += "\n# Entries added by HostAliases.\n"
        for address, aliases in self.spec.extra_hosts.items():
            text += "\t".join([address, *aliases]) + "\n"
        return text

    def _resolv_conf(self) -> str:
        """/etc/resolv.conf: dnsPolicy ClusterFirst, or None with a server and no search list."""
        spec, domain = self.spec, self.spec.cluster_domain
        server = DNS_ADDRESSES[0 if any(link.ipv4 for link in self.network.links) else 1]
        if not spec.cluster_dns:
            return f"nameserver {server}\n"
        search = [f"{spec.namespace}.svc.{domain}", f"svc.{domain}", domain, *spec.searches]
        return f"search {' '.join(search)}\nnameserver {server}\noptions ndots:5\n"

    def _make_mounts(self) -> list[Mount]:
        files = {
            "/etc/hosts": self._hosts(),
            "/etc/hostname": f"{self.hostname}\n",
            "/etc/resolv.conf": self._resolv_conf(),
            "/dev/termination-log": "",
        }
        mounts = []
        for path, content in files.items():
            file = self._folder / Path(path).name
            file.write_text(content)
            file.chmod(0o666 if path.startswith("/dev/") else 0o644)
            guarded = self.spec.read_only_root and path in {"/etc/hostname", "/etc/resolv.conf"}
            mounts.append(Mount(path, str(file), options=READ_ONLY if guarded else READ_WRITE))
        shm = str(self._scratch / "shm")
        options = f"nosuid,nodev,noexec,mode=1777,size={64 << 20}"
        self._node.run("mkdir", "-p", shm)
        self._node.run("mount", "-t", "tmpfs", "-o", options, "shm", shm)
        mounts.append(Mount("/dev/shm", shm))
        if self.spec.image.programs is not None:
            programs = str(self.spec.image.programs)
            mounts.append(Mount("/opt/programs", programs, options=READ_ONLY))
        for index, volume in enumerate(self.spec.volumes):
            mounts.append(volume.make(self._volumes / f"{self._key}-{index}"))
        return mounts

    def _mount_root(self) -> str:
        """A fresh overlay over the image: a restarted container sees nothing of its first life."""
        base = self._scratch / str(self.restarts)
        lower = ":".join(map(str, self.spec.image.layers))
        options = f"lowerdir={lower},upperdir={base}/upper,workdir={base}/work"
        script = 'mkdir -p "$1/upper" "$1/work" "$1/root"; mount -t overlay -o "$2" pod "$1/root"'
        self._node.run("sh", "-ec", script, "sh", str(base), options)
        return f"{base}/root"

    def _await_start(self, bundle: Path) -> None:
        pid_file = bundle / "pid"
        while True:
            # Asked before the file is looked for: one that ends at once was started all the same.
            ended = not self.running
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


def _reader(argv: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Reads a container's stream by a pipe, as a container runtime does."""
    return subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=output, start_new_session=True, bufsize=0
    )


class SharedProcesses:
    """The process table of a pod with shareProcessNamespace; its first process stands for `pause`.

    It reaps what has lost its parent and does nothing else; it ends with the test at the latest.
    """

    def __init__(self, node: Node) -> None:
        first = [TINI, "--", "sh", "-c", "echo ready; read -r _"]
        argv = [*node.prefix(), "unshare", "--pid", "--fork", *first]
        self._holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self._holder.stdout is None or not self._holder.stdout.readline():
            raise RuntimeError("this machine doesn't let the rig make process tables")
        self.path = f"/proc/{self._holder.pid}/ns/pid_for_children"

    def close(self) -> None:
        if self._holder.poll() is None:
            self._holder.communicate()


@dataclass(frozen=True)
class Process:
    """One process of a container: its number there and on the host, its state and command line."""

    pid: int
    host_pid: int
    state: str
    args: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.pid} {self.state} {' '.join(self.args)}"


def processes_of(first: int) -> list[Process]:
    """All processes that share the PID namespace of a container's first one."""
    try:
        namespace = os.stat(f"/proc/{first}/ns/pid").st_ino  # noqa: PTH116
    except OSError:
        return []
    found = []
    # Tests ask this again and again while they wait: pathlib would take half of a core for it.
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        try:
            if os.stat(f"/proc/{name}/ns/pid").st_ino != namespace:  # noqa: PTH116
                continue
            lines = Path("/proc", name, "status").read_text().splitlines()
            words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")[:-1]
        except OSError:  # gone meanwhile
            continue
        status = dict(line.split(":", 1) for line in lines)
        args = tuple(word.decode(errors="replace") for word in words)
        own, state = int(status["NSpid"].split()[-1]), status["State"].split()[0]
        found.append(Process(own, int(name), state, args or (f"[{status['Name'].strip()}]",)))
    return sorted(found, key=lambda process: process.pid)
