"""What the gate says of its hosts: one line for all of them, and one finding for each missing.

Pure text making; it keeps no clock and writes nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from mpiboot.core.addresses import short_names
from mpiboot.core.checks import failed
from mpiboot.core.model import Finding, Host, Json
from mpiboot.core.wording import first_few

_NAMES: Final = 3
_GROUPS: Final = 4
_LISTED: Final = 50


class Stage(str, Enum):
    """Where a host is in the gate; the value is how a line names what is waited for."""

    DNS = "DNS"
    SSH = "SSH"
    KUBECTL = "kubectl exec"
    READY = "ready"


@dataclass(slots=True, eq=False)
class HostState:
    """What is known of one host; ``reason`` is short and steady, ``detail`` has the rest.

    ``hint`` says what to do about it where that is more than the check's own.

    ``resolved`` stays true once the name had an address, whatever comes later.
    """

    host: Host
    label: str
    stage: Stage = Stage.DNS
    reason: str = ""
    detail: str = ""
    resolved: bool = False
    hint: str | None = None


def states(hosts: Sequence[Host]) -> tuple[HostState, ...]:
    """Begin the gate's state; a label is the first part of a name where that tells hosts apart."""
    labels = short_names([host.name for host in hosts])
    return tuple(HostState(host, labels[host.name]) for host in hosts)


def line(known: Sequence[HostState]) -> str:
    """Say in one line how many hosts are ready and what the others are waited for."""
    ready = sum(state.stage is Stage.READY for state in known)
    return ", ".join(part for part in (f"{ready}/{len(known)} hosts ready", missing(known)) if part)


def missing(known: Sequence[HostState]) -> str:
    """Say what the hosts that are not ready are waited for; empty where all are."""
    groups: dict[tuple[Stage, str], list[str]] = {}
    for state in known:
        if state.stage is not Stage.READY:
            groups.setdefault((state.stage, state.reason), []).append(state.label)
    # Who is furthest is told first; the groups of one stage by their size.
    order = sorted(groups.items(), key=lambda item: (item[0][0] is Stage.DNS, -len(item[1])))
    parts = []
    for (stage, reason), labels in order[:_GROUPS]:
        link = "for" if stage is Stage.DNS else "on"
        parts.append(
            f"{stage.value} {link} {first_few(labels, _NAMES)}" + (f" ({reason})" if reason else "")
        )
    if len(order) > _GROUPS:
        rest = sum(len(labels) for _, labels in order[_GROUPS:])
        parts.append(f"{rest} more for other reasons")
    return f"waiting for {', '.join(parts)}" if parts else ""


def fields(known: Sequence[HostState]) -> dict[str, Json]:
    """Say the same as fields of a JSON line; of thousands of hosts, the first that are missing."""
    waiting = [state for state in known if state.stage is not Stage.READY]
    listed: list[Json] = [
        {"host": state.host.name, "stage": state.stage.value.lower(), "reason": state.reason}
        for state in waiting[:_LISTED]
    ]
    return {"ready": len(known) - len(waiting), "total": len(known), "waiting": listed}


def finding(state: HostState) -> Finding:
    """Say why a host isn't ready: its last reason in full."""
    return failed(
        "workers-unreachable" if state.resolved else "names-unresolved",
        f"{state.stage.value}: {state.detail or state.reason or 'no answer yet'}",
        host=state.host.name,
        hint=state.hint,
    )
