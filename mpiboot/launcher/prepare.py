"""Prepares a launch: waits for the hosts, makes the plan and its files, and opens its pool.

If it fails, or a signal ends the launcher, the workers that it has reached are notified.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mpiboot.core import launch_spec, log
from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Worker
from mpiboot.core.launch_spec import Failure, LaunchSpec
from mpiboot.core.model import Level, write_records
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import counted
from mpiboot.hosts import error_report
from mpiboot.hosts.pairs import PairCheck
from mpiboot.job import job_hosts, render
from mpiboot.job import plan as plans
from mpiboot.job.plan_input import Observed
from mpiboot.launcher import launch_folder, observation
from mpiboot.launcher.own_facts import OwnFacts
from mpiboot.launcher.setup import LauncherPod, access, launcher_pod
from mpiboot.ssh.agents import AgentRequests
from mpiboot.ssh.pool import PoolConfig
from mpiboot.supervisor import evidence
from mpiboot.supervisor.workers import Workers
from mpiboot.system import files
from mpiboot.system.threads import in_thread


class Preparation:
    """What comes before mpirun is started.

    ``pod`` is there once it is set up; ``workers`` are those that were ready when it ended.
    """

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
        self.pod: LauncherPod | None = None
        self._pairs: PairCheck | None = None
        self._earlier = ""
        self.workers: list[Worker] = []

    async def run(self) -> tuple[LaunchSpec, Workers, Mapping[str, str]]:
        """Wait, decide, and write the files of a launch; give its hosts, and mpirun's environment.

        Raises:
            MpibootError: a gate, a check or a file failed.
        """
        resolved, environ = self._resolved, os.environ
        before = dict(environ)  # setting this pod up adds to it
        # A volume may hang.
        pod = self.pod = await in_thread(own_pod, resolved, self._attempt)
        seen = await observation.observe(pod, self._program, self._own.read(), self.workers)
        self._pairs = seen.pairs
        self._earlier = log_attempt(self.workers, pod.attempt)
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
        launch = launch_folder.Launch(made, seen.observed, seen.passed.host_keys, pod, paths)
        await in_thread(launch.write)  # it looks into TMPDIR, too
        if made.meeting:
            taken = await observation.master_port_taken(pod, seen, made.meeting)
            plans.stop_on_failure(taken)
        if seen.pairs:
            await _stop_on_pairs(seen.pairs, seen.observed, made)
        env = made.environment(environ) | {launch_spec.LAUNCH_DIR: paths.launch_dir}
        env.setdefault(launch_spec.LAUNCH_ID, pod.launch_id)
        times = seen.passed.times
        spec = replace(launch.spec(before, env, self._attempt), earlier=self._earlier, times=times)
        pool, hosts = access(pod).pool, launch.pool_hosts()
        pool.environ = env
        pool.know(hosts)
        if launch_spec.KEEP_KEY in environ:
            _leave_pool(pod, self.workers)
        if launch.by_pool:
            with files.writing():
                AgentRequests(Path(paths.launch_dir), [host.name for host in hosts]).serve(pool)
        if not spec.supervise:
            await pool.close()
        workers = Workers(pool, launch.snapshots(), env)
        line, _, more = render.command(made.argv).partition("\n")  # a script's text has own lines
        line += f" (and {counted(more.count(chr(10)) + 1, 'more line')})" if more else ""
        log.info("start", f"starting {line}", argv=list(made.argv))
        return spec, workers, env

    def close(self) -> None:
        """End what can wait until mpirun has started: the hosts' listeners."""
        if self._pairs:
            self._pairs.close()

    def failed(self, wrong: Exception) -> Failure:
        """Log why mpirun is not started."""
        known = wrong if isinstance(wrong, MpibootError) else error_report.bug(wrong)
        message = error_report.say(known)
        if not self._earlier and self.pod:
            self._earlier = log_attempt(self.workers, self.pod.attempt)
        message += f"{self._earlier}\n" if self._earlier else ""
        host = next((item.host for item in (known.finding, *known.others) if item.host), "")
        return Failure(known.code, known.finding.check, message, host=host)

    async def notify(self, failure: Failure) -> None:
        """Notify the workers that were reached why mpirun is not started, within a time limit."""
        hosts = [evidence.snapshot(one, one.host.name) for one in self.workers if one.runs_mpiboot]
        if self.pod is None or not self.pod.attempt or not hosts:
            return
        hold: float | None = self._resolved.settings.hold_on_failure if failure.held else 0.0
        why = f"{failure.message.partition(chr(10))[0]}, exit {failure.code}"
        if not self._attempt:  # a command above may go on, and notifies them of its end
            hold = None
            # A launch that was started has left more hosts. The disk may be full.
            if not any(self.pod.folder.glob("launch-*")):
                with suppress(MpibootError):
                    _leave_pool(self.pod, self.workers)
        pool = access(self.pod).pool
        try:
            await Workers(pool, hosts, os.environ).notify(self.pod.attempt, hold, why)
        finally:
            await pool.close()


def own_pod(resolved: Resolved, attempt: str, *, may_disconnect: bool | None = None) -> LauncherPod:
    """Set this pod up; the launches of a command have its name, and may end while it goes on."""
    given = attempt or os.environ.get(launch_spec.ATTEMPT, "")
    may = not attempt if may_disconnect is None else may_disconnect
    return launcher_pod(resolved, os.environ, attempt=given, may_disconnect=may)


def log_attempt(workers: Sequence[Worker], name: str) -> str:
    """Log which attempt this is, and how the last one ended; empty for the first one.

    ``name`` is this launcher's.
    """
    before = job_hosts.earlier(workers, name)
    if before is None:
        return ""
    log.info("attempt", before.message, attempt=before.number + 1, ended=before.ended)
    return before.message


async def _stop_on_pairs(pairs: PairCheck, seen: Observed, made: plans.Plan) -> None:
    """Log what the workers found when they dialled each other.

    Raises:
        MpibootError: ``worker-pairs`` or ``worker-address``; MPI would hang.
    """
    found = plans.pair_findings(made, seen, await pairs.results())
    plans.stop_on_failure(found)
    for finding in found:
        log.finding(finding)


def _leave_pool(pod: LauncherPod, workers: Sequence[Worker]) -> None:
    """Write how the workers are reached that the command above notifies of its end.

    Raises:
        MpibootError: ``runtime-folder``.
    """
    hosts = [worker.host.name for worker in workers if worker.runs_mpiboot]
    if pod.key is None or not hosts:  # hosts reached by kubectl don't run mpiboot's worker
        return
    folder, pool = Path(launch_folder.paths(pod.folder, os.getpid()).launch_dir), access(pod).pool
    if not folder.exists():
        launch_folder.make_folder(folder, pod.key)
    config = PoolConfig(
        hosts=tuple(map(pool.find, hosts)),
        key=str(folder / launch_spec.KEY),
        patience=pool.timeouts,
        folder=str(folder),
        ssh=pool.client.program if pool.client else "",
    )
    files.write_private(folder / launch_spec.POOL, write_records(config))
