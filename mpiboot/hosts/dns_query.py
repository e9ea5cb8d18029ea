"""One question to the nameservers: sent again soon where a packet was lost, over TCP if need be.

dnspython reads each answer. It doesn't ask: its own retries wait for seconds, as glibc's do, and
forget an answer that comes a moment after the next one was sent; and to write the one message
that is needed here takes it longer than all the rest.
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


# A nameserver of a cluster answers in milliseconds. One that is slower, or a launcher that is
# slow to read, is waited for so many times as long as answers have taken of late; and an answer
# that is later still is heard all the same, since each socket stays open until then.
_AGAIN: Final = 0.15
_LATEST_AGAIN: Final = 0.5
_TIMES: Final = 3
_LONGER: Final = 1.5
# So many packets are lost by then. Where UDP is blocked, TCP may not be.
_LOST: Final = 4
_HEADER: Final = 12
_TYPES: Final = {"A": 1, "AAAA": 28}
_FINAL: Final = (None, NoAddress.NXDOMAIN, NoAddress.NO_RECORD)

# A launcher asks no more than this in a second, all names together: a thousand that are waited for
# cost a fifteenth of what one replica of CoreDNS answers on one core, some 30,000
# (github.com/coredns/deployment, kubernetes/Scaling_CoreDNS.md).
PER_SECOND: Final = 2000.0
# At once: the first look at a thousand names with a search list, both families.
AT_ONCE: Final = 8000.0


class Allowance:
    """How much may be asked, so much at once and so much each second; and how soon again."""

    def __init__(self, per_second: float = PER_SECOND, at_once: float = AT_ONCE) -> None:
        self.by_tcp = False  # the last answer came so, where UDP was silent
        self._usual = 0.0
        self._per_second = per_second
        self._most = self._left = at_once
        self._at: float | None = None

    def wait(self, count: float, now: float) -> float:
        """Take so many questions, and tell for how many seconds to wait with them."""
        passed = now - self._at if self._at is not None else 0.0
        self._at = now
        self._left = min(self._most, self._left + passed * self._per_second) - count
        return max(0.0, -self._left / self._per_second)

    async def take(self, count: float = 1) -> None:
        """Wait until so many questions may be asked."""
        wait = self.wait(count, asyncio.get_running_loop().time())
        if wait:
            await asyncio.sleep(wait)

    def answered(self, seconds: float) -> None:
        """Note how long an answer took, with all that was lost before it."""
        self._usual += (seconds - self._usual) / 8

    @property
    def again(self) -> float:
        """After how many seconds a question is sent again."""
        return min(max(_AGAIN, _TIMES * self._usual), _LATEST_AGAIN)


@dataclass(frozen=True, slots=True)
class _Heard:
    """What came from a nameserver; ``None``: it can't be reached that way."""

    server: str
    tcp: bool
    response: bytes | None


class _Socket(asyncio.DatagramProtocol):
    """A question's way to one nameserver by UDP."""

    def __init__(self, server: str, heard: asyncio.Queue[_Heard]) -> None:
        self._server, self._heard = server, heard

    def datagram_received(self, data: bytes, addr: object) -> None:  # noqa: ARG002 - connected
        self._heard.put_nowait(_Heard(self._server, tcp=False, response=data))

    def error_received(self, exc: Exception) -> None:  # noqa: ARG002 - the port is closed
        self._heard.put_nowait(_Heard(self._server, tcp=False, response=None))


class _Question:
    """One question while it is asked, of each nameserver in turn."""

    def __init__(
        self, name: str, kind: str, servers: Sequence[str], port: int, *, tcp: bool
    ) -> None:
        self._name, self._kind = name, kind
        self._servers, self._port = servers, port
        self._wire = _message(name, kind)
        self._tcp = tcp
        self._heard: asyncio.Queue[_Heard] = asyncio.Queue()
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
        message = [self._failed.get(item, silent) for item in self._servers]
        return min(message, key=lambda reply: reply.rank)

    async def _send(self, server: str) -> None:
        try:
            if server not in self._sockets:
                loop = asyncio.get_running_loop()
                self._sockets[server], _ = await loop.create_datagram_endpoint(
                    lambda: _Socket(server, self._heard), remote_addr=(server, self._port)
                )
            self._sockets[server].sendto(self._wire)
        except (OSError, ValueError):  # a ValueError where resolv.conf names no valid address
            self._heard.put_nowait(_Heard(server, tcp=False, response=None))

    def _start_tcp(self, server: str) -> None:
        if server not in self._by_tcp:
            self._by_tcp[server] = asyncio.ensure_future(self._ask_by_tcp(server))

    async def _ask_by_tcp(self, server: str) -> None:
        try:
            reader, writer = await asyncio.open_connection(server, self._port)
            try:
                writer.write(len(self._wire).to_bytes(2, "big") + self._wire)
                size = int.from_bytes(await reader.readexactly(2), "big")
                message = await reader.readexactly(size)
            finally:
                writer.close()
        except (OSError, ValueError, EOFError):
            self._heard.put_nowait(_Heard(server, tcp=True, response=None))
        else:
            self._heard.put_nowait(_Heard(server, tcp=True, response=message))

    async def _listen(self, seconds: float) -> DnsReply | None:
        """Hear what comes within a time; None where nobody has said yes or no."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while len(self._failed) < len(self._servers):
            try:
                heard = await asyncio.wait_for(self._heard.get(), end - loop.time())
            except asyncio.TimeoutError:
                return None
            self._by_tcp_alone = heard.tcp
            if heard.response is None:
                reply = self._unreachable(heard)
            else:
                reply = self._read(heard.server, heard.response)
            if reply is None:
                continue
            if reply.reason in _FINAL:
                return reply
            self._failed[heard.server] = reply
            return None  # the next one is asked at once
        return None

    def _unreachable(self, heard: _Heard) -> DnsReply | None:
        """Note that one way is closed; the other may be open."""
        server = heard.server
        self._closed.add((server, heard.tcp))
        if not heard.tcp:
            self._start_tcp(server)
        if not self._tcp and not {(server, True), (server, False)} <= self._closed:
            return None
        return DnsReply(self._name, reason=NoAddress.NO_NAMESERVER, server=server)

    def _read(self, server: str, message: bytes) -> DnsReply | None:
        # Loaded while names are being waited for: a cluster that is ready never needs it.
        import dns.exception  # noqa: PLC0415
        import dns.flags  # noqa: PLC0415
        import dns.message  # noqa: PLC0415

        # dnspython itself would load these for the first good answer, for which everybody waits.
        import dns.rdtypes.IN.A  # noqa: PLC0415
        import dns.rdtypes.IN.AAAA  # noqa: PLC0415

        if message[:2] != self._wire[:2]:
            return None  # not the answer to this question
        try:
            answer = dns.message.from_wire(message)
        except (dns.exception.DNSException, ValueError):
            return DnsReply(self._name, reason=NoAddress.BAD_ANSWER, server=server)
        asked = message[_HEADER : len(self._wire)].lower()
        if not answer.flags & dns.flags.QR or asked != self._wire[_HEADER:].lower():
            return None
        if answer.flags & dns.flags.TC:
            self._tcp = True  # it will be too long for UDP the next time, too
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
    """Ask for one absolute name's records of one kind until a nameserver says yes or no.

    Args:
        name: the name with its final dot, none that ``is_malformed``.
        kind: the record's type, ``A`` or ``AAAA``.
        servers: the nameservers' addresses, in the order in which they are asked.
        port: theirs.
        patience: the seconds after which they count as silent.
        allowance: what may be sent.
        tcp: no UDP (``use-vc`` of resolv.conf(5)).

    Returns:
        The answer; every failure is one too, with its reason.
    """
    return await _Question(name, kind, servers, port, tcp=tcp).ask(patience, allowance)


def _message(name: str, kind: str) -> bytes:
    """Write a question as it is sent (RFC 1035 4.1): a header and one question, no compression."""
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
    # RFC 2308 5: a negative answer lives as long as the smaller of these two; a cache counts the
    # record's own life down, so that it tells what is left.
    lives = [min(rrset.ttl, rrset[0].minimum) for rrset in reply.authority if rrset.rdtype == soa]
    ttl = float(min(lives)) if lives else None
    return DnsReply(name, (), reasons.get(code, NoAddress.BAD_ANSWER), server, ttl)
