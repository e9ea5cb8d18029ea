"""A launcher that ends before mpirun, and the real worker on loopback that it had reached."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core import log
from mpiboot.core.facts import Host, NoFacts
from mpiboot.core.launch_names import KEY
from mpiboot.core.launch_spec import Failure
from mpiboot.core.settings import resolve
from mpiboot.hosts import gate, host_shell
from mpiboot.launcher import command, prepare
from mpiboot.launcher.prepare import ReachedWorkers
from mpiboot.launcher.setup import LauncherPod, access
from mpiboot.ssh.config import LaunchHost
from mpiboot.supervisor import ask_workers
from mpiboot.system import keys
from tests.fakes import plans
from tests.fakes.sshd import SILENT, listener
from tests.fakes.worker import HAVE_SSH, HAVE_SSHD, PATIENCE, Worker

FIRST, SECOND = "l-0@2026-11-22T05:00:00Z@1", "l-1@2026-11-22T06:00:00Z@2"
MISSING = Failure(68, "names-unresolved", "names-unresolved: 1 of 2 hosts\n-> look\n")
WHY = "names-unresolved: 1 of 2 hosts, exit 68"
ADDRESS = "127.0.0.2"  # 127.0.0.1 is this host's own: nobody logs in there


def pod(worker: Worker, attempt: str, **flags: str) -> LauncherPod:
    given = {"ssh_port": str(worker.port), "timeout": str(PATIENCE), **flags}
    key = keys.load(keys.wait(str(worker.mount), (), os.getuid(), 1.0))
    resolved, now = resolve(given, {}), time.monotonic()
    made = LauncherPod(resolved, {}, plans.ROOT, worker.folder, key, now, attempt)
    PODS.append(made)
    return made


PODS: list[LauncherPod] = []


@pytest.fixture(autouse=True)
async def disconnected() -> AsyncIterator[None]:
    """Leave no connection open."""
    yield
    for made in PODS:
        await access(made).pool.close()
    PODS.clear()


@pytest.fixture(params=["openssh", "embedded"])
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Worker]:
    if not HAVE_SSH or (request.param == "openssh" and not HAVE_SSHD):
        pytest.skip("no OpenSSH")
    environ = {"MPIBOOT_CONTROL_IFNAME": ADDRESS, "MPIBOOT_LAUNCHER_AWAY": "900"}
    started = Worker(tmp_path / "worker", request.param, environ=environ).start()
    try:
        yield started.listens()
    finally:
        started.stop()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than a user would wait."""
    monkeypatch.setattr(ask_workers, "LOGIN", PATIENCE)
    monkeypatch.setattr(ask_workers, "SECONDS", PATIENCE)
    log.configure()


async def reach(launcher: LauncherPod) -> ReachedWorkers:
    """Pass the gate with the one worker that there is."""
    reached = ReachedWorkers(launcher)
    settings = launcher.resolved.settings
    to = access(launcher)
    await gate.wait((Host(ADDRESS),), settings, to, reached=reached.workers)
    return reached


async def remembered(worker: Worker, words: str) -> str:
    """What the worker keeps, once it has heard it: its parent reads a pipe."""
    path, text = worker.runtime / "attempts", ""
    while words not in text:
        await asyncio.sleep(0.02)
        text = path.read_text() if path.exists() else ""
    return text


async def test_who_was_ready_when_the_launcher_ended_tells_the_next_one_why(
    worker: Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    """One host is ready, the other refuses; then the wait ends, as a signal or the time ends it."""
    launcher, message = pod(worker, FIRST), ""
    reached = ReachedWorkers(launcher)
    hosts = (Host(ADDRESS), Host("127.0.0.3"))
    settings = launcher.resolved.settings
    waiting = asyncio.ensure_future(
        gate.wait(hosts, settings, access(launcher), reached=reached.workers)
    )
    while "1/2 hosts ready" not in message:
        await asyncio.sleep(0.02)
        message += capfd.readouterr().err
    waiting.cancel()
    await asyncio.wait({waiting}, timeout=PATIENCE)
    assert [item.host.name for item in reached.workers] == [ADDRESS]
    assert reached.say_attempt() == ""
    await reached.notify(MISSING, goes_on=False)
    await remembered(worker, "names-unresolved")

    after = await reach(pod(worker, SECOND))
    expected = f"attempt 2; the last one (l-0 of 2026-11-22T05:00:00Z) ended: {WHY}"
    assert after.say_attempt() == expected
    assert after.say_attempt() == expected  # for a termination message
    assert capfd.readouterr().err.count(f"mpiboot: {expected}\n") == 1


@pytest.mark.parametrize("worker", ["embedded"], indirect=True)
@pytest.mark.parametrize(
    ("held", "goes_on", "hold"),
    [(True, False, 40.0), (False, False, 0.0), (True, True, None), (False, True, None)],
)
async def test_how_long_a_worker_waits_for_what_comes_next(
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    *,
    held: bool,
    goes_on: bool,
    hold: float | None,
) -> None:
    """A launcher that was told to end is not held; a script may go on, and ends by its own word."""
    orders = []
    job_failed = host_shell.job_failed

    def noted(attempt: str, hold: float | None, why: str) -> str:
        orders.append((attempt, hold, why))
        return job_failed(attempt, hold, why)

    monkeypatch.setattr(host_shell, "job_failed", noted)
    reached = await reach(pod(worker, FIRST, hold_on_failure="40"))
    await reached.notify(replace(MISSING, held=held), goes_on=goes_on)
    await remembered(worker, "names-unresolved")
    assert orders == [(FIRST, hold, WHY)]


async def test_a_script_whose_launch_failed_tells_its_own_end_by_what_that_has_left(
    worker: Worker,
) -> None:
    below = worker.folder / "launcher"
    launcher = replace(pod(worker, FIRST), folder=below)
    below.mkdir()
    reached = await reach(launcher)
    await reached.notify(MISSING, goes_on=True)
    await remembered(worker, "names-unresolved")
    (folder,) = below.iterdir()
    assert folder == Path(command.launches(str(below))[-1])
    assert stat.S_IMODE((folder / KEY).stat().st_mode) == 0o600
    workers = command.workers_of(str(folder))
    assert workers is not None
    await workers.notify(FIRST, 0.0, "sh ended with 68")
    assert "sh%20ended%20with%2068" in await remembered(worker, "sh%20ended")
    await workers.pool.close()


@pytest.mark.parametrize("worker", ["embedded"], indirect=True)
async def test_what_a_launch_before_it_has_left_is_enough_for_a_script(worker: Worker) -> None:
    launcher = replace(pod(worker, FIRST), folder=worker.folder / "launcher")
    (launcher.folder / "launch-7").mkdir(parents=True)
    there = list(launcher.folder.iterdir())
    await (await reach(launcher)).notify(MISSING, goes_on=True)
    assert list(launcher.folder.iterdir()) == there


@pytest.mark.parametrize("worker", ["embedded"], indirect=True)
async def test_who_is_a_part_of_a_job_or_reached_no_mpiboot_tells_nobody(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = await reach(pod(worker, FIRST))
    monkeypatch.setattr(prepare, "access", None)  # nobody logs in
    plain = [replace(item, facts=None, no_facts=NoFacts.NO_MPIBOOT) for item in reached.workers]
    for nobody in (
        ReachedWorkers(),
        ReachedWorkers(reached.launcher),
        ReachedWorkers(reached.launcher, plain),
        ReachedWorkers(pod(worker, ""), reached.workers),
    ):
        await nobody.notify(MISSING, goes_on=False)


@pytest.mark.parametrize("worker", ["embedded"], indirect=True)
async def test_a_worker_that_does_not_listen_delays_the_end_no_longer_than_others_do(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has gone, one hangs: the third hears it all the same."""
    launcher = pod(worker, FIRST)
    reached = await reach(launcher)
    (there,) = reached.workers
    async with listener(SILENT, ADDRESS) as port:
        for name, number in (("gone", 1), ("hangs", port)):
            access(launcher).pool.know((LaunchHost(name, ADDRESS, number, there.user),))
            reached.workers.insert(0, replace(there, host=Host(name), port=number))
        telling = asyncio.ensure_future(reached.notify(MISSING, goes_on=False))
        await remembered(worker, "names-unresolved")
        telling.cancel()
        await asyncio.wait({telling}, timeout=PATIENCE)
        monkeypatch.setattr(ask_workers, "SECONDS", 0.01)
        await reached.notify(MISSING, goes_on=False)  # it ends, though one hangs
