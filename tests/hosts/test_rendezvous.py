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


async def waited(folder: Path, script: list[str], settings: Settings) -> tuple[str, ...]:
    server = Nameserver({LONG: script})
    async with serve(server) as port:
        conf = resolv_conf(folder)
        resolver = Resolver(conf, system=lambda _: (), port=port, families=("A",))
        return await gate.wait_for_name(WANTED, settings, resolver)


async def test_a_name_that_comes_late_is_waited_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And nothing of the wait goes on."""
    log.configure(form=LogFormat.JSON)
    before, script = asyncio.all_tasks(), [SERVFAIL, NXDOMAIN, NXDOMAIN, "10.0.0.7"]
    assert await waited(tmp_path, script, Settings(timeout=60)) == ("10.0.0.7",)
    log.configure()
    assert asyncio.all_tasks() == before
    line = json.loads(capfd.readouterr().err.splitlines()[-1])
    assert (line["event"], line["host"], line["by"]) == ("rendezvous", WANTED.host, WANTED.by)
    assert line["message"].startswith("trainer-0.trainer (--rdzv-endpoint) is 10.0.0.7, after ")
    assert line["seconds"] >= 0


@pytest.mark.parametrize(
    "settings",
    [
        Settings(timeout=0.2),
        Settings(timeout=60, dns_wait=0.2),
        Settings(timeout=600, dns_wait=0.0),  # one query
    ],
)
async def test_a_name_that_never_comes_ends_with_the_reason(
    tmp_path: Path, settings: Settings
) -> None:
    with pytest.raises(MpibootError) as ended:
        await waited(tmp_path, [NXDOMAIN], settings)
    finding = ended.value.finding
    assert (ended.value.code, finding.host) == (ExitCode.NAMES_UNRESOLVED, "trainer-0.trainer")
    assert "NXDOMAIN" in finding.message
    assert "; --rdzv-endpoint names it, waited for " in finding.message
    assert "below its headless Service: write POD.SERVICE" in finding.hint


async def test_what_is_no_host_name_is_not_waited_for() -> None:
    with pytest.raises(MpibootError) as ended:
        await gate.wait_for_name(Rendezvous("$(HEAD)", "MASTER_ADDR"), Settings())
    assert ended.value.code == ExitCode.USAGE
    assert "MASTER_ADDR: '$(HEAD)' is not a host name" in ended.value.finding.message
    assert ended.value.finding.hint == "name a host, or HOST:PORT"
