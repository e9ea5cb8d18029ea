"""When workers are asked for connections that nobody answers, and what is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from mpiboot import log
from mpiboot.parent import asking, unanswered_connections
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
        connect: int,
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
    monkeypatch.setattr(asking, "AskingChild", Child)
    monkeypatch.setattr(unanswered_connections, "time", Time)
    log.configure()
    yield clock
    log.configure()


@pytest.fixture
def given_up() -> list[str]:
    return []


@pytest.fixture
def watch(given_up: list[str]) -> Callable[[float], ConnectionWatch]:
    return lambda seconds: ConnectionWatch(
        EventLoop(), "/launch", {"A": "b"}, seconds, given_up.append
    )


def test_workers_are_asked_three_times_each_later_than_the_one_before(
    now: list[float], watch: Callable[[float], ConnectionWatch]
) -> None:
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
def test_where_it_is_switched_off_nobody_is_asked(
    watch: Callable[[float], ConnectionWatch],
) -> None:
    watching = watch(0)
    watching.look()
    assert (watching.due, Child.made) == (None, [])


def test_what_was_found_is_told_once_and_looked_at_again(
    now: list[float],
    watch: Callable[[float], ConnectionWatch],
    given_up: list[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    watching = watch(60)
    now[0] += 60
    watching.look()
    (child,) = Child.made
    child.tell("4 w-2 rank 1 on w-1 gets no answer", over=False)
    assert capfd.readouterr().err == "", "more may come"
    child.tell("5 w-1 rank 2 on w-2 gets no answer")
    first, second, hint = capfd.readouterr().err.splitlines()
    assert first == "mpiboot: warning: rank 1 on w-1 gets no answer"
    assert second == "mpiboot: warning: rank 2 on w-2 gets no answer"
    assert "is TCP between the workers dropped? A NetworkPolicy or firewall" in hint
    assert "MPIBOOT_PORT_RANGE" in hint
    assert child.ended
    child.tell("late")
    assert watching.due == 1090
    now[0] = 1090
    watching.look()
    Child.made[1].tell("6 w-1 rank 2 still gets no answer", "5 w-2 rank 1 gets none")
    assert given_up == ["rank 2 still gets no answer"]
    assert watching.due is None
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("lines", [(), ("9 - a process of the job gets no answer from a service",)])
def test_what_is_answered_after_all_or_no_host_of_the_job_ends_nothing(
    now: list[float],
    watch: Callable[[float], ConnectionWatch],
    given_up: list[str],
    lines: tuple[str, ...],
) -> None:
    watching = watch(60)
    now[0] += 60
    watching.look()
    Child.made[0].tell("5 w-1 rank 2 on w-2 gets no answer")
    now[0] += 30
    watching.look()
    Child.made[1].tell(*lines)
    assert watching.due is None
    assert given_up == []


def test_what_begins_anew_again_and_again_is_looked_at_four_times_more(
    now: list[float], watch: Callable[[float], ConnectionWatch], given_up: list[str]
) -> None:
    watching = watch(20)
    now[0] += 20
    asked: list[float] = []
    while watching.due is not None:
        now[0] = watching.due
        asked.append(now[0] - 1000)
        watching.look()
        Child.made[-1].tell("5 w-1 rank 2 on w-2 gets no answer")
    assert asked == [20, 50, 80, 110, 140]
    assert given_up == []


def test_who_is_found_waiting_for_long_is_given_up_at_once(
    now: list[float], watch: Callable[[float], ConnectionWatch], given_up: list[str]
) -> None:
    watching = watch(120)
    now[0] += 120
    watching.look()
    Child.made[0].tell("6 w-1 rank 2 on w-2 gets no answer", "9 - a service gives none")
    assert given_up == ["rank 2 on w-2 gets no answer"]
    assert watching.due is None


def test_where_nothing_was_found_they_are_asked_again(
    now: list[float],
    watch: Callable[[float], ConnectionWatch],
    capfd: pytest.CaptureFixture[str],
) -> None:
    watching = watch(60)
    now[0] += 60
    watching.look()
    Child.made[0].tell()
    assert capfd.readouterr().err == ""
    assert Child.made[0].ended
    assert watching.due == 1120
