"""One launch: the gate, the plan and its files, mpirun, the verdict, the report.

Workers that were reached are notified how it ended. Other commands wait for hosts here, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

from mpiboot.core import addresses, launch_spec, log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.facts import Host, Hostfile, Worker
from mpiboot.core.launch_spec import BY_SIGNAL, COMMAND_DIR, LAUNCHES, TIMED
from mpiboot.core.model import AUTO, Finding, Level, Mpi, MpiFamily, ProveTransport, Source, Switch
from mpiboot.core.settings import Resolved
from mpiboot.hosts import error_report, gate, hostfiles, remote_commands
from mpiboot.hosts.gate import GateResult
from mpiboot.hosts.hostfiles import JobHostfile
from mpiboot.hosts.pipeline import PipelineOptions
from mpiboot.hosts.remote_commands import PairCheck
from mpiboot.job import control_links, job_hosts, mpirun_line, program_words, render
from mpiboot.job import plan as plans
from mpiboot.job.mpirun_line import UserLine
from mpiboot.job.mpis import IMPLEMENTATIONS
from mpiboot.job.plan_input import Observed
from mpiboot.launcher import setup
from mpiboot.launcher.role import LauncherProcess, read_facts
from mpiboot.launcher.setup import LauncherPod, access, find_key, launcher_pod
from mpiboot.network import decision, pod, worker_network, worker_pairs
from mpiboot.network.decision import DataNetwork
from mpiboot.network.records import Transport, WorkerNetwork
from mpiboot.network.worker_pairs import Dial
from mpiboot.ssh import config as sshconfig
from mpiboot.supervisor import evidence, report
from mpiboot.supervisor.job import HostFacts, Job, LaunchSpec, Verdict, signal_name, verdict_of
from mpiboot.supervisor.mpirun import Mpirun
from mpiboot.supervisor.output import OutputWriter
from mpiboot.supervisor.processes import remove_key, start_guard
from mpiboot.supervisor.verdict import by_signal, needs_hosts, not_startable
from mpiboot.supervisor.verdict import verdict as judge
from mpiboot.supervisor.workers import Workers
from mpiboot.system import files, process, programs, spawn
from mpiboot.system.programs import in_thread
from mpiboot.system.spawn import DEFAULT_PATH
from mpiboot.worker.facts import find_parameters

# Seconds that notifying the hosts that were ready may take; after a signal somebody waits.
_NOTIFY_S: Final = 2.5
_NOTIFY_ENDED_S: Final = 1.0
# Seconds in which hosts are to answer; and where the job's exit code depends on that.
_QUERY_S: Final = 5.0
_PROOF_S: Final = 61.0


class LaunchRun:
    """One launch, from the gate to the report.

    ``pod`` is there once it is set up; ``workers`` are those that were ready when the gate ended.
    """

    _spec: LaunchSpec  # these two once all are ready
    _hosts: Workers

    def __init__(
        self,
        launcher: LauncherProcess,
        resolved: Resolved,
        program: tuple[str, ...],
        attempt: str,
        own: TextIO,
    ) -> None:
        """Begin without any host.

        Args:
            launcher: this process.
            resolved: the settings.
            program: the user's line, by which a command above knows the launch.
            attempt: this launcher's name for workers; empty where it is a part of a job, which may
                go on with other launches.
            own: gets this pod's facts, which are being gathered.
        """
        self._launcher, self._resolved, self._program = launcher, resolved, program
        self._settings, self._attempt, self._own = resolved.settings, attempt, own
        self.pod: LauncherPod | None = None
        self._earlier = ""
        self.workers: list[Worker] = []
        # When the last name was resolved, all were ready, mpirun was started, and it had ended.
        self._times: tuple[float, ...] = ()
        self._transport: dict[str, Any] = {}  # what carried the job's data

    async def run(self) -> int:
        """Wait for the hosts, run mpirun to its end, report; give the exit code."""
        launcher = self._launcher
        task = await launcher.until_signal(self.prepare())
        if launcher.signalled:  # nothing is started yet, so nothing is to be ended
            return await self._ended_before_start()
        wrong = task.exception()
        if isinstance(wrong, Exception):
            return await self._not_started(self.failed(wrong))
        self._spec, self._hosts, environ = task.result()
        # What is started from here on belongs to this launch.
        os.environ.clear()
        os.environ.update(environ)
        process.raise_file_limit()
        return await (self._become() if self._settings.supervise is Switch.OFF else self._run())

    async def prepare(self) -> tuple[LaunchSpec, Workers, Mapping[str, str]]:
        """Wait, decide, and write the files of a launch; give its hosts, and mpirun's environment.

        Raises:
            MpibootError: a gate, a check or a file failed.
        """
        resolved, environ = self._resolved, os.environ
        # A command's launches have its name, and may disconnect while it goes on.
        name, part = self._attempt or environ.get(launch_spec.ATTEMPT, ""), not self._attempt
        set_up = partial(launcher_pod, resolved, environ, attempt=name, may_disconnect=part)
        pod = self.pod = await in_thread(set_up)  # a volume may hang
        seen = await observe(pod, self._program, self._own.read, self.workers)
        self._earlier = log_attempt(self.workers, pod.attempt)
        paths = setup.paths(pod.folder, os.getpid())
        # In a thread: the loop meanwhile reads from workers that dial each other.
        made = await in_thread(plans.make, seen.observed, resolved, paths)
        for level, event, message, fields in render.log_lines(made, seen.observed):
            log.write(level, event, message, **fields)
        reported = plans.unknown_option(seen.observed.line)
        found = [item for item in made.findings if item != reported]
        error_report.report_findings([item for item in found if item.level is not Level.FAIL])
        plans.stop_on_failure(made.findings)
        launch = setup.Launch(made, seen.observed, resolved, paths, pod)
        await in_thread(launch.write)  # it looks into TMPDIR, too
        # Where workers don't reach each other, MPI would hang.
        pairs = plans.pair_findings(made, seen.observed, await seen.pairs.results())
        plans.stop_on_failure(pairs)
        for finding in pairs:
            log.finding(finding)
        env = made.environment(environ) | {launch_spec.LAUNCH_DIR: paths.launch_dir}
        env.setdefault(launch_spec.LAUNCH_ID, pod.launch_id)
        pool, hosts = access(pod).pool, launch.logins.pool_hosts() if pod.key else ()
        pool.environ = env
        pool.know(hosts)
        if launch.by_pool:
            # Loaded late, with asyncssh: other users of this module may log in nowhere.
            from mpiboot.ssh.agents import AgentRequests  # noqa: PLC0415

            with files.writing():
                AgentRequests(Path(paths.launch_dir), [host.name for host in hosts]).serve(pool)
        if pod.settings.supervise is Switch.OFF:
            await pool.close()
        workers = Workers(pool, launch.snapshots(), env)
        line = render.command(made.argv).partition("\n")[0]  # a script's text has own lines
        log.info("start", f"starting {line}", argv=list(made.argv))
        self._times = seen.passed.times
        return launch, workers, env

    def failed(self, wrong: Exception) -> Verdict:
        """Log why mpirun is not started."""
        known = wrong if isinstance(wrong, MpibootError) else error_report.bug(wrong)
        message = error_report.report(known)
        if not self._earlier and self.pod:
            self._earlier = log_attempt(self.workers, self.pod.attempt)
        message += f"{self._earlier}\n" if self._earlier else ""
        host = next((item.host for item in (known.finding, *known.others) if item.host), "")
        return Verdict(known.code, known.finding.check, message, host)

    async def notify(self, failure: Verdict) -> None:
        """Notify the workers that were reached why mpirun is not started, within a time limit."""
        hosts = [evidence.snapshot(one, one.host.name) for one in self.workers if one.runs_mpiboot]
        if self.pod is None or not self.pod.attempt or not hosts:
            return
        hold = 0.0 if failure.by_signal else self._settings.hold_on_failure
        # A command above may go on, and notifies them of its end.
        to_come = hold if self._attempt else None
        why = f"{failure.message.partition(chr(10))[0]}, exit {failure.code}"
        pool = access(self.pod).pool
        try:
            await Workers(pool, hosts, os.environ).notify(self.pod.attempt, to_come, why)
        finally:
            await pool.close()

    async def _ended_before_start(self) -> int:
        """End after a signal; another one ends the notification of the workers, too."""
        launcher = self._launcher
        number, launcher.signalled = launcher.signalled, 0
        failure = by_signal(number)
        message = failure.message.partition(": ")[2].rstrip()
        log.info("signal", message, signal=signal_name(number))
        return await self._not_started(failure)

    async def _not_started(self, failure: Verdict) -> int:
        launcher = self._launcher
        self._report_to_command(failure)
        seconds, path = time.monotonic() - launcher.began, self._settings.termination_log
        launcher.record(report.log_not_started(failure, seconds, path))
        limit = _NOTIFY_ENDED_S if failure.by_signal else _NOTIFY_S
        await launcher.in_time(self.notify(failure), limit)
        if not failure.by_signal:
            await launcher.hold()
        return failure.code

    async def _run(self) -> int:
        """Start mpirun, wait for its end, and report how it ended."""
        launcher, spec = self._launcher, self._spec
        mpirun = Mpirun(spec, os.environ, launcher.handles, launcher.stderr, self._hosts)
        launcher.handles.fail, launcher.receive = mpirun.fail, mpirun.receive
        # Does nothing: there is no guard yet.
        dismiss: Callable[[], object] = bool
        try:
            # As PID 1 this process takes everything along when it is killed. Elsewhere the guard is
            # there before mpirun is: neither is ever without the other.
            if os.getpid() != 1:
                dismiss = start_guard(spec.where.launch_dir, os.environ, self._settings.log_format)
            mpirun.start(launcher.mask)
            started = time.monotonic()
        except OSError as wrong:
            launcher.receive = launcher.note_signal
            dismiss()
            return await self._ended(not_startable(spec.plan.argv[0], wrong))
        try:
            state = await mpirun.result()
        except BaseException:
            # Never leave an mpirun without a parent: nobody would end it, or say how it ended.
            await mpirun.end_left()
            raise
        self._times += (started, time.monotonic())
        launcher.signalled, launcher.receive = mpirun.signalled, launcher.note_signal
        await mpirun.end_left()
        dismiss()
        launcher.hurries = state.signal != 0
        return await self._ended(await self._judged(state), mpirun.streams.stdout)

    async def _judged(self, state: Job) -> Verdict:
        """Judge a job that has ended, by what its hosts answer now; say what carried its data."""
        launcher, spec, hosts = self._launcher, self._spec, list[HostFacts]()
        counters: dict[str, Any] | None = None
        if needs_hosts(state):
            program = state.lacking.what if state.lacking else spec.observed.line.program
            asking = self._hosts.after_job(program, hosts.append)
            counters = await launcher.in_time(asking, _QUERY_S, "querying hosts")
        found = judge(state, tuple(hosts), job_hosts.explaining_ends(spec.plan.findings))
        if found.by_signal and found.code == BY_SIGNAL + signal.SIGHUP and os.environ.get(TIMED):
            found = Verdict(0, "", "time is up")
        proves = spec.prove is not ProveTransport.OFF
        if proves and not found.code:
            strict = spec.prove is ProveTransport.FAIL
            seconds = _PROOF_S if strict else _QUERY_S
            counting = self._hosts.count(strict=strict)
            counters = await launcher.in_time(counting, seconds, "reading counters")
        self._transport = {"planned": (spec.plan.transport or Transport.NONE).value}
        try:
            if proves and not found.by_signal:
                self._transport |= report.log_transport(spec, found.code, counters)
        except Exception as wrong:  # noqa: BLE001 - how the job ended is known
            log.failed("the transport report", wrong)
        unused = self._transport.get("verdict") == "unused"
        if unused and not found.code and report.requires_rdma(spec):
            return verdict_of("transport", self._transport["message"])
        return found

    async def _become(self) -> int:
        """Become mpirun; a signal that has come before ends this process."""
        launcher = self._launcher
        await launcher.flush(launcher.stderr, "stderr")
        log.write_by(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the loop has read what came
        if launcher.signalled:
            return await self._ended_before_start()
        argv = self._spec.plan.argv
        try:
            spawn.replace(argv, os.environ, launcher.mask)
        except OSError as wrong:
            return await self._ended(not_startable(argv[0], wrong))

    async def _ended(self, verdict: Verdict, stdout: OutputWriter | None = None) -> int:
        """Notify the workers first, as a reader of the output that stalls must hold none of them.

        Args:
            verdict: how it ended.
            stdout: mpirun's, where something of it may be left.
        """
        launcher, spec = self._launcher, self._spec
        hold = 0.0 if verdict.by_signal else self._settings.hold_on_failure
        if self._attempt and not launcher.signalled:
            notifying = self._hosts.notify(self._attempt, hold, report.why(verdict))
            await launcher.in_time(notifying, _QUERY_S, "notifying workers")
        if stdout:
            verdict = await self._passed_on(stdout, verdict)
        seconds = time.monotonic() - launcher.began
        self._report_to_command(verdict)
        fields = report.log_end(verdict, spec, seconds, self._earlier)
        fields |= {"hosts": spec.all_hosts, "transport": self._transport}
        launcher.record(fields, self._times)
        remove_key(spec.where.launch_dir)
        if verdict.code and not verdict.by_signal:
            await launcher.hold()
        return verdict.code

    async def _passed_on(self, stdout: OutputWriter, verdict: Verdict) -> Verdict:
        """Pass on the last of mpirun's stdout; what is lost of it is no success."""
        launcher = self._launcher
        lost = await launcher.flush(stdout, "stdout")
        if not lost:
            return verdict
        log.warning("output", lost)
        if verdict.code:
            return replace(verdict, evidence=(*verdict.evidence, lost))
        if launcher.signalled:
            return Verdict(BY_SIGNAL + launcher.signalled, "", lost, by_signal=True)
        return verdict_of("output", lost)

    def _report_to_command(self, verdict: Verdict) -> None:
        """Write for the command above how this launch ended, and which workers it reached."""
        code = 0 if verdict.by_signal else verdict.code
        hosts = [(one.host.name, one.host.user) for one in self.workers if one.runs_mpiboot]
        if above := os.environ.get(COMMAND_DIR):
            with suppress(OSError), Path(above, LAUNCHES).open("ab", buffering=0) as file:
                file.write(json.dumps((self._program, code, hosts)).encode() + b"\n")


def log_attempt(workers: Sequence[Worker], name: str) -> str:
    """Log which attempt this is, and how the last one ended; empty for the first one.

    ``name`` is this launcher's.
    """
    count, ended, message = job_hosts.earlier(workers, name)
    if count:
        log.info("attempt", message, attempt=count + 1, ended=ended)
    return message


@dataclass(frozen=True, slots=True)
class Observation:
    """The plan's input, and the results of the gate.

    ``pairs`` has the results of workers that dial each other, and ``dialled`` those results where
    they were collected.
    """

    observed: Observed
    passed: gate.GateResult
    pairs: PairCheck
    dialled: tuple[Dial, ...] = ()


async def observe(
    launcher: LauncherPod,
    program: tuple[str, ...],
    facts: Callable[[], str],
    reached: list[Worker] | None = None,
    doctor: tuple[str, ...] = (),
) -> Observation:
    """Wait for the hosts, or try each once, and meanwhile observe what needs none of them.

    Args:
        launcher: this pod, whose key is found here.
        program: the user's line.
        facts: gives those of this pod, as ``role.gather_facts`` does.
        reached: gets the hosts that were ready, even if this fails; None: they are not waited for.
        doctor: queries of doctor's.
    """
    once, settings = reached is None, launcher.settings
    own = asyncio.ensure_future(in_thread(facts))
    # First, as the line is parsed by the rules of its MPI.
    mpi = await in_thread(_mpi, launcher, program)
    line = mpirun_line.read(program, mpi.family)
    if line.unknown and not once:  # before a wait that may be long, or in vain
        log.finding(plans.unknown_option(line))
    found = await find_hosts(launcher, line)
    # These read files of the user's, whose volume may hang.
    await in_thread(find_key, launcher, found.hostfile.hosts)
    parameters = await in_thread(find_parameters, mpi, launcher.environ, line)
    folder = workdir(line, await in_thread(process.working_directory, launcher.environ))
    # The user's own ssh arguments: of the line, the environment or the MPI's own files.
    given = {item.variable: item.value for item in reversed(parameters)}
    given |= {name: value for name, value in launcher.environ.items() if value}
    args = control_links.given_by_user(given, line, IMPLEMENTATIONS.get(mpi.family))
    to = access(launcher, args)
    if not (to.pool.client or launcher.pods) and (lost := sshconfig.only_by_ssh(args)):
        message = f"of the user's ssh arguments {', '.join(lost)} has no effect"
        log.warning("ssh", f"no ssh can run here: {message}")
    queried = await in_thread(_queried, line, mpi)
    options = PipelineOptions(mpirun=queried, workdir=folder, doctor=doctor)
    hosts = found.hostfile.hosts
    if once:
        passed = await gate.probe_once(hosts, settings, to, options)
        networks = {one.host.name: worker_network.choose(one, settings) for one in passed.workers}
    else:
        options = replace(options, job=launcher.job)
        passed = await gate.wait(hosts, launcher.rest, to, options, hostfile=found, reached=reached)
        await remote_commands.end_leftovers(passed.workers, launcher.job, to.pool)
        workers, networks = await _with_networks(launcher, passed.workers)
        passed = replace(passed, workers=workers)
    addresses = {
        name: worker_network.socket_addresses(one, settings) for name, one in networks.items()
    }
    pairs = PairCheck(settings, launcher.launch_id, to.pool, passed.workers, addresses)
    blocked = await pairs.blocked_on_data()
    pod_facts, answer = read_facts(await own)
    ipv6 = None
    if any(":" in worker.address for worker in passed.workers):
        ipv6 = await in_thread(programs.has_ipv6, mpi, launcher.environ)  # runs ompi_info
    hostname = pod_facts.hostname
    renamed = await in_thread(_for_mpirun, found.hostfile, line, mpi, passed.local, hostname)
    observed = Observed(
        hostfile=found.hostfile,
        mpi=mpi,
        identity=launcher.identity,
        environ=launcher.environ,
        line=line,
        local=passed.local,
        workers=passed.workers,
        renamed={**passed.renamed, **renamed},
        links=pod_facts.links,
        own=pod_facts,
        own_answer=answer,
        client=launcher.chosen,
        mpi_ipv6=ipv6,
        networks=networks,
        data_blocked=blocked,
        parameters=parameters,
        workdir=folder,
    )
    dialled = await pairs.results() if once else ()
    if once:
        await to.pool.close()
    return Observation(observed, passed, pairs, dialled)


async def find_hosts(launcher: LauncherPod, line: UserLine) -> JobHostfile:
    """Find the job's hosts: those of the line, where it names them, else the hostfile's.

    Args:
        launcher: this pod, until whose deadline a hostfile is waited for.
        line: the user's.

    Raises:
        MpibootError: ``hostfile-missing``, ``hostfile-invalid``.
    """
    named = job_hosts.of_line(line)
    if named and not line.hostfiles:
        listed = Hostfile("the mpirun line", "-H", named, Source.FLAG)
        return JobHostfile(listed, is_file=False)
    found = await hostfiles.of_job(
        launcher.resolved, launcher.environ, launcher.rest.timeout, line.hostfiles
    )
    if not named:
        return found
    hosts = job_hosts.of_line(line, found.hostfile.hosts)
    return replace(found, hostfile=replace(found.hostfile, hosts=hosts), is_file=False)


def workdir(line: UserLine, own: str) -> str:
    """Give where ranks start, of mpirun's ``own`` directory; empty where it isn't known."""
    path = line.given.get("wdir", "")
    # Each of several programs may have its own.
    if line.unknown or "set-cwd-to-session-dir" in line.given or (path and line.apps[1:]):
        return ""
    if path.startswith("/"):
        return path
    return f"{own}/{path}".rstrip("/") if own else ""


async def probe_hosts(launcher: LauncherPod) -> GateResult:
    """Try every host of the hostfile once, without a plan.

    Raises:
        MpibootError: there is no hostfile, or no key.
    """
    hosts = (await find_job(launcher)).hostfile.hosts
    return await gate.probe_once(hosts, launcher.settings, access(launcher))


def _for_mpirun(
    hostfile: Hostfile, line: UserLine, mpi: Mpi, local: Sequence[Host], hostname: str
) -> dict[str, str]:
    """Give the names that must be replaced for mpirun, in the hostfile or on its line."""
    found = [host.name for host in local]
    if found:
        own_names = pod.own_names(hostname)
        on_line = (host.name for app in line.apps for host in app.hosts)
        found += [name for name in on_line if addresses.is_local(name, hostname, own_names)]
    listed = [host.name for host in hostfile.hosts]
    implementation = IMPLEMENTATIONS.get(mpi.family)
    by_first_label = implementation is not None and implementation.by_first_label
    return addresses.for_mpirun(listed, found, hostname, by_first_label=by_first_label)


async def find_job(launcher: LauncherPod) -> JobHostfile:
    """Find the hosts and the key of a job whose program is not known.

    Raises:
        MpibootError: ``hostfile-missing``, ``hostfile-invalid``, ``ssh-key``.
    """
    found = await find_hosts(launcher, UserLine())
    await in_thread(find_key, launcher, found.hostfile.hosts)
    return found


async def pass_gates(
    launcher: LauncherPod,
    found: JobHostfile,
    reached: list[Worker] | None = None,
    report: Callable[[GateResult], None] | None = None,
) -> gate.GateResult:
    """Wait until every host is ready; ``reached`` and ``report`` are as for ``gate.wait``."""
    to, hosts = access(launcher), found.hostfile.hosts
    passed = await gate.wait(
        hosts, launcher.rest, to, hostfile=found, reached=reached, report=report
    )
    pairs = PairCheck(launcher.settings, launcher.launch_id, to.pool, passed.workers, {})
    dialled = await pairs.results()
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
    workers, networks = await _with_networks(launcher, (await pass_gates(launcher, found)).workers)
    return workers, decision.decide(tuple(networks.values()), launcher.settings, {})


async def _with_networks(
    launcher: LauncherPod, workers: tuple[Worker, ...]
) -> tuple[tuple[Worker, ...], dict[str, WorkerNetwork]]:
    """Wait until the facts and data networks of these workers are ready."""
    return await remote_commands.wait_until_settled(
        workers,
        lambda worker: worker_network.choose(worker, launcher.settings),
        launcher.rest,
        partial(remote_commands.fetch_facts, access(launcher).pool),
    )


def _mpi(launcher: LauncherPod, program: tuple[str, ...]) -> Mpi:
    """Identify the mpirun that will run.

    Raises:
        MpibootError: ``program-missing``; there is none.
    """
    called = program_words.called(program)
    found = programs.detect_mpi(launcher.environ, called, patience=programs.LONG)
    if found is None:
        missing = f"{called} is no program here" if "/" in called else ""
        raise error(
            "program-missing",
            missing or "no mpirun or mpiexec on PATH",
            evidence=(f"PATH={launcher.environ.get('PATH', '')}",),
            hint="install an MPI in the launcher's image, or put its bin folder on PATH",
        )
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
