"""What mpirun runs in this pod, what a launch has left there, and the guard that ends that."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot.core.launch_spec import KEY, LAUNCH_DIR, LAUNCH_ID
from mpiboot.core.model import LogFormat
from mpiboot.supervisor import processes
from mpiboot.system.processes import descendants, find
from tests.fakes.programs import open_files, program
from tests.waiting import until

THIS = f"this-{os.getpid()}"  # tests run side by side
# It writes when it is ready: its environment and its handlers are what they are to be.
READY = "import signal, sys, time\n{}\nprint('ready', flush=True)\ntime.sleep(1000)"
IGNORES = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
HUMAN = LogFormat.HUMAN


class Launch:
    """Processes with the marks of a launch, in a folder with its key."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.key = str(folder), folder / KEY
        self.key.touch()
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, first: str = "", mark: str = THIS, folder: str = "") -> int:
        words = [sys.executable, "-S", "-c", READY.format(first)]
        environ = {**os.environ, LAUNCH_ID: mark, LAUNCH_DIR: folder or self.folder}
        child = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE)
        self.started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.stdout.close()
        return child.pid


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    made = Launch(tmp_path)
    yield made
    for child in made.started:
        child.kill()
        child.wait()


def test_what_has_the_mark_of_this_launch_is_found_and_nothing_else(launch: Launch) -> None:
    own = launch.start()
    launch.start(mark="later")
    launch.start(folder="/nested")  # by a rank: what that ends is its own
    assert processes.survivors(THIS, launch.folder) == [own]


def test_all_get_a_signal_and_those_that_ignore_it_are_killed(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_END_TIME_S", 5.0)
    polite, deaf, other = launch.start(), launch.start(IGNORES), launch.start(mark="later")
    assert processes.end_all(THIS, launch.folder) == 2
    assert [find(pid) is None for pid in (polite, deaf, other)] == [True, True, False]
    assert [child.wait(60) for child in launch.started[:2]] == [-signal.SIGTERM, -signal.SIGKILL]
    assert processes.end_all(THIS, launch.folder) == 0


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
    agent = program(tmp_path, "agent", "echo agent; read line")
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


@pytest.mark.parametrize(
    ("own", "message"),
    [(True, "ended 1 process of its job in this pod"), (False, "its job has ended with it")],
)
def test_a_guard_ends_and_reports_what_its_launch_has_left_alone(
    launch: Launch, capfd: pytest.CaptureFixture[str], message: str, *, own: bool
) -> None:
    left = launch.start()
    processes.main(launch.folder, THIS if own else "another", LogFormat.JSON.value)
    line = json.loads(capfd.readouterr().err)
    assert (line["level"], line["event"], line["role"]) == ("warning", "killed", "launcher")
    assert line["message"] == f"the launcher was killed: {message}"
    assert not launch.key.exists()
    assert (find(left) is None) == own


def pipes() -> set[int]:
    return {int(path.name) for path in Path("/proc/self/fd").iterdir() if path.is_fifo()}


def test_a_guard_has_no_mark_and_only_the_parent_keeps_it_asleep(tmp_path: Path) -> None:
    environ, before = {**os.environ, LAUNCH_DIR: str(tmp_path), LAUNCH_ID: THIS}, open_files()
    handles = pipes()
    dismiss = processes.start_guard(str(tmp_path), environ, HUMAN)
    (writer,) = pipes() - handles
    assert not os.get_inheritable(writer)
    ((pid, _),) = descendants(os.getpid())
    environment = Path(f"/proc/{pid}/environ")
    while not (text := environment.read_bytes()):  # as in the moment of its exec
        os.sched_yield()
    assert not [mark for mark in (LAUNCH_DIR, LAUNCH_ID) if f"{mark}=".encode() in text]
    # What ends the launcher's group or terminal does not end it.
    assert os.getpgid(pid) == pid
    names = "TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "TTOU"
    wanted = sum(1 << (signal.Signals[f"SIG{name}"] - 1) for name in names)

    def ignores() -> bool:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.partition("SigIgn:")[2].split()[0], 16) & wanted == wanted

    until(ignores)
    dismiss()
    assert open_files() == before
    assert not environment.exists()
