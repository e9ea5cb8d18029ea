"""The input of a launch's plan: the hosts, their pods' facts, this pod and its MPI."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.facts import Host, Hostfile, PodFacts, Worker
from mpiboot.core.model import AUTO, Finding, Level, Mpi, MpiFamily, Source
from mpiboot.hosts import gate, hostfiles, remote_commands
from mpiboot.hosts.gate import GateResult
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.hosts.hostfiles import JobHostfile
from mpiboot.hosts.pairs import PairCheck
from mpiboot.hosts.pipeline import PipelineOptions
from mpiboot.job import control_links, job_hosts, mpirun_line, names, program_words
from mpiboot.job import plan as plans
from mpiboot.job.mpirun_line import UserLine
from mpiboot.job.mpis import IMPLEMENTATIONS
from mpiboot.job.plan_input import Observed
from mpiboot.job.program_words import Rendezvous
from mpiboot.launcher import launch_folder
from mpiboot.launcher.setup import LauncherPod, access, find_key
from mpiboot.network import decision, pod, worker_network, worker_pairs
from mpiboot.network.decision import DataNetwork
from mpiboot.network.records import WorkerNetwork
from mpiboot.network.worker_pairs import Dial
from mpiboot.ssh import config as sshconfig
from mpiboot.system import process, programs
from mpiboot.system.spawn import DEFAULT_PATH
from mpiboot.system.threads import in_thread
from mpiboot.worker.facts import find_parameters


@dataclass(frozen=True, slots=True)
class Observation:
    """The plan's input, and the results of the gate.

    ``already_said`` are the plan's findings that were logged before any host was waited for.
    ``pairs`` has the results of workers that dial each other, and ``dialled`` those results where
    they were collected.
    """

    observed: Observed
    passed: gate.GateResult
    warnings: tuple[Finding, ...]
    already_said: tuple[Finding, ...] = ()
    pairs: PairCheck | None = None
    dialled: tuple[Dial, ...] = ()


async def observe(
    launcher: LauncherPod,
    program: tuple[str, ...],
    facts: Awaitable[tuple[PodFacts, HostAnswer]],
    reached: list[Worker] | None = None,
    doctor: tuple[str, ...] = (),
) -> Observation:
    """Wait for the hosts, or try each once, and meanwhile observe what needs none of them.

    Args:
        launcher: this pod, whose key is found here.
        program: the user's line.
        facts: this pod's own.
        reached: gets the hosts that were ready, even if this fails; None: they are not waited for.
        doctor: queries of doctor's.
    """
    once, settings, own = reached is None, launcher.settings, asyncio.ensure_future(facts)
    # First, as the line is parsed by the rules of its MPI.
    mpi = await in_thread(_mpi, launcher, program, programs.SHORT if once else programs.LONG)
    line = mpirun_line.read(program, mpi.family)
    patience = 0.0 if once else None
    found = await find_hosts(launcher, line, patience)
    # They read files of the user's, whose volume may hang.
    await in_thread(find_key, launcher, found.hostfile.hosts, patience)
    before = await in_thread(_before_hosts, launcher, found.hostfile, mpi, line)
    already_said = () if once else _report_at_once(launcher, before)
    args = _ssh_arguments(before)
    pairs, to = (
        PairCheck(settings.pair_check, settings.port_range, launcher.launch_id),
        access(launcher, args),
    )
    if not (launcher.client or launcher.pods) and (lost := sshconfig.only_by_ssh(args)):
        message = f"of the user's ssh arguments {', '.join(lost)} has no effect"
        log.warning("ssh", f"no ssh can run here: {message}")
    queried = await in_thread(_queried, line, mpi)
    options = PipelineOptions(mpirun=queried, workdir=before.workdir, pairs=pairs)
    hosts = found.hostfile.hosts
    if once:
        passed = await gate.probe_once(hosts, settings, to, options, doctor=doctor)
        networks = {one.host.name: worker_network.choose(one, settings) for one in passed.workers}
        if not passed.unasked:
            pairs.begin(passed.workers)
    else:
        options = replace(options, job=launcher.job)
        passed = await gate.wait(hosts, launcher.rest, to, options, hostfile=found, reached=reached)
        pairs.begin(passed.workers)
        await remote_commands.end_leftovers(passed.workers, launcher.job, to.pool)
        workers, networks = await _settled(launcher, passed.workers)
        passed = replace(passed, workers=workers)
    addresses = {
        name: worker_network.socket_addresses(one, settings) for name, one in networks.items()
    }
    blocked = await pairs.blocked_on_data(addresses)
    before = replace(before, hostfile=found.hostfile, networks=networks, data_blocked=blocked)
    # It may run ompi_info, and this loop must see the end of that.
    observed = await in_thread(_with_hosts, launcher, before, passed, await own)
    seen = Observation(observed, passed, found.warnings, already_said, pairs)
    if once:
        seen = replace(seen, dialled=await pairs.results())
        pairs.close()
        await to.pool.close()
    return seen


async def find_hosts(
    launcher: LauncherPod, line: UserLine, patience: float | None, hostname: str | None = None
) -> JobHostfile:
    """Find the job's hosts: those of the line, where it names them, else the hostfile's.

    Args:
        launcher: this pod.
        line: the user's.
        patience: how many seconds a hostfile is waited for; None: the rest of the deadline.
        hostname: this pod's, as for ``hostfiles.of_job``.

    Raises:
        MpibootError: ``hostfile-missing``, ``hostfile-invalid``.
    """
    named = job_hosts.of_line(line)
    if named and not line.hostfiles:
        listed = Hostfile("the mpirun line", "-H", named, Source.FLAG)
        return JobHostfile(listed, (), is_file=False)
    seconds = launcher.rest.timeout if patience is None else patience
    resolved, environ = launcher.resolved, launcher.environ
    found = await hostfiles.of_job(resolved, environ, seconds, line.hostfiles, hostname)
    if not named:
        return found
    hosts = job_hosts.of_line(line, found.hostfile.hosts)
    return replace(found, hostfile=replace(found.hostfile, hosts=hosts), is_file=False)


def _before_hosts(launcher: LauncherPod, hostfile: Hostfile, mpi: Mpi, line: UserLine) -> Observed:
    """Give what is known without the hosts."""
    return Observed(
        hostfile=hostfile,
        mpi=mpi,
        identity=launcher.identity,
        environ=launcher.environ,
        line=line,
        client=launcher.chosen,
        parameters=find_parameters(mpi, launcher.environ, line),
        workdir=workdir(line, process.working_directory(launcher.environ)),
    )


def workdir(line: UserLine, own: str) -> str:
    """Give where ranks start, of mpirun's ``own`` directory; empty where it isn't known."""
    path = line.given.get("wdir", "")
    # Each of several programs may have its own.
    if line.unknown or "set-cwd-to-session-dir" in line.given or (path and line.apps[1:]):
        return ""
    if path.startswith("/"):
        return path
    return f"{own}/{path}".rstrip("/") if own else ""


def _ssh_arguments(before: Observed) -> sshconfig.UserArgs:
    """Read the user's own ssh arguments: of the line, the environment or the MPI's own files."""
    files = {item.variable: item.value for item in reversed(before.parameters)}
    given = files | dict(item for item in before.environ.items() if item[1])
    return control_links.given_by_user(given, before.line, IMPLEMENTATIONS.get(before.mpi.family))


def _with_hosts(
    launcher: LauncherPod,
    before: Observed,
    passed: gate.GateResult,
    own: tuple[PodFacts, HostAnswer],
) -> Observed:
    """Add the results of the gate and this pod's facts."""
    ipv6 = any(":" in worker.address for worker in passed.workers)
    return replace(
        before,
        local=passed.local,
        workers=passed.workers,
        renamed={**passed.renamed, **_for_mpirun(before, passed, own[0])},
        links=own[0].links,
        own=own[0],
        own_oom_kills=own[1].oom_kills,
        own_counters=own[1].counters,
        mpi_ipv6=programs.has_ipv6(before.mpi, launcher.environ) if ipv6 else None,
    )


def _report_at_once(launcher: LauncherPod, before: Observed) -> tuple[Finding, ...]:
    """Log the findings of the line and the hostfile before any host is waited for.

    Returns:
        These findings; the plan will have them again.

    Raises:
        MpibootError: ``usage``; the line can't be started.
    """
    made = plans.make(before, launcher.resolved, launch_folder.paths(launcher.folder))
    already_said = tuple(item for item in made.findings if item.check in ("usage", "slots"))
    for finding in already_said:
        if finding.level is Level.FAIL:
            raise MpibootError(finding)
        log.finding(finding)
    return already_said


async def probe_hosts(launcher: LauncherPod) -> tuple[tuple[Host, ...], GateResult]:
    """Try every host of the hostfile once, without a plan.

    Raises:
        MpibootError: there is no hostfile, or no key.
    """
    hosts = (await find_hosts(launcher, UserLine(), 0.0)).hostfile.hosts
    await in_thread(find_key, launcher, hosts, 0.0)
    return hosts, await gate.probe_once(hosts, launcher.settings, access(launcher))


async def master_port_taken(
    launcher: LauncherPod, seen: Observation, meeting: Rendezvous
) -> tuple[Finding, ...]:
    """Check that the port where ranks are to meet is free, before any is started."""
    observed = seen.observed
    called = {observed.called(item.host.name): item for item in observed.workers}
    if meeting.host not in called.keys() | observed.local_names:
        return ()
    worker = called.get(meeting.host)
    pool = access(launcher).pool
    return await remote_commands.look_at_master_port(meeting, worker, pool)


def _for_mpirun(before: Observed, passed: gate.GateResult, own: PodFacts) -> dict[str, str]:
    """Give the names that must be replaced for mpirun, in the hostfile or on its line."""
    local = [host.name for host in passed.local]
    if local:
        own_names = pod.own_names(own.hostname)
        asked = (host.name for app in before.line.apps for host in app.hosts)
        local += [name for name in asked if names.is_local(name, own.hostname, own_names)]
    listed = [host.name for host in before.hostfile.hosts]
    mpi = IMPLEMENTATIONS.get(before.mpi.family)
    by_first_label = mpi is not None and mpi.by_first_label
    return names.for_mpirun(listed, local, own.hostname, by_first_label=by_first_label)


async def find_job(launcher: LauncherPod) -> JobHostfile:
    """Wait for the hostfile and the key of a job whose program is not known.

    Raises:
        MpibootError: ``hostfile-missing``, ``hostfile-invalid``, ``ssh-key``.
    """
    found = await find_hosts(launcher, UserLine(), None)
    await in_thread(find_key, launcher, found.hostfile.hosts)
    return found


async def pass_gates(
    launcher: LauncherPod,
    found: JobHostfile,
    reached: list[Worker] | None = None,
    report: Callable[[GateResult], None] | None = None,
) -> gate.GateResult:
    """Wait until every host is ready; ``reached`` and ``report`` are as for ``gate.wait``."""
    settings = launcher.settings
    for item in found.warnings:
        log.finding(item)
    pairs = PairCheck(settings.pair_check, settings.port_range, launcher.launch_id)
    passed = await gate.wait(
        found.hostfile.hosts,
        launcher.rest,
        access(launcher),
        PipelineOptions(pairs=pairs),
        hostfile=found,
        reached=reached,
        report=report,
    )
    pairs.begin(passed.workers)
    dialled = await pairs.results()
    pairs.close()
    names = [worker.host.name for worker in passed.workers]
    unknown = "what will be started is not known here"
    findings = worker_pairs.findings(dialled, names, unknown, daemons_optional=unknown)
    for item in findings:
        log.finding(item)
    return replace(passed, findings=findings)


async def pass_gates_with_networks(
    launcher: LauncherPod, found: JobHostfile
) -> tuple[tuple[Worker, ...], DataNetwork]:
    """Wait until every host is ready and its data network settled; no program is known."""
    workers, networks = await _settled(launcher, (await pass_gates(launcher, found)).workers)
    return workers, decision.decide(tuple(networks.values()), launcher.settings, {})


async def _settled(
    launcher: LauncherPod, workers: tuple[Worker, ...]
) -> tuple[tuple[Worker, ...], dict[str, WorkerNetwork]]:
    """Wait until the facts and data networks of these workers are ready."""
    return await remote_commands.wait_until_settled(
        workers,
        lambda worker: worker_network.choose(worker, launcher.settings),
        launcher.rest,
        partial(remote_commands.fetch_facts, access(launcher).pool),
    )


def no_mpirun(environ: Mapping[str, str], called: str = "") -> MpibootError:
    """Make the error for a missing mpirun, or one that the line calls."""
    if "/" in called:
        hint = "call the mpirun that the image has, or mpirun alone for the one on PATH"
        return error("program-missing", f"{called} is no program here", hint=hint)
    return error(
        "program-missing",
        "no mpirun or mpiexec on PATH",
        evidence=(f"PATH={environ.get('PATH', '')}",),
        hint="install an MPI in the launcher's image, or put its bin folder on PATH",
    )


def _mpi(launcher: LauncherPod, program: tuple[str, ...], patience: float) -> Mpi:
    """Identify the mpirun that will run.

    Raises:
        MpibootError: ``program-missing``; there is none.
    """
    called = program_words.called(program)
    found = programs.detect_mpi(launcher.environ, called, patience=patience)
    if found is None:
        raise no_mpirun(launcher.environ, called)
    wanted = launcher.settings.mpi
    if wanted is AUTO:
        return found
    if found.family not in (wanted, MpiFamily.UNKNOWN):
        given = f"{launcher.resolved.given['mpi']}={wanted.value}"
        message = f"{given} is followed, though {found.path} says that it is {found.banner}"
        log.finding(Finding("mpi-versions", Level.WARN, message, hint=f"remove {given}"))
    return replace(found, family=wanted)


def _queried(line: UserLine, mpi: Mpi) -> str:
    """Choose the mpirun whose version hosts are queried for; empty: that of their PATH alone.

    The 4.1 of this pod is one: its daemons are called by name, which a login need not find.
    """
    named, folder = line.daemons_mpirun, str(Path(mpi.path).resolve().parent)
    if named or mpi.family is not MpiFamily.OPENMPI4 or folder in DEFAULT_PATH.split(":"):
        return named
    return f"{folder}/mpirun"
