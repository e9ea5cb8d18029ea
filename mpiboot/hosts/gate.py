"""The launcher's gate: every host resolves and answers over SSH, or the reason why not.

Each host has a pipeline of its own (see ``pipeline``) under one deadline. This module keeps that
deadline, begins anew where the hostfile has changed, and turns what is missing at the end into
errors. It runs nothing on a worker but the gate's one command. ``probe_once`` tries every host once
without waiting; ``wait_for_name`` waits until one name resolves.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mpiboot.core import log
from mpiboot.core.addresses import is_address
from mpiboot.core.checks import MpibootError, error, failed
from mpiboot.core.facts import Host, Worker
from mpiboot.core.model import Finding
from mpiboot.core.setting_types import DataNetworkUse, Switch
from mpiboot.core.settings import Settings
from mpiboot.core.wording import MOST_LINES, counted, first_few, took
from mpiboot.hosts import progress, remote_commands
from mpiboot.hosts.access import SshAccess
from mpiboot.hosts.dns import Resolver, is_malformed
from mpiboot.hosts.hostfiles import JobHostfile
from mpiboot.hosts.pipeline import PipelineOptions, Pipelines, PodPipelines
from mpiboot.hosts.progress import HostState, Reporter, Stage
from mpiboot.job.program_words import Rendezvous
from mpiboot.ssh.attempt import Attempt
from mpiboot.ssh.pool import Pool
from mpiboot.system.threads import end_tasks, in_thread


def _key(host: Host) -> tuple[str, str]:
    # The same host with another user is another login.
    return host.name, host.user


class WaitedHosts:
    """The hosts that are waited for: the state of each, and its pipeline."""

    def __init__(self, hosts: Sequence[Host], pipelines: Pipelines) -> None:
        self._pipelines = pipelines
        self.states = progress.states(hosts)
        self.runs = {_key(state.host): self._start(state) for state in self.states}
        self._broken: set[tuple[str, str]] = set()

    def _start(self, state: HostState) -> asyncio.Future[Worker | None]:
        return asyncio.ensure_future(self._pipelines.run(state))

    def wait_for_lost(self) -> None:
        """Wait again for hosts whose connection broke.

        Once for each: some servers close it as soon as a command has ended.
        """
        for state in self.states:
            key, worker = _key(state.host), self._worker(state)
            if worker and key not in self._broken and not self._pipelines.is_connected(worker):
                self._broken.add(key)
                self._wait_again(state, worker, "its connection broke")

    async def wait_for_moved(self) -> None:
        """Wait again for hosts whose name has another address now."""
        await asyncio.gather(*map(self._resolve_again, self.states))

    async def _resolve_again(self, state: HostState) -> None:
        worker = self._worker(state)
        if worker is not None and (moved := await self._pipelines.moved(worker)):
            self._wait_again(state, worker, moved)

    def _worker(self, state: HostState) -> Worker | None:
        run = self.runs[_key(state.host)]
        if not run.done() or run.cancelled() or run.exception() is not None:
            return None
        return run.result()

    def _wait_again(self, state: HostState, worker: Worker, why: str) -> None:
        name = worker.host.name
        message = f"{name} was ready at {worker.address}, but {why}; waiting for it again"
        log.info("gate", message, host=name)
        self._pipelines.restart(state, worker)
        self.runs[_key(state.host)] = self._start(state)

    def ready(self) -> list[Worker]:
        """List the workers that are ready so far; this pod itself is none."""
        return [worker for state in self.states if (worker := self._worker(state))]

    def local(self) -> tuple[Host, ...]:
        """List the hosts that are this pod itself, once all are ready."""
        return tuple(state.host for state in self.states if self._worker(state) is None)


# Seconds, for which a login waits at most once its host is ready.
_REPORT: Final = 0.1
# Seconds between looks at connections and hostfile; a kubelet writes a changed ConfigMap up to a
# minute late.
_POLL: Final = 1.0
# Seconds that a look at the hostfile may delay what else is due: its volume may hang.
_HOSTFILE: Final = 1.0
# A pod is not replaced within so many seconds.
_REPLACED: Final = 5.0


class _HostfileChangedError(Exception):
    """The hostfile has other hosts now."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """Who passed the gate, and what was learnt on the way.

    ``renamed`` maps the hostfile's names to the long names to be used instead. ``host_keys`` has
    each host's key as a line of known_hosts without the host, only where the setting ``host_keys``
    isn't ``job``. ``times`` are when the last name resolved and when all were ready, on the
    monotonic clock. The rest is ``probe_once``'s: ``findings``; ``answers``, the complete answers
    where doctor asked for more; ``unasked``, the hosts without one at doctor's Ctrl-C.
    """

    workers: tuple[Worker, ...]
    local: tuple[Host, ...]
    renamed: Mapping[str, str]
    host_keys: Mapping[str, str]
    findings: tuple[Finding, ...] = ()
    answers: Mapping[str, Attempt] = field(default_factory=dict)
    unasked: tuple[Host, ...] = ()
    times: tuple[float, ...] = ()


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
        options: what is done beside; the caller collects the results of ``pairs``.
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
    try:
        while True:
            pipelines = _pipelines(settings, access, resolver, options)
            waited = WaitedHosts(hosts, pipelines)
            try:
                await _pass(waited, pipelines, settings, started, hostfile, report)
            except _HostfileChangedError:
                assert hostfile is not None  # noqa: S101 - it has changed
                hosts = hostfile.hostfile.hosts
                listed = counted(len(hosts), "host")
                log.info("hostfile", f"the hostfile has changed: {listed} now, waiting for these")
                for worker in waited.ready():
                    access.pool.drop(worker)
            else:
                break
            finally:
                found = waited.ready()
        named = max(started, pipelines.last_name)
    finally:
        if reached is not None:
            reached += found
    count, seconds = len(waited.states), time.monotonic() - started
    log.info(
        "gate",
        f"{counted(count, 'host')} ready in {took(seconds)}",
        ready=count,
        total=count,
        seconds=round(seconds, 3),
        names=round(named - started, 3),
    )
    return GateResult(
        *(tuple(found), waited.local(), pipelines.names.renamed, pipelines.host_keys),
        times=(named, started + seconds),
    )


async def _pass(
    waited: WaitedHosts,
    pipelines: Pipelines,
    settings: Settings,
    started: float,
    hostfile: JobHostfile | None,
    report: Callable[[GateResult], None] | None,
) -> None:
    """Wait for these hosts; nothing of it goes on after that.

    The arguments are those of ``wait``, with the time when it began.

    Raises:
        MpibootError: as ``wait``.
        _HostfileChangedError: others are the job's hosts.
    """
    states = waited.states
    reporter = Reporter(lambda: _left(settings, states, time.monotonic() - started))
    pipelines.changed = reporter.changed
    side = [asyncio.ensure_future(reporter.lines(states))]
    if report is not None:
        side.append(asyncio.ensure_future(_report(waited, pipelines, report)))
    preparing = asyncio.ensure_future(pipelines.prepare(state.host for state in states))
    try:
        await _until({preparing}, waited, settings, started, hostfile)
    finally:
        await end_tasks({preparing, *waited.runs.values(), *side})


async def _report(
    waited: WaitedHosts, pipelines: Pipelines, report: Callable[[GateResult], None]
) -> None:
    """Report who is ready whenever that has changed."""
    reported: list[Worker] = []
    while True:
        ready = waited.ready()
        if list(map(id, ready)) != list(map(id, reported)):
            reported = ready
            names, keys = pipelines.names.renamed, pipelines.host_keys
            report(GateResult(tuple(ready), (), dict(names), dict(keys)))
        await asyncio.sleep(_REPORT)


def _pipelines(
    settings: Settings,
    access: SshAccess,
    resolver: Resolver | None,
    options: PipelineOptions,
) -> Pipelines:
    kind = PodPipelines if access.pool.pods else Pipelines
    return kind(settings, access, resolver or Resolver(), options)


async def _until(
    work: set[asyncio.Future[Any]],
    waited: WaitedHosts,
    settings: Settings,
    started: float,
    hostfile: JobHostfile | None,
) -> None:
    """Wait for all work; the first failure, the names' cap or the deadline ends it."""
    resolved, states = started, waited.states
    check = _HostfileCheck(hostfile)
    while True:
        waited.wait_for_lost()
        # A host that was ready may have to be waited for again.
        runs = {run for run in waited.runs.values() if not _passed(run)}
        work = {task for task in work if not _passed(task)}
        now = time.monotonic()
        if runs or work:
            limit = min(_left(settings, states, now - started), _POLL) if runs else None
            if limit == 0:
                late, after = _unresolved(states), settings.dns_wait or 0.0
                if now - started >= settings.timeout:
                    late, after = [state for state in states if not state.ready], settings.timeout
                raise _failure(states, late, after)
            await asyncio.wait({*runs, *work}, timeout=limit, return_when=asyncio.FIRST_EXCEPTION)
        elif now - resolved < _REPLACED:
            return
        else:
            resolved = now
            await waited.wait_for_moved()
        await check.run()


class _HostfileCheck:
    """Compares the hostfile with what it was; its volume may hang, and delays no host."""

    def __init__(self, hostfile: JobHostfile | None) -> None:
        self._hostfile = hostfile
        self._reading: asyncio.Future[bool] | None = None

    async def run(self) -> None:
        """Compare once, or go on with a comparison that hangs.

        Raises:
            _HostfileChangedError: others are the job's hosts.
        """
        if self._hostfile is None:
            return
        reading = self._reading or asyncio.ensure_future(in_thread(self._hostfile.has_changed))
        await asyncio.wait({reading}, timeout=_HOSTFILE)
        self._reading = None if reading.done() else reading
        if reading.done() and reading.result():
            raise _HostfileChangedError


def _unresolved(states: Sequence[HostState]) -> list[HostState]:
    return [state for state in states if state.stage is Stage.DNS and not state.resolved]


def _left(settings: Settings, states: Sequence[HostState], waited: float) -> float:
    """Give the seconds after which the wait ends, at the latest."""
    cap = settings.dns_wait
    by_names = cap is not None and _unresolved(states)
    end = min(cap, settings.timeout) if cap is not None and by_names else settings.timeout
    return max(0.0, end - waited)


def _passed(task: asyncio.Future[Any]) -> bool:
    """Whether a task has ended well; what it failed with is raised."""
    if not task.done():
        return False
    task.result()
    return True


def _failure(states: Sequence[HostState], late: Sequence[HostState], after: float) -> MpibootError:
    """Name the hosts that are missing, and the first cause that is known."""
    found = [(state, progress.finding(state)) for state in late]
    main = next((state.error for state in late if state.error), None)
    held = [] if main else [state.host.name for state in late if state.holder]
    if held:
        holder = next(state.holder for state in late if state.holder)
        verb = "is" if len(held) == 1 else "are"
        message = f"{first_few(held)} {verb} {holder}, still after {took(after)}"
        main = failed("workers-held", f"{message}: nothing was started")
    main = main or _missing(states, late, after)
    others = (item for state, item in found if item is not main and not (held and state.holder))
    return MpibootError(main, others=tuple(others))


def _missing(states: Sequence[HostState], late: Sequence[HostState], after: float) -> Finding:
    """Make the finding of missing hosts: 69 if any resolved, as names aren't the problem then."""
    resolved = any(state.resolved for state in late)
    reference = "workers-unreachable" if resolved else "names-unresolved"
    verb = "are not ready" if resolved else "do not resolve"
    message = f"{len(late)} of {len(states)} hosts {verb} after {took(after)}: "
    message += progress.missing(states)
    # For many hosts error_report logs one line for each kind of finding.
    each = map(progress.finding, late if len(late) <= MOST_LINES else ())
    shown = tuple(f"{item.host}: {item.message}" for item in each)
    hint = next((state.hint for state in late if state.hint), None)
    return failed(reference, message, evidence=shown, hint=hint)


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

    Raises:
        MpibootError: ``ssh-key``; without the job's key no host can be asked.
    """
    states = progress.states(hosts)
    options = replace(options, once=True, doctor=doctor)
    pipelines = _pipelines(settings, access, resolver, options)
    await pipelines.prepare(hosts)
    runs = [asyncio.ensure_future(pipelines.run(state)) for state in states]
    with _ended_by_ctrl_c(runs if doctor else ()):
        found = await asyncio.gather(*runs, return_exceptions=True)
    findings, unasked = [], []
    for host, item in zip(hosts, found, strict=True):
        if isinstance(item, MpibootError):
            findings.append(item.finding)
        elif isinstance(item, asyncio.CancelledError):
            unasked.append(host)
        elif isinstance(item, BaseException):
            raise item
    local = tuple(host for host, item in zip(hosts, found, strict=True) if item is None)
    workers = tuple(item for item in found if isinstance(item, Worker))
    if settings.data_network is not DataNetworkUse.OFF:
        findings += [remote_commands.late_finding(worker) for worker in workers if worker.late]
    return GateResult(
        workers,
        local,
        pipelines.names.renamed,
        pipelines.host_keys,
        tuple(findings),
        pipelines.answers,
        tuple(unasked),
    )


@contextlib.contextmanager
def _ended_by_ctrl_c(runs: Sequence[asyncio.Future[Any]]) -> Iterator[None]:
    """Let Ctrl-C end only what is still running, so that doctor shows the results so far."""
    if not runs:
        yield
        return
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Future[None]] = []  # the loop itself keeps only a weak reference

    def end() -> None:
        ending.append(asyncio.ensure_future(end_tasks(set(runs))))

    loop.add_signal_handler(signal.SIGINT, end)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


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
    state = HostState(Host(name), name)
    left = _left(settings, (state,), 0.0)
    as_is, nowhere = replace(settings, rewrite_fqdn=Switch.OFF), SshAccess("", Pool(None), "")
    pipelines = _pipelines(as_is, nowhere, resolver, PipelineOptions(once=not left))
    reporter = Reporter(lambda: max(0.0, started + left - time.monotonic()))
    pipelines.changed = reporter.changed
    lines = asyncio.ensure_future(reporter.lines((state,)))
    resolving = asyncio.ensure_future(pipelines.resolve(state, name))
    try:
        await asyncio.wait((resolving,), timeout=left or None)
        waited = time.monotonic() - started
        if not resolving.done() or isinstance(resolving.exception(), MpibootError):
            state.detail += f"; {wanted.by} names it, waited for {took(waited)}"
            state.hint = _NAME_HINT
            raise MpibootError(progress.finding(state))
        addresses = resolving.result()
    finally:
        await end_tasks({resolving, lines})
    where = ", ".join(addresses)
    log.info(
        "rendezvous",
        f"{name} ({wanted.by}) is {where}, after {took(waited)}",
        host=name,
        by=wanted.by,
        seconds=round(waited, 3),
    )
    return addresses
