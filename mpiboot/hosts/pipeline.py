"""One host's way through the gate: resolve, connect, greeting, login, facts.

It decides whether a failed attempt is retried or final; the gate has the deadline, the progress
lines and the results of all hosts. With kubectl no name is resolved and there is no login: the API
server knows the pod's state and address, and ``kubectl exec`` runs the gate's one command in it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from mpiboot.core.addresses import is_address, is_local, long_form
from mpiboot.core.checks import MpibootError, error, failed
from mpiboot.core.facts import Host, NoFacts, Worker
from mpiboot.core.model import Decision, HostKeys, LaunchAgent, ProveTransport, Source, Switch
from mpiboot.core.settings import Resolved, Settings
from mpiboot.hosts import host_shell, progress
from mpiboot.hosts.dns import DnsAnswer, NoAddress, Resolver, search_names
from mpiboot.hosts.progress import HostState, Stage
from mpiboot.hosts.remote_commands import holder, worker_of
from mpiboot.network import pod as own_pod
from mpiboot.ssh.attempt import Attempt, CommandEnd, LoginTimeouts, Outcome, Target
from mpiboot.ssh.client import HostSettings, PodAccess, is_denied, pod_of
from mpiboot.ssh.pool import Pool
from mpiboot.system import processes

# sshd's ports in stock images, in the MPI Operator's and Trainer's, and in Google's gIB images.
PORTS: Final = (22, 2222, 222)


@dataclass(frozen=True, slots=True)
class SshAccess:
    """How to log in to the workers.

    ``user``: the login if the hostfile has none; ``ports``: tried in this order; ``hostname``,
    ``fqdns``: this pod's names; ``ipv6``: whether this pod's address is IPv6 (None: unknown);
    ``domain``: the cluster's DNS domain, for FQDNs (empty: none); ``resolver`` resolves the names.
    ``attempt`` and ``may_disconnect`` are sent to the workers (``host_shell.gate``).
    """

    user: str
    pool: Pool
    hostname: str
    ports: tuple[int, ...] = PORTS
    fqdns: tuple[str, ...] = ()
    ipv6: bool | None = None
    domain: str = ""
    attempt: str = ""
    may_disconnect: bool = False
    resolver: Resolver = field(default_factory=Resolver)

    def ssh_settings(self, host: str) -> HostSettings:
        """Give ssh's settings for a host, once its pipeline has read them."""
        client = self.pool.client
        return client.known(host) if client else HostSettings(host)


# Where the kubelet mounts a pod's API credentials.
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Where MPI Operator v1 puts kubectl and its kubexec.sh.
_OPERATOR: Final = "/opt/kube"


def choose_access(
    resolved: Resolved,
    environ: Mapping[str, str],
    key_is_there: Callable[[], bool],
    account: Path = ACCOUNT,
) -> tuple[PodAccess, Decision] | None:
    """Choose how hosts are reached; None for SSH.

    Args:
        resolved: the settings.
        environ: this pod's environment.
        key_is_there: whether, after a short wait, the job has an SSH key.
        account: where the service account is mounted.

    Raises:
        MpibootError: ``program-missing``; kubectl is required, but missing.
    """
    settings, given = resolved.settings, resolved.given["launch_agent"]
    if settings.launch_agent is LaunchAgent.SSH:
        return None
    places = os.pathsep.join((environ.get("PATH", ""), _OPERATOR))
    kubectl = shutil.which("kubectl", path=places) or ""
    source, reason = given.source, str(given)
    if settings.launch_agent is not LaunchAgent.KUBECTL:
        # kubectl needs both; with a key, SSH works everywhere.
        if not kubectl or not (account / "token").exists() or key_is_there():
            return None
        source = Source.DETECTED
        reason = "the job has no SSH key, but kubectl and a service account token"
    elif not kubectl:
        message = f"no kubectl on PATH, and {given} requires it"
        hint = "install kubectl in the launcher's image"
        raise error("program-missing", message, hint=hint)
    access = PodAccess(kubectl, processes.text(account / "namespace"))
    return access, Decision("launch-agent", LaunchAgent.KUBECTL.value, source, reason)


_MAX_ADDRESSES: Final = 4
# Between attempts while another launcher uses the host, or kubectl can't enter it. A worker that
# starts may replace an OpenSSH that can't authenticate with the embedded server, or wait for its
# key to be mounted: "permission denied" is final only if repeated after this.
_PAUSE_S: Final = 1.0
# While SSH fails: a recreated pod has a new record.
_RESOLVE_S: Final = 5.0
# If one nameserver lags behind, answers alternate between the old and the new address.
_QUERIES: Final = 3
_GONE: Final = "its name no longer resolves"
# Another job's sshd may penalize repeated logins (PerSourcePenalties of OpenSSH 9.8).
_FOREIGN_PAUSE_S: Final = 5.0

# An attempt is a handful of packets: a few hosts are tried 20 times a second, and once a second
# after a long wait. The rate is that of all hosts: with a search list an attempt is four to eight
# DNS queries, and one CoreDNS replica must bear them.
_MIN_S, _MAX_FEW_S, _MAX_S = 0.05, 1.0, 15.0
_BACKOFF: Final = 0.01
_TRIES_PER_SECOND: Final = 200.0


def pause(waited: float, pending: int) -> float:
    """Give the seconds until the next attempt.

    Args:
        waited: seconds since the first attempt at this host.
        pending: the number of hosts that are not ready.
    """
    load = min(_MAX_S, pending / _TRIES_PER_SECOND)
    return max(_MIN_S, load, min(_MAX_FEW_S, waited * _BACKOFF))


# Concurrent logins.
_MAX_CONNECTIONS: Final = 128


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """What pipelines do apart from the login.

    ``limits``: timeouts of an attempt's steps; ``mpirun``: its version is queried on each host;
    ``workdir``: checked on each host; ``doctor``: doctor's queries; ``once``: one attempt per host;
    ``job``: the job's identity, to wait for its other launchers; ``names_only``: a host is ready
    once its name resolves.
    """

    limits: LoginTimeouts = field(default_factory=LoginTimeouts)
    mpirun: str = ""
    doctor: tuple[str, ...] = ()
    once: bool = False
    workdir: str = ""
    job: str = ""
    names_only: bool = False


class Pipelines:
    """State that all hosts' pipelines share: limits, the SSH client, results so far.

    ``renamed`` maps the hostfile's names to the FQDNs in use.
    """

    def __init__(
        self,
        settings: Settings,
        access: SshAccess,
        options: PipelineOptions = PipelineOptions(),
    ) -> None:
        """Build the gate's one command."""
        self._options, self._settings, self._access = options, settings, access
        self._resolver, self.pool = access.resolver, access.pool
        self._command = host_shell.gate(
            options.mpirun,
            workdir=options.workdir,
            attempt=access.attempt,
            may_disconnect=access.may_disconnect,
            doctor=options.doctor,
            traffic=not options.once and settings.prove_transport is not ProveTransport.OFF,
        )
        self._connections = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._ports = (settings.ssh_port,) if settings.ssh_port else access.ports
        self._slow: Counter[Target] = Counter()  # timeouts so far, each raises the limits
        self._waiting = 0
        self.renamed: dict[str, str] = {}
        self.resolved_at = 0.0

    async def prepare(self, hosts: Iterable[Host]) -> None:
        """Load the SSH library and the key while names are resolved."""
        # kubectl needs neither the SSH library nor the key.
        without = self.pool.pods is not None or self._options.names_only
        if not without and not all(map(self.is_this_pod, hosts)):
            await self.pool.load()

    def is_this_pod(self, host: Host) -> bool:
        """Whether a host is this pod, by its name alone.

        That is enough: a launcher's DNS record appears only when its pod is ready, and mpirun
        starts ranks of its own host without resolving its name.
        """
        # Addresses are compared with the kernel's later.
        return not is_address(host.name) and is_local(
            host.name, self._access.hostname, self._access.fqdns
        )

    async def run(self, state: HostState) -> Worker | None:
        """Take one host through the gate; None for this pod itself.

        Raises:
            MpibootError: it failed for good.
        """
        worker = None
        if not self.is_this_pod(state.host):
            self._waiting += 1
            try:
                worker = await self._connect(state)
            finally:
                self._waiting -= 1
        state.set(Stage.READY)
        return worker

    async def _connect(self, state: HostState) -> Worker | None:
        if client := self.pool.client:
            await client.settings(state.host.name)
        to = self._access.ssh_settings(state.host.name)
        addresses = (to.host_name,) if to.proxied else await self.resolve(state, to.host_name)
        state.resolved, self.resolved_at = True, time.monotonic()
        if self._options.names_only or any(map(own_pod.is_local, addresses)):
            return None
        state.hint = None
        state.set(Stage.SSH)
        return await self.reach(state, addresses)

    async def why_lost(self, worker: Worker, *, by_name: bool, connected: bool) -> str | None:
        """Describe why a ready host has to be waited for again; None: it has not.

        Args:
            worker: the host.
            by_name: whether its name is resolved once more.
            connected: whether it must still be connected.
        """
        pool = self.pool
        by_program = pool.pods is not None or pool.find(worker.host.name).by_ssh
        if connected and not by_program and not pool.open(worker):
            return "its connection broke"
        change = None
        for _ in range(_QUERIES if by_name and worker.dns_name else 0):
            answer = await self._query_name(worker.dns_name)
            if worker.address in answer.addresses:
                return None
            if answer.addresses:
                change = f"its name now has the address {', '.join(answer.addresses)}"
            elif answer.reason in (NoAddress.NXDOMAIN, NoAddress.NO_RECORD):
                change = f"{_GONE}: {answer.detail}"
            else:  # a nameserver that doesn't answer is no evidence about the host
                return None
        return change

    async def resolve(self, state: HostState, name: str) -> tuple[str, ...]:
        """Resolve a name, retrying until it has addresses.

        Raises:
            MpibootError: it is not a host name.
        """
        started, conf = time.monotonic(), self._resolver.conf
        servers = ", ".join(conf.nameservers)
        state.detail = f"no answer yet from the nameserver {servers}" if servers else ""
        while not (answer := await self._query_name(name)).addresses:
            if answer.reason is NoAddress.MALFORMED:
                where = f"line {state.host.line} of the hostfile: " if state.host.line else ""
                raise error("hostfile-invalid", f"{where}{answer.detail}", host=state.host.name)
            state.hint = progress.dns_hint(answer.reason, conf)
            state.set(Stage.DNS, answer.reason.value, answer.detail)
            await self._pause(state, started)
        return answer.addresses

    async def _query_name(self, name: str) -> DnsAnswer:
        """Resolve a name once, or its FQDN if the setting allows; note which one is used."""
        mode = self._settings.rewrite_fqdn
        long = None if mode is Switch.OFF else long_form(name, self._access.domain)
        if long is None:
            return await self._resolver.resolve(name)
        if mode is not Switch.ON and name not in self.renamed:
            answer = await self._resolver.resolve(name)
            # Why the hostfile's name has none; the search list may lead to the long form, too.
            if answer.addresses or f"{long}." in search_names(name, self._resolver.conf):
                return answer
            longer = await self._resolver.resolve(long)
            if not longer.addresses:
                return answer
        else:
            longer = await self._resolver.resolve(long)
        if longer.addresses:
            self.renamed[name] = long  # the plan names it
        return longer

    async def _pause(self, state: HostState, started: float, least: float = 0.0) -> None:
        """Wait before the next attempt; there is none where a host is tried once."""
        if self._options.once:
            raise MpibootError(progress.finding(state))
        await asyncio.sleep(max(least, pause(time.monotonic() - started, self._waiting)))

    async def reach(self, state: HostState, addresses: tuple[str, ...]) -> Worker:
        """Log in at one of a host's addresses, retrying until that succeeds.

        Raises:
            MpibootError: it failed for good.
        """
        name, pool = state.host.name, self.pool
        to = self._access.ssh_settings(name)
        started = resolved = refused = time.monotonic()
        gone, least = "", 0.0
        while True:
            attempts = await self._try(state.host, addresses)
            best = max(attempts, key=lambda attempt: attempt.outcome.rank)
            before, state.error, least = state.error, None, 0.0
            if best.outcome is Outcome.OK:
                dns_name = self.renamed.get(to.host_name, to.host_name)
                unresolved = to.proxied or is_address(dns_name)
                worker = worker_of(state.host, best, "" if unresolved else dns_name)
                if not self._is_held(state, worker):
                    pinned = self._settings.host_keys is HostKeys.JOB
                    return worker if pinned else replace(worker, host_key=best.host_key)
                pool.drop(worker)
                least = _PAUSE_S
            else:
                refused = refused if best.outcome is Outcome.REFUSED else time.monotonic()
                progress.note_failure(state, best, attempts, time.monotonic() - refused, gone)
                # The name or its address may still point to another job's worker, as after a
                # suspended job was resumed (kubeflow/mpi-operator#868).
                state.error = progress.final(attempts, await pool.load())
                if state.error and state.error.check == progress.DENIED:
                    if before and before.check == progress.DENIED:
                        raise MpibootError(state.error)
                    least = _PAUSE_S
                elif any(item.outcome is Outcome.HOST_KEY_DIFFERS for item in attempts):
                    least = _FOREIGN_PAUSE_S
            await self._pause(state, started, least)
            if not to.proxied and time.monotonic() - resolved >= _RESOLVE_S:
                resolved = time.monotonic()
                answer = await self._query_name(to.host_name)
                addresses = answer.addresses or addresses
                gone = "" if answer.addresses else f"; {_GONE}: {answer.detail}"

    def _is_held(self, state: HostState, worker: Worker) -> bool:
        """Note whether another launcher of this job is connected to a host: it may be ending."""
        found = holder(worker, self._options.job) if self._options.job else ""
        if found:
            state.error = failed(progress.HELD, found, host=state.host.name)
            state.set(state.stage, found)
        return bool(found)

    def targets(self, host: Host, addresses: Sequence[str]) -> list[Target]:
        """List the addresses and ports of a host, in the order of the attempts."""
        to, settings = self._access.ssh_settings(host.name), self._settings
        users = (
            (host.user, "the hostfile"),
            (settings.ssh_user, "MPIBOOT_SSH_USER"),
            (to.user, "ssh_config"),
            (self._access.user, ""),
        )
        user, user_by = next((user, by) for user, by in users if user)
        ports = self._ports
        if to.proxied:
            ports = (settings.ssh_port or to.port or self._access.ports[0],)
        elif to.port and not settings.ssh_port:
            ports = tuple(dict.fromkeys((to.port, *ports)))
        return [
            Target(host.name, address, port, user, user_by)
            for address in self._by_family(addresses)[:_MAX_ADDRESSES]
            for port in ports
        ]

    def _by_family(self, addresses: Sequence[str]) -> list[str]:
        """Sort addresses: a dual-stack worker listens on its first family, as this pod has it."""
        ipv6 = self._access.ipv6
        return sorted(addresses, key=lambda item: ipv6 is not None and (":" in item) != ipv6)

    async def _try(self, host: Host, addresses: Sequence[str]) -> list[Attempt]:
        """Try each address and port until a login succeeds; return all attempts."""
        attempts = []
        for target in self.targets(host, addresses):
            limits = self._options.limits.longer(self._slow[target])
            async with self._connections:
                attempt = await self.pool.log_in(target, self._command, limits)
            self._slow[target] += attempt.outcome is Outcome.SLOW or attempt.stalled
            attempts.append(attempt)
            if attempt.outcome is Outcome.OK:
                # Most workers of a job are alike: try this port first on the others.
                self._ports = tuple(sorted(self._ports, key=lambda port: port != target.port))
                break
        return attempts


_MAX_REASON_CHARACTERS: Final = 300
_KUBECTL_HINT: Final = (
    "kubectl needs running pods with /bin/sh in its namespace, named like the hosts' first labels, "
    "and this pod must reach the API server: docs/how-to/kubectl.md"
)


class PodPipelines(Pipelines):
    """The pipelines of hosts that are reached by ``kubectl exec``."""

    async def _connect(self, state: HostState) -> Worker | None:
        name, started = state.host.name, time.monotonic()
        pod = pod_of(name)
        if not pod:
            message = "this host is an IP address, but kubectl exec needs a pod's name"
            raise error("hostfile-invalid", message, host=name)
        # DNS isn't used: what may be missing is the pod.
        state.resolved = True
        state.set(Stage.KUBECTL)
        while True:
            found = await self._enter(state.host, pod)
            state.error = None
            if isinstance(found, str):
                # Hosts with the same error are reported together.
                state.set(Stage.KUBECTL, found.replace(pod, "this pod"), found)
                state.hint = _KUBECTL_HINT
                if is_denied(found):
                    state.error = failed("kubectl-denied", found, host=name)
            elif found is None or not self._is_held(state, found):
                return found
            await self._pause(state, started, _PAUSE_S)

    async def _enter(self, host: Host, pod: str) -> Worker | str | None:
        """Run the gate's command in a pod: its worker, an error, or None for this pod itself."""
        pool, seconds = self.pool, self._options.limits.command
        listed = await pool.addresses(pod, seconds)
        if listed.status != 0:
            return _reason(listed)
        addresses = listed.output.split()
        if any(map(own_pod.is_local, addresses)):
            return None
        end = await pool.run(host.name, self._command, seconds)
        if end.status != 0:
            return _reason(end)
        if not addresses:
            return "the pod has no address yet"
        first = self._by_family(addresses)[0]
        target = Target(host.name, first, 0, "")
        local = own_pod.source_address(first)
        attempt = Attempt(target, Outcome.OK, output=end.output, local_address=local)
        return replace(worker_of(host, attempt), no_facts=NoFacts.BY_KUBECTL)


def _reason(end: CommandEnd) -> str:
    # Earlier lines are notes: the default container, the discovery cache.
    lines = end.error.strip().splitlines() or [f"kubectl ended with {end.status}"]
    return lines[-1].strip()[:_MAX_REASON_CHARACTERS]
