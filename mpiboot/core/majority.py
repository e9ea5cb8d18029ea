"""Which hosts differ from most others in one value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mpiboot.core.wording import first_few


@dataclass(frozen=True, slots=True)
class Majority:
    """The value that most hosts have, how many they are, and the hosts that have each other one."""

    usual: str
    count: int
    odd: Mapping[str, tuple[str, ...]]

    @property
    def odd_ones(self) -> str:
        """List the odd hosts with their values: ``w-5: 7; w-6, w-7: 4``."""
        return "; ".join(f"{first_few(hosts)}: {value}" for value, hosts in self.odd.items())

    @property
    def said(self) -> str:
        """List the odd hosts, then what the others have: ``w-5: 7; the others (6): 8``."""
        return f"{self.odd_ones}; the others ({self.count}): {self.usual}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The odd hosts."""
        return tuple(host for hosts in self.odd.values() for host in hosts)


def majority(values: Mapping[str, str]) -> Majority | None:
    """Compare hosts by one value each; of two that are as frequent the first host's counts.

    Args:
        values: each host's value, in the hostfile's order.

    Returns:
        None where all are alike, and where there is none.
    """
    hosts: dict[str, list[str]] = {}
    for host, value in values.items():
        hosts.setdefault(value, []).append(host)
    if len(hosts) < 2:  # noqa: PLR2004 - two that differ
        return None
    usual = max(hosts, key=lambda value: len(hosts[value]))
    odd = {value: tuple(names) for value, names in hosts.items() if value != usual}
    return Majority(usual, len(hosts[usual]), odd)
