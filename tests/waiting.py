"""Waits for a state; the time is a guard against a hang, or the promise itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

GUARD = 300.0


def until(check: Callable[[], object], seconds: float = GUARD, what: str = "it") -> None:
    """Wait until something holds; what holds soon is seen soon, and a long wait costs little."""
    end = time.monotonic() + seconds
    pause = 0.01
    while not check():
        assert time.monotonic() < end, f"{what} never came true"
        time.sleep(pause)
        pause = min(1.5 * pause, 0.05)


async def until_in_loop(check: Callable[[], object]) -> None:
    end = time.monotonic() + GUARD
    while not check():
        assert time.monotonic() < end, "it never came true"
        await asyncio.sleep(0.005)
