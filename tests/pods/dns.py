"""The cluster's name server, which can misbehave as real ones do.

Runs as a process of its own inside the cluster's network (`python -m tests.pods.dns`), is told
what to do over a Unix socket (see nameserver.py), and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from ipaddress import ip_address
from typing import Any

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

from tests.pods.network import DNS_ADDRESSES

_TYPES = {4: dns.rdatatype.A, 6: dns.rdatatype.AAAA}
# The counts of a Behaviour in their order, and what is answered: nothing where it is None.
_SPOILT = (("drop", None), ("servfail", dns.rcode.SERVFAIL))


@dataclass
class Behaviour:
    """How queries for a name (`*`: any name) are answered.

    Each count is of answers still to be spoilt. `flip` answers every other question with
    NXDOMAIN, as two replicas do of which one is behind; or, from the first one on, with the address
    `other`. With `tcp_only` what comes by UDP is lost.
    """

    servfail: int = 0
    drop: int = 0
    flip: bool = False
    other: str = ""
    tcp_only: bool = False


@dataclass
class Config:
    """What a cluster's administrator sets.

    A negative answer is repeated from a cache for `negative_cache` seconds, whatever was
    published meanwhile.
    """

    ttl: int = 5
    soa_minimum: int = 5
    negative_cache: float = 0.0
    domain: str = "cluster.local"


@dataclass
class Server:
    """Records, behaviours and the log of queries."""

    config: Config = field(default_factory=Config)
    records: dict[dns.name.Name, list[str]] = field(default_factory=dict)
    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    log: list[list[object]] = field(default_factory=list)
    _denied: dict[tuple[dns.name.Name, int], tuple[float, dns.rcode.Rcode]] = field(
        default_factory=dict
    )
    _flips: dict[dns.name.Name, int] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def answer(self, wire: bytes, client: str, transport: str) -> bytes | None:
        """The response to a query; None where it is lost."""
        query = dns.message.from_wire(wire)
        question = query.question[0]
        name = question.name.canonicalize()
        behaviour = self._behaviour(name)
        spoilt: dns.rcode.Rcode | None = None
        lost = behaviour.tcp_only and transport == "udp"
        for kind, rcode in _SPOILT:
            count = getattr(behaviour, kind)
            if count > 0 and not lost:
                setattr(behaviour, kind, count - 1)
                lost, spoilt = rcode is None, rcode
                break
        response = dns.message.make_response(query, recursion_available=True)
        if spoilt is not None:
            response.set_rcode(spoilt)
        elif not lost:
            self._fill(response, name, question, behaviour)
        message = "drop" if lost else dns.rcode.to_text(response.rcode())
        if message == "NOERROR" and not response.answer:
            message = "NODATA"
        kind_of = dns.rdatatype.to_text(question.rdtype)
        self.log.append([time.monotonic(), str(name), kind_of, message, transport, client])
        if lost:
            return None
        limit = 65535 if transport == "tcp" else max(query.payload, 512)
        return response.to_wire(max_size=limit, prefer_truncation=True)

    def _behaviour(self, name: dns.name.Name) -> Behaviour:
        text = name.to_text(omit_final_dot=True)
        return self.behaviours.get(text) or self.behaviours.get("*") or Behaviour()

    def _fill(
        self,
        response: dns.message.Message,
        name: dns.name.Name,
        question: dns.rrset.RRset,
        behaviour: Behaviour,
    ) -> None:
        if not name.is_subdomain(_name(self.config.domain)):
            response.set_rcode(dns.rcode.NXDOMAIN)
            return
        response.flags |= dns.flags.AA
        kind = question.rdtype
        now = time.monotonic()
        until, rcode = self._denied.get((name, kind), (0.0, dns.rcode.NOERROR))
        if now < until:
            self._deny(response, rcode, until - now)
            return
        behind = False
        if behaviour.flip:
            self._flips[name] = self._flips.get(name, 0) + 1
            behind = self._flips[name] % 2 == bool(behaviour.other)
            if behind and not behaviour.other:
                self._deny(response, dns.rcode.NXDOMAIN, self.config.soa_minimum)
                return
        # A Service's name has the addresses of all its pods.
        below = [value for key, value in self.records.items() if key.is_subdomain(name)]
        here = self.records.get(name)
        if here is None:
            here = [
                address
                for key, value in self.records.items()
                if key.parent() == name
                for address in value
            ]
        here = [behaviour.other] if behind else here
        found = [text for text in here if _TYPES[ip_address(text).version] == kind]
        if found:
            answer = dns.rrset.from_text_list(name, self.config.ttl, "IN", question.rdtype, found)
            response.answer.append(answer)
            return
        rcode = dns.rcode.NOERROR if below else dns.rcode.NXDOMAIN
        if self.config.negative_cache:
            self._denied[name, kind] = (now + self.config.negative_cache, rcode)
        self._deny(response, rcode, self.config.soa_minimum)

    def _deny(self, response: dns.message.Message, rcode: dns.rcode.Rcode, left: float) -> None:
        minimum = self.config.soa_minimum
        zone = _name(self.config.domain)
        soa = f"ns.dns.{zone} hostmaster.{zone} 1 7200 1800 86400 {minimum}"
        response.set_rcode(rcode)
        ttl = min(minimum, int(left))
        response.authority.append(dns.rrset.from_text(zone, ttl, "IN", "SOA", soa))

    def obey(self, order: dict[str, Any]) -> object:
        """Carry out a command of the test."""
        match order.pop("order"):
            case "publish":
                task = asyncio.ensure_future(self._publish(**order))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case "unpublish":
                self.records.pop(_name(order["name"]), None)
            case "behave":
                name = order.pop("name").lower()
                self.behaviours[name] = Behaviour(**order)
            case "configure":
                for key in order.keys() & {item.name for item in fields(Config)}:
                    setattr(self.config, key, order[key])
                self._denied.clear()
                return asdict(self.config)
            case "log":
                return self.log
            case other:
                return f"unknown order {other}"
        return None

    async def _publish(
        self, name: str, addresses: list[str], after: float, when_port: int | None
    ) -> None:
        """Publishes at once, after a time, or when a TCP readiness probe succeeds."""
        if after:
            await asyncio.sleep(after)
        # No event tells when a port of another pod opens.
        while when_port is not None and not await _answers(addresses[0], when_port):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        self.records[_name(name)] = addresses


async def _answers(address: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(address, port)
    except OSError:
        return False
    writer.close()
    return True


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        task = asyncio.ensure_future(self._reply(data, addr))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reply(self, data: bytes, addr: tuple[str, int]) -> None:
        wire = await self._server.answer(data, addr[0], "udp")
        if wire is not None and self._transport is not None:
            self._transport.sendto(wire, addr)


def _stream(
    server: Server,
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = writer.get_extra_info("peername")[0]
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(2), "big")
                wire = await server.answer(await reader.readexactly(size), client, "tcp")
                if wire is not None:
                    writer.write(len(wire).to_bytes(2, "big") + wire)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    return serve


def _control(
    server: Server,
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            done = server.obey(json.loads(line))
            await asyncio.sleep(0)  # so that "publish at once" has happened when we say so
            writer.write(json.dumps(done).encode() + b"\n")
            await writer.drain()
        writer.close()

    return serve


def _name(text: str) -> dns.name.Name:
    return dns.name.from_text(text).canonicalize()


async def _main(control: str) -> None:
    server = Server()
    loop = asyncio.get_running_loop()
    for address in DNS_ADDRESSES:
        await loop.create_datagram_endpoint(lambda: _Datagrams(server), local_addr=(address, 53))
        await asyncio.start_server(_stream(server), address, 53)
    await asyncio.start_unix_server(_control(server), control, limit=1 << 24)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
