from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpiboot.core import log, records_json
from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Host, NoFacts, Worker
from mpiboot.core.setting_types import LogFormat
from mpiboot.core.settings import Settings, resolve
from mpiboot.hosts import host_shell, remote_commands
from mpiboot.launcher import launch_folder
from mpiboot.network.records import Transport, WorkerNetwork
from mpiboot.ssh.commands import CommandEnd
from mpiboot.ssh.pool import Pool
from tests.fakes import plans
from tests.fakes.pool import reaching
from tests.fakes.sshd import Behaviour, Job, sshd


def worker(name: str, port: int) -> Worker:
    return Worker(Host(name), "127.0.0.1", port, "root", "127.0.0.1", None)


def network(worker: Worker) -> WorkerNetwork:
    return WorkerNetwork(worker.host.name, None, 1, None, Transport.UNKNOWN)


def by(pool: Pool) -> Callable[..., Awaitable[Worker]]:
    return partial(remote_commands.fetch_facts, pool)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A worker's private folder, and naps that take no time so that its patience ends at once."""
    nap = tmp_path / "sleep"
    nap.write_text("#!/bin/sh\n")
    nap.chmod(0o755)
    return tmp_path


def late(port: int) -> Worker:
    return replace(worker("a", port), user="runner", no_facts=NoFacts.LATE)


def behaviour(job: Job, folder: Path) -> Behaviour:
    path = f"{folder}:{os.environ['PATH']}"
    return Behaviour(job, environment={"MPIBOOT_WORKER_DIR": str(folder), "PATH": path})


async def test_late_facts_are_asked_for_again_until_they_are_there(folder: Path) -> None:
    job = Job(folder)
    facts = plans.worker(Host("a"), 1, None).facts
    assert facts is not None

    async def write() -> None:
        await server.seen.wait()  # asked once more already
        (folder / "new").write_text(records_json.facts_to_json(facts))
        (folder / "new").rename(folder / "facts.json")

    server = behaviour(job, folder)
    async with sshd(server) as port, reaching(job.path, late(port)) as pool:
        writing = asyncio.ensure_future(write())
        ((found,), _) = await remote_commands.wait_until_settled(
            (late(port),), network, Settings(timeout=60), by(pool)
        )
        await writing
    assert (found.facts, found.mpi) == (facts, facts.mpi)
    assert not found.late


async def test_facts_whose_child_has_ended_are_gathered_anew(folder: Path) -> None:
    job = Job(folder)
    facts = plans.worker(Host("a"), 1, None).facts
    assert facts is not None
    (folder / "kept").write_text(records_json.facts_to_json(facts))
    (folder / "look").write_text(f"cp {folder}/kept {folder}/facts.json")
    async with sshd(behaviour(job, folder)) as port, reaching(job.path, late(port)) as pool:
        ((found,), _) = await remote_commands.wait_until_settled(
            (late(port),), network, Settings(timeout=60), by(pool)
        )
    assert found.facts == facts


async def test_facts_that_never_come_end_the_launch_and_say_why(folder: Path) -> None:
    job = Job(folder)
    (folder / "look").write_text("echo 'mpiboot: error: the driver hangs' >&2; exit 70")
    asked: list[Worker] = []

    def decide(one: Worker) -> WorkerNetwork:
        asked.append(one)
        return network(one)

    async with sshd(behaviour(job, folder)) as port, reaching(job.path, late(port)) as pool:
        settings = resolve({"timeout": "0"}, {}).settings
        while True:  # a busy machine needs more than the first two seconds
            settings = replace(settings, timeout=settings.timeout + 2)
            with pytest.raises(MpibootError) as caught:
                await remote_commands.wait_until_settled(
                    (late(port), worker("b", 1)), decide, settings, by(pool)
                )
            if any(item.look_failed for item in asked):
                break
    assert (caught.value.finding.check, caught.value.code) == ("worker-facts", 75)
    assert caught.value.finding.message.startswith("1 of 2 workers did not gather their facts")
    assert caught.value.finding.evidence == (
        "a: it has not gathered its facts yet: mpiboot: error: the driver hangs",
    )
    (other,) = caught.value.others
    assert (other.check, other.host) == ("worker-facts", "a")
    assert other.message == "it has not gathered its facts yet: mpiboot: error: the driver hangs"


async def test_without_a_data_network_nobody_waits_for_facts(tmp_path: Path) -> None:
    settings = resolve({"data_network": "off"}, {}).settings
    found, _ = await remote_commands.wait_until_settled(
        (late(1),), network, settings, by(Pool(None))
    )
    assert found == (late(1),)


async def test_with_nothing_to_wait_for_nobody_is_asked(tmp_path: Path) -> None:
    workers = (worker("a", 1), worker("b", 1))
    settings = resolve({}, {}).settings
    found, _ = await remote_commands.wait_until_settled(workers, network, settings, by(Pool(None)))
    assert found == workers


async def test_a_worker_that_answers_no_more_is_as_it_was_at_the_deadline(tmp_path: Path) -> None:
    asked: list[str] = []

    def decide(worker: Worker) -> WorkerNetwork:
        asked.append(worker.host.name)
        pending = ("port mlx5_0:1 is INIT, not yet ACTIVE",) if worker.host.name == "b" else ()
        return replace(network(worker), pending=pending)

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        workers = (worker("a", 1), worker("b", closed.getsockname()[1]))
        settings = resolve({"timeout": "1"}, {}).settings
        pool = Pool(tmp_path / "no key")
        found, networks = await remote_commands.wait_until_settled(
            workers, decide, settings, by(pool)
        )
    assert found == workers
    assert [networks[name].pending != () for name in ("a", "b")] == [False, True]
    # Only who has something pending is looked at again.
    assert asked[:2] == ["a", "b"]
    assert set(asked[2:]) == {"b"}


def test_a_hosts_own_values_reach_the_remote_command_as_they_are() -> None:
    values = {"A": "a 'b' \"c\"; $HOME `x` \\ é\nnext", "B": "", "C": "=net1"}
    command = launch_folder.exports(values).rstrip("\n") + ' printf "%s|" "$A" "$B" "$C"'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "".join(f"{value}|" for value in values.values())


async def test_late_facts_are_only_brought_at_first_and_gathered_anew_later(folder: Path) -> None:
    """The child that gathers them may only be slow."""
    job = Job(folder)
    server = behaviour(job, folder)
    async with sshd(server) as port, reaching(job.path, late(port)) as remote:
        one = await remote_commands.fetch_facts(remote, late(port), first=True)
        two = await remote_commands.fetch_facts(remote, one, first=False)
    assert server.commands == [host_shell.ask("facts"), host_shell.ask("look", "facts")]
    assert (one.late, two.late) == (True, True)


async def test_facts_that_a_worker_has_are_kept_where_none_come_again(folder: Path) -> None:
    job = Job(folder)
    known = plans.worker(Host("a"), 1, None)
    asked = replace(known, address="127.0.0.1")
    async with (
        sshd(behaviour(job, folder)) as port,
        reaching(job.path, replace(asked, port=port)) as remote,
    ):
        assert await remote_commands.fetch_facts(remote, asked, first=False) is asked


class Quick:
    """Time that passes by pauses alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pauses: list[float] = []
        asyncs = SimpleNamespace(**{**vars(asyncio), "sleep": self._sleep})
        monkeypatch.setattr(remote_commands, "asyncio", asyncs)
        clock = SimpleNamespace(monotonic=lambda: 1000.0 + sum(self.pauses))
        monkeypatch.setattr(remote_commands, "time", clock)

    async def _sleep(self, seconds: float) -> None:
        assert len(self.pauses) < 1000, "it never ends"
        self.pauses.append(seconds)


async def test_workers_are_asked_ever_less_often_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is waited for is told once, as long as it is the same."""
    log.configure(form=LogFormat.JSON)
    quick, asked = Quick(monkeypatch), list[bool]()

    async def ask(_: Pool, worker: Worker, *, first: bool) -> Worker:
        asked.append(first)
        return worker

    monkeypatch.setattr(remote_commands, "fetch_facts", ask)
    settings, pool = Settings(timeout=20), Pool(None)
    workers = (late(1), worker("b", 1))
    with pytest.raises(MpibootError):
        await remote_commands.wait_until_settled(workers, network, settings, by(pool))
    log.configure()
    assert quick.pauses[:6] == [0.5, 0.75, 1.125, 1.6875, 2.53125, 3.796875]
    assert quick.pauses[6] == 5.0
    assert (len(quick.pauses), sum(quick.pauses)) == (8, 20.0)
    assert asked == [True, *[False] * 7]
    (told,) = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert (told["event"], told["hosts"]) == ("data-network", 1)
    assert told["message"] == "waiting for the facts of a"


NOT_READY = (
    "the data network of 2 hosts is not ready after %s: w-0 (port mlx5_0:1 is INIT, not yet "
    "ACTIVE), w-1 (port mlx5_1:1 is ARMED, not yet ACTIVE); the start goes on without it "
    "(MPIBOOT_DATA_NETWORK=require waits until the deadline)"
)


@pytest.mark.parametrize(
    ("given", "seconds", "told"),
    [
        ({"timeout": "600"}, 60.0, NOT_READY % "1m"),
        ({"timeout": "600", "data_network": "require"}, 600.0, ""),
        ({"timeout": "7"}, 7.0, NOT_READY % "7 s"),
    ],
)
async def test_a_data_network_that_is_not_required_holds_the_start_for_a_minute(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    given: dict[str, str],
    seconds: float,
    told: str,
) -> None:
    log.configure(form=LogFormat.JSON)
    quick = Quick(monkeypatch)
    states = {"w-0": "port mlx5_0:1 is INIT", "w-1": "port mlx5_1:1 is ARMED"}

    async def ask(_: Pool, worker: Worker, *, first: bool) -> Worker:
        assert isinstance(first, bool)
        return worker

    def decide(one: Worker) -> WorkerNetwork:
        state = states.get(one.host.name)
        return replace(network(one), pending=(f"{state}, not yet ACTIVE",) if state else ())

    monkeypatch.setattr(remote_commands, "fetch_facts", ask)
    pool = Pool(None)
    workers = tuple(worker(name, 1) for name in ("w-0", "w-1", "w-2"))
    settings = resolve(given, {}).settings
    found, networks = await remote_commands.wait_until_settled(workers, decide, settings, by(pool))
    log.configure()
    assert (found, set(networks)) == (workers, {"w-0", "w-1", "w-2"})
    assert sum(quick.pauses) == seconds
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["message"] for line in lines if line["level"] == "warning"] == [told] * bool(told)


async def test_facts_are_waited_for_longer_than_a_data_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    quick = Quick(monkeypatch)

    async def ask(_: Pool, worker: Worker, *, first: bool) -> Worker:
        assert first == (len(quick.pauses) == 1)
        return replace(worker, no_facts=NoFacts.UNREADABLE) if sum(quick.pauses) > 90 else worker

    def decide(one: Worker) -> WorkerNetwork:
        return replace(network(one), pending=() if one.late else ("port x is INIT",))

    monkeypatch.setattr(remote_commands, "fetch_facts", ask)
    settings, pool = Settings(timeout=600), Pool(None)
    ((found,), _) = await remote_commands.wait_until_settled((late(1),), decide, settings, by(pool))
    assert not found.late
    assert 90 < sum(quick.pauses) < 100


async def test_a_worker_whose_mpiboot_has_gone_stays_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def run(*_: object) -> CommandEnd:
        return CommandEnd("mpiboot-plain\n", 0)

    remote = Pool(None)
    monkeypatch.setattr(remote, "run", run)
    known = late(1)
    assert await remote_commands.fetch_facts(remote, known, first=True) is known
