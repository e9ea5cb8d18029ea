"""A launcher that ends before mpirun, and the real worker on loopback that it had reached."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from mpiboot.core.facts import Host, NoFacts
from mpiboot.core.settings import resolve
from mpiboot.hosts import gate, host_shell
from mpiboot.launcher import logins, prepare
from mpiboot.launcher.prepare import LaunchRun, log_attempt
from mpiboot.launcher.setup import LauncherPod, access
from mpiboot.ssh.attempt import LoginTimeouts
from mpiboot.ssh.config import LaunchHost
from mpiboot.supervisor import workers
from mpiboot.supervisor.job import Verdict
from mpiboot.system import keys
from tests.fakes import plans
from tests.fakes.cli import mpiboot
from tests.fakes.sshd import SILENT, listener
from tests.fakes.worker import HAVE_SSH, HAVE_SSHD, PATIENCE, Worker

FIRST, SECOND = "l-0@2026-11-22T05:00:00Z@1", "l-1@2026-11-22T06:00:00Z@2"
MISSING = Verdict(68, "names-unresolved", "names-unresolved: 1 of 2 hosts\n-> look\n")
WHY = "names-unresolved: 1 of 2 hosts, exit 68"
ADDRESS = "127.0.0.2"  # 127.0.0.1 is this host's own: nobody logs in there


def prepared(worker: Worker, attempt: str, *, below: bool = False, **flags: str) -> LaunchRun:
    """A launch's preparation; ``below`` a command, which may go on."""
    given = {"ssh_port": str(worker.port), "timeout": str(PATIENCE), **flags}
    resolved, none = resolve(given, {}), cast("Any", None)
    made = LaunchRun(none, resolved, (), "" if below else attempt, none)
    key = keys.load(keys.wait(str(worker.mount), (), os.getuid(), 1.0))
    folder = worker.folder / "launcher"
    folder.mkdir(exist_ok=True)
    made.pod = LauncherPod(resolved, {}, plans.ROOT, folder, 0.0, attempt, key=key)
    PODS.append(made.pod)
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
    monkeypatch.setattr(workers, "LOGIN", PATIENCE)
    monkeypatch.setattr(workers, "SECONDS", PATIENCE)


async def reach(made: LaunchRun, *hosts: str) -> LaunchRun:
    """Pass the gate with the one worker that there is."""
    assert made.pod
    listed = tuple(map(Host, hosts or (ADDRESS,)))
    await gate.wait(listed, made.pod.settings, access(made.pod), reached=made.workers)
    return made


async def remembered(worker: Worker, words: str = "names-unresolved") -> str:
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
    made, message = prepared(worker, FIRST), ""
    waiting = asyncio.ensure_future(reach(made, ADDRESS, "127.0.0.3"))
    while "1/2 hosts ready" not in message:
        await asyncio.sleep(0.02)
        message += capfd.readouterr().err
    waiting.cancel()
    await asyncio.wait({waiting}, timeout=PATIENCE)
    assert [item.host.name for item in made.workers] == [ADDRESS]
    assert log_attempt(made.workers, FIRST) == ""
    await made.notify(MISSING)
    await remembered(worker)

    after = await reach(prepared(worker, SECOND))
    expected = f"attempt 2; the last one (l-0 of 2026-11-22T05:00:00Z) ended: {WHY}"
    assert after.failed(RuntimeError()).message.endswith(f"\n{expected}\n")
    after.failed(RuntimeError())
    assert capfd.readouterr().err.count(f"mpiboot: {expected}\n") == 1


@pytest.mark.parametrize("worker", ["embedded"], indirect=True)
@pytest.mark.parametrize(
    ("held", "below", "hold"),
    [(True, False, 40.0), (False, False, 0.0), (True, True, None), (False, True, None)],
)
async def test_how_long_a_worker_waits_for_what_comes_next(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, *, held: bool, below: bool, hold: float | None
) -> None:
    """A launcher that was told to end is not held; a script may go on, and ends by its own word."""
    ordered = Mock(wraps=host_shell.job_failed)
    monkeypatch.setattr(host_shell, "job_failed", ordered)
    made = await reach(prepared(worker, FIRST, below=below, hold_on_failure="40"))
    await made.notify(replace(MISSING, by_signal=not held))
    await remembered(worker)
    ordered.assert_called_once_with(FIRST, hold, WHY)


async def test_at_its_end_a_command_notifies_the_workers_of_its_launches(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    (worker.folder / "hostfile").write_text(f"{ADDRESS}\n")
    given = {"ssh_port": str(worker.port), "hostfile": str(worker.folder / "hostfile")}
    given |= {"ssh_key": str(worker.mount), "runtime_dir": str(worker.folder / "run")}
    await (await reach(prepared(worker, FIRST, below=True))).notify(MISSING)
    await remembered(worker)
    monkeypatch.setattr(logins, "_PROBE", LoginTimeouts())
    await logins.notify(resolve(given, {}), FIRST, "sh ended with 68")
    assert "sh%20ended%20with%2068" in await remembered(worker, "sh%20ended")


@pytest.mark.parametrize("worker", ["embedded"], indirect=True)
async def test_who_is_a_part_of_a_job_or_reached_no_mpiboot_notifies_nobody(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await reach(prepared(worker, FIRST))
    monkeypatch.setattr(prepare, "access", None)  # nobody logs in
    plain = [replace(item, facts=None, no_facts=NoFacts.NO_MPIBOOT) for item in made.workers]
    for pod, hosts in (
        (None, made.workers),
        (made.pod, plain),
        (prepared(worker, "").pod, made.workers),
    ):
        nobody = prepared(worker, FIRST)
        nobody.pod, nobody.workers = pod, hosts
        await nobody.notify(MISSING)
    PODS.clear()


@pytest.mark.parametrize("worker", ["embedded"], indirect=True)
async def test_a_worker_that_does_not_listen_delays_the_end_no_longer_than_others_do(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has gone, one hangs: the third hears it all the same."""
    made = await reach(prepared(worker, FIRST))
    assert made.pod
    (there,) = made.workers
    async with listener(SILENT, ADDRESS) as port:
        for name, number in (("gone", 1), ("hangs", port)):
            access(made.pod).pool.know((LaunchHost(name, ADDRESS, number, there.user),))
            made.workers.insert(0, replace(there, host=Host(name), port=number))
        notifying = asyncio.ensure_future(made.notify(MISSING))
        await remembered(worker)
        notifying.cancel()
        await asyncio.wait({notifying}, timeout=PATIENCE)
        monkeypatch.setattr(workers, "SECONDS", 0.01)
        await made.notify(MISSING)  # it ends, though one hangs


@pytest.mark.parametrize("worker", ["embedded"], indirect=True)
def test_a_worker_that_is_ready_is_reported_with_its_address_and_port(
    worker: Worker, tmp_path: Path
) -> None:
    (tmp_path / "hostfile").write_text(f"localhost\n{ADDRESS}\n")
    words = ("--hostfile", "hostfile", "--ssh-port", str(worker.port))
    done = mpiboot(tmp_path, "wait", "--json", *words, env={"MPIBOOT_SSH_KEY": str(worker.mount)})
    assert json.loads(done.stdout)["hosts"] == [
        {"host": "localhost", "address": "", "port": None},
        {"host": ADDRESS, "address": ADDRESS, "port": worker.port},
    ]
