"""The launcher's gate: every host resolves and answers over SSH, or the reason why not.

Each host has a pipeline of its own (see ``pipeline``) under one deadline. This module keeps that
deadline, begins anew where the hostfile has changed, and turns what is missing at the end into
errors. It runs nothing on a worker but the gate's one command. ``probe_once`` tries every host once
without waiting; ``wait_for_name`` waits until one name resolves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from mpiboot.hosts.progress import HELD, HostState, Stage
from mpiboot.job.program_words import Rendezvous
from mpiboot.ssh.pool import Pool
from mpiboot.system.programs import end_tasks, in_thread

# Between comparisons of the hostfile, and reports of who is ready; a kubelet writes a changed
# ConfigMap up to a minute late.
_POLL_S: Final = 0.5
# The longest wait for one read of the hostfile: its volume may hang.
_HOSTFILE_S: Final = 1.0
# Replacing a pod takes longer: names that were checked more recently are not resolved again.
_REPLACED_S: Final = 5.0
# A name that is there resolves within so many seconds.
_ONE_QUERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class GateResult:
    """Who passed the gate, and what was learnt on the way.

    ``local`` are the hosts that are this pod itself. ``renamed`` maps the hostfile's names to the
    long names to be used instead. ``times`` are when the last name resolved and when all were
    ready, on the monotonic clock. ``findings`` are of hosts that failed
    (``probe_once``) and of pairs of hosts (``prepare.pass_gates``).
    """

    workers: tuple[Worker, ...]
    local: tuple[Host, ...]
    renamed: Mapping[str, str]
    findings: tuple[Finding, ...] = ()
    times: tuple[float, ...] = ()


class _Wait:
    """The wait for one version of the hostfile: its hosts, the state and the task of each."""

    def __init__(
        self, hosts: Sequence[Host], pipelines: Pipelines, settings: Settings, started: float
    ) -> None:
        self._pipelines, self._settings, self._started = pipelines, settings, started
        self._runs = {state: self._start(state) for state in progress.states(hosts)}
        self._again: set[HostState] = set()
        self._reading: asyncio.Future[bool] | None = None

    def _start(self, state: HostState) -> asyncio.Future[Worker | None]:
        return asyncio.ensure_future(self._pipelines.run(state))

    async def findings(self) -> list[Finding]:
        """Wait for the end of each host's pipeline, and report those that failed."""
        ends = await asyncio.gather(*self._runs.values(), return_exceptions=True)
        wrong = [end for end in ends if isinstance(end, BaseException)]
        for end in wrong:
            if not isinstance(end, MpibootError):
                raise end
        return [end.finding for end in wrong if isinstance(end, MpibootError)]

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
            dict(self._pipelines.renamed),
        )

    async def run(
        self, hostfile: JobHostfile | None, report: Callable[[GateResult], None] | None
    ) -> bool:
        """Wait until all hosts are ready; False if the hostfile changed first.

        All of its tasks have ended when it returns.

        Raises:
            MpibootError: as ``wait``.
        """
        lines = asyncio.ensure_future(progress.report(tuple(self._runs), self._left))
        hosts = (state.host for state in self._runs)
        preparing = asyncio.ensure_future(self._pipelines.prepare(hosts))
        try:
            checked, reported = self._started, len(self._runs) + 1
            while True:
                tasks: tuple[asyncio.Future[Any], ...] = (preparing, *self._runs.values())
                pending = [task for task in tasks if not task.done()]
                for task in tasks:
                    if task.done():
                        task.result()
                now = time.monotonic()
                if report is not None and len(pending) != reported:
                    reported = len(pending)
                    report(self.result)
                if pending:
                    if not (left := self._left()):
                        after, missing = self._limit()
                        raise missing_error(tuple(self._runs), missing, after)
                    limit = min(left, _POLL_S)
                    await asyncio.wait(pending, timeout=limit, return_when=asyncio.FIRST_EXCEPTION)
                else:
                    by_name, checked = now - checked >= _REPLACED_S, now
                    lost = [self._recheck(state, by_name=by_name) for state in self._runs]
                    if not any(await asyncio.gather(*lost)):
                        return True
                if hostfile is not None and await self._has_changed(hostfile):
                    return False
        finally:
            await end_tasks({preparing, *self._runs.values(), lines})

    def _limit(self) -> tuple[float, list[HostState]]:
        """Give the timeout that applies in seconds, and the hosts that it is for.

        It is ``dns_wait`` while names don't resolve, else ``timeout``.
        """
        names = [one for one in self._runs if one.stage is Stage.DNS and not one.resolved]
        timeout, cap = self._settings.timeout, self._settings.dns_wait
        if names and cap is not None and cap < timeout:
            return cap, names
        return timeout, [one for one in self._runs if not one.ready]

    def _left(self) -> float:
        return max(0.0, self._started + self._limit()[0] - time.monotonic())

    async def _recheck(self, state: HostState, *, by_name: bool) -> bool:
        """Wait again for a ready host whose pod was replaced or connection broke; whether it was.

        A broken one counts once: some servers close it as soon as a command has ended.
        """
        worker = self._runs[state].result()
        if worker is None:
            return False
        connected = state not in self._again
        if why := await self._pipelines.why_lost(worker, by_name=by_name, connected=connected):
            name = state.host.name
            message = f"{name} was ready at {worker.address}, but {why}; waiting for it again"
            log.info("gate", message, host=name)
            self._again.add(state)
            state.set(Stage.DNS)
            self._pipelines.pool.drop(worker)
            self._runs[state] = self._start(state)
        return bool(why)

    async def _has_changed(self, hostfile: JobHostfile) -> bool:
        """Compare the hostfile with what it was, or go on with a comparison that hangs."""
        reading = self._reading or asyncio.ensure_future(in_thread(hostfile.has_changed))
        await asyncio.wait({reading}, timeout=_HOSTFILE_S)
        self._reading = None if reading.done() else reading
        return reading.done() and reading.result()


async def wait(
    hosts: Sequence[Host],
    settings: Settings,
    access: SshAccess,
    options: PipelineOptions = PipelineOptions(),  # noqa: B008 - it is frozen
    *,
    hostfile: JobHostfile | None = None,
    reached: list[Worker] | None = None,
    report: Callable[[GateResult], None] | None = None,
) -> GateResult:
    """Wait until every host resolves and answers over SSH, or until one never will.

    Args:
        hosts: the hostfile's.
        settings: ``timeout``, ``dns_wait``, ``rewrite_fqdn``, ``ssh_port``, ``host_keys`` and
            ``prove_transport`` are read.
        access: how to log in.
        options: what the pipelines do apart from the login.
        hostfile: where ``hosts`` are from; where it changes meanwhile the wait begins anew.
        reached: gets the hosts that were ready when this ended, even if it failed.
        report: called with the hosts that are ready so far, whenever these change.

    Raises:
        MpibootError: ``ssh-denied``, ``ssh-key`` or ``hostfile-invalid`` as soon as they are known;
            ``names-unresolved``, ``workers-unreachable``, ``host-key-differs`` or ``workers-held``
            at the deadline, with a finding for every host that is missing.
    """
    started = time.monotonic()
    pipelines = _pipelines(settings, access, options)
    waiting = _Wait(hosts, pipelines, settings, started)
    try:
        while not await waiting.run(hostfile, report) and hostfile is not None:
            hosts = hostfile.hostfile.hosts
            listed = counted(len(hosts), "host")
            log.info("hostfile", f"the hostfile changed: now waiting for {listed}")
            for worker in waiting.result.workers:
                access.pool.drop(worker)
            pipelines.renamed.clear()
            waiting = _Wait(hosts, pipelines, settings, started)
    finally:
        found = waiting.result
        if reached is not None:
            reached += found.workers
    named = max(started, pipelines.resolved_at)
    count, seconds = len(hosts), time.monotonic() - started
    what = "resolved" if options.names_only else "ready"
    log.info(
        "gate",
        f"{counted(count, 'host')} {what} in {took(seconds)}",
        ready=count,
        total=count,
        seconds=round(seconds, 3),
        names=round(named - started, 3),
    )
    return replace(found, times=(named, started + seconds))


def _pipelines(settings: Settings, access: SshAccess, options: PipelineOptions) -> Pipelines:
    kind = PodPipelines if access.pool.pods else Pipelines
    return kind(settings, access, options)


def missing_error(
    states: Sequence[HostState], missing: Sequence[HostState], after: float
) -> MpibootError:
    """Make the error of hosts that are missing after so many seconds; the first known cause."""
    found = [progress.finding(state) for state in missing]
    held = [item for item in found if item.check == HELD]
    main = next((state.error for state in missing if state.error not in (None, *held)), None)
    if main is None and held:
        verb = "is" if len(held) == 1 else "are"
        who = f"{first_few(item.host for item in held)} {verb} {held[0].message}"
        main = failed(HELD, f"{who}; gave up after {took(after)}, nothing started")
        found = [item for item in found if item not in held]
    main = main or _missing(states, missing, found, after)
    return MpibootError(main, others=tuple(item for item in found if item is not main))


def _missing(
    states: Sequence[HostState],
    missing: Sequence[HostState],
    found: Sequence[Finding],
    after: float,
) -> Finding:
    """Report hosts without an error of their own.

    ``workers-unreachable`` if the name of any resolved, else ``names-unresolved``.
    """
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
) -> GateResult:
    """Try every host once without waiting; ``findings`` has one entry for each failed host.

    The arguments are those of ``wait``.

    Raises:
        MpibootError: ``ssh-key``; without the job's key no host can be tried.
    """
    pipelines = _pipelines(settings, access, replace(options, once=True))
    await pipelines.prepare(hosts)
    attempts = _Wait(hosts, pipelines, settings, 0.0)
    findings = await attempts.findings()
    found = attempts.result
    if settings.data_network is not DataNetworkUse.OFF:
        findings += [remote_commands.overdue_finding(one) for one in found.workers if one.pending]
    return replace(found, findings=tuple(findings))


async def wait_for_name(
    wanted: Rendezvous, settings: Settings, resolver: Resolver | None = None
) -> None:
    """Wait until a name resolves; log now and then why it doesn't.

    Args:
        wanted: the name, and where it is given.
        settings: ``timeout``, ``dns_wait`` are read.
        resolver: resolves the name.

    Raises:
        MpibootError: ``names-unresolved`` at the deadline; ``usage`` for an invalid host name.
    """
    name, limits = wanted.host, (settings.timeout, settings.dns_wait)
    if is_malformed(name) and not is_address(name):
        message = f"{wanted.by}: {name!r} is not a host name"
        raise error("usage", message, hint="name a host, or HOST:PORT")
    log.info("rendezvous", f"waiting for {name} ({wanted.by})", host=name, by=wanted.by)
    limit = max(_ONE_QUERY_S, min(each for each in limits if each is not None))
    only = replace(settings, timeout=limit, dns_wait=None, rewrite_fqdn=Switch.OFF)
    nowhere = SshAccess("", Pool(None), "", resolver=resolver or Resolver())
    await wait((Host(name),), only, nowhere, PipelineOptions(names_only=True))
