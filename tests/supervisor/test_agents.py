"""What becomes of launch agents: lines on a FIFO, and real processes that end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpiboot.core.launch_spec import EVENTS
from mpiboot.supervisor import agents
from mpiboot.supervisor.agents import Agents
from mpiboot.supervisor.job import AgentConnected, AgentEnded, AgentStarted, Event
from tests.supervisor.loops import Loop

HOSTS = ("w-0.job.ns", "w-1.job.ns", "w-1.other.ns", "w-2")


class Rig:
    """Agents in a folder, and what was made of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "stderr").mkdir()
        os.mkfifo(folder / EVENTS)
        self.loop = Loop()
        self.events: list[Event] = []
        self.running: set[tuple[str, int]] = set()
        self.agents = Agents(self.loop, str(folder), HOSTS, self.running, self.feed)
        self.agents.listen()
        self.fifo = os.open(folder / EVENTS, os.O_RDWR)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def feed(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, AgentStarted):
            self.running.add((event.host, event.pid))
        if isinstance(event, AgentEnded):
            self.running.discard((event.host, event.pid))

    def write(self, *lines: str) -> None:
        os.write(self.fifo, "".join(f"{line}\n" for line in lines).encode())

    def process(self) -> int:
        """Something that plays an agent."""
        process = subprocess.Popen(["sleep", "1000"])
        self.processes[process.pid] = process
        return process.pid

    def started(self, host: str = "w-2") -> int:
        """Start an agent, of which its event has come."""
        pid, before = self.process(), len(self.events)
        self.write(f"started {host} {pid}")
        self.until(before + 1)
        return pid

    def kill(self, pid: int) -> None:
        self.processes[pid].kill()
        self.processes[pid].wait()

    def until(self, done: int | Callable[[], object]) -> None:
        """Do what is ready until so many events came, or something is so."""
        while not (done() if callable(done) else len(self.events) >= done):
            self.loop.wait(time.monotonic() + 0.02)

    def ended(self) -> list[Event]:
        """What else has happened, when all has been read."""
        self.until(2)
        self.loop.wait(time.monotonic() + 0.1)
        return self.events[1:]

    def close(self) -> None:
        for pid in self.processes:
            self.kill(pid)
        os.close(self.fifo)
        os.close(self.agents._fifo)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def test_what_agents_report_becomes_events_in_order(rig: Rig) -> None:
    pid = rig.started()
    (rig.folder / "stderr" / "w-2").write_text("Permission denied\n")
    rig.write("connected w-2", f"ended w-2 255 {pid}", f"ended w-2 0 {pid}")
    rig.write(f"ended w-2 143 {pid} TERM")
    rig.until(5)
    words = ("Permission denied",)
    assert rig.events == [
        AgentStarted("w-2", pid),
        AgentConnected("w-2"),
        AgentEnded("w-2", pid, 255, words),
        AgentEnded("w-2", pid, 0),
        AgentEnded("w-2", pid, 143, words, signalled=True),
    ]


def test_what_the_pool_reports_comes_behind_what_the_agent_wrote_before(rig: Rig) -> None:
    pid = rig.process()
    rig.write(f"started w-2 {pid}")
    rig.agents.report("connected w-2")
    assert rig.events == [AgentStarted("w-2", pid), AgentConnected("w-2")]


def test_a_daemon_that_ends_as_ssh_does_is_known_by_the_pools_silence(rig: Rig) -> None:
    pid = rig.started()
    rig.write(f"running w-2 - {pid}", f"ended w-2 255 {pid}")
    assert rig.ended() == [AgentEnded("w-2", pid, 255, by_daemon=True)]


def test_lines_come_in_any_pieces_and_others_are_nothing(rig: Rig) -> None:
    noise = b"\nnonsense\nstarted w-2\nstarted w-2 x\nended w-2 x 7\nended w-2 0 y\nconnected\n"
    for piece in (noise, b"conn", b"ected w-2\nconnected ", b"w-0", b"\n"):
        os.write(rig.fifo, piece)
        rig.agents.read()
    assert rig.events == [AgentConnected("w-2"), AgentConnected("w-0.job.ns")]


def test_a_short_name_is_its_host_where_it_is_the_only_one(rig: Rig) -> None:
    hosts = {"w-0": "w-0.job.ns", "w-0.job.ns": "w-0.job.ns", "w-2": "w-2"}
    hosts |= {name: name for name in ("w-1", "w-0.job", "w")}  # of two hosts: neither
    assert {name: rig.agents.host_of(name) for name in hosts} == hosts


def test_an_agent_that_is_killed_is_reported_once(rig: Rig) -> None:
    pid = rig.started()
    rig.kill(pid)
    words = ("its launch agent was killed",)
    assert rig.ended() == [AgentEnded("w-2", pid, -signal.SIGKILL, words, killed=True)]


def test_an_agent_that_reported_its_end_was_not_killed(rig: Rig) -> None:
    """Its process may be seen to be gone before its last line is read."""
    pid = rig.started()
    rig.write(f"ended w-2 0 {pid}")
    rig.kill(pid)
    assert rig.ended() == [AgentEnded("w-2", pid, 0)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ()),
        ("one\n", ("one",)),
        ("\n one \n\ntwo\nthree\nfour", ("two", "three", "four")),
        ("Warning: Permanently added 'w' to the list\nBytes per second: 1\nlost", ("lost",)),
        ("debug1: x\nAuthenticated to w\nTransferred: 1\nkex \udcff", ("kex \ufffd",)),
        ("gone\n" + "x" * 4096, ("x" * 4096,)),
    ],
)
def test_sshs_last_words_without_what_it_writes_every_time(
    tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    path = tmp_path / "w"
    path.write_text(text, "utf-8", "surrogateescape")
    assert agents.last_words(str(path)) == words
    assert agents.last_words(str(tmp_path / "none")) == ()
