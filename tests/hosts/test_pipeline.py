"""One host's way through the gate, with answers of names and servers that are written."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Host
from mpiboot.core.model import AUTO, Auto, Switch
from mpiboot.core.settings import Settings, resolve
from mpiboot.hosts import pipeline
from mpiboot.hosts.dns import DnsAnswer, NoAddress, ResolvConf
from mpiboot.hosts.pipeline import PipelineOptions, Pipelines, SshAccess, pause
from mpiboot.hosts.progress import HostState
from mpiboot.ssh.attempt import Attempt, Outcome, Target
from mpiboot.ssh.client import HostSettings, OpensshClient
from mpiboot.ssh.config import LaunchHost
from mpiboot.ssh.pool import Pool
from tests.fakes import plans

if TYPE_CHECKING:
    from mpiboot.hosts.dns import Resolver


FOUND = DnsAnswer(("192.0.2.7",))


class Names:
    """A resolver with an answer for each question, in their order; the last one stays."""

    def __init__(self, *answers: DnsAnswer, search: tuple[str, ...] = ()) -> None:
        self.answers, self.conf, self.asked = [*answers], ResolvConf(search=search), list[str]()

    async def resolve(self, name: str) -> DnsAnswer:
        self.asked.append(name)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def access(names: object, pool: Pool | None = None, **more: Any) -> SshAccess:  # noqa: ANN401
    resolver = cast("Resolver", names)
    return SshAccess("runner", pool or Pool(Path("key")), "launcher", resolver=resolver, **more)


def pipelines(*answers: DnsAnswer, once: bool = False, **more: Any) -> Pipelines:  # noqa: ANN401
    settings = Settings(rewrite_fqdn=Switch.OFF)
    return Pipelines(settings, access(Names(*answers), **more), PipelineOptions(once=once))


@pytest.mark.parametrize(("line", "where"), [(0, ""), (3, "line 3 of the hostfile: ")])
async def test_a_name_that_is_none_is_told_with_its_host(line: int, where: str) -> None:
    bad = DnsAnswer(reason=NoAddress.MALFORMED, detail="'a b' is not a host name")
    with pytest.raises(MpibootError) as caught:
        await pipelines(bad).run(HostState(Host("a b", line=line), "a b"))
    found = caught.value.finding
    assert (found.host, found.message) == ("a b", f"{where}'a b' is not a host name")


async def test_another_servers_key_and_the_name_are_asked_for_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node's own server may punish who logs in too often; the name may lead elsewhere by then."""
    names, now, tried = Names(FOUND), [1000.0], list[int]()
    made = Pipelines(Settings(rewrite_fqdn=Switch.OFF), access(names, ports=(22, 2222)))

    async def log_in(target: Target, *_: object) -> Attempt:
        tried.append(target.port)
        return Attempt(target, Outcome.HOST_KEY_DIFFERS if target.port == 22 else Outcome.REFUSED)

    async def sleep(seconds: float) -> None:
        now[0] += seconds
        if len(tried) > 5:
            raise TimeoutError

    monkeypatch.setattr(made.pool, "log_in", log_in)
    monkeypatch.setattr(made.pool, "load", AsyncMock(return_value=Mock(host_fingerprint="x")))
    monkeypatch.setattr(pipeline, "time", SimpleNamespace(monotonic=lambda: now[0]))
    patched = SimpleNamespace(**{**vars(asyncio), "sleep": sleep})
    monkeypatch.setattr(pipeline, "asyncio", patched)
    with pytest.raises(TimeoutError):
        await made.run(HostState(Host("w-0"), "w-0"))
    assert (tried, now[0]) == ([22, 2222] * 3, 1015.0)
    assert names.asked == ["w-0"] * 3


V4, V6 = "192.0.2.7", "fd00::7"


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
    client = SimpleNamespace(known=lambda host: HostSettings(host, **ssh))
    pool = Pool(Path("key"), client=cast("OpensshClient", client))
    to = access(Names(FOUND), pool, ports=(22, 2222))
    made = Pipelines(resolve(flags, {}).settings, to)
    found = made.targets(Host("w-0", user=user), (V4,))
    assert [(item.port, item.user, item.user_by) for item in found] == expected
    assert {(item.host, item.address) for item in found} == {("w-0", V4)}


@pytest.mark.parametrize(
    ("ipv6", "expected"), [(True, [V6, V4]), (False, [V4, V6]), (None, [V4, V6])]
)
def test_the_pods_version_of_ip_is_tried_first_and_four_addresses_in_all(
    *, ipv6: bool | None, expected: list[str]
) -> None:
    made = pipelines(FOUND, ports=(22,), ipv6=ipv6)
    assert [item.address for item in made.targets(Host("w-0"), (V4, V6))] == expected
    many = tuple(f"192.0.2.{number}" for number in range(9))
    assert tuple(item.address for item in made.targets(Host("w-0"), many)) == many[:4]


async def test_a_hundred_and_twenty_eight_connections_are_open_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit of files that a container may open is 1024 by default."""
    many, release, now = 140, asyncio.Event(), list[Target]()

    async def log_in(target: Target, *_: object) -> Attempt:
        now.append(target)
        await release.wait()
        return Attempt(target, Outcome.REFUSED)

    made = pipelines(FOUND, once=True, ports=(22,))
    monkeypatch.setattr(made.pool, "log_in", log_in)
    login = SimpleNamespace(host_fingerprint="SHA256:job")
    monkeypatch.setattr(made.pool, "load", AsyncMock(return_value=login))
    runs = [asyncio.ensure_future(made.run(HostState(Host("w-0"), "w-0"))) for _ in range(many)]
    for _ in range(1000):  # turns of the loop
        await asyncio.sleep(0)
    assert len(now) == 128
    release.set()
    await asyncio.wait(runs)
    assert [type(run.exception()) for run in runs] == [MpibootError] * many
    assert len(now) == many


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
    failed = DnsAnswer(reason=NoAddress.SERVFAIL)
    answers = [DnsAnswer((address,)) if address else failed for address in told]
    worker = replace(plans.worker(Host("w-0"), 1, None), address="10.0.0.1", dns_name="w-0")
    made = pipelines(*answers)
    made.pool.know((LaunchHost("w-0", "10.0.0.1", 22, "root"),))
    assert await made.why_lost(worker, by_name=True, connected=True) == "its connection broke"
    # One whose connection broke before is compared by its name alone.
    assert (await made.why_lost(worker, by_name=True, connected=False) or "") == moved


def test_few_hosts_are_tried_often_and_thousands_share_a_budget() -> None:
    assert [pause(waited, 10) for waited in (0, 5, 20, 1000)] == [0.05, 0.05, 0.2, 1.0]
    assert [pause(0, pending) for pending in (1000, 1_000_000)] == [5.0, 15.0]


SHORT, LONG = "w-0.job.ns.svc", "w-0.job.ns.svc.cluster.local"
NONE = DnsAnswer(reason=NoAddress.NXDOMAIN)
PRESENT = DnsAnswer(("10.0.0.5",))
FAILED = DnsAnswer(reason=NoAddress.SERVFAIL)


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
    mode: Switch | Auto, answers: list[tuple[str, DnsAnswer]], *, renamed: bool
) -> None:
    search = ("svc.cluster.local", "cluster.local") if len(answers) == 1 else ()
    resolver = Names(*(answer for _, answer in answers), search=search)
    settings, options = Settings(rewrite_fqdn=mode), PipelineOptions(once=True)
    made = Pipelines(settings, access(resolver, domain="cluster.local"), options)
    state = HostState(Host(SHORT), SHORT)
    if answers[-1][1] is PRESENT:
        assert await made.resolve(state, SHORT) == PRESENT.addresses
    else:
        with pytest.raises(MpibootError, match=answers[0][1].reason.value):
            await made.resolve(state, SHORT)
    assert resolver.asked == [name for name, _ in answers]
    assert made.renamed == ({SHORT: LONG} if renamed else {})
