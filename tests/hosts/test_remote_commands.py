"""Workers that are queried again after the gate: facts that are overdue, networks, the port."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpiboot.core import log
from mpiboot.core.checks import BY_REFERENCE, ExitCode, MpibootError
from mpiboot.core.facts import Host, NoFacts, Worker, facts_to_json
from mpiboot.core.model import Level, LogFormat
from mpiboot.core.settings import Settings, resolve
from mpiboot.hosts import host_shell, remote_commands
from mpiboot.hosts.remote_commands import fetch_facts, wait_until_settled
from mpiboot.job.program_words import Rendezvous
from mpiboot.network.records import Transport, WorkerNetwork
from mpiboot.ssh.attempt import CommandEnd
from mpiboot.ssh.pool import Pool
from tests.fakes import plans
from tests.fakes.pool import reaching
from tests.fakes.sshd import Behaviour, Job, sshd

FACTS = plans.worker(Host("a"), 1, None).facts


def worker(name: str, port: int = 1) -> Worker:
    return Worker(Host(name), "127.0.0.1", port, "root", "127.0.0.1", None)


def network(worker: Worker, *pending: str) -> WorkerNetwork:
    return WorkerNetwork(worker.host.name, None, 1, None, Transport.UNKNOWN, pending=pending)


def by(pool: Pool) -> Callable[..., Awaitable[Worker]]:
    return partial(fetch_facts, pool)


def late(port: int = 1) -> Worker:
    return replace(worker("a", port), user="runner", no_facts=NoFacts.LATE)


@pytest.fixture(autouse=True)
def as_json() -> Iterator[None]:
    log.configure(form=LogFormat.JSON)
    yield
    log.configure()


@dataclass
class Here:
    """A worker ``a``, its private folder, its server, and a pool that reaches it."""

    folder: Path
    server: Behaviour
    late: Worker
    pool: Pool


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    """Naps take no time, so that its patience ends at once."""
    nap = tmp_path / "sleep"
    nap.write_text("#!/bin/sh\n")
    nap.chmod(0o755)
    job, path = Job(tmp_path), f"{tmp_path}:{os.environ['PATH']}"
    server = Behaviour(job, environment={"MPIBOOT_WORKER_DIR": str(tmp_path), "PATH": path})
    async with sshd(server) as port, reaching(job.path, late(port)) as pool:
        yield Here(tmp_path, server, late(port), pool)


async def test_late_facts_are_fetched_again_until_they_are_there(here: Here) -> None:
    assert FACTS is not None

    async def write() -> None:
        await here.server.seen.wait()  # it was queried once already
        (here.folder / "new").write_text(facts_to_json(FACTS))
        (here.folder / "new").rename(here.folder / "facts.json")

    writing = asyncio.ensure_future(write())
    ((found,), _) = await wait_until_settled(
        (here.late,), network, Settings(timeout=60), by(here.pool)
    )
    await writing
    assert (found.facts, found.mpi, found.late) == (FACTS, FACTS.mpi, False)


async def test_facts_whose_child_has_ended_are_gathered_anew(here: Here) -> None:
    """The child may only be slow, so at first they are only fetched."""
    assert FACTS is not None
    (here.folder / "kept").write_text(facts_to_json(FACTS))
    (here.folder / "look").write_text(f"cp {here.folder}/kept {here.folder}/facts.json")
    ((found,), _) = await wait_until_settled(
        (here.late,), network, Settings(timeout=60), by(here.pool)
    )
    assert found.facts == FACTS
    assert here.server.commands == [host_shell.ask("facts"), host_shell.ask("look", "facts")]


async def test_facts_that_never_come_end_the_launch_with_the_reason(here: Here) -> None:
    (here.folder / "look").write_text("echo 'mpiboot: error: the driver hangs' >&2; exit 70")
    seen: list[Worker] = []

    def decide(one: Worker) -> WorkerNetwork:
        seen.append(one)
        return network(one)

    settings = Settings(timeout=0)
    while True:  # a busy machine needs more than two seconds
        settings = replace(settings, timeout=settings.timeout + 2)
        with pytest.raises(MpibootError) as caught:
            await wait_until_settled((here.late, worker("b")), decide, settings, by(here.pool))
        if any(item.look_failed for item in seen):
            break
    message = "it has not gathered its facts yet: mpiboot: error: the driver hangs"
    assert (caught.value.finding.check, caught.value.code) == ("worker-facts", 75)
    assert caught.value.finding.message.startswith("1 of 2 workers did not gather their facts")
    assert caught.value.finding.evidence == (f"a: {message}",)
    (other,) = caught.value.others
    assert (other.check, other.host, other.message) == ("worker-facts", "a", message)


@pytest.mark.parametrize("known", [late(), plans.worker(Host("a"), 1, None)])
@pytest.mark.parametrize("end", [CommandEnd("mpiboot-plain\n", 0), CommandEnd(error="gone")])
async def test_a_worker_that_answers_no_more_stays_as_it_was(
    known: Worker, end: CommandEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(*_: object) -> CommandEnd:
        return end

    pool = Pool(None)
    monkeypatch.setattr(pool, "run", run)
    assert await fetch_facts(pool, known, first=False) is known


@pytest.mark.parametrize(
    ("workers", "flags"),
    [((late(),), {"data_network": "off"}), ((worker("a"), worker("b")), {})],
)
async def test_with_nothing_to_wait_for_nobody_is_queried(
    workers: tuple[Worker, ...], flags: dict[str, str]
) -> None:
    settings = resolve(flags, {}).settings
    assert (await wait_until_settled(workers, network, settings, by(Pool(None))))[0] == workers


class Quick:
    """Time that passes by pauses alone; ``fetch`` gives workers as ``becomes`` has them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pauses, self.firsts, self.names = list[float](), list[bool](), set[str]()
        self.becomes: Callable[[Worker], Worker] = lambda one: one
        asyncs = SimpleNamespace(**{**vars(asyncio), "sleep": self._sleep})
        monkeypatch.setattr(remote_commands, "asyncio", asyncs)
        clock = SimpleNamespace(monotonic=lambda: 1000.0 + sum(self.pauses))
        monkeypatch.setattr(remote_commands, "time", clock)

    async def _sleep(self, seconds: float) -> None:
        assert len(self.pauses) < 1000, "it never ends"
        self.pauses.append(seconds)

    async def fetch(self, worker: Worker, *, first: bool) -> Worker:
        self.firsts.append(first)
        self.names.add(worker.host.name)
        return self.becomes(worker)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Quick:
    return Quick(monkeypatch)


async def test_workers_are_queried_ever_less_often_until_the_deadline(
    quick: Quick, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is waited for is logged once, as long as it is the same."""
    workers = (late(), worker("b"))
    with pytest.raises(MpibootError):
        await wait_until_settled(workers, network, Settings(timeout=20), quick.fetch)
    assert quick.pauses[:7] == [0.5, 0.75, 1.125, 1.6875, 2.53125, 3.796875, 5.0]
    assert (len(quick.pauses), sum(quick.pauses)) == (8, 20.0)
    assert (quick.firsts, quick.names) == ([True, *[False] * 7], {"a"})
    (line,) = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert (line["event"], line["hosts"]) == ("data-network", 1)
    assert line["message"] == "waiting for the facts of a"


NOT_READY = (
    "the data network of 2 hosts is not ready after %s: w-0 (port mlx5_0:1 is INIT, not yet "
    "ACTIVE), w-1 (port mlx5_1:1 is ARMED, not yet ACTIVE); the start goes on without it "
    "(MPIBOOT_DATA_NETWORK=require waits until the deadline)"
)


@pytest.mark.parametrize(
    ("given", "seconds", "warned"),
    [
        ({"timeout": "600"}, 60.0, NOT_READY % "1m"),
        ({"timeout": "600", "data_network": "require"}, 600.0, ""),
        ({"timeout": "7"}, 7.0, NOT_READY % "7 s"),
    ],
)
async def test_a_data_network_that_is_not_required_holds_the_start_for_a_minute(
    quick: Quick,
    capfd: pytest.CaptureFixture[str],
    given: dict[str, str],
    seconds: float,
    warned: str,
) -> None:
    states = {"w-0": "port mlx5_0:1 is INIT", "w-1": "port mlx5_1:1 is ARMED"}

    def decide(one: Worker) -> WorkerNetwork:
        state = states.get(one.host.name)
        return network(one, *([f"{state}, not yet ACTIVE"] if state else []))

    workers = tuple(worker(name) for name in ("w-0", "w-1", "w-2"))
    settings = resolve(given, {}).settings
    found, networks = await wait_until_settled(workers, decide, settings, quick.fetch)
    assert (found, set(networks), quick.names) == (workers, {"w-0", "w-1", "w-2"}, set(states))
    assert sum(quick.pauses) == seconds
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["message"] for line in lines if line["level"] == "warning"] == [warned] * bool(
        warned
    )


async def test_facts_are_waited_for_longer_than_a_data_network(quick: Quick) -> None:
    def decide(one: Worker) -> WorkerNetwork:
        return network(one, *([] if one.late else ["port x is INIT"]))

    def becomes(one: Worker) -> Worker:
        return replace(one, no_facts=NoFacts.UNREADABLE) if sum(quick.pauses) > 90 else one

    quick.becomes = becomes
    settings = Settings(timeout=600)
    ((found,), _) = await wait_until_settled((late(),), decide, settings, quick.fetch)
    assert not found.late
    assert 90 < sum(quick.pauses) < 100


@pytest.mark.parametrize("here_", [True, False], ids=["this pod", "a host"])
async def test_a_port_that_is_taken_names_its_process(here: Here, *, here_: bool) -> None:
    """A free one is no finding, nor is a host that does not answer."""

    async def check(port: int, where: Worker | None) -> list[str]:
        meeting = Rendezvous("a", "MASTER_PORT", port)
        found = await remote_commands.look_at_master_port(meeting, where, here.pool)
        for item in found:
            assert (item.check, item.level, item.host) == ("master-port", Level.FAIL, "a")
            assert BY_REFERENCE[item.check].code == ExitCode.CONFLICT
        return [item.message for item in found]

    where = None if here_ else here.late
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (message,) = await check(port, where)
    assert message.startswith(f"port {port}, where ranks are to meet (MASTER_PORT), is taken by ")
    assert f"process {os.getpid()} (" in message
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        assert await check(held.getsockname()[1], where) == []
    assert await check(29500, worker("nobody")) == []
