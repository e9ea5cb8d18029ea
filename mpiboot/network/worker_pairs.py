"""Worker TCP checks: which pairs dial, the probe protocol, and the verdicts. No I/O.

The gate has shown that the launcher reaches every worker. MPI's daemons connect to the launcher and
its ranks to each other; if those packets are dropped, Open MPI hangs (seen with 4.1.4 and 5.0.7).
It also hangs if source NAT changes a peer's address, after a message that an inbound connection
"has been dropped".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeVar

from mpiboot.core.addresses import bare
from mpiboot.core.checks import failed
from mpiboot.core.model import Finding, Level

LAUNCHER: Final = "the launcher"
_SHOWN: Final = 4
_UNCHECKED: Final = "Open MPI would drop such connections, of this MPI it is not known"
_ONE_WAY: Final = (
    "the other way they connect, and MPI hangs only where a rank of the first has to send first"
)
_UNPROVEN: Final = "what accepts it may pass MPI's connections on"
_PROXY: Final = (
    "keep launcher and workers out of the service mesh, or the ports of MPIBOOT_PORT_RANGE; "
    "MPIBOOT_PAIR_CHECK=0 skips this check"
)
T = TypeVar("T")


def neighbours(hosts: Sequence[T]) -> list[tuple[T, T]]:
    """List the pairs that dial each other: a ring in hostfile order.

    Any split of the hosts into two groups separates some pair.
    """
    pairs = [*zip(hosts, (*hosts[1:], *hosts[:1]), strict=True)]
    return pairs if len(hosts) > 2 else pairs[: len(hosts) - 1]  # noqa: PLR2004


class Reached(str, Enum):
    """The result of one dial; the value is the probe's word for it.

    ``worker/probe.py`` defines the words. ``UNKNOWN``: that host has nothing to dial with, or
    time ran out.
    """

    ANSWERED = "answered"
    CONNECTED = "connected"
    SILENT = "silent"
    REFUSED = "refused"
    NO_ROUTE = "no-route"
    UNKNOWN = "unknown"

    @property
    def blocked(self) -> bool:
        """Whether the path is blocked; the listener is known to be up."""
        return self in (Reached.SILENT, Reached.REFUSED, Reached.NO_ROUTE)


# The rest are reported as timeouts.
WHY: Final = {
    Reached.REFUSED: "the connection is refused, although that port is listened at: a firewall or "
    "NetworkPolicy that rejects, as kube-router's do",
    Reached.NO_ROUTE: "no route",
    Reached.CONNECTED: "something accepts the connection, and it is not this launch's listener: a "
    "proxy does that, such as a service mesh's sidecar",
}
WORDS: Final = {item.value: item for item in Reached}
_ANSWER_WORDS: Final = 4


@dataclass(frozen=True, slots=True)
class Dial:
    """A worker's TCP dial to another worker or the launcher, by host name, and its result.

    ``seconds`` is the timeout; ``own`` is the local source address and ``seen`` the one that the
    peer saw, empty if unknown. ``ssh`` is the result of dialling the peer's SSH port, None if not
    tried.
    """

    source: str
    target: str
    address: str
    port: int
    seconds: float
    reached: Reached = Reached.UNKNOWN
    own: str = ""
    seen: str = ""
    ssh_port: int = 0
    ssh: Reached | None = None

    def answered(self, line: str) -> Dial:
        """Return a copy with the probe's reply parsed in; unchanged if the reply is malformed."""
        words = line.split()
        if len(words) != _ANSWER_WORDS or words[0] not in WORDS:
            return self
        own, seen = ("" if word == "-" else word for word in words[1:3])
        ssh = WORDS.get(words[3])
        return replace(self, reached=WORDS[words[0]], own=own, seen=seen, ssh=ssh)

    @property
    def pair(self) -> frozenset[str]:
        """The two hosts, regardless of direction."""
        return frozenset((self.source, self.target))

    @property
    def translated(self) -> bool:
        """Whether the target worker saw a source address other than this host's (NAT)."""
        known = self.own and self.seen and self.target != LAUNCHER
        return bool(known) and bare(self.own) != bare(self.seen)


def blocked_on_data(dials: Iterable[Dial]) -> str:
    """Describe failed dials to data addresses whose control addresses answer."""
    good = (Reached.ANSWERED, Reached.UNKNOWN)
    lines = sorted(_not_reached(item) for item in dials if item.reached not in good)
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return f"{lines[0]}{more}; the control addresses answer" if lines else ""


def findings(
    dials: Sequence[Dial],
    hosts: Collection[str],
    optional: str = "",
    *,
    daemons_optional: str = "",
    checks_address: bool = True,
) -> tuple[Finding, ...]:
    """Judge the workers' dials: a failure where MPI hangs for certain.

    Args:
        dials: every dial that has a result.
        hosts: hosts that get an MPI daemon; other pairs are ignored.
        optional: why MPI may not need worker-to-worker connections; empty: it does.
        daemons_optional: why its daemons may not need connections to the launcher.
        checks_address: whether this MPI drops connections from an unexpected source address.
    """
    known = frozenset((*hosts, LAUNCHER))
    tried = [item for item in dials if item.pair <= known]
    daemons = [item for item in tried if item.target == LAUNCHER]
    pairs = [item for item in tried if item.target != LAUNCHER]
    good = {item.pair for item in pairs if not item.reached.blocked and not item.translated}

    def judge(
        check: str, among: Sequence[Dial], wrong: Iterable[Dial], why: str, hint: str | None = None
    ) -> Iterator[Finding]:
        # One-way blocks last: a rank also sends over a connection that it accepted.
        wrong = sorted(wrong, key=lambda item: item.pair in good)
        if not wrong:
            return
        why = why or (_ONE_WAY if wrong[0].pair in good else "")
        lines = tuple(map(_translated if check == "worker-address" else _not_reached, wrong))
        message = lines[0]
        if len(lines) > 1:
            message += f"; {len(lines) - 1} more of {len(among)} that were tried"
        if why:
            message += f" (a warning only: {why})"
        level = Level.WARN if why else Level.FAIL
        yield failed(check, message, evidence=lines[1:_SHOWN], level=level, hint=hint)

    to_launcher = (item for item in daemons if item.reached.blocked)
    blocked = (item for item in pairs if item.reached.blocked)
    proxied = (item for item in tried if item.reached is Reached.CONNECTED)
    translated = (item for item in pairs if item.translated)
    address = optional or ("" if checks_address else _UNCHECKED)
    return (
        *judge("worker-pairs", daemons, to_launcher, daemons_optional),
        *judge("worker-pairs", pairs, blocked, optional),
        *judge("worker-address", pairs, translated, address),
        *judge("worker-pairs", tried, proxied, _UNPROVEN, _PROXY),
    )


def _not_reached(item: Dial) -> str:
    where = f"{item.target} ({item.address} port {item.port})"
    how = WHY.get(item.reached, f"no answer in {item.seconds:g} s, twice")
    can = "may not reach" if item.reached is Reached.CONNECTED else "can't reach"
    message = f"{item.source} {can} {where}: {how}"
    if item.ssh is not None:
        does = "does not answer either" if item.ssh.blocked else "answers"
        message += f"; its SSH port {item.ssh_port} {does}"
    return message


def _translated(item: Dial) -> str:
    return (
        f"{item.target} sees connections of {item.source} come from {item.seen}, not from its own "
        f"address {item.own}"
    )
