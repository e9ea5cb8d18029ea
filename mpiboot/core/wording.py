"""Pieces of sentences that many messages share. Pure; imports nothing that is not in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")

# So many hosts have a line each; of more, one line a kind is shown, with the outliers named.
MAX_LINES = 16


def first_few(names: Iterable[str], shown: int = 4) -> str:
    """List names, the first ones by name and the rest as a number: ``w-0, w-1 and 62 more``."""
    listed = list(names)
    more = f" and {len(listed) - shown} more" if len(listed) > shown else ""
    return ", ".join(listed[:shown]) + more


def counted(count: int, noun: str, plural: str = "") -> str:
    """Give a number with its noun: ``1 host``, ``4 hosts``; ``plural`` where it isn't that."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def assigned(name: str, value: str) -> str:
    """Write a variable and its value; NCCL's exact names (``=eth0``) so that no `==` comes out."""
    return f'{name}="{value}"' if value.startswith("=") else f"{name}={value}"


def lasting(seconds: float) -> str:
    """Write a length of time in its two largest units: ``45s``, ``8m20s``, ``2h5m``, ``30d``."""
    minutes, left = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (left, "s")]
    shown = [f"{count}{unit}" for count, unit in parts if count][:2]
    return "".join(shown) or "0s"


def took(seconds: float) -> str:
    """Write a time that passes while people wait: ``5.2 s``, from a minute on ``8m20s``."""
    return f"{round(seconds, 1):g} s" if seconds < 60 else lasting(seconds)  # noqa: PLR2004


def size_of(number: int) -> str:
    """Write a number of bytes in the largest unit that it fills: ``64 KiB``, ``1.5 GiB``."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= scale:
            return f"{number / scale:.4g} {unit}"
    return f"{number} bytes"


def grouped(pairs: Iterable[tuple[_Key, _Item]]) -> dict[_Key, list[_Item]]:
    """Gather the items of each key, both in their order: hosts by their message."""
    found: dict[_Key, list[_Item]] = {}
    for key, item in pairs:
        found.setdefault(key, []).append(item)
    return found


class Majority(NamedTuple):
    """The value that most hosts have, how many they are, and by other values the outliers."""

    usual: str
    alike: int
    outliers: Mapping[str, tuple[str, ...]]

    @property
    def message(self) -> str:
        """List the outliers, then what the others have: ``w-5: 7; the others (6): 8``."""
        outliers = (f"{first_few(hosts)}: {value}" for value, hosts in self.outliers.items())
        return f"{'; '.join(outliers)}; the others ({self.alike}): {self.usual}"


def majority(values: Mapping[str, str]) -> Majority | None:
    """Compare hosts by one value each; of two that are as frequent the first host's counts.

    Args:
        values: each host's value, in the hostfile's order.

    Returns:
        None where all are alike, and where there is none.
    """
    hosts = grouped((value, host) for host, value in values.items())
    if len(hosts) < 2:  # noqa: PLR2004 - two that differ
        return None
    usual = max(hosts, key=lambda value: len(hosts[value]))
    outliers = {value: tuple(names) for value, names in hosts.items() if value != usual}
    return Majority(usual, len(hosts[usual]), outliers)
