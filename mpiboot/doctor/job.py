"""A launcher's hosts: each as its own doctor reports it, and compared with each other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mpiboot.core.checks import BY_REFERENCE, MpibootError
from mpiboot.core.facts import Host, Link, Worker
from mpiboot.core.model import Finding, Json, Level, read_record
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import counted, grouped, majority
from mpiboot.doctor.checks import ok, role_name, warned
from mpiboot.hosts import gate
from mpiboot.job import plan as plans
from mpiboot.job.plan_input import LaunchPaths
from mpiboot.launcher import look, setup
from mpiboot.launcher.prepare import Observation
from mpiboot.network.worker_network import link_of


@dataclass(frozen=True, slots=True)
class HostReport:
    """One host of the hostfile; ``worker`` is None where it was not reached.

    ``checks`` are its doctor's findings, and ``session`` is what hosts are compared by, as a
    session there has it (None: it has no doctor).
    """

    host: str
    worker: Worker | None = None
    checks: tuple[Finding, ...] | None = None
    session: Mapping[str, str] | None = None


_MAX_HOST_LINES: Final = 16  # where each host has another message
_NO_LINK: Final = "none"
_LIMITS: Final = (
    "give the container runtime the same limits on all nodes (LimitMEMLOCK, LimitNOFILE, "
    "LimitNPROC)"
)


def _values(one: HostReport, worker: Worker, links: Iterable[str]) -> dict[str, str]:
    """List a host's known values by name; the plan compares MPI, devices and control links."""
    known = worker.facts.mpiboot if worker.facts else "another"
    found = {"version of mpiboot": known if worker.runs_mpiboot else "none"}
    found |= {f"{name} of a session": value for name, value in (one.session or {}).items()}
    if worker.facts:
        mtus = {link.name: f"MTU {link.mtu}" for link in _data_links(worker)}
        found |= {f"link {name}": mtus.get(name, _NO_LINK) for name in links}
    return found


def _data_links(worker: Worker) -> list[Link]:
    listed = worker.facts.links if worker.facts else ()
    control = link_of(worker.address, listed)
    return [link for link in listed if link is not control]


def differ(hosts: Sequence[HostReport]) -> Iterable[Finding]:
    """Find hosts whose value of something is not that of most others."""
    reached = [(one, one.worker) for one in hosts if one.worker]
    links = sorted({link.name for _, worker in reached for link in _data_links(worker)})
    every = {one.host: _values(one, worker, links) for one, worker in reached}
    differs = False
    for name in dict.fromkeys(name for values in every.values() for name in values):
        found = majority({host: values[name] for host, values in every.items() if name in values})
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
    unknown = grouped(
        (one.worker.runs_mpiboot, one.host) for one in hosts if one.worker and one.checks is None
    )
    for runs_mpiboot, which in unknown.items():
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
        seen, launcher = look.look(resolved, ANY_PROGRAM, environ, QUERIES, role_name())
    except MpibootError as error:
        yield from (error.finding, *error.others)
        return
    file = seen.observed.hostfile
    yield ok("hostfile-missing", f"the hostfile is {file.path}, named by {file.named_by}")
    yield ok("hostfile-invalid", file.size)
    planned = list(_planned(seen, resolved, setup.paths(launcher.folder)))
    yield from _passed(file.hosts, seen.passed, planned)
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


def _passed(
    listed: Sequence[Host], passed: gate.GateResult, planned: Sequence[Finding]
) -> Iterator[Finding]:
    """Report how each host was reached, the findings of its doctor, and how hosts differ."""
    yield from (ok("names-unresolved", "this pod itself", one.name) for one in passed.local)
    yield from merged(map(_reached, passed.workers))
    yield from passed.findings
    workers = {worker.host.name: worker for worker in passed.workers}
    reports = []
    for name in (one.name for one in listed if one not in passed.local):
        worker = workers.get(name)
        reports.append(with_doctor(HostReport(name, worker), worker.doctor if worker else ""))
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


def with_doctor(report: HostReport, text: str) -> HostReport:
    """Add the report of a worker's doctor, where there is one that can be read."""
    try:
        read = json.loads(text)
        checks = tuple(_finding_of(report.host, item) for item in read["findings"])
        session = {str(name): str(value) for name, value in read.get("session", {}).items()}
        return replace(report, checks=checks, session=session)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return report


def _finding_of(host: str, item: Json) -> Finding:
    found = replace(read_record(Finding, item), host=host, hosts=())
    if found.check in BY_REFERENCE:
        return found
    # Its mpiboot is of another version.
    return replace(found, check="worker-checks", message=f"{found.check}: {found.message}")
