"""When workers are asked for connections that nobody answers, and what is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from mpiboot.core import log
from mpiboot.supervisor import host_watch
from mpiboot.supervisor.asking import Heard, Queries, Request
from mpiboot.supervisor.host_watch import ConnectionWatch


class Asked(Queries):
    """Queries that the test answers, and their words; the last one's number is how many."""

    def __init__(self) -> None:
        self.words: list[tuple[str, ...]] = []
        self.open: dict[int, Heard] = {}

    def begin(self, request: Request, *words: str, heard: Heard) -> int:
        assert request is Request.CONNECTING
        self.words.append(words)
        self.open[len(self.words)] = heard
        return len(self.words)

    def cancel(self, number: int) -> None:
        self.open.pop(number, None)

    def tell(self, *lines: str) -> None:
        self.open.pop(len(self.words))(list(lines), True)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time, which goes on as a test says."""
    clock = [1000.0]

    class Time:
        @staticmethod
        def monotonic() -> float:
            return clock[0]

    monkeypatch.setattr(host_watch, "time", Time)
    log.configure()
    yield clock
    log.configure()


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def dropped() -> list[str]:
    return []


Watch = Callable[[float], ConnectionWatch]


@pytest.fixture
def watch(asked: Asked, dropped: list[str]) -> Watch:
    return lambda seconds: ConnectionWatch(asked, seconds, dropped.append)


def test_workers_are_asked_four_times_where_nothing_is_found(
    now: list[float], watch: Watch, asked: Asked
) -> None:
    watching = watch(60)
    times: list[float] = []
    while watching.due is not None:
        now[0] = watching.due - 1
        watching.look()
        assert len(asked.words) == len(times), "not before its time"
        now[0] = watching.due
        times.append(now[0] - 1000)
        watching.look()
        # One that hangs is ended by the next one, and the last by the end.
        assert [*asked.open] == [len(times)]
    assert times == [60, 120, 180, 240]
    assert asked.words == [()] * 4
    watching.look()
    watching.stop()
    watching.stop()
    assert asked.open == {}


@pytest.mark.usefixtures("now")
def test_where_it_is_switched_off_nobody_is_asked(watch: Watch, asked: Asked) -> None:
    watching = watch(0)
    watching.look()
    assert (watching.due, asked.words) == (None, [])


def look(
    watching: ConnectionWatch, now: list[float], *lines: str, took: float = 0
) -> tuple[str, ...]:
    """The next look, and its answer; give the connections that it asked about."""
    asked = watching.queries
    assert isinstance(asked, Asked)
    assert watching.due is not None
    now[0] = watching.due
    watching.look()
    now[0] += took
    asked.tell(*lines)
    return asked.words[-1]


NEW, DROPPED = "new w-2/7", "dropped w-2/7 rank 1 on w-2 gets no answer from w-1"


def test_a_connection_counts_that_is_there_a_minute_later_still(
    now: list[float],
    watch: Watch,
    dropped: list[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Its far host is asked then: newer kernels try six times within seven seconds."""
    watching = watch(60)
    assert look(watching, now, NEW, took=15) == ()
    assert (watching.due, dropped, capfd.readouterr().err) == (1135, [], "")
    assert look(watching, now, DROPPED) == ("w-2/7",)
    assert dropped == ["rank 1 on w-2 gets no answer from w-1"]
    assert capfd.readouterr().err == ""
    # It is looked for again an hour later; where that finds nothing it is over.
    assert watching.due == 1135 + 3600
    look(watching, now)
    assert dropped[1:] == [""]
    assert watching.due is None


def test_another_connection_to_the_same_port_begins_anew(
    now: list[float], watch: Watch, dropped: list[str]
) -> None:
    watching = watch(60)
    look(watching, now, NEW)
    assert look(watching, now, "new w-2/8") == ("w-2/7",)
    assert look(watching, now, NEW) == ("w-2/8",)
    assert look(watching, now) == ("w-2/7",)
    assert dropped == []


@pytest.mark.parametrize("kind", ["slow", "elsewhere"])
def test_who_is_slow_to_accept_or_none_of_the_job_is_told_and_blamed_for_nothing(
    now: list[float],
    watch: Watch,
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
    watch: Watch,
    dropped: list[str],
    seconds: float,
    asked: Asked,
) -> None:
    watching = watch(seconds)
    while len(asked.words) < 99 and watching.due is not None:
        look(watching, now, f"new w-2/{now[0]}")
    assert len(asked.words) in range(8, 12)
    assert dropped == []


def test_of_several_that_are_dropped_one_is_the_jobs_concern(
    now: list[float],
    watch: Watch,
    dropped: list[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    watching = watch(60)
    look(watching, now, NEW, "new w-1/5")
    look(watching, now, DROPPED, "dropped w-1/5 rank 2 gets no answer from w-2")
    assert dropped == ["rank 1 on w-2 gets no answer from w-1"]
    assert capfd.readouterr().err.startswith("mpiboot: warning: rank 2 gets no answer from w-2\n")
