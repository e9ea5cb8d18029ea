"""An mpirun that is held while ranks save: a real process, and hosts that are shells here."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from mpiboot.supervisor import workers
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.supervisor.workers import Saving, StopScript
from tests.supervisor.answering import Hosts, gone, left, pool_for
from tests.waiting import until, until_in_loop

# Writes how many ranks there are, at first and for each line: a file has the number.
COUNTS = "say() { echo ranks $(cat $host-left); }; say; while read -r _; do say; done"


class Rig(Hosts):
    """An mpirun, the ranks of several hosts, and the numbers that were reported."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.mpirun = subprocess.Popen(["sleep", "1000"])
        self.numbers: list[int | None] = []
        self.unread = False
        self.hosts: list[HostSnapshot] = [self.before("gone")]
        self.saving = Saving(self.scripts, lambda: [self.mpirun.pid], self.numbers.append, None)

    def scripts(self, number: int) -> list[Coroutine[Any, Any, StopScript]]:
        assert number == signal.SIGUSR1
        to = pool_for(self.folder)
        return [StopScript.start(to, host, "{ stop; exit 0; }") for host in self.hosts]

    def host(self, name: str, left: int, text: str = COUNTS) -> None:
        self.left(name, left)
        self.hosts.append(self.answers(name, text))

    def left(self, name: str, left: int) -> None:
        path = self.folder / f"{name}-new"
        path.write_text(str(left))
        path.rename(self.folder / f"{name}-left")

    def start(self) -> None:
        self.saving.start(signal.SIGUSR1)
        self.becomes(held=True)

    async def reported(self, number: int | None) -> None:
        await until_in_loop(lambda: number in self.numbers)

    def held(self) -> bool:
        """Whether mpirun is stopped."""
        text = Path(f"/proc/{self.mpirun.pid}/stat").read_text()
        return text.rpartition(")")[2].split()[0] == "T"

    def becomes(self, held: bool) -> None:  # noqa: FBT001
        until(lambda: self.held() == held)

    async def stays_held(self) -> None:
        """It is held whenever one looks, for longer than all intervals."""
        for _ in range(20):
            await asyncio.sleep(0.05)
            assert self.held()


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    before, made = left(), Rig(tmp_path)
    monkeypatch.setattr(workers, "unread", lambda _: made.unread)
    yield made
    made.saving.release()
    # Nothing of a command stays open.
    await until_in_loop(lambda: left() <= before and all(map(gone, made.pids())))
    made.mpirun.kill()
    made.mpirun.wait()


async def test_numbers_are_reported_as_they_come_and_the_last_one_is_0(rig: Rig) -> None:
    rig.host("w-0", 2)
    rig.host("w-1", 3)
    rig.start()
    await rig.reported(5)
    rig.left("w-0", 0)
    await rig.reported(3)
    rig.left("w-1", 0)
    await rig.reported(0)
    assert rig.held(), "whoever gets that number releases mpirun"
    assert list(dict.fromkeys(rig.numbers)) == [5, 3, 0]


async def test_mpirun_runs_while_it_has_something_to_read_and_every_rank_is_there(
    rig: Rig,
) -> None:
    rig.host("w-0", 1)
    rig.start()
    await rig.reported(1)
    await rig.stays_held()
    rig.unread = True
    await until_in_loop(lambda: not rig.held())
    rig.unread = False
    await until_in_loop(rig.held)
    await rig.stays_held()
    # What comes after a rank's end could be the order to kill the others.
    rig.left("w-0", 0)
    rig.unread = True
    await rig.reported(0)


@pytest.mark.parametrize("ranks", [None, 4])
async def test_once_a_rank_has_ended_mpirun_stays_held(rig: Rig, ranks: int | None) -> None:
    rig.saving.ranks = ranks
    rig.host("w-0", 3)
    rig.start()
    await rig.reported(3)
    if ranks is None:  # else one of those that were started had ended before
        rig.left("w-0", 2)
        await rig.reported(2)
    rig.unread = True
    await rig.stays_held()


@pytest.mark.parametrize("text", ["exec sleep 300", "head -c 200000 /dev/zero"])
async def test_a_host_that_hangs_or_writes_too_much_keeps_no_others_from_saving(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(workers, "_LOGIN_S", 2.0)
    rig.host("w-0", 1)
    rig.host("w-1", 1, text)
    rig.start()
    await rig.reported(1)
    rig.left("w-0", 0)
    await rig.reported(0)


def fail(*_: object) -> Any:  # noqa: ANN401 - in the place of something
    raise KeyError("odd")


@pytest.mark.parametrize(("text", "number"), [(COUNTS, 0), ("exec sleep 300", None)])
async def test_where_ranks_can_not_be_counted_mpirun_is_not_left_held(
    rig: Rig,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    text: str,
    number: int | None,
) -> None:
    """Whoever gets 0 or None releases it."""
    monkeypatch.setattr(workers, "unread", fail)
    monkeypatch.setattr(workers, "_LOGIN_S", 60.0 if number == 0 else 0.5)
    rig.host("w-0", 1, text)
    rig.start()
    await rig.reported(number)
    rig.saving.release()
    rig.becomes(held=False)
    message = capfd.readouterr().err
    assert ("[bug] what lets ranks save failed at" in message) == (number == 0)
