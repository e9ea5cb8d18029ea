"""Launch agents' requests by FIFOs, without agents: what stands in the FIFOs for each word."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mpiboot.core.launch_names import REQUESTS
from mpiboot.ssh import client
from mpiboot.ssh.client import FAILED, SESSIONS, AgentRequests
from tests.waiting import until_in_loop


class Launch:
    """Hosts a and b, what the parent was told, and the sessions that were asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.asked: list[tuple[list[str], object, list[int]]] = []
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.requests = AgentRequests(folder, ("a", "b"), self.told.append)
        self.requests.serve(self._run)

    async def _run(self, words: Sequence[str], agent: object, streams: Sequence[int]) -> int:
        self.asked.append((list(words), agent, list(streams)))
        return await self.status

    def agent(self, host: str) -> int:
        """Do what an agent does before it asks: its words, and its FIFO for the answers."""
        (self.folder / SESSIONS / f"{host}.request").write_bytes(b"-x\0" + host.encode() + b"\0")
        return os.open(self.folder / SESSIONS / host, os.O_RDONLY | os.O_NONBLOCK)

    def say(self, line: str) -> None:
        fifo = os.open(self.folder / REQUESTS, os.O_WRONLY | os.O_NONBLOCK)
        os.write(fifo, line.encode())
        os.close(fifo)


async def heard(answers: int) -> str:
    """The next word of the client; empty where it is gone."""
    ready = asyncio.Event()
    asyncio.get_running_loop().add_reader(answers, ready.set)
    try:
        await ready.wait()
        return os.read(answers, 99).decode()
    finally:
        asyncio.get_running_loop().remove_reader(answers)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    def take(pid: int) -> list[int]:
        if pid == 666:
            raise ValueError("a socket")
        return [pid, pid + 1, pid + 2]

    monkeypatch.setattr(client, "take", take)
    return take


@pytest.fixture
async def launch(tmp_path: Path, streams: object) -> Launch:
    return Launch(tmp_path)


def test_what_agents_ask_by_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        AgentRequests(tmp_path, ("a",), print)
    finally:
        os.umask(before)
    paths = [tmp_path / SESSIONS, tmp_path / SESSIONS / "a", tmp_path / REQUESTS]
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o700, 0o600, 0o600]
    assert all(stat.S_ISFIFO(path.stat().st_mode) for path in paths[1:])


async def test_a_hosts_second_agent_is_not_served_by_its_fifo(launch: Launch) -> None:
    answers = launch.agent("a")
    launch.say("start a 70\nstart a 71\n")
    assert await heard(answers) == "taken\n"
    launch.status.set_result(0)
    assert await heard(answers) == "0\n"
    assert [agent for _, agent, _ in launch.asked] == [70]


@pytest.mark.parametrize("why", ["its streams", "its words"])
async def test_an_agent_that_cant_be_served_is_told_to_come_by_the_socket(
    launch: Launch, why: str
) -> None:
    answers = launch.agent("a")
    if why == "its words":
        (launch.folder / SESSIONS / "a.request").unlink()
    launch.say(f"start a {666 if why == 'its streams' else 70}\n")
    assert await heard(answers) == "refused\n"
    assert await heard(answers) == ""
    assert (launch.asked, launch.told) == ([], [])


@pytest.mark.parametrize("early", [True, False])
async def test_a_session_that_is_given_up_ends_with_the_status_of_ssh(
    launch: Launch, *, early: bool
) -> None:
    answers = launch.agent("a")
    if not early:
        launch.say("start a 70\n")
        assert await heard(answers) == "taken\n"
    launch.say("end b 9\nend a 70\n")
    if early:
        launch.say("start a 70\n")
    message = ""
    while "255" not in message:
        message += await heard(answers)
    assert message.replace("taken\n", "") == f"{FAILED}\n"
    assert launch.status.cancelled() or not launch.asked
    assert launch.told == ["closed a 70\n"]


async def test_the_end_of_an_agent_that_was_killed_is_told(launch: Launch) -> None:
    answers = launch.agent("a")
    launch.say("start a 70\n")
    assert await heard(answers) == "taken\n"
    os.close(answers)
    launch.status.set_result(0)
    await until_in_loop(lambda: launch.told)
    assert launch.told == ["closed a 70\n"]
