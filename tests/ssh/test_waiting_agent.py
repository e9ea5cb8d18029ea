"""The program that a launch agent becomes, as it runs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot.ssh import waiting_agent
from tests.fakes.worker import PATIENCE
from tests.waiting import until

NEEDS = "no waiting_agent in the virtual environment: scripts/setup makes it with musl-gcc"
pytestmark = pytest.mark.skipif(not waiting_agent.PROGRAM.exists(), reason=NEEDS)
# More than a page of it.
ENVIRON = {"PATH": os.environ["PATH"], "MUCH": "x" * 5_000}


class Waiting:
    """One that waits, with its three files."""

    def __init__(self, folder: Path) -> None:
        self.errors = folder / "errors"
        fifos = [folder / name for name in ("events", "requests", "answers")]
        for path in fifos:
            os.mkfifo(path)
        self.events, self.requests, self.answers = (os.open(path, os.O_RDWR) for path in fifos)
        text = f'exec "$@" 7<> {fifos[0]} 8<> {fifos[1]} 9< {fifos[2]}'
        words = [str(waiting_agent.PROGRAM), "agent", "w", str(self.errors)]
        self.process = subprocess.Popen(["sh", "-c", text, "sh", *words], env=ENVIRON)
        self.pid = self.process.pid
        until(self._listens_to_signals)

    def _listens_to_signals(self) -> bool:
        folder = Path(f"/proc/{self.pid}/fd")
        try:
            links = [str(path.readlink()) for path in folder.iterdir()]
        except FileNotFoundError:  # what loads it has closed one meanwhile
            return False
        return any("signalfd" in link for link in links)

    def answer(self, text: str) -> int:
        if text:
            os.write(self.answers, text.encode())
        os.close(self.answers)
        self.answers = -1
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        for file in (self.events, self.requests, *([self.answers] if self.answers >= 0 else [])):
            os.close(file)


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    made = Waiting(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("status", [0, 1, 77, 255])
def test_it_ends_with_the_status_that_it_is_told_and_tells_it(
    waiting: Waiting, status: int
) -> None:
    assert waiting.answer(f"{status}\n") == status
    assert os.read(waiting.events, 4096) == f"ended w {status} {waiting.pid}\n".encode()
    assert not waiting.errors.exists()


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "USR1", "USR2", "TERM"])
def test_a_signal_is_passed_on_and_told_with_the_end(waiting: Waiting, name: str) -> None:
    waiting.process.send_signal(getattr(signal, f"SIG{name}"))
    assert os.read(waiting.requests, 4096) == f"end w {waiting.pid}\n".encode()
    assert waiting.answer("255\n") == 255
    assert os.read(waiting.events, 4096) == f"ended w 255 {waiting.pid} TERM\n".encode()


def test_a_file_that_ends_without_a_status_is_a_client_that_has_gone(waiting: Waiting) -> None:
    waiting.errors.write_text("before\n")
    assert waiting.answer("") == 255
    assert os.read(waiting.events, 4096) == f"ended w 255 {waiting.pid}\n".encode()
    assert waiting.errors.read_text() == "before\nmpiboot's SSH client has ended\n"


def test_one_that_was_stopped_waits_on(waiting: Waiting) -> None:
    waiting.process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{waiting.pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    waiting.process.send_signal(signal.SIGCONT)
    assert waiting.answer("3\n") == 3


def test_it_has_next_to_no_memory(waiting: Waiting) -> None:
    rollup = Path(f"/proc/{waiting.pid}/smaps_rollup").read_text()
    # Pages of a file that was just written are dirty, too, until they are on the disk.
    kib = int(rollup.partition("Anonymous:")[2].split()[0])
    assert kib <= 24, rollup


def test_agents_find_it_where_it_runs_alone(tmp_path: Path) -> None:
    # Another kind of program than this machine's, what a sandbox doesn't let run, none at all.
    broken = tmp_path / "broken"
    for content in (b"\x7fELF no program", b"#!/bin/sh\nexit 3\n"):
        broken.write_bytes(content)
        broken.chmod(0o700)
        waiting_agent.offer(tmp_path, broken)
        assert not (tmp_path / waiting_agent.NAME).exists()
    waiting_agent.offer(tmp_path, tmp_path / "none")
    assert not (tmp_path / waiting_agent.NAME).exists()
    waiting_agent.offer(tmp_path)
    assert (tmp_path / waiting_agent.NAME).resolve() == waiting_agent.PROGRAM.resolve()
