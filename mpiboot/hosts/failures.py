"""What failed logins mean: which are final, and what each points to.

Pure: it judges the attempts' results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mpiboot.core.checks import MpibootError, error
from mpiboot.hosts.dns import NoAddress, ResolvConf
from mpiboot.job import names
from mpiboot.ssh.attempt import WORKER, Attempt, Outcome


def final(attempts: Sequence[Attempt], host_fingerprint: str) -> Attempt | None:
    """Find the attempt of this round whose failure is final; None where there is none.

    On hostNetwork the node's own sshd answers on port 22 while ours may still come up on another
    port. So a server without the job's host key is final only if it would accept the job's key,
    which a node's doesn't, or if every port has answered.

    Args:
        attempts: one for each address and port; all have failed.
        host_fingerprint: of the job's host key.
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
            return attempt
        is_the_jobs = attempt.fingerprint == host_fingerprint
        if attempt.outcome.denied and (is_the_jobs or everyone):
            return attempt
    return None


def detail(attempts: Sequence[Attempt]) -> str:
    """Describe the result of each address and port; ports with the same one are grouped."""
    groups: dict[tuple[str, str], list[int]] = {}
    for attempt in attempts:
        words = attempt.message
        if attempt.outcome is Outcome.HOST_KEY_DIFFERS:
            words = attempt.fingerprint or words
        message = attempt.outcome.value + (f" ({words})" if words else "")
        groups.setdefault((attempt.target.address, message), []).append(attempt.target.port)
    return "; ".join(
        f"{message} on {address} port{'s' if len(ports) > 1 else ''} {', '.join(map(str, ports))}"
        for (address, message), ports in groups.items()
    )


def as_error(
    attempt: Attempt, fingerprint: str, public_line: str, host_fingerprint: str
) -> MpibootError:
    """Turn a final failure into the error that ends the gate.

    Args:
        attempt: the failed attempt.
        fingerprint: of the launcher's key.
        public_line: the launcher's public key, as authorized_keys should hold it.
        host_fingerprint: of the pinned host key.
    """
    target = attempt.target
    where = f"{target.host} ({target.address} port {target.port}, {attempt.greeting})"
    if attempt.outcome is Outcome.HOST_KEY_DIFFERS:
        known = f"it {'would accept' if attempt.welcome else 'refuses'} the job's key"
        what, hint = f"sshd on {where} has a host key of its own", None
        if WORKER in attempt.greeting and not attempt.welcome:
            what = f"mpiboot on {where} has another key"
            hint = "launcher and workers must mount the same key Secret"
        return error(
            "host-key-differs",
            f"{what}, {attempt.fingerprint}, not the job's, {host_fingerprint}",
            host=target.host,
            evidence=(known, f"it shows: {attempt.host_key}"),
            hint=hint,
        )
    by = f" (named by {target.user_by})" if target.user_by else ""
    what = (
        "asks for a password and does not accept public keys"
        if attempt.outcome is Outcome.PASSWORD_ASKED
        else f"refuses the launcher's key {fingerprint}"
    )
    return error(
        "ssh-denied",
        f"sshd on {where} {what} for user {target.user}{by}",
        host=target.host,
        evidence=(
            *((f"it says: {attempt.message}",) if attempt.message else ()),
            f"authorized_keys of {target.user} there should hold: {public_line}",
        ),
    )


# Only reported: some images install or fetch something before they start their sshd.
LONG: Final = 20.0
_COMMAND_HINT: Final = (
    "does the worker's container run mpiboot? A `command:` in its spec replaces it, and without "
    "command and args the MPI Operator starts the image's own sshd: write `args: [worker]`, or "
    "`args: [worker, --, PROGRAM]`; else see the worker's log"
)
# A packet filter drops, or answers with an ICMP error that reads as a missing route.
_FILTERED: Final = frozenset({Outcome.TIMEOUT, Outcome.UNREACHABLE})
_FILTERED_HINT: Final = (
    "port {port} of {host} is filtered: its pod is there, and refuses connections to port {other}. "
    "A NetworkPolicy or firewall must let the launcher connect to port {port} of the workers"
)
_LOST: Final = "are large packets lost (MTU)?"
_LOST_HINT: Final = (
    "try `ping -M do -s 1472 ADDRESS` between nodes, and give the pod network the MTU that its "
    "path carries (CNI configuration); or the worker is overloaded"
)
_HANGS: Final = "do the login shell's start files hang, or are large packets lost (MTU)?"
_HANGS_HINT: Final = (
    "before a command bash reads ~/.bashrc (zsh ~/.zshenv, csh ~/.cshrc): in the worker, as that "
    f"user, `bash -x ~/.bashrc </dev/null` shows where it waits. If it does not: {_LOST_HINT}"
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


def why(attempt: Attempt, attempts: Sequence[Attempt], refused: float) -> tuple[str, str | None]:
    """Give what to add to the outcome, in a few words that don't vary, and a hint.

    An empty addition adds nothing; no hint: the check's own.

    Args:
        attempt: the attempt that came furthest.
        attempts: those of the same round, one for each address and port.
        refused: the seconds for which every port has refused connections.
    """
    target = attempt.target
    if attempt.outcome is Outcome.REFUSED:
        long = f" for {LONG:g} s: likely the worker lacks `args: [worker]`"
        return long if refused >= LONG else "", _COMMAND_HINT
    if attempt.outcome is Outcome.HOST_KEY_DIFFERS:
        return ", not this job's", None
    refusing = [
        other.target.port
        for other in attempts
        if other.outcome is Outcome.REFUSED and other.target.address == target.address
    ]
    if attempt.outcome in _FILTERED and refusing:
        hint = _FILTERED_HINT.format(port=target.port, host=target.host, other=min(refusing))
        return ", though other ports refuse", hint
    if attempt.stalled:
        started = attempt.outcome is Outcome.COMMAND_FAILED
        cause, hint = (_HANGS, _HANGS_HINT) if started else (_LOST, _LOST_HINT)
        return f": {cause}", hint
    if attempt.outcome in (Outcome.SILENT, Outcome.CLOSED) and not attempt.greeting:
        return "", _NO_GREETING_HINT
    return "", _SSH_HINT.format(target=target) if attempt.outcome.greeted else None


def unresolved(reason: NoAddress | None, conf: ResolvConf) -> str | None:
    """Give a hint for a name without an address; None: the check's own hint.

    A pod on the node's network gets the node's resolv.conf unless its dnsPolicy is set, and the
    node's nameserver doesn't have the cluster's names (Kubernetes, "Pod's DNS Policy").
    """
    if reason not in (NoAddress.NXDOMAIN, NoAddress.NO_RECORD) or names.cluster_domain(conf.search):
        return None
    has = f"search {' '.join(conf.search)}" if conf.search else "no search list"
    return (
        f"this pod's /etc/resolv.conf is not the cluster's ({has}): with `hostNetwork: true` a pod "
        "needs `dnsPolicy: ClusterFirstWithHostNet`"
    )
