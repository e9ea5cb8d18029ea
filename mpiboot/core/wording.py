"""Pieces of sentences that many messages share. Pure; imports nothing that is not in memory."""

from __future__ import annotations

from collections.abc import Iterable


def first_few(names: Iterable[str], shown: int = 4) -> str:
    """List names, the first ones by name and the rest as a number: ``w-0, w-1 and 62 more``."""
    listed = list(names)
    more = f" and {len(listed) - shown} more" if len(listed) > shown else ""
    return ", ".join(listed[:shown]) + more


def counted(count: int, noun: str, plural: str = "") -> str:
    """Give a number with its noun: ``1 host``, ``4 hosts``; ``plural`` where it isn't that."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def lasting(seconds: float) -> str:
    """Write a length of time in its two largest units: ``45s``, ``8m20s``, ``2h5m``."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    parts = [(hours, "h"), (minutes, "m"), (left, "s")]
    shown = [f"{count}{unit}" for count, unit in parts if count][:2]
    return "".join(shown) or "0s"


def size_of(number: int) -> str:
    """Write a number of bytes in the largest unit that it fills: ``64 KiB``, ``1.5 GiB``."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= scale:
            return f"{number / scale:.4g} {unit}"
    return f"{number} bytes"
