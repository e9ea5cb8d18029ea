"""What becomes of launch agents: lines on a FIFO, and real processes that end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpiboot.core.launch_names import EVENTS
from mpiboot.supervisor import agents
from mpiboot.supervisor.agents import Agents
from mpiboot.supervisor.state import AgentConnected, AgentEnded, AgentStarted, Event
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
        self.processes: list[subprocess.Popen[bytes]] = []

    def feed(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, AgentStarted):
            self.running.add((event.host, event.pid))
        if isinstance(event, AgentEnded):
            self.running.discard((event.host, event.pid))

    def tell(self, *lines: str) -> None:
        os.write(self.fifo, "".join(f"{line}\n" for line in lines).encode())

    def start(self) -> int:
        """Something that plays an agent, or its ssh."""
        process = subprocess.Popen(["sleep", "1000"])
        self.processes.append(process)
        return process.pid

    def kill(self, pid: int) -> None:
        process = next(item for item in self.processes if item.pid == pid)
        process.kill()
        process.wait()

    def until(self, done: Callable[[], object]) -> None:
        """Do what is ready until something is so; the run's own limit is the guard."""
        while not done():
            self.loop.wait(time.monotonic() + 0.02)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        os.close(self.fifo)
        os.close(self.agents._fifo)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def test_what_agents_tell_becomes_events_in_order(rig: Rig) -> None:
    pid = rig.start()
    (rig.folder / "stderr" / "w-2").write_text("Permission denied\n")
    rig.tell(f"started w-2 {pid}", "connected w-2", f"ended w-2 255 {pid}", f"ended w-2 0 {pid}")
    rig.tell(f"ended w-2 143 {pid} TERM")
    rig.until(lambda: len(rig.events) > 4)
    message = ("Permission denied",)
    assert rig.events == [
        AgentStarted("w-2", pid),
        AgentConnected("w-2"),
        AgentEnded("w-2", pid, 255, message),
        AgentEnded("w-2", pid, 0),
        AgentEnded("w-2", pid, 143, message, signalled=True),
    ]


def test_what_the_pool_reports_comes_behind_what_the_agent_wrote_before(rig: Rig) -> None:
    pid = rig.start()
    rig.tell(f"started w-2 {pid}")
    rig.agents.report("connected w-2")
    assert rig.events == [AgentStarted("w-2", pid), AgentConnected("w-2")]


def test_lines_come_in_any_pieces(rig: Rig) -> None:
    for piece in (b"conn", b"ected w-2\nconnected ", b"w-0", b"\n"):
        os.write(rig.fifo, piece)
        rig.agents.read()
    assert rig.events == [AgentConnected("w-2"), AgentConnected("w-0.job.ns")]


@pytest.mark.parametrize(
    "line",
    ["", "nonsense", "started w-2", "started w-2 x", "ended w-2 x 7", "ended w-2 0 y", "connected"],
)
def test_what_no_agent_wrote_is_nothing(rig: Rig, line: str) -> None:
    rig.tell(line, "connected w-2")
    rig.until(lambda: rig.events)
    assert rig.events == [AgentConnected("w-2")]


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("w-0", "w-0.job.ns"),
        ("w-0.job.ns", "w-0.job.ns"),
        ("w-2", "w-2"),
        ("w-1", "w-1"),  # of two hosts: neither
        ("w-0.job", "w-0.job"),
        ("w", "w"),
    ],
)
def test_a_short_name_is_its_host_where_it_is_the_only_one(rig: Rig, name: str, host: str) -> None:
    assert rig.agents.host_of(name) == host


def test_an_agent_that_is_killed_is_reported_once(rig: Rig) -> None:
    pid = rig.start()
    rig.tell(f"started w-2 {pid}")
    rig.until(lambda: rig.events)
    rig.kill(pid)
    rig.until(lambda: len(rig.events) > 1)
    rig.loop.wait(time.monotonic() + 0.1)
    message = ("its launch agent was killed",)
    assert rig.events[1:] == [AgentEnded("w-2", pid, -signal.SIGKILL, message, killed=True)]


def test_an_agent_that_reported_its_end_was_not_killed(rig: Rig) -> None:
    """Its process may be seen to be gone before its last line is read."""
    pid = rig.start()
    rig.tell(f"started w-2 {pid}")
    rig.until(lambda: rig.events)
    rig.tell(f"ended w-2 0 {pid}")
    rig.kill(pid)
    rig.until(lambda: len(rig.events) > 1)
    rig.loop.wait(time.monotonic() + 0.1)
    assert rig.events[1:] == [AgentEnded("w-2", pid, 0)]


def test_an_agent_that_is_gone_before_it_can_be_watched_is_reported(rig: Rig) -> None:
    pid = rig.start()
    rig.kill(pid)
    rig.tell(f"started w-2 {pid}")
    rig.until(lambda: len(rig.events) > 1)
    assert [type(event) for event in rig.events] == [AgentStarted, AgentEnded]


def test_without_process_handles_the_agents_report_must_do(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "process_handle", lambda _: None)
    pid = rig.start()
    rig.tell(f"started w-2 {pid}")
    rig.until(lambda: rig.events)
    rig.kill(pid)
    rig.loop.wait(time.monotonic() + 0.1)
    rig.tell(f"ended w-2 9 {pid}")
    rig.until(lambda: len(rig.events) > 1)
    assert rig.events[1:] == [AgentEnded("w-2", pid, 9)]


def test_of_killed_agents_the_one_whose_session_had_ended_comes_first(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An mpirun that gives up over one host kills the agents of all others."""
    monkeypatch.setattr(agents, "_OTHERS_FIRST_S", 1000)
    first, second, third = rig.start(), rig.start(), rig.start()
    for host, pid in (("w-2", first), ("w-0", second), ("w-1.other.ns", third)):
        rig.tell(f"started {host} {pid}", f"running {host} - {pid}")
    rig.until(lambda: len(rig.events) == 3)
    rig.agents.report(f"closed w-1.other.ns {third}")
    for pid in (first, second, third):
        rig.kill(pid)
    # One was reported before its agent was killed, one after that.
    rig.until(lambda: len(rig.events) == 4)
    rig.until(lambda: len(rig.agents._gone) == 2)
    rig.agents.report(f"closed w-0 {second}")
    rig.until(lambda: len(rig.events) == 5)
    rig.tell(f"ended w-2 255 {first} TERM")
    rig.until(lambda: len(rig.events) == 6)
    assert [ended(event) for event in rig.events[3:]] == ["w-1.other.ns", "w-0.job.ns", "w-2"]
    assert rig.agents._gone == {}


def ended(event: Event) -> str:
    assert isinstance(event, AgentEnded)
    return event.host


def test_later_agents_are_no_news(rig: Rig) -> None:
    rig.agents.ignore()
    rig.tell("connected w-2")
    rig.until(lambda: not select.select([rig.agents._fifo], [], [], 0)[0])
    assert rig.events == []
