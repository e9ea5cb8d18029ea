"""Why hosts are not ready: their states, progress lines, findings and login failures.

One progress line covers all hosts; it is logged when it changes, rate-limited.
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

# Checks that the gate refers to by name.
DENIED: Final = "ssh-denied"
HELD: Final = "workers-held"
_MAX_NAMES: Final = 3


class Stage(str, Enum):
    """A host's stage in the gate; the value is its name in a progress line."""

    DNS = "DNS"
    SSH = "SSH"
    KUBECTL = "kubectl exec"
    READY = "ready"


@dataclass(slots=True, eq=False)
class HostState:
    """The state of one host; ``reason`` is short and constant, ``detail`` is the full text.

    ``hint`` overrides the check's own. ``resolved`` stays true once the name has resolved.
    ``error`` is reported at the deadline in place of the generic finding.
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
        """Whether the host has passed the gate."""
        return self.stage is Stage.READY

    def set(self, stage: Stage, reason: str = "", detail: str = "") -> None:
        """Set the stage, and why the host has not passed it."""
        self.stage, self.reason, self.detail = stage, reason, detail


def states(hosts: Sequence[Host]) -> tuple[HostState, ...]:
    """Create the initial states; labels are short host names if those are unique."""
    labels = short_names([host.name for host in hosts])
    return tuple(HostState(host, labels[host.name]) for host in hosts)


def line(known: Sequence[HostState]) -> str:
    """Format a progress line: how many hosts are ready, and what the others wait for."""
    ready = sum(state.ready for state in known)
    return f"{ready}/{len(known)} hosts ready, {missing(known)}".removesuffix(", ")


def missing(known: Sequence[HostState]) -> str:
    """Describe what the hosts are waiting for; empty if all are ready."""
    waiting = [state for state in known if not state.ready]
    groups = grouped(((state.stage, state.reason), state.label) for state in waiting)
    # Hosts past DNS first, then larger groups first.
    order = sorted(groups.items(), key=lambda item: (item[0][0] is Stage.DNS, -len(item[1])))
    parts = [
        f"{stage.value} {'for' if stage is Stage.DNS else 'on'} {first_few(labels, _MAX_NAMES)}"
        + (f" ({reason})" if reason else "")
        for (stage, reason), labels in order
    ]
    return f"waiting for {first_few(parts)}" if parts else ""


def finding(state: HostState) -> Finding:
    """Make the finding for a host that isn't ready, with its latest reason in full."""
    return state.error or failed(
        "workers-unreachable" if state.resolved else "names-unresolved",
        f"{state.stage.value}: {state.detail or state.reason or 'no answer yet'}",
        host=state.host.name,
        hint=state.hint,
    )


# At most a line a second at first, and fewer as the wait grows: pods' logs are kept, and a
# ten-minute wait should fit on one screen.
_MIN_PAUSE_S, _MAX_PAUSE_S, _PAUSE_SHARE = 1.0, 28.0, 0.2
# Log an unchanged line this often: silence looks like a hang.
_SILENCE_S: Final = 90.0


async def report(known: Sequence[HostState], left: Callable[[], float]) -> None:
    """Log the progress line when it changes, and periodically if it doesn't.

    Args:
        known: the gate's hosts.
        left: returns the seconds until the gate times out.
    """
    started, logged, logged_at = time.monotonic(), "", 0.0
    while True:
        # Sleep first: a cluster that is already ready needs no line.
        waited = time.monotonic() - started
        await asyncio.sleep(min(_MAX_PAUSE_S, max(_MIN_PAUSE_S, waited * _PAUSE_SHARE)))
        text, now = line(known), time.monotonic()
        if text != logged or now - logged_at >= _SILENCE_S:
            logged, logged_at = text, now
            rest = left()
            message = f"{text}; gives up in {lasting(rest)}"
            count = {"ready": sum(state.ready for state in known), "total": len(known)}
            log.info("gate", message, **count, gives_up_in=round(rest, 1))


def final(attempts: Sequence[Attempt], login: Login) -> Finding | None:
    """Return a login failure that retrying can't fix; None if there is none.

    On hostNetwork the node's own sshd answers on port 22 while ours may still come up on another
    port. So a host key mismatch is final only if the server would accept the job's key, which a
    node's sshd doesn't, or if every port has answered.

    Args:
        attempts: this round's, one per address and port; all have failed.
        login: the launcher's key and the pinned host key.
    """
    for attempt in attempts:
        address = attempt.target.address
        same = [item for item in attempts if item.target.address == address]
        everyone = all(item.outcome.greeted for item in same)
        # The SSH banner shows mpiboot's own server: not a node's sshd, but another job's worker.
        another_job = WORKER in attempt.greeting
        # With the ssh client the offered host key is unknown: it may be a proxy's.
        differs = attempt.outcome is Outcome.HOST_KEY_DIFFERS and attempt.fingerprint
        if differs and (attempt.welcome or everyone or another_job):
            return _other_host_key(attempt, login)
        is_the_jobs = attempt.fingerprint == login.host_fingerprint
        denied = attempt.outcome in (Outcome.KEY_REFUSED, Outcome.PASSWORD_ASKED)
        if denied and (is_the_jobs or everyone):
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


# Only reported, not fatal: some images install or fetch something before starting sshd.
LONG: Final = 20.0
_LIKELY_NO_ARGS: Final = ": likely the worker lacks `args: [worker]`"
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
# A proxy that waits for the client's first bytes is silent; one that expects mTLS closes.
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
    """Record why login to a host failed, and a hint.

    Args:
        state: the host's state, which is updated.
        best: the attempt that got furthest.
        attempts: all of this round's, one per address and port.
        waited: seconds for which connections have been refused.
        gone: text to append if the name no longer resolves.
    """
    cause, state.hint = _explain(best, waited)
    detail = f"{_results(attempts)}{gone}"
    if cause:
        detail += f"; {cause.lstrip(':, ')}"
    state.set(Stage.SSH, best.outcome.value + cause, detail)


def _results(attempts: Sequence[Attempt]) -> str:
    """List the result per address and port, grouping ports with the same result."""

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
    """Return a short constant suffix for the outcome, and a hint.

    The suffix may be empty; with a hint of None the check's own applies.
    """
    if attempt.outcome is Outcome.REFUSED:
        return _LIKELY_NO_ARGS if waited >= LONG else "", _COMMAND_HINT
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
    """Return a hint for a name without an address; None for the check's own hint.

    A hostNetwork pod gets the node's resolv.conf unless its dnsPolicy is set, and the node's
    nameserver can't resolve cluster names (Kubernetes, "Pod's DNS Policy").
    """
    if reason not in (NoAddress.NXDOMAIN, NoAddress.NO_RECORD) or cluster_domain(conf.search):
        return None
    has = f"search {' '.join(conf.search)}" if conf.search else "no search list"
    return (
        f"this pod's /etc/resolv.conf is not the cluster's ({has}): with `hostNetwork: true` a pod "
        "needs `dnsPolicy: ClusterFirstWithHostNet`"
    )
