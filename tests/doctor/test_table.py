"""The checks of doctor: each has a row of the table, a part to judge, and a role."""

from __future__ import annotations

from mpiboot.core.checks import CHECKS, DATA_CHECKS, ExitCode
from mpiboot.core.model import Finding, Level, Role
from mpiboot.doctor import job, role
from mpiboot.doctor.checks import POD, judge_all
from tests.pods.faults import FAULTS

OF_DOCTOR = {row.reference for row in CHECKS if row.code is ExitCode.FOUND}
OF_DOCTOR -= {row.reference for row in CHECKS if row.group == "validate"}


def test_every_check_of_doctor_is_judged_once_from_what_is_gathered() -> None:
    listed = [(name, row) for row in (*POD, *job.HOSTS) for name in row.references]
    names = [name for name, _ in listed]
    assert len(set(names)) == len(names)
    data = {row.reference for row in DATA_CHECKS}
    assert OF_DOCTOR | data <= set(names)
    shown = {fault.check for fault in FAULTS} | data
    assert [name for name, row in listed if "Looks at " not in (row.judge.__doc__ or "")] == [
        name for name in names if name in shown
    ]
    gathered = {*role.PARTS, "settings", "environ"}
    assert {name for row in POD for name in row.needs} == gathered
    assert {name for row in job.HOSTS for name in row.needs} == {"hosts"}


def test_every_check_of_doctor_that_a_machine_can_show_has_a_broken_pod() -> None:
    wanted = {name for row in POD for name in row.references} & OF_DOCTOR
    assert wanted <= {fault.check for fault in FAULTS}


def test_a_role_has_its_checks() -> None:
    def checks(which: Role) -> set[str]:
        return {name for row in job.chosen(which) for name in row.references}

    workers = {"shm-full", "rdma-port", "gpus"}
    assert checks(Role.WORKER) >= {"ssh-key", "memory-limit", *workers}
    assert checks(Role.LAUNCHER) >= {"ssh-key", "memory-limit", "shims"}
    assert not checks(Role.LAUNCHER) & workers
    assert checks(Role.NONE) == checks(Role.WORKER) | checks(Role.LAUNCHER)


def test_the_checks_of_a_build_and_those_that_are_asked_for() -> None:
    found = [row.references for row in job.chosen(Role.NONE, at_build=True)]
    assert found == [("program-missing",), ("mpi-daemon",), ("shared-libraries",)]
    (row,) = job.chosen(Role.WORKER, ("memory-limit",))
    assert row.needs == ("memory",)
    (row,) = job.chosen(Role.WORKER, ("tmpdir",))
    assert row.references == ("tmpdir",)


def test_checks_are_judged_in_their_order_and_without_their_part_unknown_with_the_reason() -> None:
    rows = job.chosen(Role.WORKER, ("runtime-folder", "tmpdir", "memory-limit", "named-links"))
    both = (Finding("runtime-folder", Level.FAIL, "none"), Finding("tmpdir", Level.FAIL, "closed"))
    parts = {"folder": both, "memory": 0}
    found = list(judge_all(rows, parts, {"facts": "gone"}))
    assert [(item.check, item.level) for item in found] == [
        ("runtime-folder", Level.FAIL),
        ("tmpdir", Level.FAIL),
        ("memory-limit", Level.OK),
        ("named-links", Level.UNKNOWN),
    ]
    assert found[-1].message == "not known: not observed; gone"
