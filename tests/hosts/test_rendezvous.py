"""The wait for one name, against a real nameserver."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from mpiboot.core import log
from mpiboot.core.checks import ExitCode, MpibootError
from mpiboot.core.setting_types import LogFormat
from mpiboot.core.settings import Settings
from mpiboot.hosts import gate
from mpiboot.hosts.dns import DnsAnswer, NoAddress, ResolvConf, Resolver
from mpiboot.hosts.progress import Reporter
from mpiboot.job.program_words import Rendezvous
from tests.fakes.nameserver import NXDOMAIN, SERVFAIL, Nameserver, resolv_conf, serve

LONG = "trainer-0.trainer.ns.svc.cluster.local"
WANTED = Rendezvous("trainer-0.trainer", "--rdzv-endpoint")


class Late:
    """A system resolver that knows a name once the nameserver has been asked so often."""

    def __init__(self, server: Nameserver, after: int) -> None:
        self._server = server
        self._after = after

    def __call__(self, _: str) -> tuple[str, ...]:
        return ("10.0.0.7",) if self._server.asked[LONG, "A"] >= self._after else ()


async def waited(
    folder: Path, script: list[str], settings: Settings, hint: str = "", after: int = 99
) -> tuple[str, ...]:
    server = Nameserver({LONG: script})
    async with serve(server) as port:
        resolver = Resolver(
            resolv_conf(folder),
            system=Late(server, after),
            port=port,
            families=("A",),
        )
        return await gate.wait_for_name(WANTED, settings, hint, resolver)


async def test_a_name_that_comes_late_is_waited_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = [SERVFAIL, NXDOMAIN, NXDOMAIN, "10.0.0.7"]
    found = await waited(tmp_path, script, Settings(timeout=60), after=4)
    assert found == ("10.0.0.7",)
    assert "trainer-0.trainer (--rdzv-endpoint) is 10.0.0.7, after " in capfd.readouterr().err


@pytest.mark.parametrize(
    "settings",
    [
        Settings(timeout=0.2),
        Settings(timeout=60, dns_wait=0.2),
        Settings(timeout=600, dns_wait=0.0),  # one look
    ],
)
@pytest.mark.parametrize("hint", ["", "make it indexed"])
async def test_a_name_that_never_comes_ends_with_the_reason(
    tmp_path: Path, settings: Settings, hint: str
) -> None:
    with pytest.raises(MpibootError) as ended:
        await waited(tmp_path, [NXDOMAIN], settings, hint)
    finding = ended.value.finding
    assert ended.value.code == ExitCode.NAMES_UNRESOLVED
    assert finding.host == "trainer-0.trainer"
    assert "NXDOMAIN" in finding.message
    assert "; --rdzv-endpoint names it, waited for " in finding.message
    assert finding.hint == hint or (not hint and "headless Service" in finding.hint)


async def test_what_is_no_host_name_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(MpibootError) as ended:
        await gate.wait_for_name(Rendezvous("$(HEAD)", "MASTER_ADDR"), Settings())
    assert ended.value.code == ExitCode.USAGE
    assert "MASTER_ADDR: '$(HEAD)' is not a host name" in ended.value.finding.message
    assert ended.value.finding.hint == "name a host, or HOST:PORT"


class Quick:
    """Answers that are written, and time that passes by pauses alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: DnsAnswer) -> None:
        self.conf = ResolvConf()
        self._answers = [*answers]
        self.pauses: list[float] = []
        self.given: list[tuple[float | None, ...]] = []
        self.left: list[float] = []
        self.changes = 0
        asyncs = SimpleNamespace(**{**vars(asyncio), "sleep": self._sleep})
        monkeypatch.setattr(gate, "asyncio", asyncs)
        clock = SimpleNamespace(monotonic=lambda: 1000.0 + sum(self.pauses))
        monkeypatch.setattr(gate, "time", clock)
        monkeypatch.setattr(gate, "pause", self._pause)
        monkeypatch.setattr(gate, "Reporter", self._reporter)

    def _reporter(self, *, live: bool, left: Callable[[], float]) -> Reporter:
        self._left = left
        made = Reporter(live=live, left=left)
        self.end, made.clear = made.clear, self._clear  # type: ignore[method-assign]
        made.changed = self._changed  # type: ignore[method-assign]
        self.cleared = 0
        return made

    def _clear(self) -> None:
        self.cleared += 1

    def _changed(self) -> None:
        self.changes += 1

    def _pause(self, *given: float | None) -> float:
        self.given.append(given)
        return 4.0

    async def _sleep(self, seconds: float) -> None:
        self.left.append(self._left())
        assert len(self.pauses) < 1000, "it never ends"
        self.pauses.append(seconds)

    async def ask(self, _: str) -> DnsAnswer:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


MISSING = DnsAnswer("x", reason=NoAddress.NXDOMAIN, detail="NXDOMAIN (asked y)")
TIMEOUT = DnsAnswer("x", reason=NoAddress.TIMEOUT, detail="no answer")
FOUND = DnsAnswer("x", ("10.0.0.7", "fd00::7"))


async def test_the_wait_is_over_at_the_deadline_to_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And nothing of it goes on."""
    quick, before = Quick(monkeypatch, MISSING, TIMEOUT, MISSING), asyncio.all_tasks()
    settings = Settings(timeout=60.0, dns_wait=10.0, dns_interval=0.5)
    with pytest.raises(MpibootError) as ended:
        await gate.wait_for_name(WANTED, settings, "", cast("Resolver", quick))
    assert quick.pauses == [4.0, 4.0, 2.0]
    assert quick.left == [10.0, 6.0, 2.0]
    assert quick.given == [(0.0, 1, 0.5), (4.0, 1, 0.5), (8.0, 1, 0.5)]
    assert (quick.changes, quick.cleared) == (3, 1)  # the last two are alike
    assert ended.value.finding.message == (
        "DNS: NXDOMAIN (asked y); --rdzv-endpoint names it, waited for 10 s"
    )
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_the_name_that_came_is_told_with_its_fields(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure(form=LogFormat.JSON)
    quick = Quick(monkeypatch, MISSING, FOUND)
    found = await gate.wait_for_name(WANTED, Settings(), "", cast("Resolver", quick))
    log.configure()
    assert found == FOUND.addresses
    told = json.loads(capfd.readouterr().err)
    assert told["event"] == "rendezvous"
    assert told["message"] == (
        "trainer-0.trainer (--rdzv-endpoint) is 10.0.0.7, fd00::7, after 4.0 s"
    )
    assert (told["host"], told["by"], told["seconds"]) == (WANTED.host, WANTED.by, 4.0)
