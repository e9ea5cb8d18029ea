from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.hosts import dns_query
from mpiboot.hosts.dns_query import AT_ONCE, PER_SECOND, Allowance, DnsReply, NoAddress
from tests.fakes.nameserver import (
    DROP,
    GARBAGE,
    NXDOMAIN,
    REFUSED,
    SERVFAIL,
    TRUNCATED,
    Nameserver,
    serve,
)

NAME = "w-0.job.ns.svc.cluster.local."


async def ask(
    port: int,
    *servers: str,
    patience: float = 60.0,
    tcp: bool = False,
    allowance: Allowance | None = None,
) -> DnsReply:
    """Ask for a name; by default with more patience than any test needs."""
    return await dns_query.ask(
        NAME,
        "A",
        servers or ("127.0.0.1",),
        port=port,
        patience=patience,
        allowance=allowance or Allowance(),
        tcp=tcp,
    )


def server(*script: str) -> Nameserver:
    return Nameserver({NAME.rstrip("."): list(script)})


async def test_a_lost_packet_is_sent_again() -> None:
    told = server(DROP, DROP, DROP, "10.0.0.1")
    async with serve(told) as port:
        reply = await ask(port)
    assert (reply.addresses, reply.server) == (("10.0.0.1",), "127.0.0.1")
    assert len(told.order) == 4


async def test_an_answer_that_is_slow_is_still_heard() -> None:
    """It comes after the question was sent again, and answers that one too."""

    class Slow(Nameserver):
        def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
            if self.order:
                self.order.append("again")
                return
            loop = asyncio.get_running_loop()
            loop.call_later(0.5, super().datagram_received, data, addr)
            self.order.append("first")

    told = Slow({NAME.rstrip("."): ["10.0.0.1"]})
    async with serve(told) as port:
        assert (await ask(port)).addresses == ("10.0.0.1",)
    assert told.order[:2] == ["first", "again"]


@pytest.mark.parametrize("udp", [DROP, TRUNCATED])
async def test_a_nameserver_that_answers_over_tcp_alone(udp: str) -> None:
    told = server("10.0.0.1")
    told.udp = udp
    async with serve(told) as port:
        assert (await ask(port)).addresses == ("10.0.0.1",)
    assert told.over_tcp == 1


async def test_where_tcp_alone_answers_the_next_question_is_asked_so_at_once() -> None:
    """And no more, once an answer has come by UDP again."""
    told, allowance = server("10.0.0.1"), Allowance()
    told.udp = DROP
    async with serve(told) as port:
        assert (await ask(port, allowance=allowance)).addresses == ("10.0.0.1",)
        assert len(told.order) > 4
        told.order.clear()
        assert (await ask(port, allowance=allowance)).addresses == ("10.0.0.1",)
        assert len(told.order) <= 4  # one by TCP; the others are sent while that is made
        assert allowance.by_tcp
        told.udp = ""
        for _ in range(1000):  # whichever of both is heard first
            assert (await ask(port, allowance=allowance)).addresses == ("10.0.0.1",)
            if not allowance.by_tcp:
                return
    pytest.fail("UDP was never the first to answer")


async def test_tcp_alone_where_resolv_conf_wants_it() -> None:
    told = server("10.0.0.1")
    async with serve(told) as port:
        assert (await ask(port, tcp=True)).addresses == ("10.0.0.1",)
    assert (told.over_tcp, len(told.order)) == (1, 1)


async def test_a_nameserver_whose_udp_is_closed_is_asked_by_tcp() -> None:
    told = server("10.0.0.1")
    async with AsyncExitStack() as stack:
        tcp = await stack.enter_async_context(
            await asyncio.start_server(told.serve_tcp, "127.0.0.1", 0)
        )
        port = int(tcp.sockets[0].getsockname()[1])
        assert (await ask(port)).addresses == ("10.0.0.1",)


async def test_a_nameserver_where_both_are_closed_is_not_waited_for() -> None:
    async with serve(server()) as port:
        pass
    assert (await ask(port)).reason is NoAddress.NO_NAMESERVER
    assert (await ask(port, tcp=True)).reason is NoAddress.NO_NAMESERVER


async def test_one_without_tcp_that_loses_packets_is_still_heard() -> None:
    """Its TCP port refuses long before its answer comes."""
    told = server(*[DROP] * 6, "10.0.0.1")
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: told, local_addr=("127.0.0.1", 0))
    try:
        port = int(transport.get_extra_info("sockname")[1])
        assert (await ask(port)).addresses == ("10.0.0.1",)
    finally:
        transport.close()


async def test_a_silent_nameserver_is_told_after_the_patience() -> None:
    told = server(DROP)
    async with serve(told) as port:
        reply = await ask(port, patience=0.5)
    assert (reply.reason, reply.server) == (NoAddress.TIMEOUT, "127.0.0.1")
    assert 1 < len(told.order) < 10


@pytest.mark.parametrize("bad", [SERVFAIL, REFUSED, GARBAGE, DROP])
async def test_the_next_nameserver_is_asked_after_one_that_fails(bad: str) -> None:
    first, second = server(bad), server("10.0.0.1")
    async with serve(first) as port:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: second, local_addr=("127.0.0.2", port)
        )
        try:
            reply = await ask(port, "127.0.0.1", "127.0.0.2")
        finally:
            transport.close()
    assert (reply.addresses, reply.server) == (("10.0.0.1",), "127.0.0.2")
    assert len(first.order) == len(second.order) == 1


async def test_a_no_is_an_answer() -> None:
    told = server(NXDOMAIN)
    async with serve(told) as port:
        reply = await ask(port)
    assert (reply.reason, reply.ttl, len(told.order)) == (NoAddress.NXDOMAIN, 5.0, 1)


async def test_an_address_that_is_none_is_no_nameserver() -> None:
    reply = await ask(53, "10.0.0.256")
    assert reply.reason is NoAddress.NO_NAMESERVER


async def test_answers_to_another_question_are_not_taken() -> None:
    class Liar(Nameserver):
        def _answer(self, data: bytes, *, tcp: bool) -> bytes | None:
            reply = super()._answer(data, tcp=tcp)
            if reply is None or len(self.order) > 1:
                return reply
            return bytes([reply[0] ^ 1]) + reply[1:]

    told = Liar({NAME.rstrip("."): ["10.6.6.6", "10.0.0.1"]})
    async with serve(told) as port:
        assert (await ask(port)).addresses == ("10.0.0.1",)


@given(st.lists(st.floats(0, 100)))
def test_slow_answers_are_waited_for_longer_within_bounds(answers: list[float]) -> None:
    allowance = Allowance()
    for seconds in answers:
        allowance.answered(seconds)
    assert 0.15 <= allowance.again <= 0.5
    assert allowance.again == 0.15 or max(answers) > 0.05
    for _ in range(30):
        allowance.answered(0.2)
    assert allowance.again == 0.5


def test_an_allowance_is_a_burst_and_then_a_rate() -> None:
    allowance = Allowance(per_second=100, at_once=10)
    assert [allowance.wait(5, 0.0) for _ in range(3)] == [0.0, 0.0, 0.05]
    assert allowance.wait(1, 0.06) == 0.0
    # What was not used is kept up to the burst.
    assert [allowance.wait(10, 1000.0) for _ in range(2)] == [0.0, 0.1]


@given(st.lists(st.floats(0, 0.2), min_size=100, max_size=100))
def test_no_second_has_more_questions_than_allowed(gaps: list[float]) -> None:
    allowance, now, sent = Allowance(per_second=20, at_once=30), 0.0, []
    for gap in gaps:
        now += gap
        sent.append(now + allowance.wait(1, now))
    for start in sent:
        within = sum(start <= at < start + 1 for at in sent)
        assert within <= 30 + 20 + 1


def test_a_thousand_names_with_a_search_list_pass_at_once() -> None:
    families, searched = 2, 4
    assert 1000 * families * searched <= AT_ONCE
    assert PER_SECOND <= 30_000 / 10
