"""Names against a real nameserver, and what resolv.conf means."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mpiboot.hosts import dns
from mpiboot.hosts.dns import NoAddress, ResolvConf, Resolver
from tests.fakes.nameserver import (
    DROP,
    GARBAGE,
    NODATA,
    NOTIMP,
    NXDOMAIN,
    REFUSED,
    SERVFAIL,
    TRUNCATED,
    Datagrams,
    Nameserver,
    resolv_conf,
    serve,
)

LONG = "w-0.job.ns.svc.cluster.local"
NAME = "w-0.job.ns.svc"
SEARCH = ("ns.svc.cluster.local", "svc.cluster.local", "cluster.local")


class System:
    """A system resolver that says what the test wants, and remembers what it was asked."""

    def __init__(self, told: dict[str, tuple[str, ...]] | None = None) -> None:
        self.told, self.asked = told or {}, list[str]()

    def __call__(self, name: str) -> tuple[str, ...]:
        self.asked.append(name)
        return self.told.get(name, ())


@contextlib.asynccontextmanager
async def resolving(
    folder: Path,
    server: Nameserver,
    system: Callable[[str], tuple[str, ...]],
    *,
    ndots: int = 5,
    families: tuple[str, ...] = ("A",),
    search: Sequence[str] = SEARCH,
) -> AsyncIterator[Resolver]:
    conf = resolv_conf(folder, ndots=ndots, search=search)
    async with serve(server) as port:
        yield Resolver(conf, system=system, port=port, families=families)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (NXDOMAIN, NoAddress.NXDOMAIN),
        (NODATA, NoAddress.NO_RECORD),
        (SERVFAIL, NoAddress.SERVFAIL),
        (REFUSED, NoAddress.REFUSED),
        (DROP, NoAddress.TIMEOUT),
        (GARBAGE, NoAddress.TIMEOUT),  # as dnspython ignores it: it may be forged
    ],
)
async def test_each_failure_has_its_own_reason(
    tmp_path: Path, message: str, reason: NoAddress
) -> None:
    server = Nameserver({}, otherwise=message)
    async with resolving(tmp_path, server, System()) as resolver:
        answer = await resolver.resolve(NAME)
    assert (answer.addresses, answer.reason) == ((), reason)
    assert "127.0.0.1" in answer.detail


async def test_what_the_system_knows_is_asked_of_nobody_else(tmp_path: Path) -> None:
    """One lookup serves all who wait for it; a name of /etc/hosts is known at once."""
    server, system = Nameserver({}), System({NAME: ("10.0.0.9", "10.0.0.1")})
    async with resolving(tmp_path, server, system) as resolver:
        answers = await asyncio.gather(*(resolver.resolve(NAME) for _ in range(20)))
    assert {answer.addresses for answer in answers} == {("10.0.0.9", "10.0.0.1")}
    assert system.asked == [NAME]
    async with resolving(tmp_path, server, dns.system_addresses) as resolver:
        assert set((await resolver.resolve("localhost")).addresses) & {"127.0.0.1", "::1"}
    assert not server.asked


BROKEN = ("a b", "-oProxyCommand=x", ".", "ü", "a;b")


@pytest.mark.parametrize(
    ("name", "reason", "queried"),
    [
        *((literal, None, []) for literal in ("10.0.0.1", "fd00::1", "::1")),
        *((name, NoAddress.MALFORMED, []) for name in BROKEN),
        ("unknown", NoAddress.SYSTEM, ["unknown"]),
    ],
)
async def test_without_a_nameserver(
    tmp_path: Path, name: str, reason: NoAddress | None, queried: list[str]
) -> None:
    """Addresses and what is no host name are asked of nobody."""
    system = System()
    answer = await Resolver(tmp_path / "none", system=system).resolve(name)
    assert answer.addresses == (() if reason else (name,))
    assert reason in (None, answer.reason)
    assert system.asked == queried


SHORT = "w-0.job"
SEARCHED = [f"{SHORT}.{domain}" for domain in SEARCH]


@pytest.mark.parametrize(
    ("name", "ndots", "scripts", "order", "detail"),
    [
        # A full name of the cluster is asked there first.
        (NAME, 5, {LONG: ["10.0.0.1"]}, [LONG], ""),
        (f"{LONG}.", 5, {}, [LONG], "NXDOMAIN (asked"),
        *(
            (SHORT, 5, {SEARCHED[0]: [no], SEARCHED[1]: ["10.0.0.1"]}, SEARCHED[:2], "")
            for no in (REFUSED, NOTIMP)
        ),
        (SHORT, 5, {SEARCHED[0]: [SERVFAIL]}, [*SEARCHED, SHORT], f"SERVFAIL for {SEARCHED[0]}."),
        (SHORT, 1, {}, [SHORT, *SEARCHED], "NXDOMAIN (asked"),
    ],
)
async def test_the_search_list_is_gone_through_in_its_order(
    tmp_path: Path,
    name: str,
    ndots: int,
    scripts: dict[str, list[str]],
    order: list[str],
    detail: str,
) -> None:
    server = Nameserver(scripts)
    async with resolving(tmp_path, server, System(), ndots=ndots) as resolver:
        answer = await resolver.resolve(name)
    assert answer.addresses == (() if detail else ("10.0.0.1",))
    assert [*dict.fromkeys(server.order)] == order
    assert answer.detail.startswith(detail)


async def test_a_long_answer_comes_by_tcp(tmp_path: Path) -> None:
    server = Nameserver({LONG: [TRUNCATED, "10.0.0.1"]})
    async with resolving(tmp_path, server, System(), search=()) as resolver:
        assert await until_found(resolver, [LONG]) == {LONG: ("10.0.0.1",)}
    assert server.over_tcp == 1


async def test_a_silent_nameserver_is_not_asked_for_the_whole_search_list(tmp_path: Path) -> None:
    server = Nameserver({}, otherwise=DROP)
    async with resolving(tmp_path, server, System()) as resolver:
        await resolver.resolve(NAME)
    assert len(server.order) > 1
    assert set(server.order) == {LONG}


async def test_thousands_of_names_are_asked_with_bounded_threads(tmp_path: Path) -> None:
    most, before = list[int](), threading.active_count()

    def system(_: str) -> tuple[str, ...]:
        most.append(threading.active_count() - before)
        return ("10.0.0.1",)

    resolver = Resolver(tmp_path / "none", system=system)
    found = await until_found(resolver, [f"w-{n}" for n in range(2000)])
    assert set(found.values()) == {("10.0.0.1",)}
    assert max(most) <= 16 + 1


@contextlib.contextmanager
def stuck() -> Iterator[Callable[[str], tuple[str, ...]]]:
    """A system resolver that waits for a lost packet, as glibc does for five seconds."""
    release = threading.Event()

    def system(_: str) -> tuple[str, ...]:
        release.wait(60)
        return ()

    try:
        yield system
    finally:
        release.set()


async def until_found(resolver: Resolver, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Ask as the gate does: a machine that is busy may be too slow for the first try."""
    found: dict[str, tuple[str, ...]] = {}
    while missing := [name for name in names if not found.get(name)]:
        answers = await asyncio.gather(*map(resolver.resolve, missing))
        found |= {name: one.addresses for name, one in zip(missing, answers, strict=True)}
    return found


async def test_an_answer_of_the_nameservers_counts_while_the_system_waits(tmp_path: Path) -> None:
    """Three packets of each name are lost."""
    names = [f"w-{n}.job.ns.svc" for n in range(40)]
    scripts = {f"{name}.cluster.local": [DROP, DROP, DROP, "10.0.0.1"] for name in names}
    with stuck() as system:
        async with resolving(tmp_path, Nameserver(scripts), system) as resolver:
            found = await until_found(resolver, names)

    assert set(found.values()) == {("10.0.0.1",)}


async def test_the_system_resolver_has_the_last_word(tmp_path: Path) -> None:
    """It may have other sources, which take longer."""
    asked = threading.Event()

    def system(_: str) -> tuple[str, ...]:
        asked.wait(60)
        return ("10.0.0.8",)

    class Hearing(Nameserver):
        def message(self, name: str, kind: str, client: str) -> str:
            asked.set()
            return super().message(name, kind, client)

    async with resolving(tmp_path, Hearing({}), system) as resolver:
        found = await until_found(resolver, [NAME])
    assert found == {NAME: ("10.0.0.8",)}


async def test_an_answer_that_is_slow_is_waited_for(tmp_path: Path) -> None:
    """It takes longer than a query's first limit, each time; the system resolver knows nothing."""

    class Slow(Nameserver):
        def received(self, *query: Any) -> None:  # noqa: ANN401
            asyncio.get_running_loop().call_later(0.8, super().received, *query)

    with stuck() as system:
        async with resolving(tmp_path, Slow({LONG: ["10.0.0.1"]}), system, search=()) as resolver:
            assert await until_found(resolver, [LONG]) == {LONG: ("10.0.0.1",)}


@pytest.mark.parametrize("bad", [SERVFAIL, REFUSED, GARBAGE, DROP])
async def test_the_next_nameserver_is_asked_after_one_that_fails(tmp_path: Path, bad: str) -> None:
    second = Nameserver({LONG: ["10.0.0.1"]})
    conf = resolv_conf(tmp_path, search=(), nameservers=("127.0.0.1", "127.0.0.2", "10.0.0.256"))
    async with serve(Nameserver({}, otherwise=bad)) as port:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: Datagrams(second), local_addr=("127.0.0.2", port)
        )
        try:
            resolver = Resolver(conf, system=System(), port=port, families=("A",))
            assert await until_found(resolver, [LONG]) == {LONG: ("10.0.0.1",)}
        finally:
            transport.close()


CLUSTER = ResolvConf(("10.96.0.10",), SEARCH, ndots=5)


@pytest.mark.parametrize("outside", [NoAddress.SERVFAIL, NoAddress.TIMEOUT, NoAddress.REFUSED])
def test_the_clusters_own_nameserver_counts_before_what_fails_outside(outside: NoAddress) -> None:
    """A forwarder without a way out fails for w-0.job itself; the pod has no record yet."""
    replies = {f"w-0.job.{domain}.": NoAddress.NXDOMAIN for domain in SEARCH}
    answer = dns.no_address(replies | {"w-0.job.": outside}, CLUSTER)
    assert answer.reason is NoAddress.NXDOMAIN
    assert answer.detail.startswith("NXDOMAIN for w-0.job.ns.svc.cluster.local., ")
    assert answer.detail.endswith(f"; {outside.value} for w-0.job. (asked 10.96.0.10)")
    # Where a name of the cluster itself failed, that is the reason.
    replies[f"w-0.job.{SEARCH[0]}."] = NoAddress.SERVFAIL
    assert dns.no_address(replies, CLUSTER).reason is NoAddress.SERVFAIL


KUBELET = "nameserver 10.96.0.10\nsearch ns.svc.cluster.local. svc.cluster.local\noptions ndots:5\n"
GLIBC = """# by kubelet
nameserver 10.0.0.10 ; first
nameserver fd00::10
nonsense
nameserver
nameserver 10.0.0.11
nameserver 10.0.0.12
search a.svc.cluster.local.
search
options ndots:99 timeout:2 attempts:x rotate
options ndots:x # ndots:3
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (KUBELET, ResolvConf(("10.96.0.10",), ("ns.svc.cluster.local", "svc.cluster.local"), 5)),
        (f"{KUBELET}domain example.org\n", ResolvConf(("10.96.0.10",), ("example.org",), 5)),
        (GLIBC, ResolvConf(("10.0.0.10", "fd00::10", "10.0.0.11"), (), ndots=15)),
    ],
)
def test_resolv_conf_is_read_as_glibc_reads_it(text: str, expected: ResolvConf) -> None:
    assert dns.parse_resolv_conf(text) == expected


LONGEST = ".".join(["a" * 63] * 3 + ["a" * 61])  # 253


def test_no_nameserver_has_a_host_of_such_a_name() -> None:
    """One that is too long with a domain is asked for without it alone."""
    assert not any(map(dns.is_malformed, ("w-0.job.", "under_score", "a" * 63, LONGEST)))
    assert all(map(dns.is_malformed, ("a" * 64, f"{LONGEST}a", "a..b", "-a", "a b", "")))
    assert dns.search_names(LONGEST, ResolvConf(search=("a",))) == (f"{LONGEST}.",)
