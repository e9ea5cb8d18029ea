"""An mpirun that is held while ranks save: a real process, and numbers as they are counted."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpiboot.supervisor import saving
from mpiboot.supervisor.saving import Saving
from mpiboot.supervisor.stop_ranks import LookRequests
from tests.waiting import until


class Rig:
    """An mpirun, and what was told of its ranks; the test counts these."""

    def __init__(self, ranks: int | None = 4) -> None:
        self.mpirun = subprocess.Popen(["sleep", "1000"])
        self.told: list[int | None] = []
        self.unread = False
        self.loop = asyncio.new_event_loop()
        self.over = self.loop.create_future()
        self.asked: list[tuple[int, float]] = []
        self.saving = Saving(self.stop, lambda: [self.mpirun.pid], self.told.append, ranks)

    async def stop(
        self,
        number: int,
        seconds: float,
        wanted: LookRequests,
        count: Callable[[int, int, int], None],
    ) -> None:
        self.asked.append((number, seconds))
        self.wanted, self.count = wanted, count
        await self.over

    def turn(self) -> None:
        """Let what can go on do so."""
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.run_until_complete(asyncio.sleep(0))

    def start(self) -> None:
        async def begin() -> None:
            self.saving.start(signal.SIGUSR1, 20.5)

        self.loop.run_until_complete(begin())
        self.turn()
        self.becomes(held=True)
        assert self.asked == [(signal.SIGUSR1, 20.5)]

    def end(self) -> None:
        self.over.set_result(None)
        self.turn()

    def held(self) -> bool:
        """Whether mpirun is stopped; a signal to oneself or another is there when kill returns."""
        text = Path(f"/proc/{self.mpirun.pid}/stat").read_text()
        return text.rpartition(")")[2].split()[0] == "T"

    def becomes(self, held: bool) -> bool:  # noqa: FBT001
        until(lambda: self.held() == held)
        return True

    def look(self) -> None:
        self.saving.look()


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig()
    monkeypatch.setattr(saving, "unread", lambda _: made.unread)
    monkeypatch.setattr(saving, "_LOOK", 1000)
    yield made
    made.mpirun.kill()
    made.mpirun.wait()
    made.saving.release()
    made.turn()
    made.loop.close()


def test_what_daemons_say_is_let_through_while_every_rank_is_there(rig: Rig) -> None:
    rig.start()
    rig.count(4, 4, 0)
    rig.unread = True
    rig.look()
    assert rig.wanted.number == 1
    assert rig.held(), "the numbers are from before"
    rig.look()
    assert rig.wanted.number == 1, "asked once for what came once"
    rig.count(4, 4, 1)
    rig.look()
    assert rig.becomes(held=False)
    rig.unread = False
    rig.look()
    assert rig.becomes(held=True), "all is read"
    rig.unread = True
    rig.look()
    assert rig.wanted.number == 2, "what comes anew is looked at anew"
    assert rig.held()
    rig.count(4, 4, 2)
    rig.look()
    assert rig.becomes(held=False)


@pytest.mark.parametrize("numbers", [(3, 4, 1), (3, 3, 1), (0, 4, 1)])
def test_once_a_rank_has_ended_nothing_is_let_through(
    rig: Rig, numbers: tuple[int, int, int]
) -> None:
    """What comes then could be the order to kill the others; and four ranks were started."""
    rig.start()
    rig.unread = True
    rig.look()
    rig.count(*numbers)
    rig.look()
    assert rig.held()


@pytest.mark.parametrize(("numbers", "everybody"), [((3, 3, 1), True), ((2, 3, 1), False)])
def test_where_their_number_is_not_known_the_most_that_was_seen_counts(
    rig: Rig, numbers: tuple[int, int, int], *, everybody: bool
) -> None:
    rig.saving.ranks = None
    rig.saving.__post_init__()
    rig.start()
    rig.unread = True
    rig.look()
    rig.count(*numbers)
    rig.look()
    assert rig.becomes(held=not everybody)


def test_the_numbers_are_told_as_they_come_and_the_last_one_is_0(rig: Rig) -> None:
    rig.start()
    for left in (4, 2, 0):
        rig.count(left, 4, 0)
    assert rig.told == [4, 2]
    rig.end()
    assert rig.told == [4, 2, 0]


def test_where_no_rank_was_ever_seen_nobody_knows(rig: Rig) -> None:
    rig.start()
    rig.count(0, 0, 0)
    rig.end()
    assert rig.told == [None]


def test_where_ranks_can_not_be_counted_mpirun_stays_held_and_nobody_knows(
    rig: Rig, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever is told of that lets it go."""
    rig.start()
    rig.over.set_exception(KeyError("odd"))
    rig.turn()
    rig.unread = True
    rig.look()
    assert (rig.told, rig.held()) == ([None], True)
    assert "[bug] what lets ranks save failed at" in capfd.readouterr().err


def test_a_watcher_that_fails_is_told_and_no_mpirun_stays_held(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> bool:
        raise KeyError("odd")

    monkeypatch.setattr(saving, "_LOOK", 0.02)
    monkeypatch.setattr(saving, "unread", fail)
    rig.start()
    rig.loop.run_until_complete(asyncio.sleep(0.1))
    assert rig.becomes(held=False)
    message = capfd.readouterr().err
    assert message.count("[bug] what lets ranks save failed at") == 1
    assert "KeyError: 'odd'; the job goes on without it" in message


def test_a_release_is_for_good(rig: Rig) -> None:
    rig.start()
    rig.saving.release()
    assert rig.becomes(held=False)
    rig.turn()
    rig.count(4, 4, 0)
    rig.saving.release()
    assert rig.told == []
    assert not rig.held()


def test_a_host_whose_session_is_over_is_given_up_while_ranks_save(rig: Rig) -> None:
    rig.saving.session_over("w-0")
    rig.start()
    asking: asyncio.Future[None] = rig.loop.create_future()
    rig.wanted.asking["w-1"] = asking  # type: ignore[assignment] # it has no script
    rig.saving.session_over("w-1")
    assert asking.cancelled()


def test_where_nothing_is_held_there_is_nothing_to_release(rig: Rig) -> None:
    rig.mpirun.send_signal(signal.SIGSTOP)  # somebody else's
    assert rig.becomes(held=True)
    rig.saving.release()
    assert rig.held()
