"""What becomes of launch agents: lines on a FIFO, and real processes that end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mpiboot.core.launch_spec import EVENTS
from mpiboot.supervisor.job import AgentConnected, AgentEnded, AgentStarted, Event
from mpiboot.supervisor.mpirun import Agents, last_words
from mpiboot.supervisor.signals import Handles
from tests.waiting import until_in_loop

HOSTS = ("w-0.job.ns", "w-1.job.ns", "w-1.other.ns", "w-2")


class Rig:
    """Agents in a folder, and what was made of them."""

    def __init__(self, folder: Path) -> None:
        (folder / "stderr").mkdir()
        os.mkfifo(folder / EVENTS)
        self.events: list[Event] = []
        self.running: set[tuple[str, int]] = set()
        self.agents = Agents(Handles(print), str(folder), HOSTS, self.running, self.feed)
        self.agents.listen()
        self.fifo = os.open(folder / EVENTS, os.O_RDWR)
        self.process = subprocess.Popen(["sleep", "1000"])  # plays an agent
        self.pid = self.process.pid

    def feed(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, AgentStarted):
            self.running.add((event.host, event.pid))
        if isinstance(event, AgentEnded):
            self.running.discard((event.host, event.pid))

    def write(self, *lines: str) -> None:
        os.write(self.fifo, "".join(f"{line}\n" for line in lines).encode())

    async def until(self, count: int) -> None:
        await until_in_loop(lambda: len(self.events) >= count)

    async def started(self) -> None:
        self.write(f"started w-2 {self.pid}")
        await self.until(1)

    async def ended(self) -> list[Event]:
        """What else has happened, when all has been read."""
        await self.until(2)
        await asyncio.sleep(0.1)
        return self.events[1:]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.kill()
    made.agents.loop.off(made.agents._fifo)
    os.close(made.agents._fifo)
    os.close(made.fifo)


async def test_what_agents_report_becomes_events_in_order(rig: Rig, tmp_path: Path) -> None:
    pid, words = rig.pid, ("Permission denied",)
    await rig.started()
    (tmp_path / "stderr/w-2").write_text("Permission denied\n")
    rig.write("connected w-2", f"ended w-2 255 {pid}", f"ended w-2 0 {pid}")
    rig.write(f"ended w-2 143 {pid} TERM")
    await rig.until(5)
    assert rig.events == [
        AgentStarted("w-2", pid),
        AgentConnected("w-2"),
        AgentEnded("w-2", pid, 255, words),
        AgentEnded("w-2", pid, 0),
        AgentEnded("w-2", pid, 143, words, signalled=True),
    ]


async def test_what_the_pool_reports_comes_behind_what_the_agent_wrote_before(rig: Rig) -> None:
    rig.write(f"started w-2 {rig.pid}")
    rig.agents.report("connected w-2")
    assert rig.events == [AgentStarted("w-2", rig.pid), AgentConnected("w-2")]


async def test_a_daemon_that_ends_as_ssh_does_is_known_by_the_pools_silence(rig: Rig) -> None:
    await rig.started()
    rig.write(f"running w-2 - {rig.pid}", f"ended w-2 255 {rig.pid}")
    assert await rig.ended() == [AgentEnded("w-2", rig.pid, 255, by_daemon=True)]


async def test_lines_come_in_any_pieces_and_others_are_nothing(rig: Rig) -> None:
    noise = b"\nnonsense\nstarted w-2\nstarted w-2 x\nended w-2 x 7\nended w-2 0 y\nconnected\n"
    for piece in (noise, b"conn", b"ected w-2\nconnected ", b"w-0", b"\n"):
        os.write(rig.fifo, piece)
        rig.agents.read()
    assert rig.events == [AgentConnected("w-2"), AgentConnected("w-0.job.ns")]


async def test_a_short_name_is_its_host_where_it_is_the_only_one(rig: Rig) -> None:
    hosts = {"w-0": "w-0.job.ns", "w-0.job.ns": "w-0.job.ns", "w-2": "w-2"}
    hosts |= {name: name for name in ("w-1", "w-0.job", "w")}  # of two hosts: neither
    assert {name: rig.agents.host_of(name) for name in hosts} == hosts


@pytest.mark.parametrize("known", [True, False])
async def test_an_agent_that_is_killed_is_reported_once(rig: Rig, *, known: bool) -> None:
    if known:
        await rig.started()
    rig.kill()
    if not known:  # before its first line is read
        await rig.started()
    assert await rig.ended() == [AgentEnded("w-2", rig.pid, -signal.SIGKILL, killed=True)]


@pytest.mark.parametrize("known", [True, False])
async def test_an_agent_that_reported_its_end_was_not_killed(rig: Rig, *, known: bool) -> None:
    """Its process may be seen to be gone before its last line is read."""
    lines = [f"started w-2 {rig.pid}", f"ended w-2 0 {rig.pid}"]
    if known:
        await rig.started()
        rig.agents.loop.off(rig.agents._fifo)
        rig.write(lines[1])
    rig.kill()
    if not known:
        rig.write(*lines)
    assert await rig.ended() == [AgentEnded("w-2", rig.pid, 0)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ()),
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
    assert last_words(str(path)) == words
    assert last_words(str(tmp_path / "none")) == ()
