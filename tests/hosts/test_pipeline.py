"""One host's way, attempt by attempt: a clock that moves by its pauses, and written answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Host
from mpiboot.core.model import AUTO, Auto, Switch
from mpiboot.core.settings import Settings, resolve
from mpiboot.hosts import pipeline
from mpiboot.hosts.dns import DnsAnswer, NoAddress, ResolvConf
from mpiboot.hosts.pipeline import PipelineOptions, Pipelines, SshAccess, pause
from mpiboot.hosts.progress import HostState
from mpiboot.ssh import attempt as tcp
from mpiboot.ssh import login
from mpiboot.ssh.attempt import Attempt, LoginTimeouts, Outcome, Target
from mpiboot.ssh.client import HostSettings, OpensshClient
from mpiboot.ssh.config import LaunchHost
from mpiboot.ssh.pool import Pool
from tests.fakes import plans

if TYPE_CHECKING:
    from mpiboot.hosts.dns import Resolver


HERE, THERE = "127.0.0.1", "192.0.2.7"
FOUND = DnsAnswer("w-0", (THERE,))
CONF = ResolvConf(("10.96.0.10", "10.96.0.11"), ("ns.svc.cluster.local",))
KEY = SimpleNamespace(host_fingerprint="SHA256:job", fingerprint="SHA256:own", public_line="ed A")


class Enough(Exception):  # noqa: N818 - nothing went wrong
    """A test has seen what it wants to see."""


class Clock:
    """Stands still but for the pauses, which are over at once."""

    def __init__(self) -> None:
        self.now, self.pauses = 1000.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        assert len(self.pauses) < 1000, "it never ends"
        self.pauses.append(seconds)
        self.now += seconds


class Names:
    """A resolver whose answers are written; the last one stays."""

    def __init__(self, *answers: DnsAnswer, conf: ResolvConf = CONF) -> None:
        self.conf = conf
        self._answers = [*answers]
        self.asked = 0

    async def resolve(self, name: str) -> DnsAnswer:
        assert name == self._answers[0].name
        self.asked += 1
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pipeline, "time", made)
    asyncs = SimpleNamespace(**{**vars(asyncio), "sleep": made.sleep})
    monkeypatch.setattr(pipeline, "asyncio", asyncs)
    return made


def access(names: object, pool: Pool | None = None, **more: Any) -> SshAccess:  # noqa: ANN401
    resolver = cast("Resolver", names)
    return SshAccess("runner", pool or Pool(Path("key")), "launcher", resolver=resolver, **more)


def pipelines(
    names: Names,
    *ports: int,
    settings: Settings | None = None,
    **more: Any,  # noqa: ANN401 - the options
) -> Pipelines:
    to = access(names, ports=ports or (22,))
    settings = settings or Settings(rewrite_fqdn=Switch.OFF)
    made = Pipelines(settings, to, PipelineOptions(**more))

    async def load() -> login.Login:
        return cast("login.Login", KEY)

    to.pool.load = load  # type: ignore[method-assign]
    return made


def state(name: str = "w-0") -> HostState:
    return HostState(Host(name), name)


def answers(
    monkeypatch: pytest.MonkeyPatch,
    message: Callable[[Target], Outcome],
    **more: Any,  # noqa: ANN401
) -> list[Target]:
    """Let servers say what a test has written; whom it has asked."""
    tried: list[Target] = []

    async def connect(target: Target, _: LoginTimeouts) -> tuple[Attempt, None]:
        tried.append(target)
        return Attempt(target, message(target), **more), None

    monkeypatch.setattr(tcp, "connect", connect)
    return tried


async def test_a_name_that_is_none_is_told_with_its_host() -> None:
    bad = DnsAnswer("a b", reason=NoAddress.MALFORMED, detail="'a b' is not a host name")
    for line, where in ((0, ""), (3, "line 3 of the hostfile: ")):
        with pytest.raises(MpibootError) as caught:
            await pipelines(Names(bad)).run(HostState(Host("a b", line=line), "a b"))
        assert (caught.value.finding.host, caught.value.finding.message) == (
            "a b",
            f"{where}'a b' is not a host name",
        )


async def test_another_servers_key_and_a_name_are_asked_for_again_after_five_seconds(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node's own server may punish who logs in too often."""
    tries: list[int] = []

    def message(target: Target) -> Outcome:
        tries.append(target.port)
        if len(tries) == 7:
            raise Enough
        return Outcome.HOST_KEY_DIFFERS if target.port == 22 else Outcome.REFUSED

    answers(monkeypatch, message)
    names = Names(FOUND)
    with pytest.raises(Enough):
        await pipelines(names, 22, 2222).run(state())
    assert (tries, clock.pauses, names.asked) == ([22, 2222] * 3 + [22], [5.0] * 3, 4)


async def test_what_refuses_after_twenty_seconds_may_lack_its_args(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, seen = state(), list[tuple[float, str]]()
    begin = clock.now
    monkeypatch.setattr(pipeline, "pause", lambda *_: 10.0)

    def message(_: Target) -> Outcome:
        seen.append((clock.now - begin, mine.reason))
        if clock.now - begin > 100:
            raise Enough
        return Outcome.CLOSED if clock.now - begin == 20 else Outcome.REFUSED

    answers(monkeypatch, message)
    with pytest.raises(Enough):
        await pipelines(Names(FOUND)).run(mine)
    long = "connection refused: likely the worker lacks `args: [worker]`"
    assert [at for at, reason in seen if reason == long] == [40, 50, 60, 70, 80, 90, 100, 110]


V4, V6 = "192.0.2.7", "fd00::7"


class Client:
    """The image's ssh, with settings that are written."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings

    def known(self, host: str) -> HostSettings:
        return HostSettings(host, **self._settings)


@pytest.mark.parametrize(
    ("flags", "ssh", "user", "expected"),
    [
        # ports and who names the user
        ({}, {}, "", [(22, "runner", ""), (2222, "runner", "")]),
        ({"ssh_port": "9"}, {}, "", [(9, "runner", "")]),
        ({}, {}, "al", [(22, "al", "the hostfile"), (2222, "al", "the hostfile")]),
        ({"ssh_user": "bo", "ssh_port": "9"}, {}, "", [(9, "bo", "MPIBOOT_SSH_USER")]),
        ({"ssh_user": "bo", "ssh_port": "9"}, {"user": "cy"}, "al", [(9, "al", "the hostfile")]),
        ({"ssh_port": "9"}, {"user": "cy", "port": 8}, "", [(9, "cy", "ssh_config")]),
        ({}, {"port": 2222}, "", [(2222, "runner", ""), (22, "runner", "")]),
        ({}, {"port": 8, "proxied": True}, "", [(8, "runner", "")]),
        ({}, {"proxied": True}, "", [(22, "runner", "")]),
    ],
)
def test_where_a_host_is_tried(
    flags: dict[str, str], ssh: dict[str, Any], user: str, expected: list[tuple[int, str, str]]
) -> None:
    pool = Pool(Path("key"), client=cast("OpensshClient", Client(ssh)))
    to = access(Names(FOUND), pool, ports=(22, 2222))
    made = Pipelines(resolve(flags, {}).settings, to)
    found = made.targets(Host("w-0", user=user), (V4,))
    assert [(item.port, item.user, item.user_by) for item in found] == expected
    assert {(item.host, item.address) for item in found} == {("w-0", V4)}


@pytest.mark.parametrize(
    ("ipv6", "addresses", "expected"),
    [
        (True, (V4, V6), [V6, V4]),
        (False, (V6, V4), [V4, V6]),
        (None, (V6, V4), [V6, V4]),
        (None, tuple(f"192.0.2.{n}" for n in range(9)), [f"192.0.2.{n}" for n in range(4)]),
    ],
)
def test_the_pods_version_of_ip_is_tried_first_and_four_addresses_in_all(
    ipv6: bool | None,  # noqa: FBT001 - a row of the table
    addresses: tuple[str, ...],
    expected: list[str],
) -> None:
    made = Pipelines(Settings(), access(Names(FOUND), ports=(22,), ipv6=ipv6))
    assert [item.address for item in made.targets(Host("w-0"), addresses)] == expected


async def test_a_hundred_and_twenty_eight_connections_are_open_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit of files that a container may open is 1024 by default."""
    many, release, now = 140, asyncio.Event(), [0]

    async def connect(target: Target, _: LoginTimeouts) -> tuple[Attempt, None]:
        now[0] += 1
        await release.wait()
        return Attempt(target, Outcome.REFUSED), None

    monkeypatch.setattr(tcp, "connect", connect)
    made = pipelines(Names(FOUND), once=True)
    runs = [asyncio.ensure_future(made.run(state())) for _ in range(many)]
    for _ in range(1000):  # turns of the loop
        await asyncio.sleep(0)
    assert now == [128]
    release.set()
    await asyncio.wait(runs)
    assert [type(run.exception()) for run in runs] == [MpibootError] * many
    assert now == [many]


@pytest.mark.parametrize(
    ("told", "moved"),
    [
        (["10.0.0.2", "10.0.0.1"], ""),
        (["10.0.0.2", "10.0.0.2", "10.0.0.1"], ""),
        (["10.0.0.2"], "its name now has the address 10.0.0.2"),
        ([""], ""),  # a nameserver that fails says nothing of the host
    ],
)
async def test_a_host_has_moved_only_if_every_look_says_so(told: list[str], moved: str) -> None:
    """Of two nameservers one may be behind, and they are asked by turns."""
    failed = DnsAnswer("w-0", reason=NoAddress.SERVFAIL)
    names = Names(*(DnsAnswer("w-0", (address,)) if address else failed for address in told))
    worker = replace(plans.worker(Host("w-0"), 1, None), address="10.0.0.1", dns_name="w-0")
    made = pipelines(names)
    made.pool.know((LaunchHost("w-0", "10.0.0.1", 22, "root"),))
    assert await made.why_lost(worker, by_name=True, connected=True) == "its connection broke"
    # One whose connection broke before is compared by its name alone.
    assert (await made.why_lost(worker, by_name=True, connected=False) or "") == moved


@pytest.mark.parametrize(
    ("waited", "pending", "seconds"),
    [
        *((0, 10, 0.05), (5, 10, 0.05), (20, 10, 0.2), (1000, 1, 1.0)),
        *((0, 1000, 5.0), (1e6, 1000, 5.0), (0, 1_000_000, 15.0)),
    ],
)
def test_few_hosts_are_tried_often_and_thousands_share_a_budget(
    waited: float, pending: int, seconds: float
) -> None:
    assert pause(waited, pending) == seconds


SHORT, LONG = "w-0.job.ns.svc", "w-0.job.ns.svc.cluster.local"
NONE = DnsAnswer(SHORT, reason=NoAddress.NXDOMAIN)
PRESENT = DnsAnswer(SHORT, ("10.0.0.5",))
FAILED = DnsAnswer(SHORT, reason=NoAddress.SERVFAIL)


class Scripted:
    """A resolver with an answer for each question, in their order."""

    def __init__(self, answers: Sequence[tuple[str, DnsAnswer]], *search: str) -> None:
        self.answers, self.conf = [*answers], ResolvConf(search=search)

    async def resolve(self, name: str) -> DnsAnswer:
        wanted, answer = self.answers.pop(0)
        assert name == wanted
        return answer


@pytest.mark.parametrize(
    ("mode", "answers", "renamed"),
    [
        (AUTO, [(SHORT, PRESENT)], False),
        (AUTO, [(SHORT, NONE), (LONG, NONE)], False),
        (AUTO, [(SHORT, FAILED), (LONG, NONE)], False),  # which may have never been
        (AUTO, [(SHORT, NONE), (LONG, PRESENT)], True),
        # The search list leads to the long form by itself.
        (AUTO, [(SHORT, NONE)], False),
        (Switch.ON, [(LONG, PRESENT)], True),
        (Switch.ON, [(LONG, NONE)], False),
        (Switch.OFF, [(SHORT, NONE)], False),
    ],
)
async def test_the_long_form_is_used_where_it_alone_leads_anywhere(
    mode: Switch | Auto,
    answers: list[tuple[str, DnsAnswer]],
    renamed: bool,  # noqa: FBT001 - a row of the table
) -> None:
    alone = mode is AUTO and len(answers) == 1
    scripted = Scripted(answers, *["svc.cluster.local", "cluster.local"] * alone)
    settings, options = Settings(rewrite_fqdn=mode), PipelineOptions(once=True)
    made = Pipelines(settings, access(scripted, domain="cluster.local"), options)
    if answers[-1][1] is PRESENT:
        assert await made.resolve(state(SHORT), SHORT) == PRESENT.addresses
    else:
        why = answers[0][1].reason.value
        with pytest.raises(MpibootError, match=why):
            await made.resolve(state(SHORT), SHORT)
    assert (scripted.answers, made.renamed) == ([], {SHORT: LONG} if renamed else {})
