"""Pauses between the tries of hosts whose names are missing; a name that comes ends two of them."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

# Names come together, as pods do. If both of these are there, they end four pauses, and so on: a
# thousand names that appear at once are found in ten rounds, though each is tried only every five
# seconds; and a name that comes alone costs two questions.
_NEXT: Final = 2


class Pauses:
    """The pauses that last; the longest-lasting one ends first."""

    def __init__(self) -> None:
        self._lasting: dict[asyncio.Future[None], None] = {}

    async def pause(self, seconds: float) -> None:
        """Wait for a time, or until it is ended."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lasting[ended] = None
        try:
            await asyncio.wait((ended,), timeout=seconds)
        finally:
            self._lasting.pop(ended, None)

    def end_some(self) -> None:
        """End the next two: a name has come."""
        for ended in list(islice(self._lasting, _NEXT)):
            del self._lasting[ended]
            if not ended.done():
                ended.set_result(None)
