"""What differs between environments as text: hosts that are alike once; JSON with a version."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

from mpiboot import __version__
from mpiboot.core.model import Finding
from mpiboot.core.wording import counted, first_few
from mpiboot.doctor.environment.compare import (
    NOT_SET,
    TITLES,
    Difference,
    DifferenceKind,
    HostEnvironments,
)
from mpiboot.job import render

# Raised when a field changes its meaning; new fields need no new version.
JSON_VERSION: Final = 1

Told = Sequence[tuple[HostEnvironments, Sequence[Difference]]]


def as_json(told: Told, found: Sequence[Finding], *, whole: bool = True) -> str:
    """Write them as docs/reference/checks.md has it."""
    listed = [
        {"host": one.host, "rank": one.rank, "missing": one.missing, "differences": items}
        for one, items in told
    ]
    return render.as_json(
        {
            "version": JSON_VERSION,
            "mpiboot": __version__,
            "host": os.uname().nodename,
            "complete": whole,
            "findings": found,
            "hosts": listed,
        }
    )


def as_text(told: Told, found: Sequence[Finding], width: int | None, *, whole: bool = True) -> str:
    """Write what was found of hosts, then a table of each host or of those that are alike.

    Args:
        told: each host with its differences.
        found: hosts that differ or were not reached.
        width: a terminal's; without one nothing is broken.
        whole: whether it was not interrupted.
    """
    alike: dict[str, list[tuple[HostEnvironments, Sequence[Difference], int]]] = {}
    for one, items in told:
        shown = [item for item in items if item.group is not DifferenceKind.OWN]
        kind = repr((sorted(one.missing.items()), shown))
        alike.setdefault(kind, []).append((one, shown, len(items) - len(shown)))
    text = render.findings(found, width)
    for hosts in alike.values():
        one, differing, own = hosts[0]
        text += ("\n" if text else "") + first_few(host.host for host, _, _ in hosts)
        text += f": {one.rank}\n" if one.rank else "\n"
        text += "".join(f"  no {TITLES[whose]}: {why}\n" for whose, why in one.missing.items())
        rows = [row for item in differing for row in _rows(item)]
        head = ("variable", "in", "value")
        text += render.table(head, rows, indent="  ") if rows else "  nothing differs\n"
        if own:
            said = f"{counted(own, 'variable')} that a session or a rank has by its nature: --json"
            text += f"  and {said}\n"
    return text if whole else f"{text}\ninterrupted: the rest was not looked at\n"


def _rows(item: Difference) -> Iterator[tuple[str, str, str]]:
    """Give a line for each value, and one for the reason."""
    by_value: dict[str, list[str]] = {}
    for whose, value in item.values.items():
        by_value.setdefault(NOT_SET if value is None else value, []).append(TITLES[whose])
    name = item.name
    for value, titles in by_value.items():
        yield name, ", ".join(titles), value
        name = ""
    if item.because:
        yield "", "why", item.because
