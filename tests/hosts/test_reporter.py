from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Coroutine
from types import SimpleNamespace

import pytest

from mpiboot.core import log
from mpiboot.core.facts import Host
from mpiboot.core.setting_types import LogFormat
from mpiboot.hosts import progress
from mpiboot.hosts.progress import Reporter


async def test_where_nothing_moves_a_line_says_again_what_is_missing_and_when_it_ends(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_OFTEN", 0.01)
    monkeypatch.setattr(progress, "_SILENCE", 0.03)
    known = progress.states([Host("w-0.job"), Host("w-1.job")])
    for state in known:
        state.reason = "NXDOMAIN"
    left = iter(range(500, 0, -30))
    task = asyncio.ensure_future(Reporter(left=lambda: float(next(left))).lines(known))
    message: list[str] = []
    while len(message) < 3:
        await asyncio.sleep(0.01)
        message += capfd.readouterr().err.splitlines()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    waiting = "mpiboot: 0/2 hosts ready, waiting for DNS for w-0, w-1 (NXDOMAIN)"
    assert message[:3] == [f"{waiting}; gives up in {when}" for when in ("8m20s", "7m50s", "7m20s")]


async def test_as_json_the_time_left_is_a_number(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_OFTEN", 0.01)
    log.configure(form=LogFormat.JSON)
    made = Reporter(left=lambda: 12.34)
    made.changed()
    task = asyncio.ensure_future(made.lines(progress.states([Host("w-0")])))
    text = ""
    while not text:
        await asyncio.sleep(0.01)
        text = capfd.readouterr().err
    assert not made._changed.is_set()  # else it would look every second, whatever happens
    task.cancel()
    log.configure()
    assert json.loads(text.splitlines()[0])["gives_up_in"] == 12.3


async def test_a_line_is_due_after_a_second_and_ever_less_often(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A fifth of the wait, and 28 seconds at most; nothing new is told again ever less often."""
    clock, pauses, silent = [1000.0], list[float](), list[float]()
    told, text = list[float](), [""]

    class Enough(Exception):  # noqa: N818 - nothing went wrong
        pass

    async def sleep(seconds: float) -> None:
        pauses.append(round(seconds, 6))
        clock[0] += seconds

    async def wait_for(work: Coroutine[None, None, None], limit: float) -> None:
        work.close()
        silent.append(round(limit, 6))
        if len(silent) == 60:
            raise Enough
        if len(silent) < 30:
            text[0] = f"step {len(silent)}"
        else:
            clock[0] += limit
            raise asyncio.TimeoutError

    asyncs = SimpleNamespace(**{**vars(asyncio), "sleep": sleep, "wait_for": wait_for})
    monkeypatch.setattr(progress, "asyncio", asyncs)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(progress, "line", lambda _: text[0])

    def left() -> float:
        told.append(clock[0])
        return 1.0

    with pytest.raises(Enough):
        await Reporter(left=left).lines(progress.states([Host("w-0")]))
    capfd.readouterr()
    assert pauses[:5] == [1.0] * 5
    assert pauses[5:8] == [1.0, 1.2, 1.44]
    assert pauses[-1] == 28.0
    assert silent[:2] == [27.0, 27.0]  # of the 28 seconds since the last line
    gaps = [round(after - before, 6) for before, after in itertools.pairwise(told)]
    assert gaps[-5:] == [120.0] * 5


@pytest.mark.parametrize(("seconds", "most"), [(600.0, 8), (3600.0, 33)])
async def test_a_wait_in_which_nothing_moves_fits_one_screen(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], seconds: float, most: int
) -> None:
    clock = [0.0]

    class Enough(Exception):  # noqa: N818 - nothing went wrong
        pass

    async def sleep(pause: float) -> None:
        clock[0] += pause
        if clock[0] > seconds:
            raise Enough

    async def wait_for(work: Coroutine[None, None, None], limit: float) -> None:
        work.close()
        await sleep(limit)
        raise asyncio.TimeoutError

    asyncs = SimpleNamespace(**{**vars(asyncio), "sleep": sleep, "wait_for": wait_for})
    monkeypatch.setattr(progress, "asyncio", asyncs)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with pytest.raises(Enough):
        await Reporter(left=lambda: 1.0).lines(progress.states([Host("w-0")]))
    assert 4 <= len(capfd.readouterr().err.splitlines()) <= most
