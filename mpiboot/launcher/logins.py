"""What ssh, the launch agents and mpiboot's own SSH client read to log in to the job's hosts."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mpiboot.core import launch_spec
from mpiboot.core.choices import HostKeys
from mpiboot.core.errors import error
from mpiboot.core.model import Worker
from mpiboot.core.settings import Settings
from mpiboot.launcher import agent_files
from mpiboot.ssh import client_start
from mpiboot.ssh import config as sshconfig
from mpiboot.supervisor import evidence
from mpiboot.system import executables, files, keys, open_files

KNOWN_HOSTS: Final = "known_hosts"


def known_hosts(workers: Iterable[Worker], host_keys: Mapping[str, str], public: str) -> str:
    """Pin the job's key under its alias, and what single hosts showed under their addresses."""
    lines = [f"{sshconfig.ALIAS} {public}"]
    for worker in workers:
        shown = host_keys.get(worker.host.name)
        if shown:
            lines.append(f"[{worker.address}]:{worker.port},{worker.address} {shown}")
    return "\n".join(lines) + "\n"


def tidy(folder: Path, name: str) -> None:
    """Take away the folders, ``NAME-PID`` with a copy of the key, of processes that are no more."""
    for path in folder.glob(f"{name}-[0-9]*"):
        if not Path("/proc", path.name.rpartition("-")[2]).exists():
            shutil.rmtree(path, ignore_errors=True)


def make_folder(folder: Path) -> None:
    """Make the folder that launch agents read anew.

    Raises:
        MpibootError: ``runtime-folder``.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with files.writing():
        for path in (folder, folder / agent_files.HOSTS, folder / "stderr"):
            path.mkdir(mode=0o700)


@dataclass(frozen=True, slots=True)
class Logins:
    """The hosts of a folder of logins, by each name that ssh may be called with.

    ``host_keys`` are those that single hosts showed, by the hostfile's names; ``user_args`` the
    user's own ssh arguments; ``watched`` where mpirun's parent looks for silent hosts.
    """

    folder: Path
    hosts: Mapping[str, Worker]
    host_keys: Mapping[str, str]
    key: keys.JobKey
    settings: Settings
    user_args: sshconfig.UserArgs = field(default_factory=sshconfig.UserArgs)
    watched: bool = False

    @property
    def patience(self) -> sshconfig.SshTimeouts:
        """How often a login is tried, and when a silent host counts as lost."""
        keepalive = self.settings.ssh_keepalive
        return sshconfig.patience(keepalive, self.user_args, watched=self.watched)

    @property
    def strict(self) -> str:
        """What ssh is told on its command line of host keys, where the first value wins."""
        return f"StrictHostKeyChecking={sshconfig.STRICT[self.settings.host_keys]}"

    def make_folder(self) -> None:
        """Make the folder anew, with a copy of the key.

        Raises:
            MpibootError: ``runtime-folder``.
        """
        make_folder(self.folder)
        keys.copy(self.key, self.folder / launch_spec.KEY)

    def write(
        self,
        *,
        ssh: str,
        user_agent: str = "",
        own_client: bool = False,
        per_host: Mapping[str, Mapping[str, str]],
        environ: Mapping[str, str] | None = None,
        later: Iterable[sshconfig.SshHost] = (),
    ) -> None:
        """Write what ssh and the agents read.

        Args:
            ssh: the path of ssh; empty where there is none.
            user_agent: the words of the user's own launch agent, or empty.
            own_client: whether mpiboot's own client takes ssh's place.
            per_host: variables of single hosts.
            environ: what the agents have beside mpirun's environment.
            later: patterns of hosts that may join the job.

        Raises:
            MpibootError: ``runtime-folder``.
        """
        known = self.folder / KNOWN_HOSTS
        workers = {worker.host.name: worker for worker in self.hosts.values()}
        files.write_private(known, known_hosts(workers.values(), self.host_keys, self.key.public))
        own_keys = (name for name in self.hosts if self.hosts[name].host.name in self.host_keys)
        entries = (
            sshconfig.SshHost(name, worker.address, worker.port, worker.user)
            for name, worker in self.hosts.items()
        )
        files.write_private(
            self.folder / "ssh_config",
            sshconfig.render(
                (*entries, *later),
                key=str(self.folder / launch_spec.KEY),
                known_hosts=str(known),
                host_keys=self.settings.host_keys,
                keepalive=self.settings.ssh_keepalive,
                user_args=self.user_args,
                own_keys=frozenset(own_keys),
                costly_kex=executables.knows(ssh, sshconfig.COSTLY_KEX),
                watched=self.watched,
            ),
        )
        agent_files.write(
            self.folder,
            # On the command line the first value wins, also over arguments on the mpirun line.
            ssh=f"{ssh or 'ssh'} -o {self.strict}",
            user_agent=user_agent,
            client=client_start.client_words() if own_client else "",
            per_host=per_host,
            environ=environ or {},
        )
        files.make_fifo(self.folder / launch_spec.EVENTS)

    def write_baselines(self, workers: Iterable[Worker]) -> None:
        """Write whom to tell of the end of what logs in by itself; it is asked for no evidence.

        Raises:
            MpibootError: ``runtime-folder``.
        """
        seen = tuple(evidence.baseline(item, item.host.name, "") for item in workers)
        files.write_private(self.folder / evidence.FILE, evidence.to_json(seen))

    def client_config(self, parent: int, most: int) -> client_start.ClientConfig:
        """Say what mpiboot's own SSH client is told.

        Args:
            parent: the process with which it ends.
            most: how many hosts it may serve at once.

        Raises:
            MpibootError: ``settings-conflict``; too few files may be open.
        """
        short = client_start.short_of_files(most, open_files.most())
        if short:
            hint = "install ssh in the image, or give the container runtime a higher LimitNOFILE"
            raise error("settings-conflict", short, hint=hint)
        unchecked = self.settings.host_keys is HostKeys.OFF
        hosts = tuple(
            client_start.ClientHost(
                name,
                worker.address,
                worker.port,
                worker.user,
                "" if unchecked else self.host_keys.get(worker.host.name, self.key.public),
            )
            for name, worker in self.hosts.items()
        )
        return client_start.ClientConfig(
            hosts=hosts,
            key=str(self.folder / launch_spec.KEY),
            patience=self.patience,
            events=str(self.folder / launch_spec.EVENTS),
            errors=str(self.folder / "stderr"),
            parent=parent,
        )
