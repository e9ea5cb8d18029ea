"""Values to text: tables, the plan, findings, the termination message. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from mpiboot.core import masking
from mpiboot.core.model import Decision, Finding, Json, Level, LogLevel, Source, write_records
from mpiboot.core.settings import Resolved, Setting, shown
from mpiboot.core.wording import assigned, counted, first_few
from mpiboot.network import cluster_view
from mpiboot.network.records import RDMA

if TYPE_CHECKING:
    from mpiboot.job.plan import Plan
    from mpiboot.job.plan_input import Observed

_TROUBLE: Final = frozenset({Level.FAIL, Level.WARN, Level.UNKNOWN})
_MAX_ALIKE: Final = 8  # with one check and hint; the hosts of the others are named
# What the log shows at info: decisions, each with its event and its subject.
_AT_INFO: Final = {
    "control-link": ("control-network", "control network (SSH, mpirun's daemons)"),
    "data-network": ("data-network", "data network"),
    "mpi-network": ("mpi-network", "MPI's own messages"),
    "not-forwarded": ("not-forwarded", "not forwarded to ranks"),
}
_IN_LINES: Final = frozenset({"hostfile", "ranks", *_AT_INFO})
_SETTING_FIELDS: Final = (
    *("name", "section", "flag", "variable", "older", "default", "roles", "help"),
)
_USERS: Final = frozenset({Source.FLAG, Source.ENVIRONMENT})
_SOCKETS: Final = "NCCL_SOCKET_IFNAME"
MARKS = {Level.OK: "ok", Level.WARN: "warn", Level.FAIL: "FAIL", Level.UNKNOWN: "?"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]], indent: str = "") -> str:
    """Lay cells out in columns; the last one is not padded.

    Without a ``head`` the rows stand alone.
    """
    lines = [*([head] if head else []), *rows]
    columns = range(len(lines[0]) - 1 if lines else 0)
    widths = [max(len(line[at]) for line in lines) + 2 for at in columns]
    text = ""
    for line in lines:
        padded = "".join(cell.ljust(size) for cell, size in zip(line, widths, strict=False))
        text += f"{indent}{padded}{line[-1]}".rstrip() + "\n"
    return text


def as_json(value: object) -> str:
    """Print any record as indented JSON with a final newline."""
    plain = masking.masked(json.loads(write_records(value)))
    return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"


def decision(item: Decision) -> str:
    """Write a decision as one line: ``plan NAME=VALUE (source: reason)``."""
    return f"plan {item.name}={item.value or '-'} ({item.source.value}: {item.reason})"


def decisions(items: Iterable[Decision]) -> str:
    """Lay decisions out: what, its value, and in brackets where from and why."""
    rows = (
        (item.name, f"{item.value or '-'}  ({item.source.value}: {item.reason})") for item in items
    )
    return table((), rows, indent="  ")


def command(argv: Sequence[str]) -> str:
    """Quote a command line so that it can be pasted; values of secrets are masked."""
    return shlex.join(masking.masked_words(argv))


def findings(items: Iterable[Finding]) -> str:
    """Lay findings out as a table, evidence below each, a hint once below all that it is for.

    Of many hosts with one trouble the first few are shown, the others named.
    """
    listed = [*items]
    hosts = max((len(_host_of(item)) for item in listed), default=0)
    checks = max((len(item.check) for item in listed), default=0)
    below = " " * (len("FAIL") + hosts + checks + 3 * len("  "))
    alike: dict[tuple[object, ...], list[Finding]] = {}
    for item in listed:
        # What is well is a row each: whoever asks wants to see every host.
        key = (item.check, item.level, item.hint) if item.level in _TROUBLE else (id(item),)
        alike.setdefault(key, []).append(item)
    lines = []
    for group in alike.values():
        for item in group if len(group) <= _MAX_ALIKE else group[: _MAX_ALIKE - 1]:
            where = _host_of(item).ljust(hosts)
            # A row's reference names what goes wrong: beside "ok" it would read as the opposite.
            check = "" if item.level is Level.OK else item.check
            which = f" ({first_few(item.hosts)})" if item.hosts else ""
            head = f"{MARKS[item.level].ljust(4)}  {where}  {check.ljust(checks)}"
            lines.append(f"{head}  {item.message}{which}\n")
            lines += [f"{below}  {text}\n" for text in item.evidence]
        if len(group) > _MAX_ALIKE:
            rest = [_host_of(item) for item in group[_MAX_ALIKE - 1 :]]
            lines.append(f"{below}and {len(rest)} more: {first_few(rest, _MAX_ALIKE)}\n")
        if group[0].hint and group[0].level is not Level.OK:
            lines.append(f"{below}-> {group[0].hint}\n")
    return masking.masked("".join(lines))


def _host_of(item: Finding) -> str:
    return f"{len(item.hosts)} hosts" if item.hosts else item.host or "this pod"


def termination(item: Finding, others: Sequence[Finding] = ()) -> str:
    """The container's last message: reference, sentence, hint, evidence, then other hosts."""
    where = f"{item.where}: " if item.where else ""
    lines = [f"{item.check}: {where}{item.message}"]
    if item.hint:
        lines.append(f"-> {item.hint}")
    lines += list(item.evidence)
    texts = (f"{other.where or 'this pod'}: {other.message}" for other in others)
    shown_already = frozenset(item.evidence)
    lines += [line for line in texts if line not in shown_already]
    return "\n".join(lines) + "\n"


def settings(resolved: Resolved, rows: Iterable[Setting]) -> str:
    """Lay the settings out: variable, value, where it came from, what it does."""
    cells = (
        (
            row.variable,
            shown(getattr(resolved.settings, row.name)) or "-",
            str(resolved.given[row.name]),
            row.help,
        )
        for row in rows
    )
    return table(("setting", "value", "source", "what it does"), cells)


def settings_record(resolved: Resolved, rows: Iterable[Setting]) -> list[dict[str, object]]:
    """List the settings as records for JSON."""
    return [
        {name: getattr(row, name) for name in _SETTING_FIELDS}
        | {
            "value": getattr(resolved.settings, row.name),
            "source": resolved.given[row.name].source,
            "given_by": resolved.given[row.name].name,
        }
        for row in rows
    ]


def workers(rows: Iterable[cluster_view.Row]) -> str:
    """Lay the data network out, a worker each."""
    return table(cluster_view.HEADINGS, rows, indent="  ")


def plan(made: Plan, found: Sequence[Finding]) -> str:
    """Lay a plan out for a person: findings, the data network, decisions, then the command."""
    text = findings(found) + ("\n" if found else "")
    text += workers(cluster_view.merge_rows(made.rows)) + "\n" if made.rows else ""
    text += decisions(made.decisions)
    if made.per_host:
        given = cluster_view.variable_lines(
            {host: _masked(own) for host, own in made.per_host.items()}
        )
        text += "\n" + table(("host", "variable", "value"), given, indent="  ")
    removed = f", {len(made.unset_env)} removed: {', '.join(made.unset_env)}"
    count = f"{counted(len(made.set_env), 'variable')} set{removed * bool(made.unset_env)}"
    text += f"\n  {count}\n"
    return text + f"\n{command(made.argv)}\n"


# A line of the log: its level, its event, its text, and its fields in JSON.
LogLine: TypeAlias = tuple[LogLevel, str, str, Mapping[str, Json]]


def log_lines(made: Plan, observed: Observed) -> Iterator[LogLine]:
    """Write a plan for the log: a few lines at info, each decision and each worker at debug."""
    decided = {item.name: item for item in made.decisions}
    yield _job(made, observed, decided.get("ranks"))
    for name, (event, subject) in _AT_INFO.items():
        if name in decided:
            item = decided[name]
            value = item.value or "not chosen"
            value += _carriers(made) if name == "data-network" else ""
            yield LogLevel.INFO, event, f"{subject}: {value} ({item.reason})", _fields(item)
    kept = [
        assigned(item.name, item.value)
        for item in made.decisions
        if item.source in _USERS and item.name not in _IN_LINES
    ]
    if kept:
        text = f"your settings: {first_few(kept)}"
        yield LogLevel.INFO, "user-settings", text, {"kept": [*kept]}
    for item in made.decisions:
        yield LogLevel.DEBUG, "plan", decision(item), _fields(item)
    for row in made.rows:
        cells = dict(zip(cluster_view.HEADINGS, row, strict=True))
        text = ", ".join(f"{name} {cell}" for name, cell in cells.items() if cell)
        yield LogLevel.DEBUG, "worker", text, {name.lower(): cell for name, cell in cells.items()}


def _job(made: Plan, observed: Observed, ranks: Decision | None) -> LogLine:
    """The line of the job: its MPI, the number of ranks, the hosts and their hostfile."""
    from mpiboot.job.mpis import IMPLEMENTATIONS  # noqa: PLC0415 - only for launches

    mpi, file = observed.mpi, observed.hostfile
    known = IMPLEMENTATIONS.get(mpi.family)
    # The title has only the series of versions.
    title = known.title.partition(" (")[0].rstrip("0123456789. ") if known else "unknown MPI"
    count = counted(made.ranks, "rank") if made.ranks else "as many ranks as mpirun decides"
    message = f"{title} {mpi.version}".rstrip() + f" ({mpi.path}): {count} on "
    message += f"{counted(len(file.hosts), 'host')} of {file.path}"
    message += f" ({ranks.reason})" if ranks else ""
    fields: dict[str, Json] = {"mpi": mpi.family, "mpi_version": mpi.version, "mpirun": mpi.path}
    fields |= {"hosts": len(file.hosts), "ranks": made.ranks, "hostfile": file.path}
    return LogLevel.INFO, "job", message, fields


def _carriers(made: Plan) -> str:
    """Name the ports and links that the data network has, which may differ by worker."""
    rows = made.rows if made.transport in RDMA else ()
    cells = ((hca, rate) for *_, hca, _, rate, _, _ in rows)
    ports = dict.fromkeys(f"{hca} at {rate} Gb/s" if rate else hca for hca, rate in cells)
    links = {own[_SOCKETS] for own in (made.set_env, *made.per_host.values()) if _SOCKETS in own}
    names = first_few(sorted(links)).replace("=", "")
    found = [first_few(ports), f"NCCL's and Gloo's sockets on {names}" if links else ""]
    text = ", ".join(filter(None, found))
    return f": {text}" if made.rows and text else ""


def _fields(item: Decision) -> dict[str, Json]:
    named: dict[str, Json] = {"decision": item.name, "value": item.value}
    return named | {"source": item.source.value, "reason": item.reason}


def plan_json(made: Plan, found: Sequence[Finding]) -> str:
    """Print a plan as JSON; values of secrets are masked."""
    return as_json(
        {
            "decisions": made.decisions,
            "findings": found,
            "argv": made.argv,
            "set": _masked(made.set_env),
            "removed": made.unset_env,
            "set_on_host": {host: _masked(mine) for host, mine in made.per_host.items()},
            "data_network": [dict(zip(cluster_view.NAMES, row, strict=True)) for row in made.rows],
        }
    )


def _masked(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: masking.mask_within(name, value) for name, value in variables.items()}
