"""Findings to text: a table for a terminal, lines for a pipe, JSON with a version."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Final

from mpiboot import __version__
from mpiboot.core import log
from mpiboot.core.addresses import short_names
from mpiboot.core.checks import ExitCode
from mpiboot.core.errors import ShownError
from mpiboot.core.model import Finding, Level, Role
from mpiboot.core.wording import counted, first_few
from mpiboot.doctor.table import CHECKS, GROUP_OF, GROUPS
from mpiboot.job import render

# Raised when a field changes its meaning; new fields need no new version.
JSON_VERSION: Final = 1
HERE: Final = "this pod"
# The worst one is what a cell shows.
_WORST: Final = (Level.FAIL, Level.WARN, Level.UNKNOWN, Level.OK)
_STYLES: Final = {Level.FAIL: "bold red", Level.WARN: "yellow", Level.UNKNOWN: "cyan"}


def json_report(**fields: object) -> str:
    """Write a report of doctor's as JSON: version, mpiboot's version, this pod, then these."""
    known = {"version": JSON_VERSION, "mpiboot": __version__, "host": os.uname().nodename}
    return render.as_json({**known, **fields})


def end(found: Iterable[Finding], *bad: Level) -> None:
    """End with the code 1 where a finding has one of these levels, by default FAIL.

    Raises:
        ShownError: one has; everything is printed already.
    """
    for item in found:
        if item.level in (bad or (Level.FAIL,)):
            raise ShownError(item, code=int(ExitCode.FOUND))


def as_json(found: Sequence[Finding], role: Role, *, whole: bool) -> str:
    """Write the findings as docs/reference/errors.md has it."""
    here = os.uname().nodename
    findings = [
        {
            "group": GROUP_OF[item.check],
            **asdict(item),
            "host": item.host or ("" if item.hosts else here),
        }
        for item in found
    ]
    return json_report(role=role, complete=whole, findings=findings)


def write(found: Sequence[Finding], *, whole: bool) -> None:
    """Print the findings: on a terminal a table, and below it what is not well."""
    width = log.width(1)
    shown = found
    if width is not None:
        _table(found, width)
        shown = [item for item in found if item.level is not Level.OK]
    text = render.findings(shown, width)
    sys.stdout.write(f"{text}\n{summary(found, whole=whole)}\n")


def summary(found: Iterable[Finding], *, whole: bool) -> str:
    """Count the findings, in one line."""
    levels = [item.level for item in found]
    bad, odd, unknown = (levels.count(level) for level in (Level.FAIL, Level.WARN, Level.UNKNOWN))
    more = f", {unknown} not known" if unknown else ""
    message = f"{counted(len(levels), 'check')}: {bad} failed, {counted(odd, 'warning')}{more}"
    return message if whole else f"{message}; interrupted: the rest was not looked at"


def cells(found: Iterable[Finding]) -> dict[str, dict[str, list[Level]]]:
    """Sort the levels by host and group, both in the order in which they are to be shown."""
    rows: dict[str, dict[str, list[Level]]] = {}
    for item in found:
        for host in item.hosts or (item.host or HERE,):
            row = rows.setdefault(host, {})
            row.setdefault(GROUP_OF[item.check], []).append(item.level)
    return rows


def cell(levels: Sequence[Level]) -> tuple[str, Level]:
    """Write a cell: the worst level, and how many have it where that is no good one."""
    worst = next((level for level in _WORST if level in levels), Level.OK)
    if not levels:
        return "", Level.OK
    count = levels.count(worst)
    many = count > 1 and worst is not Level.OK
    return f"{render.MARKS[worst]}{f' {count}' if many else ''}", worst


def _table(found: Sequence[Finding], width: int) -> None:
    # Loaded here alone: nothing else of mpiboot draws.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    rows = cells(found)
    groups = [name for name in GROUPS if any(name in row for row in rows.values())]
    alike: dict[tuple[tuple[str, Level], ...], list[str]] = {}
    short = short_names([name for name in rows if name != HERE])
    for host, row in rows.items():
        line = tuple(cell(row.get(name, ())) for name in groups)
        alike.setdefault(line, []).append(short.get(host, host))
    drawn = Table("", *groups, box=None, pad_edge=False, show_edge=False)
    for line, hosts in alike.items():
        styled = (Text(text, style=_STYLES.get(level, "")) for text, level in line)
        drawn.add_row(Text(first_few(hosts, 3)), *styled)
    console = Console(file=sys.stdout, width=width, highlight=False)
    console.print(drawn)
    console.print()


def listed(width: int | None) -> str:
    """List every check: its group, reference, the roles that have it, and when it holds."""
    text = [("group", "check", "roles", "holds when")]
    for group, references in GROUPS.items():
        for row in map(CHECKS.__getitem__, references):
            roles = ",".join(role.value for role in row.roles)
            text.append((group, row.reference, roles, row.title))
    widths = [max(len(line[place]) for line in text) + 2 for place in range(3)]
    return "".join(
        render.indented(
            "".join(word.ljust(size) for word, size in zip(line, widths, strict=False)),
            line[3],
            width,
        )
        for line in text
    )
