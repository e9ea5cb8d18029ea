"""The parent's child: waits for the hosts, makes the plan and its files, hands over, and ends.

It has all that mpiboot is made of in its memory, and is gone when mpirun runs; where it is to carry
the launch agents' sessions, it stays, as mpiboot's own SSH client. Where it fails, or the parent
passes on a signal that ends the launcher, it tells the workers that it has reached; the parent
gives it a moment for that, and ends it by SIGKILL.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from mpiboot.core import launch_spec, log
from mpiboot.core.errors import MpibootError, error
from mpiboot.core.model import Finding, Level
from mpiboot.core.setting_sources import Resolved
from mpiboot.hosts import error_report, stale_processes
from mpiboot.job import masking, mpirun_call, render
from mpiboot.job import plan as plans
from mpiboot.launcher import launch_folder, observation, script_gate, summary
from mpiboot.launcher.child_loop import ChildLoop, EndedBySignal
from mpiboot.launcher.reached import ReachedWorkers
from mpiboot.launcher.setup import launcher_pod
from mpiboot.supervisor.signals import ENDING, SIGNALS, by_signal
from mpiboot.system import executables, files

if TYPE_CHECKING:
    from mpiboot.ssh.client import StayingClient


def main(
    resolved: Resolved, program: tuple[str, ...], attempt: str, *, script: bool = False
) -> NoReturn:
    """Prepare a launch, and hand it or what went wrong to the parent; it ends this process.

    The arguments are those of ``start.start_child``.
    """
    parent = os.getppid()
    os.set_inheritable(launch_spec.RESULT, False)
    for number in SIGNALS - ENDING - {signal.SIGCHLD}:
        signal.signal(number, _leave_to_the_parent)
    loop, reached = ChildLoop(), ReachedWorkers()
    # It is never in a terminal's foreground, and may write there.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    before = dict(os.environ)
    client: StayingClient | None = None
    part = not (attempt or script)  # of a job: what comes next isn't known
    result: launch_spec.Result
    try:
        if script:
            result = script_gate.prepare(resolved, program, parent, loop, reached)
        else:
            result, client = prepare(
                resolved, program, before, parent, loop, reached, attempt=attempt
            )
    except EndedBySignal as told:
        result = by_signal(told.number)
    except MpibootError as wrong:
        result = _failure(wrong, reached)
    except Exception as wrong:  # noqa: BLE001 - the boundary of this process
        result = _failure(error_report.bug(wrong), reached)
    text = launch_spec.to_line(result)
    while text:
        text = text[os.write(launch_spec.RESULT, text) :]
    if isinstance(result, launch_spec.Failure):
        loop.run_last(reached.tell(result, goes_on=part))
    for work in loop.afterwards:
        loop.run_last(work())
    if isinstance(result, launch_spec.Failure):
        os._exit(0)
    if client is not None:  # the thread ends this process
        loop.run_last(client.serve())
    # To end is work, for the memory that this process has, and mpirun is to start first.
    _end_with_the_parent()


def _failure(wrong: MpibootError, reached: ReachedWorkers) -> launch_spec.Failure:
    """Log what went wrong; what the parent has to know of it."""
    message = error_report.say(wrong)
    earlier = reached.say_attempt()
    message += f"{earlier}\n" if earlier else ""
    host = next((item.host for item in (wrong.finding, *wrong.others) if item.host), "")
    return launch_spec.Failure(wrong.code, wrong.finding.check, message, host=host)


def _leave_to_the_parent(_number: int, _frame: FrameType | None) -> None:
    """Do nothing; what this process starts has the default actions."""


def _end_with_the_parent() -> NoReturn:
    """Wait until nobody can read the result any more, and end; nothing is tidied up."""
    gone = select.poll()
    gone.register(launch_spec.RESULT, 0)
    gone.poll()
    os._exit(1)


def prepare(
    resolved: Resolved,
    program: tuple[str, ...],
    before: Mapping[str, str],
    parent: int,
    loop: ChildLoop,
    reached: ReachedWorkers,
    *,
    attempt: str,
) -> tuple[launch_spec.LaunchSpec, StayingClient | None]:
    """Wait, decide, and write the files of a launch.

    Returns:
        The launch, and what this process is to serve while that runs.

    Args:
        resolved: the settings.
        program: the user's line.
        before: the parent's environment; this process adds to its own.
        parent: the parent's process number.
        loop: in which all of it is waited for.
        reached: gets this pod, and the hosts that are ready.
        attempt: this launcher's name for workers; empty where it is a part of a job.

    Raises:
        MpibootError: a gate, a check or a file failed.
        EndedBySignal: a signal came meanwhile.
    """
    environ = os.environ
    odd = mpirun_call.slip(program)
    if odd and executables.find(program[0], environ.get("PATH", "")) is None:
        raise error("usage", odd, hint="write one argument for each word")
    if odd:
        log.finding(Finding("usage", Level.WARN, odd, hint="write one argument for each word"))
    # The launches of a script have its name.
    name = attempt or environ.get(launch_spec.ATTEMPT, "")
    pod = launcher_pod(resolved, environ, pid=parent, attempt=name, may_disconnect=not attempt)
    reached.launcher = pod
    seen = loop.run(observation.wait(pod, program, reached.workers))
    earlier = reached.say_attempt()
    paths = launch_folder.paths(pod.folder, parent)
    # In a thread: workers that dial each other are listened to meanwhile.
    made = loop.run(asyncio.to_thread(_decide, seen.observed, resolved, paths))
    summary.say(made, seen.observed)
    found = [
        finding
        for finding in (*seen.warnings, *made.findings)
        if finding.level is not Level.FAIL and finding not in seen.already_said
    ]
    error_report.say_findings(found)
    plans.stop_on_failure(made.findings)
    launch = launch_folder.Launch(
        made, seen.observed, seen.passed.host_keys, pod.key, resolved, paths, pod.pods
    )
    launch.write()
    if made.meeting:
        plans.stop_on_failure(loop.run(observation.master_port_taken(pod, seen, made.meeting)))
    _stop_on_pairs(loop, seen, made)
    env = made.environment(environ) | {launch_spec.MARK: paths.launch_dir}
    # A launch inside a launch is part of it.
    env.setdefault(launch_spec.JOB_MARK, stale_processes.new_mark(pod.job))
    client = _stay(launch, seen, parent)
    words = () if client else launch.write_client(parent)
    spec = launch.spec(before, env, words, attempt=attempt)
    spec = replace(spec, earlier=earlier, client_stays=client is not None)
    log.info(
        "start", f"starting {render.command(made.argv)}", argv=list(masking.masked_words(made.argv))
    )
    return spec, client


def _decide(observed: plans.Observed, resolved: Resolved, paths: plans.LaunchPaths) -> plans.Plan:
    """Make the plan, and don't look for cycles in what the workers told: nothing here makes any.

    With thousands of workers that search would take a third of the time.
    """
    gc.disable()
    try:
        return plans.make(observed, resolved, paths)
    finally:
        gc.enable()


def _stay(
    launch: launch_folder.Launch, seen: observation.Observation, parent: int
) -> StayingClient | None:
    """Make this process the agents' SSH client, where the gate has kept its logins for that."""
    config = launch.client_config(parent) if seen.kept is not None else None
    if config is None or seen.kept is None:
        return None
    from mpiboot.ssh.client import StayingClient  # noqa: PLC0415 - few launches need it

    with files.writing():
        return StayingClient(Path(launch.where.launch_dir), config, seen.kept)


def _stop_on_pairs(loop: ChildLoop, seen: observation.Observation, made: plans.Plan) -> None:
    """Tell what the workers found when they dialled each other.

    Raises:
        MpibootError: ``worker-pairs`` or ``worker-address``; MPI would wait for ever.
    """
    if seen.pairs is None:
        return
    dialled = loop.run(seen.pairs.results(seen.observed.workers))
    loop.afterwards.append(seen.pairs.close)
    found = plans.pair_findings(made, seen.observed, dialled)
    plans.stop_on_failure(found)
    for finding in found:
        log.finding(finding)
