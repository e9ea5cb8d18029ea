"""When workers are asked for connections that nobody answers, and what is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

import pytest

from mpiboot.core import log
from mpiboot.supervisor import asking, host_watch
from mpiboot.supervisor.host_watch import ConnectionWatch
from mpiboot.system.loop import EventLoop


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


@contextmanager
def clock_of(watch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time of a module that asks by a child, which is none; it goes on as a test says."""
    clock = [1000.0]

    class Time:
        @staticmethod
        def monotonic() -> float:
            return clock[0]

    Child.made = []
    monkeypatch.setattr(asking, "AskingChild", Child)
    monkeypatch.setattr(watch, "time", Time)
    log.configure()
    yield clock
    log.configure()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    with clock_of(host_watch, monkeypatch) as clock:
        yield clock


@pytest.fixture
def dropped() -> list[str]:
    return []


@pytest.fixture
def watch(dropped: list[str]) -> Callable[[float], ConnectionWatch]:
    return lambda seconds: ConnectionWatch(
        EventLoop(), "/launch", {"A": "b"}, seconds, dropped.append
    )


def test_workers_are_asked_four_times_where_nothing_is_found(
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
    assert asked == [60, 120, 180, 240]
    assert [child.started for child in Child.made] == [
        ("ask_workers.py", "/launch", {"A": "b"}, ("connecting",))
    ] * 4
    # One that hangs is ended by the next one, and the last by the end.
    assert [child.ended for child in Child.made] == [True, True, True, False]
    watching.look()
    watching.stop()
    watching.stop()
    assert [child.ended for child in Child.made] == [True] * 4


@pytest.mark.usefixtures("now")
def test_where_it_is_switched_off_nobody_is_asked(
    watch: Callable[[float], ConnectionWatch],
) -> None:
    watching = watch(0)
    watching.look()
    assert (watching.due, Child.made) == (None, [])


def look(watching: ConnectionWatch, now: list[float], *lines: str, took: float = 0) -> Child:
    """The next look, and its answer."""
    assert watching.due is not None
    now[0] = watching.due
    watching.look()
    now[0] += took
    Child.made[-1].tell(*lines)
    return Child.made[-1]


NEW, DROPPED = "new w-2/7", "dropped w-2/7 rank 1 on w-2 gets no answer from w-1"


def test_a_connection_counts_that_is_there_a_minute_later_still(
    now: list[float],
    watch: Callable[[float], ConnectionWatch],
    dropped: list[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Its far host is asked then: newer kernels try six times within seven seconds."""
    watching = watch(60)
    assert look(watching, now, NEW, took=15).started[3] == ("connecting",)
    assert (watching.due, dropped, capfd.readouterr().err) == (1135, [], "")
    assert look(watching, now, DROPPED).started[3] == ("connecting", "w-2/7")
    assert dropped == ["rank 1 on w-2 gets no answer from w-1"]
    assert capfd.readouterr().err == ""
    # It is looked for again an hour later; where that finds nothing it is over.
    assert watching.due == 1135 + 3600
    look(watching, now)
    assert dropped[1:] == [""]
    assert watching.due is None


def test_another_connection_to_the_same_port_begins_anew(
    now: list[float], watch: Callable[[float], ConnectionWatch], dropped: list[str]
) -> None:
    watching = watch(60)
    look(watching, now, NEW)
    assert look(watching, now, "new w-2/8").started[3] == ("connecting", "w-2/7")
    assert look(watching, now, NEW).started[3] == ("connecting", "w-2/8")
    assert look(watching, now).started[3] == ("connecting", "w-2/7")
    assert dropped == []


@pytest.mark.parametrize("kind", ["slow", "elsewhere"])
def test_who_is_slow_to_accept_or_none_of_the_job_is_told_and_blamed_for_nothing(
    now: list[float],
    watch: Callable[[float], ConnectionWatch],
    dropped: list[str],
    capfd: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    watching = watch(60)
    look(watching, now, NEW)
    look(watching, now, f"{kind} w-2/7 rank 1 on w-2 gets no answer")
    assert capfd.readouterr().err == "mpiboot: warning: rank 1 on w-2 gets no answer\n"
    assert dropped == []


@pytest.mark.parametrize("seconds", [20, 60, 300])
def test_what_begins_anew_again_and_again_is_not_looked_at_for_ever(
    now: list[float],
    watch: Callable[[float], ConnectionWatch],
    dropped: list[str],
    seconds: float,
) -> None:
    watching = watch(seconds)
    while len(Child.made) < 99 and watching.due is not None:
        look(watching, now, f"new w-2/{now[0]}")
    assert len(Child.made) in range(8, 12)
    assert dropped == []


def test_of_several_that_are_dropped_one_is_the_jobs_concern(
    now: list[float],
    watch: Callable[[float], ConnectionWatch],
    dropped: list[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    watching = watch(60)
    look(watching, now, NEW, "new w-1/5")
    look(watching, now, DROPPED, "dropped w-1/5 rank 2 gets no answer from w-2")
    assert dropped == ["rank 1 on w-2 gets no answer from w-1"]
    assert capfd.readouterr().err.startswith("mpiboot: warning: rank 2 gets no answer from w-2\n")


@pytest.mark.usefixtures("now")
def test_more_of_an_answer_may_come(
    now: list[float], watch: Callable[[float], ConnectionWatch], dropped: list[str]
) -> None:
    watching = watch(60)
    look(watching, now, NEW)
    now[0] = watching.due or 0
    watching.look()
    child = Child.made[-1]
    child.tell(DROPPED, over=False)
    assert dropped == []
    child.tell()
    assert (len(dropped), child.ended) == (1, True)
    child.tell("late")
    assert len(dropped) == 1
