"""What mpirun runs in this pod, and what a launch has left there: found, ended, waited for."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot.core.launch_spec import LAUNCH_DIR, LAUNCH_ID
from mpiboot.supervisor import processes
from mpiboot.system.processes import find

THIS = f"this-{os.getpid()}"  # tests run side by side
# It writes when it is ready: its environment and its handlers are what they are to be.
READY = "import signal, sys, time\n{}\nprint('ready', flush=True)\ntime.sleep(1000)"
IGNORES = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


class Launch:
    """Processes with the marks of a launch, and the signals that they were sent."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []
        self.sent: list[tuple[list[int], int]] = []

    def start(self, first: str = "", mark: str = THIS, folder: str = "/launch") -> int:
        words = [sys.executable, "-S", "-c", READY.format(first)]
        environ = {**os.environ, LAUNCH_ID: mark, LAUNCH_DIR: folder}
        child = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE)
        self.started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.stdout.close()
        return child.pid

    def close(self) -> None:
        for child in self.started:
            child.kill()
            child.wait()


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    made, send = Launch(), processes.send

    def note(pids: list[int], number: int) -> None:
        made.sent.append((sorted(pids), number))
        send(pids, number)
        # Whom this one ends is waited for, whatever time that takes here.
        ignore = [pid for pid in pids if b"SIG_IGN" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        processes.wait_gone([*{*pids} - {*(ignore if number == signal.SIGTERM else ())}], 60)

    monkeypatch.setattr(processes, "send", note)
    yield made
    made.close()


def test_what_has_the_mark_of_this_launch_is_found_and_nothing_else(launch: Launch) -> None:
    own = launch.start()
    launch.start(mark="later")
    launch.start(folder="/nested")  # by a rank: what that ends is its own
    assert processes.survivors(THIS, "/launch") == [own]


def test_all_get_a_signal_and_those_that_ignore_it_are_killed(launch: Launch) -> None:
    polite, deaf, other = launch.start(), launch.start(IGNORES), launch.start(mark="later")
    assert processes.end_all(THIS, "/launch") == 2
    assert launch.sent == [(sorted((polite, deaf)), signal.SIGTERM), ([deaf], signal.SIGKILL)]
    assert [find(pid) is None for pid in (polite, deaf, other)] == [True, True, False]
    assert processes.end_all(THIS, "/launch") == 0


def test_what_a_process_has_not_read_is_seen() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as other,
        server.accept()[0] as own,
    ):
        assert not processes.unread([os.getpid()])
        other.sendall(b"something")
        while not processes.unread([2**22 + 1, os.getpid()]):
            pass
        own.recv(64)
        assert not processes.unread([os.getpid()])
    assert not processes.unread([2**22 + 1])


def test_mpirun_is_found_below_a_wrapper(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    shutil.copy(shutil.which("bash") or "", mpirun)
    agent = tmp_path / "agent"
    agent.write_text("#!/bin/sh\necho agent; read line\n")
    agent.chmod(0o755)
    script = f"{mpirun} -c '{agent} w-1 <&0 & read line; sleep 300 & echo rank; wait'; exit 0"
    words, pipe = ["/bin/sh", "-c", script], subprocess.PIPE  # a wrapper above it is not mpirun
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, start_new_session=True) as process:
        assert process.stdout
        try:
            assert process.stdout.readline() == b"agent\n"
            (found,) = processes.find_mpiruns(process.pid)
            assert Path(f"/proc/{found}/exe").readlink() == mpirun
        finally:
            os.killpg(process.pid, 9)
