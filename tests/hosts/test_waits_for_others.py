"""How long another launcher's workers are waited for, with a clock that moves by its pauses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Host, NoFacts, Worker
from mpiboot.core.launch_names import LAUNCH_ID
from mpiboot.core.setting_types import LogFormat
from mpiboot.core.settings import Settings
from mpiboot.hosts import host_shell, stale_processes
from mpiboot.hosts.access import SshAccess
from mpiboot.hosts.stale_processes import OtherLauncher

if TYPE_CHECKING:
    from mpiboot.hosts.remote_commands import RemoteCommands

KEY = "ssh-ed25519 of these tests"
MARK = f"{stale_processes.job_id(KEY)}-0123456789abcdef@pi-launcher-x@2026-01-02T03:04:05Z"
HELD = f"mpiboot-process\nMPIBOOT_LAUNCH_ID={MARK}\nSSH_CONNECTION=10.0.0.9 1 10.0.0.2 22\n"


def worker(name: str = "w-0", no_facts: NoFacts = NoFacts.LATE) -> Worker:
    held = ((MARK, "10.0.0.9"),)
    return Worker(
        Host(name), "10.0.0.2", 2222, "r", "", None, launches=(MARK,), held=held, no_facts=no_facts
    )


class Workers:
    """Workers that tell what a test has written; the last answer stays."""

    def __init__(self, *message: str, launcher: bool = True) -> None:
        self._said, self._launcher = [*message], launcher
        self.commands: list[str] = []
        self.sought: list[tuple[OtherLauncher, int]] = []

    async def run(self, _: Worker, command: str) -> str:
        self.commands.append(command)
        return self._said.pop(0) if len(self._said) > 1 else self._said[0]

    async def is_there(self, other: OtherLauncher, port: int) -> bool:
        self.sought.append((other, port))
        return self._launcher


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    noted: list[float] = []

    async def sleep(seconds: float) -> None:
        assert len(noted) < 1000, "it never ends"
        noted.append(seconds)

    asyncs = SimpleNamespace(**{**vars(asyncio), "sleep": sleep})
    monkeypatch.setattr(stale_processes, "asyncio", asyncs)
    clock = SimpleNamespace(monotonic=lambda: 1000.0 + sum(noted))
    monkeypatch.setattr(stale_processes, "time", clock)
    monkeypatch.setattr(stale_processes, "_running", set[str])
    log.configure(form=LogFormat.JSON)
    yield noted
    log.configure()


async def waited(workers: Workers, *seen: Worker, **settings: float) -> dict[str, tuple[str, ...]]:
    remote = cast("RemoteCommands", workers)
    found: dict[str, tuple[str, ...]] = {item.host.name: (MARK,) for item in seen}
    given = Settings(**settings)  # type: ignore[arg-type]
    return await stale_processes._wait_for_others(seen, found, KEY, given, remote)


async def test_they_are_asked_ever_less_often_and_told_of_once(
    pauses: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    workers = Workers(*[HELD] * 6, "")
    assert await waited(workers, worker(), timeout=600.0) == {}
    assert pauses == [0.2, pytest.approx(0.3), pytest.approx(0.45), pytest.approx(0.675), 1, 1, 1]
    assert workers.commands == [host_shell.ask("launches")] * 7
    (told,) = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert (told["event"], told["launchers"]) == ("other-launchers", 1)
    assert told["message"].endswith("since 2026-01-02T03:04:05Z; waiting until it ends")


@pytest.mark.parametrize(
    ("timeout", "keepalive", "there", "seconds"),
    [(600.0, 30, True, 35), (600.0, 300, True, 35), (600.0, 300, False, 405), (10.0, 30, True, 10)],
)
async def test_who_stays_has_them_after_its_grace_or_this_launchers_time(
    pauses: list[float],
    timeout: float,
    keepalive: int,
    there: bool,  # noqa: FBT001 - a row of the table
    seconds: int,
) -> None:
    """One that can't be reached from here may live: the workers' own keep-alive decides."""
    workers = Workers(HELD, launcher=there)
    with pytest.raises(MpibootError) as told:
        await waited(workers, worker(), timeout=timeout, ssh_keepalive=keepalive)
    assert told.value.finding.check == "workers-held"
    assert seconds <= sum(pauses) < seconds + 1
    assert f", still after {sum(pauses):.0f} s: nothing was started" in told.value.finding.message
    assert len(workers.sought) == (timeout > seconds)


@pytest.mark.parametrize("there", [True, False])
async def test_where_no_keep_alive_tells_it_the_launcher_itself_is_looked_for(
    pauses: list[float], *, there: bool
) -> None:
    workers, seen = Workers(HELD, launcher=there), worker(no_facts=NoFacts.NO_MPIBOOT)
    if there:
        with pytest.raises(MpibootError):
            await waited(workers, seen, timeout=0.0)
    else:
        assert await waited(workers, seen, timeout=0.0) == {"w-0": (MARK,)}
    ((other, port),) = workers.sought
    assert (other.name, other.address, port) == ("pi-launcher-x", "10.0.0.9", 2222)
    assert pauses == []


async def test_where_the_gate_saw_no_launch_this_pods_processes_are_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stale_processes, "_running", None)
    bare = Worker(Host("w-0"), "10.0.0.2", 22, "r", "", None)
    to = SshAccess("r", Path("no key"), "launcher")
    await stale_processes.end([bare], KEY, Settings(), to)


async def test_a_launch_within_a_launch_is_none_beside_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    other = MARK.replace("pi-launcher-x", "pi-launcher-y")
    log.configure(form=LogFormat.JSON)
    monkeypatch.setattr(stale_processes, "_running", lambda: {MARK, other, ""})
    monkeypatch.setenv(LAUNCH_ID, MARK)
    to = SshAccess("r", Path("no key"), "launcher")
    await stale_processes.end([worker()], KEY, Settings(), to)
    assert capfd.readouterr().err == ""
    monkeypatch.setenv(LAUNCH_ID, other)
    await stale_processes.end([worker("w-0"), worker("w-1")], KEY, Settings(), to)
    log.configure()
    told = json.loads(capfd.readouterr().err)
    assert (told["event"], told["hosts"]) == ("stale-processes", 2)
