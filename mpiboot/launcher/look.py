"""The commands that look or wait, and start nothing: wait, plan, and doctor's look."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from types import FrameType

from mpiboot.core import log, termination
from mpiboot.core.errors import MpibootError, ShownError
from mpiboot.core.model import Decision, Finding, Level, Source
from mpiboot.core.setting_sources import Resolved
from mpiboot.hosts import doctor_look
from mpiboot.hosts.doctor_look import DoctorLook
from mpiboot.job import plan as plans
from mpiboot.job import render
from mpiboot.launcher import launch_folder, observation, offline, role, script
from mpiboot.launcher.observation import Observation
from mpiboot.launcher.setup import LauncherPod, launcher_pod
from mpiboot.supervisor import signals


def wait(resolved: Resolved, environ: Mapping[str, str], *, as_json: bool) -> None:
    """Pass the gates and nothing more; with ``as_json`` the result is on stdout, a failure too."""
    end_on_signals(resolved)
    try:
        passed = asyncio.run(observation.pass_gates(launcher_pod(resolved, environ)))
    except MpibootError as wrong:
        if as_json:
            record = {"ready": False, "hosts": (), "findings": (wrong.finding, *wrong.others)}
            sys.stdout.write(render.as_json(record))
        raise
    if as_json:
        reached: list[tuple[str, str, int | None]] = [(one.name, "", None) for one in passed.local]
        reached += [(one.host.name, one.address, one.port) for one in passed.workers]
        hosts = [dict(zip(("host", "address", "port"), item, strict=True)) for item in reached]
        record = {"ready": True, "hosts": hosts, "findings": passed.findings}
        sys.stdout.write(render.as_json(record))


def look(
    resolved: Resolved,
    program: tuple[str, ...],
    environ: Mapping[str, str],
    doctor: DoctorLook = doctor_look.ALL,
) -> tuple[Observation, LauncherPod]:
    """Look at every host once, for a program that is not started."""
    launcher = launcher_pod(resolved, environ, patience=0.0)
    return asyncio.run(observation.look(launcher, program, doctor)), launcher


def show_plan(
    resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str], *, as_json: bool
) -> None:
    """Print the plan.

    Raises:
        ShownError: what the launcher would stop with.
        MpibootError: it can't be made.
    """
    alone = _plan_without_hosts(resolved, program, environ)
    if alone:
        _print(alone, (), as_json=as_json)
        return
    seen, launcher = look(resolved, program, environ)
    where = launch_folder.paths(launcher.folder)
    plan = plans.make(seen.observed, resolved, where)
    odd = plans.pair_findings(plan, seen.observed, seen.dialled)
    _print(plan, (*seen.warnings, *seen.passed.findings, *odd), as_json=as_json)


def show_offline(
    resolved: Resolved,
    program: tuple[str, ...],
    environ: Mapping[str, str],
    *,
    as_json: bool,
    folder: str,
) -> None:
    """Print the plan that can be made away from the cluster; raises as ``show_plan`` does."""
    alone = _plan_without_hosts(resolved, program, environ)
    plan, found = (alone, ()) if alone else offline.make(resolved, program, environ, folder)
    _print(plan, found, as_json=as_json)


def _plan_without_hosts(
    resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]
) -> plans.Plan | None:
    """Make the plan of what runs once, in this pod; None for what ranks run."""
    if role.prints(resolved, program, environ):
        name, said = "mpirun", "it prints something and starts nothing: no host is waited for"
    elif once := script.judge(resolved, program, environ):
        name = "script"
        said = f"{once.because}: it runs once, and each mpirun in it has a plan of its own"
    else:
        return None
    return plans.Plan((Decision(name, program[0], Source.DETECTED, said),), (), program)


def _print(plan: plans.Plan, before: tuple[Finding, ...], *, as_json: bool) -> None:
    """Print a plan with what was found, and end with the first failure."""
    found = (*before, *plan.findings)
    # Within a terminal's width, or unbroken for a pipe.
    text = render.plan_json(plan, found) if as_json else render.plan(plan, found, log.width(1))
    sys.stdout.write(text)
    for item in found:
        if item.level is Level.FAIL:
            raise ShownError(item)


def end_on_signals(resolved: Resolved) -> None:
    """End at once with 128+n: as PID 1 a signal without a handler would be ignored.

    Nothing is to be undone while hosts are being waited for, so the process simply ends.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        said = f"{name} while waiting for hosts: nothing was started"
        code = 128 + number
        log.info("ended", said, signal=name, exit=code, reference="signal")
        termination.write(resolved.settings.termination_log, f"signal: {said}\n")
        os._exit(code)

    def spare(number: int, _frame: FrameType | None) -> None:
        # Meant for the program; what it does to one that has no handler would end the wait.
        name = signal.Signals(number).name
        log.info("signal", f"{name} is not forwarded: the program has not started")

    for number in signals.ENDING:
        signal.signal(number, end)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, spare)
