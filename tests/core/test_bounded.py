"""Programs of this pod that are run for some seconds at most."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mpiboot.system import programs
from mpiboot.system.programs import ProgramEnd
from tests.waiting import until


def test_a_program_gives_what_it_printed_and_how_it_ended() -> None:
    script = r"printf 'one\377'; echo two >&2; read x; exit 3"
    words = ("/bin/sh", "-c", script)
    odd = "one\N{REPLACEMENT CHARACTER}"
    assert programs.run(words, 60.0) == ProgramEnd(3, odd, "two\n")
    assert programs.run(("/bin/sh", "-c", "kill -9 $$"), 60.0) == ProgramEnd(
        -signal.SIGKILL, "", ""
    )
    with pytest.raises(FileNotFoundError):
        programs.run(("/nowhere/program",), 60.0)


def test_a_program_that_takes_too_long_is_killed_and_gives_nothing(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    for limit in (0.5, 5.0, 50.0):  # a busy machine may not have come to it within the limit
        assert programs.run(("/bin/sh", "-c", f"echo $$ > {told}; exec sleep 600"), limit) is None
        if told.exists() and told.read_text().strip():
            break
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


def test_a_program_is_killed_with_what_it_started(tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    told = tmp_path / "told"
    script = f"exec 3<>{fifo}; echo > {told}; sleep 600 & sleep 600"
    for limit in (0.5, 5.0, 50.0):
        assert programs.run(("/bin/sh", "-c", script), limit) is None
        if told.exists():
            break
    assert told.exists()

    def nobody_could_write() -> bool:
        try:
            return os.read(reader, 1) == b""
        except BlockingIOError:
            return False

    until(nobody_could_write)
    os.close(reader)


def test_what_a_program_leaves_running_is_not_waited_for() -> None:
    """As a profile that starts a program of its own in the background."""
    script = "sleep 600 & echo $!"
    found = programs.run(("/bin/sh", "-c", script), 60.0)
    assert found is not None
    os.kill(int(found.stdout), signal.SIGKILL)


def test_a_program_that_is_left_by_a_signal_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    script = f"echo $$ > {told}.n; mv {told}.n {told}; sleep 600"
    run = f"programs.run(('/bin/sh', '-c', {script!r}), 600)"
    with subprocess.Popen(
        [sys.executable, "-c", f"from mpiboot.system import programs; {run}"]
    ) as mine:
        until(told.exists)
        mine.send_signal(signal.SIGINT)
    assert mine.returncode in (-signal.SIGINT, 130)
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)
