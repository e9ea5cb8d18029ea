"""Host names: whether the system resolver knows an address, and if not, why.

What counts as resolved is what ``getaddrinfo`` says, because ``ssh`` asks it too; the questions
that this module sends itself tell why a name fails. It decides nothing, and it never waits for a
name to appear: that is the gate's.

dnspython writes, sends and reads each question (also by TCP). Its resolver is not used, for it
would explain another search than glibc's: it ends the search list at a name without an address
record, reads neither ``attempts`` nor the limits of resolv.conf(5), waits for a silent nameserver
as long as for any other, and tells what each nameserver said only where all have failed. Nor is
``resolve_chaining()``, which makes up how long a negative answer lives where no record says it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mpiboot.addresses import is_address
from mpiboot.job import names
from mpiboot.observe.dns_answers import DnsAnswer, DnsReply, NoAddress, joined, summary
from mpiboot.observe.pod import HOSTS, hosts_lines
from mpiboot.observe.resolv_conf import ResolvConf, is_malformed, parse, search_names

if TYPE_CHECKING:
    import dns.message

RESOLV_CONF: Final = Path("/etc/resolv.conf")
_INET6: Final = Path("/proc/net/if_inet6")

_DNS_PORT: Final = 53
_LOOKUPS: Final = 64
_THREADS: Final = 16
# The system resolver says nothing for 5 s and more per lost packet; names don't wait for that.
_SYSTEM_PATIENCE: Final = 1.0
# The system may know what no nameserver does (nsswitch.conf), so it is asked again so often.
_SECOND_OPINION: Final = 5.0
_FIRST_TRY: Final = 1.0


def read_resolv_conf(path: Path = RESOLV_CONF) -> ResolvConf:
    """Read resolv.conf as glibc does; a missing file names no nameserver."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ResolvConf()
    return parse(text)


def system_addresses(name: str) -> tuple[str, ...]:
    """Ask the system resolver; it blocks. No address is an empty answer."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(item[4][0]) for item in found))


def _families() -> tuple[str, ...]:
    """Give the record types worth asking for; AAAA only where a link has such an address."""
    try:
        scopes = {line.split()[3] for line in _INET6.read_text(encoding="ascii").splitlines()}
    except (OSError, IndexError):
        scopes = set()
    # 00 is global scope, which unique local addresses have too; 10 loopback and 20 link local.
    return ("A", "AAAA") if "00" in scopes else ("A",)


class Resolver:
    """Asks for names; bounded, and never the same question twice at once."""

    def __init__(
        self,
        resolv_conf: Path = RESOLV_CONF,
        hosts: Path = HOSTS,
        *,
        system: Callable[[str], tuple[str, ...]] = system_addresses,
        port: int = _DNS_PORT,
        families: Sequence[str] | None = None,
    ) -> None:
        self.conf = read_resolv_conf(resolv_conf)
        self._hosts = hosts
        self._system = system
        self._port = port
        self._families = tuple(families) if families is not None else _families()
        self._lookups = asyncio.Semaphore(_LOOKUPS)
        self._threads = asyncio.Semaphore(_THREADS)
        self._running: dict[str, asyncio.Future[DnsAnswer]] = {}
        self._asking: dict[str, asyncio.Future[tuple[str, ...]]] = {}
        self._opinions: dict[str, float] = {}
        self._known: dict[str, tuple[str, ...]] = {}

    async def ask(self, name: str) -> DnsAnswer:
        """Ask once for one name.

        The system resolver is asked first: in a cluster that is ready its yes is all that is
        needed. Where it says no, the nameservers are asked why; where they say yes, the system
        resolver must agree before the name counts as resolved.
        """
        if is_address(name):
            return DnsAnswer(name, (name,))
        if is_malformed(name):
            return DnsAnswer(
                name, reason=NoAddress.MALFORMED, detail=f"{name!r} is not a host name"
            )
        running = self._running.get(name)
        if running is None:
            running = asyncio.ensure_future(self._ask(name))
            self._running[name] = running
            running.add_done_callback(lambda _: self._running.pop(name, None))
        return await asyncio.shield(running)

    async def _ask(self, name: str) -> DnsAnswer:
        async with self._lookups:
            now = asyncio.get_running_loop().time()
            if now - self._opinions.get(name, float("-inf")) >= _SECOND_OPINION:
                self._opinions[name] = now
                addresses = await self.ask_system(name)
                if addresses:
                    return self._resolved(name, addresses)
            answer = await self._explain(name)
            if answer.addresses:
                addresses = await self.ask_system(name)
                if addresses:
                    return self._resolved(name, addresses, answer.searched)
                return replace(
                    answer,
                    addresses=(),
                    reason=NoAddress.SYSTEM,
                    detail=f"{NoAddress.SYSTEM.value}, though {answer.searched[-1]} has "
                    f"{', '.join(answer.addresses)}: the nameservers disagree",
                )
            if name in self._known:
                answers = ", ".join(self._known[name])
                return replace(answer, detail=f"{answer.detail}; it was {answers} a moment ago")
            return answer

    def _resolved(
        self, name: str, addresses: tuple[str, ...], searched: tuple[str, ...] = ()
    ) -> DnsAnswer:
        self._known[name] = addresses
        return DnsAnswer(name, addresses, searched=searched)

    async def ask_system(self, name: str) -> tuple[str, ...]:
        """Ask the system resolver in a thread; nothing where it takes too long."""
        asking = self._asking.get(name)
        if asking is None:
            asking = asyncio.ensure_future(self._in_thread(name))
            self._asking[name] = asking
            asking.add_done_callback(lambda _: self._asking.pop(name, None))
        done, _ = await asyncio.wait((asking,), timeout=_SYSTEM_PATIENCE)
        return asking.result() if done else ()

    async def _in_thread(self, name: str) -> tuple[str, ...]:
        # Threads of our own that end with the process: an executor's are joined at exit, and one
        # that waits for a dead nameserver would hold up the end for half a minute.
        loop = asyncio.get_running_loop()
        try:
            await asyncio.wait_for(self._threads.acquire(), _SYSTEM_PATIENCE)
        except asyncio.TimeoutError:
            return ()
        try:
            found: asyncio.Future[tuple[str, ...]] = loop.create_future()

            def tell(addresses: tuple[str, ...]) -> None:
                if not found.done():
                    found.set_result(addresses)

            def work() -> None:
                addresses = self._system(name)
                try:
                    loop.call_soon_threadsafe(tell, addresses)
                except RuntimeError:  # the loop is closed: nobody waits for this answer any more
                    return

            try:
                threading.Thread(target=work, name=f"resolve {name}", daemon=True).start()
            except RuntimeError:  # the pod's limit of processes is reached
                return ()
            return await found
        finally:
            self._threads.release()

    async def _explain(self, name: str) -> DnsAnswer:
        """Ask /etc/hosts and the nameservers as the system does, and keep what each said."""
        listed = self._in_hosts(name)
        if listed:
            return DnsAnswer(name, listed, searched=(name,))
        if not self.conf.nameservers:
            said = "resolv.conf names no nameserver, and the system resolver finds no address"
            return DnsAnswer(name, reason=NoAddress.SYSTEM, detail=said)
        replies: list[DnsReply] = []
        for candidate in search_names(name, self.conf):
            reply = await self._ask_nameservers(candidate)
            replies.append(reply)
            if reply.addresses:
                break
            # A nameserver that is silent for one name is silent for the next: glibc stops too.
            if reply.reason in (NoAddress.TIMEOUT, NoAddress.NO_NAMESERVER):
                break
        return summary(name, replies, names.cluster_domain(self.conf.search))

    def _in_hosts(self, name: str) -> tuple[str, ...]:
        wanted = name.removesuffix(".").lower()
        found = [words[0] for words in hosts_lines(self._hosts) if wanted in words[1:]]
        return tuple(dict.fromkeys(found))

    async def _ask_nameservers(self, name: str) -> DnsReply:
        """Ask the nameservers in turn for one absolute name, until one says yes or no."""
        last = DnsReply(name, reason=NoAddress.NO_NAMESERVER)
        for attempt in range(self.conf.attempts):
            # A lost packet is no reason to sit still for the 5 s that are the system's default.
            patience = min(self.conf.timeout, _FIRST_TRY * 2**attempt)
            for server in self.conf.nameservers:
                kinds = (query(name, kind, server, self._port, patience) for kind in self._families)
                last = joined(await asyncio.gather(*kinds))
                if last.reason in (None, NoAddress.NXDOMAIN, NoAddress.NO_RECORD):
                    return last
        return last


async def query(name: str, kind: str, server: str, port: int, patience: float) -> DnsReply:
    """Send one question to one nameserver and read the answer; every failure is a reply."""
    # Loaded while names are being waited for: a cluster that is ready never needs it.
    import dns.asyncquery  # noqa: PLC0415
    import dns.exception  # noqa: PLC0415
    import dns.message  # noqa: PLC0415

    # dnspython itself would load these for the first good answer, for which everybody waits.
    import dns.rdtypes.IN.A  # noqa: PLC0415
    import dns.rdtypes.IN.AAAA  # noqa: PLC0415

    try:
        question = dns.message.make_query(name, kind)
        reply, _ = await asyncio.wait_for(
            dns.asyncquery.udp_with_fallback(
                question, server, timeout=patience, port=port, ignore_unexpected=True
            ),
            patience + 1,  # TCP after a truncated answer has no time limit of its own in the whole
        )
    except (dns.exception.Timeout, asyncio.TimeoutError):
        return DnsReply(name, reason=NoAddress.TIMEOUT, server=server)
    except (OSError, ValueError):  # a ValueError where resolv.conf names no valid address
        return DnsReply(name, reason=NoAddress.NO_NAMESERVER, server=server)
    except (dns.exception.DNSException, EOFError):
        return DnsReply(name, reason=NoAddress.BAD_ANSWER, server=server)
    return _read(name, kind, server, reply)


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
