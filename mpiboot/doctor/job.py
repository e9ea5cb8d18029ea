"""The checks of a pod, and those of a launcher's hosts."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from mpiboot.core.checks import BY_REFERENCE, MpibootError
from mpiboot.core.facts import Host, Worker
from mpiboot.core.model import Finding, Json, Role
from mpiboot.core.records_json import read_record
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import counted
from mpiboot.doctor import hosts
from mpiboot.doctor import pod as own_pod
from mpiboot.doctor.checks import DoctorCheck, judge_all, of_area, ok
from mpiboot.doctor.hosts import HostReport, merged
from mpiboot.hosts import gate, host_shell
from mpiboot.job import plan as plans
from mpiboot.job.plan_input import LaunchPaths
from mpiboot.launcher import launch_folder, look
from mpiboot.launcher.observation import Observation

# Of one pod; of a job's hosts beside each other.
POD: Final = of_area(own_pod)
HOSTS: Final = of_area(hosts)


def chosen(
    role: Role, only: Collection[str] = (), *, at_build: bool = False
) -> tuple[DoctorCheck, ...]:
    """Select the checks of a pod of this role; with ``only`` those of these references.

    A pod without a role may become either.
    """
    found = (
        replace(row, references=tuple(name for name in row.references if not only or name in only))
        for row in POD
        if (row.at_build or not at_build) and (role is Role.NONE or row.role in (None, role))
    )
    return tuple(row for row in found if row.references)


SERVER: Final = "workers-unreachable"
# The query that each host gets beside the gate's.
QUERIES: Final = ("doctor",)
# The plan's checks don't depend on the program.
ANY_PROGRAM: Final = ("mpirun", "true")


def of_job(resolved: Resolved, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the hostfile and every host of it, as far as this pod allows.

    Raises:
        KeyboardInterrupt: after the findings of the hosts that had answered.
    """
    try:
        seen, launcher = look.look(resolved, ANY_PROGRAM, environ, QUERIES)
    except MpibootError as error:
        yield from (error.finding, *error.others)
        return
    file = seen.observed.hostfile
    yield ok("hostfile-missing", f"the hostfile is {file.path}, named by {file.named_by}")
    yield ok("hostfile-invalid", file.size)
    yield from seen.warnings
    planned = list(_planned(seen, resolved, launch_folder.paths(launcher.folder)))
    yield from _passed(file.hosts, seen.passed, planned)
    yield from planned
    if seen.passed.unasked:
        raise KeyboardInterrupt  # deferred by the gate until the answers were printed


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
    left_out = (*passed.local, *passed.unasked)
    workers = {worker.host.name: worker for worker in passed.workers}
    reports = []
    for name in (one.name for one in listed if one not in left_out):
        attempt = passed.answers.get(name)
        answer = host_shell.read(attempt.output if attempt else "")
        reports.append(with_doctor(HostReport(name, workers.get(name)), answer.doctor))
    known = {(item.check, name) for item in planned for name in (item.host, *item.hosts)}
    own = (item for one in reports for item in one.checks or ())
    yield from merged(item for item in own if (item.check, item.host) not in known)
    yield from judge_all(HOSTS, {"hosts": reports}, {})


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
