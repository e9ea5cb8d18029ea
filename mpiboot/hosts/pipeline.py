"""One host's way through the gate: resolve, connect, greeting, login, facts.

It decides what a failed try means for its host: try again, or never. Deadlines, progress lines
and the sum over all hosts are the gate's. Where kubectl enters the pods, no name is asked for and
nobody logs in: the API server tells whether a pod runs and at which address, and ``kubectl exec``
runs the gate's one command in it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from mpiboot.core import log, records_json
from mpiboot.core.addresses import is_address
from mpiboot.core.errors import MpibootError, error
from mpiboot.core.model import Host, Mesh, Mpi, NoFacts, PodFacts, Worker
from mpiboot.core.setting_types import Auto, HostKeys, Switch
from mpiboot.core.settings import Settings
from mpiboot.core.wording import MOST_LINES
from mpiboot.hosts import failures, host_shell, pacing
from mpiboot.hosts.access import Kubectl, Obstacle, SshAccess, Trouble, pod_of
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.dns_query import DnsAnswer, NoAddress
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.hosts.pacing import Pauses
from mpiboot.hosts.pairs import PairCheck
from mpiboot.hosts.progress import HostState, Stage, finding
from mpiboot.job import names
from mpiboot.network import platform_hints
from mpiboot.network import pod as own_pod
from mpiboot.ssh import attempt as ssh_attempt
from mpiboot.ssh.attempt import Attempt, LoginTimeouts, Outcome, Target
from mpiboot.ssh.client_start import ConnectionPool
from mpiboot.system import os_calls, programs

if TYPE_CHECKING:
    from mpiboot.ssh.login import Login


class HostNames:
    """Asks for names; ``renamed`` has those whose long form is used, by the hostfile's."""

    def __init__(self, resolver: Resolver, mode: Switch | Auto, domain: str) -> None:
        """Ask for none yet; ``mode`` is the setting ``rewrite_fqdn``."""
        self._resolver = resolver
        self._mode = mode
        self._domain = domain
        self.renamed: dict[str, str] = {}

    async def ask(self, name: str) -> DnsAnswer:
        """Ask for a name in the forms that the setting allows, and note which one is used."""
        mode = self._mode
        long = name if mode is Switch.OFF else names.long_form(name, self._domain) or name
        if mode is Switch.ON or name in self.renamed:
            answer = await self._resolver.ask(long)
            if long != name and answer.addresses:
                self.renamed[name] = long
            return answer
        answer = await self._resolver.ask(name)
        # Where the search list leads to the long form, the short one covers it.
        if answer.addresses or long == name or f"{long}." in answer.searched:
            return answer
        longer = await self._resolver.ask(long)
        if not longer.addresses:
            return answer
        # The record may have come between the two questions.
        answer = await self._resolver.ask(name)
        if answer.addresses:
            return answer
        self.renamed[name] = long
        # Of very many names the plan has the number and the first few.
        say = log.info if len(self.renamed) <= MOST_LINES else log.debug
        say("names", f"{name} resolves only as {long}: that name is used", host=name)
        return longer


def worker_of(host: Host, attempt: Attempt) -> Worker:
    """Give what a successful attempt has brought back of a host."""
    answer, target = host_shell.read(attempt.output), attempt.target
    facts, reason = facts_of(answer)
    return Worker(
        host=host,
        address=target.address,
        port=target.port,
        user=target.user,
        local_address=attempt.local_address,
        facts=facts,
        mpi=_mpi(answer, facts),
        oom_kills=answer.oom_kills,
        marks=answer.marks,
        attempts=answer.attempts,
        held=answer.held,
        called_mpi=programs.recognise(*answer.mpirun_by_path) if answer.mpirun_by_path else None,
        no_facts=reason,
    )


def facts_of(answer: HostAnswer) -> tuple[PodFacts | None, NoFacts]:
    """Read a host's facts, or say why there are none."""
    if answer.late:
        return None, NoFacts.LATE
    if answer.facts is None:
        return None, NoFacts.NO_MPIBOOT
    return records_json.facts_from_json(answer.facts), NoFacts.UNREADABLE


def _mpi(answer: HostAnswer, facts: PodFacts | None) -> Mpi | None:
    if facts is not None:
        return facts.mpi
    return programs.recognise(*answer.mpirun) if answer.mpirun else None


_ADDRESSES: Final = 4
# Records change when a pod is made anew; asking more often than this while SSH fails is no use.
_RESOLVE_AGAIN: Final = 5.0
# Nameservers of which one is behind tell the old address and the new one by turns.
_FURTHER_LOOKS: Final = 2
# A server that isn't the job's may punish repeated logins (PerSourcePenalties of OpenSSH 9.8).
_FOREIGN_PAUSE: Final = 5.0
# A worker changes servers while it starts (OpenSSH that can't let anybody in, then the embedded
# one), and its key may be mounted a moment late; a no that is still a no after this is for good.
_CONFIRM: Final = 1.0


class Pipelines:
    """What all hosts' pipelines share: bounds, the SSH client, and what they have learnt."""

    def __init__(
        self,
        settings: Settings,
        access: SshAccess,
        resolver: Resolver,
        *,
        changed: Callable[[], None],
        limits: LoginTimeouts | None = None,
        once: bool = False,
        mpirun: str = "",
        pairs: PairCheck | None = None,
        kept: ConnectionPool | None = None,
        doctor: Sequence[str] = (),
    ) -> None:
        self._kept = kept
        self._asks_more = bool(doctor)
        self._pairs = pairs if pairs is not None and pairs.wanted else None
        self._settings = settings
        self._access = access
        self.names = HostNames(resolver, settings.rewrite_fqdn, access.domain)
        self._conf = resolver.conf
        self._changed = changed
        self._limits = limits or LoginTimeouts()
        self._once_only = once
        self._command = host_shell.gate(
            mpirun, attempt=access.attempt, may_disconnect=access.may_disconnect, doctor=doctor
        )
        self._connections = asyncio.Semaphore(pacing.most_connections(os_calls.most_open_files()))
        self._login: asyncio.Task[Login] | None = None
        self._ports = (settings.ssh_port,) if settings.ssh_port else access.ports
        self._resolving = 0
        self._pauses = Pauses()
        self._reaching = 0
        self.host_keys: dict[str, str] = {}
        self.answers: dict[str, Attempt] = {}
        self.last_name = 0.0
        self._mesh: Mesh | None = None
        self._looked = float("-inf")

    def prepare(self) -> asyncio.Future[Any]:
        """Begin what the pipelines need and can be had while hosts are waited for."""
        return self.load()

    def load(self) -> asyncio.Task[Login]:
        """Load the SSH client and the key, once, while names are being waited for."""
        if self._login is None:
            self._login = asyncio.ensure_future(asyncio.to_thread(self._load))
        return self._login

    def _load(self) -> Login:
        from mpiboot.ssh.login import Login  # noqa: PLC0415 - see load

        return Login(
            self._access.key,
            host_key=self._access.host_key,
            mode=self._settings.host_keys,
            limits=self._limits,
            kept=self._kept,
        )

    def is_own_name(self, host: Host) -> bool:
        """Tell by name alone whether a host is this pod.

        That is enough: the record of a launcher appears only when its pod is ready, and mpirun
        starts ranks of its own host without asking for a name.
        """
        # Addresses are asked of the kernel later on.
        return not is_address(host.name) and names.is_local(
            host.name, self._access.hostname, self._access.fqdns
        )

    async def run(self, state: HostState) -> Worker | None:
        """Bring one host through the gate; None for this pod itself.

        Raises:
            MpibootError: what failed will not get better by waiting.
        """
        if self.is_own_name(state.host):
            self._set(state, Stage.READY)
            return None
        return await self._bring(state)

    async def _bring(self, state: HostState) -> Worker | None:
        self._resolving += 1
        try:
            addresses = await self._resolve(state)
        finally:
            self._resolving -= 1
        self._pauses.end_some()
        state.resolved = True
        self.last_name = time.monotonic()
        if any(own_pod.is_local(address) for address in addresses):
            self._set(state, Stage.READY)
            return None
        state.hint = None
        self._set(state, Stage.SSH)
        self._reaching += 1
        try:
            return await self.reach(state, addresses)
        finally:
            self._reaching -= 1

    async def moved(self, worker: Worker) -> str:
        """Tell where the name of a host that was ready leads now; empty where it still does."""
        answer = await self.names.ask(worker.host.name)
        for _ in range(_FURTHER_LOOKS):
            if worker.address in answer.addresses:
                return ""
            answer = await self.names.ask(worker.host.name)
        if worker.address in answer.addresses:
            return ""
        if answer.addresses:
            return f"its name now has the address {', '.join(answer.addresses)}"
        # A nameserver that doesn't answer says nothing about the host.
        known = answer.reason in (NoAddress.NXDOMAIN, NoAddress.NO_RECORD)
        return f"its name does not resolve any more: {answer.detail}" if known else ""

    def restart(self, state: HostState) -> None:
        """Put a host that was ready back to the beginning; ``run`` is to be called again."""
        self._set(state, Stage.DNS)

    def _set(self, state: HostState, stage: Stage, reason: str = "", detail: str = "") -> None:
        new = (stage, reason) != (state.stage, state.reason)
        state.stage, state.reason, state.detail = stage, reason, detail
        if new:
            self._changed()

    async def _resolve(self, state: HostState) -> tuple[str, ...]:
        started = time.monotonic()
        servers = ", ".join(self._conf.nameservers)
        state.detail = f"no answer yet from the nameserver {servers}" if servers else ""
        while True:
            answer = await self.names.ask(state.host.name)
            if answer.addresses:
                return answer.addresses
            if answer.reason is not None and answer.reason.permanent:
                where = f"line {state.host.line} of the hostfile: " if state.host.line else ""
                raise error("hostfile-invalid", f"{where}{answer.detail}", host=state.host.name)
            reason = answer.reason.value if answer.reason is not None else ""
            state.hint = failures.unresolved(answer.reason, self._conf)
            self._set(state, Stage.DNS, reason, answer.detail)
            self._stop_if_once(state)
            await self._pauses.pause(
                pacing.pause(
                    time.monotonic() - started,
                    self._resolving,
                    answer.retry_after,
                    self._settings.dns_interval,
                )
            )

    async def reach(self, state: HostState, addresses: tuple[str, ...]) -> Worker:
        """Log in at one of a host's addresses, however often that must be tried.

        Raises:
            MpibootError: what failed will not get better by waiting.
        """
        started = resolved = listened = time.monotonic()
        known: dict[Target, tuple[float, Attempt]] = {}
        refused, gone = False, ""
        while True:
            attempts = await self._try(state.host, addresses, known)
            best = max(attempts, key=lambda attempt: attempt.outcome.rank)
            if best.outcome is Outcome.OK:
                return self._worker(state, best)
            if best.outcome is not Outcome.REFUSED:
                listened = time.monotonic()
            reason, state.hint = self._why(best, attempts, time.monotonic() - listened)
            self._set(
                state,
                Stage.SSH,
                reason,
                failures.detail(attempts) + gone + failures.more(reason, best),
            )
            final = failures.final(attempts, len(self._ports), (await self.load()).host_fingerprint)
            if final is not None and (
                final.outcome is Outcome.HOST_KEY_DIFFERS or refused or self._once_only
            ):
                login = await self.load()
                raise failures.as_error(
                    final, login.fingerprint, login.public_line, login.host_fingerprint
                )
            self._stop_if_once(state)
            refused = final is not None
            wait = pacing.pause(time.monotonic() - started, self._reaching)
            await asyncio.sleep(_CONFIRM if refused else wait)
            if time.monotonic() - resolved >= _RESOLVE_AGAIN:
                resolved = time.monotonic()
                answer = await self.names.ask(state.host.name)
                addresses = answer.addresses or addresses
                gone = f"; its name does not resolve any more: {answer.detail}"
                gone = "" if answer.addresses else gone

    def _why(
        self, attempt: Attempt, attempts: Sequence[Attempt], refused: float
    ) -> tuple[str, str | None]:
        """Say why an attempt failed; what stands in front of this pod is looked at when it may."""
        now = time.monotonic()
        due = now - self._looked >= _RESOLVE_AGAIN  # a proxy may come up after its pod's program
        if attempt.outcome in failures.PROXIED and self._mesh is None and due:
            self._mesh, self._looked = platform_hints.service_mesh(), now
        port, port_range = attempt.target.port, self._settings.port_range
        refusing = [
            other.target.port
            for other in attempts
            if other.outcome is Outcome.REFUSED and other.target.address == attempt.target.address
        ]
        return failures.why(attempt, self._mesh, {port}, port_range, refused, refusing)

    def _stop_if_once(self, state: HostState) -> None:
        if self._once_only:
            raise MpibootError(finding(state))

    async def _try(
        self, host: Host, addresses: Sequence[str], known: dict[Target, tuple[float, Attempt]]
    ) -> list[Attempt]:
        """Try each address and port until one lets us in; what the others said is kept."""
        user = host.user or self._access.user
        attempts = []
        if self._access.ipv6 is not None:  # a worker of both listens on the version that is first
            addresses = sorted(addresses, key=lambda item: (":" in item) != self._access.ipv6)
        for address in addresses[:_ADDRESSES]:
            for port in self._ports:
                target = Target(host.name, address, port, user)
                at, attempt = known.get(target, (float("-inf"), None))
                foreign = attempt is not None and attempt.outcome is Outcome.HOST_KEY_DIFFERS
                if attempt is None or not foreign or time.monotonic() - at >= _FOREIGN_PAUSE:
                    attempt = await self._once(target)
                    known[target] = (time.monotonic(), attempt)
                attempts.append(attempt)
                if attempt.outcome is Outcome.OK:
                    # Most workers of a job are alike: ask the others there first.
                    self._ports = (port, *(item for item in self._ports if item != port))
                    return attempts
        return attempts

    async def _once(self, target: Target) -> Attempt:
        async with self._connections:
            opened = await ssh_attempt.connect(target, self._limits)
            if isinstance(opened, Attempt):
                return opened
            with opened.sock:
                login = await self.load()
                keep = partial(self._pairs.keep, target) if self._pairs else None
                return await login.log_in(
                    target, opened.sock, opened.greeting, self._command, keep=keep
                )

    def answered(self, host: Host, attempt: Attempt) -> Worker:
        """Read what a host has answered; where more was asked than the gate's own, keep it."""
        if self._asks_more:
            self.answers[host.name] = attempt
        return worker_of(host, attempt)

    def _worker(self, state: HostState, attempt: Attempt) -> Worker:
        self._set(state, Stage.READY)
        name = state.host.name
        if self._settings.host_keys is not HostKeys.JOB:
            self.host_keys[name] = attempt.host_key
        worker = self.answered(state.host, attempt)
        if self._pairs:
            self._pairs.join(worker, attempt.target)
        return worker


# A Role may be applied a moment after the job; a no that is still a no after this is for good.
_CONFIRM_ROLE: Final = 2.0


class PodPipelines(Pipelines):
    """The pipelines of hosts whose pods kubectl enters."""

    def prepare(self) -> asyncio.Future[Any]:
        """Give what is there already: no library, and no key."""
        return asyncio.ensure_future(asyncio.sleep(0))

    async def _bring(self, state: HostState) -> Worker | None:
        pod = pod_of(state.host.name)
        if not pod:
            message = "this host is an address, and kubectl enters a pod by its name"
            raise error("hostfile-invalid", message, host=state.host.name)
        # What is missing is the pod, never a name's address.
        state.resolved = True
        self._set(state, Stage.KUBECTL)
        self._reaching += 1
        try:
            return await self._enter(state, pod)
        finally:
            self._reaching -= 1

    async def moved(self, worker: Worker) -> str:
        """Tell where the pod of a host that was ready is now; empty where it still is there."""
        found = await self._kubectl.look(pod_of(worker.host.name))
        if found.obstacle is None:
            now = ", ".join(found.addresses)
            there = worker.address in found.addresses
            return "" if there else f"its pod now has the address {now}"
        # Who gets no answer knows nothing of the pod.
        known = found.obstacle.trouble in (Trouble.NO_POD, Trouble.NOT_RUNNING)
        return f"{found.obstacle.trouble.value}: {found.obstacle.message}" if known else ""

    def restart(self, state: HostState) -> None:
        """Put a host that was ready back to the beginning; ``run`` is to be called again."""
        self._set(state, Stage.KUBECTL)

    @cached_property
    def _kubectl(self) -> Kubectl:
        assert self._access.pods is not None  # noqa: S101 - the gate has chosen by it
        return Kubectl(self._access.pods, limit=self._limits.command)

    async def _enter(self, state: HostState, pod: str) -> Worker | None:
        started, refused = time.monotonic(), False
        while True:
            found = await self._once_in(state.host, pod)
            if not isinstance(found, Obstacle):
                self._set(state, Stage.READY)
                return found
            state.hint = found.hint
            # What kubectl says is all that is known of a failure without a name; hosts with the
            # same words are told together.
            known = found.trouble is not Trouble.FAILED
            reason = (
                found.trouble.value if known else _obstacle_text(found).replace(pod, "this pod")
            )
            self._set(state, Stage.KUBECTL, reason, _obstacle_text(found))
            if found.trouble.final and (refused or self._once_only):
                raise _kubectl_denied(found, state.host)
            self._stop_if_once(state)
            refused = found.trouble.final
            wait = pacing.pause(time.monotonic() - started, self._reaching)
            await asyncio.sleep(_CONFIRM_ROLE if refused else wait)

    async def _once_in(self, host: Host, pod: str) -> Worker | Obstacle | None:
        kubectl = self._kubectl
        there = await kubectl.look(pod)
        if there.obstacle is not None:
            return there.obstacle
        if any(own_pod.is_local(address) for address in there.addresses):
            return None
        output = await kubectl.run(pod, self._command)
        if isinstance(output, Obstacle):
            return output
        ipv6 = self._access.ipv6
        first = sorted(there.addresses, key=lambda item: ipv6 is not None and (":" in item) != ipv6)
        target = Target(host.name, first[0], 0, "")
        local = own_pod.source_address(target.address)
        attempt = Attempt(target, Outcome.OK, output=output, local_address=local)
        return replace(self.answered(host, attempt), no_facts=NoFacts.BY_KUBECTL)


def _obstacle_text(found: Obstacle) -> str:
    return f"{found.trouble.value}: {found.message}"


def _kubectl_denied(found: Obstacle, host: Host) -> MpibootError:
    return error(
        "kubectl-denied",
        _obstacle_text(found),
        host=host.name,
        evidence=found.evidence,
        hint=found.hint,
    )
