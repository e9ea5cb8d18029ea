"""How long to wait before the next try of one host: a pure rule, which must not read a clock."""

from __future__ import annotations

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
