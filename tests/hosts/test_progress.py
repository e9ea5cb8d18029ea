"""The gate's progress: what hosts that are not ready lack, and when a line of it is due."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable, Coroutine
from types import SimpleNamespace

import pytest

from mpiboot.core import log
from mpiboot.core.facts import Host
from mpiboot.core.model import LogFormat
from mpiboot.hosts import progress
from mpiboot.hosts.progress import HostState, Reporter, Stage, fields, finding, line, states


def of(*names: str, reason: str = "") -> tuple[HostState, ...]:
    made = states([Host(name) for name in names])
    for state in made:
        state.reason = reason
    return made


def numbered(*stages: tuple[Stage, str], more: int = 0) -> tuple[HostState, ...]:
    """Hosts in these stages for these reasons, and so many that are ready."""
    known = of(*(f"w-{number}.job.ns.svc" for number in range(len(stages) + more)))
    for state, (stage, reason) in itertools.zip_longest(known, stages, fillvalue=(Stage.READY, "")):
        assert isinstance(state, HostState)
        state.stage, state.reason = stage, reason
    return known


REFUSED = Stage.SSH, "connection refused"
NO_NAME = Stage.DNS, "NXDOMAIN"
WAITING = "hosts ready, waiting for"


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (
            numbered(REFUSED, NO_NAME, more=62),
            f"62/64 {WAITING} SSH on w-0 (connection refused), DNS for w-1 (NXDOMAIN)",
        ),
        (
            numbered(*[NO_NAME] * 1000),
            f"0/1000 {WAITING} DNS for w-0, w-1, w-2 and 997 more (NXDOMAIN)",
        ),
        (numbered(more=1), "1/1 hosts ready"),
        (
            numbered((Stage.KUBECTL, "pod not found")),
            f"0/1 {WAITING} kubectl exec on w-0 (pod not found)",
        ),
        (  # who is furthest, then the largest group
            numbered(
                *((Stage.DNS, "a"), (Stage.DNS, "b"), (Stage.DNS, "b"), (Stage.SSH, "c")),
                *((Stage.READY, ""), (Stage.SSH, "")),
            ),
            f"1/6 {WAITING} SSH on w-3 (c), SSH on w-5, DNS for w-1, w-2 (b), DNS for w-0 (a)",
        ),
        (
            numbered(*((Stage.DNS, f"{number}") for number in range(10))),
            (
                f"0/10 {WAITING} {', '.join(f'DNS for w-{one} ({one})' for one in range(4))}, "
                f"6 more for other reasons"
            ),
        ),
    ],
)
def test_a_line_has_how_many_are_ready_and_what_the_others_wait_for(
    known: tuple[HostState, ...], expected: str
) -> None:
    assert line(known) == expected
    record, ready = fields(known), sum(state.ready for state in known)
    assert (record["ready"], record["total"]) == (ready, len(known))
    waiting = record["waiting"]
    assert isinstance(waiting, list)
    assert len(waiting) == min(50, len(known) - ready)
    if ready == 62:
        first = {"host": "w-0.job.ns.svc", "stage": "ssh", "reason": "connection refused"}
        assert waiting[0] == first


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (("w-0.a", "w-0.b"), ["w-0.a", "w-0.b"]),
        (("10.0.0.1", "10.0.0.2"), ["10.0.0.1", "10.0.0.2"]),
        (("fd00::1", "w-0.b"), ["fd00::1", "w-0"]),
    ],
)
def test_names_are_whole_where_their_first_parts_are_alike_and_addresses_always(
    names: tuple[str, ...], labels: list[str]
) -> None:
    assert [state.label for state in of(*names)] == labels


def test_a_finding_has_as_much_as_is_known() -> None:
    state = of("w-0.job")[0]
    assert finding(state).message == "DNS: no answer yet"
    assert "headless Service" in finding(state).hint
    state.reason = "NXDOMAIN"
    assert finding(state).message == "DNS: NXDOMAIN"
    state.detail, state.hint = "NXDOMAIN (asked 10.96.0.10)", "do this"
    found = finding(state)
    assert (found.check, found.host, found.hint) == ("names-unresolved", "w-0.job", "do this")
    assert found.message == "DNS: NXDOMAIN (asked 10.96.0.10)"
    state.resolved, state.stage = True, Stage.SSH
    assert finding(state).check == "workers-unreachable"


class Enough(Exception):  # noqa: N818 - nothing went wrong
    pass


class Clock:
    """Time that passes by pauses; ``changes`` gives a new line, None where nothing changes."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, changes: Callable[[], str | None], end: float
    ) -> None:
        self.now, self.end, self.pauses, self.logged = 0.0, end, list[float](), list[float]()
        self._changes, self._text = changes, ""
        asyncs = {**vars(asyncio), "sleep": self.sleep, "wait_for": self.wait_for}
        monkeypatch.setattr(progress, "asyncio", SimpleNamespace(**asyncs))
        monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(progress, "line", lambda _: self._text)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 6))
        self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        if self.now > self.end:
            raise Enough

    async def wait_for(self, work: Coroutine[None, None, None], limit: float) -> None:
        work.close()
        if text := self._changes():
            self._text = text
        else:
            self._pass(limit)
            raise asyncio.TimeoutError

    def left(self) -> float:
        self.logged.append(round(self.now, 6))
        return 12.34


async def test_a_line_is_due_after_a_second_and_ever_less_often(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A fifth of the wait, and 28 seconds at most; the same again after 28 to 120 seconds."""
    log.configure(form=LogFormat.JSON)
    texts = (f"step {number}" for number in range(1, 30))
    clock = Clock(monkeypatch, lambda: next(texts, None), 4000.0)
    with pytest.raises(Enough):
        await Reporter(clock.left).lines(states([Host("w-0")]))
    assert clock.pauses[:8] == [1.0] * 6 + [1.2, 1.44]
    assert max(clock.pauses) == 28.0
    gaps = [round(after - before, 6) for before, after in itertools.pairwise(clock.logged)]
    assert gaps[-5:] == [120.0] * 5
    record = json.loads(capfd.readouterr().err.splitlines()[0])
    assert (record["gives_up_in"], record["message"]) == (12.3, "step 1; gives up in 12s")


@pytest.mark.parametrize(("seconds", "most"), [(600.0, 8), (3600.0, 33)])
async def test_a_wait_in_which_nothing_moves_fits_one_screen(
    monkeypatch: pytest.MonkeyPatch, seconds: float, most: int
) -> None:
    clock = Clock(monkeypatch, lambda: None, seconds)
    with pytest.raises(Enough):
        await Reporter(clock.left).lines(states([Host("w-0")]))
    assert clock.logged[0] == 28.0
    assert 4 <= len(clock.logged) <= most


async def test_a_change_has_its_line_at_once_and_is_not_noted_twice(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_OFTEN", 0.01)
    made = Reporter(left=lambda: 500.0)
    made.changed()
    task = asyncio.ensure_future(made.lines(of("w-0.job", "w-1.job", reason="NXDOMAIN")))
    text = ""
    while not text:
        await asyncio.sleep(0.01)
        text = capfd.readouterr().err
    await asyncio.sleep(0.1)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    waiting = "mpiboot: 0/2 hosts ready, waiting for DNS for w-0, w-1 (NXDOMAIN)"
    assert text + capfd.readouterr().err == f"{waiting}; gives up in 8m20s\n"
