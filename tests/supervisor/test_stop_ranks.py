"""How many ranks are left: hosts are shells of this machine that say so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mpiboot.supervisor import stop_ranks
from mpiboot.supervisor.stop_ranks import LookRequests
from tests.supervisor.answering import Hosts, commands
from tests.waiting import until_in_loop

# Says how many ranks there are, at first and for each line: the file of the host's name and -left.
COUNTS = "say() { echo ranks $(cat $host-left); }; say; while read -r _; do say; done"


class Ranks(Hosts):
    """The ranks of several hosts, and what is told of them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.told: list[tuple[int, int, int]] = []
        self.wanted = LookRequests()
        self.hosts = [self.before("gone")]

    def host(self, name: str, left: int, text: str = COUNTS) -> None:
        self.left(name, left)
        self.hosts.append(self.answers(name, text))

    def left(self, name: str, left: int) -> None:
        (self.folder / f"{name}-left").write_text(str(left))

    async def stop(self) -> None:
        def tell(*numbers: int) -> None:
            self.told.append(numbers)  # type: ignore[arg-type] # there are three

        await stop_ranks.stop(commands(self.folder), self.hosts, "stop", self.wanted, tell)

    async def hear(self, *numbers: int) -> None:
        await until_in_loop(lambda: self.told)
        assert self.told.pop(0) == numbers


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


def test_a_look_that_is_wanted_begins_after_it(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last number says which looks were wanted before it; a rank's end is in the next one."""

    async def run() -> None:
        stopping = asyncio.ensure_future(ranks.stop())
        await ranks.hear(5, 5, 0)
        ranks.wanted.look()
        await ranks.hear(5, 5, 1)
        ranks.left("w-0", 0)
        ranks.wanted.look()
        ranks.wanted.look()
        await ranks.hear(3, 5, 3)
        ranks.left("w-1", 0)
        ranks.wanted.look()
        await ranks.hear(0, 5, 4)
        await stopping

    monkeypatch.setattr(stop_ranks, "_PAUSE", 3600)  # nothing but what is wanted
    ranks.host("w-0", 2)
    ranks.host("w-1", 3)
    ranks.run(run())


def test_without_a_wish_they_are_counted_now_and_then(ranks: Ranks) -> None:
    async def run() -> None:
        stopping = asyncio.ensure_future(ranks.stop())
        await ranks.hear(1, 1, 0)
        await ranks.hear(1, 1, 0)
        ranks.left("w-0", 0)
        await stopping
        assert ranks.told[-1] == (0, 1, 0)

    ranks.host("w-0", 1)
    ranks.run(run())


def test_a_host_that_is_lost_meanwhile_has_no_rank_any_more(ranks: Ranks) -> None:
    async def run() -> None:
        stopping = asyncio.ensure_future(ranks.stop())
        await ranks.hear(2, 2, 0)
        ranks.left("w-0", 0)
        ranks.wanted.look()
        await stopping
        assert ranks.told[-1][:2] == (0, 2)

    ranks.host("w-0", 1)
    ranks.host("w-1", 1, "echo ranks 1; read -r _")
    ranks.run(run())


@pytest.mark.parametrize("text", ["exec sleep 300", "head -c 200000 /dev/zero"])
def test_a_host_that_hangs_or_whose_login_shell_says_too_much_keeps_no_others_from_saving(
    ranks: Ranks, text: str
) -> None:
    async def run() -> None:
        stopping = asyncio.ensure_future(ranks.stop())
        await until_in_loop((ranks.folder / "asked-w-1").exists)
        ranks.wanted.give_up("w-1")  # its session is over: its login may get no answer for long
        ranks.wanted.give_up("stranger")
        await ranks.hear(1, 1, 0)
        ranks.left("w-0", 0)
        ranks.wanted.look()
        await stopping

    ranks.host("w-0", 1)
    ranks.host("w-1", 1, text)
    ranks.run(run())
