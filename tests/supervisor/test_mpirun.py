"""A watcher that fails is a warning: only signals, mpirun's end and the agents' may end a job."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from mpiboot.core.launch_spec import LaunchSpec, RemoteHost
from mpiboot.supervisor.asking import Queries
from mpiboot.supervisor.mpirun import Mpirun
from mpiboot.supervisor.output import OutputWriter
from mpiboot.supervisor.signals import Received
from mpiboot.supervisor.state import MpirunEnded
from mpiboot.supervisor.verdict import verdict
from mpiboot.system.loop import EventLoop
from mpiboot.system.os_calls import socket_pair

if TYPE_CHECKING:
    from mpiboot.supervisor.signals import Signals


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Mpirun]:
    """An mpirun that launches a daemon on one host; this process plays it."""
    spec = LaunchSpec(
        argv=("true",),
        family="openmpi5",
        remote_hosts=(RemoteHost("w-1", "127.0.0.2", 1),),
        hosts=1,
        ranks=1,
        launch_timeout=1000.0,
        grace=20.0,
        folder=str(tmp_path),
    )
    loop, stderr = EventLoop(), OutputWriter()
    own, other = socket_pair()
    signals, queries = cast("Signals", SimpleNamespace(handle=-1)), Queries(loop, own)
    made = Mpirun(spec, {}, loop, signals, stderr, queries, 0)
    made.child = os.getpid()
    made._agents.listen()
    made._do(made._first)
    yield made
    queries.close()
    os.close(other)
    loop.close()


def failing(*_: Any) -> None:  # noqa: ANN401 - whatever it is called with
    raise KeyError("odd")


def test_a_watcher_that_fails_is_told_and_no_mpirun_stays_held(
    job: Mpirun, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    released: list[str] = []
    monkeypatch.setattr(job._saving, "release", lambda: released.append("released"))
    monkeypatch.setattr(job._saving, "look", failing)
    monkeypatch.setattr(job._loop, "wait", lambda _: None)
    job._turn()
    message = capfd.readouterr().err
    assert message.count("[bug] what lets ranks save failed at") == 1
    assert "KeyError: 'odd'; the job goes on without it" in message
    assert released == ["released"]
    assert not job._state.finished


def test_a_look_for_unused_hosts_that_fails_leaves_a_good_end_good(
    job: Mpirun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_name_unused", failing)
    job._feed(MpirunEnded(0))
    assert verdict(job.result()).code == 0


def test_a_timer_is_no_watcher(job: Mpirun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a job that ends lead to its end: one that failed would leave it for ever."""
    monkeypatch.setattr(job, "_feed", failing)
    job._deadlines = dict.fromkeys(job._deadlines, 0.0)
    with pytest.raises(KeyError):
        job._turn()


def test_a_signal_that_is_read_with_mpiruns_end_is_kept(
    job: Mpirun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is still to be written has not much time then."""
    child = os.posix_spawn("/bin/true", ["true"], {})
    job.child = child
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    come = [Received(signal.SIGCHLD, False), Received(signal.SIGTERM, False)]
    monkeypatch.setattr(job._signals, "read", lambda: come, raising=False)
    job._read_signals()
    assert job._state.finished
    assert job.signalled == signal.SIGTERM
