"""Launcher setup: identity, private folder, the job's key."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from mpiboot.core import log
from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Host
from mpiboot.core.launch_spec import LAUNCH_ID
from mpiboot.core.model import Decision, Identity
from mpiboot.core.settings import Resolved, Settings
from mpiboot.hosts import dns, remote_commands
from mpiboot.hosts.pipeline import PORTS, SshAccess, choose_access
from mpiboot.job import names
from mpiboot.job.control_links import all_arguments, given_by_user
from mpiboot.launcher.launch_folder import Logins, make_folder, tidy
from mpiboot.network import pod
from mpiboot.ssh import openssh
from mpiboot.ssh.client import OpensshClient, PodAccess, read_settings
from mpiboot.ssh.config import UserArgs, patience, unusable
from mpiboot.ssh.pool import Pool
from mpiboot.system import files, keys, process, programs

# Seconds that a Secret may be mounted late where there is another way to the hosts.
_KEY_IS_LATE: Final = 5.0


@dataclass(eq=False)
class LauncherPod:
    """A launcher's own pod: identity, private folder, and the job's key.

    ``started`` is the time of the monotonic clock. ``attempt`` and ``may_disconnect`` are sent to
    the workers (``host_shell.gate``). ``find_key`` gives it the rest: ``key`` stays None if hosts
    are entered by kubectl (``pods`` has how, ``chosen`` why), or if this pod is the only host.
    """

    resolved: Resolved
    environ: Mapping[str, str]
    identity: Identity
    folder: Path
    started: float
    attempt: str = ""
    may_disconnect: bool = False
    key: keys.JobKey | None = None
    pods: PodAccess | None = None
    chosen: Decision | None = None
    reaches: SshAccess | None = None

    @property
    def settings(self) -> Settings:
        """The settings of this run."""
        return self.resolved.settings

    @property
    def rest(self) -> Settings:
        """The settings with what is left of the one deadline."""
        left = self.started + self.settings.timeout - time.monotonic()
        return replace(self.settings, timeout=max(0.0, left))

    @property
    def client(self) -> OpensshClient | None:
        """The image's own ssh with the arguments that were read last; None where it can't run."""
        return self.reaches.pool.client if self.reaches else None

    @property
    def job(self) -> str:
        """What identifies this job: only its launchers have it."""
        if self.key is not None:
            return self.key.public
        return f"namespace {self.pods.namespace if self.pods else ''}"

    @cached_property
    def launch_id(self) -> str:
        """The ID of this launch; a launch inside a launch is part of it."""
        return self.environ.get(LAUNCH_ID) or remote_commands.new_launch_id(self.job)


def launcher_pod(
    resolved: Resolved,
    environ: Mapping[str, str],
    role: str = "launcher",
    attempt: str = "",
    *,
    may_disconnect: bool = False,
) -> LauncherPod:
    """Find this pod's identity, and make a role's private folder.

    Raises:
        MpibootError: ``runtime-folder`` or ``tmpdir``.
    """
    started = time.monotonic()
    identity = pod.identity(environ)
    process.raise_soft_limits()  # a connection for each host
    named, wanted = environ.get("TMPDIR", ""), resolved.settings.runtime_dir
    files.check_tmpdir(named)
    split = role == "launcher"
    folder = files.runtime_dir(wanted, identity.uid, role, tmpdir=named, split=split)
    # asyncssh asks for these names, and fails under a uid without a passwd entry.
    os.environ.update(pod.user_environment(identity, environ, folder))
    os.environ.update(files.complete_tmpdir(environ, folder))
    return LauncherPod(resolved, environ, identity, folder, started, attempt, may_disconnect)


def find_key(launcher: LauncherPod, hosts: Iterable[Host], seconds: float | None = None) -> None:
    """Find the job's key, or how kubectl enters the hosts; a hostfile of this pod needs neither.

    Args:
        launcher: this pod.
        hosts: the job's.
        seconds: how long a Secret is waited for; None: the rest of the deadline.

    Raises:
        MpibootError: ``ssh-key``; there is none, or it can't be read.
    """
    environ, identity, wanted = launcher.environ, launcher.identity, launcher.settings.ssh_key
    seconds = launcher.rest.timeout if seconds is None else seconds
    homes = (identity.home, environ.get("HOME", ""))
    if not keys.find(wanted, homes, identity.uid):
        wanted = wanted or _key_of_ssh(environ, identity)
    place = (wanted, homes, identity.uid)

    def key_is_there() -> bool:
        if keys.unreadable_key(wanted, identity.uid):
            return True
        try:
            return bool(keys.wait(*place, min(seconds, _KEY_IS_LATE)))
        except MpibootError:
            return False

    if by_kubectl := choose_access(launcher.resolved, environ, key_is_there):
        launcher.pods, launcher.chosen = by_kubectl
    elif keys.find(*place) or remote(hosts):
        mounted = keys.wait(*place, seconds)
        launcher.key = keys.load(mounted)
        if warning := keys.check_authorized_keys(launcher.key, mounted):
            log.finding(warning)


def remote(hosts: Iterable[Host]) -> list[str]:
    """Give the names of the hosts that are not this pod."""
    own = socket.gethostname()
    fqdns = pod.own_names(own)
    return [host.name for host in hosts if not names.is_local(host.name, own, fqdns)]


def _key_of_ssh(environ: Mapping[str, str], identity: Identity) -> str:
    """Give the key that ssh is set to use, which lies where no job's does; empty for none."""
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
    """Give the image's own ssh; None where it can't run, or nobody logs in."""
    ssh = shutil.which("ssh", path=launcher.environ.get("PATH", "")) or ""
    if launcher.key is None or unusable(ssh, launcher.identity):
        return None

    def prepare() -> Path:
        folder = launcher.folder / f"gate-{os.getpid()}"
        tidy(launcher.folder, "gate")
        make_folder(folder, launcher.key)
        Logins(folder, launcher, args).write()
        return folder

    return OpensshClient(ssh, args, launcher.identity.user, folder=prepare)


def access(launcher: LauncherPod, args: UserArgs | None = None) -> SshAccess:
    """Give how this launcher reaches its workers, the same until other arguments are given.

    Args:
        launcher: this pod, whose key was found.
        args: the user's own for ssh; None: those that were given before, else the environment's.
    """
    if args is None and launcher.reaches:
        return launcher.reaches
    settings, identity = launcher.settings, launcher.identity
    args = args or given_by_user(launcher.environ)
    pool = Pool(
        launcher.key.path if launcher.key else None,
        host_key=launcher.key.public if launcher.key else "",
        host_keys=settings.host_keys,
        timeouts=patience(settings.ssh_keepalive, args),
        client=_ssh_client(launcher, args),
        pods=launcher.pods,
    )
    hostname = socket.gethostname()
    api = launcher.environ.get(pod.API, "")
    own, _ = pod.control_address(settings.control_ifname, hostname, api=api)
    named = openssh.client_port(launcher.environ, identity.home)
    ports = tuple(dict.fromkeys((named[0], *PORTS))) if named else PORTS
    search = dns.read_resolv_conf().search
    launcher.reaches = SshAccess(
        user=settings.ssh_user or args.user or identity.user,
        pool=pool,
        hostname=hostname,
        ports=(args.port,) if args.port else ports,
        fqdns=pod.own_names(hostname),
        ipv6=":" in own if own else None,
        domain=settings.cluster_domain or names.cluster_domain(search) or "cluster.local",
        attempt=launcher.attempt,
        may_disconnect=launcher.may_disconnect,
    )
    return launcher.reaches
