"""A hostfile that changes while its hosts are waited for: who left, who joined, who goes on."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from mpiboot.core import log
from mpiboot.core.checks import error
from mpiboot.core.facts import Host, Worker
from mpiboot.core.setting_types import LogFormat
from mpiboot.hosts import gate, hostfiles
from mpiboot.hosts.gate import FollowedHosts
from mpiboot.hosts.progress import HostState

if TYPE_CHECKING:
    from mpiboot.hosts.pipeline import Pipelines


def hosts(*names: str) -> tuple[Host, ...]:
    return tuple(Host(name, line=number) for number, name in enumerate(names, start=1))


class Pipes:
    """Stands for the pipelines: each run ends when the test says so."""

    def __init__(self) -> None:
        self.started: list[str] = []

    async def run(self, state: HostState) -> Worker | None:
        self.started.append(state.host.name)
        await asyncio.sleep(0)
        return Worker(state.host, "10.0.0.2", 22, "root", "10.0.0.1", None)


async def test_hosts_that_stay_go_on_and_get_the_slots_of_the_last_version() -> None:
    pipes = Pipes()
    followed = FollowedHosts(hosts("a.x", "b.x"), cast("Pipelines", pipes))
    states = followed.states
    await asyncio.wait(followed.runs.values())

    await followed.restart((Host("c.x"), Host("a.x", slots=3)))
    await asyncio.wait(followed.runs.values())

    assert ("b.x", "") not in followed.runs
    assert pipes.started == ["a.x", "b.x", "c.x"]
    assert followed.states is states
    assert [state.label for state in states] == ["c", "a"]
    workers, local = followed.results()
    assert [(worker.host.name, worker.host.slots) for worker in workers] == [("c.x", 1), ("a.x", 3)]
    assert local == ()


MANY = hosts(*(f"w-{number}" for number in range(9)))


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (hosts("a", "b"), hosts("a", "b", "c"), "3 hosts now; joined: c"),
        (hosts("a", "b"), hosts("b"), "1 host now; left: a"),
        (hosts("a", "b"), hosts("b", "a"), "2 hosts now"),
        (MANY, hosts("x"), "1 host now; joined: x; left: w-0, w-1, w-2, w-3, w-4 and 4 more"),
        (hosts("a"), (Host("a", slots=4),), "1 host now"),
        ((Host("a", user="x"),), (Host("a", user="y"),), "1 host now; joined: a; left: a"),
    ],
)
async def test_a_change_is_one_line_that_names_who_left_and_who_joined(
    old: tuple[Host, ...], new: tuple[Host, ...], line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure(form=LogFormat.JSON)
    followed = FollowedHosts(old, cast("Pipelines", Pipes()))
    before = dict(followed.runs)
    await followed.restart(new)
    log.configure()
    told = json.loads(capfd.readouterr().err)
    assert (told["event"], told["message"]) == ("hostfile", f"the hostfile has changed: {line}")
    gone, came = before.keys() - followed.runs.keys(), followed.runs.keys() - before.keys()
    assert all(before[key].cancelled() for key in gone)
    assert (told["left"], told["joined"]) == (len(gone), len(came))
    await gate.end_tasks({*followed.runs.values()})


class Moving(Pipes):
    """Pipelines that tell where a ready host is now; a second run of one never ends."""

    def __init__(self, moved: Callable[[str], str]) -> None:
        super().__init__()
        self._moved = moved
        self.asked: list[str] = []
        self.restarted: list[str] = []
        self.broken = ""

    async def run(self, state: HostState) -> Worker | None:
        name = state.host.name
        self.started.append(name)
        if name == "refused":
            raise error("ssh-denied", "no", host=name)
        if name == "waiting" or self.started.count(name) > 1:
            await asyncio.Event().wait()
        return None if name == "own" else Worker(state.host, "10.0.0.2", 22, "r", "", None)

    async def moved(self, worker: Worker) -> str:
        self.asked.append(worker.host.name)
        return self._moved(worker.host.name)

    def is_connected(self, worker: Worker) -> bool:
        return worker.host.name != self.broken

    def restart(self, state: HostState) -> None:
        self.restarted.append(state.host.name)


async def test_only_a_host_that_is_ready_by_its_name_is_looked_at_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    log.configure(form=LogFormat.JSON)
    pipes = Moving(lambda name: "its name is gone" if name == "moved" else "")
    names = ("refused", "waiting", "own", "10.0.0.9", "stays", "moved", "left")
    seen = FollowedHosts(hosts(*names), cast("Pipelines", pipes))
    runs = dict(seen.runs)
    runs["left", ""].cancel()
    await asyncio.wait([runs[name, ""] for name in names if name != "waiting"])
    assert [worker.host.name for worker in seen.ready()] == ["10.0.0.9", "stays", "moved"]
    for state in (*seen.states, HostState(Host("unknown"), "unknown")):
        await seen._look_again(state)
    log.configure()
    assert pipes.asked == ["stays", "moved"]
    assert pipes.restarted == ["moved"]
    assert [name for name, _ in runs if seen.runs[name, ""] is not runs[name, ""]] == ["moved"]
    assert [worker.host.name for worker in seen.ready()] == ["10.0.0.9", "stays"]
    told = json.loads(capfd.readouterr().err)
    assert (told["event"], told["host"]) == ("gate", "moved")
    message = "moved was ready at 10.0.0.2, but its name is gone; waiting for it again"
    assert told["message"] == message
    for run in seen.runs.values():
        run.cancel()
    await asyncio.wait(seen.runs.values())


async def test_a_host_that_has_left_meanwhile_is_not_started_again() -> None:
    """The hostfile changes while the nameserver is asked."""

    class Leaving(Moving):
        async def moved(self, worker: Worker) -> str:
            await seen.restart(())
            return await super().moved(worker)

    pipes = Leaving(lambda _: "its name is gone")
    seen = FollowedHosts(hosts("a"), cast("Pipelines", pipes))
    (state,) = seen.states
    await asyncio.wait(seen.runs.values())
    await seen._look_again(state)
    assert (pipes.asked, pipes.restarted, dict(seen.runs)) == (["a"], [], {})


async def test_another_version_counts_where_it_has_other_hosts_or_slots(tmp_path: Path) -> None:
    for number, text in enumerate(("a\nb\n", "a\nb\n# the same\n", "a\nb slots=2\n", "c\n")):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "hostfile").write_text(text)
    data, path = tmp_path / "..data", tmp_path / "hostfile"
    data.symlink_to("..0")
    path.symlink_to("..data/hostfile")
    found = await hostfiles.find(str(path), "--hostfile", {}, patience=0, default="/none")
    seen = []
    for number in range(4):  # as a kubelet does it
        (tmp_path / "..new").symlink_to(f"..{number}")
        (tmp_path / "..new").rename(data)
        seen.append((found.look_again(), [(x.name, x.slots) for x in found.hostfile.hosts]))
        assert not found.look_again()
    first = [("a", 1), ("b", 1)]
    assert seen == [
        (False, first),
        (False, first),
        (True, [("a", 1), ("b", 2)]),
        (True, [("c", 1)]),
    ]


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        (None, 66, "does not exist"),
        ("# nobody\n", 65, "has only comments"),
        ("a slots=\n", 65, "slots is ''"),
    ],
)
async def test_a_version_that_cannot_be_used_is_no_change_and_said_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str | None, code: int, why: str
) -> None:
    log.configure()
    path = tmp_path / "hostfile"
    path.write_text("a\n")
    found = await hostfiles.find(str(path), "--hostfile", {}, patience=0, default="/none")
    path.unlink() if text is None else path.write_text(text)
    for _ in range(3):
        assert not found.look_again()
        assert found.unusable is not None
        assert found.unusable.code == code
        assert str(path) in str(found.unusable)
    told = capfd.readouterr().err
    assert told.count("the hostfile has changed and can't be used yet: ") == told.count("\n") == 1
    assert why in told
    path.write_text("a\n")
    assert not found.look_again()
    assert found.unusable is None
    path.write_text("a slots=4\n")
    assert found.look_again()


async def test_a_pipe_in_the_place_of_a_hostfile_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "hostfile"
    path.write_text("a\n")
    found = await hostfiles.find(str(path), "--hostfile", {}, patience=0, default="/none")
    path.unlink()
    os.mkfifo(path)
    assert not found.look_again()
    assert "not a regular file" in str(found.unusable)


async def test_ready_hosts_names_are_asked_for_every_ten_seconds_and_not_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, asked = [0.0], list[tuple[str, float]]()

    async def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] > 15:
            raise asyncio.CancelledError

    def moved(name: str) -> str:
        asked.append((name, now[0]))
        return ""

    seen = FollowedHosts(hosts("a", "b"), cast("Pipelines", Moving(moved)))
    await asyncio.wait(seen.runs.values())
    monkeypatch.setattr(gate, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    monkeypatch.setattr(gate, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with pytest.raises(asyncio.CancelledError):
        await seen.watch()
    assert asked == [("a", 10.0), ("b", 10.02)]


async def test_a_host_whose_connection_broke_is_waited_for_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    log.configure()
    pipes = Moving(lambda _: "")
    seen = FollowedHosts(hosts("a", "waiting", "b"), cast("Pipelines", pipes))
    await asyncio.wait([seen.runs[name, ""] for name in ("a", "b")])
    assert not seen.wait_for_lost()
    pipes.broken = "b"
    assert seen.wait_for_lost()
    assert pipes.restarted == ["b"]
    assert [worker.host.name for worker in seen.ready()] == ["a"]
    message = "b was ready at 10.0.0.2, but its connection broke; waiting for it again"
    assert message in capfd.readouterr().err
    assert not seen.wait_for_lost()
    await gate.end_tasks({*seen.runs.values()})
