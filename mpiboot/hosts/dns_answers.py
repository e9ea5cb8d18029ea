"""What nameservers said of one host name, and which of several reasons is told.

Pure records; nothing here asks anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final


class NoAddress(str, Enum):
    """Why a name has no address; in the order in which one is told rather than another."""

    MALFORMED = "not a host name"
    TIMEOUT = "the nameserver does not answer"
    NO_NAMESERVER = "no nameserver can be reached"
    SERVFAIL = "SERVFAIL"
    BAD_ANSWER = "the nameserver's answer can't be read"
    NO_RECORD = "no address record"
    NXDOMAIN = "NXDOMAIN"
    REFUSED = "REFUSED"
    SYSTEM = "the system resolver finds no address"

    @property
    def permanent(self) -> bool:
        """Whether asking again can't help."""
        return self is NoAddress.MALFORMED


_RANK: Final = tuple(NoAddress)


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """What is known of one name: its addresses in the system's order, or the reason why none.

    ``retry_after`` is how many seconds a cache may keep the negative answer; ``searched`` are the
    absolute names that were asked for; ``detail`` is the reason in full.
    """

    name: str
    addresses: tuple[str, ...] = ()
    reason: NoAddress | None = None
    retry_after: float | None = None
    searched: tuple[str, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DnsReply:
    """What came back for one absolute name."""

    name: str
    addresses: tuple[str, ...] = ()
    reason: NoAddress | None = None
    server: str = ""
    ttl: float | None = None

    @property
    def rank(self) -> int:
        """Place in the order in which reasons are told; an address comes last."""
        return len(_RANK) if self.reason is None else _RANK.index(self.reason)


def joined(replies: Sequence[DnsReply]) -> DnsReply:
    """Make the answers for A and AAAA one: an address is a yes, else the worst reason counts."""
    addresses = tuple(address for reply in replies for address in reply.addresses)
    if addresses:
        return DnsReply(replies[0].name, addresses, server=replies[0].server)
    lives = [reply.ttl for reply in replies if reply.ttl is not None]
    worst = min(replies, key=lambda reply: reply.rank)
    return replace(worst, ttl=min(lives) if lives else None)


def summary(name: str, replies: Sequence[DnsReply], domain: str = "") -> DnsAnswer:
    """Make the answers for one name's search list one, with every reason in its detail.

    Names within the cluster's ``domain`` count first: what lies outside is asked of nameservers
    that the cluster may not reach, and their failure says nothing about a pod.
    """
    searched = tuple(reply.name for reply in replies)
    found = next((reply for reply in replies if reply.addresses), None)
    if found is not None:
        return DnsAnswer(name, found.addresses, searched=searched)
    own = [reply for reply in replies if domain and reply.name.endswith(f".{domain}.")]
    worst = min(own or replies, key=lambda reply: reply.rank)
    lives = [reply.ttl for reply in replies if reply.ttl is not None]
    expires = min(lives) if lives else None
    said = []
    ranked = (worst, *sorted(replies, key=lambda reply: reply.rank))
    for reason in dict.fromkeys(reply.reason for reply in ranked):
        names = [reply.name for reply in replies if reply.reason is reason]
        text = reason.value if reason is not None else ""
        said.append(text if len(names) == len(replies) else f"{text} for {', '.join(names)}")
    detail = f"{'; '.join(said)} (asked {worst.server})"
    if expires:
        detail += f", may be cached for {expires:g} s"
    return DnsAnswer(name, (), worst.reason, expires, searched, detail)
