"""A watcher that fails is a warning: only signals, mpirun's end and the agents' may end a job."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mpiboot.core.launch_spec import EVENTS, LAUNCH_DIR, LAUNCH_ID
from mpiboot.ssh.pool import Pool
from mpiboot.supervisor.job import MpirunEnded
from mpiboot.supervisor.mpirun import Mpirun
from mpiboot.supervisor.output import OutputWriter
from mpiboot.supervisor.signals import Handles
from mpiboot.supervisor.verdict import verdict
from mpiboot.supervisor.workers import Workers
from tests.fakes import launches
from tests.supervisor.answering import gone
from tests.waiting import until_in_loop


@pytest.fixture
async def job(tmp_path: Path) -> AsyncIterator[Mpirun]:
    """An mpirun that launches a daemon on one host; it ends only in the test's words."""
    words, folder = ("/bin/sleep", "1000"), str(tmp_path)
    spec = launches.spec("openmpi5", folder=folder, argv=words, remote_hosts=("w-1",), ranks=1)
    os.mkfifo(tmp_path / EVENTS)
    workers = Workers(Pool(None), (), {})
    handles = Handles(print)
    made = Mpirun(spec, {LAUNCH_ID: folder, LAUNCH_DIR: folder}, handles, OutputWriter(), workers)
    handles.fail = made.fail
    made.start(())
    yield made
    await made.end_left()


def failing(*_: Any) -> None:  # noqa: ANN401 - whatever it is called with
    raise KeyError("odd")


@pytest.mark.parametrize("failed", ["ranks", "_name_unused"])
async def test_a_watcher_that_fails_leaves_a_good_end_good(
    job: Mpirun, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], failed: str
) -> None:
    watchers: dict[str, Any] = {"ranks": job._workers, "_name_unused": job}
    monkeypatch.setattr(watchers[failed], failed, failing)
    await job._count_ranks()
    what = {"ranks": "counts ranks", "_name_unused": "names unused hosts"}[failed]
    assert f"[bug] what {what} failed at" in capfd.readouterr().err
    job._feed(MpirunEnded(0))
    assert verdict(await job.result()).code == 0


async def test_what_fails_is_listened_to_no_more_unless_it_is_vital(
    capfd: pytest.CaptureFixture[str],
) -> None:
    # As in an image, whose other packages lie below a folder of mpiboot's name too.
    fail = partial(exec, compile("{}['x']", "/opt/mpiboot/lib/other.py", "exec"))
    wrong: list[Exception] = []
    loop, (reader, writer) = Handles(wrong.append), os.pipe()
    os.write(writer, b"x")
    loop.on(reader, fail)
    await asyncio.sleep(0.05)
    message = capfd.readouterr().err
    assert message.count("warning: [bug] an event handler failed at supervisor/signals.py:") == 1
    assert message.endswith("KeyError: 'x'; the job goes on without it\n")
    loop.on(reader, fail, vital=True)
    await until_in_loop(lambda: wrong)
    os.close(reader)
    os.close(writer)


async def test_a_launcher_that_fails_ends_its_mpirun(job: Mpirun) -> None:
    """Fault: it ended what stood below, and left mpirun itself without a parent."""
    await job.end_left()
    assert gone(job.child)


async def test_an_mpirun_whose_executable_has_another_name_gets_its_signals(job: Mpirun) -> None:
    """Fault: a site's wrapper by ``exec -a`` was not found, and nothing that it started."""
    waiting = asyncio.ensure_future(job.result())
    await asyncio.sleep(0)
    job.receive(signal.SIGTERM, False)
    await until_in_loop(lambda: gone(job.child))
    waiting.cancel()


async def test_a_signal_that_comes_after_mpiruns_end_is_kept(job: Mpirun) -> None:
    """What is still to be written has not much time then."""
    job._feed(MpirunEnded(0))
    job.receive(signal.SIGTERM, False)
    assert job.signalled == signal.SIGTERM
