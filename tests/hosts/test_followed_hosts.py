"""A hostfile that changes while its hosts are waited for: who left, who joined, who goes on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error
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
    states, first = followed.states, dict(followed.runs)
    await asyncio.wait(first.values())

    gone = followed.follow((Host("c.x"), Host("a.x", slots=3)))
    await asyncio.wait(followed.runs.values())

    assert gone == {first["b.x", ""]}
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
        (hosts("a", "b"), hosts("b", "a"), "2 hosts now; other slots or another order"),
        (MANY, hosts("x"), "1 host now; left: w-0, w-1, w-2, w-3, w-4 and 4 more; joined: x"),
        (hosts("a"), (Host("a", slots=4),), "1 host now; other slots or another order"),
        ((Host("a", user="x"),), (Host("a", user="y"),), "1 host now; left: a; joined: a"),
    ],
)
async def test_a_change_is_one_line_that_names_who_left_and_who_joined(
    old: tuple[Host, ...], new: tuple[Host, ...], line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure(form=LogFormat.JSON)
    followed = FollowedHosts(old, cast("Pipelines", Pipes()))
    before = dict(followed.runs)
    gone = followed.follow(new)
    log.configure()
    told = json.loads(capfd.readouterr().err)
    assert (told["event"], told["message"]) == ("hostfile", f"the hostfile has changed: {line}")
    assert gone == {run for key, run in before.items() if key not in followed.runs}
    joined = [key for key in followed.runs if key not in before]
    assert (told["left"], told["joined"]) == (len(gone), len(joined))
    await gate.end_tasks({*gone, *followed.runs.values()})


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

    def leaves(_: str) -> str:
        seen.follow(())
        return "its name is gone"

    pipes = Moving(leaves)
    seen = FollowedHosts(hosts("a"), cast("Pipelines", pipes))
    (state,) = seen.states
    await asyncio.wait(seen.runs.values())
    await seen._look_again(state)
    assert (pipes.asked, pipes.restarted, dict(seen.runs)) == (["a"], [], {})


async def followed(
    path: Path, clock: Callable[[], float] = time.monotonic
) -> hostfiles.HostfileFollower:
    found = await hostfiles.find(str(path), "--hostfile", {}, patience=0, default="/none")
    return hostfiles.HostfileFollower(found, clock)


async def test_the_same_file_is_never_read_twice(tmp_path: Path) -> None:
    path = tmp_path / "hostfile"
    path.write_text("a\nb\n")
    follow = await followed(path)
    assert not follow.look()
    path.write_text("a\nb\n# the same hosts\n")
    assert not follow.look()
    path.write_text("a\nb\nc\n")
    assert follow.look()
    assert not follow.look()
    assert [host.name for host in follow.found.hostfile.hosts] == ["a", "b", "c"]


async def test_a_volume_that_is_swapped_is_read_again(tmp_path: Path) -> None:
    for number, text in enumerate(("a\n", "b\n")):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "hostfile").write_text(text)
    data = tmp_path / "..data"
    data.symlink_to("..0")
    (tmp_path / "hostfile").symlink_to("..data/hostfile")
    follow = await followed(tmp_path / "hostfile")
    (tmp_path / "..new").symlink_to("..1")
    (tmp_path / "..new").rename(data)
    assert follow.look()
    assert [host.name for host in follow.found.hostfile.hosts] == ["b"]


async def test_a_half_written_version_is_waited_for_and_ends_only_where_it_stays(
    tmp_path: Path,
) -> None:
    clock = [100.0]
    path = tmp_path / "hostfile"
    path.write_text("a slots=2\n")
    follow = await followed(path, lambda: clock[0])
    path.write_text("a slots=\n")
    assert not follow.look()
    assert follow.pending is not None
    clock[0] += 3
    assert not follow.look()
    path.write_text("a slots=4\n")
    assert follow.look()
    assert follow.pending is None
    path.write_text("a slots=four\n")
    follow.look()
    clock[0] += 4.5
    path.write_text("a slots=four # as wrong as before\n")
    assert not follow.look()
    clock[0] += 0.25
    assert not follow.look()
    clock[0] += 0.25  # five seconds after the first of them
    with pytest.raises(MpibootError, match="slots is 'four'"):
        follow.look()


async def test_what_is_wrong_after_an_empty_version_is_wrong_since_then(tmp_path: Path) -> None:
    clock, path = [100.0], tmp_path / "hostfile"
    path.write_text("a\n")
    follow = await followed(path, lambda: clock[0])
    for text in ("a slots=x\n", "", "a slots=xy\n"):
        path.write_text(text)
        assert not follow.look()
        clock[0] += 4
    assert not follow.look()
    clock[0] += 1
    with pytest.raises(MpibootError, match="slots is 'xy'"):
        follow.look()


@pytest.mark.parametrize("text", [None, "", "# nobody\n"])
async def test_a_version_without_hosts_is_waited_for_as_at_the_start(
    tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "hostfile"
    path.write_text("a\n")
    clock = [100.0]
    follow = await followed(path, lambda: clock[0])
    path.unlink() if text is None else path.write_text(text)
    assert not follow.look()
    clock[0] += 60
    assert not follow.look()
    assert follow.pending is not None
    assert follow.pending.code == (66 if text is None else 65)


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
