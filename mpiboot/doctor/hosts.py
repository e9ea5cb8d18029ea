"""A launcher's hosts and a worker's own SSH server, as the gates find them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from mpiboot.core.checks import failed
from mpiboot.core.errors import MpibootError, error
from mpiboot.core.model import Finding, Host, Hostfile, Level, Worker
from mpiboot.core.settings import Resolved, Settings
from mpiboot.core.wording import counted, first_few
from mpiboot.doctor.host_report import LauncherPlace
from mpiboot.doctor.judge import hosts as judges
from mpiboot.doctor.look import hosts as looks
from mpiboot.doctor.look import private
from mpiboot.doctor.rows import hosts as rows
from mpiboot.hosts import gate, pacing, progress
from mpiboot.hosts.access import SshAccess
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.gate import DoctorLook, is_one_of
from mpiboot.hosts.pipeline import Pipelines
from mpiboot.job import plan as plans
from mpiboot.job.plan_builder import LaunchPaths
from mpiboot.launcher import launch_folder, look, observation
from mpiboot.launcher import setup as launcher_setup
from mpiboot.launcher.observation import Observation
from mpiboot.system import files, os_calls
from mpiboot.system.files import WorkerState

SERVER: Final = "workers-unreachable"
# What the plan is asked with: its checks don't depend on the program.
ANY_PROGRAM: Final = ("true",)


def _ok(check: str, said: str, host: str = "") -> Finding:
    return Finding(check, Level.OK, said, host)


def own_server(resolved: Resolved, environ: Mapping[str, str]) -> Finding:
    """Log in to this worker's own server; what it says, or what that fails with."""
    try:
        return _ok(SERVER, _server(resolved, environ))
    except MpibootError as wrong:
        return wrong.finding


def _server(resolved: Resolved, environ: Mapping[str, str]) -> str:
    state, access, _ = log_in_here(resolved, environ)
    return f"{state.sshd} lets {access.user} in at {state.address} port {state.port}"


async def log_in_once(address: str, port: int, settings: Settings, access: SshAccess) -> Worker:
    """Log in once to a server of this pod, as a launcher's gate would; it runs the gate's command.

    Raises:
        MpibootError: what a launcher's gate would say of this host.
    """
    pipelines = Pipelines(
        replace(settings, ssh_port=port), access, Resolver(), changed=lambda: None, once=True
    )
    await pipelines.load()
    (state,) = progress.states((Host(address),))
    return await pipelines.reach(state, (address,))


def log_in_here(
    resolved: Resolved, environ: Mapping[str, str]
) -> tuple[WorkerState, SshAccess, Worker]:
    """Log in to this worker's own server, as a launcher would.

    Raises:
        MpibootError: no worker of mpiboot's runs here, or it does not let us in.
    """
    launcher = launcher_setup.launcher_pod(resolved, environ, private.role(), patience=0.0)
    folder = Path(environ.get("MPIBOOT_WORKER_DIR") or launcher.folder.parent / "worker")
    state = files.worker_state(folder)
    if state is None:
        raise error(
            SERVER,
            f"no SSH server of mpiboot's runs in this pod: nothing is in {folder}",
            hint="start the container with `args: [worker]`, and look at its log",
        )
    access = launcher_setup.access(launcher)
    look_at = log_in_once(state.address, state.port, resolved.settings, access)
    return state, access, asyncio.run(look_at)


def of_job(
    resolved: Resolved,
    environ: Mapping[str, str],
    only: Sequence[str] = (),
    *,
    measures: bool = False,
) -> Iterator[Finding]:
    """Check the hostfile and every host of it, as far as that goes with what is there.

    Args:
        resolved: the settings.
        environ: this pod's environment.
        only: the hosts that are asked, by their whole or first names; empty: all.
        measures: whether they measure the ways between them too.

    Raises:
        MpibootError: ``usage``; the hostfile has no such host.
        KeyboardInterrupt: after what the hosts that had answered told.
    """
    with looks.listening(resolved.settings) as place:
        doctor = DoctorLook(looks.questions(place), tuple(only))
        try:
            seen, launcher = look.look(resolved, ANY_PROGRAM, environ, doctor)
        except MpibootError as wrong:
            yield from (wrong.finding, *wrong.others)
            if wrong.finding.check in _GOES_ON:
                yield from _without_plan(resolved, environ, place, doctor)
            return
    file = seen.observed.hostfile
    yield from _hostfile(file)
    yield from seen.warnings
    refuse_unknown(only, (host.name for host in file.hosts))
    planned = list(_planned(seen, resolved, launch_folder.paths(launcher.folder)))
    place = replace(place, key=launcher.key.fingerprint if launcher.key else "")
    yield from _passed(file.hosts, seen.passed, place, doctor, planned)
    yield from planned
    _stop_where_interrupted(seen.passed)
    if measures:
        to = launcher_setup.access(launcher)
        # Loaded where it is asked for: an image that lacks asyncssh is to be told so by doctor.
        from mpiboot.doctor import network  # noqa: PLC0415

        yield from network.measure(seen.passed.workers, resolved.settings, to)


def _stop_where_interrupted(passed: gate.GateResult) -> None:
    """Go on with Ctrl-C, which the gate has put off until what hosts had answered is told."""
    if passed.unasked:
        raise KeyboardInterrupt


def refuse_unknown(only: Sequence[str], known: Iterable[str]) -> None:
    """Raise ``usage`` where a host is asked for that is neither known nor this pod."""
    names = tuple(dict.fromkeys((*known, os.uname().nodename)))
    for wanted in only:
        if not any(is_one_of(name, (wanted,)) for name in names):
            hint = f"there are {first_few(names, 8)}"
            raise error("usage", f"no host {wanted!r}", hint=hint)


def _planned(seen: Observation, resolved: Resolved, where: LaunchPaths) -> Iterator[Finding]:
    """Find what the plan of all that were reached finds."""
    try:
        made = plans.make(seen.observed, resolved, where)
    except MpibootError as wrong:
        yield from (wrong.finding, *wrong.others)
        return
    odd = plans.pair_findings(made, seen.observed, seen.dialled)
    if seen.dialled and not odd:
        tried = counted(len(seen.dialled), "connection")
        yield _ok("worker-pairs", f"workers reach each other: {tried} tried")
    yield from (*odd, *made.findings)


def _passed(
    listed: Sequence[Host],
    passed: gate.GateResult,
    place: LauncherPlace,
    doctor: DoctorLook,
    planned: Sequence[Finding] = (),
) -> Iterator[Finding]:
    """Tell of each host how it was reached, what it finds itself, and how they differ."""
    yield from (_ok("names-unresolved", "this pod itself", one.name) for one in passed.local)
    yield from judges.merged(map(_reached, passed.workers))
    yield from passed.findings
    left_out = (*passed.local, *passed.unasked)
    hosts = [one for one in doctor.asked(listed) if one not in left_out]
    names = asyncio.run(looks.look_up(hosts))
    reports = looks.reports(hosts, passed.workers, passed.answers, names)
    told = {(item.check, name) for item in planned for name in (item.host, *item.hosts)}
    own = (item for one in reports if one.checks for item in one.checks.findings)
    yield from judges.merged(item for item in own if (item.check, item.host) not in told)
    yield from rows.judge(reports, place)


def _hostfile(file: Hostfile) -> Iterator[Finding]:
    yield _ok("hostfile-missing", f"the hostfile is {file.path}, named by {file.named_by}")
    hosts = counted(len(file.hosts), "host")
    yield _ok("hostfile-invalid", f"{hosts}, {counted(file.slots, 'slot')}")


def _reached(worker: Worker) -> Finding:
    server = worker.facts.sshd if worker.facts and worker.facts.sshd else "sshd"
    mpi = worker.facts.mpi if worker.facts else worker.mpi
    said = f"{worker.address} port {worker.port}, {server}, {mpi.said if mpi else 'no mpirun'}"
    return _ok(SERVER, said, worker.host.name)


# Without these there is no plan, but hosts can still be looked for.
_GOES_ON: Final = frozenset({"program-missing", "ssh-key", "runtime-folder", "tmpdir"})


def _without_plan(
    resolved: Resolved, environ: Mapping[str, str], place: LauncherPlace, doctor: DoctorLook
) -> Iterator[Finding]:
    """Look at the hostfile; log in where there is a key, else ask for the hosts' names alone."""
    try:
        file = asyncio.run(observation.find_hostfile(resolved, environ, 0.0)).hostfile
    except MpibootError as wrong:
        yield from (wrong.finding, *wrong.others)
        return
    yield from _hostfile(file)
    refuse_unknown(doctor.hosts, (host.name for host in file.hosts))
    try:
        launcher = launcher_setup.launcher_pod(resolved, environ, private.role(), patience=0.0)
        to = launcher_setup.access(launcher)
        passed = asyncio.run(gate.probe_once(file.hosts, resolved.settings, to, doctor=doctor))
    except MpibootError:
        yield from asyncio.run(_names(doctor.asked(file.hosts)))
        return
    yield from _passed(file.hosts, passed, place, doctor)
    _stop_where_interrupted(passed)


async def _names(hosts: Sequence[Host]) -> list[Finding]:
    resolver = Resolver(sockets=pacing.lookup_sockets(os_calls.most_open_files()))
    answers = await asyncio.gather(*(resolver.ask(host.name) for host in hosts))
    return [
        _ok("names-unresolved", f"resolves to {', '.join(answer.addresses)}", host.name)
        if answer.addresses
        else failed("names-unresolved", answer.detail, host=host.name)
        for host, answer in zip(hosts, answers, strict=True)
    ]
