"""The launch folder: files for mpirun, its agents and ssh, made anew each time."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from mpiboot.core import launch_names, launch_spec
from mpiboot.core.checks import error
from mpiboot.core.facts import Worker
from mpiboot.core.model import Source
from mpiboot.core.records_json import write_records
from mpiboot.core.setting_types import HostKeys, LaunchAgent, Switch
from mpiboot.core.settings import Resolved, Settings
from mpiboot.job import job_hosts, plan
from mpiboot.job.plan import Plan
from mpiboot.job.plan_input import LaunchPaths, Observed
from mpiboot.network.records import RDMA, Transport
from mpiboot.network.worker_network import launcher_addresses
from mpiboot.ssh import config as sshconfig
from mpiboot.ssh.client import HostSettings, OpensshClient
from mpiboot.ssh.kubectl import KUBECTL_ENDED, KUBECTL_ENVIRONMENT, PodAccess
from mpiboot.ssh.pool import PoolConfig, short_of_files
from mpiboot.supervisor import evidence
from mpiboot.system import files, keys, os_calls

_LAUNCH: Final = "launch"
# By which an MPI limits the time of a job.
_TIME_LIMITS: Final = ("MPIEXEC_TIMEOUT", "I_MPI_JOB_TIMEOUT", "I_MPI_MPIEXEC_TIMEOUT")
_LIBEXEC: Final = Path(__file__).resolve().parent.parent / "libexec"
_AGENT: Final = _LIBEXEC / "agent"


def paths(folder: Path, pid: int = 1, name: str = _LAUNCH) -> LaunchPaths:
    """Give the paths of a launch.

    Args:
        folder: the launcher's runtime folder.
        pid: the process that will be mpirun's parent. The launches of a command have a folder each,
            as there may be several at once; a pod's first process is always the same.
        name: the folder's name.

    Raises:
        MpibootError: ``runtime-folder``; mpirun would misread the agent's path.
    """
    path = folder / (name if pid == 1 else f"{name}-{pid}")
    return LaunchPaths(str(path), _agent_words())


def _agent_words() -> str:
    """Give the agent's command line; mpirun and the agent's users split it at blanks.

    Raises:
        MpibootError: ``runtime-folder``; mpiboot's own folder has a blank in its path.
    """
    if any(map(str.isspace, str(_AGENT))):
        message = f"mpiboot's own folder {str(_AGENT)!r} has a blank in its path"
        raise error("runtime-folder", message, hint="install mpiboot in a folder without blanks")
    # Its execute bit may be lost, or count for nothing on a noexec mount; Open MPI takes words.
    return str(_AGENT) if os.access(_AGENT, os.X_OK) else f"/bin/sh {_AGENT}"


@dataclass(frozen=True)
class Launch:
    """One start of mpirun: the plan, and the content of its files.

    ``host_keys`` are those of single hosts, by the hostfile's names. ``pods`` is how kubectl enters
    the hosts; there is no ``key`` then, nor where this pod is the only host.
    """

    plan: Plan
    observed: Observed
    host_keys: Mapping[str, str]
    key: keys.JobKey | None
    resolved: Resolved
    where: LaunchPaths
    pods: PodAccess | None = None
    client: OpensshClient | None = None

    def write(self) -> None:
        """Write what mpirun, its agents and ssh read.

        Raises:
            MpibootError: ``runtime-folder``, or ``program-missing`` where there is no ssh.
        """
        if self.key is not None:
            self._write_logins(self.logins(self.key))
        else:
            self._write_without_key()
        if self.resolved.settings.supervise is Switch.ON:
            files.make_fifo(Path(self.where.launch_dir) / launch_names.EVENTS)
        for path, text in {
            self.where.hostfile: self.plan.hostfile,
            **self.plan.more_hostfiles,
        }.items():
            files.write_private(Path(path), text)
        own_file = f"{self.where.launch_dir}/{plan.OWN_RANKS}"
        if own_file in self.plan.argv:
            files.write_private(Path(own_file), exports(self.plan.agent_env))
        tidy(Path(self.where.launch_dir).parent, _LAUNCH)
        files.remove_stale_sessions(
            self.observed.environ, socket.gethostname(), self.observed.identity.uid
        )

    def _write_without_key(self) -> None:
        """Write the agents' files where kubectl enters the hosts, or this pod is the only one."""
        folder, plan = Path(self.where.launch_dir), self.plan
        make_folder(folder)
        client = by_kubectl(folder, self.pods) if self.pods and not plan.user_agent else {}
        environ = self.observed.environ
        # mpirun's environment may lack kubectl's variables for the API server.
        needed = {name: environ[name] for name in KUBECTL_ENVIRONMENT if client and name in environ}
        write_agent_files(
            folder,
            ssh="ssh",
            user_agent=plan.user_agent,
            linger=str(plan.agent_linger),
            **client,
            per_host=plan.per_host,
            environ={**plan.agent_env, **needed},
        )

    def _write_logins(self, logins: Logins) -> None:
        logins.make_folder()
        path, identity = self.observed.environ.get("PATH", ""), self.observed.identity
        ssh = shutil.which("ssh", path=path) or ""
        # Hosts that ranks add while they run (MPI_Comm_spawn) are reached as the others are.
        later = {
            replace(item, name="*", address=item.address and "%h", key="", by_ssh=False)
            for item in logins.entries
        }
        needs_ssh = self.plan.remote_hosts and not self.by_pool and not self.plan.user_agent
        if needs_ssh and (why := sshconfig.unusable(ssh, identity)):
            raise error(
                "program-missing",
                f"{why}, and with MPIBOOT_SUPERVISE=off nothing of mpiboot stays to log in",
                evidence=(f"PATH={path}",),
                hint="install openssh-client in the launcher's image, or supervise mpirun",
            )
        logins.write(
            ssh=ssh,
            user_agent=self.plan.user_agent,
            linger=self.plan.agent_linger,
            per_host=self.plan.per_host,
            environ=self.plan.agent_env,
            later=later if len(later) == 1 else (),
        )

    @property
    def by_pool(self) -> bool:
        """Whether the agents' sessions go over the connections that the gate has opened."""
        unused = self.plan.user_agent or not self.plan.remote_hosts or self.key is None
        return not unused and self.resolved.settings.supervise is Switch.ON

    def logins(self, key: keys.JobKey) -> Logins:
        """Give the logins of mpirun's agents, by mpirun's names for the hosts."""
        return Logins(
            Path(self.where.launch_dir),
            self._reached,
            self.host_keys,
            key,
            self.resolved.settings,
            self.plan.user_args,
            self.client,
        )

    @cached_property
    def _reached(self) -> Mapping[str, Worker]:
        """The hosts that passed the gate, by mpirun's names."""
        return {self.observed.called(item.host.name): item for item in self.observed.workers}

    def pool_hosts(self) -> tuple[sshconfig.LaunchHost, ...]:
        """Give the hosts as the pool is to know them; none where none is reached by SSH.

        Raises:
            MpibootError: ``settings-conflict``; too few files may be open.
        """
        sessions = len(self.plan.remote_hosts) if self.by_pool else 0
        return self.logins(self.key).pool_hosts(sessions) if self.key else ()

    @property
    def _all_hosts(self) -> tuple[str, ...]:
        return (*self.plan.remote_hosts, *sorted(self.observed.local_names))

    @property
    def _is_proved(self) -> bool:
        """Whether counters tell what carried the job's data."""
        return self.plan.proved and len(self._all_hosts) > 1

    def snapshots(self) -> tuple[evidence.HostSnapshot, ...]:
        """Give what a failure is explained with: the hosts as the gate saw them."""
        called = self.observed.called
        seen = [evidence.snapshot(one, called(one.host.name)) for one in self.observed.workers]
        name, ooms = socket.gethostname(), self.observed.own_oom_kills
        own = evidence.HostSnapshot(
            name,
            oom_kills=ooms,
            here=True,
            may_idle=not self.observed.local_names,
        )
        return tuple(self._with_counters((own, *seen))) if self._is_proved else (own, *seen)

    def spec(
        self,
        own_env: Mapping[str, str],
        environ: Mapping[str, str],
        *,
        attempt: str,
    ) -> launch_spec.LaunchSpec:
        """Make the record of what is started.

        Args:
            own_env: this pod's environment.
            environ: mpirun's environment.
            attempt: this launcher's name for workers; empty if they are not told of its end.
        """
        settings = self.resolved.settings
        by_kubectl = self.pods and not self.plan.user_agent
        agent = LaunchAgent.KUBECTL if by_kubectl else LaunchAgent.SSH
        limits = [f"{name}={environ[name]}" for name in _TIME_LIMITS if environ.get(name)]
        return launch_spec.LaunchSpec(
            argv=self.plan.argv,
            family=self.observed.mpi.family.value,
            remote_hosts=tuple(filter(self._reached.__contains__, self.plan.remote_hosts)),
            hosts=len(self.observed.hostfile.hosts),
            ranks=self.plan.ranks,
            launch_timeout=settings.launch_timeout,
            grace=settings.grace,
            folder=self.where.launch_dir,
            set_env={name: value for name, value in environ.items() if own_env.get(name) != value},
            obstacles=self.plan.obstacles,
            attempt=attempt if any(item.runs_mpiboot for item in self.observed.workers) else "",
            program=self.observed.line.program,
            tolerates_failure=self.plan.tolerates_failure,
            addresses=launcher_addresses(self.observed.workers),
            ports=settings.port_range,
            stop_signal=signal.Signals[f"SIG{settings.stop_signal}"],
            supervise=settings.supervise is Switch.ON,
            end_late=self.resolved.given["launch_timeout"].source is not Source.DEFAULT,
            exit_codes=self.plan.exit_codes,
            all_hosts=self._all_hosts,
            prove=settings.prove_transport.value if self._is_proved else "",
            transport=(self.plan.transport or Transport.NONE).value,
            warned=job_hosts.explaining_ends(self.plan.findings),
            remote=agent.value,
            time_limit=" and ".join(limits),
            mpi_link=self.plan.mpi_link,
        )

    def _with_counters(self, hosts: Sequence[evidence.HostSnapshot]) -> list[evidence.HostSnapshot]:
        """Add the counters that tell what carries the data, of the job's hosts."""
        observed, plan = self.observed, self.plan
        networks = {observed.called(one.host): one for one in plan.networks}
        before = {observed.called(one.host.name): one.counters for one in observed.workers}
        local = next(iter(observed.local_names), "")
        before[local] = observed.own_counters
        all_hosts = {*plan.remote_hosts, *observed.local_names}
        named, rdma = plan.named_devices, plan.transport in RDMA
        found = []
        for host in hosts:
            name = local if host.here else host.name
            if name in all_hosts and name in networks:
                ports = evidence.counted_ports(networks[name], rdma=rdma, any_device=named)
                counters = {port.name: before[name].get(port.name, {}) for port in ports}
                host = replace(host, counted=ports, counters=counters, may_idle=not host.here)  # noqa: PLW2901
            found.append(host)
        return found


def baselines(workers: Iterable[Worker]) -> tuple[evidence.HostSnapshot, ...]:
    """Record the workers that are notified of a command's end."""
    return tuple(evidence.snapshot(item, item.host.name) for item in workers)


def known_hosts(hosts: Iterable[sshconfig.LaunchHost], public: str) -> str:
    """Pin the job's key under its alias, and single hosts' keys under theirs."""
    own = (f"{host.key_alias} {host.key}" for host in hosts if host.key)
    return "".join(f"{line}\n" for line in dict.fromkeys((f"{sshconfig.ALIAS} {public}", *own)))


def _is_safe(file: str) -> bool:
    """Tell whether ssh takes a file by Include: none that others may write (readconf.c)."""
    try:
        found = Path(file).expanduser().stat()
    except (OSError, RuntimeError):  # nothing there, no home folder
        return True
    return found.st_uid in (0, os.getuid()) and not found.st_mode & 0o022


def tidy(folder: Path, name: str) -> None:
    """Remove the folders ``NAME-PID``, with a copy of the key, of processes that have ended."""
    for path in folder.glob(f"{name}-[0-9]*"):
        if not Path("/proc", path.name.rpartition("-")[2]).exists():
            shutil.rmtree(path, ignore_errors=True)


def make_folder(folder: Path) -> None:
    """Make the folder that launch agents read, without what an earlier launch left.

    Raises:
        MpibootError: ``runtime-folder``.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with files.writing():
        for path in (folder, folder / AGENT_HOSTS, folder / "stderr"):
            path.mkdir(mode=0o700)


@dataclass(frozen=True, slots=True)
class Logins:
    """The hosts of a folder of logins, by each name that ssh may be called with.

    ``host_keys`` are those of single hosts, by the hostfile's names; ``user_args`` the user's own
    ssh arguments.
    """

    folder: Path
    hosts: Mapping[str, Worker]
    host_keys: Mapping[str, str]
    key: keys.JobKey
    settings: Settings
    user_args: sshconfig.UserArgs = field(default_factory=sshconfig.UserArgs)
    client: OpensshClient | None = None

    @property
    def entries(self) -> tuple[sshconfig.LaunchHost, ...]:
        """The hosts as ssh finds them, with the keys that some have of their own."""
        found = []
        for name, worker in self.hosts.items():
            listed, client = worker.host.name, self.client
            own = client.known(listed) if client else HostSettings(listed)
            found.append(
                sshconfig.LaunchHost(
                    *(name, "" if own.proxied else worker.address, worker.port, worker.user),
                    key=self.host_keys.get(listed, ""),
                    by_ssh=client is not None and listed in client.carried,
                    proxy=own.proxy,
                    send=own.send,
                    variables=own.variables,
                )
            )
        return tuple(found)

    @property
    def pins(self) -> str:
        """The options for host keys as words of ssh's command line, where the first value wins."""
        chosen = sshconfig.pins(str(self.folder / sshconfig.KNOWN_HOSTS), self.settings.host_keys)
        return " ".join(f"-o {name}={value}" for name, value in chosen.items())

    def make_folder(self) -> None:
        """Make the folder anew, with a copy of the key.

        Raises:
            MpibootError: ``runtime-folder``.
        """
        make_folder(self.folder)
        keys.copy(self.key, self.folder / launch_names.KEY)
        # By which ssh finds the key that belongs to a certificate.
        files.write_private(self.folder / f"{launch_names.KEY}.pub", self.key.public + "\n")

    def write(
        self,
        *,
        ssh: str,
        user_agent: str = "",
        linger: int = 0,
        per_host: Mapping[str, Mapping[str, str]],
        environ: Mapping[str, str] | None = None,
        later: Iterable[sshconfig.LaunchHost] = (),
    ) -> None:
        """Write what ssh and the agents read.

        Args:
            ssh: the path of ssh; empty where there is none.
            user_agent: the words of the user's own launch agent, or empty.
            linger: the seconds that an agent waits for mpirun's end.
            per_host: variables of single hosts.
            environ: the agents' variables beside mpirun's environment.
            later: patterns of hosts that may join the job.

        Raises:
            MpibootError: ``runtime-folder``.
        """
        known, entries = self.folder / sshconfig.KNOWN_HOSTS, self.entries
        carried = [entry.name for entry in entries if entry.by_ssh]
        by_ssh = () if user_agent or self.settings.supervise is Switch.OFF else carried
        if by_ssh and len(by_ssh) == len(entries):  # and those that join, too
            user_agent, by_ssh = _BY_SSH, ()
        args = self.user_args
        if self.client and not self.client.usable:
            args = replace(args, file="none")  # which would end each login
        elif args.file not in ("", "none"):  # Include would look in ~/.ssh
            args = replace(args, file=str(Path(args.file).absolute()))
        if (certificate := Path(f"{self.key.path}-cert.pub")).is_file():
            line = f"CertificateFile {sshconfig.quoted(str(certificate))}"
            args = replace(args, lines=(*args.lines, line))
        files.write_private(known, known_hosts(entries, self.key.public))
        files.write_private(
            self.folder / sshconfig.SSH_CONFIG,
            sshconfig.render(
                (*entries, *(replace(item, by_ssh=bool(carried)) for item in later)),
                key=str(self.folder / launch_names.KEY),
                known_hosts=str(known),
                host_keys=self.settings.host_keys,
                keepalive=self.settings.ssh_keepalive,
                user_args=args,
                files=tuple(filter(_is_safe, sshconfig.FILES)),
            ),
        )
        write_agent_files(
            self.folder,
            # Open MPI's own files may add arguments that mpiboot can't take away.
            ssh=f"{ssh or 'ssh'} {self.pins}",
            user_agent=user_agent,
            linger=str(linger),
            per_host=per_host,
            environ=environ or {},
            by_ssh=by_ssh,
        )

    def write_pool(self) -> None:
        """Write which workers are notified of a command's end (``command.workers_of``).

        Raises:
            MpibootError: ``runtime-folder``.
        """
        config = PoolConfig(
            hosts=tuple(host for host in self.pool_hosts() if self.hosts[host.name].runs_mpiboot),
            key=str(self.folder / launch_names.KEY),
            patience=sshconfig.patience(self.settings.ssh_keepalive, self.user_args),
            folder=str(self.folder),
            ssh=self.client.program if self.client else "",
        )
        files.write_private(self.folder / launch_names.POOL, write_records(config))

    def pool_hosts(self, most: int = 0) -> tuple[sshconfig.LaunchHost, ...]:
        """Give the hosts as the pool is to know them; it may have so many sessions at once.

        Raises:
            MpibootError: ``settings-conflict``; too few files may be open.
        """
        if short := short_of_files(most, os_calls.most_open_files()):
            hint = "give the container runtime a higher LimitNOFILE"
            raise error("settings-conflict", short, hint=hint)
        unchecked = self.settings.host_keys is HostKeys.OFF
        return tuple(
            replace(host, key="" if unchecked else host.key or self.key.public)
            for host in self.entries
        )


# The agent reads both under these names.
AGENT_CONFIG: Final = "agent.conf"
_KUBECTL_STDIN: Final = "stdin"
AGENT_HOSTS: Final = "hosts"
_BY_SSH: Final = "exec_ssh"  # the agent's own function


def assignments(values: Mapping[str, str]) -> str:
    """Write ``name='value'`` lines that a POSIX shell reads back byte for byte."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


def exports(values: Mapping[str, str]) -> str:
    """Write variables for the front of a remote command line, which any POSIX shell reads."""
    quoted = ((name, value.replace("'", "'\\''")) for name, value in values.items())
    return "".join(f"export {name}='{value}';\n" for name, value in quoted)


def write_agent_files(
    folder: Path,
    *,
    per_host: Mapping[str, Mapping[str, str]],
    environ: Mapping[str, str],
    by_ssh: Collection[str] = (),
    **words: str,
) -> None:
    """Write the agent's files.

    Args:
        folder: the launch folder, which holds the folder AGENT_HOSTS already.
        per_host: variables of single hosts, by mpirun's names.
        environ: the agent's variables beside mpirun's environment.
        by_ssh: the hosts that the image's ssh logs in to, by mpirun's names.
        **words: what ``libexec/agent`` reads: ssh, user_agent, kubectl, namespace, remote_end,
            linger.

    Raises:
        MpibootError: ``runtime-folder``.
    """
    hosts = folder / AGENT_HOSTS
    for name in {*per_host, *by_ssh}:
        own = {"exports": exports(per_host.get(name, {})).rstrip()}
        own |= {"user_agent": _BY_SSH} if name in by_ssh else {}
        files.write_private(hosts / f"{name}.env", assignments(own))
    files.write_private(folder / AGENT_CONFIG, assignments(words) + exports(environ))


def by_kubectl(folder: Path, access: PodAccess) -> dict[str, str]:
    """Make what the agent needs to enter pods; give the arguments for ``write_agent_files``.

    Args:
        folder: the launch folder.
        access: how pods are entered.

    Raises:
        MpibootError: ``runtime-folder``.
    """
    files.make_fifo(folder / _KUBECTL_STDIN)
    words = {"kubectl": access.kubectl, "namespace": access.namespace}
    return {**words, "remote_end": KUBECTL_ENDED}
