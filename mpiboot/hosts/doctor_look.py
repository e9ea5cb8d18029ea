"""What doctor wants of the gate's look at the hosts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mpiboot.core.model import Host


@dataclass(frozen=True, slots=True)
class DoctorLook:
    """What hosts are asked beside the gate's own question, and who of them (empty: all)."""

    questions: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def asked(self, listed: Sequence[Host]) -> tuple[Host, ...]:
        """Give those of a job's hosts that are asked, by their whole or first names."""
        wanted = frozenset(self.hosts)
        return tuple(host for host in listed if not wanted or is_one_of(host.name, wanted))


def is_one_of(name: str, wanted: Iterable[str]) -> bool:
    """Whether a host is among those that are asked for, by its whole or first name."""
    return not {name, name.partition(".")[0]}.isdisjoint(wanted)


ALL = DoctorLook()
