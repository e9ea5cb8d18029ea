"""What a gate returns and leaves behind, with hosts that are written; the wait for one name."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.facts import Host, NoFacts, Worker
from mpiboot.core.model import DataNetworkUse, LogFormat, LogLevel
from mpiboot.core.settings import Settings
from mpiboot.hosts import error_report, gate, progress
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.pipeline import PipelineOptions, SshAccess
from mpiboot.hosts.progress import HostState
from mpiboot.job.program_words import Rendezvous
from mpiboot.ssh.pool import Pool
from tests.fakes import plans
from tests.fakes.nameserver import NXDOMAIN, SERVFAIL, Nameserver, resolv_conf, serve
from tests.waiting import until_in_loop

HOSTS = plans.hosts(1, 1)
READY = tuple(plans.worker(host, number, None) for number, host in enumerate(HOSTS))
LATE = replace(READY[0], facts=None, no_facts=NoFacts.PENDING)
OWN = Host("launcher")
TO = SshAccess("r", Pool(Path("key")), "launcher")


class Hosts:
    """Pipelines whose ends are written; whoever is not named is waited for without end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *workers: Worker) -> None:
        self.ends: dict[str, Worker | BaseException | None] = {OWN.name: None}
        self.ends |= {worker.host.name: worker for worker in workers}
        self.resolved_at = 0
        self.renamed = {"w-0": "w-0.long"}
        self.now = 1000.0
        monkeypatch.setattr(gate, "Pipelines", lambda *_: self)
        monkeypatch.setattr(gate, "time", SimpleNamespace(monotonic=lambda: self.now))

    def is_this_pod(self, host: Host) -> bool:
        return host == OWN

    async def prepare(self, _: object) -> None:
        await asyncio.sleep(0)

    async def why_lost(self, _: Worker, *, by_name: bool, connected: bool) -> None:
        assert not by_name

    async def run(self, state: HostState) -> Worker | None:
        if state.host.name not in self.ends:
            # As `wait_for` does before Python 3.12, it may lose a cancellation.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await asyncio.Event().wait()
        end = self.ends[state.host.name]
        self.now = max(self.now, 1002.5)
        if isinstance(end, BaseException):
            raise end
        return end


@pytest.fixture(autouse=True)
def as_json() -> None:
    log.configure(form=LogFormat.JSON)


DOCTOR = PipelineOptions(doctor=("doctor",))


@pytest.mark.parametrize("use", [DataNetworkUse.PREFER, DataNetworkUse.OFF])
async def test_a_probe_returns_all_that_it_found(
    monkeypatch: pytest.MonkeyPatch, use: DataNetworkUse
) -> None:
    hosts = Hosts(monkeypatch, LATE)
    hosts.ends[HOSTS[1].name] = error("names-unresolved", "no such name", host=HOSTS[1].name)
    hosts.ends["other-name"] = None
    settings, listed = Settings(data_network=use), (*HOSTS, OWN, Host("other-name"))
    found = await gate.probe_once(listed, settings, TO, DOCTOR)
    assert (found.workers, found.local) == ((LATE,), listed[2:])
    assert found.renamed == hosts.renamed
    late = [("worker-facts", LATE.host.name)] if use is DataNetworkUse.PREFER else []
    findings = [(item.check, item.host) for item in found.findings]
    assert findings == [("names-unresolved", HOSTS[1].name), *late]


async def test_a_gate_returns_all_that_it_found_and_logs_how_long_it_took(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hosts, reached = Hosts(monkeypatch, *READY), [LATE]
    hosts.resolved_at = 1001
    before = asyncio.all_tasks()
    found = await gate.wait((*HOSTS, OWN), Settings(), TO, reached=reached)
    assert asyncio.all_tasks() == before
    assert (found.workers, found.local, reached) == (READY, (OWN,), [LATE, *READY])
    assert found.renamed == hosts.renamed
    assert found.times == (1001, 1002.5)
    line = json.loads(capfd.readouterr().err.splitlines()[-1])
    assert line["message"] == "3 hosts ready in 2.5 s"
    counts = line["ready"], line["total"], line["seconds"], line["names"]
    assert counts == (3, 3, 2.5, 1.0)


async def test_who_is_ready_so_far_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts, reports = Hosts(monkeypatch, READY[0]), list[gate.GateResult]()
    waiting = asyncio.ensure_future(gate.wait(HOSTS, Settings(), TO, report=reports.append))
    await until_in_loop(lambda: reports)
    assert [found.workers for found in reports] == [READY[:1]]
    assert reports[0].renamed == hosts.renamed
    waiting.cancel()
    await asyncio.wait({waiting})


@pytest.mark.parametrize("deadline", [False, True])
async def test_who_was_ready_is_known_though_another_fails_and_nothing_goes_on(
    monkeypatch: pytest.MonkeyPatch, *, deadline: bool
) -> None:
    hosts, reached = Hosts(monkeypatch, READY[0]), list[Worker]()
    if not deadline:
        hosts.ends[HOSTS[1].name] = error("ssh-denied", "no")
    before, settings = asyncio.all_tasks(), Settings(timeout=2.0)  # the first host takes 2.5
    with pytest.raises(MpibootError, match="after 2 s" if deadline else "no"):
        await gate.wait((*HOSTS, Host("never")), settings, TO, reached=reached)
    assert reached == [READY[0]]
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize(("late", "lines"), [(3, 5), (16, 18), (17, 4), (200, 4)])
def test_of_a_thousand_hosts_those_that_never_came_are_named_on_one_screen(
    late: int, lines: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of more than sixteen in one line for all of a kind; the log at debug has each."""
    log.configure()
    names = [f"job-worker-{number}.job" for number in range(1000)]
    states = progress.states([Host(name) for name in names])
    for number, state in enumerate(states, start=late - len(states)):
        state.set(progress.Stage.READY)
        if number >= 0:
            detail = f"connection refused on 10.0.0.{number} port 22"
            state.set(progress.Stage.SSH, "connection refused", detail)
            state.resolved, state.hint = True, "look there"
    states[-1].reason, states[-1].detail = "no route", "no route to 10.0.0.9"
    wrong = gate.missing_error(states, states[-late:], 600.0)
    message = error_report.report(wrong)
    told = capfd.readouterr().err.splitlines()
    assert len(told) <= lines
    assert f"{late} of 1000 hosts are not ready after 10m" in told[0]
    for text in ("connection refused on 10.0.0.0 port 22", "no route", *names[-late:][:3]):
        assert text in "".join(told)
        assert text in message
    log.configure(level=LogLevel.DEBUG)
    error_report.report(wrong)
    whole = capfd.readouterr().err
    assert all(f"{name}: SSH: " in whole for name in names[-late:])


@pytest.mark.parametrize(
    ("missing", "check", "message", "hint"),
    [
        ("abc", "workers-unreachable", "3 of 3 hosts are not ready after 12.3 s: waiting", "this"),
        ("a", "names-unresolved", "1 of 3 hosts do not resolve after 12.3 s: waiting", "headless"),
    ],
)
def test_what_to_do_is_the_first_hosts_advice(
    missing: str, check: str, message: str, hint: str
) -> None:
    states = [HostState(Host(name), name, resolved=name == "b") for name in "abc"]
    states[1].hint, states[2].hint = "do this", "do that"
    wrong = gate.missing_error(states, states[: len(missing)], 12.34)
    assert wrong.finding.check == check
    assert wrong.finding.message.startswith(message)
    assert hint in wrong.finding.hint
    assert wrong.finding.evidence[0] == "a: DNS: no answer yet"
    assert [item.host for item in wrong.others] == [*missing]


def test_another_jobs_key_or_launcher_is_what_the_deadline_reports() -> None:
    states = [HostState(Host(name), name, resolved=True) for name in "abc"]
    words = "in use by launcher x (10.0.0.9) since 2026"
    for state in states[1:]:
        state.error = error("workers-held", words, host=state.host.name).finding
    held = gate.missing_error(states, states, 20.2)
    assert (held.finding.check, held.code) == ("workers-held", 75)
    assert held.finding.message == f"b, c are {words}; gave up after 20.2 s, nothing started"
    assert [(item.check, item.host) for item in held.others] == [("workers-unreachable", "a")]
    states[0].error = error("host-key-differs", "another key", host="a").finding
    differs = gate.missing_error(states, states, 20.2)
    assert (differs.finding, differs.code) == (states[0].error, 77)
    assert {(item.check, item.host) for item in differs.others} == {
        *(("workers-held", "b"), ("workers-held", "c"))
    }


LONG = "trainer-0.trainer.ns.svc.cluster.local"
WANTED = Rendezvous("trainer-0.trainer", "--rdzv-endpoint")


async def waited(folder: Path, script: list[str], settings: Settings) -> None:
    async with serve(Nameserver({LONG: script})) as port:
        conf = resolv_conf(folder)
        resolver = Resolver(conf, system=lambda _: (), port=port, families=("A",))
        await gate.wait_for_name(WANTED, settings, resolver)


async def test_a_name_that_comes_late_is_waited_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And nothing of the wait goes on."""
    before = asyncio.all_tasks()
    await waited(tmp_path, [SERVFAIL, NXDOMAIN, NXDOMAIN, "10.0.0.7"], Settings(timeout=60))
    assert asyncio.all_tasks() == before
    line = json.loads(capfd.readouterr().err.splitlines()[0])
    assert (line["event"], line["host"], line["by"]) == ("rendezvous", WANTED.host, WANTED.by)
    assert line["message"] == "waiting for trainer-0.trainer (--rdzv-endpoint)"


@pytest.mark.parametrize("settings", [Settings(timeout=0.2), Settings(timeout=60, dns_wait=0.2)])
async def test_a_name_that_never_comes_ends_with_the_reason(
    tmp_path: Path, settings: Settings
) -> None:
    with pytest.raises(MpibootError) as ended:
        await waited(tmp_path, [NXDOMAIN], settings)
    (other,) = ended.value.others
    assert (ended.value.code, other.host) == (68, "trainer-0.trainer")
    assert "NXDOMAIN" in ended.value.finding.message
    assert "headless Service" in ended.value.finding.hint


async def test_what_is_no_host_name_is_not_waited_for() -> None:
    with pytest.raises(MpibootError) as ended:
        await gate.wait_for_name(Rendezvous("$(HEAD)", "MASTER_ADDR"), Settings())
    assert ended.value.code == 2
    assert "MASTER_ADDR: '$(HEAD)' is not a host name" in ended.value.finding.message
    assert ended.value.finding.hint == "name a host, or HOST:PORT"
