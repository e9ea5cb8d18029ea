"""``mpiboot doctor``: this pod and, on a launcher, every host; what is wrong and how to fix it.

It waits for nothing, starts nothing and writes nothing but its private folder.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from mpiboot import __version__
from mpiboot.core.addresses import short_names
from mpiboot.core.checks import (
    BY_REFERENCE,
    FOUND,
    TABLE,
    MpibootError,
    ShownError,
    failed,
)
from mpiboot.core.facts import Link, Worker
from mpiboot.core.model import Finding, Json, Level, Role, read_record, values
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import counted, first_few, grouped, majority
from mpiboot.doctor import checks
from mpiboot.doctor.checks import ok, warned
from mpiboot.hosts import gate, hostfiles
from mpiboot.job import plan as plans
from mpiboot.job import platforms, render
from mpiboot.job.plan_input import LaunchPaths
from mpiboot.launcher import look, setup
from mpiboot.launcher.prepare import Observation
from mpiboot.network.worker_network import link_of
from mpiboot.ssh.server import running_worker


def run(
    resolved: Resolved,
    environ: Mapping[str, str],
    *,
    only: Collection[str] = (),
    image: bool = False,
    as_json: bool = False,
) -> None:
    """Print every finding.

    Args:
        resolved: the settings.
        environ: this process's environment.
        only: references of the checks that are wanted; none: all.
        image: whether this is an image's build, and no pod.
        as_json: whether a program reads it.

    Raises:
        ShownError: something fails; with the code 1.
    """
    role = role_of(resolved, environ)
    try:
        found = dict.fromkeys(_findings(resolved, environ, role, only, image=image))
    finally:
        checks.remove_folder(resolved.settings, environ)
    shown = [item for item in found if not only or item.check in only]
    if as_json:
        sys.stdout.write(report(shown, role))
    else:
        write(shown)
    end(shown)


def _findings(
    resolved: Resolved,
    environ: Mapping[str, str],
    role: Role,
    only: Collection[str],
    *,
    image: bool,
) -> Iterator[Finding]:
    """Check this pod and, on a launcher, its hosts."""
    yield from (*resolved.warnings, *resolved.removed)
    only = checks.IMAGE if image else only
    worker = running_worker(resolved.settings.runtime_dir, environ)
    pod = checks.Pod(resolved, environ, worker)
    yield from checks.run(checks.chosen(role, only), pod, resolved.settings.timeout)
    if image:
        return
    if role is Role.WORKER and worker is None:
        hint = "start the container with `args: [worker]`, and read its log"
        yield failed(SERVER, "no SSH server of mpiboot's runs in this pod", hint=hint)
    if role is Role.LAUNCHER:
        yield from of_job(resolved, environ)


def role_of(resolved: Resolved, environ: Mapping[str, str]) -> Role:
    """Find the pod's role; where that fails a launcher's, so that its hosts are checked."""
    mounted = hostfiles.mounted(resolved, environ)
    try:
        return platforms.role(resolved, environ, (), mounted, os.uname().nodename)[0]
    except MpibootError:
        return Role.LAUNCHER


# --- a launcher's hosts: each as its own doctor reports it, and compared with each other


class HostReport(NamedTuple):
    """One host that was reached.

    ``checks`` are its doctor's findings (None: it has no doctor), and ``session`` is what hosts are
    compared by, as a session there has it.
    """

    worker: Worker
    checks: tuple[Finding, ...] | None = None
    session: Mapping[str, str] = MappingProxyType({})


_MAX_HOST_LINES: Final = 16  # where each host has another message
_NO_LINK: Final = "none"
_LIMITS: Final = (
    "give the container runtime the same limits on all nodes (LimitMEMLOCK, LimitNOFILE, "
    "LimitNPROC)"
)


def _values(one: HostReport, links: Iterable[str]) -> dict[str, str]:
    """List a host's known values by name; the plan compares MPI, devices and control links."""
    worker = one.worker
    known = worker.facts.mpiboot if worker.facts else "another"
    found = {"version of mpiboot": known if worker.runs_mpiboot else "none"}
    found |= {f"{name} of a session": value for name, value in one.session.items()}
    if worker.facts and worker.facts.links:
        mtus = {link.name: f"MTU {link.mtu}" for link in _data_links(worker)}
        found |= {f"link {name}": mtus.get(name, _NO_LINK) for name in links}
    return found


def _data_links(worker: Worker) -> list[Link]:
    listed = worker.facts.links if worker.facts else ()
    control = link_of(worker.address, listed)
    return [link for link in listed if link is not control]


def differ(hosts: Sequence[HostReport]) -> Iterable[Finding]:
    """Find hosts whose value of something is not that of most others."""
    links = sorted({link.name for one in hosts for link in _data_links(one.worker)})
    every = {one.worker.host.name: _values(one, links) for one in hosts}
    differs = False
    for name in dict.fromkeys(name for known in every.values() for name in known):
        found = majority({host: known[name] for host, known in every.items() if name in known})
        if found is None or found.usual == _NO_LINK:
            continue
        differs = True
        hint = _LIMITS if name.endswith("of a session") else None
        for value, which in found.outliers.items():
            message = f"{name}: {value}; the others ({found.alike}): {found.usual}"
            yield warned("hosts-differ", message, hint=hint).on(which)
    if len(every) > 1 and not differs:
        yield ok("hosts-differ", f"{counted(len(every), 'host')} have the same limits and links")


def unchecked(hosts: Sequence[HostReport]) -> Iterable[Finding]:
    """Name the hosts whose own checks are unknown."""
    unknown = (one.worker for one in hosts if one.checks is None)
    names = grouped((worker.runs_mpiboot, worker.host.name) for worker in unknown)
    for runs_mpiboot, which in names.items():
        why = "its mpiboot has no checks for a launcher, or they took too long"
        why = why if runs_mpiboot else "it does not run mpiboot"
        message = f"its limits, files and devices were not checked from within: {why}"
        yield Finding("worker-checks", Level.UNKNOWN, message).on(which)


def merged(found: Iterable[Finding]) -> list[Finding]:
    """Merge equal findings of several hosts.

    A check that holds with another message on each of very many hosts is reported by its title.
    """
    listed = list(found)
    alike = grouped((replace(item, host=""), item.host) for item in listed)
    well = grouped((item.check, item.host) for item in listed if item.level is Level.OK)
    joined: dict[Finding, list[str]] = {}
    for item, which in alike.items():
        many = item.level is Level.OK and len(which) < len(set(well[item.check])) > _MAX_HOST_LINES
        same = ok(item.check, BY_REFERENCE[item.check].title) if many else item
        joined.setdefault(same, []).extend(which)
    return [item.on(list(dict.fromkeys(which))) for item, which in joined.items()]


SERVER: Final = "workers-unreachable"
# The query that each host gets beside the gate's.
QUERIES: Final = ("doctor",)
# The plan's checks don't depend on the program.
ANY_PROGRAM: Final = ("mpirun", "true")


def of_job(resolved: Resolved, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the hostfile and every host of it, as far as this pod allows."""
    try:
        seen, launcher = look.look(resolved, ANY_PROGRAM, environ, QUERIES, checks.role_name())
    except MpibootError as error:
        yield from (error.finding, *error.others)
        return
    file = seen.observed.hostfile
    yield ok("hostfile-missing", f"the hostfile is {file.path}, named by {file.named_by}")
    yield ok("hostfile-invalid", counted(len(file.hosts), "host"))
    planned = list(_planned(seen, resolved, setup.paths(launcher.folder)))
    yield from _passed(seen.passed, planned)
    yield from planned


def _planned(seen: Observation, resolved: Resolved, where: LaunchPaths) -> Iterator[Finding]:
    """Report the findings of a plan for all hosts that were reached."""
    try:
        made = plans.make(seen.observed, resolved, where)
    except MpibootError as error:
        yield from (error.finding, *error.others)
        return
    failed_pairs = plans.pair_findings(made, seen.observed, seen.dialled)
    if seen.dialled and not failed_pairs:
        tried = counted(len(seen.dialled), "connection")
        yield ok("worker-pairs", f"workers reach each other and the launcher: {tried} tried")
    yield from (*failed_pairs, *made.findings)


def _passed(passed: gate.GateResult, planned: Sequence[Finding]) -> Iterator[Finding]:
    """Report how each host was reached, the findings of its doctor, and how hosts differ."""
    yield from (ok("names-unresolved", "this pod itself", one.name) for one in passed.local)
    yield from merged(map(_reached, passed.workers))
    yield from passed.findings
    reports = [*map(host_report, passed.workers)]
    known = {(item.check, name) for item in planned for name in (item.host, *item.hosts)}
    reported = (item for one in reports for item in one.checks or ())
    yield from merged(item for item in reported if (item.check, item.host) not in known)
    yield from differ(reports)
    yield from unchecked(reports)


def _reached(worker: Worker) -> Finding:
    server = worker.facts.sshd if worker.facts and worker.facts.sshd else "sshd"
    mpi = worker.path_mpi.banner if worker.path_mpi else "no mpirun"
    message = f"{worker.address} port {worker.port}, {server}, {mpi}"
    return ok(SERVER, message, worker.host.name)


def host_report(worker: Worker) -> HostReport:
    """Read the report of a worker's doctor, where there is one that can be read."""
    try:
        read = json.loads(worker.answer.doctor)
        found = tuple(_finding_of(worker.host.name, item) for item in read["findings"])
        session = {str(name): str(value) for name, value in read.get("session", {}).items()}
        return HostReport(worker, found, session)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return HostReport(worker)


def _finding_of(host: str, item: Json) -> Finding:
    found = replace(read_record(Finding, item), host=host, hosts=())
    if found.check in BY_REFERENCE:
        return found
    # Its mpiboot is of another version.
    return replace(found, check="worker-checks", message=f"{found.check}: {found.message}")


# --- findings to text: a table for a terminal, lines for a pipe, JSON with a version

# Raised when a field changes its meaning; new fields need no new version.
JSON_VERSION: Final = 3
HERE: Final = "this pod"
_WORST_FIRST: Final = (Level.FAIL, Level.WARN, Level.UNKNOWN, Level.OK)


def json_report(**fields: object) -> str:
    """Write a report as JSON: version, mpiboot's version, this pod, then these fields."""
    known = {"version": JSON_VERSION, "mpiboot": __version__, "host": os.uname().nodename}
    return render.as_json({**known, **fields})


def end(found: Iterable[Finding], *bad: Level) -> None:
    """End with the code 1 where a finding has one of these levels, by default FAIL.

    Raises:
        ShownError: one has; everything is printed already.
    """
    for item in found:
        if item.level in (bad or (Level.FAIL,)):
            raise ShownError(item, code=FOUND)


def report(found: Sequence[Finding], role: Role) -> str:
    """Write the findings as JSON, as docs/reference/errors.md has it."""
    here = os.uname().nodename
    findings = [
        {
            "group": BY_REFERENCE[item.check].group,
            **values(item),
            "host": item.host or ("" if item.hosts else here),
        }
        for item in found
    ]
    # A launcher compares its hosts by it.
    session = {"session": checks.session()} if role is Role.WORKER else {}
    return json_report(role=role, findings=findings, **session)


def write(found: Sequence[Finding]) -> None:
    """Print the findings: on a terminal a table, and below it what is wrong."""
    shown = found
    if os.isatty(1):
        sys.stdout.write(f"{_by_host(found)}\n")
        shown = [item for item in found if item.level is not Level.OK]
    sys.stdout.write(f"{render.findings(shown)}\n{summary(found)}\n")


def summary(found: Iterable[Finding]) -> str:
    """Count the findings, in one line."""
    levels = [item.level for item in found]
    bad, warnings, unknown = (
        levels.count(level) for level in (Level.FAIL, Level.WARN, Level.UNKNOWN)
    )
    more = f", {unknown} not known" if unknown else ""
    return f"{counted(len(levels), 'check')}: {bad} failed, {counted(warnings, 'warning')}{more}"


def cell(levels: Sequence[Level]) -> str:
    """Write a cell: the worst level, with a count unless it is OK."""
    worst = next((level for level in _WORST_FIRST if level in levels), None)
    if worst is None:
        return ""
    count = levels.count(worst)
    return f"{render.MARKS[worst]}{f' {count}' if count > 1 and worst is not Level.OK else ''}"


def _by_host(found: Sequence[Finding]) -> str:
    """Lay the levels out: hosts that are alike are a row, groups of checks are the columns."""
    rows: dict[str, dict[str, list[Level]]] = {}
    for item in found:
        for host in item.hosts or (item.host or HERE,):
            levels = rows.setdefault(host, {})
            levels.setdefault(BY_REFERENCE[item.check].group, []).append(item.level)
    groups = [name for name in TABLE if any(name in row for row in rows.values())]
    short = short_names([name for name in rows if name != HERE])
    alike = grouped(
        (tuple(cell(row.get(name, ())) for name in groups), short.get(host, host))
        for host, row in rows.items()
    )
    return render.table(("", *groups), ((first_few(of, 3), *line) for line, of in alike.items()))
