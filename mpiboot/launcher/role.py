"""The launcher: gates, plan, private files, then mpirun under the small parent.

``plan`` goes the same way up to the plan; only ``run`` acts on it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType

from mpiboot import executables, facts, log, render
from mpiboot.data_network.records import WorkerNetwork
from mpiboot.errors import MpibootError, error
from mpiboot.gates import gate, recheck, stale_processes
from mpiboot.job import data, masking, mpirun_line, names, platforms
from mpiboot.job import plan as plans
from mpiboot.job.user_line import UserLine
from mpiboot.launcher import handover, launch_folder, script, summary
from mpiboot.launcher.setup import Ground, access, lets_go, stand
from mpiboot.model import Decision, Finding, Level, Mpi, PodFacts, Source
from mpiboot.observe import dns, hostfiles, links, programs
from mpiboot.parent import launch_spec, mpirun_messages
from mpiboot.settings import Resolved, Settings
from mpiboot.ssh_client import config as sshconfig
from mpiboot.system import files, process
from mpiboot.wording import counted


@dataclass(frozen=True, slots=True)
class Seen:
    """What was observed: the plan's input, and what the gate said on the way."""

    observed: plans.Observed
    passed: gate.GateResult
    warnings: tuple[Finding, ...]


def run(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> int:
    """Wait, decide, and become the parent of mpirun; or stay beside what calls mpirun itself.

    Raises:
        MpibootError: a gate, a check or a file failed.
    """
    if mpirun_line.only_asks(program):
        process.replace(program, environ)
    calling = script.reason(resolved, program, environ)
    if calling:
        log.info("script", f"{calling}: each call has gates, a plan and an end of its own")
        return script.run(resolved, program, environ)
    try:
        return _launch(resolved, program, environ)
    except MpibootError as wrong:
        wrong.hold = resolved.settings.hold_on_failure
        raise


def _launch(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> int:
    """Start one mpirun; it never returns."""
    _end_on_signals(resolved)
    odd = mpirun_line.slip(program)
    if odd and executables.find(program[0], environ.get("PATH", "")) is None:
        raise error("usage", odd, hint="write one argument for each word")
    if odd:
        log.finding(Finding("usage", Level.WARN, odd, hint="write one argument for each word"))
    ground = stand(resolved, environ)
    seen = asyncio.run(_wait_and_observe(ground, program))
    paths = launch_folder.paths(ground.folder, ground.key.path, os.getpid())
    made = plans.make(seen.observed, resolved, paths)
    summary.say(made, seen.observed)
    for finding in (*seen.warnings, *made.findings):
        if finding.level is not Level.FAIL:
            log.finding(finding)
    plans.stop_on_failure(made)
    start = launch_folder.Launch(
        made, seen.observed, seen.passed.host_keys, ground.key, resolved, paths
    )
    start.write()
    start.start_client()
    log.info(
        "start", f"starting {render.command(made.argv)}", argv=list(masking.masked_words(made.argv))
    )
    env = made.environment(environ) | {launch_spec.MARK: paths.launch_dir}
    # A launch inside a launch is part of it.
    env.setdefault(stale_processes.NAME, stale_processes.new_mark(ground.key.public))
    if resolved.settings.supervise == "off":
        process.replace(made.argv, env)
    let_go = lets_go(resolved.settings.worker_exit, environ)
    spec = start.write_spec(ground.started, let_go=let_go)
    handover.become_parent(
        made.argv, env, paths, mpirun_messages.lead(spec.family, env, local=spec.local)
    )


def wait(resolved: Resolved, environ: Mapping[str, str]) -> int:
    """Pass the gates and nothing more."""
    _end_on_signals(resolved)
    asyncio.run(_pass_gates(stand(resolved, environ)))
    return 0


def look(
    resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]
) -> tuple[Seen, Ground]:
    """Look at every host once, for a program that is not started."""
    ground = stand(resolved, environ, patience=0.0)
    return asyncio.run(_look_and_observe(ground, program)), ground


def show_plan(
    resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str], *, as_json: bool
) -> int:
    """Print the plan; the code is the one that the launcher would stop with."""
    calling = script.reason(resolved, program, environ)
    if calling:
        said = f"{calling}: each call has a plan of its own"
        alone = (Decision("script", program[0], Source.DETECTED, said),)
        write = _writer(as_json=as_json)
        sys.stdout.write(write(alone, (), program, {}, ()))
        return 0
    seen, ground = look(resolved, program, environ)
    made = plans.make(seen.observed, resolved, launch_folder.paths(ground.folder, ground.key.path))
    found = (*seen.warnings, *seen.passed.findings, *made.findings)
    bad = [item for item in found if item.level is Level.FAIL]
    sys.stdout.write(
        _writer(as_json=as_json)(
            made.decisions,
            found,
            made.argv,
            made.set_env,
            made.unset_env,
            rows=made.rows,
            per_host=made.per_host,
        )
    )
    return MpibootError(bad[0]).code if bad else 0


def _writer(*, as_json: bool) -> Callable[..., str]:
    """Choose how a plan is printed: JSON, within a terminal's width, or unbroken for a pipe."""
    return render.plan_json if as_json else functools.partial(render.plan, width=log.width(1))


def _end_on_signals(resolved: Resolved) -> None:
    """End at once with 128+n: as PID 1 a signal without a handler would be ignored.

    Nothing is to be undone while hosts are being waited for, so the process simply ends.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        said = f"{name} while waiting for hosts: nothing was started"
        log.info("ended", said, signal=name)
        files.termination_message(resolved.settings.termination_log, f"signal: {said}\n")
        os._exit(128 + number)

    def spare(number: int, _frame: FrameType | None) -> None:
        # Meant for the program; what it does to one that has no handler would end the wait.
        name = signal.Signals(number).name
        log.info("signal", f"{name} is the program's, which has not started: not forwarded")

    for number in launch_spec.ENDING:
        signal.signal(number, end)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, spare)


def no_mpirun(environ: Mapping[str, str]) -> MpibootError:
    """Say where mpirun was looked for."""
    return error(
        "program-missing",
        "no mpirun or mpiexec in a folder of PATH",
        evidence=(f"PATH={environ.get('PATH', '')}",),
        hint="install an MPI in the launcher's image, or put its bin folder on PATH",
    )


async def _hostfile(ground: Ground, patience: float, line: str = "") -> hostfiles.Found:
    """Read the hostfile that the program's own mpirun line names, else the settings'."""
    settings, given = ground.resolved.settings, str(ground.resolved.given["hostfile"])
    return await hostfiles.find(
        settings.hostfile, given, ground.environ, patience=patience, line=line
    )


def _long_form(ground: Ground) -> Callable[[str], str | None]:
    settings = ground.resolved.settings
    search = dns.read_resolv_conf().search
    domain = settings.cluster_domain or names.cluster_domain(search) or "cluster.local"
    return lambda name: names.long_form(name, domain)


def _mpi(ground: Ground) -> Mpi:
    """Ask mpirun what it is.

    Raises:
        MpibootError: ``program-missing``; there is none.
    """
    found = programs.detect_mpi(ground.environ)
    if found is None:
        raise no_mpirun(ground.environ)
    wanted = ground.resolved.settings.mpi
    return found if wanted == "auto" else Mpi(wanted, found.version, found.path, found.said)


def _rest(ground: Ground) -> Settings:
    """Give the settings with what is left of the one deadline."""
    settings = ground.resolved.settings
    left = ground.started + settings.timeout - time.monotonic()
    return dataclasses.replace(settings, timeout=max(0.0, left))


async def _pass_gates(ground: Ground) -> None:
    found = await _hostfile(ground, _rest(ground).timeout)
    for item in found.warnings:
        log.finding(item)
    follow = hostfiles.Follow(found)
    passed = await gate.wait(
        found.hostfile.hosts,
        _rest(ground),
        access(ground),
        long_form=_long_form(ground),
        follow=follow,
    )
    count, seconds = len(follow.found.hostfile.hosts), time.monotonic() - ground.started
    log.info(
        "ready",
        f"{counted(count, 'host')} ready after {seconds:.1f} s",
        hosts=count,
        seconds=round(seconds, 3),
        names=round(passed.durations["names"], 3),
    )


async def _wait_and_observe(ground: Ground, program: tuple[str, ...]) -> Seen:
    """Wait for everything; what needs no host is found out meanwhile."""
    own = asyncio.ensure_future(asyncio.to_thread(_own_facts, ground))
    # Before the rest: the family says how the program's own line is to be read.
    mpi = await asyncio.to_thread(_mpi, ground)
    line = mpirun_line.read(program, mpi.family)
    found = await _hostfile(ground, _rest(ground).timeout, line.hostfile)
    follow = hostfiles.Follow(found)
    passed = await gate.wait(
        found.hostfile.hosts,
        _rest(ground),
        access(ground),
        long_form=_long_form(ground),
        also=own,
        follow=follow,
    )
    found = follow.found
    await stale_processes.end(passed.workers, ground.key.public, _rest(ground), access(ground))
    workers, networks = await recheck.settled(
        passed.workers,
        lambda worker: data.network_of(worker, ground.resolved.settings),
        _rest(ground),
        access(ground),
    )
    passed = dataclasses.replace(passed, workers=workers)
    return _seen(ground, found, passed, mpi, line, own.result(), networks)


async def _look_and_observe(ground: Ground, program: tuple[str, ...]) -> Seen:
    """Look once at everything."""
    settings = ground.resolved.settings
    mpi = _mpi(ground)
    own = await asyncio.to_thread(_own_facts, ground)
    line = mpirun_line.read(program, mpi.family)
    found = await _hostfile(ground, 0.0, line.hostfile)
    passed = await gate.look(
        found.hostfile.hosts, settings, access(ground), long_form=_long_form(ground)
    )
    return _seen(ground, found, passed, mpi, line, own, {})


def _own_facts(ground: Ground) -> PodFacts:
    return facts.gather(ground.resolved, ground.environ, sshd="", pid=os.getpid(), mpi=None)


def _for_mpirun(found: hostfiles.Found, passed: gate.GateResult, own: PodFacts) -> dict[str, str]:
    """Give the names that mpirun must not get as the hostfile has them."""
    local = [host.name for host in passed.local]
    astray = [
        name
        for name in local
        if name != own.hostname and not any(map(links.is_local, dns.system_addresses(name)))
    ]
    listed = [host.name for host in found.hostfile.hosts]
    return names.for_mpirun(listed, local, astray, own.hostname)


def _seen(
    ground: Ground,
    found: hostfiles.Found,
    passed: gate.GateResult,
    mpi: Mpi,
    line: UserLine,
    own: PodFacts,
    networks: Mapping[str, WorkerNetwork],
) -> Seen:
    platform, _ = platforms.recognise(ground.environ)
    six = any(":" in worker.address for worker in passed.workers)
    observed = plans.Observed(
        hostfile=found.hostfile,
        local=passed.local,
        workers=passed.workers,
        renamed={**passed.renamed, **_for_mpirun(found, passed, own)},
        mpi=mpi,
        links=own.links,
        identity=ground.identity,
        platform=platform,
        environ=ground.environ,
        line=line,
        own=own,
        ssh_client=sshconfig.client(
            ground.resolved.settings.ssh_client,
            ground.resolved.given["ssh_client"].source,
            executables.find("ssh", ground.environ.get("PATH", "")) or "",
            ground.identity,
        ),
        mpi_ipv6=programs.has_ipv6(mpi, ground.environ) if six else None,
        networks=networks,
    )
    return Seen(observed, passed, found.warnings)
