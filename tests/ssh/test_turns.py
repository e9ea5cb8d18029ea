from __future__ import annotations

import asyncio

import pytest

from mpiboot.ssh.login import Turns
from tests.waiting import GUARD


async def silent() -> str:
    await asyncio.Event().wait()
    return ""


async def good() -> str:
    return "in"


async def test_servers_that_say_nothing_hold_no_other_login_back() -> None:
    turns = Turns()
    others = [asyncio.ensure_future(turns.run(silent, None)) for _ in range(64)]
    assert await asyncio.wait_for(turns.run(good, 1.0), GUARD) == "in"
    with pytest.raises(asyncio.TimeoutError):
        await turns.run(silent, 0.01)
    for task in others:
        task.cancel()
    assert {type(item) for item in await asyncio.gather(*others, return_exceptions=True)} == {
        asyncio.CancelledError
    }
