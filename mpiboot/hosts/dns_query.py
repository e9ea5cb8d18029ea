"""One DNS query: sent again soon if a packet was lost, over TCP if need be.

dnspython parses each answer. It doesn't send: its resolver retries after seconds, as glibc does,
and drops an answer to the query before; and with ``dns.asyncquery`` a thousand queries take half
as much CPU time again (0.37 s in place of 0.25 s), most of it to build their messages.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import dns.message


class NoAddress(str, Enum):
    """Why a name has no address; the first that applies is reported."""

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
        """Whether another query can't help."""
        return self is NoAddress.MALFORMED


_RANK: Final = tuple(NoAddress)


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """The addresses of a name in the system's order, or the reason why it has none.

    ``retry_after`` is how many seconds a cache may keep the negative answer; ``searched`` are the
    absolute names that were queried; ``detail`` is the reason in full.
    """

    name: str
    addresses: tuple[str, ...] = ()
    reason: NoAddress | None = None
    retry_after: float | None = None
    searched: tuple[str, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DnsReply:
    """The reply for one absolute name."""

    name: str
    addresses: tuple[str, ...] = ()
    reason: NoAddress | None = None
    server: str = ""
    ttl: float | None = None

    @property
    def rank(self) -> int:
        """Place in the order of reasons; an address comes last."""
        return len(_RANK) if self.reason is None else _RANK.index(self.reason)


def joined(replies: Sequence[DnsReply]) -> DnsReply:
    """Join the replies for A and AAAA: their addresses, else the worst reason."""
    addresses = tuple(address for reply in replies for address in reply.addresses)
    if addresses:
        return DnsReply(replies[0].name, addresses, server=replies[0].server)
    lives = [reply.ttl for reply in replies if reply.ttl is not None]
    worst = min(replies, key=lambda reply: reply.rank)
    return replace(worst, ttl=min(lives) if lives else None)


def summary(name: str, replies: Sequence[DnsReply], domain: str = "") -> DnsAnswer:
    """Join the replies for a name's search list, with every reason in the detail.

    Names in the cluster's ``domain`` count first: others are answered by nameservers that the
    cluster may not reach, and their failure is no evidence about a pod.
    """
    searched = tuple(reply.name for reply in replies)
    found = next((reply for reply in replies if reply.addresses), None)
    if found is not None:
        return DnsAnswer(name, found.addresses, searched=searched)
    own = [reply for reply in replies if domain and reply.name.endswith(f".{domain}.")]
    worst = min(own or replies, key=lambda reply: reply.rank)
    lives = [reply.ttl for reply in replies if reply.ttl is not None]
    expires = min(lives) if lives else None
    texts = []
    ranked = (worst, *sorted(replies, key=lambda reply: reply.rank))
    for reason in dict.fromkeys(reply.reason for reply in ranked):
        names = [reply.name for reply in replies if reply.reason is reason]
        text = reason.value if reason is not None else ""
        texts.append(text if len(names) == len(replies) else f"{text} for {', '.join(names)}")
    detail = f"{'; '.join(texts)} (asked {worst.server})"
    if expires:
        detail += f", may be cached for {expires:g} s"
    return DnsAnswer(name, (), worst.reason, expires, searched, detail)


# A cluster's nameserver answers in milliseconds. Where it is slower, or this launcher is slow to
# read, a query is repeated after a multiple of what recent answers have taken. Later answers still
# count, since each socket stays open.
_AGAIN: Final = 0.15
_LATEST_AGAIN: Final = 0.5
_TIMES: Final = 3
_LONGER: Final = 1.5
# After so many packets without an answer TCP is tried too: UDP may be blocked.
_LOST: Final = 4
_HEADER: Final = 12
_TYPES: Final = {"A": 1, "AAAA": 28}
_FINAL: Final = (None, NoAddress.NXDOMAIN, NoAddress.NO_RECORD)

# The most queries per second for all names together: a fifteenth of what one replica of CoreDNS
# answers on one core, some 30,000
# (github.com/coredns/deployment, kubernetes/Scaling_CoreDNS.md).
PER_SECOND: Final = 2000.0
# The burst: a first lookup of a thousand names with a search list, both families.
AT_ONCE: Final = 8000.0


class Allowance:
    """Limits the rate of queries, and adapts the interval of retries."""

    def __init__(self, per_second: float = PER_SECOND, at_once: float = AT_ONCE) -> None:
        self.by_tcp = False  # the last answer came by TCP, with UDP silent
        self._usual = 0.0
        self._per_second = per_second
        self._most = self._left = at_once
        self._at: float | None = None

    def wait(self, count: float, now: float) -> float:
        """Reserve so many queries; give the seconds to wait before they are sent."""
        passed = now - self._at if self._at is not None else 0.0
        self._at = now
        self._left = min(self._most, self._left + passed * self._per_second) - count
        return max(0.0, -self._left / self._per_second)

    async def take(self, count: float = 1) -> None:
        """Wait until so many queries may be sent."""
        wait = self.wait(count, asyncio.get_running_loop().time())
        if wait:
            await asyncio.sleep(wait)

    def answered(self, seconds: float) -> None:
        """Note how long an answer took, retries included."""
        self._usual += (seconds - self._usual) / 8

    @property
    def again(self) -> float:
        """The seconds after which a query is repeated."""
        return min(max(_AGAIN, _TIMES * self._usual), _LATEST_AGAIN)


@dataclass(frozen=True, slots=True)
class _Received:
    """What a nameserver sent; ``None``: it can't be reached that way."""

    server: str
    tcp: bool
    response: bytes | None


class _Socket(asyncio.DatagramProtocol):
    """A query's UDP socket for one nameserver."""

    def __init__(self, server: str, received: asyncio.Queue[_Received]) -> None:
        self._server, self._received = server, received

    def datagram_received(self, data: bytes, addr: object) -> None:  # noqa: ARG002 - connected
        self._received.put_nowait(_Received(self._server, tcp=False, response=data))

    def error_received(self, exc: Exception) -> None:  # noqa: ARG002 - the port is closed
        self._received.put_nowait(_Received(self._server, tcp=False, response=None))


class _Query:
    """One query in progress, sent to each nameserver in turn."""

    def __init__(
        self, name: str, kind: str, servers: Sequence[str], port: int, *, tcp: bool
    ) -> None:
        self._name, self._kind = name, kind
        self._servers, self._port = servers, port
        self._wire = _message(name, kind)
        self._tcp = tcp
        self._received: asyncio.Queue[_Received] = asyncio.Queue()
        self._sockets: dict[str, asyncio.DatagramTransport] = {}
        self._by_tcp: dict[str, asyncio.Task[None]] = {}
        self._by_tcp_alone = False
        self._closed: set[tuple[str, bool]] = set()
        self._failed: dict[str, DnsReply] = {}

    async def ask(self, patience: float, allowance: Allowance) -> DnsReply:
        try:
            return await self._ask(patience, allowance)
        finally:
            for socket in self._sockets.values():
                socket.close()
            for task in self._by_tcp.values():
                task.cancel()

    async def _ask(self, patience: float, allowance: Allowance) -> DnsReply:
        now = asyncio.get_running_loop().time
        begun, pause, turn = now(), allowance.again, 0
        while (left := begun + patience - now()) > 0:
            servers = [item for item in self._servers if item not in self._failed]
            if not servers:
                break
            server = servers[turn % len(servers)]
            await allowance.take()
            if self._tcp or turn >= _LOST or allowance.by_tcp:
                self._start_tcp(server)
            if not self._tcp:
                await self._send(server)
            turn += 1
            reply = await self._listen(min(pause, left))
            if reply is not None:
                allowance.answered(now() - begun)
                allowance.by_tcp = self._by_tcp_alone and not self._tcp
                return reply
            pause *= _LONGER
        silent = DnsReply(self._name, reason=NoAddress.TIMEOUT, server=self._servers[0])
        replies = [self._failed.get(item, silent) for item in self._servers]
        return min(replies, key=lambda reply: reply.rank)

    async def _send(self, server: str) -> None:
        try:
            if server not in self._sockets:
                loop = asyncio.get_running_loop()
                self._sockets[server], _ = await loop.create_datagram_endpoint(
                    lambda: _Socket(server, self._received), remote_addr=(server, self._port)
                )
            self._sockets[server].sendto(self._wire)
        except (OSError, ValueError):  # a ValueError where resolv.conf names no valid address
            self._received.put_nowait(_Received(server, tcp=False, response=None))

    def _start_tcp(self, server: str) -> None:
        if server not in self._by_tcp:
            self._by_tcp[server] = asyncio.ensure_future(self._ask_by_tcp(server))

    async def _ask_by_tcp(self, server: str) -> None:
        try:
            reader, writer = await asyncio.open_connection(server, self._port)
            try:
                writer.write(len(self._wire).to_bytes(2, "big") + self._wire)
                size = int.from_bytes(await reader.readexactly(2), "big")
                data = await reader.readexactly(size)
            finally:
                writer.close()
        except (OSError, ValueError, EOFError):
            self._received.put_nowait(_Received(server, tcp=True, response=None))
        else:
            self._received.put_nowait(_Received(server, tcp=True, response=data))

    async def _listen(self, seconds: float) -> DnsReply | None:
        """Read what arrives in time; None without a final answer."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while len(self._failed) < len(self._servers):
            try:
                received = await asyncio.wait_for(self._received.get(), end - loop.time())
            except asyncio.TimeoutError:
                return None
            self._by_tcp_alone = received.tcp
            if received.response is None:
                reply = self._unreachable(received)
            else:
                reply = self._read(received.server, received.response)
            if reply is None:
                continue
            if reply.reason in _FINAL:
                return reply
            self._failed[received.server] = reply
            return None  # the next nameserver is tried at once
        return None

    def _unreachable(self, received: _Received) -> DnsReply | None:
        """Note that UDP or TCP is closed; the other may be open."""
        server = received.server
        self._closed.add((server, received.tcp))
        if not received.tcp:
            self._start_tcp(server)
        if not self._tcp and not {(server, True), (server, False)} <= self._closed:
            return None
        return DnsReply(self._name, reason=NoAddress.NO_NAMESERVER, server=server)

    def _read(self, server: str, data: bytes) -> DnsReply | None:
        # Loaded while names are waited for: a cluster that is ready never needs it.
        import dns.exception  # noqa: PLC0415
        import dns.flags  # noqa: PLC0415
        import dns.message  # noqa: PLC0415

        # dnspython itself would load these only at the first address, which delays it.
        import dns.rdtypes.IN.A  # noqa: PLC0415
        import dns.rdtypes.IN.AAAA  # noqa: PLC0415

        if data[:2] != self._wire[:2]:
            return None  # no answer to this query
        try:
            answer = dns.message.from_wire(data)
        except (dns.exception.DNSException, ValueError):
            return DnsReply(self._name, reason=NoAddress.BAD_ANSWER, server=server)
        asked = data[_HEADER : len(self._wire)].lower()
        if not answer.flags & dns.flags.QR or asked != self._wire[_HEADER:].lower():
            return None
        if answer.flags & dns.flags.TC:
            self._tcp = True  # the next answer would be too long for UDP, too
            self._start_tcp(server)
            return None
        return _read(self._name, self._kind, server, answer)


async def ask(
    name: str,
    kind: str,
    servers: Sequence[str],
    *,
    port: int,
    patience: float,
    allowance: Allowance,
    tcp: bool = False,
) -> DnsReply:
    """Query one absolute name's records of one type until a nameserver has a final answer.

    Args:
        name: a well-formed name with its final dot.
        kind: the record type, ``A`` or ``AAAA``.
        servers: the nameservers' addresses, in the order in which they are tried.
        port: their port.
        patience: the seconds after which they count as silent.
        allowance: limits the rate.
        tcp: no UDP (``use-vc`` of resolv.conf(5)).

    Returns:
        The reply; a failure is a reply with a reason.
    """
    return await _Query(name, kind, servers, port, tcp=tcp).ask(patience, allowance)


def _message(name: str, kind: str) -> bytes:
    """Write a query as it is sent (RFC 1035 4.1): a header and one question, no compression."""
    header = secrets.token_bytes(2) + b"\1\0\0\1" + bytes(6)  # recursion desired, one question
    labels = (label.encode() for label in name.rstrip(".").split("."))
    written = b"".join(bytes([len(label)]) + label for label in labels)
    return header + written + struct.pack(">BHH", 0, _TYPES[kind], 1)


def _read(name: str, kind: str, server: str, reply: dns.message.Message) -> DnsReply:
    import dns.rcode  # noqa: PLC0415 - loaded by then
    import dns.rdatatype  # noqa: PLC0415

    wanted, soa = dns.rdatatype.from_text(kind), dns.rdatatype.SOA
    code = reply.rcode()
    if code == dns.rcode.NOERROR:
        found = (item for rrset in reply.answer if rrset.rdtype == wanted for item in rrset)
        addresses = tuple(item.to_text() for item in found)
        if addresses:
            return DnsReply(name, addresses, server=server)
    reasons = {
        dns.rcode.NOERROR: NoAddress.NO_RECORD,
        dns.rcode.NXDOMAIN: NoAddress.NXDOMAIN,
        dns.rcode.SERVFAIL: NoAddress.SERVFAIL,
        dns.rcode.REFUSED: NoAddress.REFUSED,
    }
    # RFC 2308 5: the TTL of a negative answer is the smaller of these two; a cache counts the
    # record's own TTL down, so that it is what is left.
    lives = [min(rrset.ttl, rrset[0].minimum) for rrset in reply.authority if rrset.rdtype == soa]
    ttl = float(min(lives)) if lives else None
    return DnsReply(name, (), reasons.get(code, NoAddress.BAD_ANSWER), server, ttl)
