from __future__ import annotations

import asyncio

from mpiboot.hosts.pacing import Pauses

LONG = 600.0


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_name_that_comes_ends_the_next_two_pauses() -> None:
    pauses, ended = Pauses(), list[int]()

    async def one(number: int) -> None:
        await pauses.pause(LONG)
        ended.append(number)

    tasks = [asyncio.ensure_future(one(number)) for number in range(5)]
    await settled()
    pauses.end_some()
    await settled()
    assert ended == [0, 1]
    tasks[2].cancel()  # that host has left the hostfile
    await settled()
    pauses.end_some()
    await settled()
    assert ended == [0, 1, 3, 4]
    pauses.end_some()  # nobody waits


async def test_a_thousand_names_that_come_at_once_are_found_in_a_few_rounds() -> None:
    pauses, there = Pauses(), False

    async def one() -> None:
        while not there:
            await pauses.pause(LONG)
        pauses.end_some()

    tasks = [asyncio.ensure_future(one()) for _ in range(1000)]
    await settled()
    there = True
    pauses.end_some()
    await asyncio.wait_for(asyncio.gather(*tasks), LONG)


async def test_names_that_stay_away_are_not_asked_for_by_each_other() -> None:
    """One comes; the two that are tried for it are missing, and nothing more is asked."""
    pauses, tries = Pauses(), 0

    async def one() -> None:
        nonlocal tries
        while True:
            tries += 1
            await pauses.pause(LONG)

    tasks = [asyncio.ensure_future(one()) for _ in range(100)]
    await settled()
    pauses.end_some()
    await settled()
    assert tries == 102
    for task in tasks:
        task.cancel()


async def test_a_pause_ends_by_itself() -> None:
    await Pauses().pause(0.01)
