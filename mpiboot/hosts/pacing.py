"""Retry intervals, and how many sockets the gate has open at once."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

# An attempt costs a handful of packets, so a few hosts may be tried twenty times a second: the
# median reaction to a record or an sshd that has just appeared is then some 25 ms.
SHORTEST: Final = 0.05
# After minutes of waiting nobody notices another percent: a long wait gets cheaper by itself, up to
# a second for the last few hosts.
SHARE: Final = 0.01
LAST_FEW: Final = 1.0
# All hosts together get this many attempts a second: with a search list each is some four to eight
# queries, which one CoreDNS replica and one core of the launcher can bear.
TRIES_PER_SECOND: Final = 200.0
LONGEST: Final = 15.0
# The TTL of a negative answer is in whole seconds, so it expires within a second of that.
ROUNDING: Final = 1.0


def pause(
    waited: float, pending: int, expires: float | None = None, ceiling: float | None = None
) -> float:
    """Give the seconds until the next attempt.

    Queries don't prolong a cached negative answer, and another replica may have no such answer: so
    the pace stays the same while one is cached, with one more attempt when it expires.

    Args:
        waited: seconds since the wait for this host began.
        pending: how many hosts are waited for in all.
        expires: seconds until the negative answer expires, if known.
        ceiling: the longest pause, as the user has set it.
    """
    load = min(LONGEST, pending / TRIES_PER_SECOND)
    step = max(SHORTEST, load, min(LAST_FEW, waited * SHARE))
    if expires is not None:
        # In its last second: try often until it has expired.
        due = SHORTEST if expires <= ROUNDING else expires
        step = min(step, max(due, load))
    if ceiling is not None:
        step = min(step, max(ceiling, SHORTEST))
    return step


# Names appear together, as pods do. Each name found ends two pauses; if these names are there too,
# they end four, and so on: a thousand names that appear at once are found in ten rounds, though
# each is tried only every five seconds. A name that appears alone costs two queries.
_NEXT: Final = 2


class Pauses:
    """The pauses in progress, oldest first."""

    def __init__(self) -> None:
        self._lasting: dict[asyncio.Future[None], None] = {}

    async def pause(self, seconds: float) -> None:
        """Wait for a time, or until ``end_some`` ends it."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lasting[ended] = None
        try:
            await asyncio.wait((ended,), timeout=seconds)
        finally:
            self._lasting.pop(ended, None)

    def end_some(self) -> None:
        """End the two oldest: a name has been found."""
        for ended in list(islice(self._lasting, _NEXT)):
            del self._lasting[ended]
            if not ended.done():
                ended.set_result(None)


_CONNECTIONS: Final = 128
# A login has its socket and a duplicate of it; then, files open beside logins, and how many of
# these are not lookups' sockets.
_FILES_EACH: Final = 2
_FILES: Final = 64
_FILES_OF_OTHERS: Final = 32


def most_connections(files: int) -> int:
    """Give how many connections may be open at once with a limit of open files."""
    return max(1, min(_CONNECTIONS, (files - _FILES) // _FILES_EACH))


def lookup_sockets(files: int) -> int:
    """Give how many sockets lookups may have beside these connections."""
    return max(1, files - _FILES_OF_OTHERS - most_connections(files) * _FILES_EACH)
