"""Launcher setup: identity, limits, private folder, the job's key."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mpiboot.core import log
from mpiboot.core.checks import MpibootError
from mpiboot.core.model import Decision, Identity
from mpiboot.core.settings import Resolved
from mpiboot.hosts import dns
from mpiboot.hosts.access import PORTS, PodAccess, SshAccess, choose_access
from mpiboot.job import names
from mpiboot.job.plan_builder import LauncherLimits
from mpiboot.network import pod
from mpiboot.ssh import openssh
from mpiboot.system import control_groups, files, keys, os_calls
from mpiboot.system.control_groups import GROUPS, PROC

# Seconds that a Secret may be mounted late where there is another way to the hosts.
_KEY_IS_LATE: Final = 5.0


@dataclass(frozen=True, slots=True)
class LauncherPod:
    """A launcher's own pod: identity, private folder, and the job's key.

    ``pid`` is the pod's first mpiboot; ``started`` the time of the monotonic clock. ``attempt`` and
    ``may_disconnect`` are sent to the workers (``host_shell.gate``). ``key`` is None if hosts are
    entered by kubectl (``pods`` has how, ``chosen`` why), or if this pod is the only host.
    ``limits`` are those at the pod's start.
    """

    resolved: Resolved
    environ: Mapping[str, str]
    identity: Identity
    folder: Path
    key: keys.JobKey | None
    started: float
    pid: int
    attempt: str = ""
    may_disconnect: bool = False
    pods: PodAccess | None = None
    chosen: Decision | None = None
    limits: LauncherLimits | None = None

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
    pid: int | None = None,
    attempt: str = "",
    *,
    may_disconnect: bool = False,
    needs_key: Callable[[float], bool] = lambda _patience: True,
) -> LauncherPod:
    """Find this pod's identity and limits, make a role's private folder, and read the job's key.

    The key may be mounted late: it is waited for until the launcher's deadline, or for ``patience``
    seconds if given. ``pid`` is the pod's first mpiboot if that is another process; ``attempt`` and
    ``may_disconnect`` are sent to the workers. Where no key is mounted, ``needs_key`` tells whether
    there is a host to log in to.

    Raises:
        MpibootError: ``runtime-folder``, ``tmpdir`` or ``ssh-key``; or what ``needs_key`` raises.
    """
    started = time.monotonic()
    settings = resolved.settings
    identity = pod.identity(environ)
    limits = own_limits(identity)
    # A connection for each host; mpirun has the parent's limits.
    os_calls.allow_most_open_files()
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

    def key_is_there() -> bool:
        if keys.unreadable_key(settings.ssh_key, identity.uid):
            return True
        try:
            return bool(keys.wait(settings.ssh_key, homes, identity.uid, min(most, _KEY_IS_LATE)))
        except MpibootError:
            return False

    pods, chosen = choose_access(resolved, environ, key_is_there) or (None, None)
    key, place, wanted = None, (settings.ssh_key, homes, identity.uid), pods is None
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
    pid = pid or os.getpid()
    return LauncherPod(
        resolved,
        environ,
        identity,
        folder,
        key,
        started,
        pid,
        attempt,
        may_disconnect,
        pods,
        chosen,
        limits,
    )


def access(launcher: LauncherPod) -> SshAccess:
    """Give how this launcher reaches its workers."""
    settings = launcher.resolved.settings
    hostname = socket.gethostname()
    api = launcher.environ.get(pod.API, "")
    own, _ = pod.control_address(settings.control_ifname, hostname, api=api)
    named = openssh.client_port(launcher.environ, launcher.identity.home)
    search = dns.read_resolv_conf().search
    return SshAccess(
        user=settings.ssh_user or launcher.identity.user,
        key=launcher.key.path if launcher.key else Path(),
        hostname=hostname,
        host_key=launcher.key.public if launcher.key else "",
        ports=tuple(dict.fromkeys((named[0], *PORTS))) if named else PORTS,
        fqdns=pod.own_names(hostname),
        ipv6=":" in own if own else None,
        domain=settings.cluster_domain or names.cluster_domain(search) or "cluster.local",
        attempt=launcher.attempt,
        may_disconnect=launcher.may_disconnect,
        pods=launcher.pods,
    )


# With one of these RLIMIT_NPROC does not apply (setrlimit(2)).
_CAP_SYS_ADMIN, _CAP_SYS_RESOURCE = 21, 24


def own_limits(who: Identity, *, groups: Path = GROUPS, proc: Path = PROC) -> LauncherLimits:
    """Read this process's limits; one that can't be read counts as none.

    Args:
        who: this process's user and capabilities.
        groups: where control groups are mounted.
        proc: where processes are.
    """
    memory, tasks = control_groups.memory(groups, proc), control_groups.processes(groups, proc)
    soft, hard = map(_limit, resource.getrlimit(resource.RLIMIT_NOFILE))
    bound = not who.capabilities >> _CAP_SYS_ADMIN & 1 and who.uid != 0
    bound = bound and not who.capabilities >> _CAP_SYS_RESOURCE & 1
    own = _limit(resource.getrlimit(resource.RLIMIT_NPROC)[1]) if bound else None
    return LauncherLimits(
        memory.limit,
        memory.used if memory.limit is not None else 0,
        tasks.limit,
        tasks.used if tasks.limit is not None else 0,
        own,
        _processes_of(who.uid, proc) if own is not None else 0,
        (soft, hard),
    )


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _processes_of(uid: int, proc: Path) -> int:
    """Count a user's visible processes and threads, as RLIMIT_NPROC does."""
    found = 0
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if folder.stat().st_uid == uid:
                found += len(os.listdir(folder / "task"))  # noqa: PTH208 - light
    return found
