"""SSH logins for a command that is not mpirun: its gate, and the files that its ``ssh`` reads.

Such a command (a script, ``horovodrun``, DeepSpeed's launcher) may call ``ssh`` with names of the
hostfile, unaware of ports, keys and hosts that are not up yet. Its ``ssh`` is ``libexec/ssh``; the
first call that needs a host starts the gate, which publishes each host as soon as it is ready.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from mpiboot.core import addresses, launch_spec, log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.facts import Host, Worker
from mpiboot.core.settings import Resolved
from mpiboot.hosts import error_report, gate, hostfiles
from mpiboot.hosts.gate import GateResult
from mpiboot.hosts.pipeline import PipelineOptions
from mpiboot.job.mpirun_line import UserLine
from mpiboot.launcher import prepare, shims
from mpiboot.launcher.setup import (
    LauncherPod,
    Logins,
    access,
    find_key,
    launcher_pod,
    make_folder,
    remote,
)
from mpiboot.ssh import config as sshconfig
from mpiboot.ssh.agents import AgentRequests
from mpiboot.ssh.attempt import LoginTimeouts
from mpiboot.supervisor import evidence
from mpiboot.supervisor.workers import Workers
from mpiboot.system import files
from mpiboot.system.programs import in_thread

# Names of hosts that may join have an index of up to this many digits.
_DIGITS: Final = 4
# What hosts have to answer at the end of a command: who is late holds the others' notice.
_PROBE: Final = LoginTimeouts(connect=1.5, greeting=2.0, login=3.0, command=3.0)


def by_every_name(workers: Sequence[Worker], renamed: Mapping[str, str]) -> dict[str, Worker]:
    """Map every name that a program may use for a host to it: long, short, and address.

    Args:
        workers: those that passed the gate.
        renamed: fully qualified names, by the hostfile's, where these differ.
    """
    found = {worker.host.name: worker for worker in workers}
    others = [
        (name, worker)
        for worker in workers
        for name in {
            renamed.get(worker.host.name, worker.host.name),
            addresses.short(worker.host.name),
            worker.address,
        }
    ]
    # Hosts may share a first label, and with hostNetwork an address.
    count = Counter(name for name, _ in others)
    return {name: worker for name, worker in others if count[name] == 1} | found


def may_join(
    workers: Sequence[Worker], renamed: Mapping[str, str]
) -> tuple[sshconfig.LaunchHost, ...]:
    """Return name patterns of hosts that may join later: the job's names with another index.

    An elastic job gets more hosts while it runs, and its program logs in to them. They are reached
    like the present ones, with the same host key; if these differ in port or user, by none.
    """
    found: dict[str, set[sshconfig.LaunchHost]] = {}
    for worker in workers:
        whole = renamed.get(worker.host.name, worker.host.name)
        label = addresses.short(worker.host.name)
        stem = label.rstrip("0123456789")
        if stem in ("", label) or addresses.is_address(worker.host.name):
            continue
        for name in {label, worker.host.name, whole}:
            pattern = f"{stem}*{name[len(label) :]}"
            suffix = whole[len(name) :] if whole.startswith(name) else ""
            entry = sshconfig.LaunchHost(pattern, f"%h{suffix}", worker.port, worker.user)
            found.setdefault(pattern, set()).add(entry)
    # ssh takes the first match, and a shorter pattern also matches longer names.
    patterns = sorted(found, key=len, reverse=True)
    return tuple(next(iter(found[name])) for name in patterns if len(found[name]) == 1)


async def serve(resolved: Resolved, logins: CommandLogins, attempt: str) -> None:
    """Run the gate during a command, once its ``ssh`` needs a host.

    The command continues even if the gate fails: its ``ssh`` reads why a host is not ready.

    Args:
        resolved: the settings.
        logins: the files to write.
        attempt: the ID under which workers know this launcher.
    """
    why = ""
    try:
        await _wait_for_hosts(resolved, logins, attempt)
    except Exception as exc:  # noqa: BLE001 - the command continues without it
        why = error_report.report(exc if isinstance(exc, MpibootError) else error_report.bug(exc))
        if not (logins.folder / "ready").exists():
            logins.begin(())  # the job's hosts are unknown: ssh is plain ssh
    files.write_private(logins.folder / launch_spec.OVER, why)


async def _wait_for_hosts(resolved: Resolved, logins: CommandLogins, attempt: str) -> None:
    """Wait for the hosts, and write the logins of each as soon as it is ready.

    Raises:
        MpibootError: the gate or a file failed.
    """
    reached = list[Worker]()
    if not await in_thread(_has_hosts, resolved, dict(os.environ)):
        logins.begin(())
        return
    set_up = partial(launcher_pod, resolved, os.environ, attempt=attempt, may_disconnect=True)
    pod = await in_thread(set_up)
    found = await prepare.find_hosts(pod, UserLine())
    logins.begin(remote(found.hostfile.hosts))
    if not logins.expected:
        return
    await in_thread(find_key, pod, found.hostfile.hosts)
    if pod.chosen is not None:
        raise error(
            "settings-conflict",
            f"the command's ssh can't use kubectl exec, by which mpirun reaches the hosts: "
            f"{pod.chosen.reason}",
            hint="mount the job's key Secret, and run sshd on the hosts (`mpiboot worker`)",
        )
    try:
        update = partial(logins.update, pod)
        ready = await prepare.pass_gates(pod, found, reached, update)
        logins.expected = ()  # any that is not ready now is this pod itself
        update(ready)
    finally:
        prepare.log_attempt(reached, pod.attempt)


async def notify(
    resolved: Resolved,
    attempt: str,
    why: str,
    reached: Collection[Host] = (),
    *,
    listed: bool = True,
) -> None:
    """Notify the job's workers of a command's end, whose launches are over.

    Args:
        resolved: the settings.
        attempt: the ID under which workers know this launcher.
        why: how the command failed; empty if it succeeded.
        reached: the hosts of its launches, which the hostfile may lack.
        listed: whether hosts of the hostfile were reached, too.

    Raises:
        MpibootError: there is no key any more.
    """
    set_up = partial(launcher_pod, resolved, os.environ, attempt=attempt, waits=False)
    pod = await in_thread(set_up)
    hosts = {host.name: host for host in reached}
    if listed or not hosts:
        with suppress(MpibootError):  # launches on this pod alone need no hostfile
            found = await prepare.find_hosts(pod, UserLine())
            hosts |= {host.name: host for host in found.hostfile.hosts}
    await in_thread(find_key, pod, hosts.values())
    if pod.key is None:  # no host runs mpiboot's worker where kubectl enters them
        return
    to, options = access(pod), PipelineOptions(limits=_PROBE)
    passed = await gate.probe_once(tuple(hosts.values()), pod.settings, to, options)
    snapshots = [evidence.snapshot(worker, worker.host.name) for worker in passed.workers]
    await Workers(to.pool, snapshots, os.environ).notify(attempt, 0.0, why)


def _has_hosts(resolved: Resolved, environ: Mapping[str, str]) -> bool:
    """Return whether there are hosts to wait for: a hostfile is named or exists, or other sources.

    A hostfile that is a pipe is left for mpirun below the command, as it can be read only once.
    """
    first = hostfiles.candidates(resolved, environ)[0]
    if hostfiles.is_pipe(first.path):
        return False
    # os.path: Path.exists raises if a folder of the path is not searchable for this user.
    named = first.by != hostfiles.DEFAULT or os.path.exists(first.path)  # noqa: PTH110
    if named or hostfiles.hosts_by_setting(resolved, environ):
        return True
    return hostfiles.hosts_by_platform(environ, socket.gethostname()) is not None


@dataclass(slots=True, eq=False)
class CommandLogins:
    """The files that a command's ``ssh`` reads, rewritten whenever another host is ready.

    If OpenSSH's ssh can't run here, sessions use the gate's connections. ``path`` is the command's
    PATH, and ``expected`` the names of hosts that may still become ready.
    """

    folder: Path
    path: str
    expected: Sequence[str] = ()

    def begin(self, listed: Sequence[str]) -> None:
        """Publish the names of the job's hosts, before any of them is ready."""
        count = Counter(map(addresses.short, listed))
        short = [label for label, number in count.items() if number == 1]
        self.expected = tuple(dict.fromkeys((*listed, *short)))
        with files.writing():
            (self.folder / "ready").mkdir(mode=0o700)
        self._write(self.expected)

    def update(self, pod: LauncherPod, ready: GateResult) -> None:
        """Write the logins of the hosts that are ready."""
        ssh = shutil.which("ssh", path=self.path) or ""
        why = sshconfig.unusable(ssh, pod.identity)
        hosts = by_every_name(ready.workers, ready.renamed)
        folder = self.folder / launch_spec.LOGINS
        logins = Logins(folder, pod, hosts=hosts)
        if not folder.exists():
            make_folder(folder, pod.key)
        # No patterns for the pool or for hosts with different keys: they need each address and key.
        joins = not (self.expected or why or any(one.host_key for one in ready.workers))
        later = may_join(ready.workers, ready.renamed) if joins else ()
        logins.write(later)
        pool = access(pod).pool
        pool.know(logins.pool_hosts())
        if why and not (folder / launch_spec.REQUESTS).exists():
            log.info("command", f"ssh uses mpiboot's connections: {why}")
            with files.writing():
                AgentRequests(folder, ()).serve(pool)
        numbers = ("[0-9]" * digits for digits in range(1, _DIGITS + 1))
        joining = (item.name.replace("*", one) for one in numbers for item in later)
        words = "" if why else f"{ssh} {logins.pins}"
        self._write((*self.expected, *hosts, *joining), ssh=words)
        with files.writing():
            for name in hosts:
                (self.folder / "ready" / name).touch()

    def _write(self, hosts: Iterable[str], ssh: str = "") -> None:
        logins = str(self.folder / launch_spec.LOGINS)
        shims.write_ssh(self.folder, self.path, " ".join(hosts), logins, ssh)
