"""The gates of a program that starts processes by itself, and the ssh that knows the job's hosts.

Run by the parent's child. ``horovodrun``, DeepSpeed's launcher and scripts call ``ssh`` by the
hostfile's names, and know nothing of ports, keys and hosts that are late. So they are started when
every host is ready, with a folder first on PATH in which ``ssh`` is ``libexec/ssh``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from mpiboot.core import addresses, launch_spec, log
from mpiboot.core.errors import error
from mpiboot.core.model import SshKind, Worker
from mpiboot.core.setting_sources import Resolved
from mpiboot.hosts.gate import GateResult
from mpiboot.job import names
from mpiboot.launcher import agent_files, launch_folder, observation, shims
from mpiboot.launcher.child_loop import ChildLoop
from mpiboot.launcher.logins import Logins, tidy
from mpiboot.launcher.reached import ReachedWorkers
from mpiboot.launcher.setup import LauncherPod, launcher_pod
from mpiboot.ssh import client_start
from mpiboot.ssh import config as sshconfig
from mpiboot.system import executables, files

_LOGINS: Final = "logins"
_BIN: Final = "bin"
_CONFIG: Final = "ssh.conf"  # read by libexec/ssh
# How many sessions at once mpiboot's own client is to serve for each host.
_SESSIONS: Final = 2


def by_every_name(workers: Sequence[Worker], renamed: Mapping[str, str]) -> dict[str, Worker]:
    """Give the hosts by each name that a program may have for them: long, short, and address.

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
    # Two hosts may have one first label, as may two with the node's network one address.
    count = Counter(name for name, _ in others)
    return {name: worker for name, worker in others if count[name] == 1} | found


def that_may_join(
    workers: Sequence[Worker], renamed: Mapping[str, str]
) -> tuple[sshconfig.SshHost, ...]:
    """Give patterns of names like those of the job's hosts, but for the number at their end.

    An elastic job gets more hosts while it runs, and its program logs in to them. They are reached
    as the others are, and are known by the same host key; where two of these differ, none is.
    """
    found: dict[str, set[sshconfig.SshHost]] = {}
    for worker in workers:
        whole = renamed.get(worker.host.name, worker.host.name)
        label = names.short(worker.host.name)
        stem = label.rstrip("0123456789")
        if stem in ("", label) or addresses.is_address(worker.host.name):
            continue
        for name in {label, worker.host.name, whole}:
            pattern = f"{stem}*{name[len(label) :]}"
            lacks = whole[len(name) :] if whole.startswith(name) else ""
            entry = sshconfig.SshHost(pattern, f"%h{lacks}", worker.port, worker.user)
            found.setdefault(pattern, set()).add(entry)
    # ssh takes the first that fits, and the shortest pattern fits the longer names, too.
    patterns = sorted(found, key=len, reverse=True)
    return tuple(next(iter(found[name])) for name in patterns if len(found[name]) == 1)


def prepare(
    resolved: Resolved,
    program: tuple[str, ...],
    parent: int,
    loop: ChildLoop,
    reached: ReachedWorkers,
) -> launch_spec.ScriptSpec:
    """Wait for every host, and write what the program's ssh reads.

    Args:
        resolved: the settings.
        program: the user's line.
        parent: the process that will be the program's parent.
        loop: in which hosts are waited for.
        reached: gets this pod, and the hosts that are ready.

    Raises:
        MpibootError: a gate or a file failed.
        EndedBySignal: a signal came meanwhile.
    """
    name = os.environ.get(launch_spec.ATTEMPT, "")
    before = dict(os.environ)
    pod = launcher_pod(resolved, os.environ, pid=parent, attempt=name, may_disconnect=True)
    if pod.key is None:
        raise error(
            "settings-conflict",
            f"{program[0]} logs in to the hosts by itself, and kubectl exec is for mpirun alone: "
            f"{pod.chosen.because if pod.chosen else 'there is no key'}",
            hint="mount the job's key Secret, and let the hosts run sshd (`mpiboot worker`)",
        )
    reached.launcher = pod
    passed = loop.run(observation.pass_gates(pod, reached.workers))
    earlier = reached.say_attempt()
    where = launch_folder.paths(pod.folder, parent, _LOGINS)
    logins = Logins(
        Path(where.launch_dir),
        by_every_name(passed.workers, passed.renamed),
        passed.host_keys,
        pod.key,
        resolved.settings,
    )
    client = _write(logins, pod, passed, before.get("PATH", ""), parent)
    path = os.pathsep.join((str(logins.folder / _BIN), before.get("PATH", "")))
    log.info("start", f"starting {program[0]}")
    # As for mpirun: HOME and USER too, where this user has none that can be used.
    changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    folder, changed = str(logins.folder), {**changed, "PATH": path}
    return launch_spec.ScriptSpec(program, folder, changed, client, earlier)


def _write(
    logins: Logins, pod: LauncherPod, passed: GateResult, path: str, parent: int
) -> tuple[str, ...]:
    """Write the folder of logins; give the command line of mpiboot's own client if it is needed."""
    ssh = executables.find("ssh", path) or ""
    settings = pod.resolved.settings
    source = pod.resolved.given["ssh_client"].source
    kind = sshconfig.client(settings.ssh_client, source, ssh, pod.identity)
    own = kind.value == SshKind.EMBEDDED
    logins.make_folder()
    tidy(logins.folder.parent, _LOGINS)
    # mpiboot's own client knows each host by its address and key alone, as whoever has own keys.
    later = () if own or passed.host_keys else that_may_join(passed.workers, passed.renamed)
    logins.write(ssh=ssh, own_client=own, per_host={}, later=later)
    logins.write_baselines(passed.workers)
    config = {
        "ssh": ssh,
        "strict": logins.strict,
        "client": client_start.client_words() if own else "",
        "hosts": " ".join((*logins.hosts, *(item.name for item in later))),
    }
    files.write_private(logins.folder / _CONFIG, agent_files.assignments(config))
    shims.link_ssh(logins.folder / _BIN)
    if own:
        log.info("script", f"its ssh is mpiboot's own client: {kind.because}")
    if not own:
        return ()
    served = logins.client_config(parent, len(passed.workers) * _SESSIONS)
    return client_start.write(logins.folder, served)
