"""Launches of a job on its workers: who holds them, and what an earlier launcher has left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core import log
from mpiboot.core.facts import Host, Worker
from mpiboot.core.launch_spec import LAUNCH_ID
from mpiboot.core.model import LogFormat
from mpiboot.hosts import host_shell, launches, remote_commands
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.hosts.launches import job_id, new_launch_id
from mpiboot.ssh.pool import Pool
from tests.fakes.pool import reaching
from tests.fakes.sshd import Behaviour, Job, sshd

# Of this process alone: workers here see all of this machine, and so the marks of other tests.
KEY = f"ssh-ed25519 {os.getpid()}"
BARE = f"{job_id(KEY)}-0123456789abcdef"
MARK = f"{BARE}@pi-launcher-x@2026-01-02T03:04:05Z"
WAITS = "echo; read -r _"
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process with a mark, which stays a shell: in an exec it has no environment."""
    with contextlib.ExitStack() as ends:

        def make(mark: str, script: str = WAITS, **environ: str) -> subprocess.Popen[bytes]:
            env = {"PATH": os.environ["PATH"], **environ} | ({LAUNCH_ID: mark} if mark else {})
            made = subprocess.Popen(["sh", "-c", script], env=env, stdin=-1, stdout=-1)
            ends.callback(made.communicate)
            ends.callback(made.kill)
            assert made.stdout is not None
            made.stdout.readline()
            return made

        yield make


def worker(*marks: str, held: tuple[tuple[str, str], ...] = ()) -> Worker:
    where = "127.0.0.2", 22, "root", "10.0.0.1"
    return Worker(Host("w-1"), *where, None, launches=marks, held=held)


def run(script: str, **environ: str) -> HostAnswer:
    environ |= {"PATH": os.environ["PATH"]}
    done = subprocess.run(script, shell=True, env=environ, stdout=-1, text=True, check=True)
    return host_shell.read(done.stdout)


def test_the_id_of_a_launch_has_its_job_its_launcher_and_its_start() -> None:
    first, second = new_launch_id(KEY), new_launch_id(KEY)
    assert first != second
    job, _, rest = first.partition("-")
    assert (job, rest.split("@")[1]) == (job_id(KEY), socket.gethostname())
    assert not first.startswith(job_id("another key"))
    assert all(char.isalnum() or char in "-@.:" for char in first)


def test_only_launches_of_this_job_that_are_not_of_this_pod_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, other = new_launch_id(KEY), new_launch_id("another key")
    monkeypatch.setattr(launches, "running_here", lambda: {here})
    odd = ("$(reboot)", f"{job_id(KEY)}-'; reboot")
    assert launches.of_earlier(worker(here, MARK, other, *odd), KEY) == (MARK,)
    monkeypatch.setattr(launches, "running_here", None)  # without one it is not read
    assert launches.of_earlier(worker(), KEY) == ()


SINCE = " since 2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ((), ""),
        (((MARK, "10.0.0.9"),), f"in use by launcher pi-launcher-x (10.0.0.9){SINCE}"),
        (((MARK, ""),), f"in use by launcher pi-launcher-x{SINCE}"),  # it came by kubectl
        (((BARE, "10.0.0.9"),), "in use by 10.0.0.9"),  # as older versions wrote it
        (((new_launch_id("another key"), "10.0.0.9"),), ""),
    ],
)
def test_who_is_connected_to_a_worker_is_named(
    held: tuple[tuple[str, str], ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = worker(*(launch for launch, _ in held), held=held)
    monkeypatch.setattr(launches, "running_here", set[str])
    assert launches.holder(seen, KEY) == message
    monkeypatch.setattr(launches, "running_here", lambda: {launch for launch, _ in held})
    assert launches.holder(seen, KEY) == ""


@pytest.mark.parametrize("visible", [True, False])
def test_the_command_reports_connected_launches(start: Start, *, visible: bool) -> None:
    """Where its own connection can't be seen, as in a sandbox, nobody counts as gone."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = server.getsockname()[1]
        ends = []
        for _ in range(3):
            ends.append(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
            ends.append(stack.enter_context(server.accept()[0]))
        open_, closed, own = (
            f"127.0.0.1 {client.getsockname()[1]} 127.0.0.1 {port}" for client in ends[::2]
        )
        for mark, connection in ((MARK, open_), ("b", closed), ("", open_)):
            start(mark, SSH_CONNECTION=connection)
        for end in ends[2:4]:
            end.close()
        query = own if visible else f"127.0.0.1 1 127.0.0.1 {port}"
        seen = run(host_shell.ask("launches"), SSH_CONNECTION=query)
    assert {MARK, "b"} <= set(seen.launches)
    assert (MARK, "127.0.0.1") in seen.held
    assert ("b" in {mark for mark, _ in seen.held}) != visible


def test_marked_processes_are_ended_and_others_are_not(start: Start) -> None:
    """What is stopped, too, and what saves at a TERM, or ignores it."""
    old, new = new_launch_id(KEY), new_launch_id(KEY)
    first, stopped, other = start(old), start(old), start(new)
    stopped.send_signal(signal.SIGSTOP)
    saving = start(old, "trap 'sleep 0.3; exit 7' TERM; echo; while :; do sleep 0.05; done")
    stubborn = start(old, "trap '' TERM; echo; while :; do sleep 1000; done")
    assert run(host_shell.end_processes([old])).left == 0
    assert {first.wait(60), stopped.wait(60)} == {-signal.SIGTERM}
    assert (saving.wait(60), stubborn.wait(60)) == (7, -signal.SIGKILL)
    assert other.poll() is None


@pytest.mark.parametrize("left", [True, False])
async def test_what_an_earlier_launcher_left_is_ended_by_its_mark(
    start: Start,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    left: bool,
) -> None:
    """Over SSH; nobody is queried where the gate has seen no mark."""
    monkeypatch.setattr(launches, "running_here", set[str])  # this test is in the worker's pod
    log.configure()
    job, mark = Job(tmp_path), new_launch_id(KEY)
    stale, behaviour = start(mark), Behaviour(job)
    async with sshd(behaviour, "127.0.0.2") as port:
        seen = replace(worker(*[mark] * left), port=port)
        async with reaching(job.path, seen) as pool:
            await remote_commands.end_leftovers([seen], KEY, pool)
    message = "mpiboot: w-1: ended 1 process left by an earlier launcher of this job\n"
    assert capfd.readouterr().err == message * left
    assert len(behaviour.commands) == left
    assert not left or stale.wait(60) == -signal.SIGTERM
    assert stale.poll() == (-signal.SIGTERM if left else None)


async def test_what_was_ended_and_what_could_not_be_is_a_line_each(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launches, "running_here", set[str])
    ends = {f"w-{number}": HostAnswer(ended=2, left=number % 2) for number in range(3)}
    ends["w-9"] = HostAnswer()
    for form in (LogFormat.HUMAN, LogFormat.JSON):
        log.configure(form=form)
        remote_commands._log_ended(ends)
    log.configure()
    ended, left, *records = capfd.readouterr().err.splitlines()
    assert ended == (
        "mpiboot: w-0, w-1, w-2: ended 6 processes left by an earlier launcher of this job"
    )
    assert left.startswith("mpiboot: warning: w-1: 1 process of an earlier launcher of this job ")
    found = [(item["event"], item["hosts"], item["processes"]) for item in map(json.loads, records)]
    assert found == [("stale-processes", 3, 6), ("stale-processes", 1, 1)]


@pytest.mark.parametrize("inside", [True, False])
async def test_a_launch_beside_another_of_this_pod_leaves_it_alone(
    start: Start,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    inside: bool,
) -> None:
    """A launch within a launch is a part of it, and none beside it."""
    log.configure()
    mark = new_launch_id(KEY)
    waiting = start(mark)
    monkeypatch.setenv(LAUNCH_ID, mark if inside else new_launch_id(KEY))
    await remote_commands.end_leftovers([worker(mark)], KEY, Pool(None))
    message = "another launch of this pod already runs on w-1; this one runs beside it"
    assert capfd.readouterr().err == ("" if inside else f"mpiboot: {message}\n")
    assert waiting.poll() is None
