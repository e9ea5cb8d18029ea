"""Values to text: tables, the plan, findings, the termination message. Pure."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from mpiboot.job import forward
from mpiboot.model import Decision, Finding, Json, Level, PodFacts
from mpiboot.settings import Resolved, Row

MARKS = {Level.OK: "ok", Level.WARN: "warn", Level.FAIL: "FAIL", Level.UNKNOWN: "?"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, indent: str = "") -> str:
    """Lay cells out in columns; the last column is not padded and may be long."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head) - 1)]
    text = []
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        text.append(f"{indent}{'  '.join([*cells, line[-1]])}".rstrip() + "\n")
    return "".join(text)


def plain(value: object) -> Json:
    """Turn records, enums and tuples into what JSON has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: plain(getattr(value, item.name))
            for item in dataclasses.fields(value)
            if not item.name.startswith("_")
        }
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def as_json(value: object) -> str:
    """Print any record as indented JSON with a final newline."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n"


def decisions(items: Iterable[Decision]) -> str:
    """Lay decisions out: what, value, where from, why."""
    return table(
        ("decision", "value", "source", "because"),
        ((item.name, item.value or "-", item.source.value, item.because) for item in items),
        indent="  ",
    )


def masked(argv: Sequence[str]) -> tuple[str, ...]:
    """Mask what a command line gives to a name of a secret: ``NAME=VALUE``, ``--name=value``."""
    words = []
    for word in argv:
        name, equals, value = word.partition("=")
        bare = name.lstrip("-").replace("-", "_")
        if equals and bare.isidentifier():
            value = forward.mask(bare.upper() if name != bare else bare, value)
        words.append(name + equals + value)
    return tuple(words)


def command(argv: Sequence[str]) -> str:
    """Quote a command line so that it can be pasted; values of secrets are masked."""
    return shlex.join(masked(argv))


def findings(items: Iterable[Finding]) -> str:
    """Lay findings out as a table, each hint and evidence on lines of its own below it."""
    lines = []
    width = max((len(item.host or "this pod") for item in items), default=0)
    checks = max((len(item.check) for item in items), default=0)
    for item in items:
        where = (item.host or "this pod").ljust(width)
        lines.append(
            f"{MARKS[item.level].ljust(4)}  {where}  {item.check.ljust(checks)}  {item.said}"
        )
        lines += [f"      {' ' * width}  {' ' * checks}    {text}" for text in item.evidence]
        if item.hint and item.level is not Level.OK:
            lines.append(f"      {' ' * width}  {' ' * checks}  -> {item.hint}")
    return "\n".join(lines) + "\n" if lines else ""


def termination(item: Finding, others: Sequence[Finding] = ()) -> str:
    """Say why the container ended: reference, sentence, hint, evidence, then the other hosts."""
    where = f"{item.host}: " if item.host else ""
    lines = [f"{item.check}: {where}{item.said}"]
    if item.hint:
        lines.append(f"-> {item.hint}")
    lines += list(item.evidence)
    lines += [f"{other.host or 'this pod'}: {other.said}" for other in others]
    return "\n".join(lines) + "\n"


def settings(resolved: Resolved, rows: Iterable[Row]) -> str:
    """Lay the settings out: variable, value, where it came from, what it does."""
    return table(
        ("setting", "value", "source", "what it does"),
        (
            (
                row.variable,
                "(hidden)" if row.secret else shown(value_of(resolved, row.name)),
                str(resolved.given[row.name]),
                row.help,
            )
            for row in rows
        ),
    )


def settings_record(resolved: Resolved, rows: Iterable[Row]) -> list[dict[str, object]]:
    """List the settings as records for JSON."""
    return [
        {
            "name": row.name,
            "flag": row.flag,
            "variable": row.variable,
            "older": row.older,
            "value": "(hidden)" if row.secret else value_of(resolved, row.name),
            "default": row.default,
            "source": resolved.given[row.name].source,
            "given_by": resolved.given[row.name].name,
            "roles": row.roles,
            "help": row.help,
        }
        for row in rows
    ]


def value_of(resolved: Resolved, name: str) -> object:
    """Read a setting by its name in the table."""
    value: object = getattr(resolved.settings, name)
    return value


def shown(value: object) -> str:
    """Print a setting's value as a user would write it."""
    match value:
        case None | "" | ():
            return "-"
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(str(item) for item in value)
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def plan(
    made: Sequence[Decision],
    found: Sequence[Finding],
    argv: Sequence[str],
    set_env: Mapping[str, str],
    unset_env: Sequence[str],
) -> str:
    """Lay a plan out for a person: findings, decisions, then the command."""
    text = findings(found) + ("\n" if found else "")
    text += decisions(made)
    text += f"\n  {len(set_env)} variables set, {len(unset_env)} removed\n"
    return text + f"\n{command(argv)}\n"


def plan_json(
    made: Sequence[Decision],
    found: Sequence[Finding],
    argv: Sequence[str],
    set_env: Mapping[str, str],
    unset_env: Sequence[str],
) -> str:
    """Print a plan as JSON; values of secrets are masked."""
    return as_json(
        {
            "decisions": made,
            "findings": found,
            "argv": masked(argv),
            "set": {name: forward.mask(name, value) for name, value in set_env.items()},
            "removed": unset_env,
        }
    )


def facts(found: PodFacts) -> str:
    """Lay a pod's facts out for a person."""
    who = found.identity
    mpi = f"{found.mpi.said} ({found.mpi.path})" if found.mpi else "none on PATH"
    memlock = "unlimited" if found.memlock < 0 else f"{found.memlock} bytes"
    rows = [
        ("host name", found.hostname),
        ("user", f"{who.user} (uid {who.uid}, gid {who.gid})" + ("" if who.known else ", made up")),
        ("home", who.home),
        ("control address", found.control_address or "none"),
        ("MPI", mpi),
        ("sshd", found.sshd or "not started by mpiboot here"),
        ("cores", str(found.cores)),
        ("locked memory", memlock),
        ("shared memory", f"{found.shm >> 20} MiB"),
    ]
    links = [
        (
            link.name,
            link.kind or "-",
            "up" if link.up else "down",
            str(link.mtu),
            " ".join(link.addresses) or "-",
        )
        for link in found.links
    ]
    head = ("link", "kind", "state", "MTU", "addresses")
    return table(("fact", "value"), rows) + "\n" + table(head, links)
