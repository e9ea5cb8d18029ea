"""The launch folder: what mpirun, its agents, ssh and the parent read; made anew each try."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from mpiboot.core import addresses, launch_spec
from mpiboot.core.choices import LaunchAgent, Stuck, Switch
from mpiboot.core.errors import error
from mpiboot.core.model import Worker
from mpiboot.core.setting_sources import Resolved
from mpiboot.hosts.dns import read_resolv_conf
from mpiboot.hosts.kubectl_choice import ENVIRONMENT
from mpiboot.hosts.kubectl_pods import PodAccess
from mpiboot.job import names, own_ranks
from mpiboot.job.plan import Plan
from mpiboot.job.plan_builder import LaunchPaths, Observed
from mpiboot.launcher import agent_files
from mpiboot.launcher.logins import Logins, make_folder, tidy
from mpiboot.network.control import launcher_addresses
from mpiboot.ssh import client_start
from mpiboot.ssh import config as sshconfig
from mpiboot.supervisor import evidence, host_watch
from mpiboot.system import executables, files, keys, tmpdir

_LAUNCH: Final = "launch"


def paths(folder: Path, pid: int = 1, name: str = _LAUNCH) -> LaunchPaths:
    """Say where everything will be.

    Args:
        folder: the launcher's runtime folder.
        pid: the process that will be mpirun's parent. Each launch below a script has a folder of
            its own, for there may be several at once; a pod's first process is always the same.
        name: what the folder is called.

    Raises:
        MpibootError: ``runtime-folder``; mpirun or ssh would read another path than was meant.
    """
    if any(char.isspace() for char in str(folder)):
        raise error(
            "runtime-folder",
            f"the runtime folder {str(folder)!r} has a blank in its path, "
            "and mpirun splits it there",
            hint="name a folder without blanks with MPIBOOT_RUNTIME_DIR",
        )
    # ssh_config has no way to write these two as they are.
    if "${" in str(folder):
        raise error(
            "runtime-folder",
            f"the runtime folder {str(folder)!r} has ${{ in its path, and ssh puts a variable's "
            "value there",
            hint="name a folder without ${ with MPIBOOT_RUNTIME_DIR",
        )
    path = folder / (name if pid == 1 else f"{name}-{pid}")
    agent = client_start.agent_words()
    key = str(path / launch_spec.KEY)
    return LaunchPaths(str(path), agent, key, named=os.path.realpath(folder))


def _others(worker: Worker) -> tuple[str, ...]:
    """List a worker's addresses as the kernel writes them: its daemon may connect from any."""
    links = worker.facts.links if worker.facts else ()
    found = (addresses.parse(addresses.bare(item)) for link in links for item in link.addresses)
    known = {addresses.plain(str(item)) for item in found if item and not item.is_loopback}
    return tuple(sorted((known | {addresses.plain(worker.address)}) - {worker.address}))


@dataclass(frozen=True)
class Launch:
    """One start of mpirun: the plan, and what its files are made of.

    ``host_keys`` are those that single hosts showed, by the hostfile's names. ``pods`` is how
    kubectl enters the hosts; there is no ``key`` then.
    """

    plan: Plan
    observed: Observed
    host_keys: Mapping[str, str]
    key: keys.JobKey | None
    resolved: Resolved
    where: LaunchPaths
    pods: PodAccess | None = None

    def write(self) -> None:
        """Write what mpirun, its agents and ssh read.

        Raises:
            MpibootError: ``runtime-folder``, or ``program-missing`` where there is no ssh.
        """
        if self.key is not None:
            self._write_logins(self.logins(self.key))
        elif self.pods is not None:
            self._write_for_kubectl(self.pods)
        for path, text in {
            self.where.hostfile: self.plan.hostfile,
            **self.plan.more_hostfiles,
        }.items():
            files.write_private(Path(path), text)
        own_file = f"{self.where.launch_dir}/{own_ranks.FILE}"
        if own_file in self.plan.argv:
            files.write_private(Path(own_file), agent_files.exports(self.plan.agent_env))
        tidy(Path(self.where.launch_dir).parent, _LAUNCH)
        tmpdir.remove_stale(self.observed.environ, socket.gethostname(), self.observed.identity.uid)

    def _write_for_kubectl(self, pods: PodAccess) -> None:
        folder, environ = Path(self.where.launch_dir), self.observed.environ
        make_folder(folder)
        needed = {name: environ[name] for name in ENVIRONMENT if name in environ}
        kubectl = agent_files.write_kubectl(folder, pods, needed)
        agent_files.write(
            folder,
            ssh="ssh",
            user_agent=self.plan.user_agent,
            **({"client": ""} if self.plan.user_agent else kubectl),
            per_host=self.plan.per_host,
            environ=self.plan.agent_env,
        )
        files.make_fifo(folder / launch_spec.EVENTS)

    def _write_logins(self, logins: Logins) -> None:
        logins.make_folder()
        ssh = executables.find("ssh", self.observed.environ.get("PATH", ""))
        own = not self.plan.user_agent and self.observed.own_client
        if ssh is None and self.plan.daemons and not self.plan.user_agent and not own:
            raise error(
                "program-missing",
                "no ssh in a folder of PATH",
                evidence=(f"PATH={self.observed.environ.get('PATH', '')}",),
                hint="install openssh-client in the launcher's image, "
                "or let MPIBOOT_SSH_CLIENT choose mpiboot's own",
            )
        logins.write(
            ssh=ssh or "",
            user_agent=self.plan.user_agent,
            own_client=own,
            per_host=self.plan.per_host,
            environ=self.plan.agent_env,
        )

    def logins(self, key: keys.JobKey) -> Logins:
        """Give how mpirun's agents log in, by mpirun's names for the hosts."""
        return Logins(
            Path(self.where.launch_dir),
            {self.observed.called(item.host.name): item for item in self.observed.workers},
            self.host_keys,
            key,
            self.resolved.settings,
            self.plan.user_args,
            watched=self._silent > 0,
        )

    @cached_property
    def _silent(self) -> float:
        """After how many seconds of silence mpirun's parent looks for a host; 0: it does not."""
        settings = self.resolved.settings
        seconds = sshconfig.patience(settings.ssh_keepalive, self.plan.user_args).silent
        others = self.plan.user_agent or self.key is None or settings.supervise is not Switch.ON
        watched = seconds < settings.ssh_keepalive and not others and host_watch.can_look()
        return seconds if watched else 0.0

    def write_client(self, parent: int) -> tuple[str, ...]:
        """Write what mpiboot's own SSH client needs, where the agents need it.

        Returns:
            The client's command line; empty where it isn't needed.

        Raises:
            MpibootError: ``runtime-folder``.
        """
        config = self.client_config(parent)
        return client_start.write(Path(self.where.launch_dir), config) if config else ()

    def client_config(self, parent: int) -> client_start.ClientConfig | None:
        """Say what mpiboot's own SSH client is told, where the agents need it.

        Raises:
            MpibootError: ``settings-conflict``; too few files may be open.
        """
        if self.plan.user_agent or not self.plan.daemons or not self.observed.own_client:
            return None
        if self.key is None:
            return None
        return self.logins(self.key).client_config(parent, len(self.plan.daemons))

    def spec(
        self,
        own_env: Mapping[str, str],
        environ: Mapping[str, str],
        client: tuple[str, ...],
        *,
        attempt: str,
    ) -> launch_spec.LaunchSpec:
        """Make what the parent needs to know; what the end is explained from is written.

        Args:
            own_env: the parent's environment.
            environ: mpirun's environment.
            client: the command line of mpiboot's own SSH client, or nothing.
            attempt: this launcher's name for workers; empty where they are told of no end.

        Raises:
            MpibootError: ``runtime-folder``.
        """
        settings = self.resolved.settings
        reached = {
            self.observed.called(worker.host.name): worker for worker in self.observed.workers
        }
        search = read_resolv_conf().search
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        seen = tuple(baseline(item, self.observed, search, now) for item in self.observed.workers)
        name, ooms = socket.gethostname(), self.observed.own_oom_kills
        own = evidence.Baseline(name, "", "", name, oom_kills=ooms, here=True, started=now)
        text = evidence.to_json((own, *seen))
        files.write_private(Path(self.where.launch_dir) / evidence.FILE, text)
        return launch_spec.LaunchSpec(
            argv=self.plan.argv,
            family=self.observed.mpi.family,
            daemons=tuple(
                launch_spec.RemoteHost(
                    name, reached[name].address, reached[name].port, _others(reached[name])
                )
                for name in self.plan.daemons
                if name in reached
            ),
            hosts=len(self.observed.hostfile.hosts),
            ranks=self.plan.ranks,
            launch_timeout=settings.launch_timeout,
            grace=settings.grace,
            folder=self.where.launch_dir,
            set_env={name: value for name, value in environ.items() if own_env.get(name) != value},
            unset_env=tuple(name for name in own_env if name not in environ),
            client=client,
            obstacles=self.plan.obstacles,
            attempt=attempt if any(item.runs_mpiboot for item in self.observed.workers) else "",
            program=self.plan.program,
            goes_on=self.plan.goes_on,
            addresses=launcher_addresses(self.observed.workers),
            ports=settings.port_range,
            stop_signal=signal.Signals[f"SIG{settings.stop_signal}"],
            supervise=settings.supervise is Switch.ON,
            left_to_mpirun=self.plan.left_to_mpirun,
            connect_check=settings.connect_check,
            end_stuck=settings.stuck is Stuck.END,
            exit_codes=self.plan.exit_codes,
            open_files=self.plan.open_files,
            silent=self._silent,
            keepalive=settings.ssh_keepalive,
            remote=LaunchAgent.KUBECTL
            if self.pods and not self.plan.user_agent
            else LaunchAgent.SSH,
        )


def baseline(
    worker: Worker, observed: Observed, search: Sequence[str] = (), started: str = ""
) -> evidence.Baseline:
    """Note what is compared with after a failure; ``search`` is resolv.conf's list."""
    called = observed.called(worker.host.name)
    # mpirun has a made-up name for some hosts, which no nameserver knows.
    listed = worker.host.name
    dns = called if called.startswith(f"{listed}.") else listed
    # Where kubectl enters pods nobody has asked for their names, and they may have none.
    dns = "" if addresses.is_address(listed) or observed.by_kubectl else dns
    in_cluster = names.in_cluster(dns, search) if dns else ()
    return evidence.baseline(worker, called, dns, in_cluster, started)
