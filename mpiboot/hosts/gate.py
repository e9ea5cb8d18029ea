"""The launcher's gate: every host resolves and answers over SSH, or the reason why not.

Each host has a pipeline of its own (see ``pipeline``) under one deadline. This module keeps that
deadline, begins anew where the hostfile has changed, and turns what is missing at the end into
errors. It runs nothing on a worker but the gate's one command. ``probe_once`` tries every host once
without waiting; ``wait_for_name`` waits until one name resolves.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mpiboot.core import log
from mpiboot.core.addresses import is_address
from mpiboot.core.checks import MpibootError, error, failed
from mpiboot.core.facts import Host, Worker
from mpiboot.core.model import DataNetworkUse, Finding, Switch
from mpiboot.core.settings import Settings
from mpiboot.core.wording import MAX_LINES, counted, first_few, took
from mpiboot.hosts import progress, remote_commands
from mpiboot.hosts.dns import Resolver, is_malformed
from mpiboot.hosts.hostfiles import JobHostfile
from mpiboot.hosts.pipeline import PipelineOptions, Pipelines, PodPipelines, SshAccess
from mpiboot.hosts.progress import HostState, Reporter, Stage
from mpiboot.job.program_words import Rendezvous
from mpiboot.ssh.attempt import Attempt
from mpiboot.ssh.pool import Pool
from mpiboot.system.threads import end_tasks, in_thread

# Seconds, for which a login waits at most once its host is ready.
_REPORT: Final = 0.1
# Seconds between checks of connections and hostfile; a kubelet writes a changed ConfigMap up to a
# minute late.
_POLL: Final = 1.0
# Seconds that the hostfile may delay what else is due: its volume may hang.
_HOSTFILE: Final = 1.0
# A pod is not replaced within so many seconds.
_REPLACED: Final = 5.0


class _HostfileChangedError(Exception):
    """The hostfile has other hosts now."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """Who passed the gate, and what was learnt on the way.

    ``local`` are the hosts that are this pod itself. ``renamed`` maps the hostfile's names to the
    long names to be used instead. ``host_keys`` has each host's key as a line of known_hosts
    without the host, only where the setting ``host_keys`` isn't ``job``. ``times`` are when the
    last name resolved and when all were ready, on the monotonic clock. The rest is
    ``probe_once``'s: ``findings``; ``answers``, the complete answers where doctor wanted more;
    ``unasked``, the hosts without one at doctor's Ctrl-C.
    """

    workers: tuple[Worker, ...]
    local: tuple[Host, ...]
    renamed: Mapping[str, str]
    host_keys: Mapping[str, str]
    findings: tuple[Finding, ...] = ()
    answers: Mapping[str, Attempt] = field(default_factory=dict)
    unasked: tuple[Host, ...] = ()
    times: tuple[float, ...] = ()


class _Pass:
    """The wait for one version of the hostfile: its hosts, the state and the task of each."""

    def __init__(
        self, hosts: Sequence[Host], pipelines: Pipelines, settings: Settings, started: float
    ) -> None:
        self._pipelines, self._settings, self._started = pipelines, settings, started
        self._runs = {state: self._start(state) for state in progress.states(hosts)}
        self._broken: set[HostState] = set()
        self._reading: asyncio.Future[bool] | None = None

    def _start(self, state: HostState) -> asyncio.Future[Worker | None]:
        return asyncio.ensure_future(self._pipelines.run(state))

    @property
    def result(self) -> GateResult:
        """Who is ready so far."""
        good = [
            (state.host, run.result())
            for state, run in self._runs.items()
            if run.done() and not run.cancelled() and run.exception() is None
        ]
        return GateResult(
            tuple(worker for _, worker in good if worker),
            tuple(host for host, worker in good if worker is None),
            dict(self._pipelines.names.renamed),
            dict(self._pipelines.host_keys),
        )

    async def run(
        self, hostfile: JobHostfile | None, report: Callable[[GateResult], None] | None
    ) -> None:
        """Wait until all are ready; nothing of it goes on after that.

        Raises:
            MpibootError: as ``wait``.
            _HostfileChangedError: others are the job's hosts.
        """
        reporter = Reporter(self._left)
        self._pipelines.changed = reporter.changed
        side = [asyncio.ensure_future(reporter.lines(tuple(self._runs)))]
        if report is not None:
            side.append(asyncio.ensure_future(self._report(report)))
        hosts = (state.host for state in self._runs)
        preparing = asyncio.ensure_future(self._pipelines.prepare(hosts))
        try:
            await self._until_ready(preparing, hostfile)
        finally:
            await end_tasks({preparing, *self._runs.values(), *side})

    async def _report(self, report: Callable[[GateResult], None]) -> None:
        """Report who is ready whenever that has changed."""
        reported: tuple[Worker, ...] = ()
        while True:
            found = self.result
            if found.workers != reported:
                reported = found.workers
                report(found)
            await asyncio.sleep(_REPORT)

    async def _until_ready(
        self, preparing: asyncio.Future[None], hostfile: JobHostfile | None
    ) -> None:
        """Wait; the first failure, the names' cap or the deadline ends it."""
        resolved = self._started
        while True:
            self._wait_for_broken()
            # A host that was ready may have to be waited for again.
            tasks: tuple[asyncio.Future[Any], ...] = (preparing, *self._runs.values())
            pending = {task for task in tasks if not _passed(task)}
            now = time.monotonic()
            if pending:
                if not (left := self._left()):
                    raise self._deadline_passed()
                limit = min(left, _POLL)
                await asyncio.wait(pending, timeout=limit, return_when=asyncio.FIRST_EXCEPTION)
            elif now - resolved < _REPLACED:
                return
            else:
                resolved = now
                await asyncio.gather(*map(self._resolve_again, self._runs))
            await self._compare(hostfile)

    def _left(self) -> float:
        """Give the seconds after which the wait ends; earlier while a name is missing."""
        limit, cap = self._settings.timeout, self._settings.dns_wait
        if cap is not None and self._unresolved():
            limit = min(limit, cap)
        return max(0.0, self._started + limit - time.monotonic())

    def _unresolved(self) -> list[HostState]:
        return [one for one in self._runs if one.stage is Stage.DNS and not one.resolved]

    def _deadline_passed(self) -> MpibootError:
        missing, after = self._unresolved(), self._settings.dns_wait or 0.0
        if time.monotonic() - self._started >= self._settings.timeout:
            missing = [state for state in self._runs if not state.ready]
            after = self._settings.timeout
        return missing_error(tuple(self._runs), missing, after)

    def _wait_for_broken(self) -> None:
        """Wait again for hosts whose connection broke.

        Once for each: some servers close it as soon as a command has ended.
        """
        for state in self._runs:
            worker = self._worker(state)
            if worker and state not in self._broken and not self._pipelines.is_connected(worker):
                self._broken.add(state)
                self._wait_again(state, worker, "its connection broke")

    async def _resolve_again(self, state: HostState) -> None:
        """Wait again for a host whose name has another address now."""
        worker = self._worker(state)
        if worker and (change := await self._pipelines.address_change(worker)):
            self._wait_again(state, worker, change)

    def _worker(self, state: HostState) -> Worker | None:
        run = self._runs[state]
        return run.result() if _passed(run) else None

    def _wait_again(self, state: HostState, worker: Worker, why: str) -> None:
        name = state.host.name
        message = f"{name} was ready at {worker.address}, but {why}; waiting for it again"
        log.info("gate", message, host=name)
        self._pipelines.restart(state, worker)
        self._runs[state] = self._start(state)

    async def _compare(self, hostfile: JobHostfile | None) -> None:
        """Compare the hostfile with what it was, or go on with a comparison that hangs."""
        if hostfile is None:
            return
        reading = self._reading or asyncio.ensure_future(in_thread(hostfile.has_changed))
        await asyncio.wait({reading}, timeout=_HOSTFILE)
        self._reading = None if reading.done() else reading
        if reading.done() and reading.result():
            raise _HostfileChangedError


def _passed(task: asyncio.Future[Any]) -> bool:
    """Whether a task has ended well; what it failed with is raised."""
    if not task.done():
        return False
    task.result()
    return True


async def wait(
    hosts: Sequence[Host],
    settings: Settings,
    access: SshAccess,
    options: PipelineOptions = PipelineOptions(),  # noqa: B008 - it is frozen
    *,
    resolver: Resolver | None = None,
    hostfile: JobHostfile | None = None,
    reached: list[Worker] | None = None,
    report: Callable[[GateResult], None] | None = None,
) -> GateResult:
    """Wait until every host resolves and answers over SSH, or until one never will.

    Args:
        hosts: the hostfile's.
        settings: ``timeout``, ``dns_wait``, ``rewrite_fqdn``, ``ssh_port``,
            ``host_keys``, ``data_network`` and ``log_format`` are read.
        access: how to log in.
        options: what is done beside.
        resolver: resolves the names; made from the system's files where not given.
        hostfile: where ``hosts`` are from; where it changes meanwhile the wait begins anew.
        reached: gets the hosts that were ready when this ended, even if it failed.
        report: gets those that are ready so far, each time that they are others.

    Raises:
        MpibootError: ``ssh-denied``, ``ssh-key`` or ``hostfile-invalid`` as soon as they are known;
            ``names-unresolved``, ``workers-unreachable``, ``host-key-differs`` or ``workers-held``
            at the deadline, with a finding for every host that is missing.
    """
    started = time.monotonic()
    reached = reached if reached is not None else list[Worker]()
    while True:
        pipelines = _pipelines(settings, access, resolver, options)
        waiting = _Pass(hosts, pipelines, settings, started)
        try:
            await waiting.run(hostfile, report)
        except _HostfileChangedError:
            assert hostfile is not None  # noqa: S101 - it has changed
            hosts = hostfile.hostfile.hosts
            listed = counted(len(hosts), "host")
            log.info("hostfile", f"the hostfile has changed: {listed} now, waiting for these")
            for worker in waiting.result.workers:
                access.pool.drop(worker)
            continue
        except BaseException:
            reached += waiting.result.workers
            raise
        break
    found, named = waiting.result, max(started, pipelines.resolved_at)
    reached += found.workers
    count, seconds = len(hosts), time.monotonic() - started
    log.info(
        "gate",
        f"{counted(count, 'host')} ready in {took(seconds)}",
        ready=count,
        total=count,
        seconds=round(seconds, 3),
        names=round(named - started, 3),
    )
    return replace(found, times=(named, started + seconds))


def _pipelines(
    settings: Settings, access: SshAccess, resolver: Resolver | None, options: PipelineOptions
) -> Pipelines:
    kind = PodPipelines if access.pool.pods else Pipelines
    return kind(settings, access, resolver or Resolver(), options)


def missing_error(
    states: Sequence[HostState], missing: Sequence[HostState], after: float
) -> MpibootError:
    """Make the error of hosts that are missing after so many seconds; the first known cause."""
    found = [progress.finding(state) for state in missing]
    held = [state for state in missing if state.holder]
    main = next((state.error for state in missing if state.error), None)
    if main is None and held:
        verb = "is" if len(held) == 1 else "are"
        who = f"{first_few(state.host.name for state in held)} {verb} {held[0].holder}"
        message = f"{who}, still after {took(after)}: nothing was started"
        main = failed("workers-held", message)
        found = [item for item in found if item.check != "workers-held"]
    main = main or _missing(states, missing, found, after)
    return MpibootError(main, others=tuple(item for item in found if item is not main))


def _missing(
    states: Sequence[HostState],
    missing: Sequence[HostState],
    found: Sequence[Finding],
    after: float,
) -> Finding:
    """Make the finding of missing hosts: 69 if any resolved, as names aren't the problem then."""
    resolved = any(state.resolved for state in missing)
    reference = "workers-unreachable" if resolved else "names-unresolved"
    verb = "are not ready" if resolved else "do not resolve"
    message = f"{len(missing)} of {len(states)} hosts {verb} after {took(after)}: "
    message += progress.missing(states)
    # For many hosts error_report logs one line for each kind of finding.
    shown = found if len(found) <= MAX_LINES else ()
    evidence = tuple(f"{item.host}: {item.message}" for item in shown)
    hint = next((state.hint for state in missing if state.hint), None)
    return failed(reference, message, evidence=evidence, hint=hint)


async def probe_once(
    hosts: Sequence[Host],
    settings: Settings,
    access: SshAccess,
    options: PipelineOptions = PipelineOptions(),  # noqa: B008 - it is frozen
    *,
    resolver: Resolver | None = None,
    doctor: tuple[str, ...] = (),
) -> GateResult:
    """Try every host once without waiting; ``findings`` has one entry for each failed host.

    The arguments are those of ``wait``; ``doctor`` are questions of doctor's, in the same session.
    Ctrl-C ends only what doctor still waits for, so that it shows the results so far.

    Raises:
        MpibootError: ``ssh-key``; without the job's key no host can be tried.
    """
    options = replace(options, once=True, doctor=doctor)
    pipelines = _pipelines(settings, access, resolver, options)
    await pipelines.prepare(hosts)
    runs = [asyncio.ensure_future(pipelines.run(state)) for state in progress.states(hosts)]
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Future[None]] = []  # the loop itself keeps only a weak reference

    def cancel() -> None:
        ending.append(asyncio.ensure_future(end_tasks(runs)))

    if doctor:
        loop.add_signal_handler(signal.SIGINT, cancel)
    try:
        ends = await asyncio.gather(*runs, return_exceptions=True)
    finally:
        if doctor:
            loop.remove_signal_handler(signal.SIGINT)
    workers: list[Worker] = []
    local, findings, unasked = list[Host](), list[Finding](), list[Host]()
    for host, end in zip(hosts, ends, strict=True):
        if isinstance(end, MpibootError):
            findings.append(end.finding)
        elif isinstance(end, asyncio.CancelledError):
            unasked.append(host)
        elif isinstance(end, BaseException):
            raise end
        elif end is None:
            local.append(host)
        else:
            workers.append(end)
    if settings.data_network is not DataNetworkUse.OFF:
        findings += [
            remote_commands.overdue_finding(worker) for worker in workers if worker.pending
        ]
    return GateResult(
        *(tuple(workers), tuple(local), pipelines.names.renamed, pipelines.host_keys),
        findings=tuple(findings),
        answers=pipelines.answers,
        unasked=tuple(unasked),
    )


_NAME_HINT: Final = (
    "a pod's name is known below its headless Service: write POD.SERVICE, and set `subdomain: "
    "SERVICE` in the pods and, in a Job, `completionMode: Indexed`"
)


async def wait_for_name(
    wanted: Rendezvous, settings: Settings, resolver: Resolver | None = None
) -> tuple[str, ...]:
    """Wait until a name resolves and return its addresses; log now and then why it doesn't.

    Args:
        wanted: the name, and where it is given.
        settings: ``timeout``, ``dns_wait`` are read.
        resolver: resolves the name; made from the system's files where not given.

    Raises:
        MpibootError: ``names-unresolved`` at the deadline; ``usage`` for an invalid host name.
    """
    name, started = wanted.host, time.monotonic()
    if is_malformed(name) and not is_address(name):
        message = f"{wanted.by}: {name!r} is not a host name"
        raise error("usage", message, hint="name a host, or HOST:PORT")
    cap = settings.dns_wait
    patience = settings.timeout if cap is None else min(settings.timeout, cap)
    as_is, nowhere = replace(settings, rewrite_fqdn=Switch.OFF), SshAccess("", Pool(None), "")
    pipelines = _pipelines(as_is, nowhere, resolver, PipelineOptions(once=not patience))
    reporter = Reporter(lambda: max(0.0, started + patience - time.monotonic()))
    pipelines.changed = reporter.changed
    state = HostState(Host(name), name)
    lines = asyncio.ensure_future(reporter.lines((state,)))
    resolving = asyncio.ensure_future(pipelines.resolve(state, name))
    try:
        await asyncio.wait((resolving,), timeout=patience or None)
        waited = time.monotonic() - started
        if not resolving.done() or isinstance(resolving.exception(), MpibootError):
            state.detail += f"; {wanted.by} names it, waited for {took(waited)}"
            state.hint = _NAME_HINT
            raise MpibootError(progress.finding(state))
        addresses = resolving.result()
    finally:
        await end_tasks({resolving, lines})
    message = f"{name} ({wanted.by}) is {', '.join(addresses)}, after {took(waited)}"
    log.info("rendezvous", message, host=name, by=wanted.by, seconds=round(waited, 3))
    return addresses
