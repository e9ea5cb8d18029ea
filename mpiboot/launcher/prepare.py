"""Prepares a launch: waits for the hosts, makes the plan and its files, and opens its pool.

If it fails, or a signal ends the launcher, the workers that it has reached are notified.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from mpiboot.core import launch_names, log
from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Worker
from mpiboot.core.launch_spec import Failure
from mpiboot.core.model import Level
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import counted
from mpiboot.hosts import error_report
from mpiboot.hosts.pairs import PairCheck
from mpiboot.job import job_hosts, render
from mpiboot.job import plan as plans
from mpiboot.job.plan_input import Observed
from mpiboot.launcher import launch_folder, observation
from mpiboot.launcher.launch_folder import Logins
from mpiboot.launcher.own_facts import OwnFacts
from mpiboot.launcher.run import Prepared
from mpiboot.launcher.setup import LauncherPod, access, launcher_pod
from mpiboot.ssh.agents import AgentRequests
from mpiboot.supervisor.ask_workers import Workers
from mpiboot.system import files
from mpiboot.system.threads import in_thread


class Preparation:
    """What comes before mpirun is started."""

    def __init__(
        self, resolved: Resolved, program: tuple[str, ...], attempt: str, own: OwnFacts
    ) -> None:
        """Begin without any host.

        Args:
            resolved: the settings.
            program: the user's line.
            attempt: this launcher's name for workers; empty where it is a part of a job, which may
                go on with other launches.
            own: this pod's facts, which are being gathered.
        """
        self._resolved, self._program, self._attempt = resolved, program, attempt
        self._own = own
        self._reached = ReachedWorkers()

    async def run(self) -> Prepared:
        """Wait, decide, and write the files of a launch.

        Raises:
            MpibootError: a gate, a check or a file failed.
        """
        resolved, environ = self._resolved, os.environ
        before = dict(environ)  # setting this pod up adds to it
        pod = await own_pod(resolved, self._program, self._reached, self._attempt)
        reached = self._reached.workers
        seen = await observation.observe(pod, self._program, self._own.read(), reached)
        earlier = self._reached.say_attempt()
        paths = launch_folder.paths(pod.folder, os.getpid())
        # In a thread: the loop meanwhile reads from workers that dial each other.
        made = await in_thread(plans.make, seen.observed, resolved, paths)
        for level, event, message, fields in render.log_lines(made, seen.observed):
            log.say(level, event, message, **fields)
        found = [
            finding
            for finding in (*seen.warnings, *made.findings)
            if finding.level is not Level.FAIL and finding not in seen.already_said
        ]
        error_report.say_findings(found)
        plans.stop_on_failure(made.findings)
        launch = launch_folder.Launch(
            *(made, seen.observed, seen.passed.host_keys, pod.key, resolved, paths, pod.pods),
            client=pod.client,
        )
        await in_thread(launch.write)  # it looks into TMPDIR, too
        if made.meeting:
            taken = await observation.master_port_taken(pod, seen, made.meeting)
            plans.stop_on_failure(taken)
        if seen.pairs:
            await _stop_on_pairs(seen.pairs, seen.observed, made)
        env = made.environment(environ) | {launch_names.LAUNCH_DIR: paths.launch_dir}
        env.setdefault(launch_names.LAUNCH_ID, seen.launch_id)
        spec = replace(
            launch.spec(before, env, attempt=self._attempt),
            earlier=earlier,
            times=seen.passed.times,
        )
        if launch_names.KEEP_KEY in environ and pod.key:
            launch.logins(pod.key).write_pool()
        pool, hosts = access(pod).pool, launch.pool_hosts()
        pool.environ = env
        pool.know(hosts)
        if launch.by_pool:
            with files.writing():
                AgentRequests(Path(paths.launch_dir), [host.name for host in hosts]).serve(pool)
        if not spec.supervise:
            await pool.close()
        workers = Workers(pool, launch.snapshots(), env)
        line, _, more = render.command(made.argv).partition("\n")  # a script's text has own lines
        line += f" (and {counted(more.count(chr(10)) + 1, 'more line')})" if more else ""
        log.info("start", f"starting {line}", argv=list(made.argv))
        return Prepared(spec, env, workers, seen.pairs.close if seen.pairs else lambda: None)

    def failed(self, wrong: Exception) -> Failure:
        """Log why mpirun is not started."""
        known = wrong if isinstance(wrong, MpibootError) else error_report.bug(wrong)
        message = error_report.say(known)
        earlier = self._reached.say_attempt()
        message += f"{earlier}\n" if earlier else ""
        host = next((item.host for item in (known.finding, *known.others) if item.host), "")
        return Failure(known.code, known.finding.check, message, host=host)

    async def notify(self, failure: Failure) -> None:
        """Notify the workers that were reached why mpirun is not started."""
        await self._reached.notify(failure, goes_on=not self._attempt)


async def own_pod(
    resolved: Resolved,
    program: tuple[str, ...],
    reached: ReachedWorkers,
    attempt: str = "",
    *,
    may_disconnect: bool | None = None,
) -> LauncherPod:
    """Set this pod up; ``program`` may name a hostfile, and is empty for logins alone.

    The launches of a command have its name for workers, and may end while it goes on.
    """
    environ = os.environ

    def needs_key(patience: float) -> bool:
        return asyncio.run(observation.needs_key(resolved, environ, patience, program))

    def find() -> LauncherPod:
        return launcher_pod(
            resolved,
            environ,
            attempt=attempt or environ.get(launch_names.ATTEMPT, ""),
            may_disconnect=not attempt if may_disconnect is None else may_disconnect,
            needs_key=needs_key,
        )

    # A key may be late, and a volume hang.
    reached.launcher = await in_thread(find)
    return reached.launcher


async def _stop_on_pairs(pairs: PairCheck, seen: Observed, made: plans.Plan) -> None:
    """Log what the workers found when they dialled each other.

    Raises:
        MpibootError: ``worker-pairs`` or ``worker-address``; MPI would hang.
    """
    found = plans.pair_findings(made, seen, await pairs.results())
    plans.stop_on_failure(found)
    for finding in found:
        log.finding(finding)


@dataclass(slots=True, eq=False)
class ReachedWorkers:
    """The workers that are ready so far, and the line about earlier attempts.

    ``launcher`` is None before it is set up; ``earlier`` is empty at the first attempt.
    """

    launcher: LauncherPod | None = None
    workers: list[Worker] = field(default_factory=list)
    earlier: str = ""

    def say_attempt(self) -> str:
        """Log once which attempt this is, and how the last one ended; empty for the first one."""
        name = self.launcher.attempt if self.launcher else ""
        before = None if self.earlier else job_hosts.earlier(self.workers, name)
        if before:
            self.earlier = before.message
            log.info("attempt", before.message, attempt=before.number + 1, ended=before.ended)
        return self.earlier

    async def notify(self, failure: Failure, *, goes_on: bool) -> None:
        """Notify the workers why mpirun is not started, within a time limit.

        Args:
            failure: why.
            goes_on: whether this launch is below a command, which may go on.
        """
        workers = [worker for worker in self.workers if worker.runs_mpiboot]
        if self.launcher is None or not self.launcher.attempt or not workers:
            return
        settings = self.launcher.resolved.settings
        hold = settings.hold_on_failure if failure.held else 0.0
        why = f"{failure.message.partition(chr(10))[0]}, exit {failure.code}"
        if goes_on:
            _leave_logins(self.launcher, workers)
        pool = access(self.launcher).pool
        reached = Workers(pool, launch_folder.baselines(workers), os.environ)
        try:
            await reached.notify(self.launcher.attempt, None if goes_on else hold, why)
        finally:
            await pool.close()


def _leave_logins(launcher: LauncherPod, workers: Sequence[Worker]) -> None:
    """Write the logins with which the workers are notified of the command's end.

    A launch that was started has written them already, with more hosts.
    """
    if any(launcher.folder.glob("launch-*")):
        return
    if launcher.key is None:  # hosts reached by kubectl don't run mpiboot's worker
        return
    folder = Path(launch_folder.paths(launcher.folder, os.getpid()).launch_dir)
    hosts = {worker.host.name: worker for worker in workers}
    logins = Logins(folder, hosts, {}, launcher.key, launcher.resolved.settings)
    with suppress(MpibootError):  # as on a full disk; the launch's failure is logged already
        logins.make_folder()
        logins.write_pool()
