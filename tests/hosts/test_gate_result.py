"""What a gate hands on and leaves behind, with hosts that are written to be ready or not."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.facts import Host, NoFacts, Worker
from mpiboot.core.setting_types import DataNetworkUse, LogFormat, LogLevel
from mpiboot.core.settings import Settings
from mpiboot.hosts import error_report, gate, progress
from mpiboot.hosts.access import SshAccess
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.pairs import PairCheck
from mpiboot.hosts.pipeline import PipelineOptions, Pipelines
from mpiboot.hosts.progress import HostState
from mpiboot.ssh.attempt import Attempt, LoginTimeouts, Outcome, Target
from mpiboot.ssh.pool import Pool
from mpiboot.system.threads import end_tasks
from tests.fakes import plans
from tests.waiting import until_in_loop

HOSTS = plans.hosts(1, 1)
READY = tuple(plans.worker(host, number, None) for number, host in enumerate(HOSTS))
LATE = replace(READY[0], facts=None, no_facts=NoFacts.LATE)
OWN = Host("launcher")
TO = SshAccess("r", Pool(Path("key")), "launcher")


class Clock:
    """Stands still unless it is put forward."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Hosts:
    """Pipelines whose ends are written; whoever is not named is waited for without end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *workers: Worker) -> None:
        self.ends: dict[str, Worker | BaseException | None] = {OWN.name: None}
        self.ends |= {worker.host.name: worker for worker in workers}
        self.given: list[tuple[object, ...]] = []
        self.last_name = 0
        self.names = SimpleNamespace(renamed={"w-0": "w-0.long"})
        self.host_keys = {"w-0": "ssh-ed25519 SHOWN"}
        self.answers = {"w-0": Attempt(Target("w-0", "10.0.0.1", 22, ""), Outcome.OK)}
        self.clock = Clock()
        monkeypatch.setattr(gate, "Pipelines", self._made)
        monkeypatch.setattr(gate, "time", self.clock)

    def _made(self, *args: object) -> Hosts:
        self.given.append(args)
        return self

    async def moved(self, _: Worker) -> str:
        return ""

    def is_own_name(self, host: Host) -> bool:
        return host == OWN

    async def prepare(self, _: object) -> None:
        await asyncio.sleep(0)

    def is_connected(self, _: Worker) -> bool:
        return True

    async def run(self, state: HostState) -> Worker | None:
        if state.host.name not in self.ends:
            await asyncio.Event().wait()
        end = self.ends[state.host.name]
        self.clock.now = max(self.clock.now, 1002.5)
        if isinstance(end, BaseException):
            raise end
        return end


@pytest.fixture(autouse=True)
def as_json() -> Iterator[None]:
    log.configure(form=LogFormat.JSON)
    yield
    log.configure()


class Nowhere:
    """A resolver that finds nothing."""

    async def ask_system(self, _: str) -> tuple[str, ...]:
        return ()


RESOLVER = cast("Resolver", Nowhere())
LIMITS, PAIRS = LoginTimeouts(command=3.0), PairCheck(0.0, "", "launch")


@pytest.mark.parametrize("use", [DataNetworkUse.PREFER, DataNetworkUse.OFF])
async def test_a_look_hands_on_all_that_it_found(
    monkeypatch: pytest.MonkeyPatch, use: DataNetworkUse
) -> None:
    hosts = Hosts(monkeypatch, LATE)
    missing = error("names-unresolved", "no such name", host=HOSTS[1].name)
    hosts.ends[HOSTS[1].name] = missing
    hosts.ends["other-name"] = None
    settings = Settings(data_network=use)
    listed = (*HOSTS, OWN, Host("other-name"))
    found = await gate.probe_once(
        listed,
        settings,
        TO,
        PipelineOptions(LIMITS, "/m", PAIRS),
        resolver=RESOLVER,
        doctor=("doctor",),
    )
    assert found.workers == (LATE,)
    assert found.local == listed[2:]
    assert found.answers == hosts.answers
    assert (found.renamed, found.host_keys) == (hosts.names.renamed, hosts.host_keys)
    late = [("worker-facts", LATE.host.name)] if use is DataNetworkUse.PREFER else []
    assert [(item.check, item.host) for item in found.findings] == [
        ("names-unresolved", HOSTS[1].name),
        *late,
    ]
    (given,) = hosts.given
    options = PipelineOptions(LIMITS, "/m", PAIRS, doctor=("doctor",), once=True)
    assert given == (settings, TO, RESOLVER, options)


@pytest.mark.parametrize("deadline", [False, True])
async def test_who_was_ready_is_known_though_another_fails_and_nothing_goes_on(
    monkeypatch: pytest.MonkeyPatch, *, deadline: bool
) -> None:
    hosts, reached = Hosts(monkeypatch, READY[0]), list[Worker]()
    if not deadline:
        hosts.ends[HOSTS[1].name] = error("ssh-denied", "no")
    before, settings = asyncio.all_tasks(), Settings(timeout=2.0)  # the first host takes 2.5
    with pytest.raises(MpibootError, match="after 2 s" if deadline else "no"):
        await gate.wait((*HOSTS, Host("never")), settings, TO, resolver=RESOLVER, reached=reached)
    assert reached == [READY[0]]
    assert asyncio.all_tasks() == before


async def test_what_nobody_expected_ends_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(monkeypatch)
    hosts.ends[HOSTS[0].name] = RuntimeError("nobody thought of it")
    with pytest.raises(RuntimeError, match="nobody thought of it"):
        await gate.probe_once(HOSTS[:1], Settings(), TO, resolver=RESOLVER)


async def test_a_gate_hands_on_all_that_it_found_and_says_how_long_it_took(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hosts, reached = Hosts(monkeypatch, *READY), [LATE]
    hosts.last_name = 1001
    before = asyncio.all_tasks()
    found = await gate.wait(
        (*HOSTS, OWN),
        Settings(),
        TO,
        PipelineOptions(LIMITS, "/m", PAIRS),
        resolver=RESOLVER,
        reached=reached,
    )
    assert asyncio.all_tasks() == before
    assert (found.workers, found.local, reached) == (READY, (OWN,), [LATE, *READY])
    assert (found.renamed, found.host_keys) == (hosts.names.renamed, hosts.host_keys)
    assert found.findings == ()
    (given,) = hosts.given
    options = PipelineOptions(LIMITS, "/m", PAIRS)
    assert given == (Settings(), TO, RESOLVER, options)
    told = json.loads(capfd.readouterr().err.splitlines()[-1])
    assert told["message"] == "3 hosts ready in 2.5 s"
    assert (told["ready"], told["total"]) == (3, 3)
    assert (told["seconds"], told["names"]) == (2.5, 1.0)


@pytest.mark.parametrize(("listed", "loaded"), [((OWN,), 0), ((OWN, HOSTS[0]), 1)])
async def test_the_key_is_read_where_anybody_is_to_be_logged_in_to(
    monkeypatch: pytest.MonkeyPatch, listed: tuple[Host, ...], loaded: int
) -> None:
    loads: list[None] = []

    async def load(_: Pool) -> None:
        loads.append(None)

    monkeypatch.setattr(Pool, "load", load)
    await Pipelines(Settings(), TO, Resolver()).prepare(listed)
    assert len(loads) == loaded


async def test_nobody_complains_of_what_a_task_failed_with_at_the_end() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda *message: complaints.append(message))

    async def fail() -> None:
        raise RuntimeError("late")

    async def wait() -> None:
        await asyncio.Event().wait()

    tasks: set[asyncio.Future[Any]] = {asyncio.ensure_future(fail()), asyncio.ensure_future(wait())}
    await asyncio.sleep(0)
    await end_tasks(tasks)
    tasks.clear()
    gc.collect()
    assert complaints == []


def test_what_to_do_is_the_first_hosts_advice() -> None:
    states = [HostState(Host(name), name, resolved=name == "b") for name in ("a", "b", "c")]
    states[1].hint, states[2].hint = "do this", "do that"
    wrong = gate.missing_error(states, states, 12.34)
    assert wrong.finding.hint == "do this"
    assert wrong.finding.message.startswith("3 of 3 hosts are not ready after 12.3 s: waiting for ")
    assert [item.host for item in wrong.others] == ["a", "b", "c"]
    unresolved = gate.missing_error(states, states[:1], 60.0).finding
    assert (unresolved.check, unresolved.evidence) == (
        "names-unresolved",
        ("a: DNS: no answer yet",),
    )


@pytest.mark.parametrize(("late", "lines"), [(3, 5), (16, 18), (17, 4), (200, 4)])
def test_of_a_thousand_hosts_those_that_never_came_are_named_on_one_screen(
    late: int, lines: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of more than sixteen in one line for all of a kind; the log at debug has each."""
    log.configure()
    names = [f"job-worker-{number}.job" for number in range(1000)]
    states = progress.states([Host(name) for name in names])
    for state in states[:-late]:
        state.stage = progress.Stage.READY
    for number, state in enumerate(states[-late:]):
        state.stage, state.resolved, state.hint = progress.Stage.SSH, True, "look there"
        state.detail = f"connection refused on 10.0.0.{number} port 22"
    states[-1].detail = "no route to 10.0.0.9"
    wrong = gate.missing_error(states, states[-late:], 600.0)
    message = error_report.say(wrong)
    told = capfd.readouterr().err.splitlines()
    assert len(told) <= lines
    assert f"{late} of 1000 hosts are not ready after 10m" in told[0]
    for text in ("connection refused on 10.0.0.0 port 22", "no route to 10.0.0.9"):
        assert any(text in line for line in told)
        assert text in message
    for name in (*names[-late:][:3], names[-1]):
        assert any(name in line for line in told)
        assert name in message
    log.configure(level=LogLevel.DEBUG)
    error_report.say(wrong)
    whole = capfd.readouterr().err
    assert all(f"{name}: SSH: " in whole for name in names[-late:])


async def test_ctrl_c_leaves_doctor_what_hosts_had_told(monkeypatch: pytest.MonkeyPatch) -> None:
    Hosts(monkeypatch, READY[0])
    before = signal.getsignal(signal.SIGINT)
    look = gate.probe_once(HOSTS, Settings(), TO, resolver=RESOLVER, doctor=("doctor",))
    looking = asyncio.ensure_future(look)
    await until_in_loop(lambda: signal.getsignal(signal.SIGINT) != before)
    os.kill(os.getpid(), signal.SIGINT)
    found = await looking
    assert (found.workers, found.findings, found.unasked) == ((READY[0],), (), (HOSTS[1],))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_jobs_key_or_launcher_is_what_the_deadline_reports() -> None:
    states = [HostState(Host(name), name, resolved=True) for name in ("a", "b", "c")]
    states[1].holder = states[2].holder = "in use by launcher x (10.0.0.9) since 2026"
    held = gate.missing_error(states, states, 20.2)
    assert (held.finding.check, held.code) == ("workers-held", 75)
    assert held.finding.message == (
        "b, c are in use by launcher x (10.0.0.9) since 2026, still after 20.2 s: "
        "nothing was started"
    )
    assert [(item.check, item.host) for item in held.others] == [("workers-unreachable", "a")]
    states[0].error = error("host-key-differs", "another key", host="a").finding
    differs = gate.missing_error(states, states, 20.2)
    assert (differs.finding, differs.code) == (states[0].error, 77)
    assert [(item.check, item.host) for item in differs.others] == [
        ("workers-held", "b"),
        ("workers-held", "c"),
    ]
