from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.hosts import dns
from mpiboot.hosts.dns import Resolver, at_once, read_resolv_conf, system_addresses
from mpiboot.hosts.dns_query import DnsAnswer, DnsReply, NoAddress, summary
from tests.fakes.nameserver import (
    DROP,
    GARBAGE,
    NODATA,
    NXDOMAIN,
    REFUSED,
    SERVFAIL,
    TRUNCATED,
    Nameserver,
    hosts_file,
    resolv_conf,
    serve,
)

LONG = "w-0.job.ns.svc.cluster.local"
NAME = "w-0.job.ns.svc"


class System:
    """A system resolver that says what the test wants, and remembers what it was asked."""

    def __init__(self, **told: tuple[str, ...]) -> None:
        self.told = told
        self.default: tuple[str, ...] = ()
        self.asked: list[str] = []

    def __call__(self, name: str) -> tuple[str, ...]:
        self.asked.append(name)
        return self.told.get(name, self.default)


def late(addresses: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """A system resolver that says no once, before any nameserver is asked, and then yes."""
    asked: list[str] = []

    def say(name: str) -> tuple[str, ...]:
        asked.append(name)
        return addresses if len(asked) > 1 else ()

    return say


@contextlib.asynccontextmanager
async def resolving(
    folder: Path,
    server: Nameserver,
    system: Callable[[str], tuple[str, ...]],
    *,
    ndots: int = 5,
    hosts: str = "",
    families: tuple[str, ...] = ("A",),
    nsswitch: str = "hosts: files dns\n",
    attempts: int = 1,
    system_decides: bool = False,
) -> AsyncIterator[Resolver]:
    (folder / "nsswitch.conf").write_text(nsswitch)
    async with serve(server) as port:
        yield Resolver(
            resolv_conf(folder, ndots=ndots, attempts=attempts),
            hosts_file(folder, hosts),
            nsswitch=folder / "nsswitch.conf",
            system=system,
            system_decides=system_decides,
            port=port,
            families=families,
        )


async def ask(folder: Path, scripts: dict[str, list[str]], otherwise: str = NXDOMAIN) -> DnsAnswer:
    async with resolving(folder, Nameserver(scripts, otherwise=otherwise), System()) as resolver:
        return await resolver.ask(NAME)


async def test_a_name_that_the_system_knows_is_asked_of_nobody_else(tmp_path: Path) -> None:
    server = Nameserver({})
    async with resolving(tmp_path, server, System(**{NAME: ("10.0.0.9", "10.0.0.1")})) as resolver:
        answer = await resolver.ask(NAME)

    assert answer.addresses == ("10.0.0.9", "10.0.0.1")
    assert not server.asked


async def test_nxdomain_twice_then_an_answer(tmp_path: Path) -> None:
    server = Nameserver({LONG: [NXDOMAIN, NXDOMAIN, "10.0.0.1"]})
    async with resolving(tmp_path, server, late(("10.0.0.1",))) as resolver:
        answers = [await resolver.ask(NAME) for _ in range(3)]

    assert [answer.reason for answer in answers] == [NoAddress.NXDOMAIN, NoAddress.NXDOMAIN, None]
    assert answers[2].addresses == ("10.0.0.1",)


async def test_a_negative_answer_tells_how_long_it_may_be_cached(tmp_path: Path) -> None:
    answer = await ask(tmp_path, {})

    assert answer.reason is NoAddress.NXDOMAIN
    assert answer.retry_after == 5
    assert "may be cached for 5 s" in answer.detail


async def test_a_negative_answer_without_soa_tells_no_time(tmp_path: Path) -> None:
    server = Nameserver({})
    server.negative_ttl = None
    async with resolving(tmp_path, server, System()) as resolver:
        answer = await resolver.ask(NAME)

    assert (answer.reason, answer.retry_after) == (NoAddress.NXDOMAIN, None)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (NXDOMAIN, NoAddress.NXDOMAIN),
        (NODATA, NoAddress.NO_RECORD),
        (SERVFAIL, NoAddress.SERVFAIL),
        (REFUSED, NoAddress.REFUSED),
        (DROP, NoAddress.TIMEOUT),
        (GARBAGE, NoAddress.BAD_ANSWER),
    ],
)
async def test_each_failure_has_its_own_reason(
    tmp_path: Path, message: str, reason: NoAddress
) -> None:
    answer = await ask(tmp_path, {}, otherwise=message)

    assert (answer.addresses, answer.reason) == ((), reason)
    assert "127.0.0.1" in answer.detail
    assert not reason.permanent


async def test_a_refused_search_name_does_not_hide_the_next_one(tmp_path: Path) -> None:
    server = Nameserver({f"{NAME}.ns.svc.cluster.local": [REFUSED], LONG: ["10.0.0.1"]})
    async with resolving(tmp_path, server, late(("10.0.0.1",))) as resolver:
        answer = await resolver.ask(NAME)

    assert answer.addresses == ("10.0.0.1",)
    assert answer.searched[0] == f"{NAME}.ns.svc.cluster.local."


async def test_servfail_for_one_search_name_is_told_beside_nxdomain_for_the_rest(
    tmp_path: Path,
) -> None:
    answer = await ask(tmp_path, {LONG: [SERVFAIL]})

    assert answer.reason is NoAddress.SERVFAIL
    assert f"SERVFAIL for {LONG}." in answer.detail
    assert "NXDOMAIN for" in answer.detail


async def test_search_list_comes_first_for_few_dots_and_last_for_many(tmp_path: Path) -> None:
    for ndots, first in ((5, f"{NAME}.ns.svc.cluster.local"), (3, NAME)):
        server = Nameserver({})
        async with resolving(tmp_path, server, System(), ndots=ndots) as resolver:
            answer = await resolver.ask(NAME)

        assert server.order[0] == first
        assert sorted(server.order) == sorted(name.rstrip(".") for name in answer.searched)
        assert len(server.order) == 4


async def test_a_final_dot_is_asked_as_it_is(tmp_path: Path) -> None:
    server = Nameserver({})
    async with resolving(tmp_path, server, System()) as resolver:
        await resolver.ask(f"{LONG}.")

    assert server.order == [LONG]


async def test_a_silent_nameserver_is_not_asked_for_the_whole_search_list(tmp_path: Path) -> None:
    server = Nameserver({}, otherwise=DROP)
    async with resolving(tmp_path, server, System()) as resolver:
        await resolver.ask(NAME)

    assert len(server.order) > 1
    assert set(server.order) == {f"{NAME}.ns.svc.cluster.local"}


async def test_both_families_are_asked_and_one_address_is_enough(tmp_path: Path) -> None:
    server = Nameserver({LONG: ["fd00::7"]})
    families = ("A", "AAAA")
    async with resolving(tmp_path, server, late(("fd00::7",)), families=families) as resolver:
        answer = await resolver.ask(NAME)

    assert answer.addresses == ("fd00::7",)
    assert server.asked[LONG, "A"] == server.asked[LONG, "AAAA"] == 1


async def test_a_nameservers_yes_counts_unless_the_system_decides(tmp_path: Path) -> None:
    server = Nameserver({LONG: ["10.0.0.1"]})
    async with resolving(tmp_path, server, System()) as resolver:
        answer = await resolver.ask(NAME)
    assert answer.addresses == ("10.0.0.1",)

    async with resolving(tmp_path, server, System(), system_decides=True) as resolver:
        answer = await resolver.ask(NAME)

    assert (answer.addresses, answer.reason) == ((), NoAddress.SYSTEM)
    assert "10.0.0.1" in answer.detail
    assert "disagree" in answer.detail


async def test_an_answer_that_flips_is_said(tmp_path: Path) -> None:
    server = Nameserver({LONG: ["10.0.0.1", NXDOMAIN]})
    system = late(("10.0.0.1",))
    async with resolving(tmp_path, server, system) as resolver:
        first, second = await resolver.ask(NAME), await resolver.ask(NAME)

    assert first.addresses == ("10.0.0.1",)
    assert second.reason is NoAddress.NXDOMAIN
    assert "it was 10.0.0.1 a moment ago" in second.detail


async def test_etc_hosts_is_read_before_any_nameserver_is_asked(tmp_path: Path) -> None:
    server = Nameserver({})
    hosts = f"10.0.0.5 other {NAME.upper()} # w-9\n"
    async with resolving(tmp_path, server, late(("10.0.0.5",)), hosts=hosts) as resolver:
        answer = await resolver.ask(NAME)

    assert answer.addresses == ("10.0.0.5",)
    assert not server.asked


async def test_without_resolv_conf_the_system_is_asked_alone(tmp_path: Path) -> None:
    system = System(known=("10.0.0.1",))
    resolver = Resolver(tmp_path / "none", tmp_path / "none", system=system)

    assert (await resolver.ask("known")).addresses == ("10.0.0.1",)
    answer = await resolver.ask("unknown")
    assert answer.reason is NoAddress.SYSTEM
    assert "no nameserver" in answer.detail


@pytest.mark.parametrize("literal", ["10.0.0.1", "fd00::1", "::1"])
async def test_an_address_needs_no_resolver(tmp_path: Path, literal: str) -> None:
    system = System()
    resolver = Resolver(tmp_path / "none", tmp_path / "none", system=system)

    assert (await resolver.ask(literal)).addresses == (literal,)
    assert not system.asked


@pytest.mark.parametrize(
    "name", ["a b", "-oProxyCommand=x", "a..b", "", ".", "x" * 64, "a." * 127 + "ab", "ü", "a;b"]
)
async def test_what_is_no_host_name_is_permanent_and_asked_of_nobody(
    tmp_path: Path, name: str
) -> None:
    system = System()
    resolver = Resolver(tmp_path / "none", tmp_path / "none", system=system)

    answer = await resolver.ask(name)

    assert answer.reason is NoAddress.MALFORMED
    assert answer.reason.permanent
    assert not system.asked


async def test_nothing_is_asked_twice_at_once(tmp_path: Path) -> None:
    server, system = Nameserver({}), System()
    async with resolving(tmp_path, server, system) as resolver:
        await asyncio.gather(*(resolver.ask(NAME) for _ in range(20)))

    assert len(server.order) == 4
    assert system.asked == [NAME]


async def test_thousands_of_names_are_asked_with_bounded_threads(tmp_path: Path) -> None:
    most: list[int] = []

    def system(_: str) -> tuple[str, ...]:
        most.append(sum(item.name.startswith("resolve ") for item in threading.enumerate()))
        return ("10.0.0.1",)

    resolver = Resolver(tmp_path / "none", tmp_path / "none", system=system)
    found = await until_found(resolver, [f"w-{n}" for n in range(2000)])

    assert set(found.values()) == {("10.0.0.1",)}
    assert max(most) <= 16 + 1


@pytest.mark.parametrize(
    ("sockets", "nameservers", "families", "lookups", "threads"),
    [
        (256, 1, 1, 64, 16),
        (1 << 17, 1, 2, 48, 16),
        (736, 3, 2, 16, 16),
        (32, 1, 1, 12, 4),
        (32, 3, 2, 2, 2),
        (1, 0, 1, 1, 1),
    ],
)
def test_how_many_names_are_asked_for_at_once(
    sockets: int, nameservers: int, families: int, lookups: int, threads: int
) -> None:
    assert at_once(sockets, nameservers, families) == (lookups, threads)
    # Each way of each question of each name, and what glibc opens for one.
    held = lookups * 2 * nameservers * families + threads * (nameservers + 1)
    assert held <= sockets or lookups == threads == 1


def open_sockets() -> int:
    links = (os.path.realpath(item) for item in Path("/proc/self/fd").iterdir())
    return sum("socket:" in link for link in links)


@pytest.mark.parametrize("udp", [DROP, TRUNCATED])
async def test_look_ups_hold_no_more_sockets_than_they_may(tmp_path: Path, udp: str) -> None:
    """Two families of hundreds of names at three nameservers, of which two refuse: TCP alone."""
    most: list[int] = []

    class Counting(Nameserver):
        def _answer(self, data: bytes, *, tcp: bool) -> bytes | None:
            most.append(open_sockets())
            return super()._answer(data, tcp=tcp)

    names = [f"w-{n}.job.ns.svc" for n in range(200)]
    server = Counting({f"{name}.cluster.local": ["10.0.0.1"] for name in names})
    server.udp = udp
    async with serve(server) as port:
        conf = resolv_conf(tmp_path, nameservers=("127.0.0.3", "127.0.0.2", "127.0.0.1"))
        resolver = Resolver(
            conf,
            hosts_file(tmp_path),
            system=System(),
            port=port,
            families=("AAAA", "A"),
            sockets=32,
        )
        before = open_sockets()
        found = await until_found(resolver, names)
    assert set(found.values()) == {("10.0.0.1",)}
    # The nameserver in this process has the other end of each of its TCP connections.
    assert max(most) - before <= 32 + 8


async def test_a_system_resolver_that_hangs_does_not_hide_the_reason(tmp_path: Path) -> None:
    release = threading.Event()

    def system(_: str) -> tuple[str, ...]:
        release.wait(30)
        return ()

    async with resolving(tmp_path, Nameserver({}), system) as resolver:
        answer = await resolver.ask(NAME)
        release.set()

    assert answer.reason is NoAddress.NXDOMAIN


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
        answers = await asyncio.gather(*map(resolver.ask, missing))
        found |= {answer.name: answer.addresses for answer in answers}
    return found


async def test_an_answer_of_the_nameservers_counts_while_the_system_waits(tmp_path: Path) -> None:
    """Three packets of each name are lost."""
    names = [f"w-{n}.job.ns.svc" for n in range(40)]
    scripts = {f"{name}.cluster.local": [DROP, DROP, DROP, "10.0.0.1"] for name in names}
    with stuck() as system:
        async with resolving(tmp_path, Nameserver(scripts), system, attempts=3) as resolver:
            found = await until_found(resolver, names)

    assert set(found.values()) == {("10.0.0.1",)}


async def test_nobody_waits_for_a_system_that_has_a_lost_packet_in_each_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"w-{n}.job.ns.svc" for n in range(21)]
    server = Nameserver({f"{name}.cluster.local": ["10.0.0.1"] for name in names})
    with stuck() as system:
        async with resolving(tmp_path, server, system) as resolver:
            await until_found(resolver, names[:-1])
            monkeypatch.setattr(dns, "_ALONE", 3600.0)
            found = await asyncio.wait_for(until_found(resolver, names[-1:]), 120)

    assert found == {names[-1]: ("10.0.0.1",)}


async def test_a_thousand_names_are_found_where_the_last_one_was(tmp_path: Path) -> None:
    """Each is asked once, but for those before the first answer: no search list for each."""
    names = [f"w-{n}.job.ns.svc" for n in range(1000)]
    server = Nameserver({f"{name}.cluster.local": ["10.0.0.1"] for name in names})
    ends = (".ns.svc.cluster.local", ".svc.cluster.local", ".cluster.local")
    with stuck() as system:
        async with resolving(tmp_path, server, system) as resolver:
            await until_found(resolver, names[:1])
            await until_found(resolver, names[1:])

    assert set(server.order) == {*server.scripts, *(f"{names[0]}{end}" for end in ends)}


async def test_one_name_in_ten_gets_servfail(tmp_path: Path) -> None:
    names = [f"w-{n}.job.ns.svc" for n in range(20)]
    scripts = {f"{name}.cluster.local": ["10.0.0.1"] for name in names}
    for name in names[::10]:
        scripts[f"{name}.cluster.local"] = [SERVFAIL, "10.0.0.1"]
    async with resolving(tmp_path, Nameserver(scripts), System()) as resolver:
        answers = await asyncio.gather(*map(resolver.ask, names))
        again = await asyncio.gather(*map(resolver.ask, names))

    failed = [answer.name for answer in answers if answer.reason is NoAddress.SERVFAIL]
    assert failed == names[::10]
    assert all(answer.addresses == ("10.0.0.1",) for answer in again)


async def test_a_name_that_flips_between_two_addresses_has_one_of_them(tmp_path: Path) -> None:
    server = Nameserver({LONG: ["10.0.0.1", "10.0.0.2"] * 4})
    async with resolving(tmp_path, server, System()) as resolver:
        found = [(await resolver.ask(NAME)).addresses for _ in range(4)]

    assert found == [("10.0.0.1",), ("10.0.0.2",)] * 2


async def test_the_system_alone_is_asked_where_nsswitch_has_no_nameservers(tmp_path: Path) -> None:
    server, system = Nameserver({LONG: ["10.0.0.1"]}), System()
    async with resolving(tmp_path, server, system, nsswitch="hosts: files\n") as resolver:
        answer = await resolver.ask(NAME)
        assert (answer.addresses, answer.reason) == ((), NoAddress.SYSTEM)
        assert answer.detail.startswith("nsswitch.conf asks no nameserver")
        # There is nobody else to ask, so each try asks it.
        system.default = ("10.0.0.7",)
        assert (await resolver.ask(NAME)).addresses == ("10.0.0.7",)

    assert not server.asked


async def test_etc_hosts_counts_only_where_nsswitch_has_it(tmp_path: Path) -> None:
    server = Nameserver({LONG: ["10.0.0.1"]})
    for nsswitch, address in (("hosts: dns\n", "10.0.0.1"), ("hosts: files dns\n", "10.0.0.5")):
        async with resolving(
            tmp_path, server, System(), hosts=f"10.0.0.5 {NAME}\n", nsswitch=nsswitch
        ) as resolver:
            assert (await resolver.ask(NAME)).addresses == (address,)


async def test_an_address_of_one_family_does_not_wait_for_a_lost_answer_of_the_other(
    tmp_path: Path,
) -> None:
    class Half(Nameserver):
        def _answer(self, data: bytes, *, tcp: bool) -> bytes | None:
            reply = super()._answer(data, tcp=tcp)
            return None if self.asked[LONG, "AAAA"] and b"\x00\x1c" in data else reply

    server = Half({LONG: ["10.0.0.1"]}, otherwise=NXDOMAIN)
    async with resolving(
        tmp_path, server, System(), families=("AAAA", "A"), attempts=5
    ) as resolver:
        answer = await resolver.ask(NAME)

    assert answer.addresses == ("10.0.0.1",)


def test_the_real_system_resolver_knows_localhost_and_not_nonsense() -> None:
    assert set(system_addresses("localhost")) & {"127.0.0.1", "::1"}
    assert system_addresses("") == ()


def test_resolv_conf_is_read_with_comments_and_limits(tmp_path: Path) -> None:
    path = tmp_path / "resolv.conf"
    path.write_text(
        "# by kubelet\nnameserver 10.0.0.10 ; first\nnameserver fd00::10\n"
        "nameserver 10.0.0.11\nnameserver 10.0.0.12\ndomain old\n"
        "search a.svc.cluster.local. svc.cluster.local\n"
        "options ndots:99 timeout:2 attempts:x rotate\noptions attempts:9\nnonsense\nsearch\n"
    )

    conf = read_resolv_conf(path)

    assert conf.nameservers == ("10.0.0.10", "fd00::10", "10.0.0.11")
    assert (conf.ndots, conf.timeout, conf.attempts) == (15, 2.0, 5)
    assert conf.search == ()


@pytest.mark.parametrize("outside", [NoAddress.SERVFAIL, NoAddress.TIMEOUT, NoAddress.REFUSED])
def test_the_clusters_own_nameserver_counts_before_what_fails_outside(outside: NoAddress) -> None:
    """A forwarder without a way out fails for w-0.job itself; the pod has no record yet."""
    own = [
        DnsReply(f"w-0.job.{domain}.", reason=NoAddress.NXDOMAIN, server="10.96.0.10", ttl=5)
        for domain in ("ns.svc.cluster.local", "svc.cluster.local", "cluster.local")
    ]
    answer = summary("w-0.job", [*own, DnsReply("w-0.job.", reason=outside)], "cluster.local")
    assert (answer.reason, answer.retry_after) == (NoAddress.NXDOMAIN, 5)
    assert answer.detail.startswith("NXDOMAIN for w-0.job.ns.svc.cluster.local., ")
    assert f"; {outside.value} for w-0.job." in answer.detail
    # Where a name of the cluster itself failed, that is the reason.
    mixed = [replace(own[0], reason=NoAddress.SERVFAIL), *own[1:]]
    assert summary("w-0.job", mixed, "cluster.local").reason is NoAddress.SERVFAIL
