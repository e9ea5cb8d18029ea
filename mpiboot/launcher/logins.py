"""The logins of a command that is no launch: a gate beside it, for its ``ssh``.

Such a command (a script, ``horovodrun``, DeepSpeed's launcher) may call ``ssh`` by the hostfile's
names, and knows nothing of ports, keys and late hosts. Its ``ssh`` is ``libexec/ssh``, and the
first that needs a host begins the gate, which reports each host as soon as that is ready.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from mpiboot.core import addresses, launch_spec, log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.facts import Worker
from mpiboot.core.settings import Resolved
from mpiboot.hosts import error_report, hostfiles
from mpiboot.hosts.gate import GateResult
from mpiboot.job import names
from mpiboot.job.mpirun_line import UserLine
from mpiboot.launcher import prepare, shims
from mpiboot.launcher.setup import LauncherPod, Logins, access, find_key, make_folder, remote
from mpiboot.ssh import config as sshconfig
from mpiboot.ssh.agents import AgentRequests
from mpiboot.supervisor import evidence
from mpiboot.supervisor.workers import Workers
from mpiboot.system import files
from mpiboot.system.threads import in_thread

# Of a host's number, by which it differs from the others.
_DIGITS: Final = 4


def by_every_name(workers: Sequence[Worker], renamed: Mapping[str, str]) -> dict[str, Worker]:
    """Map each name that a program may use for a host to it: long, short, and address.

    Args:
        workers: who passed the gate.
        renamed: the long names of those that need one, by the hostfile's.
    """
    found = {worker.host.name: worker for worker in workers}
    others = [
        (name, worker)
        for worker in workers
        for name in {
            renamed.get(worker.host.name, worker.host.name),
            names.short(worker.host.name),
            worker.address,
        }
    ]
    # Two hosts may share a first label, and on the node's network an address.
    count = Counter(name for name, _ in others)
    return {name: worker for name, worker in others if count[name] == 1} | found


def that_may_join(
    workers: Sequence[Worker], renamed: Mapping[str, str]
) -> tuple[sshconfig.LaunchHost, ...]:
    """Give patterns for names of hosts that may join: those of the job with another number.

    An elastic job gets more hosts while it runs, and its program logs in to them. They are reached
    like the others, with the same host key; if these differ from each other there is no pattern.
    """
    found: dict[str, set[sshconfig.LaunchHost]] = {}
    for worker in workers:
        whole = renamed.get(worker.host.name, worker.host.name)
        label = names.short(worker.host.name)
        stem = label.rstrip("0123456789")
        if stem in ("", label) or addresses.is_address(worker.host.name):
            continue
        for name in {label, worker.host.name, whole}:
            pattern = f"{stem}*{name[len(label) :]}"
            lacks = whole[len(name) :] if whole.startswith(name) else ""
            entry = sshconfig.LaunchHost(pattern, f"%h{lacks}", worker.port, worker.user)
            found.setdefault(pattern, set()).add(entry)
    # ssh takes the first match, and the shortest pattern also matches longer names.
    patterns = sorted(found, key=len, reverse=True)
    return tuple(next(iter(found[name])) for name in patterns if len(found[name]) == 1)


async def serve(resolved: Resolved, written: CommandLogins, attempt: str) -> None:
    """Run the gate beside a command, whose ssh has asked for a host.

    The command goes on whatever comes of it: its ssh reads why a host was not ready.

    Args:
        resolved: the settings.
        written: gets what has to be written.
        attempt: this launcher's name for workers.
    """
    why = ""
    try:
        await _wait_for_hosts(resolved, written, attempt)
    except Exception as wrong:  # noqa: BLE001 - the command goes on without it
        known = wrong if isinstance(wrong, MpibootError) else error_report.bug(wrong)
        why = error_report.say(known)
    files.write_private(written.folder / launch_spec.OVER, why)


async def _wait_for_hosts(resolved: Resolved, written: CommandLogins, attempt: str) -> None:
    """Wait for the hosts, and write what a command's ssh reads as soon as each is ready.

    Raises:
        MpibootError: the gate or a file failed.
    """
    reached = list[Worker]()
    if not await in_thread(_hosts_are_named, resolved, dict(os.environ)):
        written.begin(())
        return
    pod = await in_thread(partial(prepare.own_pod, resolved, attempt, may_disconnect=True))
    found = await prepare.find_hosts(pod, UserLine(), None)
    written.begin(remote(found.hostfile.hosts))
    if not written.expected:
        return
    await in_thread(find_key, pod, found.hostfile.hosts)
    if pod.chosen is not None:
        raise error(
            "settings-conflict",
            f"ssh can't reach the job's hosts, which mpirun reaches by kubectl exec: "
            f"{pod.chosen.reason}",
            hint="mount the job's key Secret, and let the hosts run sshd (`mpiboot worker`)",
        )
    written.pod = pod
    try:
        written.ready = await prepare.pass_gates(pod, found, reached, written.update)
        written.expected = ()  # who is not among them is this pod itself
    finally:
        if written.ready is not None:
            written.update(written.ready, over=not written.expected)
        earlier = prepare.log_attempt(reached, pod.attempt)
        files.write_private(written.folder / launch_spec.EARLIER, earlier)


def _hosts_are_named(resolved: Resolved, environ: Mapping[str, str]) -> bool:
    """Tell whether there is a hostfile to wait for: one that is named, or that is there.

    A pipe is left to the launch below the command.
    """
    first = hostfiles.candidates(resolved, environ)[0]
    if hostfiles.is_pipe(first.path):
        return False
    # os.path: Path.exists raises where this user may not enter a folder on the way.
    if not first.is_default or os.path.exists(first.path):  # noqa: PTH110
        return True
    if hostfiles.hosts_by_setting(resolved, environ):
        return True
    return hostfiles.hosts_by_platform(environ, socket.gethostname()) is not None


@dataclass(slots=True, eq=False)
class CommandLogins:
    """What a command's ssh reads, written anew whenever another host is ready.

    Where no ssh can run here, its ``ssh`` has its sessions over the gate's connections. ``path`` is
    its PATH; ``expected`` are the names of hosts that may still get ready; ``ready`` is the gate's
    last report.
    """

    folder: Path
    path: str
    expected: Sequence[str] = ()
    pod: LauncherPod | None = None
    ready: GateResult | None = None
    listens: bool = False

    def begin(self, listed: Sequence[str]) -> None:
        """Report which hosts are the job's, before any of them is ready."""
        count = Counter(map(names.short, listed))
        short = [label for label, number in count.items() if number == 1]
        self.expected = tuple(dict.fromkeys((*listed, *short)))
        with files.writing():
            (self.folder / "ready").mkdir(mode=0o700)
        self._write(self.expected)

    def update(self, ready: GateResult, *, over: bool = False) -> None:
        """Write the logins to the hosts that are ready; ``over`` once nobody else gets ready."""
        self.ready, pod = ready, self.pod
        if pod is None:
            return
        if pod.key is None:  # this pod is the only host
            self._write(())
            return
        ssh = shutil.which("ssh", path=self.path) or ""
        why = sshconfig.unusable(ssh, pod.identity)
        hosts, folder = by_every_name(ready.workers, ready.renamed), Path(self._logins)
        logins = Logins(folder, pod, hosts=hosts, host_keys=ready.host_keys)
        if not folder.exists():
            make_folder(folder, pod.key)
        # The pool, and hosts with keys of their own, need each address and key.
        later: tuple[sshconfig.LaunchHost, ...] = ()
        if over and not why and not ready.host_keys:
            later = that_may_join(ready.workers, ready.renamed)
        logins.write(later)
        pool = access(pod).pool
        pool.know(logins.pool_hosts(len(ready.workers) if why else 0))
        if why and not self.listens:
            self.listens = True
            log.info("command", f"its ssh uses mpiboot's connections: {why}")
            with files.writing():
                AgentRequests(folder, ()).serve(pool)
        numbers = ("[0-9]" * digits for digits in range(1, _DIGITS + 1))
        joining = (item.name.replace("*", one) for one in numbers for item in later)
        words = "" if why else f"{ssh} {logins.pins}"
        self._write((*self.expected, *hosts, *joining), ssh=words)
        with files.writing():
            for name in hosts:
                (self.folder / "ready" / name).touch()

    @property
    def workers(self) -> Workers | None:
        """The hosts that were ready; None where no gate got so far."""
        if self.pod is None or self.pod.key is None or self.ready is None:
            return None
        hosts = [evidence.snapshot(worker, worker.host.name) for worker in self.ready.workers]
        return Workers(access(self.pod).pool, hosts, os.environ)

    @property
    def _logins(self) -> str:
        return str(self.folder / launch_spec.LOGINS)

    def _write(self, hosts: Iterable[str], ssh: str = "") -> None:
        shims.write_ssh(self.folder, self.path, " ".join(hosts), self._logins, ssh)
