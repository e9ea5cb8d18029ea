"""When workers are asked for connections that nobody answers, and what is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from mpiboot import log
from mpiboot.parent import unanswered_connections
from mpiboot.parent.loop import EventLoop
from mpiboot.parent.unanswered_connections import ConnectionWatch


class Child:
    """What asks the workers."""

    made: list[Child]

    def __init__(
        self,
        _loop: EventLoop,
        program: str,
        folder: str,
        environ: Mapping[str, str],
        *words: str,
        heard: Callable[[], None],
    ) -> None:
        self.started = (program, folder, dict(environ), words)
        self.heard = heard
        self.lines: list[str] = []
        self.over = self.ended = False
        Child.made.append(self)

    def take_lines(self) -> list[str]:
        return self.lines

    def end(self) -> None:
        self.ended = True

    def tell(self, *lines: str, over: bool = True) -> None:
        self.lines += lines
        self.over = over
        self.heard()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time of these tests."""
    clock = [1000.0]

    class Time:
        @staticmethod
        def monotonic() -> float:
            return clock[0]

    Child.made = []
    monkeypatch.setattr(unanswered_connections, "AskingChild", Child)
    monkeypatch.setattr(unanswered_connections, "time", Time)
    log.configure()
    yield clock
    log.configure()


def watch(seconds: float) -> ConnectionWatch:
    return ConnectionWatch(EventLoop(), "/launch", {"A": "b"}, seconds)


def test_workers_are_asked_three_times_each_later_than_the_one_before(now: list[float]) -> None:
    watching = watch(60)
    asked: list[float] = []
    while watching.due is not None:
        now[0] = watching.due - 1
        watching.look()
        assert len(Child.made) == len(asked), "not before its time"
        now[0] = watching.due
        asked.append(now[0] - 1000)
        watching.look()
        assert len(Child.made) == len(asked)
    assert asked == [60, 120, 240]
    assert [child.started for child in Child.made] == [
        ("ask_workers.py", "/launch", {"A": "b"}, ("connecting",))
    ] * 3
    # One that hangs is ended by the next one, and the last by the end.
    assert [child.ended for child in Child.made] == [True, True, False]
    watching.look()
    watching.stop()
    watching.stop()
    assert [child.ended for child in Child.made] == [True] * 3


@pytest.mark.usefixtures("now")
def test_where_it_is_switched_off_nobody_is_asked() -> None:
    watching = watch(0)
    watching.look()
    assert (watching.due, Child.made) == (None, [])


def test_what_was_found_is_told_once_and_nobody_is_asked_again(
    now: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    watching = watch(60)
    now[0] += 60
    watching.look()
    (child,) = Child.made
    child.tell("rank 1 on w-1 gets no answer", over=False)
    assert capfd.readouterr().err == "", "more may come"
    child.tell("rank 2 on w-2 gets no answer")
    first, second, hint = capfd.readouterr().err.splitlines()
    assert first == "mpiboot: warning: rank 1 on w-1 gets no answer"
    assert second == "mpiboot: warning: rank 2 on w-2 gets no answer"
    assert "is TCP between the workers dropped? A NetworkPolicy or firewall" in hint
    assert "MPIBOOT_PORT_RANGE" in hint
    assert child.ended
    assert watching.due is None
    child.tell("late")
    assert capfd.readouterr().err == ""


def test_where_nothing_was_found_they_are_asked_again(
    now: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    watching = watch(60)
    now[0] += 60
    watching.look()
    Child.made[0].tell()
    assert capfd.readouterr().err == ""
    assert Child.made[0].ended
    assert watching.due == 1120
