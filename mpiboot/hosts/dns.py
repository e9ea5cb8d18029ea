"""Name resolution: the addresses of a host, or the reason why it has none.

``getaddrinfo`` comes first: it covers /etc/hosts and every other source in nsswitch.conf, and in a
ready cluster it is all that is needed. It waits 5 s for each lost packet, so a name that it has not
resolved within 0.1 s is also queried by dnspython, and the first address wins: neither ssh nor
mpirun resolves the name again. The nameservers' replies also show why a name has no address. The
gate does the retrying.

dnspython is given the absolute names that glibc queries, in glibc's order except for full cluster
names (``w-0.job.ns.svc``): its own search stops at the first name without an address record.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mpiboot.core.addresses import cluster_domain, is_address, long_form
from mpiboot.job.hostfile import LABEL, LONGEST_NAME
from mpiboot.system import processes
from mpiboot.system.programs import in_thread

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver as Dnspython

# glibc's limits (resolv.conf(5)).
_MAX_NAMESERVERS: Final = 3
_MAX_NDOTS: Final = 15


@dataclass(frozen=True, slots=True)
class ResolvConf:
    """The content of resolv.conf, with glibc's defaults; ``search`` has no trailing dots."""

    nameservers: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    ndots: int = 1


def parse_resolv_conf(text: str) -> ResolvConf:
    """Parse resolv.conf as glibc does: the last search line wins."""
    servers, search, ndots = list[str](), list[str](), 1
    for line in text.splitlines():
        word, *values = re.split(r"[#;]", line, maxsplit=1)[0].split() or [""]
        if word == "nameserver":
            servers += values[:1]
        elif word in ("search", "domain"):
            search = [domain for value in values if (domain := value.rstrip("."))]
        elif word == "options":
            for option in values:
                if re.fullmatch(r"ndots:\d{1,9}", option, re.ASCII):
                    ndots = min(int(option.partition(":")[2]), _MAX_NDOTS)
    return ResolvConf(tuple(servers[:_MAX_NAMESERVERS]), tuple(search), ndots)


RESOLV_CONF: Final = Path("/etc/resolv.conf")


def search_names(name: str, conf: ResolvConf) -> tuple[str, ...]:
    """Return the absolute names that a resolver queries, in its order (resolv.conf(5))."""
    if name.endswith("."):
        return (name,)
    searched = tuple(f"{name}.{domain}." for domain in conf.search)
    ordered = (f"{name}.", *searched) if name.count(".") >= conf.ndots else (*searched, f"{name}.")
    return tuple(each for each in ordered if not is_malformed(each))  # too long with the domain


def is_malformed(name: str) -> bool:
    """Whether this can't be a host name in DNS."""
    bare = name.removesuffix(".")
    labels = bare.split(".")
    return len(bare) > LONGEST_NAME or not all(LABEL.fullmatch(label) for label in labels)


class NoAddress(str, Enum):
    """Why a name has no address, in order of precedence."""

    MALFORMED = "not a host name"
    TIMEOUT = "the nameserver does not answer"
    NO_NAMESERVER = "no nameserver can be reached or gives a valid answer"
    SERVFAIL = "SERVFAIL"
    NO_RECORD = "no address record"
    NXDOMAIN = "NXDOMAIN"
    REFUSED = "REFUSED"
    SYSTEM = "the system resolver finds no address"


_RANK: Final = tuple(NoAddress)


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """A name's addresses in the resolver's order, or the reason why it has none.

    ``detail`` is the full explanation.
    """

    addresses: tuple[str, ...] = ()
    reason: NoAddress = NoAddress.SYSTEM
    detail: str = ""


def no_address(replies: dict[str, NoAddress], conf: ResolvConf) -> DnsAnswer:
    """Reduce the replies for all queried names to one reason; ``detail`` lists them all.

    Names in the cluster's domain take precedence: others go to upstream nameservers that may be
    unreachable, and their failure shows nothing about a pod.
    """
    domain = cluster_domain(conf.search)
    in_cluster = [why for each, why in replies.items() if domain and each.endswith(f".{domain}.")]
    worst = min(in_cluster or replies.values(), key=_RANK.index)
    texts = []
    for reason in dict.fromkeys((worst, *sorted(replies.values(), key=_RANK.index))):
        alike = [each for each, why in replies.items() if why is reason]
        where = "" if len(alike) == len(replies) else f" for {', '.join(alike)}"
        texts.append(f"{reason.value}{where}")
    detail = f"{'; '.join(texts)} (asked {', '.join(conf.nameservers)})"
    return DnsAnswer((), worst, detail)


_DNS_PORT: Final = 53
# Bounds open sockets: a lookup has one per family, a getaddrinfo thread one per nameserver.
_MAX_LOOKUPS: Final = 64
_MAX_THREADS: Final = 16
# Timeouts in seconds: of one try, after which the query is sent again, and of a name in total.
# dnspython drops later replies, so a timeout lengthens the next queries' tries.
_TRY_S, _MAX_TRY_S = 0.5, 4.0
_NAME_TIMEOUT_S: Final = 3.0
# How long to wait for the system resolver alone, and again after a negative reply from the
# nameservers: it may have other sources.
_SYSTEM_FIRST_S: Final = 0.1
_SYSTEM_AFTER_S: Final = 1.0


def system_addresses(name: str) -> tuple[str, ...]:
    """Query the system resolver (blocking); empty if there is no address."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(item[4][0]) for item in found))


class Resolver:
    """Resolves names with bounded concurrency."""

    def __init__(
        self,
        resolv_conf: Path = RESOLV_CONF,
        *,
        system: Callable[[str], tuple[str, ...]] = system_addresses,
        port: int = _DNS_PORT,
        families: Sequence[str] = ("AAAA", "A"),
    ) -> None:
        """Read the configuration; ``families`` are the record types to query."""
        self.conf = parse_resolv_conf(processes.text(resolv_conf))
        self._system = system
        self._port = port
        self._families = families
        self._free = asyncio.Semaphore(_MAX_LOOKUPS)
        self._try, self._by_tcp = _TRY_S, False
        self._lookups: dict[str, asyncio.Future[tuple[str, ...]]] = {}
        self._threads = asyncio.Semaphore(_MAX_THREADS)

    async def resolve(self, name: str) -> DnsAnswer:
        """Resolve a name, without retrying; the first address found wins."""
        if is_address(name):
            return DnsAnswer((name,))
        if is_malformed(name):
            return DnsAnswer(reason=NoAddress.MALFORMED, detail=f"{name!r} is not a host name")
        async with self._free:
            if name not in self._lookups:
                self._lookups[name] = asyncio.ensure_future(self._query_system(name))
                self._lookups[name].add_done_callback(lambda _: self._lookups.pop(name))
            system = self._lookups[name]
            if addresses := await _within(_SYSTEM_FIRST_S, system):
                return DnsAnswer(addresses)
            answer = await self._query(name)
            if not answer.addresses and (addresses := await _within(_SYSTEM_AFTER_S, system)):
                return DnsAnswer(addresses)
            return answer

    async def _query_system(self, name: str) -> tuple[str, ...]:
        """Query the system resolver."""
        async with self._threads:
            try:
                return await in_thread(self._system, name)
            except RuntimeError:  # the pod's PID limit is reached
                return ()

    async def _query(self, name: str) -> DnsAnswer:
        """Query the nameservers as glibc does."""
        if not self.conf.nameservers:
            message = f"resolv.conf names no nameserver, and {NoAddress.SYSTEM.value}"
            return DnsAnswer(reason=NoAddress.SYSTEM, detail=message)
        # Imported only when needed: a ready cluster never is.
        import dns.asyncresolver  # noqa: PLC0415
        import dns.inet  # noqa: PLC0415

        dnspython = dns.asyncresolver.Resolver(configure=False)
        dnspython.nameservers = [
            each for each in self.conf.nameservers if dns.inet.is_address(each)
        ]
        dnspython.port, dnspython.timeout = self._port, self._try
        dnspython.lifetime = max(_NAME_TIMEOUT_S, 2 * self._try)
        # The full name of a Service or pod exists only in the cluster's domain: querying it first
        # saves the search list's earlier queries, for each host of a job.
        long = long_form(name, cluster_domain(self.conf.search))
        candidates = sorted(search_names(name, self.conf), key=lambda each: each != f"{long}.")
        replies: dict[str, NoAddress] = {}
        for candidate in candidates:
            queries = (self._records(dnspython, candidate, kind) for kind in self._families)
            found = await asyncio.gather(*queries)
            addresses = tuple(address for listed, _ in found for address in listed)
            if addresses:
                return DnsAnswer(addresses)
            replies[candidate] = min((why for _, why in found), key=_RANK.index)
            if replies[candidate] is NoAddress.TIMEOUT:
                self._try = min(2 * dnspython.timeout, _MAX_TRY_S)
                break  # as glibc does; an immediate refusal, maybe of AAAA alone, costs no time
        return no_address(replies, self.conf)

    async def _records(
        self, dnspython: Dnspython, name: str, kind: str
    ) -> tuple[tuple[str, ...], NoAddress]:
        """Return the addresses of an absolute name, or the reason why it has none."""
        import dns.exception  # noqa: PLC0415
        import dns.resolver  # noqa: PLC0415

        by_tcp = self._by_tcp
        try:
            answer = await dnspython.resolve(
                name, kind, tcp=by_tcp, raise_on_no_answer=False, search=False
            )
        except dns.resolver.NXDOMAIN:
            return (), NoAddress.NXDOMAIN
        except dns.exception.Timeout:
            self._by_tcp = not by_tcp  # maybe only the other one gets through
            return (), NoAddress.TIMEOUT
        except dns.resolver.NoNameservers as why:
            # For each nameserver: address, whether over TCP, port, error, reply.
            failed = [str(item[3]) for item in why.kwargs["errors"]]
            codes = (NoAddress.SERVFAIL, NoAddress.REFUSED)
            reason = next((code for code in codes if code.value in failed), NoAddress.NO_NAMESERVER)
            return (), reason
        except dns.exception.DNSException:
            return (), NoAddress.NO_NAMESERVER
        return tuple(item.to_text() for item in answer.rrset or ()), NoAddress.NO_RECORD


async def _within(seconds: float, system: asyncio.Future[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the system resolver's addresses; empty if it takes longer."""
    await asyncio.wait((system,), timeout=seconds)
    return system.result() if system.done() else ()
