"""How often a host is tried again, and how many sockets a gate has open at once."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

# A try of one host costs a handful of packets, so a few hosts may be tried twenty times a second:
# the reaction to a record or an sshd that has just appeared is then some 25 ms at the median.
SHORTEST: Final = 0.05
# Nobody who has waited for minutes notices another percent; so a long wait gets cheaper by
# itself, up to a second for the last few hosts.
SHARE: Final = 0.01
LAST_FEW: Final = 1.0
# Thousands of hosts share this many tries a second: with a search list each of them is some four
# to eight questions, which one CoreDNS replica and one core of the launcher can bear.
TRIES_PER_SECOND: Final = 200.0
LONGEST: Final = 15.0
# The life of a negative answer is told in whole seconds, so it ends within a second of that.
ROUNDING: Final = 1.0


def pause(
    waited: float, pending: int, expires: float | None = None, ceiling: float | None = None
) -> float:
    """Give the seconds until the next try.

    Asking more often than a cache forgets doesn't lengthen the life of a negative answer, and
    another replica may know better: so the pace goes on while one is cached, and the moment when
    it ends is one more reason to ask.

    Args:
        waited: seconds since the wait for this host began.
        pending: how many hosts are waited for in all.
        expires: seconds until the negative answer that was got expires, where it said so.
        ceiling: the user's own longest pause.
    """
    load = min(LONGEST, pending / TRIES_PER_SECOND)
    step = max(SHORTEST, load, min(LAST_FEW, waited * SHARE))
    if expires is not None:
        # Asked within the last second of its life: look closely until it is over.
        due = SHORTEST if expires <= ROUNDING else expires
        step = min(step, max(due, load))
    if ceiling is not None:
        step = min(step, max(ceiling, SHORTEST))
    return step


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


_CONNECTIONS: Final = 128
# A login has its socket and a duplicate of it; so many files are open beside logins, and so many
# of these are no look-ups' sockets.
_FILES_EACH: Final = 2
_FILES: Final = 64
_FILES_OF_OTHERS: Final = 32


def most_connections(files: int) -> int:
    """Say how many connections may be open at once; ``files`` is how many files."""
    return max(1, min(_CONNECTIONS, (files - _FILES) // _FILES_EACH))


def lookup_sockets(files: int) -> int:
    """Say how many sockets look-ups may have beside so many connections."""
    return max(1, files - _FILES_OF_OTHERS - most_connections(files) * _FILES_EACH)
