from __future__ import annotations

import asyncio
from typing import cast

import asyncssh
import pytest

from mpiboot.ssh.login import Turns
from tests.waiting import GUARD


class Connection:
    """What a handshake gives."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True


async def silent() -> asyncssh.SSHClientConnection:
    await asyncio.Event().wait()
    raise AssertionError


MADE = Connection()


async def good() -> asyncssh.SSHClientConnection:
    return cast("asyncssh.SSHClientConnection", MADE)


async def test_servers_that_say_nothing_hold_no_other_login_back() -> None:
    turns = Turns()
    others = [asyncio.ensure_future(turns.run(silent, None)) for _ in range(64)]
    assert await asyncio.wait_for(turns.run(good, 1.0), GUARD) is await good()
    with pytest.raises(asyncio.TimeoutError):
        await turns.run(silent, 0.01)
    for task in others:
        task.cancel()
    assert {type(item) for item in await asyncio.gather(*others, return_exceptions=True)} == {
        asyncio.CancelledError
    }


async def test_a_login_that_is_given_up_as_it_succeeds_leaves_no_connection() -> None:
    begun = asyncio.Event()

    async def late() -> asyncssh.SSHClientConnection:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:  # as `wait_for` swallows one before Python 3.12
            return await good()
        raise AssertionError

    login = asyncio.ensure_future(Turns().run(late, None))
    await begun.wait()
    login.cancel()
    await asyncio.wait({login})
    assert login.cancelled()
    assert MADE.aborted
