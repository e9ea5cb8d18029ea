"""A nameserver on loopback that answers as it is told, over real UDP and TCP.

Each name has a script: what to answer to the first question, the second, and so on; the last item
stays. It caches nothing by itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

# What a script may say besides an address (or several, with blanks between them).
NXDOMAIN, NODATA, SERVFAIL, REFUSED = "NXDOMAIN", "NODATA", "SERVFAIL", "REFUSED"
NOTIMP = "NOTIMP"
DROP, GARBAGE, TRUNCATED = "DROP", "GARBAGE", "TRUNCATED"

_CODES = {
    NXDOMAIN: dns.rcode.NXDOMAIN,
    SERVFAIL: dns.rcode.SERVFAIL,
    REFUSED: dns.rcode.REFUSED,
    NOTIMP: dns.rcode.NOTIMP,
}


class Nameserver:
    """Scripts by absolute name without the final dot; ``asked`` counts the questions."""

    def __init__(self, scripts: Mapping[str, Sequence[str]], *, otherwise: str = NXDOMAIN) -> None:
        self.scripts = {name.lower(): list(script) for name, script in scripts.items()}
        self.otherwise = otherwise
        self.asked: Counter[tuple[str, str]] = Counter()
        self.order: list[str] = []
        self.over_tcp = 0

    def received(
        self, transport: asyncio.DatagramTransport, data: bytes, addr: tuple[str, int]
    ) -> None:
        reply = self.answer(data, addr[0])
        if reply is not None:
            transport.sendto(reply, addr)

    async def serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            try:
                size = int.from_bytes(await reader.readexactly(2), "big")
            except asyncio.IncompleteReadError:  # answered otherwise meanwhile
                return
            reply = self.answer(await reader.readexactly(size), tcp=True)
            self.over_tcp += 1
            if reply is not None:
                writer.write(len(reply).to_bytes(2, "big") + reply)
                await writer.drain()
        finally:
            writer.close()

    def message(self, name: str, kind: str, client: str) -> str:
        """What is answered: the next item of the name's script, for this type of record."""
        self.asked[name, kind] += 1
        self.order.append(name)
        script = self.scripts.get(name, [self.otherwise])
        return script[min(self.asked[name, kind], len(script)) - 1]

    def answer(self, data: bytes, client: str = "", *, tcp: bool = False) -> bytes | None:
        """The response to a query; None where it is lost."""
        question = dns.message.from_wire(data)
        asked = question.question[0]
        name, kind = asked.name.to_text(omit_final_dot=True).lower(), asked.rdtype
        message = self.message(name, dns.rdatatype.to_text(kind), client)
        if message == DROP:
            return None
        if message == GARBAGE:
            return data[:2] + b"\xff" * 20
        # glibc asks elsewhere where a server without recursion has no address.
        reply = dns.message.make_response(question, recursion_available=True)
        if message == TRUNCATED and not tcp:
            reply.flags |= dns.flags.TC
            return reply.to_wire()
        reply.set_rcode(_CODES.get(message, dns.rcode.NOERROR))
        if message in (NXDOMAIN, NODATA):
            soa = ". . 1 2 3 4 5"
            reply.authority.append(dns.rrset.from_text("cluster.local.", 30, "IN", "SOA", soa))
        elif message not in _CODES:
            addresses = [item for item in message.split() if item != TRUNCATED]
            wanted = [item for item in addresses if (":" in item) == (kind == dns.rdatatype.AAAA)]
            if wanted:
                text = dns.rdatatype.to_text(kind)
                reply.answer.append(dns.rrset.from_text(asked.name, 5, "IN", text, *wanted))
        return reply.to_wire()


class Datagrams(asyncio.DatagramProtocol):
    """One socket of a nameserver."""

    def __init__(self, server: Nameserver) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._server.received(self._transport, data, addr)


@asynccontextmanager
async def serve(server: Nameserver, address: str = "127.0.0.1") -> AsyncIterator[int]:
    """Run the nameserver on a free port, the same for UDP and TCP."""
    loop = asyncio.get_running_loop()
    while True:
        tcp = await asyncio.start_server(server.serve_tcp, address, 0)
        port = int(tcp.sockets[0].getsockname()[1])
        try:
            transport, _ = await loop.create_datagram_endpoint(
                lambda: Datagrams(server), local_addr=(address, port)
            )
        except OSError:  # free for TCP alone
            tcp.close()
            continue
        break
    try:
        yield port
    finally:
        transport.close()
        tcp.close()
        await tcp.wait_closed()


def resolv_conf(
    folder: Path,
    *,
    search: Sequence[str] = ("ns.svc.cluster.local", "svc.cluster.local", "cluster.local"),
    ndots: int = 5,
    nameservers: Sequence[str] = ("127.0.0.1",),
) -> Path:
    """Write a resolv.conf as a kubelet does."""
    lines = [f"nameserver {item}" for item in nameservers]
    lines += [f"search {' '.join(search)}"] if search else []
    lines.append(f"options ndots:{ndots}")
    path = folder / "resolv.conf"
    path.write_text("\n".join(lines) + "\n")
    return path
