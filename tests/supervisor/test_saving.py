"""An mpirun that is held while ranks save: a real process, and numbers as the child tells them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from mpiboot.supervisor import asking
from mpiboot.supervisor.asking import Saving
from mpiboot.system.loop import EventLoop


class Child:
    """What counts the ranks: it is asked on its stdin, and writes lines."""

    def __init__(
        self,
        _loop: EventLoop,
        program: str,
        folder: str,
        _environ: Mapping[str, str],
        *words: str,
        connect: int,
        heard: Callable[[], None],
        stdin: int,
    ) -> None:
        self.started = (program, folder, *words)
        self.connect = connect
        self.heard = heard
        self.stdin = os.dup(stdin)
        self.lines: list[str] = []
        self.over = self.ended = False

    def take_lines(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines

    def end(self) -> None:
        self.ended = True

    def tell(self, *lines: str, over: bool = False) -> None:
        self.lines += lines
        self.over = over
        self.heard()

    def asked(self) -> bytes:
        there = select.select([self.stdin], [], [], 0)[0]
        return os.read(self.stdin, 64) if there else b""


class Rig:
    """An mpirun, and what was told of its ranks."""

    def __init__(self, ranks: int | None = 4) -> None:
        self.mpirun = subprocess.Popen(["sleep", "1000"])
        self.told: list[int | None] = []
        self.unread = False
        self.saving = Saving(EventLoop(), lambda: [self.mpirun.pid], self.told.append, ranks)

    def start(self) -> Child:
        self.saving.start("/launch", {}, signal.SIGUSR1, 20.5)
        self.becomes(held=True)
        child = self.saving._child
        assert isinstance(child, Child)
        return child

    def held(self) -> bool:
        """Whether mpirun is stopped; a signal to oneself or another is there when kill returns."""
        text = Path(f"/proc/{self.mpirun.pid}/stat").read_text()
        return text.rpartition(")")[2].split()[0] == "T"

    def becomes(self, held: bool) -> bool:  # noqa: FBT001
        while self.held() != held:
            time.sleep(0.001)
        return True

    def look(self) -> None:
        self.saving.look()


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig()
    monkeypatch.setattr(asking, "AskingChild", Child)
    monkeypatch.setattr(asking, "unread", lambda _: made.unread)
    monkeypatch.setattr(asking, "_LOOK", 0)
    yield made
    made.mpirun.kill()
    made.mpirun.wait()
    if isinstance(made.saving._child, Child):
        os.close(made.saving._child.stdin)


def test_ranks_are_told_and_mpirun_is_held(rig: Rig) -> None:
    assert rig.saving.due is None
    child = rig.start()
    assert child.started == ("stop_ranks.py", "/launch", "USR1", "21")
    due = rig.saving.due
    assert due is not None
    assert due <= time.monotonic()


def test_nothing_is_looked_at_before_its_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.look()  # nothing is held
    monkeypatch.setattr(asking, "_LOOK", 1000)
    child = rig.start()
    due = rig.saving.due
    rig.unread = True
    rig.look()
    assert (child.asked(), rig.saving.due) == (b"", due)
    assert due is not None
    assert due > time.monotonic() + 500


def test_what_daemons_say_is_let_through_while_every_rank_is_there(rig: Rig) -> None:
    child = rig.start()
    child.tell("ranks 4 4 0")
    rig.unread = True
    rig.look()
    assert child.asked() == b"\n"
    assert rig.held(), "the numbers are from before"
    rig.look()
    assert child.asked() == b"", "asked once for what came once"
    child.tell("ranks 4 4 1")
    rig.look()
    assert rig.becomes(held=False)
    rig.unread = False
    rig.look()
    assert rig.becomes(held=True), "all is read"
    rig.unread = True
    rig.look()
    assert child.asked() == b"\n", "what comes anew is looked at anew"
    assert rig.held()
    child.tell("ranks 4 4 2")
    rig.look()
    assert rig.becomes(held=False)


@pytest.mark.parametrize("line", ["ranks 3 4 1", "ranks 3 3 1", "ranks 0 4 1"])
def test_once_a_rank_has_ended_nothing_is_let_through(rig: Rig, line: str) -> None:
    """What comes then could be the order to kill the others; and four ranks were started."""
    child = rig.start()
    rig.unread = True
    rig.look()
    child.tell(line)
    rig.look()
    assert rig.held()


def test_where_their_number_is_not_known_the_most_that_was_seen_counts() -> None:
    for line, everybody in (("ranks 3 3 1", True), ("ranks 2 3 1", False)):
        made = Saving(EventLoop(), list, print, None)
        made._count(*map(int, line.split()[1:]))
        assert made._all == everybody


def test_the_numbers_are_told_as_they_come_and_the_last_one_is_0(rig: Rig) -> None:
    child = rig.start()
    child.tell("ranks 4 4 0", "ranks 2 4 0")
    child.tell()
    child.tell("ranks 0 4 0")
    assert rig.told == [4, 2]
    child.tell(over=True)
    assert rig.told == [4, 2, 0]


def test_where_no_rank_was_ever_seen_nobody_knows(rig: Rig) -> None:
    rig.start().tell("ranks 0 0 0", over=True)
    assert rig.told == [None]


def test_a_child_that_has_ended_gives_no_more_numbers(rig: Rig) -> None:
    child = rig.start()
    os.close(child.stdin)
    rig.unread = True
    rig.look()
    child.stdin = os.open(os.devnull, os.O_RDONLY)
    assert rig.held()


def test_a_release_is_for_good(rig: Rig) -> None:
    child = rig.start()
    rig.saving.release()
    assert rig.becomes(held=False)
    assert child.ended
    assert rig.saving.due is None
    assert os.read(child.stdin, 1) == b"", "the child would wait for a question"
    child.tell("ranks 4 4 0")
    child.tell(over=True)
    rig.look()
    rig.saving.release()
    assert rig.told == []
    assert not rig.held()


def test_a_host_whose_session_is_over_is_named_while_ranks_save(rig: Rig) -> None:
    rig.saving.session_over("w-0")
    child = rig.start()
    rig.saving.session_over("w-1")
    assert child.asked() == b"w-1\n"
    rig.saving.release()
    rig.saving.session_over("w-2")
    assert child.asked() == b""


def test_a_child_that_reads_nothing_holds_nobody_up(rig: Rig) -> None:
    """A launcher with little CPU starts it late, and a thousand hosts may be lost by then."""
    rig.start()
    for _ in range(1 << 10):
        rig.saving.session_over("w" * 128)


def test_where_nothing_is_held_there_is_nothing_to_release(rig: Rig) -> None:
    rig.mpirun.send_signal(signal.SIGSTOP)  # somebody else's
    assert rig.becomes(held=True)
    rig.saving.release()
    assert rig.held()
