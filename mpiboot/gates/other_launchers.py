"""Who else has the workers: launches of the same job whose launcher is still connected. Pure.

A launch's mark tells its launcher and since when; a worker tells which of them still have the SSH
connection that they came by. A launcher that is gone in good order, or was killed, has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mpiboot.errors import MpibootError, error
from mpiboot.model import Worker

# Job and launch; the launcher's host name and the time of day at its start.
MARK: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}(?:@([A-Za-z0-9.-]*)@([0-9TZ:-]+))?", re.ASCII)
# Kubernetes gives a pod 30 s to end where its manifest says nothing else.
_GRACE: Final = 30.0
_MARGIN: Final = 5.0
_NAMES: Final = 3


@dataclass(frozen=True, slots=True)
class Holder:
    """A launcher that has workers; empty is what its mark does not tell.

    ``proven`` tells that one of its workers runs mpiboot's server, which ends a connection over
    which nobody answers: after the keep-alive such a connection has a living launcher behind it.
    """

    launcher: str
    since: str
    address: str
    hosts: tuple[str, ...]
    proven: bool


def patience(keepalive: float) -> float:
    """Give the seconds after which a launcher that is going to go has gone."""
    return max(_GRACE, keepalive) + _MARGIN


def of(workers: Iterable[Worker], marks: Mapping[str, Sequence[str]]) -> tuple[Holder, ...]:
    """Find who is connected, of the launches that have one of these marks, given by host."""
    hosts: dict[tuple[str, str], list[Worker]] = {}
    for worker in workers:
        for mark, address in worker.held:
            if mark in marks.get(worker.host.name, ()):
                hosts.setdefault((mark, address), []).append(worker)
    found = []
    for (mark, address), held in hosts.items():
        told = MARK.fullmatch(mark)
        launcher, since = (told[1] or "", told[2] or "") if told else ("", "")
        names = tuple(worker.host.name for worker in held)
        proven = any(worker.facts is not None for worker in held)
        found.append(Holder(launcher, since, address, names, proven))
    return tuple(found)


def listed(names: Sequence[str]) -> str:
    """Name some hosts, and count the others."""
    more = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {more} more" if more > 0 else "")


def line(held: Sequence[Holder]) -> str:
    """Say who has which workers since when."""
    first = held[0]
    who = f"launcher {first.launcher} ({first.address})" if first.launcher else first.address
    since = f" since {first.since}" if first.since else ""
    more = f", and {len(held) - 1} more launchers have some" if len(held) > 1 else ""
    return f"{listed(first.hosts)} {_are(first.hosts)} held by {who}{since}{more}"


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def error_of(held: Sequence[Holder], seconds: float) -> MpibootError:
    """Say that the workers are another launcher's."""
    said = f"{line(held)}, and still after {seconds:.0f} s: nothing was started"
    return error("workers-held", said)
