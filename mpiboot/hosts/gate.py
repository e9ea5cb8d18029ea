"""The launcher's gate: every host resolves and answers over SSH, or the reason why not.

Each host is a pipeline of its own (see ``pipeline``) under one deadline; this module owns that
deadline, the progress lines and what the end means. It starts nothing on a worker beyond the
gate's one command.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mpiboot.core import log
from mpiboot.core.checks import failed
from mpiboot.core.errors import MpibootError
from mpiboot.core.model import Finding, Host, Worker
from mpiboot.core.settings import Settings
from mpiboot.core.wording import counted
from mpiboot.hosts import progress, sockets
from mpiboot.hosts.access import Access
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.followed_hosts import FollowedHosts
from mpiboot.hosts.job_hostfile import HostfileFollower
from mpiboot.hosts.pair_check import PairCheck
from mpiboot.hosts.pipeline import Pipelines
from mpiboot.hosts.pod_pipeline import PodPipelines
from mpiboot.hosts.progress import HostState, Stage
from mpiboot.hosts.reporter import Reporter
from mpiboot.network import many_hosts
from mpiboot.ssh.attempt import Attempt, LoginTimeouts
from mpiboot.ssh.client_start import ConnectionPool
from mpiboot.system import os_calls

__all__ = ["Access", "GateResult", "end_tasks", "wait"]

_CANCEL_AGAIN: Final = 1.0
# A kubelet writes a changed ConfigMap up to a minute late; a look is one `stat`.
_LOOK: Final = 1.0


@dataclass(frozen=True, slots=True)
class GateResult:
    """Who passed the gate, and what was learnt on the way.

    ``renamed`` has the hosts whose long name is to be used instead of the hostfile's, by the
    hostfile's name. ``host_keys`` has, by host, the host key that was shown, as a line of
    known_hosts without its host; only where the setting ``host_keys`` isn't ``job``.
    ``findings`` are those of ``one_try``, and so is, where doctor asked for more, ``answers``:
    each host's whole answer; ``unasked`` are the hosts that had none yet at doctor's Ctrl-C.
    """

    workers: tuple[Worker, ...]
    local: tuple[Host, ...]
    renamed: Mapping[str, str]
    host_keys: Mapping[str, str]
    findings: tuple[Finding, ...] = ()
    answers: Mapping[str, Attempt] = field(default_factory=dict)
    unasked: tuple[Host, ...] = ()


async def wait(
    hosts: Sequence[Host],
    settings: Settings,
    access: Access,
    *,
    resolver: Resolver | None = None,
    also: Awaitable[object] | None = None,
    limits: LoginTimeouts | None = None,
    follow: HostfileFollower | None = None,
    mpirun: str = "",
    pairs: PairCheck | None = None,
    reached: list[Worker] | None = None,
    kept: ConnectionPool | None = None,
) -> GateResult:
    """Wait until every host resolves and answers over SSH, or until one never will.

    Args:
        hosts: the hostfile's.
        settings: ``timeout``, ``dns_wait``, ``dns_interval``, ``rewrite_fqdn``, ``ssh_port``,
            ``host_keys``, ``data_network`` and ``log_format`` are read.
        access: how to log in.
        resolver: who is asked for names; the system's files where not given.
        also: the caller's own work that needs no host; its failure ends the gate too.
        limits: how long the steps of one attempt may take.
        follow: the hostfile, where a change of it is to be followed until the gate is passed.
        mpirun: path of the mpirun that every host is asked for, where the line names one.
        pairs: has hosts that are ready dial each other; its findings are the caller's to ask for.
        reached: gets the hosts that were ready when this ended, in whatever way.
        kept: takes over the logins, which stay open.

    Raises:
        MpibootError: ``ssh-denied``, ``host-key-differs``, ``ssh-key`` or ``hostfile-invalid`` as
            soon as they are known; ``names-unresolved`` or ``workers-unreachable`` at the deadline,
            with a finding for every host that is missing.
    """
    started = time.monotonic()
    reporter = Reporter(
        live=log.draws(), left=lambda: _left(settings, followed.states, time.monotonic() - started)
    )
    resolver = resolver or Resolver(sockets=sockets.of_look_ups(os_calls.most_open_files()))
    pipelines = (PodPipelines if access.pods else Pipelines)(
        settings,
        access,
        resolver,
        changed=reporter.changed,
        limits=limits,
        mpirun=mpirun,
        pairs=pairs,
        kept=kept,
    )
    work: set[asyncio.Future[Any]] = set()
    if any(not pipelines.is_own_name(host) for host in hosts):
        work.add(pipelines.prepare())
    followed = FollowedHosts(hosts, pipelines)
    if also is not None:
        work.add(asyncio.ensure_future(also))
    side = [
        asyncio.ensure_future(reporter.lines(followed.states)),
        asyncio.ensure_future(reporter.drawing(followed.states)),
        asyncio.ensure_future(followed.watch()),
    ]
    try:
        await _until(work, followed, settings, started, follow)
    finally:
        if reached is not None:
            reached += followed.ready()
        await end_tasks({*work, *followed.runs.values(), *side})
        reporter.clear()
    workers, local = followed.results()
    count, seconds = len(followed.states), time.monotonic() - started
    log.info(
        "gate",
        f"{counted(count, 'host')} ready in {seconds:.1f} s",
        ready=count,
        total=count,
        seconds=round(seconds, 3),
        names=round(max(0.0, pipelines.last_name - started), 3),
    )
    return GateResult(workers, local, pipelines.names.renamed, pipelines.host_keys)


async def end_tasks(tasks: set[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait for their end; what they end with is nobody's business any more.

    Asked again and again: before Python 3.12 `wait_for` loses a cancellation that comes together
    with its own result (python/cpython#86296), and of thousands of tasks one is hit.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_AGAIN)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # or asyncio would complain that nobody asked


async def _until(
    work: set[asyncio.Future[Any]],
    followed: FollowedHosts,
    settings: Settings,
    started: float,
    follow: HostfileFollower | None,
) -> None:
    """Wait for all work; the first failure, the names' cap or the deadline ends it."""
    cap, end = settings.dns_wait, settings.timeout
    while True:
        if follow is not None and follow.look():
            await _follow(followed, follow.found.hostfile.hosts)
        put_off = follow.pending if follow is not None else None
        # A host that was ready may have to be waited for again.
        runs = {run for run in followed.runs.values() if not _passed(run)}
        work = {task for task in work if not _passed(task)}
        if not runs and not work and put_off is None:
            return
        waited = time.monotonic() - started
        running = bool(runs) or put_off is not None
        if cap is not None and waited >= cap:
            unresolved = [state for state in followed.states if state.stage is Stage.DNS]
            if running and unresolved:
                raise _failure(followed.states, unresolved, cap)
            cap = None
        if running and waited >= end:
            late = [state for state in followed.states if state.stage is not Stage.READY]
            # Without a hostfile nobody knows who is late.
            raise put_off or _failure(followed.states, late, end)
        due = min(end, cap) if cap is not None else end
        # The caller's own work has limits of its own; the deadline is the hosts'.
        left = due - waited if running else None
        if follow is not None and left is not None:
            left = min(left, _LOOK)
        if runs or work:
            await asyncio.wait({*runs, *work}, timeout=left, return_when=asyncio.FIRST_EXCEPTION)
        else:
            await asyncio.sleep(left or _LOOK)


def _left(settings: Settings, states: Sequence[HostState], waited: float) -> float:
    """Give the seconds after which the wait ends, at the latest."""
    cap = settings.dns_wait
    unresolved = any(state.stage is Stage.DNS for state in states)
    end = settings.timeout if cap is None or not unresolved else min(cap, settings.timeout)
    return max(0.0, end - waited)


def _passed(task: asyncio.Future[Any]) -> bool:
    """Whether a task has ended well; what it failed with is raised."""
    if not task.done():
        return False
    task.result()
    return True


async def _follow(followed: FollowedHosts, hosts: Sequence[Host]) -> None:
    """Take a new version of the hostfile."""
    changed, gone = followed.follow(hosts)
    log.info(
        "hostfile", changed.line(len(hosts)), joined=len(changed.joined), left=len(changed.left)
    )
    await end_tasks(gone)


def _failure(states: Sequence[HostState], late: Sequence[HostState], after: float) -> MpibootError:
    """Say who is missing: 69 if any of them resolved, since then the name isn't the problem."""
    found = tuple(progress.finding(state) for state in late)
    resolved = any(state.resolved for state in late)
    reference = "workers-unreachable" if resolved else "names-unresolved"
    verb = "are not ready" if resolved else "do not resolve"
    said = f"{len(late)} of {len(states)} hosts {verb} after {round(after, 1):g} s: "
    said += progress.missing(states)
    # Of many hosts there is a line a kind (error_report).
    each = found if len(found) <= many_hosts.MOST else ()
    shown = tuple(f"{item.host}: {item.said}" for item in each)
    hint = next((state.hint for state in late if state.hint), None)
    return MpibootError(failed(reference, said, evidence=shown, hint=hint), others=found)
