"""What doctor wants of the gate's look at the hosts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpiboot.model import Host


@dataclass(frozen=True, slots=True)
class DoctorLook:
    """What hosts are asked beside the gate's own question, and who of them (empty: all)."""

    questions: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def asked(self, listed: Sequence[Host]) -> tuple[Host, ...]:
        """Give those of a job's hosts that are asked, by their whole or first names."""
        wanted = frozenset(self.hosts)
        return tuple(
            host
            for host in listed
            if not wanted or {host.name, host.name.partition(".")[0]} & wanted
        )


ALL = DoctorLook()
