"""How many ranks are left: the real script on this machine, which stands for each host."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpiboot.supervisor import stop_ranks

# An agent that runs what it is given here, for the one host that there is.
AGENT = """#!/bin/sh
case $1 in
    here) echo "Welcome, 2 ranks"; sh -c "$2" ;;
    *) echo "ssh: connect to host $1: Connection refused" >&2; exit 255 ;;
esac
"""
IGNORES = ("sh", "-c", "trap '' TERM; echo ready; exec sleep 1000")


class Ranks:
    """Processes of this machine that are ranks under one mark."""

    def __init__(self) -> None:
        self.mark = f"test-{os.urandom(8).hex()}"
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        env = {**os.environ, "MPIBOOT_LAUNCH_ID": self.mark, "PMIX_RANK": "0"}
        child = subprocess.Popen(IGNORES, env=env, stdout=subprocess.PIPE)
        self.started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.stdout.close()
        return child


def ends(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    made = Ranks()
    yield made
    for child in made.started:
        ends(child)


Lines = asyncio.Queue[tuple[int, ...]]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lines:
    """What is written, as it is written; the agent has a stand-in."""
    agent = tmp_path / "agent"
    agent.write_text(AGENT)
    monkeypatch.setattr(stop_ranks, "_AGENT", str(agent))
    queue: Lines = asyncio.Queue()

    def take(_: str, *sums: int, flush: bool) -> None:
        assert flush
        queue.put_nowait(sums)

    monkeypatch.setattr(stop_ranks, "print", take, raising=False)
    return queue


def asks(ranks: Ranks, hosts: list[str], file: int) -> asyncio.Task[None]:
    mark = f"MPIBOOT_LAUNCH_ID={ranks.mark}"
    return asyncio.ensure_future(stop_ranks.stop(hosts, "TERM", 600, mark, file))


def test_a_look_that_is_wanted_begins_after_it(
    ranks: Ranks, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last number says which looks were wanted before it; a rank's end is in the next one."""

    async def run() -> None:
        reader, writer = os.pipe()
        asking = asks(ranks, [], reader)
        assert await lines.get() == (2, 2, 0)
        os.write(writer, b"\n")
        assert await lines.get() == (2, 2, 1)
        with pytest.raises(asyncio.TimeoutError):  # nobody wants another one
            await asyncio.wait_for(lines.get(), 0.3)
        ends(first)
        os.write(writer, b"\n\n")
        assert await lines.get() == (1, 2, 3)
        ends(second)
        os.write(writer, b"\n")
        assert await lines.get() == (0, 2, 4)
        await asking
        os.close(reader)
        os.close(writer)

    # Nothing but what is wanted.
    monkeypatch.setattr(stop_ranks, "_PAUSE", 3600)
    first, second = ranks.start(), ranks.start()
    asyncio.run(run())


def test_every_host_is_asked_and_one_that_can_not_be_has_no_rank(
    ranks: Ranks, lines: Lines
) -> None:
    async def run() -> None:
        reader, writer = os.pipe()
        asking = asks(ranks, ["here", "gone"], reader)
        # Each of the two that can be asked sees the one rank of this machine.
        assert await lines.get() == (2, 2, 0)
        assert await lines.get() == (2, 2, 0)
        ends(rank)
        await asking
        told = [lines.get_nowait() for _ in range(lines.qsize())]
        assert told[-1] == (0, 2, 0)
        os.close(reader)
        os.close(writer)

    rank = ranks.start()
    asyncio.run(run())


def test_a_host_whose_session_is_over_is_not_waited_for(
    ranks: Ranks, lines: Lines, tmp_path: Path
) -> None:
    """Its pod is gone: its login gets no answer for as long as TCP tries."""

    async def run() -> None:
        reader, writer = os.pipe()
        asking = asks(ranks, ["gone", "slow"], reader)
        os.write(writer, b"slow\nstranger\ngo")
        os.write(writer, b"ne\n")
        assert await lines.get() == (1, 1, 0)
        os.write(writer, b"\n")
        assert await lines.get() == (1, 1, 1)
        ends(rank)
        await asking
        os.close(reader)
        os.close(writer)

    (tmp_path / "agent").write_text("exec sleep 1000")
    rank = ranks.start()
    asyncio.run(run())


def test_a_host_that_is_lost_meanwhile_has_no_rank_any_more(
    ranks: Ranks, lines: Lines, tmp_path: Path
) -> None:
    async def run() -> None:
        reader, writer = os.pipe()
        asking = asks(ranks, ["here"], reader)
        assert await lines.get() == (2, 2, 0)
        os.kill(int((tmp_path / "session").read_text()), signal.SIGKILL)
        while await lines.get() != (1, 2, 0):
            pass
        ends(rank)
        await asking
        os.close(reader)
        os.close(writer)

    (tmp_path / "agent").write_text(f'echo $$ > {tmp_path}/session; shift; eval "$1"')
    rank = ranks.start()
    asyncio.run(run())
