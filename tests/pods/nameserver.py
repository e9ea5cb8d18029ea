"""The cluster's name server, which can misbehave as real ones do: a thread in its network."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset
from pyroute2 import netns

from tests.pods.network import DNS_ADDRESSES

_TYPES = {4: dns.rdatatype.A, 6: dns.rdatatype.AAAA}
_TTL = 5


@dataclass(frozen=True)
class Question:
    """A query: its name, response code and client."""

    name: str
    message: str
    client: str


@dataclass
class Behaviour:
    """How queries for a name (`*`: any name) are answered.

    Each count is of answers still to be spoilt; `other` is the address that questions get.
    """

    servfail: int = 0
    drop: int = 0
    other: str = ""


class Nameserver:
    """Records, behaviours and the log of queries; a test changes them while they are served."""

    def __init__(self, pid: int) -> None:
        self._domain = _name("cluster.local")
        self._soa_minimum, self._negative_cache = 5, 0.0
        self._records: dict[dns.name.Name, list[str]] = {}
        self._behaviours: dict[str, Behaviour] = {}
        self._log: list[Question] = []
        self._denied: dict[tuple[dns.name.Name, int], tuple[float, dns.rcode.Rcode]] = {}
        self._ended = asyncio.Event()
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, args=(pid, started), daemon=True)
        self._thread.start()
        self._loop = started.result()

    def _run(self, pid: int, started: Future[asyncio.AbstractEventLoop]) -> None:
        try:
            with open(f"/proc/{pid}/ns/net") as namespace:  # noqa: PTH123
                netns.setns(namespace)  # of this thread alone
            asyncio.run(self._serve(started))
        except BaseException as error:  # noqa: BLE001
            started.set_exception(error)

    async def _serve(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            for address in DNS_ADDRESSES:
                datagrams, _ = await loop.create_datagram_endpoint(
                    lambda: _Datagrams(self), local_addr=(address, 53)
                )
                stack.callback(datagrams.close)
            started.set_result(loop)
            await self._ended.wait()

    def publish(self, name: str, addresses: Sequence[str], *, after: float = 0.0) -> None:
        keep = partial(self._records.__setitem__, _name(name), list(addresses))
        if after:
            self._loop.call_soon_threadsafe(self._loop.call_later, after, keep)
        else:
            keep()

    def unpublish(self, name: str) -> None:
        self._records.pop(_name(name), None)

    def behave(self, name: str = "*", **behaviour: Any) -> None:
        """Sets how questions about a name (`*`: any other) are treated: fields of Behaviour."""
        self._behaviours[name.lower()] = Behaviour(**behaviour)

    def negative_cache(self, seconds: float) -> None:
        """Caches each NXDOMAIN for so long, with that time in the SOA record."""
        self._negative_cache, self._soa_minimum = seconds, math.ceil(seconds)

    def serve(self, domain: str) -> None:
        """Serves another cluster domain than cluster.local; the pods' is `cluster_domain`."""
        self._domain = _name(domain)

    def questions(self) -> list[Question]:
        return self._log.copy()

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()

    def answer(self, wire: bytes, client: str) -> bytes | None:
        """The response to a query; None where it is lost."""
        query = dns.message.from_wire(wire)
        question = query.question[0]
        name = question.name.canonicalize()
        text = name.to_text(omit_final_dot=True)
        behaviour = self._behaviours.get(text) or self._behaviours.get("*") or Behaviour()
        response = dns.message.make_response(query, recursion_available=True)
        lost = behaviour.drop > 0
        if lost:
            behaviour.drop -= 1
        elif behaviour.servfail > 0:
            behaviour.servfail -= 1
            response.set_rcode(dns.rcode.SERVFAIL)
        else:
            self._fill(response, name, question, behaviour)
        message = "drop" if lost else dns.rcode.to_text(response.rcode())
        if message == "NOERROR" and not response.answer:
            message = "NODATA"
        self._log.append(Question(str(name), message, client))
        limit = max(query.payload, 512)
        return None if lost else response.to_wire(max_size=limit, prefer_truncation=True)

    def _fill(
        self,
        response: dns.message.Message,
        name: dns.name.Name,
        question: dns.rrset.RRset,
        behaviour: Behaviour,
    ) -> None:
        if not name.is_subdomain(self._domain):
            response.set_rcode(dns.rcode.NXDOMAIN)
            return
        response.flags |= dns.flags.AA
        kind, now = question.rdtype, time.monotonic()
        until, rcode = self._denied.get((name, kind), (0.0, dns.rcode.NOERROR))
        if now < until:  # repeated from a cache, whatever was published meanwhile
            self._deny(response, rcode, until - now)
            return
        # A Service's name has the addresses of all its pods.
        of_pods = (value for key, value in self._records.copy().items() if key.parent() == name)
        here = self._records.get(name) or [address for value in of_pods for address in value]
        if behaviour.other:
            here = [behaviour.other]
        found = [text for text in here if _TYPES[ip_address(text).version] == kind]
        if found:
            response.answer.append(dns.rrset.from_text_list(name, _TTL, "IN", kind, found))
            return
        below = any(key.is_subdomain(name) for key in self._records.copy())
        rcode = dns.rcode.NOERROR if below else dns.rcode.NXDOMAIN
        if self._negative_cache:
            self._denied[name, kind] = (now + self._negative_cache, rcode)
        self._deny(response, rcode, self._soa_minimum)

    def _deny(self, response: dns.message.Message, rcode: dns.rcode.Rcode, left: float) -> None:
        zone, minimum = self._domain, self._soa_minimum
        soa = f"ns.dns.{zone} hostmaster.{zone} 1 7200 1800 86400 {minimum}"
        response.set_rcode(rcode)
        record = dns.rrset.from_text(zone, min(minimum, int(left)), "IN", "SOA", soa)
        response.authority.append(record)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: Nameserver) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        wire = self._server.answer(data, addr[0])
        if wire is not None:
            self._transport.sendto(wire, addr)


def _name(text: str) -> dns.name.Name:
    return dns.name.from_text(text).canonicalize()
