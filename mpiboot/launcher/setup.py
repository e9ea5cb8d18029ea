"""Launcher setup: identity, private folder, the job's key."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mpiboot.core import log
from mpiboot.core.checks import MpibootError
from mpiboot.core.model import Decision, Identity
from mpiboot.core.settings import Resolved
from mpiboot.hosts import dns
from mpiboot.hosts.access import PORTS, SshAccess, choose_access
from mpiboot.job import names
from mpiboot.job.agent_variables import all_arguments, given_by_user
from mpiboot.launcher.launch_folder import Logins, tidy
from mpiboot.network import pod
from mpiboot.ssh import openssh
from mpiboot.ssh.client import OpensshClient, read_settings
from mpiboot.ssh.config import UserArgs, patience, unusable
from mpiboot.ssh.kubectl import PodAccess
from mpiboot.ssh.pool import Pool
from mpiboot.system import files, keys, os_calls, programs

# Seconds that a Secret may be mounted late where there is another way to the hosts.
_KEY_IS_LATE: Final = 5.0


@dataclass(frozen=True, slots=True)
class LauncherPod:
    """A launcher's own pod: identity, private folder, and the job's key.

    ``started`` is the time of the monotonic clock. ``attempt`` and ``may_disconnect`` are sent to
    the workers (``host_shell.gate``). ``key`` is None if hosts are entered by kubectl (``pods`` has
    how, ``chosen`` why), or if this pod is the only host.
    """

    resolved: Resolved
    environ: Mapping[str, str]
    identity: Identity
    folder: Path
    key: keys.JobKey | None
    started: float
    attempt: str = ""
    may_disconnect: bool = False
    pods: PodAccess | None = None
    chosen: Decision | None = None
    accesses: list[SshAccess] = field(default_factory=list, compare=False)

    @property
    def client(self) -> OpensshClient | None:
        """The image's own ssh with the arguments that were read last; None where it can't run."""
        return self.accesses[-1].pool.client if self.accesses else None

    @property
    def job(self) -> str:
        """What identifies this job: only its launchers have it."""
        if self.key is not None:
            return self.key.public
        return f"namespace {self.pods.namespace if self.pods else ''}"


def launcher_pod(
    resolved: Resolved,
    environ: Mapping[str, str],
    role: str = "launcher",
    patience: float | None = None,
    attempt: str = "",
    *,
    may_disconnect: bool = False,
    needs_key: Callable[[float], bool] = lambda _patience: True,
) -> LauncherPod:
    """Find this pod's identity, make a role's private folder, and read the job's key.

    The key may be mounted late: it is waited for until the launcher's deadline, or for ``patience``
    seconds if given. ``attempt`` and ``may_disconnect`` are sent to the workers. Where no key is
    mounted, ``needs_key`` tells whether there is a host to log in to.

    Raises:
        MpibootError: ``runtime-folder``, ``tmpdir`` or ``ssh-key``; or what ``needs_key`` raises.
    """
    started = time.monotonic()
    settings = resolved.settings
    identity = pod.identity(environ)
    os_calls.raise_soft_limits()  # a connection for each host
    named = environ.get("TMPDIR", "")
    files.check_tmpdir(named)
    folder = files.runtime_dir(
        settings.runtime_dir, identity.uid, role, tmpdir=named, split=role == "launcher"
    )
    # asyncssh asks for these names, and fails under a uid without a passwd entry.
    added = pod.user_environment(identity, environ, folder)
    for name, value in (added | files.complete_tmpdir(environ, folder)).items():
        os.environ[name] = value
    most = settings.timeout if patience is None else patience
    homes = (identity.home, environ.get("HOME", ""))

    named_key = settings.ssh_key
    if not keys.find(named_key, homes, identity.uid):
        named_key = named_key or _key_of_ssh(environ, identity)

    def key_is_there() -> bool:
        if keys.unreadable_key(named_key, identity.uid):
            return True
        try:
            return bool(keys.wait(named_key, homes, identity.uid, min(most, _KEY_IS_LATE)))
        except MpibootError:
            return False

    pods, chosen = choose_access(resolved, environ, key_is_there) or (None, None)
    key, place, wanted = None, (named_key, homes, identity.uid), pods is None
    # Where the hostfile is wrong, or has this pod alone, there is no key to wait for.
    if wanted and not keys.find(*place):
        wanted = needs_key(most)
        most = max(0.0, started + most - time.monotonic())
    if wanted:
        mounted = keys.wait(*place, most)
        key = keys.load(mounted)
        warning = keys.check_authorized_keys(key, mounted)
        if warning:
            log.finding(warning)
    return LauncherPod(
        *(resolved, environ, identity, folder, key, started, attempt, may_disconnect, pods, chosen)
    )


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


def ssh_client(launcher: LauncherPod, args: UserArgs) -> OpensshClient | None:
    """Give the image's own ssh; None where it can't run, or nobody logs in."""
    ssh, key = shutil.which("ssh", path=launcher.environ.get("PATH", "")) or "", launcher.key
    if key is None or unusable(ssh, launcher.identity):
        return None
    settings = launcher.resolved.settings

    def make_folder() -> Path:
        folder = launcher.folder / f"gate-{os.getpid()}"
        tidy(launcher.folder, "gate")
        logins = Logins(folder, {}, {}, key, settings, args)
        logins.make_folder()
        logins.write(ssh=ssh, per_host={})
        return folder

    return OpensshClient(ssh, args, launcher.identity.user, folder=make_folder)


def access(launcher: LauncherPod, args: UserArgs | None = None) -> SshAccess:
    """Give how this launcher reaches its workers, the same until other arguments are given.

    Args:
        launcher: this pod.
        args: the user's own for ssh; None: those that were given before, else the environment's.
    """
    if args is None and launcher.accesses:
        return launcher.accesses[-1]
    settings = launcher.resolved.settings
    args = args or given_by_user(launcher.environ)
    pool = Pool(
        launcher.key.path if launcher.key else None,
        host_key=launcher.key.public if launcher.key else "",
        host_keys=settings.host_keys,
        timeouts=patience(settings.ssh_keepalive, args),
        client=ssh_client(launcher, args),
        pods=launcher.pods,
    )
    hostname = socket.gethostname()
    api = launcher.environ.get(pod.API, "")
    own, _ = pod.control_address(settings.control_ifname, hostname, api=api)
    named = openssh.client_port(launcher.environ, launcher.identity.home)
    ports = tuple(dict.fromkeys((named[0], *PORTS))) if named else PORTS
    ports = (args.port,) if args.port else ports
    search = dns.read_resolv_conf().search
    found = SshAccess(
        user=settings.ssh_user or args.user or launcher.identity.user,
        pool=pool,
        hostname=hostname,
        ports=ports,
        fqdns=pod.own_names(hostname),
        ipv6=":" in own if own else None,
        domain=settings.cluster_domain or names.cluster_domain(search) or "cluster.local",
        attempt=launcher.attempt,
        may_disconnect=launcher.may_disconnect,
    )
    launcher.accesses.append(found)
    return found
