"""The table of checks: one reference, one meaning, one column."""

from __future__ import annotations

from collections import Counter

import pytest

from mpiboot.core.checks import CHECKS, DATA_CHECKS, ExitCode
from mpiboot.core.model import Finding, Level, Role
from mpiboot.doctor import job, role
from mpiboot.doctor.checks import BY_REFERENCE, judge_all
from mpiboot.doctor.pod import MemoryPart
from tests.pods.faults import FAULTS

OF_JOBS = {row.reference for row in CHECKS}
OF_DOCTOR = set(BY_REFERENCE) - OF_JOBS


def test_every_reference_stands_in_one_column() -> None:
    placed = Counter(item for listed in job.GROUPS.values() for item in listed)
    assert set(placed) == set(job.CHECKS)
    assert set(placed.values()) == {1}


@pytest.mark.parametrize("reference", sorted(OF_DOCTOR))
def test_what_doctor_alone_looks_at_says_what_holds_and_what_to_do(reference: str) -> None:
    row = BY_REFERENCE[reference]
    assert row.code is ExitCode.FOUND
    assert row.title
    assert row.hint
    assert not row.title.endswith(".")
    assert not row.hint.endswith(".")
    assert "\n" not in row.hint + row.title


def test_every_check_of_doctor_looks_at_something_that_is_gathered() -> None:
    rows = [name for row in job.POD for name in row.references]
    of_hosts = [name for row in job.HOSTS for name in row.references]
    assert max(Counter((*rows, *of_hosts)).values()) == 1
    data = {row.reference for row in DATA_CHECKS}
    assert OF_DOCTOR | data <= {*rows, *of_hosts}
    shown = {fault.check for fault in FAULTS} | data
    listed = [(name, row) for row in (*job.POD, *job.HOSTS) for name in row.references]
    assert [name for name, row in listed if "Looks at " not in (row.judge.__doc__ or "")] == [
        name for name, _ in listed if name in shown
    ]
    gathered = {*role.PARTS, "settings", "environ"}
    assert {name for row in job.POD for name in row.needs} == gathered
    assert {name for row in job.HOSTS for name in row.needs} == {"hosts"}


def test_every_check_of_doctor_that_a_machine_can_show_has_a_broken_pod() -> None:
    wanted = {name for row in job.POD for name in row.references} & OF_DOCTOR
    assert wanted <= {fault.check for fault in FAULTS}


@pytest.mark.parametrize(
    ("role", "has", "lacks"),
    [
        (Role.WORKER, {"shm-full", "ssh-key", "rdma-port", "gpus"}, set()),
        (Role.LAUNCHER, {"ssh-key", "memory-limit"}, {"shm-full", "rdma-port", "gpus"}),
        (Role.NONE, {"shm-full", "ssh-key", "rdma-port", "gpus"}, set()),
    ],
)
def test_a_role_has_its_checks(role: Role, has: set[str], lacks: set[str]) -> None:
    found = {name for row in job.chosen(role) for name in row.references}
    assert has <= found
    assert not lacks & found


def test_at_build_time_the_image_alone_is_judged() -> None:
    found = [row.references for row in job.chosen(Role.NONE, at_build=True)]
    assert found == [("program-missing",), ("mpi-daemon",), ("shared-libraries",)]


def test_only_what_is_asked_for_is_looked_at() -> None:
    (row,) = job.chosen(Role.WORKER, ("memory-limit",))
    assert row.needs == ("memory",)
    (row,) = job.chosen(Role.WORKER, ("tmpdir",))
    assert row.references == ("tmpdir",)


def test_a_part_that_was_not_seen_is_unknown_with_its_reason() -> None:
    rows = job.chosen(Role.WORKER, ("memory-limit", "named-links"))
    unseen = {"memory": "Permission denied", "facts": "gone"}
    assert list(judge_all(rows, {}, unseen)) == [
        Finding("memory-limit", Level.UNKNOWN, "not known: Permission denied"),
        Finding("named-links", Level.UNKNOWN, "not known: not observed; gone"),
    ]


def test_checks_are_judged_in_their_order() -> None:
    rows = job.chosen(Role.WORKER, ("runtime-folder", "tmpdir", "memory-limit"))
    both = (Finding("runtime-folder", Level.FAIL, "none"), Finding("tmpdir", Level.FAIL, "closed"))
    parts = {"folder": both, "memory": MemoryPart(0, 1 << 20, 0)}
    found = [(item.check, item.level) for item in judge_all(rows, parts, {})]
    assert found == [
        ("runtime-folder", Level.FAIL),
        ("tmpdir", Level.FAIL),
        ("memory-limit", Level.OK),
    ]
