"""Name resolution: the addresses of a host, or the reason why it has none.

``getaddrinfo`` is asked first: in a cluster that is ready its answer is all that is needed. It
waits 5 s and more for each lost packet, so a name that it has not resolved within a tenth of a
second is also looked up at the nameservers (``dns_query``), and the first address counts: neither
ssh nor mpirun resolves the name again. These queries also show why a name has no address. Waiting
for names to appear is the gate's.

dnspython's resolver is not used, since it does not search as glibc does: it ends the search list at
a name without an address record, reads neither ``attempts`` nor the limits of resolv.conf(5), waits
for a silent nameserver as long as for any other, and reports each nameserver's error only if all
have failed. ``resolve_chaining()`` invents a TTL for a negative answer without an SOA record.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mpiboot.core.addresses import is_address
from mpiboot.hosts import dns_query
from mpiboot.hosts.dns_query import DnsAnswer, DnsReply, NoAddress, joined, summary
from mpiboot.job import names
from mpiboot.job.hostfile import LABEL, LONGEST_NAME
from mpiboot.network.pod import HOSTS, hosts_lines

# glibc reads no more (resolv.conf(5)).
_NAMESERVERS: Final = 3
_MOST_DOTS: Final = 15
_LONGEST_TIMEOUT: Final = 30
_MOST_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class ResolvConf:
    """The content of resolv.conf, with glibc's defaults; ``search`` has no final dots."""

    nameservers: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    ndots: int = 1
    timeout: float = 5.0
    attempts: int = 2
    use_vc: bool = False


def parse_resolv_conf(text: str) -> ResolvConf:
    """Parse resolv.conf as glibc does: the last of several search lines counts."""
    found = ResolvConf()
    for line in text.splitlines():
        words = re.split(r"[#;]", line, maxsplit=1)[0].split()
        match words[:1]:
            case ["nameserver"] if len(words) > 1:
                servers = (*found.nameservers, words[1])[:_NAMESERVERS]
                found = replace(found, nameservers=servers)
            case ["search" | "domain"]:
                domains = tuple(word.rstrip(".") for word in words[1:])
                found = replace(found, search=tuple(filter(None, domains)))
            case ["options"]:
                for option in words[1:]:
                    found = _with_option(found, option)
            case _:
                continue
    return found


def _with_option(conf: ResolvConf, option: str) -> ResolvConf:
    name, _, value = option.partition(":")
    if name == "use-vc":
        return replace(conf, use_vc=True)
    if not value.isascii() or not value.isdigit():
        return conf
    match name:
        case "ndots":
            return replace(conf, ndots=min(int(value), _MOST_DOTS))
        case "timeout":
            return replace(conf, timeout=float(min(max(int(value), 1), _LONGEST_TIMEOUT)))
        case "attempts":
            return replace(conf, attempts=min(max(int(value), 1), _MOST_ATTEMPTS))
        case _:
            return conf


def host_sources(nsswitch: str) -> tuple[str, ...]:
    """Give the sources of host names in nsswitch.conf, or glibc's default.

    Without an entry glibc uses /etc/hosts and DNS, as does musl, which never reads this file.
    """
    for line in nsswitch.splitlines():
        database, colon, text = line.partition("#")[0].partition(":")
        if colon and database.strip() == "hosts":
            return tuple(re.sub(r"\[[^]]*\]", " ", text).split())
    return ("files", "dns")


def search_names(name: str, conf: ResolvConf) -> tuple[str, ...]:
    """Give the absolute names that a resolver queries, in its order (resolv.conf(5))."""
    if name.endswith("."):
        return (name,)
    listed = tuple(f"{name}.{domain}." for domain in conf.search)
    if name.count(".") >= conf.ndots:
        return (f"{name}.", *listed)
    return (*listed, f"{name}.")


def is_malformed(name: str) -> bool:
    """Tell whether this can't be a host name in DNS."""
    bare = name.removesuffix(".")
    labels = bare.split(".")
    return len(bare) > LONGEST_NAME or not all(LABEL.fullmatch(label) for label in labels)


RESOLV_CONF: Final = Path("/etc/resolv.conf")
NSSWITCH: Final = Path("/etc/nsswitch.conf")
_INET6: Final = Path("/proc/net/if_inet6")

_DNS_PORT: Final = 53
_LOOKUPS: Final = 64
_THREADS: Final = 16
# The most sockets of all lookups together, where no other limit applies, and the share of the
# system resolver's. A query may have a UDP and a TCP socket for each nameserver; glibc has a UDP
# socket for each nameserver, used for both families, and one TCP socket.
_SOCKETS: Final = 256
_SYSTEMS_PART: Final = 4
# How long the system resolver is waited for alone, and after a negative answer of the nameservers.
_ALONE: Final = 0.1
_SYSTEM_PATIENCE: Final = 1.0
# The system may have sources beside DNS (nsswitch.conf), so it is asked again this often.
_SECOND_OPINION: Final = 5.0
# How long an address of one family waits for those of the other.
_OTHER_FAMILY: Final = 0.5
# The longest wait for one name's answer, whatever resolv.conf has; the gate tries again.
_PATIENCE: Final = 3.0


def read_resolv_conf(path: Path = RESOLV_CONF) -> ResolvConf:
    """Read resolv.conf as glibc does; without the file there is no nameserver."""
    return parse_resolv_conf(_text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def system_addresses(name: str) -> tuple[str, ...]:
    """Ask the system resolver, which blocks; empty if there is no address."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(item[4][0]) for item in found))


def _families() -> tuple[str, ...]:
    """Give the record types to query; AAAA only if a link has a global IPv6 address."""
    try:
        scopes = {line.split()[3] for line in _INET6.read_text(encoding="ascii").splitlines()}
    except (OSError, IndexError):
        scopes = set()
    # Scope 00 is global, unique local addresses included; 10 is loopback and 20 link local.
    # IPv6 comes first, as in getaddrinfo.
    return ("AAAA", "A") if "00" in scopes else ("A",)


def at_once(sockets: int, nameservers: int, families: int) -> tuple[int, int]:
    """Give how many names may be looked up at once, and how many by the system resolver."""
    bound = min(sockets, _SOCKETS)
    systems = bound // _SYSTEMS_PART
    lookups = (bound - systems) // (2 * max(1, nameservers) * families)
    threads = systems // (max(1, nameservers) + 1)
    return max(1, min(_LOOKUPS, lookups)), max(1, min(_THREADS, threads))


class Resolver:
    """Resolves names; bounded, and never two lookups of one name at once."""

    def __init__(
        self,
        resolv_conf: Path = RESOLV_CONF,
        hosts: Path = HOSTS,
        *,
        nsswitch: Path = NSSWITCH,
        system: Callable[[str], tuple[str, ...]] = system_addresses,
        system_decides: bool = False,
        port: int = _DNS_PORT,
        families: Sequence[str] | None = None,
        sockets: int = _SOCKETS,
    ) -> None:
        """Read the configuration.

        With ``system_decides`` a name resolves only if the system resolver has an address.
        ``sockets`` is how many may be open at once.
        """
        self.conf = read_resolv_conf(resolv_conf)
        self._sources = host_sources(_text(nsswitch))
        self._own = bool(self.conf.nameservers) and "dns" in self._sources
        self._hosts = hosts
        self._system_decides = system_decides
        self._system = system
        self._port = port
        self._families = tuple(families) if families is not None else _families()
        lookups, threads = at_once(sockets, len(self.conf.nameservers), len(self._families))
        self._lookups = asyncio.Semaphore(lookups)
        self._threads = asyncio.Semaphore(threads)
        # Lookups of the system that were waited for in vain: a lost packet holds one for 5 seconds.
        # With one in each thread the next name would wait for nothing.
        self._late: set[asyncio.Future[tuple[str, ...]]] = set()
        self._most_late = threads
        self._running: dict[str, asyncio.Future[DnsAnswer]] = {}
        self._asking: dict[str, asyncio.Future[tuple[str, ...]]] = {}
        self._opinions: dict[str, float] = {}
        self._known: dict[str, tuple[str, ...]] = {}
        self._allowance = dns_query.Allowance()
        self._ending = ""

    async def ask(self, name: str) -> DnsAnswer:
        """Look up one name once.

        The system resolver is asked first; without an address from it soon the nameservers are
        queried too, and the first address counts.
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
            system = self._second_opinion(name)
            if system is not None and len(self._late) < self._most_late:
                await asyncio.wait((system,), timeout=_ALONE)
                if _has_addresses(system):
                    return self._resolved(name, system.result())
                if not system.done():
                    self._late.add(system)
                    system.add_done_callback(self._late.discard)
            own = asyncio.ensure_future(self._explain(name))
            try:
                return await self._first_of(name, own, system)
            finally:
                own.cancel()

    async def _first_of(
        self,
        name: str,
        own: asyncio.Future[DnsAnswer],
        system: asyncio.Future[tuple[str, ...]] | None,
    ) -> DnsAnswer:
        """Take the first address; after a negative DNS answer wait briefly for the system."""
        if system is not None:
            await asyncio.wait((own, system), return_when=asyncio.FIRST_COMPLETED)
            if _has_addresses(system):
                return self._resolved(name, system.result())
        answer = await own
        if answer.addresses and not self._system_decides:
            return self._resolved(name, answer.addresses, answer.searched)
        if answer.addresses:
            system = self._ask_system(name)
        if system is not None:
            await asyncio.wait((system,), timeout=_SYSTEM_PATIENCE)
            if _has_addresses(system):
                return self._resolved(name, system.result(), answer.searched)
        if answer.addresses:
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

    def _second_opinion(self, name: str) -> asyncio.Future[tuple[str, ...]] | None:
        """Ask the system resolver if that is due; always where there is no nameserver."""
        now = asyncio.get_running_loop().time()
        if self._own and now - self._opinions.get(name, float("-inf")) < _SECOND_OPINION:
            return None
        self._opinions[name] = now
        return self._ask_system(name)

    def _resolved(
        self, name: str, addresses: tuple[str, ...], searched: tuple[str, ...] = ()
    ) -> DnsAnswer:
        self._known[name] = addresses
        return DnsAnswer(name, addresses, searched=searched)

    def _ask_system(self, name: str) -> asyncio.Future[tuple[str, ...]]:
        """Ask the system resolver in a thread, or join a lookup in progress."""
        asking = self._asking.get(name)
        if asking is None:
            asking = asyncio.ensure_future(self._in_thread(name))
            self._asking[name] = asking
            asking.add_done_callback(lambda _: self._asking.pop(name, None))
        return asking

    async def _in_thread(self, name: str) -> tuple[str, ...]:
        # Daemon threads: an executor's are joined at exit, and one that waits for a dead nameserver
        # would delay it for half a minute.
        loop = asyncio.get_running_loop()
        try:
            await asyncio.wait_for(self._threads.acquire(), _SYSTEM_PATIENCE)
        except asyncio.TimeoutError:
            return ()
        try:
            # Two queries for each name of the search list at most.
            await self._allowance.take(2 * len(search_names(name, self.conf)))
            found: asyncio.Future[tuple[str, ...]] = loop.create_future()

            def resolved(addresses: tuple[str, ...]) -> None:
                if not found.done():
                    found.set_result(addresses)

            def work() -> None:
                addresses = self._system(name)
                try:
                    loop.call_soon_threadsafe(resolved, addresses)
                except RuntimeError:  # the loop is closed: the answer isn't wanted any more
                    return

            try:
                threading.Thread(target=work, name=f"resolve {name}", daemon=True).start()
            except RuntimeError:  # the pod's limit of processes is reached
                return ()
            return await found
        finally:
            self._threads.release()

    async def _explain(self, name: str) -> DnsAnswer:
        """Look in /etc/hosts and query the nameservers as glibc does, keeping every reply."""
        listed = self._in_hosts(name) if "files" in self._sources else ()
        if listed:
            return DnsAnswer(name, listed, searched=(name,))
        if not self._own:
            where = "resolv.conf names" if "dns" in self._sources else "nsswitch.conf asks"
            message = f"{where} no nameserver, and {NoAddress.SYSTEM.value}"
            return DnsAnswer(name, reason=NoAddress.SYSTEM, detail=message)
        replies: list[DnsReply] = []
        # The names of a job are in one domain: the one of the last name found comes first.
        likely = f"{name}{self._ending}"
        for candidate in sorted(search_names(name, self.conf), key=lambda item: item != likely):
            if is_malformed(candidate):  # too long with this domain
                continue
            reply = await self._ask_nameservers(candidate)
            replies.append(reply)
            if reply.addresses:
                self._ending = candidate[len(name) :]
                break
            # A nameserver that is silent for one name is silent for the next; glibc stops too.
            if reply.reason in (NoAddress.TIMEOUT, NoAddress.NO_NAMESERVER):
                break
        return summary(name, replies, names.cluster_domain(self.conf.search))

    def _in_hosts(self, name: str) -> tuple[str, ...]:
        wanted = names.canonical(name)
        found = [words[0] for words in hosts_lines(self._hosts) if wanted in words[1:]]
        return tuple(dict.fromkeys(found))

    async def _ask_nameservers(self, name: str) -> DnsReply:
        """Query the nameservers for one absolute name until one of them has a final answer."""
        asking = [
            asyncio.ensure_future(
                dns_query.ask(
                    name,
                    kind,
                    self.conf.nameservers,
                    port=self._port,
                    patience=min(self.conf.timeout * self.conf.attempts, _PATIENCE),
                    allowance=self._allowance,
                    tcp=self.conf.use_vc,
                )
            )
            for kind in self._families
        ]
        try:
            done, others = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            if others:
                found = any(item.result().addresses for item in done)
                await asyncio.wait(others, timeout=_OTHER_FAMILY if found else None)
            return joined([item.result() for item in asking if item.done()])
        finally:
            for item in asking:
                item.cancel()


def _has_addresses(system: asyncio.Future[tuple[str, ...]]) -> bool:
    """Tell whether the system resolver has found addresses by now."""
    return system.done() and not system.cancelled() and bool(system.result())
