"""Who else has the workers: launches of the same job whose launcher is still connected. Pure.

A launch's mark tells its launcher and since when; a worker tells which of them still have the SSH
connection that they came by. A launcher that is gone in good order, or was killed, has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mpiboot.core.errors import MpibootError, error
from mpiboot.core.model import Worker
from mpiboot.core.wording import first_few

# Job and launch; the launcher's host name and the time of day at its start.
MARK: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}(?:@([A-Za-z0-9.-]*)@([0-9TZ:-]+))?", re.ASCII)
_MARGIN: Final = 5.0
# Kubernetes gives a pod 30 s to end where its manifest says nothing else.
GRACE: Final = 30.0 + _MARGIN
# sshd ends a connection after one more probe than the three that its keep-alive is divided by.
_PROBES: Final = 4 / 3


@dataclass(frozen=True, slots=True)
class OtherLauncher:
    """A launcher that has workers; empty is what its mark does not tell.

    ``monitored`` tells that one of its workers runs mpiboot's server with keep-alives, which ends a
    connection over which nobody answers: after that time a living launcher is behind it.
    """

    name: str
    since: str
    address: str
    hosts: tuple[str, ...]
    monitored: bool


def patience(keepalive: float) -> float:
    """Give the seconds after which the workers have missed a launcher whose node vanished."""
    return max(GRACE, keepalive * _PROBES + _MARGIN)


def connected(
    workers: Iterable[Worker], marks: Mapping[str, Sequence[str]], keepalive: float
) -> tuple[OtherLauncher, ...]:
    """Find who is connected, of the launches that have one of these marks, given by host.

    ``keepalive`` is the setting in seconds; with 0 a server keeps a dead launcher's connection.
    """
    hosts: dict[tuple[str, str], list[Worker]] = {}
    for worker in workers:
        for mark, address in worker.held:
            if mark in marks.get(worker.host.name, ()):
                hosts.setdefault((mark, address), []).append(worker)
    found = []
    for (mark, address), held in hosts.items():
        parts = MARK.fullmatch(mark)
        name, since = (parts[1] or "", parts[2] or "") if parts else ("", "")
        hosts_held = tuple(worker.host.name for worker in held)
        monitored = keepalive > 0 and any(worker.runs_mpiboot for worker in held)
        found.append(OtherLauncher(name, since, address, hosts_held, monitored))
    return tuple(found)


def line(others: Sequence[OtherLauncher]) -> str:
    """Say who has which workers since when."""
    first = others[0]
    place = f" ({first.address})" if first.address else ""
    who = f"launcher {first.name}{place}" if first.name else first.address or "a launcher"
    since = f" since {first.since}" if first.since else ""
    more = f", and {len(others) - 1} more launchers use some of them" if len(others) > 1 else ""
    verb = "is" if len(first.hosts) == 1 else "are"
    return f"{first_few(first.hosts)} {verb} in use by {who}{since}{more}"


def error_of(others: Sequence[OtherLauncher], seconds: float) -> MpibootError:
    """Say that the workers are another launcher's."""
    said = f"{line(others)}, still after {seconds:.0f} s: nothing was started"
    return error("workers-held", said)
