"""The log's summary of a plan: a few lines at info, everything at debug."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from mpiboot.core import log
from mpiboot.core.model import Decision, Json, Source
from mpiboot.core.setting_types import LogLevel
from mpiboot.core.wording import assigned, counted, first_few
from mpiboot.job import render
from mpiboot.job.dialects import DIALECTS, HOSTFILE_VARS
from mpiboot.job.mpi_environment import NOT_FORWARDED
from mpiboot.job.plan import RANK_OUTPUT, Plan
from mpiboot.job.plan_builder import Observed
from mpiboot.network.cluster_view import HEADINGS
from mpiboot.network.records import RDMA, Transport

_NCCL: Final = "NCCL_SOCKET_IFNAME"
_SHOWN: Final = 6
# Shown in lines of their own.
_ELSEWHERE: Final = frozenset(
    {"hostfile", "ranks", "control-link", "data-network", "mpi-network", RANK_OUTPUT}
)


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """One line of the log: its event, its text, and the same as fields."""

    event: str
    message: str
    fields: Mapping[str, Json]


def say(plan: Plan, observed: Observed) -> None:
    """Log a plan: its lines at info; each of its decisions, and each worker, at debug."""
    for line in lines(plan, observed):
        log.info(line.event, line.message, **line.fields)
    if not log.shows(LogLevel.DEBUG):
        return
    columns = log.width()
    if columns and not log.is_json():
        table = render.decisions(plan.decisions, columns - len(log.BELOW))
        log.debug("plan", "the plan:\n" + table.rstrip("\n"))
    else:
        for item in plan.decisions:
            fields: dict[str, Json] = {"value": item.value, "source": item.source.value}
            fields |= {"decision": item.name, "reason": item.reason}
            log.debug("plan", render.decision(item), **fields)
    if plan.rows and not log.is_json():
        workers = render.workers(plan.rows, columns - len(log.BELOW) if columns else None)
        log.debug("worker", "the data network:\n" + workers.rstrip("\n"))
        return
    for row in plan.rows:
        cells = dict(zip(HEADINGS, row.cells, strict=True))
        text = ", ".join(f"{name} {cell}" for name, cell in cells.items() if cell)
        log.debug("worker", text, **{name.lower(): cell for name, cell in cells.items()})


def lines(plan: Plan, observed: Observed) -> tuple[SummaryLine, ...]:
    """Summarize a plan in at most eight lines."""
    decisions = {item.name: item for item in plan.decisions}
    control = "control network (SSH, mpirun's daemons)"
    return (
        _job(plan, observed, decisions),
        *_one(decisions, "control-link", "control-network", "link", control),
        *_data(plan, decisions),
        *_one(decisions, "mpi-network", "mpi-network", "network", "MPI's own messages"),
        *_one(decisions, RANK_OUTPUT, RANK_OUTPUT, "value", "ranks' output"),
        *_users(plan, observed, decisions),
        *_stays(decisions),
    )


_Parts = Iterator[SummaryLine]
_Decisions = Mapping[str, Decision]


def _one(decisions: _Decisions, name: str, event: str, field: str, what: str) -> _Parts:
    """Write a decision as a line: what it is of, its value and why."""
    item = decisions.get(name)
    if item is not None:
        message = f"{what}: {item.value or 'not chosen'} ({item.reason})"
        yield SummaryLine(event, message, {field: item.value, "reason": item.reason})


def _job(plan: Plan, observed: Observed, decisions: _Decisions) -> SummaryLine:
    mpi, file = observed.mpi, observed.hostfile
    # The row's title has only the series of versions.
    row = DIALECTS.get(mpi.family)
    title = row.title.partition(" (")[0].rstrip("0123456789. ") if row else "unknown MPI"
    hosts = counted(len(file.hosts), "host")
    ranks = f"{counted(plan.ranks, 'rank')}" if plan.ranks else "as many ranks as mpirun decides"
    why = f" ({decisions['ranks'].reason})" if "ranks" in decisions else ""
    return SummaryLine(
        "job",
        f"{title} {mpi.version}".rstrip()
        + f" ({mpi.path}): {ranks} on {hosts} of {file.path}{why}",
        {
            "mpi": mpi.family,
            "mpi_version": mpi.version,
            "mpirun": mpi.path,
            "hosts": len(file.hosts),
            "ranks": plan.ranks,
            "hostfile": file.path,
        },
    )


def _data(plan: Plan, decisions: _Decisions) -> _Parts:
    item = decisions.get("data-network")
    if item is None:
        return
    fields: dict[str, Json] = {"kind": item.value, "reason": item.reason}
    if plan.transport is None:
        yield SummaryLine("data-network", f"data network: not looked at ({item.reason})", fields)
        return
    ports = _same(row.hca for row in plan.rows)
    links = _values(plan, _NCCL).lstrip("=") or _link(decisions)
    if plan.transport in RDMA:
        rate = _same(row.rate for row in plan.rows)
        fast = f" at {rate} Gb/s" if rate and rate != _MANY else ""
        message = f"NCCL's data by {ports}{fast}, its bootstrap by {links}"
        fields |= {"devices": ports, "rate": rate, "links": links}
    elif plan.transport is Transport.TCP:
        message = f"NCCL's and Gloo's sockets on {links}"
        fields |= {"links": links}
    else:
        yield SummaryLine("data-network", f"no data network: {item.reason}", fields)
        return
    yield SummaryLine(
        "data-network", f"data network: {item.value}: {message} ({item.reason})", fields
    )


def _users(plan: Plan, observed: Observed, decisions: _Decisions) -> _Parts:
    """List which settings of the user were kept, replaced, or not passed on."""
    kept = [
        assigned(item.name, item.value)
        for name, item in decisions.items()
        if item.source in {Source.FLAG, Source.ENVIRONMENT} and name not in _ELSEWHERE
    ]
    row = DIALECTS.get(observed.mpi.family)
    if row is None:
        return
    environ, platform = observed.environ, observed.platform
    shown_elsewhere = {*HOSTFILE_VARS, row.agent_args_var, *row.agent_args_aliases, row.agent_var}
    shown_elsewhere |= {
        name for name in platform.sets if platform.has_set(name, environ.get(name, ""))
    }
    replaced = [
        name
        for name, value in plan.set_env.items()
        if environ.get(name) not in {None, "", value} and name not in shown_elsewhere
    ]
    shown_elsewhere |= set(plan.agent_env)
    removed = [name for name in plan.unset_env if environ.get(name) and name not in shown_elsewhere]
    parts = [
        f"{what}: {first_few(names, _SHOWN)}"
        for what, names in (("kept", kept), ("replaced", replaced), ("not passed on", removed))
        if names
    ]
    if parts:
        fields: dict[str, Json] = {"kept": [*kept], "replaced": [*replaced], "removed": [*removed]}
        yield SummaryLine("user-settings", f"your settings {'; '.join(parts)}", fields)


def _stays(decisions: _Decisions) -> _Parts:
    """List the variables of this pod that ranks don't get."""
    item = decisions.get(NOT_FORWARDED)
    if item is None:
        return
    names = item.value.split()
    message = f"variables of this pod that stay here: {first_few(names, _SHOWN)} ({item.reason})"
    yield SummaryLine("not-forwarded", message, {"names": [*names]})


_MANY: Final = "ports that differ by worker"


def _same(cells: Iterator[str]) -> str:
    """Give the value that all workers have in common, or say that they differ."""
    found = set(cells)
    return found.pop() if len(found) == 1 else _MANY if found else ""


def _values(plan: Plan, name: str) -> str:
    """Give a variable's value for the ranks, or the list of values that differ by worker."""
    mine = {found[name] for found in plan.per_host.values() if name in found}
    return plan.set_env.get(name) or first_few(sorted(mine))


def _link(decisions: _Decisions) -> str:
    return decisions["control-link"].value if "control-link" in decisions else ""
