"""The table of checks: one reference, one meaning, one column."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.doctor_checks import DATA_CHECKS, DOCTOR_CHECKS
from mpiboot.core.model import Finding, Level, Role
from mpiboot.core.settings import Settings
from mpiboot.doctor import columns, gather, table
from mpiboot.doctor.judge import hardware, image, pod
from mpiboot.doctor.report import FolderPart, ImagePart, MemoryPart, PodReport
from mpiboot.doctor.rows import hosts
from tests.pods.faults import FAULTS

BLANK = PodReport(Settings(), {})


def test_every_reference_stands_in_one_column() -> None:
    placed = Counter(item for listed in columns.GROUPS.values() for item in listed)
    assert set(placed) == set(BY_REFERENCE)
    assert set(placed.values()) == {1}


def test_every_check_of_doctor_has_a_row_that_looks_at_something() -> None:
    rows = [row.reference for row in table.TABLE]
    assert len(rows) == len(set(rows))
    of_hosts = [row.reference for row in (*hosts.ROWS, *hosts.MEASURED)]
    assert len(of_hosts) == len(set(of_hosts))
    assert {row.reference for row in (*DOCTOR_CHECKS, *DATA_CHECKS)} <= {*rows, *of_hosts}
    assert all(row.looks_at and row.outcomes for row in (*hosts.ROWS, *hosts.MEASURED))
    parts = {item.name for item in dataclasses.fields(PodReport)}
    for row in table.TABLE:
        assert set(row.needs) <= parts
        assert set(row.needs) <= {*gather.LOOKS, *gather.FROM_FACTS, "settings", "environ"}
        assert row.looks_at
        assert row.outcomes


def test_every_check_of_doctor_that_a_machine_can_show_has_a_broken_pod() -> None:
    # Without such hardware these have samples of others.
    samples = {"gpu-distance", "cuda-library", "imex-channels", "rdma-counters"}
    own = {row.reference for row in DOCTOR_CHECKS}
    wanted = {row.reference for row in table.TABLE if set(row.outcomes) - {Level.OK}} & own
    assert wanted - samples - {fault.check for fault in FAULTS} == set()


@pytest.mark.parametrize(
    ("role", "has", "lacks"),
    [
        (Role.WORKER, {"shm-full", "ssh-key", "rdma-port"}, set()),
        (Role.LAUNCHER, {"ssh-key", "debug-output"}, {"shm-full", "rdma-port", "gpus"}),
        (Role.NONE, {"shm-full", "ssh-key", "rdma-port", "service-mesh"}, set()),
    ],
)
def test_a_role_has_its_checks(role: Role, has: set[str], lacks: set[str]) -> None:
    found = {row.reference for row in table.chosen(role)}
    assert has <= found
    assert not lacks & found


def test_at_build_time_the_image_alone_is_judged() -> None:
    found = [row.reference for row in table.chosen(Role.NONE, at_build=True)]
    assert found == [
        "program-missing",
        "mpi-daemon",
        "shared-libraries",
        "python-modules",
        "openssh-server",
    ]


def test_only_what_is_asked_for_is_looked_at() -> None:
    (row,) = table.chosen(Role.WORKER, ("memory-limit",))
    assert row.needs == ("memory",)


def test_a_part_that_was_not_seen_is_unknown_with_its_reason() -> None:
    rows = table.chosen(Role.WORKER, ("memory-limit", "rp-filter"))
    report = dataclasses.replace(BLANK, unseen={"memory": "Permission denied", "routing": "gone"})
    assert list(table.judge(report, rows)) == [
        Finding("memory-limit", Level.UNKNOWN, "not known: Permission denied"),
        Finding("rp-filter", Level.UNKNOWN, "not known: gone; not looked at"),
    ]


def test_rows_that_share_a_judge_are_judged_once_and_in_their_order() -> None:
    rows = table.chosen(Role.WORKER, ("runtime-folder", "tmpdir", "memory-limit"))
    both = (
        Finding("tmpdir", Level.FAIL, "closed"),
        Finding("runtime-folder", Level.FAIL, "none"),
    )
    report = dataclasses.replace(
        BLANK, folder=FolderPart("", both), memory=MemoryPart(0, 1 << 20, 0)
    )
    found = [(item.check, item.level) for item in table.judge(report, rows)]
    assert found == [
        ("runtime-folder", Level.FAIL),
        ("tmpdir", Level.FAIL),
        ("memory-limit", Level.OK),
    ]


def test_of_a_judge_with_several_references_only_those_asked_for_are_told() -> None:
    seen = ImagePart(None, (), None, "3.11", ("rich",), "/bin")
    rows = table.chosen(Role.WORKER, ("python-modules",))
    report = dataclasses.replace(BLANK, image=seen)
    assert [item.check for item in table.judge(report, rows)] == ["python-modules"]
    assert {row.judge for row in table.TABLE} >= {hardware.data_network, image.programs, pod.shm}
