"""What sleeps beside the launcher, and what it does once that is gone: real marked processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot.core import log
from mpiboot.core.launch_spec import KEY, LAUNCH_DIR, LAUNCH_ID
from mpiboot.core.model import LogFormat
from mpiboot.supervisor import processes
from tests.waiting import until

THIS = f"this-{os.getpid()}"  # tests run side by side
READY = "import time\nprint('ready', flush=True)\ntime.sleep(1000)"
HUMAN = LogFormat.HUMAN


@pytest.fixture
def left(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """What a launch has left; its key is there."""
    (tmp_path / KEY).touch()
    marks = {**os.environ, LAUNCH_DIR: str(tmp_path), LAUNCH_ID: THIS}
    child = subprocess.Popen([sys.executable, "-S", "-c", READY], env=marks, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.stdout.close()
    yield child
    child.kill()
    child.wait()
    log.configure()


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_what_the_launch_has_left_is_ended_and_reported(
    tmp_path: Path, left: subprocess.Popen[bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    processes.main(str(tmp_path), THIS, LogFormat.JSON.value)
    line = json.loads(capfd.readouterr().err)
    assert (line["level"], line["event"], line["role"]) == ("warning", "killed", "launcher")
    assert line["message"] == "the launcher was killed: ended 1 process of its job in this pod"
    assert not (tmp_path / KEY).exists()
    assert left.wait(60) == -signal.SIGTERM


def test_another_launch_is_left_alone_and_a_command_keeps_its_key(
    tmp_path: Path,
    left: subprocess.Popen[bytes],
    capfd: pytest.CaptureFixture[str],
) -> None:
    processes.main(str(tmp_path), "another", HUMAN.value)
    line = "mpiboot: warning: the launcher was killed: its job has ended with it\n"
    assert capfd.readouterr().err == line
    assert left.poll() is None
    assert not (tmp_path / KEY).exists()


def test_a_guard_has_no_mark_and_only_the_parent_keeps_it_asleep(tmp_path: Path) -> None:
    environ, before = {**os.environ, LAUNCH_DIR: str(tmp_path), LAUNCH_ID: THIS}, descriptors()
    shell = processes.start_guard(str(tmp_path), environ, HUMAN)
    assert shell is not None
    assert not os.get_inheritable(shell.writer)
    environment = Path(f"/proc/{shell.pid}/environ")
    while not (text := environment.read_bytes()):  # as in the moment of its exec
        os.sched_yield()
    assert not [mark for mark in (LAUNCH_DIR, LAUNCH_ID) if f"{mark}=".encode() in text]
    processes.dismiss_guard(shell)
    assert descriptors() == before
    assert not environment.exists()


def test_what_ends_the_launchers_group_or_terminal_does_not_end_its_guard(tmp_path: Path) -> None:
    shell = processes.start_guard(str(tmp_path), os.environ, HUMAN)
    assert shell
    status = Path(f"/proc/{shell.pid}/status")
    names = "TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "TTOU"
    wanted = sum(1 << (getattr(signal, f"SIG{name}") - 1) for name in names)
    try:
        assert os.getpgid(shell.pid) == shell.pid
        until(
            lambda: (
                int(status.read_text().partition("SigIgn:")[2].split()[0], 16) & wanted == wanted
            )
        )
    finally:
        processes.dismiss_guard(shell)
    assert not status.exists()
