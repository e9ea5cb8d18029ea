"""TCP between workers: which pairs dial each other, by what protocol, and what results mean. Pure.

The gate has shown that the launcher reaches every worker. MPI's ranks connect to each other, and
where that is dropped both Open MPIs wait in silence, for ever (seen with 4.1.4 and 5.0.7; so they
do where source NAT changes a peer's address, after a message that an inbound connection "has been
dropped"). Hosts dial each other in the order
in which they become ready, so that no more than three are kept for those that come later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from mpiboot.core.addresses import bare
from mpiboot.core.checks import failed
from mpiboot.core.model import Finding, Level

# Every later host tries one of the first, in turn, beside the one that came just before it.
KEPT: Final = 2
_SHOWN: Final = 4
_UNCHECKED: Final = "Open MPI would drop such connections, of this MPI it is not known"
_ONE_WAY: Final = (
    "the other way they connect, and MPI hangs only where a rank of the first has to send first"
)


def partners(number: int) -> tuple[int, ...]:
    """Give the hosts with which a host tries both ways, all counted by when they became ready.

    A ring in which each host meets the one before it, and a chord to one of the first: whatever way
    hosts are cut into two groups, some pair lies across.
    """
    return tuple(sorted({number - 1, number % KEPT} - {number, -1}))


class Reached(str, Enum):
    """How one dial went; the value is the word for it where it was made.

    ``worker/probe.py`` says what each of its words means. ``UNKNOWN``: nothing there can dial, or
    there was no time for it.
    """

    ANSWERED = "answered"
    CONNECTED = "connected"
    SILENT = "silent"
    REFUSED = "refused"
    NO_ROUTE = "no-route"
    UNKNOWN = "unknown"

    @property
    def blocked(self) -> bool:
        """Whether nothing can come through; who listens there is known to be alive."""
        return self in (Reached.SILENT, Reached.REFUSED, Reached.NO_ROUTE)


# Others gave no answer, in a time that is shown.
WHY: Final = {
    Reached.REFUSED: "the connection is refused, although that port is listened at",
    Reached.NO_ROUTE: "no route",
}
WORDS: Final = {item.value: item for item in Reached}
_ANSWER: Final = 4  # words


@dataclass(frozen=True, slots=True)
class Dial:
    """One worker's dial to another, by their names in the hostfile, and its result.

    ``address`` and ``port`` are dialled, within ``seconds``; ``own`` is the address from which,
    and ``seen`` the one that the far end saw, empty where that isn't known. ``ssh`` is the result
    of dialling the far end's SSH port, None where that was not tried.
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

    @property
    def request(self) -> str:
        """The line for ``worker/probe.py``."""
        return f"dial {self.address} {self.port} {self.ssh_port} {self.seconds:g}"

    def answered(self, line: str) -> Dial | None:
        """Add the result from the answer of ``worker/probe.py``; None where it is none."""
        words = line.split()
        if len(words) != _ANSWER or words[0] not in WORDS:
            return None
        own, seen = ("" if word == "-" else word for word in words[1:3])
        ssh = WORDS.get(words[3])
        return replace(self, reached=WORDS[words[0]], own=own, seen=seen, ssh=ssh)

    @property
    def pair(self) -> frozenset[str]:
        """The two hosts, whoever of them dials."""
        return frozenset((self.source, self.target))

    @property
    def translated(self) -> bool:
        """Whether the far end saw another address than the one that the host has."""
        return bool(self.own and self.seen) and bare(self.own) != bare(self.seen)


def blocked_on_data(dials: Iterable[Dial]) -> str:
    """Say which dials to data addresses failed between workers that connect on the control link."""
    lines = sorted(_blocked(item) for item in dials if item.reached.blocked)
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return f"{lines[0]}{more}; the control addresses answer" if lines else ""


def findings(
    dials: Sequence[Dial],
    hosts: Collection[str],
    optional: str = "",
    *,
    checks_address: bool = True,
) -> tuple[Finding, ...]:
    """Judge the workers' dials: a failure where MPI hangs for certain.

    Args:
        dials: every dial that has a result.
        hosts: who is to get a daemon; other pairs count for nothing.
        optional: why MPI may do without these connections; empty: it can't.
        checks_address: whether this MPI drops a connection from another address than the peer's.
    """
    known = frozenset(hosts)
    tried = [item for item in dials if item.pair <= known]
    good = {item.pair for item in tried if not item.reached.blocked and not item.translated}
    found = []
    blocked = [item for item in tried if item.reached.blocked]
    translated = [item for item in tried if item.translated]
    for check, say, wrong, harmless in (
        ("worker-pairs", _blocked, blocked, ""),
        ("worker-address", _translated, translated, "" if checks_address else _UNCHECKED),
    ):
        if not wrong:
            continue
        # A rank that gets a connection sends by it, too.
        wrong.sort(key=lambda item: item.pair in good)
        why = optional or harmless or (_ONE_WAY if wrong[0].pair in good else "")
        lines = tuple(map(say, wrong))
        message = lines[0]
        if len(lines) > 1:
            message += f"; {len(lines) - 1} more of {len(tried)} that were tried"
        if why:
            message += f" (a warning only: {why})"
        level = Level.WARN if why else Level.FAIL
        evidence = lines[1:_SHOWN]
        found.append(failed(check, message, evidence=evidence, level=level))
    return tuple(found)


def _blocked(item: Dial) -> str:
    how = WHY.get(item.reached, f"no answer in {item.seconds:g} s, twice")
    message = f"{item.source} can't reach {item.target} ({item.address} port {item.port}): {how}"
    if item.ssh is not None:
        does = "does not answer either" if item.ssh.blocked else "answers"
        message += f"; its SSH port {item.ssh_port} {does}"
    return message


def _translated(item: Dial) -> str:
    return (
        f"{item.target} sees connections of {item.source} come from {item.seen}, not from its own "
        f"address {item.own}"
    )
