"""The gate's progress: one line for all hosts, and a finding for each that is missing.

The line is logged when it changes, at a limited rate.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from mpiboot.core import log
from mpiboot.core.addresses import short_names
from mpiboot.core.checks import failed
from mpiboot.core.facts import Host
from mpiboot.core.model import Finding, Json
from mpiboot.core.wording import first_few, lasting

_NAMES: Final = 3
_GROUPS: Final = 4
_LISTED: Final = 50


class Stage(str, Enum):
    """A host's stage in the gate; the value is its name in a progress line."""

    DNS = "DNS"
    SSH = "SSH"
    KUBECTL = "kubectl exec"
    READY = "ready"


@dataclass(slots=True, eq=False)
class HostState:
    """The state of one host; ``reason`` is short and doesn't vary, ``detail`` has the rest.

    ``hint`` is what to do, if that is more than the check's own. ``resolved`` stays true
    once the name had an address. ``error`` is what the deadline reports, where that is more than a
    host that isn't ready; ``holder`` names another launcher that uses the host.
    """

    host: Host
    label: str
    stage: Stage = Stage.DNS
    reason: str = ""
    detail: str = ""
    resolved: bool = False
    hint: str | None = None
    error: Finding | None = None
    holder: str = ""

    @property
    def ready(self) -> bool:
        """Whether it has passed the gate."""
        return self.stage is Stage.READY


def states(hosts: Sequence[Host]) -> tuple[HostState, ...]:
    """Give the initial states; a label is the first part of a name if these are unique."""
    labels = short_names([host.name for host in hosts])
    return tuple(HostState(host, labels[host.name]) for host in hosts)


def line(known: Sequence[HostState]) -> str:
    """Describe in one line how many hosts are ready, and what the others lack."""
    ready = sum(state.ready for state in known)
    return ", ".join(part for part in (f"{ready}/{len(known)} hosts ready", missing(known)) if part)


def missing(known: Sequence[HostState]) -> str:
    """Describe what the hosts that are not ready lack; empty if all are ready."""
    groups: dict[tuple[Stage, str], list[str]] = {}
    for state in known:
        if not state.ready:
            groups.setdefault((state.stage, state.reason), []).append(state.label)
    # The hosts that came furthest come first, then the larger groups.
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
    """Give the same as fields of a JSON line, with a limited number of missing hosts."""
    waiting = [state for state in known if not state.ready]
    listed: list[Json] = [
        {"host": state.host.name, "stage": state.stage.value.lower(), "reason": state.reason}
        for state in waiting[:_LISTED]
    ]
    return {"ready": len(known) - len(waiting), "total": len(known), "waiting": listed}


def finding(state: HostState) -> Finding:
    """Make a finding of why a host isn't ready: its last reason in full."""
    if state.error is not None:
        return state.error
    if state.holder:
        return failed("workers-held", state.holder, host=state.host.name)
    return failed(
        "workers-unreachable" if state.resolved else "names-unresolved",
        f"{state.stage.value}: {state.detail or state.reason or 'no answer yet'}",
        host=state.host.name,
        hint=state.hint,
    )


# A line a second while things change quickly, and fewer the longer it takes: pods' logs are kept,
# and a wait of ten minutes should fit on one screen.
_OFTEN, _SELDOM, _SHARE = 1.0, 28.0, 0.2
# Without any change, a line this often: a silent log looks like a program that hangs.
_SILENCE, _LONGEST_SILENCE, _SILENT_SHARE = 28.0, 120.0, 0.5


class Reporter:
    """Writes a gate's progress lines; the states are read when a line is due.

    Args:
        left: gives the seconds until the gate gives up.
    """

    def __init__(self, left: Callable[[], float]) -> None:
        self._changed = asyncio.Event()
        self._left = left
        self._logged = ""

    def changed(self) -> None:
        """Note that a host's state has changed; cheap, as thousands of hosts call it."""
        self._changed.set()

    async def lines(self, states: Sequence[HostState]) -> None:
        """Log a line whenever something changed, and now and then if nothing does."""
        started = logged_at = time.monotonic()
        while True:
            # A cluster that is ready needs no line: the first one is delayed, too.
            waited = time.monotonic() - started
            await asyncio.sleep(min(_SELDOM, max(_OFTEN, waited * _SHARE)))
            silence = min(_LONGEST_SILENCE, max(_SILENCE, (logged_at - started) * _SILENT_SHARE))
            silent = logged_at + silence - time.monotonic()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), max(0.0, silent))
            self._changed.clear()
            text = line(states)
            if text != self._logged or time.monotonic() - logged_at >= silence:
                self._logged, logged_at = text, time.monotonic()
                left = self._left()
                log.info(
                    "gate",
                    f"{text}; gives up in {lasting(left)}",
                    **fields(states),
                    gives_up_in=round(left, 1),
                )
