"""An mpirun that is held while ranks save: a real process, and numbers as they are answered."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot.supervisor import asking
from mpiboot.supervisor.asking import Queries, Saving
from mpiboot.system.loop import EventLoop
from mpiboot.system.os_calls import socket_pair
from tests.waiting import until


class Rig:
    """An mpirun, and what was told of its ranks; the test answers the queries."""

    def __init__(self, ranks: int | None = 4) -> None:
        self.mpirun = subprocess.Popen(["sleep", "1000"])
        self.told: list[int | None] = []
        self.unread = False
        self.loop = EventLoop()
        own, self.other = socket_pair()
        queries = Queries(self.loop, own)
        self.saving = Saving(queries, lambda: [self.mpirun.pid], self.told.append, ranks)

    def start(self) -> None:
        self.saving.start(signal.SIGUSR1, 20.5)
        self.becomes(held=True)
        assert self.asked() == [[1, "stop-ranks", "USR1", "21"]]

    def tell(self, *lines: str, over: bool = False) -> None:
        os.write(self.other, json.dumps([1, over, *lines]).encode() + b"\n")
        self.loop.wait(None)

    def asked(self) -> list[list[object]]:
        there = select.select([self.other], [], [], 0)[0]
        text = os.read(self.other, 1 << 16) if there else b""
        return [json.loads(line) for line in text.splitlines()]

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
    monkeypatch.setattr(asking, "unread", lambda _: made.unread)
    monkeypatch.setattr(asking, "_LOOK", 0)
    yield made
    made.mpirun.kill()
    made.mpirun.wait()
    made.saving.queries.close()
    os.close(made.other)
    made.loop.close()


LOOK: list[object] = [1, ""]


def test_nothing_is_looked_at_before_its_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rig.saving.due is None
    rig.look()  # nothing is held
    monkeypatch.setattr(asking, "_LOOK", 1000)
    rig.start()
    due = rig.saving.due
    rig.unread = True
    rig.look()
    assert (rig.asked(), rig.saving.due) == ([], due)
    assert due is not None
    assert due > time.monotonic() + 500


def test_what_daemons_say_is_let_through_while_every_rank_is_there(rig: Rig) -> None:
    rig.start()
    rig.tell("4 4 0")
    rig.unread = True
    rig.look()
    assert rig.asked() == [LOOK]
    assert rig.held(), "the numbers are from before"
    rig.look()
    assert rig.asked() == [], "asked once for what came once"
    rig.tell("4 4 1")
    rig.look()
    assert rig.becomes(held=False)
    rig.unread = False
    rig.look()
    assert rig.becomes(held=True), "all is read"
    rig.unread = True
    rig.look()
    assert rig.asked() == [LOOK], "what comes anew is looked at anew"
    assert rig.held()
    rig.tell("4 4 2")
    rig.look()
    assert rig.becomes(held=False)


@pytest.mark.parametrize("line", ["3 4 1", "3 3 1", "0 4 1"])
def test_once_a_rank_has_ended_nothing_is_let_through(rig: Rig, line: str) -> None:
    """What comes then could be the order to kill the others; and four ranks were started."""
    rig.start()
    rig.unread = True
    rig.look()
    rig.tell(line)
    rig.look()
    assert rig.held()


@pytest.mark.parametrize(("line", "everybody"), [("3 3 1", True), ("2 3 1", False)])
def test_where_their_number_is_not_known_the_most_that_was_seen_counts(
    rig: Rig, line: str, *, everybody: bool
) -> None:
    rig.saving.ranks = None
    rig.saving.__post_init__()
    rig.start()
    rig.unread = True
    rig.look()
    rig.tell(line)
    rig.look()
    assert rig.becomes(held=not everybody)


def test_the_numbers_are_told_as_they_come_and_the_last_one_is_0(rig: Rig) -> None:
    rig.start()
    rig.tell("4 4 0", "2 4 0")
    rig.tell()
    rig.tell("0 4 0")
    assert rig.told == [4, 2]
    rig.tell(over=True)
    assert rig.told == [4, 2, 0]


def test_where_no_rank_was_ever_seen_nobody_knows(rig: Rig) -> None:
    rig.start()
    rig.tell("0 0 0", over=True)
    assert rig.told == [None]


def test_where_nobody_answers_any_more_mpirun_stays_held_and_nobody_knows(rig: Rig) -> None:
    """Whoever is told of that lets it go."""
    rig.start()
    os.close(rig.other)
    rig.other = os.open(os.devnull, os.O_RDONLY)
    rig.loop.wait(None)
    rig.unread = True
    rig.look()
    assert (rig.told, rig.held()) == ([None], True)


def test_a_release_is_for_good(rig: Rig) -> None:
    rig.start()
    rig.saving.release()
    assert rig.becomes(held=False)
    assert (rig.asked(), rig.saving.due) == ([[1]], None)
    rig.tell("4 4 0")
    rig.tell(over=True)
    rig.look()
    rig.saving.release()
    assert rig.told == []
    assert not rig.held()


def test_a_host_whose_session_is_over_is_named_while_ranks_save(rig: Rig) -> None:
    rig.saving.session_over("w-0")
    rig.start()
    rig.saving.session_over("w-1")
    assert rig.asked() == [[1, "w-1"]]
    rig.saving.release()
    rig.saving.session_over("w-2")
    assert rig.asked() == [[1]]


def test_where_nothing_is_held_there_is_nothing_to_release(rig: Rig) -> None:
    rig.mpirun.send_signal(signal.SIGSTOP)  # somebody else's
    assert rig.becomes(held=True)
    rig.saving.release()
    assert rig.held()
