"""Asks hosts what their ranks do: this pod by a shell of its own, the others by a login each."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mpiboot.core.model import Finding
from mpiboot.core.settings import Resolved
from mpiboot.doctor.look import private
from mpiboot.doctor.ranks import answer
from mpiboot.doctor.ranks.records import HostRanks
from mpiboot.hosts import gate, host_shell
from mpiboot.hosts.remote_commands import RemoteCommands
from mpiboot.launcher import observation
from mpiboot.launcher import setup as launcher_setup
from mpiboot.ssh.attempt import LoginTimeouts
from mpiboot.system import programs

# Seconds beyond those between the two looks; py-spy alone may need five for each Python rank.
_READING: Final = 60.0


@dataclass(frozen=True, slots=True)
class Answers:
    """What the hosts said, and why those that are missing said nothing; ``all_hosts``: of a job."""

    hosts: tuple[HostRanks, ...]
    all_hosts: bool = False
    wrong: tuple[Finding, ...] = ()
    unasked: tuple[str, ...] = ()


def this_pod(seconds: int) -> Answers:
    """Ask this pod alone.

    Args:
        seconds: between the two looks.
    """
    return Answers((asyncio.run(_here(os.uname().nodename, seconds)),))


def job(resolved: Resolved, environ: Mapping[str, str], seconds: int) -> Answers:
    """Ask every host of the hostfile, and this pod; arguments as for doctor.

    Raises:
        MpibootError: there is no hostfile, or nothing to log in with.
    """
    try:
        return asyncio.run(_job(resolved, environ, seconds))
    finally:
        private.remove_folder(resolved.settings, environ)


async def _job(resolved: Resolved, environ: Mapping[str, str], seconds: int) -> Answers:
    file = (await observation.find_hostfile(resolved, environ, 0.0)).hostfile
    launcher = launcher_setup.launcher_pod(resolved, environ, private.role(), patience=0.0)
    to = launcher_setup.access(launcher)
    passed = await gate.probe_once(file.hosts, resolved.settings, to)
    limits = LoginTimeouts(command=seconds + _READING)
    commands = RemoteCommands(to, resolved.settings.host_keys, limits)
    command = host_shell.ranks(seconds)
    own = next((host.name for host in passed.local), os.uname().nodename)
    asked = asyncio.gather(*(commands.run(worker, command) for worker in passed.workers))
    here, said = await asyncio.gather(_here(own, seconds), asked)
    hosts = [here] if here.ranks or passed.local else []
    unasked = {item.host: item for item in passed.findings if item.host}
    reached = {host.name for host in passed.local}
    for worker, output in zip(passed.workers, said, strict=True):
        name = worker.host.name
        found = answer.read(output, name, worker.address) if output else None
        if found is not None:
            hosts.append(found)
            reached.add(name)
    missing = tuple(host.name for host in file.hosts if host.name not in reached)
    return Answers(
        tuple(hosts),
        True,
        tuple(unasked.get(name) or _silent(name) for name in missing),
        missing,
    )


def _silent(name: str) -> Finding:
    from mpiboot.core.checks import failed  # noqa: PLC0415 - rarely wanted

    said = "it let us in, and did not answer what its ranks do"
    return failed("workers-unreachable", said, host=name, hint="try again; look at that pod's load")


async def _here(name: str, seconds: int) -> HostRanks:
    text = await programs.shell(host_shell.ranks(seconds), seconds + _READING)
    return answer.read(text, name) or HostRanks(name)
