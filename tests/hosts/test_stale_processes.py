"""What an earlier launcher left is ended, by its mark alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mpiboot.core import log
from mpiboot.core.facts import Host, Worker
from mpiboot.core.launch_names import LAUNCH_ID
from mpiboot.core.setting_types import LogFormat
from mpiboot.hosts import host_shell, launches, remote_commands
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.ssh.pool import Pool
from tests.fakes.pool import reaching
from tests.fakes.sshd import Behaviour, Job, sshd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# Of this process alone: workers here see all of this machine, and so the marks of other tests.
KEY = f"ssh-ed25519 {os.getpid()}"


WAITS = "echo; read -r nothing"


@pytest.fixture
def start() -> Iterator[Callable[[str, str], subprocess.Popen[bytes]]]:
    """Start a process with a mark, which stays a shell: in an exec it has no environment."""
    started = []

    def make(mark: str, script: str) -> subprocess.Popen[bytes]:
        env = {"PATH": os.environ["PATH"], LAUNCH_ID: mark}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(["sh", "-c", script], env=env, stdin=pipe, stdout=pipe))
        assert started[-1].stdout is not None
        started[-1].stdout.readline()
        return started[-1]

    yield make
    for item in started:
        with contextlib.suppress(ProcessLookupError):
            item.kill()
        item.communicate()


def worker(*marks: str) -> Worker:
    return Worker(Host("w-1"), "10.0.0.2", 22, "root", "10.0.0.1", None, launches=marks)


def sweep(*marks: str) -> str:
    script = host_shell.end_processes(marks)
    return subprocess.run(script, shell=True, capture_output=True, text=True, check=True).stdout


def test_marked_processes_are_ended_and_others_are_not(
    start: Callable[[str, str], subprocess.Popen[bytes]],
) -> None:
    old, new = launches.new_launch_id(KEY), launches.new_launch_id(KEY)
    first = start(old, WAITS)
    stopped = start(old, WAITS)
    stopped.send_signal(signal.SIGSTOP)
    kept = start(new, WAITS)
    assert "left 0" in sweep(old)
    assert {first.wait(60), stopped.wait(60)} == {-signal.SIGTERM}
    assert kept.poll() is None


def test_what_ignores_a_term_is_killed(
    start: Callable[[str, str], subprocess.Popen[bytes]],
) -> None:
    mark = launches.new_launch_id(KEY)
    stubborn = start(mark, "trap '' TERM; echo; while :; do sleep 1000; done")
    sweep(mark)
    assert stubborn.wait(60) == -signal.SIGKILL


def test_what_saves_at_a_term_has_the_time_for_it(
    start: Callable[[str, str], subprocess.Popen[bytes]],
) -> None:
    mark = launches.new_launch_id(KEY)
    saving = start(mark, "trap 'sleep 0.3; exit 7' TERM; echo; while :; do sleep 0.05; done")
    sweep(mark)
    assert saving.wait(60) == 7


@pytest.mark.parametrize("found", ["stale", "nothing"])
async def test_the_sweep_ends_what_an_earlier_launcher_left_and_says_so(
    start: Callable[[str, str], subprocess.Popen[bytes]],
    found: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole way: over SSH, by the mark that the gate has seen; nobody is asked without one."""
    monkeypatch.setattr(launches, "running_here", set[str])  # this test is in the worker's pod
    log.configure()
    job, mark = Job(tmp_path), launches.new_launch_id(KEY)
    stale = start(mark, WAITS)
    behaviour = Behaviour(job)
    seen = replace(worker(*((mark,) if found == "stale" else ())), address="127.0.0.2")
    async with (
        sshd(behaviour, "127.0.0.2") as port,
        reaching(job.path, replace(seen, port=port)) as pool,
    ):
        await remote_commands.end_leftovers([seen], KEY, pool)
    if found == "stale":
        assert stale.wait(60) == -signal.SIGTERM
        assert (
            "w-1: ended 1 process left by an earlier launcher of this job" in capfd.readouterr().err
        )
    else:
        assert stale.poll() is None
        assert behaviour.commands == []


async def test_a_launch_beside_another_of_this_pod_says_so_and_leaves_it_alone(
    start: Callable[[str, str], subprocess.Popen[bytes]],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    log.configure()
    mark = launches.new_launch_id(KEY)
    waiting = start(mark, WAITS)
    await remote_commands.end_leftovers([worker(mark)], KEY, Pool(None))
    assert capfd.readouterr().err == (
        "mpiboot: another launch of this pod already runs on w-1; this one runs beside it\n"
    )
    assert waiting.poll() is None


def test_what_was_ended_and_what_could_not_be_is_a_line_each(
    capfd: pytest.CaptureFixture[str],
) -> None:
    answers = {f"w-{number}": HostAnswer(ended=2, left=number % 2) for number in range(3)}
    for form in (LogFormat.HUMAN, LogFormat.JSON):
        log.configure(form=form)
        remote_commands._log_ended({"w-9": HostAnswer()})
        remote_commands._log_ended(answers)
    log.configure()
    ended, left, *records = capfd.readouterr().err.splitlines()
    assert ended == (
        "mpiboot: w-0, w-1, w-2: ended 6 processes left by an earlier launcher of this job"
    )
    assert left.startswith("mpiboot: warning: w-1: 1 process of an earlier launcher of this job ")
    told = [(item["event"], item["hosts"], item["processes"]) for item in map(json.loads, records)]
    assert told == [("stale-processes", 3, 6), ("stale-processes", 1, 1)]


async def test_a_launch_within_a_launch_is_none_beside_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    outer, other = launches.new_launch_id(KEY), launches.new_launch_id(KEY)
    log.configure(form=LogFormat.JSON)
    monkeypatch.setattr(launches, "running_here", lambda: {outer, other, ""})
    monkeypatch.setenv(LAUNCH_ID, outer)
    await remote_commands.end_leftovers([worker(outer)], KEY, Pool(None))
    assert capfd.readouterr().err == ""
    monkeypatch.setenv(LAUNCH_ID, other)
    await remote_commands.end_leftovers([worker(outer)], KEY, Pool(None))
    log.configure()
    told = json.loads(capfd.readouterr().err)
    assert (told["event"], told["hosts"]) == ("stale-processes", 1)
