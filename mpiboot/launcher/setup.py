"""A launcher's pod: identity, the job's key, access to its hosts, private files.

The launch folder has the files for mpirun, its agents and ssh; each launch writes it anew.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from mpiboot.core import addresses, launch_spec
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.facts import Host, Worker
from mpiboot.core.launch_spec import LAUNCH_ID
from mpiboot.core.model import Decision, HostKeys, Identity, ProveTransport, Switch
from mpiboot.core.settings import Resolved, Settings
from mpiboot.hosts import remote_commands
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.pipeline import PORTS, SshAccess, choose_access
from mpiboot.job.control_links import all_arguments, given_by_user
from mpiboot.job.plan import LOCAL_RANKS
from mpiboot.job.plan_input import LaunchPaths
from mpiboot.launcher import shims
from mpiboot.network import pod
from mpiboot.network.records import RDMA
from mpiboot.ssh import config as sshconfig
from mpiboot.ssh import openssh
from mpiboot.ssh.client import (
    KUBECTL_ENVIRONMENT,
    HostSettings,
    OpensshClient,
    PodAccess,
    read_settings,
)
from mpiboot.ssh.config import UserArgs, timeouts_from, unusable
from mpiboot.ssh.pool import Pool
from mpiboot.supervisor import evidence
from mpiboot.supervisor.job import LaunchSpec
from mpiboot.system import files, keys, process, programs

_LAUNCH: Final = "launch"


def paths(folder: Path, pid: int = 1) -> LaunchPaths:
    """Give the paths of a launch.

    Args:
        folder: the launcher's runtime folder.
        pid: mpirun's future parent. Launches below a command may run in parallel, so each has a
            folder with its PID; PID 1 has one launch at a time.
    """
    path = folder / (_LAUNCH if pid == 1 else f"{_LAUNCH}-{pid}")
    # Without an execute bit, or on a noexec mount, sh runs it; Open MPI accepts several words.
    shell = "" if os.access(shims.AGENT, os.X_OK) else "/bin/sh "
    return LaunchPaths(str(path), f"{shell}{shims.AGENT}")


@dataclass(frozen=True)
class Launch(LaunchSpec):
    """One start of mpirun, with the content of its files.

    ``pod`` knows how to reach the hosts.
    """

    pod: LauncherPod

    def write(self) -> None:
        """Write the files that mpirun, its agents and ssh read.

        Raises:
            MpibootError: ``runtime-folder``, or ``program-missing`` where there is no ssh.
        """
        folder, plan = Path(self.where.launch_dir), self.plan
        make_folder(folder, self.pod.key)
        words = {"user_agent": plan.user_agent, "linger": str(plan.agent_linger), "ssh": "ssh"}
        by_ssh: Collection[str] = ()
        agent_env = dict(plan.agent_env)
        if self.pod.key is not None:
            words["ssh"], by_ssh = self._write_logins()
        elif self.pod.pods and not plan.user_agent:
            files.make_fifo(folder / KUBECTL_STDIN)
            words |= {"kubectl": self.pod.pods.kubectl, "namespace": self.pod.pods.namespace}
            # mpirun's environment may lack kubectl's variables for the API server.
            environ = self.observed.environ
            agent_env |= {name: environ[name] for name in KUBECTL_ENVIRONMENT if name in environ}
        write_agent_files(folder, words, plan.per_host, agent_env, by_ssh)
        if self.settings.supervise is Switch.ON:
            files.make_fifo(folder / launch_spec.EVENTS)
        for path, text in {self.where.hostfile: plan.hostfile, **plan.app_hostfiles}.items():
            files.write_private(Path(path), text)
        rank_file = folder / LOCAL_RANKS
        if str(rank_file) in plan.argv:
            files.write_private(rank_file, exports(plan.agent_env))
        prune(folder.parent, _LAUNCH)
        files.remove_stale_sessions(
            self.observed.environ, socket.gethostname(), self.observed.identity.uid
        )

    def _write_logins(self) -> tuple[str, Collection[str]]:
        """Write ssh's files; return its command line, and the hosts that agents reach by ssh."""
        path, logins = self.observed.environ.get("PATH", ""), self.logins
        ssh = shutil.which("ssh", path=path) or ""
        needs_ssh = self.plan.remote_hosts and not self.by_pool and not self.plan.user_agent
        if needs_ssh and (why := sshconfig.unusable(ssh, self.observed.identity)):
            raise error(
                "program-missing",
                f"{why}, and MPIBOOT_SUPERVISE=off needs it to log in to hosts",
                evidence=(f"PATH={path}",),
                hint="install openssh-client in the launcher's image, or unset MPIBOOT_SUPERVISE",
            )
        # Hosts that ranks add at run time (MPI_Comm_spawn) are reached like the others.
        later = {
            replace(item, name="*", address=item.address and "%h", key="", by_ssh=False)
            for item in logins.entries
        }
        logins.write(later if len(later) == 1 else ())
        carried = [item.name for item in logins.entries if item.by_ssh]
        # First, to win over ssh arguments from Open MPI's own files, which can't be dropped.
        return f"{ssh or 'ssh'} {logins.pins}", carried if self.by_pool else ()

    @property
    def by_pool(self) -> bool:
        """Whether the agents' sessions reuse the gate's SSH connections."""
        unused = self.plan.user_agent or not self.plan.remote_hosts or self.pod.key is None
        return not unused and self.settings.supervise is Switch.ON

    @cached_property
    def logins(self) -> Logins:
        """The logins of mpirun's agents, by mpirun's names for the hosts."""
        folder, args = Path(self.where.launch_dir), self.plan.user_args
        return Logins(folder, self.pod, args, self._reached)

    @cached_property
    def _reached(self) -> Mapping[str, Worker]:
        """The hosts that passed the gate, by mpirun's names."""
        return {self.observed.called(item.host.name): item for item in self.observed.workers}

    def snapshots(self) -> tuple[evidence.HostSnapshot, ...]:
        """Give the hosts' state at the gate, to compare with when explaining a failure.

        A host of the job has its port counters, too, where these prove what carries the data.
        """
        observed, plan, rdma = self.observed, self.plan, self.plan.transport in RDMA
        networks = {observed.called(one.host): one for one in plan.networks}
        local = next(iter(observed.local_names), "")
        here = evidence.HostSnapshot(
            socket.gethostname(), answer=observed.own_answer, here=True, may_idle=not local
        )
        hosts = {name: evidence.snapshot(one, name) for name, one in self._reached.items()}
        hosts = {local: here, **hosts}
        if self.prove is ProveTransport.OFF:
            return tuple(hosts.values())
        for name in hosts.keys() & networks.keys() & {*self.all_hosts}:
            ports = evidence.counted_ports(networks[name], rdma=rdma, any_device=plan.user_devices)
            hosts[name] = replace(hosts[name], counted=ports, may_idle=not hosts[name].here)
        return tuple(hosts.values())


def _is_safe(file: str) -> bool:
    """Whether ssh accepts a file in Include: only if others can't write to it (readconf.c)."""
    try:
        found = Path(file).expanduser().stat()
    except (OSError, RuntimeError):  # nothing there, no home folder
        return True
    return found.st_uid in (0, os.getuid()) and not found.st_mode & 0o022


def prune(folder: Path, name: str) -> None:
    """Remove ``NAME-PID`` folders, which hold the key, of processes that have ended."""
    for path in folder.glob(f"{name}-[0-9]*"):
        if not Path("/proc", path.name.rpartition("-")[2]).exists():
            shutil.rmtree(path, ignore_errors=True)


def make_folder(folder: Path, key: keys.JobKey | None) -> None:
    """Create the folder that agents and ssh read; an earlier launch's files are removed.

    Raises:
        MpibootError: ``runtime-folder``.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with files.writing():
        for path in (folder, folder / AGENT_HOSTS, folder / "stderr"):
            path.mkdir(mode=0o700)
    if key is not None:
        keys.copy(key, folder / launch_spec.KEY)
        # ssh matches a certificate to its key by this file.
        files.write_private(folder / f"{launch_spec.KEY}.pub", key.public + "\n")


@dataclass(frozen=True, slots=True)
class Logins:
    """The hosts in a folder's ssh_config, by each name that ssh may be called with.

    ``args`` are the user's ssh arguments.
    """

    folder: Path
    pod: LauncherPod
    args: sshconfig.UserArgs = field(default_factory=sshconfig.UserArgs)
    hosts: Mapping[str, Worker] = field(default_factory=dict)

    @property
    def entries(self) -> tuple[sshconfig.LaunchHost, ...]:
        """The hosts' entries for ssh_config, with their per-host keys."""
        found = []
        for name, worker in self.hosts.items():
            listed, client = worker.host.name, self.client
            own = client.known(listed) if client else HostSettings(listed)
            found.append(
                sshconfig.LaunchHost(
                    *(name, "" if own.proxied else worker.address, worker.port, worker.user),
                    key=worker.host_key,
                    by_ssh=client is not None and listed in client.carried,
                    proxy=own.proxy,
                    send=own.send,
                    variables=own.variables,
                )
            )
        return tuple(found)

    @property
    def client(self) -> OpensshClient | None:
        """The image's ssh, with the latest arguments; None if it can't run."""
        return self.pod.ssh_access.pool.client if self.pod.ssh_access else None

    @property
    def pins(self) -> str:
        """Host key options for ssh's command line, where the first value wins."""
        known = str(self.folder / sshconfig.KNOWN_HOSTS)
        chosen = sshconfig.pins(known, self.pod.settings.host_keys)
        return " ".join(f"-o {name}={value}" for name, value in chosen.items())

    def write(self, later: Iterable[sshconfig.LaunchHost] = ()) -> None:
        """Write ssh_config and known_hosts.

        Args:
            later: patterns of hosts that may join the job.

        Raises:
            MpibootError: ``runtime-folder``.
        """
        known, entries = self.folder / sshconfig.KNOWN_HOSTS, self.entries
        settings, args = self.pod.settings, self.args
        if self.client and not self.client.usable:
            args = replace(args, file="none")  # ssh would fail on it
        elif args.file not in ("", "none"):  # Include is relative to ~/.ssh
            args = replace(args, file=str(Path(args.file).absolute()))
        key = self.pod.key.path if self.pod.key else ""
        if (certificate := Path(f"{key}-cert.pub")).is_file():
            line = f"CertificateFile {sshconfig.quoted(str(certificate))}"
            args = replace(args, lines=(*args.lines, line))
        # The job's key is pinned under the job's alias, per-host keys under the hosts'.
        pinned = [f"{sshconfig.ALIAS} {self.pod.job}\n"]
        pinned += [f"{entry.key_alias} {entry.key}\n" for entry in entries if entry.key]
        files.write_private(known, "".join(dict.fromkeys(pinned)))
        carried = any(entry.by_ssh for entry in entries)
        config = sshconfig.render(
            (*entries, *(replace(item, by_ssh=carried) for item in later)),
            key=str(self.folder / launch_spec.KEY),
            known_hosts=str(known),
            host_keys=settings.host_keys,
            keepalive=settings.ssh_keepalive,
            user_args=args,
            files=tuple(filter(_is_safe, sshconfig.FILES)),
        )
        files.write_private(self.folder / sshconfig.SSH_CONFIG, config)

    def pool_hosts(self) -> tuple[sshconfig.LaunchHost, ...]:
        """Give the pool's entries for the hosts, each with the key that it must show."""
        unchecked = self.pod.settings.host_keys is HostKeys.OFF
        return tuple(
            replace(host, key="" if unchecked else host.key or self.pod.job)
            for host in self.entries
        )


# The agent's file names.
AGENT_CONFIG: Final = "agent.conf"
KUBECTL_STDIN: Final = "stdin"
AGENT_HOSTS: Final = "hosts"
_BY_SSH: Final = "exec_ssh"  # a function of libexec/agent


def assignments(values: Mapping[str, str]) -> str:
    """Write ``name='value'`` lines that a POSIX shell reads back byte for byte."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


def exports(values: Mapping[str, str]) -> str:
    """Write variables as a prefix of a remote command line, for any POSIX shell."""
    return "".join(f"export {name}={shlex.quote(value)};\n" for name, value in values.items())


def write_agent_files(
    folder: Path,
    words: Mapping[str, str],
    per_host: Mapping[str, Mapping[str, str]],
    environ: Mapping[str, str],
    by_ssh: Collection[str] = (),
) -> None:
    """Write the agent's files.

    Args:
        folder: the launch folder, which holds the folder AGENT_HOSTS already.
        words: what ``libexec/agent`` reads: ssh, user_agent, kubectl, namespace, linger.
        per_host: per-host variables, by mpirun's names.
        environ: the agent's variables on top of mpirun's environment.
        by_ssh: the hosts that the image's ssh logs in to, by mpirun's names.

    Raises:
        MpibootError: ``runtime-folder``.
    """
    for name in {*per_host, *by_ssh}:
        own = {"exports": exports(per_host.get(name, {})).rstrip()}
        own |= {"user_agent": _BY_SSH} if name in by_ssh else {}
        files.write_private(folder / AGENT_HOSTS / f"{name}.env", assignments(own))
    files.write_private(folder / AGENT_CONFIG, assignments(words) + exports(environ))


# How long to wait for the key's Secret before kubectl is used instead.
_KEY_WAIT_S: Final = 5.0


@dataclass(eq=False)
class LauncherPod:
    """A launcher's pod: identity, private folder, and the job's key.

    ``deadline`` is monotonic time; after it hostfile and key have to be there. ``attempt`` and
    ``may_disconnect`` are sent to the workers (``host_shell.gate``). ``find_key`` sets ``key``,
    or, for ``kubectl exec``, ``pods`` and ``chosen`` (the reason); neither if this pod is the only
    host.
    """

    resolved: Resolved
    environ: Mapping[str, str]
    identity: Identity
    folder: Path
    deadline: float
    attempt: str = ""
    may_disconnect: bool = False
    key: keys.JobKey | None = None
    pods: PodAccess | None = None
    chosen: Decision | None = None
    ssh_access: SshAccess | None = None

    @property
    def settings(self) -> Settings:
        """The settings of this run."""
        return self.resolved.settings

    @property
    def rest(self) -> Settings:
        """The settings, with the time left until the deadline as timeout."""
        return replace(self.settings, timeout=max(0.0, self.deadline - time.monotonic()))

    @property
    def job(self) -> str:
        """The job's identity, which only its launchers have."""
        if self.key is not None:
            return self.key.public
        return f"namespace {self.pods.namespace if self.pods else ''}"

    @cached_property
    def launch_id(self) -> str:
        """The ID of this launch; a nested launch has the outer one's."""
        return self.environ.get(LAUNCH_ID) or remote_commands.new_launch_id(self.job)


def launcher_pod(
    resolved: Resolved,
    environ: Mapping[str, str],
    role: str = "launcher",
    attempt: str = "",
    *,
    may_disconnect: bool = False,
    waits: bool = True,
) -> LauncherPod:
    """Find this pod's identity, and create the role's private folder.

    Without ``waits`` hostfile and key have to be there.

    Raises:
        MpibootError: ``runtime-folder`` or ``tmpdir``.
    """
    deadline = time.monotonic() + resolved.settings.timeout if waits else 0.0
    identity = pod.identity(environ)
    process.raise_file_limit()  # each host has a connection
    named, wanted = environ.get("TMPDIR", ""), resolved.settings.runtime_dir
    files.check_tmpdir(named)
    split = role == "launcher"
    folder = files.runtime_dir(wanted, identity.uid, role, tmpdir=named, split=split)
    # asyncssh looks up the user, and fails under a uid without a passwd entry.
    os.environ.update(pod.user_environment(identity, environ, folder))
    os.environ.update(files.complete_tmpdir(environ, folder))
    return LauncherPod(resolved, environ, identity, folder, deadline, attempt, may_disconnect)


def find_key(launcher: LauncherPod, hosts: Iterable[Host]) -> None:
    """Find the job's key, or set up kubectl; a job on this pod alone needs neither.

    Raises:
        MpibootError: ``ssh-key``; there is none, or it can't be read.
    """
    environ, identity, wanted = launcher.environ, launcher.identity, launcher.settings.ssh_key
    seconds = launcher.rest.timeout
    homes = (identity.home, environ.get("HOME", ""))
    if not keys.find(wanted, homes, identity.uid):
        wanted = wanted or _key_of_ssh(environ, identity)
    place = (wanted, homes, identity.uid)

    def key_is_there() -> bool:
        if keys.unreadable_key(wanted, identity.uid):
            return True
        try:
            return bool(keys.wait(*place, min(seconds, _KEY_WAIT_S)))
        except MpibootError:
            return False

    if by_kubectl := choose_access(launcher.resolved, environ, key_is_there):
        launcher.pods, launcher.chosen = by_kubectl
    elif keys.find(*place) or remote(hosts):
        launcher.key = keys.load(keys.wait(*place, seconds))


def remote(hosts: Iterable[Host]) -> list[str]:
    """Give the names of the hosts that are not this pod."""
    own = socket.gethostname()
    fqdns = pod.own_names(own)
    return [host.name for host in hosts if not addresses.is_local(host.name, own, fqdns)]


def _key_of_ssh(environ: Mapping[str, str], identity: Identity) -> str:
    """Give the IdentityFile of ssh's configuration, outside the job's paths; empty for none."""
    ssh = shutil.which("ssh", path=environ.get("PATH", "")) or ""
    if unusable(ssh, identity):
        return ""
    words = all_arguments(environ).split()
    try:
        done = programs.run((ssh, *words, "-G", "--", socket.gethostname()), programs.SHORT)
        named = read_settings(done.stdout if done else "", identity.user).keys
    except (KeyError, ValueError, OSError):
        return ""
    paths = (path.replace("~", identity.home, 1) for path in named)
    return next((path for path in paths if keys.find(path, (), identity.uid)), "")


def _ssh_client(launcher: LauncherPod, args: UserArgs) -> OpensshClient | None:
    """Give the image's ssh; None if it can't run, or SSH is not used."""
    ssh = shutil.which("ssh", path=launcher.environ.get("PATH", "")) or ""
    if launcher.key is None or unusable(ssh, launcher.identity):
        return None

    def prepare() -> Path:
        folder = launcher.folder / f"gate-{os.getpid()}"
        prune(launcher.folder, "gate")
        make_folder(folder, launcher.key)
        Logins(folder, launcher, args).write()
        return folder

    return OpensshClient(ssh, args, launcher.identity.user, folder=prepare)


def access(launcher: LauncherPod, args: UserArgs | None = None) -> SshAccess:
    """Give this launcher's access to its workers, cached until the arguments change.

    Args:
        launcher: this pod, after ``find_key``.
        args: the user's ssh arguments; None: the previous ones, else the environment's.
    """
    if args is None and launcher.ssh_access:
        return launcher.ssh_access
    settings, identity = launcher.settings, launcher.identity
    args = args or given_by_user(launcher.environ)
    pool = Pool(
        launcher.key.path if launcher.key else None,
        host_key=launcher.key.public if launcher.key else "",
        host_keys=settings.host_keys,
        timeouts=timeouts_from(settings.ssh_keepalive, args),
        client=_ssh_client(launcher, args),
        pods=launcher.pods,
    )
    hostname = socket.gethostname()
    api = launcher.environ.get(pod.API, "")
    own, _ = pod.control_address(settings.control_ifname, hostname, api=api)
    named = openssh.client_port(launcher.environ, identity.home)
    ports = tuple(dict.fromkeys((named[0], *PORTS))) if named else PORTS
    ipv6 = ":" in own if own else None
    # IPv6 comes first, as in getaddrinfo.
    resolver = Resolver(families=("A",) if ipv6 is False else ("AAAA", "A"))
    domain = settings.cluster_domain or addresses.cluster_domain(resolver.conf.search)
    launcher.ssh_access = SshAccess(
        user=settings.ssh_user or args.user or identity.user,
        pool=pool,
        hostname=hostname,
        ports=(args.port,) if args.port else ports,
        fqdns=pod.own_names(hostname),
        ipv6=ipv6,
        domain=domain or "cluster.local",
        attempt=launcher.attempt,
        may_disconnect=launcher.may_disconnect,
        resolver=resolver,
    )
    return launcher.ssh_access
