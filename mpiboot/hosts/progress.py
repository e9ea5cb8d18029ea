"""What hosts that are not ready lack: states, progress lines, findings, and failed logins' meaning.

A progress line for all hosts is logged when it changes, at a limited rate.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from mpiboot.core import log
from mpiboot.core.addresses import cluster_domain, short_names
from mpiboot.core.checks import failed
from mpiboot.core.facts import Host
from mpiboot.core.model import Finding
from mpiboot.core.wording import first_few, grouped, lasting
from mpiboot.hosts.dns import NoAddress, ResolvConf
from mpiboot.ssh.attempt import WORKER, Attempt, Outcome

if TYPE_CHECKING:
    from mpiboot.ssh.login import Login

# Checks that the gate knows by their names.
DENIED: Final = "ssh-denied"
HELD: Final = "workers-held"
_NAMES: Final = 3


class Stage(str, Enum):
    """A host's stage in the gate; the value is its name in a progress line."""

    DNS = "DNS"
    SSH = "SSH"
    KUBECTL = "kubectl exec"
    READY = "ready"


@dataclass(slots=True, eq=False)
class HostState:
    """The state of one host; ``reason`` is short and doesn't vary, ``detail`` has the rest.

    ``hint`` is what to do, if that is more than the check's own. ``resolved`` stays true
    once the name had an address. ``error`` is what the deadline reports, where that is more than a
    host that isn't ready.
    """

    host: Host
    label: str
    stage: Stage = Stage.DNS
    reason: str = ""
    detail: str = ""
    resolved: bool = False
    hint: str | None = None
    error: Finding | None = None

    @property
    def ready(self) -> bool:
        """Whether it has passed the gate."""
        return self.stage is Stage.READY

    def set(self, stage: Stage, reason: str = "", detail: str = "") -> None:
        """Set what the host waits for."""
        self.stage, self.reason, self.detail = stage, reason, detail


def states(hosts: Sequence[Host]) -> tuple[HostState, ...]:
    """Give the initial states; a label is the first part of a name if these are unique."""
    labels = short_names([host.name for host in hosts])
    return tuple(HostState(host, labels[host.name]) for host in hosts)


def line(known: Sequence[HostState]) -> str:
    """Describe in one line how many hosts are ready, and what the others lack."""
    ready = sum(state.ready for state in known)
    return f"{ready}/{len(known)} hosts ready, {missing(known)}".removesuffix(", ")


def missing(known: Sequence[HostState]) -> str:
    """Describe what the hosts that are not ready lack; empty if all are ready."""
    waiting = [state for state in known if not state.ready]
    groups = grouped(((state.stage, state.reason), state.label) for state in waiting)
    # The hosts that came furthest come first, then the larger groups.
    order = sorted(groups.items(), key=lambda item: (item[0][0] is Stage.DNS, -len(item[1])))
    parts = [
        f"{stage.value} {'for' if stage is Stage.DNS else 'on'} {first_few(labels, _NAMES)}"
        + (f" ({reason})" if reason else "")
        for (stage, reason), labels in order
    ]
    return f"waiting for {first_few(parts)}" if parts else ""


def finding(state: HostState) -> Finding:
    """Make a finding of why a host isn't ready: its last reason in full."""
    return state.error or failed(
        "workers-unreachable" if state.resolved else "names-unresolved",
        f"{state.stage.value}: {state.detail or state.reason or 'no answer yet'}",
        host=state.host.name,
        hint=state.hint,
    )


# A line a second while things change quickly, and fewer the longer it takes: pods' logs are kept,
# and a wait of ten minutes should fit on one screen.
_MIN_PAUSE_S, _MAX_PAUSE_S, _SHARE = 1.0, 28.0, 0.2
# Without any change, a line this often: a silent log looks like a program that hangs.
_SILENCE_S: Final = 90.0


async def report(known: Sequence[HostState], left: Callable[[], float]) -> None:
    """Log a progress line whenever it has changed, and now and then if it has not.

    Args:
        known: the gate's hosts.
        left: gives the seconds until the gate gives up.
    """
    started, logged, logged_at = time.monotonic(), "", 0.0
    while True:
        # A cluster that is ready needs no line: the first one is delayed, too.
        waited = time.monotonic() - started
        await asyncio.sleep(min(_MAX_PAUSE_S, max(_MIN_PAUSE_S, waited * _SHARE)))
        text, now = line(known), time.monotonic()
        if text != logged or now - logged_at >= _SILENCE_S:
            logged, logged_at = text, now
            rest = left()
            message = f"{text}; gives up in {lasting(rest)}"
            count = {"ready": sum(state.ready for state in known), "total": len(known)}
            log.info("gate", message, **count, gives_up_in=round(rest, 1))


def final(attempts: Sequence[Attempt], login: Login) -> Finding | None:
    """Find the failure of this round that is final; None where there is none.

    On hostNetwork the node's own sshd answers on port 22 while ours may still come up on another
    port. So a server without the job's host key is final only if it would accept the job's key,
    which a node's doesn't, or if every port has answered.

    Args:
        attempts: one for each address and port; all have failed.
        login: has the launcher's key and the pinned host key.
    """
    for attempt in attempts:
        address = attempt.target.address
        same = [item for item in attempts if item.target.address == address]
        everyone = all(item.outcome.greeted for item in same)
        # mpiboot's own server says so in its greeting: no node's sshd, but one with another key.
        another_job = WORKER in attempt.greeting
        # Of a login by ssh the key that was shown is not known: it may be a proxy's.
        differs = attempt.outcome is Outcome.HOST_KEY_DIFFERS and attempt.fingerprint
        if differs and (attempt.welcome or everyone or another_job):
            return _other_host_key(attempt, login)
        is_the_jobs = attempt.fingerprint == login.host_fingerprint
        if attempt.outcome.denied and (is_the_jobs or everyone):
            return _denied(attempt, login)
    return None


def _other_host_key(attempt: Attempt, login: Login) -> Finding:
    what, hint = f"sshd on {_where(attempt)} has a host key of its own", None
    if WORKER in attempt.greeting and not attempt.welcome:
        what = f"mpiboot on {_where(attempt)} has another key"
        hint = "launcher and workers must mount the same key Secret"
    known = f"it {'would accept' if attempt.welcome else 'refuses'} the job's key"
    return failed(
        "host-key-differs",
        f"{what}, {attempt.fingerprint}, not the job's, {login.host_fingerprint}",
        host=attempt.target.host,
        evidence=(known, f"it shows: {attempt.host_key}"),
        hint=hint,
    )


def _denied(attempt: Attempt, login: Login) -> Finding:
    target = attempt.target
    by = f" (named by {target.user_by})" if target.user_by else ""
    what = (
        "asks for a password and does not accept public keys"
        if attempt.outcome is Outcome.PASSWORD_ASKED
        else f"refuses the launcher's key {login.fingerprint}"
    )
    shown = (f"it says: {attempt.message}",) if attempt.message else ()
    return failed(
        DENIED,
        f"sshd on {_where(attempt)} {what} for user {target.user}{by}",
        host=target.host,
        evidence=(
            *shown,
            f"authorized_keys of {target.user} there should hold: {login.public_line}",
        ),
    )


def _where(attempt: Attempt) -> str:
    target = attempt.target
    return f"{target.host} ({target.address} port {target.port}, {attempt.greeting})"


# Only reported: some images install or fetch something before they start their sshd.
LONG: Final = 20.0
_LACKS: Final = ": likely the worker lacks `args: [worker]`"
_COMMAND_HINT: Final = (
    "does the worker's container run mpiboot? A `command:` in its spec replaces it, and without "
    "command and args the MPI Operator starts the image's own sshd: write `args: [worker]`, or "
    "`args: [worker, --, PROGRAM]`; else see the worker's log"
)
_FILTERED_HINT: Final = (
    "is its pod still there? A NetworkPolicy or firewall must let the launcher connect to port "
    "{target.port} of the workers"
)
_STALLED: Final = "are large packets lost (MTU), or do the login shell's start files hang?"
_STALLED_HINT: Final = (
    "try `ping -M do -s 1472 ADDRESS` between nodes, and give the pod network the MTU that its "
    "path carries (CNI configuration); in the worker, as that user, `bash -x ~/.bashrc </dev/null` "
    "shows where bash's start file waits; or the worker is overloaded"
)
# A proxy that waits for the client to speak first is silent; one that expects mTLS closes.
_NO_GREETING_HINT: Final = (
    "no SSH greeting: a proxy in front of the pod (a service mesh's sidecar)? Keep the job's pods, "
    "or its ports, out of the mesh (docs/pod-network.md); without one, see the worker's log"
)

_SSH_HINT: Final = (
    "the worker's log may say more; in the launcher's pod, try "
    "`ssh -v -p {target.port} {target.user}@{target.host}`"
)


def note_failure(
    state: HostState, best: Attempt, attempts: Sequence[Attempt], waited: float, gone: str = ""
) -> None:
    """Note why a host could not be logged in to, and what to do.

    Args:
        state: the host's.
        best: the attempt that came furthest.
        attempts: those of the same round, one for each address and port.
        waited: the seconds since the first attempt at this host.
        gone: what is to be added of its name.
    """
    cause, state.hint = _explain(best, waited)
    detail = f"{_results(attempts)}{gone}"
    if cause:
        detail += f"; {cause.lstrip(':, ')}"
    state.set(Stage.SSH, best.outcome.value + cause, detail)


def _results(attempts: Sequence[Attempt]) -> str:
    """Describe the result of each address and port; ports with the same one are grouped."""

    def message(attempt: Attempt) -> str:
        differs = attempt.outcome is Outcome.HOST_KEY_DIFFERS
        words = (differs and attempt.fingerprint) or attempt.message
        return attempt.outcome.value + (f" ({words})" if words else "")

    groups = grouped(((one.target.address, message(one)), str(one.target.port)) for one in attempts)
    return "; ".join(
        f"{words} on {address} port{'s' if len(ports) > 1 else ''} {', '.join(ports)}"
        for (address, words), ports in groups.items()
    )


def _explain(attempt: Attempt, waited: float) -> tuple[str, str | None]:
    """Give what to add to the outcome, in a few words that don't vary, and a hint.

    An empty addition adds nothing; no hint: the check's own.
    """
    if attempt.outcome is Outcome.REFUSED:
        return _LACKS if waited >= LONG else "", _COMMAND_HINT
    if attempt.outcome is Outcome.HOST_KEY_DIFFERS:
        return ", not this job's", None
    if attempt.outcome in (Outcome.TIMEOUT, Outcome.UNREACHABLE):
        return "", _FILTERED_HINT.format(target=attempt.target)
    if attempt.stalled:
        return f": {_STALLED}", _STALLED_HINT
    if attempt.outcome in (Outcome.SILENT, Outcome.CLOSED) and not attempt.greeting:
        return "", _NO_GREETING_HINT
    return "", _SSH_HINT.format(target=attempt.target) if attempt.outcome.greeted else None


def dns_hint(reason: NoAddress, conf: ResolvConf) -> str | None:
    """Give a hint for a name without an address; None: the check's own hint.

    A pod on the node's network gets the node's resolv.conf unless its dnsPolicy is set, and the
    node's nameserver doesn't have the cluster's names (Kubernetes, "Pod's DNS Policy").
    """
    if reason not in (NoAddress.NXDOMAIN, NoAddress.NO_RECORD) or cluster_domain(conf.search):
        return None
    has = f"search {' '.join(conf.search)}" if conf.search else "no search list"
    return (
        f"this pod's /etc/resolv.conf is not the cluster's ({has}): with `hostNetwork: true` a pod "
        "needs `dnsPolicy: ClusterFirstWithHostNet`"
    )
