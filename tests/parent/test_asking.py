"""The child that asks the workers: a few seconds at most, whatever becomes of it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from mpiboot.after_job import ask_workers
from mpiboot.after_job.request import Request
from mpiboot.parent import asking
from mpiboot.parent.loop import EventLoop


def child(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    program = folder / "ask.py"
    program.write_text(text)
    monkeypatch.setattr(asking, "ASK_WORKERS", str(program))


def asked(folder: Path) -> tuple[str, ...]:
    return asking.ask(str(folder), os.environ, EventLoop(), lambda: False, Request.EVIDENCE)


def runs(pid: str) -> bool:
    try:
        status = Path("/proc", pid, "stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def test_what_has_hung_is_ended_with_its_agents_and_what_it_said_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    text = (
        "import os, subprocess, time\n"
        "print('w-1: /tmp is full', flush=True)\n"
        "agent = subprocess.Popen(['sleep', '300'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{agent.pid}}')\n"
        "time.sleep(300)\n"
    )
    child(tmp_path, monkeypatch, text)
    monkeypatch.setattr(asking, "_PATIENCE", 5.0)  # it has to come to its hang within that
    assert asked(tmp_path) == ("w-1: /tmp is full",)
    end = time.monotonic() + 60  # a guard: a killed process takes a moment to go
    while any(map(runs, pids.read_text().split())):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_child_that_fails_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child(tmp_path, monkeypatch, "raise SystemExit(1)")
    assert asked(tmp_path) == ()


def test_without_an_interpreter_nothing_is_told_and_nothing_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    loop, fds = EventLoop(), len(list(Path("/proc/self/fd").iterdir()))
    assert asking.ask(str(tmp_path), os.environ, loop, lambda: False, Request.EVIDENCE) == ()
    assert len(list(Path("/proc/self/fd").iterdir())) == fds


def test_hosts_have_less_time_than_the_child_that_asks_them() -> None:
    assert ask_workers._SECONDS + ask_workers._END < asking._PATIENCE <= 5
