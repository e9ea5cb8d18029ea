"""How silence is seen, on real connections, and when hosts are looked for, with injected ones."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from mpiboot.core.launch_spec import RemoteHost
from mpiboot.supervisor import host_watch
from mpiboot.supervisor.asking import Request
from mpiboot.supervisor.host_watch import SilenceWatch
from mpiboot.supervisor.state import HostLost
from mpiboot.system.loop import EventLoop
from tests.supervisor.test_unanswered_connections import Child, clock_of
from tests.waiting import until

PLACE = ("10.0.0.1", 22)
OTHER = ("10.0.0.2", 22)
HOSTS = (RemoteHost("w-0", *PLACE), RemoteHost("w-1", *OTHER))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_kernel_tells_how_long_a_connection_has_been_silent(address: str) -> None:
    version = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=version) as server:
        place = server.getsockname()[:2]
        with socket.create_connection(place) as asking_end:
            answering_end, _ = server.accept()
            with answering_end:
                answering_end.send(b"x")
                asking_end.recv(1)
                assert host_watch.silences()[place] == 0  # nothing was asked since
                until(lambda: asking_end.send(b"?") and host_watch.silences()[place] > 0.1)
                before = host_watch.silences()[place]
                until(lambda: host_watch.silences()[place] > before)
                # A second connection that is well hides nothing.
                with socket.create_connection(place):
                    assert host_watch.silences()[place] >= before
                answering_end.send(b"x")
                until(lambda: host_watch.silences()[place] == 0)
    assert place not in host_watch.silences()


def test_where_the_kernel_tells_nothing_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_watch.can_look()

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("mpiboot.supervisor.host_watch.socket.socket", refuse)
    assert not host_watch.can_look()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    with clock_of(host_watch, monkeypatch) as clock:
        yield clock


class Watched:
    """A watch over two hosts whose silence a test sets."""

    def __init__(self, now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = now
        self.seen: dict[tuple[str, int], float] = {PLACE: 3.0, OTHER: 3.0}
        self.lost: list[HostLost] = []
        monkeypatch.setattr(host_watch, "silences", lambda: dict(self.seen))
        self.watch = SilenceWatch(
            EventLoop(), "/l", {}, HOSTS, silent=30, keepalive=300, lost=self.lost.append
        )

    def look(self, *ages: float) -> float:
        """Look when it is time; give the seconds until the next look."""
        assert self.watch.due is not None
        self.now[0] = self.watch.due
        self.seen = dict(zip((PLACE, OTHER), ages, strict=True))
        self.watch.look()
        return self.watch.due - self.now[0]


@pytest.fixture
def watched(now: list[float], monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(now, monkeypatch)


def test_it_looks_about_twice_a_minute_and_just_in_time(watched: Watched) -> None:
    assert watched.watch.due == 1030
    watched.now[0] = 1029.9
    watched.watch.look()
    assert watched.look(0, 0) == 30
    assert watched.look(9, 3) == 21
    assert watched.look(29.5, 3) == 1
    assert Child.made == []
    watched.look(30.5, 3)
    assert [child.started[3] for child in Child.made] == [(Request.LOOK_FOR.value, "w-0")]


def test_a_watch_that_is_off_never_looks(now: list[float]) -> None:
    watch = SilenceWatch(EventLoop(), "/l", {}, HOSTS, silent=0, keepalive=0, lost=lambda _: None)
    assert watch.due is None
    watch.look()


def test_looks_that_fail_are_told_once_and_end_nothing_and_a_later_one_counts(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> dict[tuple[str, int], float]:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as failing:
        failing.setattr(host_watch, "silences", refuse)
        assert [watched.look(3, 3) for _ in range(2)] == [30, 30]
    assert (watched.lost, watched.watch.lines()) == ([], ())
    assert capfd.readouterr().err.count("Too many open files") == 1
    watched.look(31.2, 3)
    Child.made[-1].tell("w-0 gone its name does not resolve any more")
    assert [lost.host for lost in watched.lost] == ["w-0"]


def test_what_proves_a_loss_is_told_at_once(watched: Watched) -> None:
    watched.look(31.2, 3)
    Child.made[-1].tell("w-0 gone its name does not resolve any more")
    message = "nothing came over its SSH connection for 31 s: its name does not resolve any more"
    assert watched.lost == [HostLost("w-0", message)]


@pytest.mark.parametrize(("found", "lost"), [("nothing", True), ("answers", False)])
def test_a_host_for_which_nothing_answers_is_lost_after_the_keep_alive(
    watched: Watched, capfd: pytest.CaptureFixture[str], found: str, *, lost: bool
) -> None:
    for age in range(31, 331, 30):
        assert watched.lost == []
        watched.look(age, 3)
        Child.made[-1].tell(f"w-0 {found} port 22 is so")
        watched.look(age, 3)  # at once, and nobody is asked again
    assert len(Child.made) == 10
    assert bool(watched.lost) == lost
    told = capfd.readouterr().err.splitlines()
    first = "w-0: nothing came over its SSH connection for 31 s: port 22 is so"
    more = "The job goes on. Look closer: mpiboot doctor --host w-0"
    assert told[0].endswith(f"{first}. {more}")
    assert len(told) == 1  # and not again before an hour is over
    assert watched.watch.lines() == (first,)


def test_a_connection_that_is_alive_again_is_told_and_explains_nothing(
    watched: Watched, capfd: pytest.CaptureFixture[str]
) -> None:
    watched.look(40, 3)
    Child.made[-1].tell("w-0 nothing port 22 does not answer")
    watched.look(2, 3)
    assert (
        capfd.readouterr().err.splitlines()[-1].endswith("w-0: its SSH connection is alive again")
    )
    assert watched.watch.lines() == ()
    watched.look(33, 3)
    assert len(Child.made) == 2


def test_one_question_at_a_time(watched: Watched) -> None:
    watched.look(31, 29.5)
    watched.look(32, 30.5)
    assert len(Child.made) == 1
    Child.made[0].tell()  # a child that failed says nothing, and nothing follows
    assert watched.watch.due == watched.now[0]
    watched.look(33, 31.5)
    assert [child.started[3][1:] for child in Child.made] == [("w-0",), ("w-1",)]
    assert watched.lost == []


def test_many_silent_hosts_are_one_line(
    now: list[float], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hosts = [RemoteHost(f"w-{number}", f"10.0.0.{number}", 22) for number in range(40)]
    seen = {(item.address, item.port): 31.0 for item in hosts}
    monkeypatch.setattr(host_watch, "silences", lambda: seen)
    watch = SilenceWatch(EventLoop(), "/l", {}, hosts, silent=30, keepalive=300, lost=print)
    now[0] += 30
    watch.look()
    Child.made[-1].tell(*(f"{item.name} nothing no answer" for item in hosts))
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 9
    assert "(32 more hosts): the same" in told[-1]
    assert len(watch.lines()) == 8
