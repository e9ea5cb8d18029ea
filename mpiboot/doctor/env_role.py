"""``mpiboot doctor --env``: on a launcher every host in one session each, elsewhere this pod.

It starts nothing, changes nothing and writes nothing but doctor's private folder.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from mpiboot.core import log
from mpiboot.core.errors import MpibootError, error
from mpiboot.core.model import Finding, Role
from mpiboot.core.settings import Resolved
from mpiboot.doctor import env_differences as compare
from mpiboot.doctor import job, looks, role, text
from mpiboot.doctor.env_differences import Forwarding, HostEnvironments
from mpiboot.hosts import host_shell
from mpiboot.hosts.gate import DoctorLook
from mpiboot.hosts.remote_commands import RemoteCommands
from mpiboot.job import dialects
from mpiboot.job import plan as plans
from mpiboot.launcher import launch_folder, look
from mpiboot.launcher.observation import Observation
from mpiboot.launcher.setup import LauncherPod
from mpiboot.system import programs

_NO_LOGIN: Final = "nobody logs in to a launcher"
_PLANNED: Final = "no rank runs: what the plan would give to one"
_PATIENCE: Final = 60.0  # seconds; a guard against a /proc that hangs


def run(
    resolved: Resolved, environ: Mapping[str, str], only: Sequence[str], *, as_json: bool
) -> None:
    """Print what differs between the pod's environment, an SSH session's and a rank's.

    Args:
        resolved: the settings.
        environ: this process's environment.
        only: the hosts that are asked, by their whole or first names; empty: all.
        as_json: whether a program reads it.

    Raises:
        ShownError: a host could not be asked; with the code 1.
        MpibootError: ``usage``; there is no such host.
        KeyboardInterrupt: it was interrupted while hosts were asked, and has said what it knows.
    """
    wrong: Sequence[Finding] = ()
    plan, whole = Forwarding(), True
    try:
        if role.role_of(resolved, environ) is Role.LAUNCHER:
            try:
                found, plan, wrong, whole = _job(resolved, environ, only)
            except MpibootError as problem:
                if problem.finding.check == "usage":
                    raise
                found, wrong = [_here(_NO_LOGIN)], (problem.finding, *problem.others)
        elif only:
            raise error("usage", "--host is for a launcher: this pod asks no other")
        else:
            found = [_pod(resolved, environ)]
    finally:
        looks.remove_folder(resolved.settings, environ)
    told = [(one, compare.differences(one, plan)) for one in found]
    # The first is this pod; a launcher is another kind of pod than its workers.
    message = (*wrong, *compare.outliers(found[1:], plan))
    if as_json:
        hosts = [
            {"host": one.host, "rank": one.rank, "missing": one.missing, "differences": items}
            for one, items in told
        ]
        shown = text.json_report(complete=whole, findings=message, hosts=hosts)
    else:
        shown = compare.as_text(told, message, log.width(1), whole=whole)
    sys.stdout.write(shown)
    if not whole:
        raise KeyboardInterrupt
    text.end(message)


def _job(
    resolved: Resolved, environ: Mapping[str, str], only: Sequence[str]
) -> tuple[list[HostEnvironments], Forwarding, Sequence[Finding], bool]:
    """Ask every host, and this pod, which comes first; whether all had their time to answer."""
    doctor = DoctorLook((host_shell.ENVIRONMENTS,), tuple(only))
    seen, launcher = look.look(resolved, job.ANY_PROGRAM, environ, doctor)
    file = seen.observed.hostfile
    job.refuse_unknown(only, (host.name for host in file.hosts))
    whole = not seen.passed.unasked
    # Of hosts that were not asked a plan would say what is not so.
    plan, wrong = _plan(seen, launcher, resolved, environ) if whole else (Forwarding(), ())
    answers = seen.passed.answers
    names = (worker.host.name for worker in seen.passed.workers)
    asked = [
        _or_planned(_read(answers[name].output, name), plan) for name in names if name in answers
    ]
    here = _here(_NO_LOGIN)
    like = next((one for one in asked if "rank" in one.values), None)
    if like and "rank" not in here.values:
        here = here.with_rank(like.values["rank"], f"{like.host}: {like.rank}")
    return [here, *asked], plan, (*seen.passed.findings, *wrong), whole


def _plan(
    seen: Observation, launcher: LauncherPod, resolved: Resolved, environ: Mapping[str, str]
) -> tuple[Forwarding, Sequence[Finding]]:
    try:
        made = plans.make(seen.observed, resolved, launch_folder.paths(launcher.folder))
    except MpibootError as wrong:
        return Forwarding(), (wrong.finding, *wrong.others)
    known = dialects.row_of(seen.observed.mpi) is not None
    return compare.of_plan(made, environ) if known else Forwarding(), ()


def _or_planned(one: HostEnvironments, plan: Forwarding) -> HostEnvironments:
    """Put what the plan would give to a rank where none runs."""
    if "rank" in one.values or "session" not in one.values or not plan.values:
        return one
    own = plan.per_host.get(one.host, {})
    return one.with_rank({**one.values["session"], **own, **plan.values}, _PLANNED)


def _read(output: str, host: str, no_session: str = "") -> HostEnvironments:
    return compare.read(host_shell.read(output).environments, host, session=no_session)


def _here(no_session: str) -> HostEnvironments:
    """Look at this pod's own processes."""
    output = asyncio.run(programs.shell(host_shell.environments(), _PATIENCE))
    return _read(output, os.uname().nodename, no_session)


def _pod(resolved: Resolved, environ: Mapping[str, str]) -> HostEnvironments:
    """Look at this pod, and log in to its own SSH server for what a session has."""
    try:
        _, access, worker = job.log_in_here(resolved, environ)
    except MpibootError as wrong:
        return _here(wrong.finding.message)
    commands = RemoteCommands(access, resolved.settings.host_keys)
    output = asyncio.run(commands.run(worker, host_shell.environments())) or ""
    return _read(output, os.uname().nodename)
