"""The launcher's gate: every host resolves and answers over SSH, or the reason why not.

Each host has a pipeline of its own (see ``pipeline``) under one deadline. This module keeps that
deadline, reads the hostfile again meanwhile, and turns what is missing at the end into errors. It
runs nothing on a worker but the gate's one command. ``probe_once`` tries every host once without
waiting; ``wait_for_name`` waits until one name resolves.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mpiboot.core import log
from mpiboot.core.addresses import is_address
from mpiboot.core.checks import MpibootError, error, failed
from mpiboot.core.facts import Host, Worker
from mpiboot.core.model import Finding
from mpiboot.core.setting_types import DataNetworkUse
from mpiboot.core.settings import Settings
from mpiboot.core.wording import MOST_LINES, counted, first_few
from mpiboot.hosts import failures, pacing, progress, remote_commands
from mpiboot.hosts.access import SshAccess
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.hostfiles import JobHostfile
from mpiboot.hosts.pipeline import PipelineOptions, Pipelines, PodPipelines
from mpiboot.hosts.progress import HostState, Reporter, Stage
from mpiboot.job.program_words import Rendezvous
from mpiboot.ssh.attempt import Attempt
from mpiboot.ssh.connections import short_of_files
from mpiboot.system import os_calls


@dataclass(frozen=True, slots=True)
class DoctorLook:
    """What ``doctor`` asks beside the gate's own questions, and which hosts (empty: all)."""

    questions: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def select(self, listed: Sequence[Host]) -> tuple[Host, ...]:
        """Select the wanted hosts of a job, by their full or first names."""
        wanted = frozenset(self.hosts)
        return tuple(host for host in listed if not wanted or is_one_of(host.name, wanted))


def is_one_of(name: str, wanted: Iterable[str]) -> bool:
    """Tell whether a host is among the wanted ones, by its full or first name."""
    return not {name, name.partition(".")[0]}.isdisjoint(wanted)


ALL_HOSTS = DoctorLook()


_NAMES: Final = 5
# A pod that ends while others are waited for is noticed by its connection at once, and one that is
# replaced without a word by its name, which costs a few queries.
_LOOK: Final = 1.0
_RECHECK: Final = 10.0
_PER_SECOND: Final = 50


def _key(host: Host) -> tuple[str, str]:
    # The same host with another user is another login.
    return host.name, host.user


class FollowedHosts:
    """The hosts of the hostfile's current version: the state of each, and its pipeline."""

    def __init__(self, hosts: Sequence[Host], pipelines: Pipelines) -> None:
        self._pipelines = pipelines
        self.states: list[HostState] = list(progress.states(hosts))
        self.runs = {_key(state.host): self._start(state) for state in self.states}
        self._broken: set[tuple[str, str]] = set()

    def _start(self, state: HostState) -> asyncio.Future[Worker | None]:
        return asyncio.ensure_future(self._pipelines.run(state))

    async def restart(self, hosts: Sequence[Host]) -> None:
        """Wait for these hosts instead; whoever stays needs no second login."""
        known = {_key(state.host): state for state in self.states}
        before, self.runs = self.runs, {}
        self.states.clear()  # in place: the reporter holds this list
        for new in progress.states(hosts):
            key = _key(new.host)
            state = known.get(key, new)
            state.host, state.label = new.host, new.label
            self.states.append(state)
            self.runs[key] = before.get(key) or self._start(state)
        joined = [key for key in self.runs if key not in before]
        left = [key for key in before if key not in self.runs]
        line = f"the hostfile has changed: {counted(len(hosts), 'host')} now"
        for verb, keys in (("joined", joined), ("left", left)):
            line += f"; {verb}: {first_few([name for name, _ in keys], _NAMES)}" if keys else ""
        log.info("hostfile", line, joined=len(joined), left=len(left))
        await end_tasks({before[key] for key in left})

    async def watch(self) -> None:
        """Check now and then that the hosts that are ready still are."""
        checked = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK)
            self.wait_for_lost()
            if time.monotonic() - checked >= _RECHECK:
                for state in tuple(self.states):
                    await self._look_again(state)
                checked = time.monotonic()

    def wait_for_lost(self) -> bool:
        """Wait again for hosts whose connection broke; whether there are any.

        Once for each: some servers close it as soon as a command has ended.
        """
        before = len(self._broken)
        for state in self.states:
            key, worker = _key(state.host), self._worker(state)
            if worker and key not in self._broken and not self._pipelines.is_connected(worker):
                self._broken.add(key)
                self._wait_again(state, worker, "its connection broke")
        return len(self._broken) > before

    def _worker(self, state: HostState) -> Worker | None:
        run = self.runs.get(_key(state.host))
        if run is None or not run.done() or run.cancelled() or run.exception() is not None:
            return None
        return run.result()

    def _wait_again(self, state: HostState, worker: Worker, why: str) -> None:
        name = worker.host.name
        message = f"{name} was ready at {worker.address}, but {why}; waiting for it again"
        log.info("gate", message, host=name)
        self._pipelines.restart(state)
        self.runs[_key(state.host)] = self._start(state)

    async def _look_again(self, state: HostState) -> None:
        worker = self._worker(state)
        if worker is None or is_address(worker.host.name):
            return
        moved = await self._pipelines.moved(worker)
        if moved and self._worker(state) is worker:
            self._wait_again(state, worker, moved)
        await asyncio.sleep(1 / _PER_SECOND)

    def ready(self) -> list[Worker]:
        """List the workers that are ready so far; this pod itself is none."""
        return [worker for state in self.states if (worker := self._worker(state))]

    def results(self) -> tuple[tuple[Worker, ...], tuple[Host, ...]]:
        """List who passed, as the current version names them: workers, and this pod itself."""
        found = [(state.host, self._worker(state)) for state in self.states]
        workers = tuple(replace(worker, host=host) for host, worker in found if worker)
        return workers, tuple(host for host, worker in found if worker is None)


_CANCEL_AGAIN: Final = 1.0
# Seconds, for which a login waits at most once its host is ready.
_REPORT: Final = 0.1
# A kubelet writes a changed ConfigMap up to a minute late.
_POLL: Final = 1.0


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
    also: Awaitable[object] | None = None,
    hostfile: JobHostfile | None = None,
    reached: list[Worker] | None = None,
    report: Callable[[GateResult], None] | None = None,
) -> GateResult:
    """Wait until every host resolves and answers over SSH, or until one never will.

    Args:
        hosts: the hostfile's.
        settings: ``timeout``, ``dns_wait``, ``dns_interval``, ``rewrite_fqdn``, ``ssh_port``,
            ``host_keys``, ``data_network`` and ``log_format`` are read.
        access: how to log in.
        options: what is done beside; the caller collects the results of ``pairs``.
        resolver: resolves the names; made from the system's files where not given.
        also: work of the caller's that needs no host; its failure ends the gate too.
        hostfile: where ``hosts`` are from; read again until the gate is passed.
        reached: gets the hosts that were ready when this ended, even if it failed.
        report: gets those that are ready so far, each time that they are others.

    Raises:
        MpibootError: ``ssh-denied``, ``host-key-differs``, ``ssh-key`` or ``hostfile-invalid`` as
            soon as they are known; ``names-unresolved`` or ``workers-unreachable`` at the deadline,
            with a finding for every host that is missing.
    """
    started = time.monotonic()
    reporter = Reporter(
        live=log.draws(), left=lambda: _left(settings, followed.states, time.monotonic() - started)
    )
    most = os_calls.most_open_files()
    if short_of_files(len(hosts), most):
        # What is started may use few of them.
        options = replace(options, kept=None)
        if 2 * len(hosts) > most:  # each keeps a connection until all have dialled
            log.debug("worker-pairs", f"workers try no connections: {most} files may be open here")
            options = replace(options, pairs=None)
    pipelines = _pipelines(settings, access, resolver, reporter.changed, options)
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
    if report is not None:
        side.append(asyncio.ensure_future(_report(followed, pipelines, report)))
    try:
        await _until(work, followed, settings, started, hostfile)
    finally:
        if reached is not None:
            reached += followed.ready()
        await end_tasks({*work, *followed.runs.values(), *side})
        reporter.clear()
    workers, local = followed.results()
    named, ready = max(started, pipelines.last_name), time.monotonic()
    count, seconds = len(followed.states), ready - started
    log.info(
        "gate",
        f"{counted(count, 'host')} ready in {seconds:.1f} s",
        ready=count,
        total=count,
        seconds=round(seconds, 3),
        names=round(named - started, 3),
    )
    return GateResult(
        *(workers, local, pipelines.names.renamed, pipelines.host_keys),
        times=(named, ready),
    )


async def _report(
    followed: FollowedHosts, pipelines: Pipelines, report: Callable[[GateResult], None]
) -> None:
    """Report who is ready whenever that has changed."""
    reported: list[Worker] = []
    while True:
        ready = followed.ready()
        if list(map(id, ready)) != list(map(id, reported)):
            reported = ready
            names, keys = pipelines.names.renamed, pipelines.host_keys
            report(GateResult(tuple(ready), (), dict(names), dict(keys)))
        await asyncio.sleep(_REPORT)


def _pipelines(
    settings: Settings,
    access: SshAccess,
    resolver: Resolver | None,
    changed: Callable[[], None],
    options: PipelineOptions,
) -> Pipelines:
    resolver = resolver or Resolver(sockets=pacing.lookup_sockets(os_calls.most_open_files()))
    kind = PodPipelines if access.pods else Pipelines
    return kind(settings, access, resolver, changed=changed, options=options)


async def end_tasks(tasks: set[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait for their end; their results and errors are dropped.

    Cancelled repeatedly: before Python 3.12 `wait_for` loses a cancellation that comes together
    with its own result (python/cpython#86296), which hits one of thousands of tasks.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_AGAIN)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # or asyncio would log that it was never retrieved


async def _until(
    work: set[asyncio.Future[Any]],
    followed: FollowedHosts,
    settings: Settings,
    started: float,
    hostfile: JobHostfile | None,
) -> None:
    """Wait for all work; the first failure, the names' cap or the deadline ends it."""
    cap, end = settings.dns_wait, settings.timeout
    while True:
        if hostfile is not None and hostfile.look_again():
            await followed.restart(hostfile.hostfile.hosts)
        put_off = hostfile.unusable if hostfile is not None else None
        # A host that was ready may have to be waited for again.
        runs = {run for run in followed.runs.values() if not _passed(run)}
        work = {task for task in work if not _passed(task)}
        if not runs and not work and put_off is None:
            if not followed.wait_for_lost():
                return
            continue
        waited = time.monotonic() - started
        running = bool(runs) or put_off is not None
        if cap is not None and waited >= cap:
            unresolved = [state for state in followed.states if state.stage is Stage.DNS]
            if running and unresolved:
                raise _failure(followed.states, unresolved, cap)
            cap = None
        if running and waited >= end:
            late = [state for state in followed.states if state.stage is not Stage.READY]
            # Without a usable hostfile it is unknown which hosts are late.
            raise put_off or _failure(followed.states, late, end)
        due = min(end, cap) if cap is not None else end
        # The deadline is for hosts; the caller's own work has limits of its own.
        left = min(due - waited, _POLL) if running else None
        if runs or work:
            await asyncio.wait({*runs, *work}, timeout=left, return_when=asyncio.FIRST_EXCEPTION)
        else:
            await asyncio.sleep(_POLL)


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


def _failure(states: Sequence[HostState], late: Sequence[HostState], after: float) -> MpibootError:
    """Name the missing hosts: 69 if any of them resolved, since then names aren't the problem."""
    found = tuple(progress.finding(state) for state in late)
    resolved = any(state.resolved for state in late)
    reference = "workers-unreachable" if resolved else "names-unresolved"
    verb = "are not ready" if resolved else "do not resolve"
    message = f"{len(late)} of {len(states)} hosts {verb} after {round(after, 1):g} s: "
    message += progress.missing(states)
    # For many hosts error_report logs one line for each kind of finding.
    each = found if len(found) <= MOST_LINES else ()
    shown = tuple(f"{item.host}: {item.message}" for item in each)
    hint = next((state.hint for state in late if state.hint), None)
    return MpibootError(failed(reference, message, evidence=shown, hint=hint), others=found)


async def probe_once(
    hosts: Sequence[Host],
    settings: Settings,
    access: SshAccess,
    options: PipelineOptions = PipelineOptions(),  # noqa: B008 - it is frozen
    *,
    resolver: Resolver | None = None,
    doctor: DoctorLook = ALL_HOSTS,
) -> GateResult:
    """Try every host once without waiting; ``findings`` has one entry for each failed host.

    The arguments are those of ``wait``; ``doctor`` is what is asked beside, in the same session.

    Raises:
        MpibootError: ``ssh-key``; without the job's key no host can be asked.
    """
    hosts = doctor.select(hosts)
    states = progress.states(hosts)
    options = replace(options, once=True, doctor=doctor.questions)
    pipelines = _pipelines(settings, access, resolver, lambda: None, options)
    if any(not pipelines.is_own_name(host) for host in hosts):
        await pipelines.prepare()
    runs = [asyncio.ensure_future(pipelines.run(state)) for state in states]
    with _ended_by_ctrl_c(runs if doctor.questions else ()):
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


async def wait_for_name(
    wanted: Rendezvous, settings: Settings, hint: str = "", resolver: Resolver | None = None
) -> tuple[str, ...]:
    """Wait until a name resolves and return its addresses; log now and then why it doesn't.

    Args:
        wanted: the name, and where it is given.
        settings: ``timeout``, ``dns_wait`` and ``dns_interval`` are read.
        hint: what to do if the name never resolves; empty: the check's own hint.
        resolver: resolves the name; made from the system's files where not given.

    Raises:
        MpibootError: ``names-unresolved`` at the deadline; ``usage`` for an invalid host name.
    """
    resolver = resolver or Resolver(system_decides=True)  # the program will use that one
    started = time.monotonic()
    state = HostState(Host(wanted.host), wanted.host)
    reporter = Reporter(
        live=log.draws(), left=lambda: _left(settings, (state,), time.monotonic() - started)
    )
    side = [asyncio.ensure_future(work((state,))) for work in (reporter.lines, reporter.drawing)]
    try:
        while True:
            answer = await resolver.ask(wanted.host)
            waited = time.monotonic() - started
            if answer.addresses:
                break
            if answer.reason is not None and answer.reason.permanent:
                raise error(
                    "usage", f"{wanted.by}: {answer.detail}", hint="name a host, or HOST:PORT"
                )
            reason = answer.reason.value if answer.reason is not None else ""
            if reason != state.reason:
                state.reason = reason
                reporter.changed()
            state.detail = (
                f"{answer.detail}; {wanted.by} names it, waited for {round(waited, 1):g} s"
            )
            state.hint = hint or failures.unresolved(answer.reason, resolver.conf)
            left = _left(settings, (state,), waited)
            if not left:
                raise MpibootError(progress.finding(state))
            pause = pacing.pause(waited, 1, answer.retry_after, settings.dns_interval)
            await asyncio.sleep(min(pause, left))
    finally:
        for task in side:
            task.cancel()
        reporter.clear()
    where = ", ".join(answer.addresses)
    log.info(
        "rendezvous",
        f"{wanted.host} ({wanted.by}) is {where}, after {waited:.1f} s",
        host=wanted.host,
        by=wanted.by,
        seconds=round(waited, 3),
    )
    return answer.addresses
