"""When an SSH server's no is for good, and how that is told.

Pure: it judges what attempts have found, and attempts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mpiboot.core.errors import MpibootError, error
from mpiboot.ssh.attempt import Attempt, Outcome

_WORKER: Final = "mpiboot"


def final(attempts: Sequence[Attempt], ports: int, host_fingerprint: str) -> Attempt | None:
    """Find the answer of this round that waiting can't change; None where there is none.

    On hostNetwork the node's own sshd answers on port 22 while ours may still come up on another
    port. So a server that doesn't prove that it is the job's says something final only when it
    would have let us in with the job's key, which a node's doesn't; when no other port is left to
    try; or when every port has answered.

    Args:
        attempts: what each address and port said; none of them let us in.
        ports: how many ports there are for each address.
        host_fingerprint: of the host key that proves that a server is the job's.
    """
    for attempt in attempts:
        address = attempt.target.address
        same = [item for item in attempts if item.target.address == address]
        everyone = len(same) >= ports and all(item.outcome.greeted for item in same)
        # A worker's mpiboot says so in its greeting: it is no node's sshd but holds another key.
        another_job = _WORKER in attempt.greeting
        if attempt.outcome is Outcome.HOST_KEY_DIFFERS and (
            attempt.welcome or everyone or another_job
        ):
            return attempt
        is_the_jobs = attempt.fingerprint == host_fingerprint
        if attempt.outcome.denied and (is_the_jobs or everyone):
            return attempt
    return None


def detail(attempts: Sequence[Attempt]) -> str:
    """Say what each port of each address answered; ports that said the same are one."""
    groups: dict[tuple[str, str], list[int]] = {}
    for attempt in attempts:
        said = attempt.outcome.value + (f" ({attempt.said})" if attempt.said else "")
        if attempt.outcome is Outcome.HOST_KEY_DIFFERS:
            said = f"{attempt.outcome.value} ({attempt.fingerprint})"
        groups.setdefault((attempt.target.address, said), []).append(attempt.target.port)
    return "; ".join(
        f"{said} on {address} port{'s' if len(ports) > 1 else ''} {', '.join(map(str, ports))}"
        for (address, said), ports in groups.items()
    )


def as_error(
    attempt: Attempt, fingerprint: str, public_line: str, host_fingerprint: str
) -> MpibootError:
    """Turn a final answer into the error that ends the gate.

    Args:
        attempt: the answer.
        fingerprint: of the launcher's key.
        public_line: the launcher's public key, as authorized_keys should hold it.
        host_fingerprint: of the pinned host key.
    """
    target = attempt.target
    where = f"{target.host} ({target.address} port {target.port}, {attempt.greeting})"
    if attempt.outcome is Outcome.HOST_KEY_DIFFERS:
        known = "it would accept the job's key" if attempt.welcome else "it refuses the job's key"
        if _WORKER in attempt.greeting and not attempt.welcome:
            return error(
                "host-key-differs",
                f"mpiboot on {where} holds another key, {attempt.fingerprint}, than the job's, "
                f"{host_fingerprint}",
                host=target.host,
                evidence=(known, f"it shows: {attempt.host_key}"),
                hint="launcher and workers must mount the same key Secret",
            )
        return error(
            "host-key-differs",
            f"sshd on {where} has a host key of its own, {attempt.fingerprint}, "
            f"not the job's, {host_fingerprint}",
            host=target.host,
            evidence=(known, f"it shows: {attempt.host_key}"),
            hint="add `args: [worker]` to the worker so that mpiboot runs there, "
            "or set MPIBOOT_HOST_KEYS=accept-new",
        )
    what = (
        "asks for a password and takes no keys"
        if attempt.outcome is Outcome.PASSWORD_ASKED
        else f"refuses the launcher's key {fingerprint}"
    )
    return error(
        "ssh-denied",
        f"sshd on {where} {what} for user {target.user}",
        host=target.host,
        evidence=(
            *((f"it says: {attempt.said}",) if attempt.said else ()),
            f"authorized_keys of {target.user} there should hold: {public_line}",
        ),
        hint="launcher and workers must mount the same key Secret, the user must exist there, "
        "and the account must not be locked",
    )
