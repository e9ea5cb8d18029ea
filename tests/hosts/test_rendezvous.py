"""The wait for one name, against a real nameserver."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from mpiboot.core import log
from mpiboot.core.checks import ExitCode, MpibootError
from mpiboot.core.setting_types import LogFormat
from mpiboot.core.settings import Settings
from mpiboot.hosts import gate
from mpiboot.hosts.dns import Resolver
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
    folder: Path, script: list[str], settings: Settings, after: int = 99
) -> tuple[str, ...]:
    server = Nameserver({LONG: script})
    async with serve(server) as port:
        resolver = Resolver(
            resolv_conf(folder),
            system=Late(server, after),
            port=port,
            families=("A",),
        )
        return await gate.wait_for_name(WANTED, settings, resolver)


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
async def test_a_name_that_never_comes_ends_with_the_reason(
    tmp_path: Path, settings: Settings
) -> None:
    with pytest.raises(MpibootError) as ended:
        await waited(tmp_path, [NXDOMAIN], settings)
    finding = ended.value.finding
    assert ended.value.code == ExitCode.NAMES_UNRESOLVED
    assert finding.host == "trainer-0.trainer"
    assert "NXDOMAIN" in finding.message
    assert "; --rdzv-endpoint names it, waited for " in finding.message
    assert "below its headless Service: write POD.SERVICE" in finding.hint


async def test_what_is_no_host_name_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(MpibootError) as ended:
        await gate.wait_for_name(Rendezvous("$(HEAD)", "MASTER_ADDR"), Settings())
    assert ended.value.code == ExitCode.USAGE
    assert "MASTER_ADDR: '$(HEAD)' is not a host name" in ended.value.finding.message
    assert ended.value.finding.hint == "name a host, or HOST:PORT"


async def test_the_name_that_came_is_told_with_its_fields(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And nothing of the wait goes on."""
    log.configure(form=LogFormat.JSON)
    before = asyncio.all_tasks()
    await waited(tmp_path, ["10.0.0.7"], Settings())
    log.configure()
    assert asyncio.all_tasks() == before
    told = json.loads(capfd.readouterr().err)
    assert (told["event"], told["host"], told["by"]) == ("rendezvous", WANTED.host, WANTED.by)
    assert told["seconds"] >= 0
