"""The checks of one pod: real files, programs and sockets, and outcomes that no pod shows."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from mpiboot.core.checks import BY_REFERENCE, CHECKS, DATA_CHECKS, FOUND, error
from mpiboot.core.facts import Fabric, Gpus, PodFacts
from mpiboot.core.model import Finding, Level, Role
from mpiboot.core.settings import Settings, resolve
from mpiboot.doctor import checks
from mpiboot.doctor.checks import POD, Pod, PodCheck
from mpiboot.launcher import shims
from mpiboot.ssh.server import WorkerState
from mpiboot.system import processes
from tests.fakes import plans
from tests.fakes.programs import program
from tests.fakes.worker import HAVE_SSH, make_key
from tests.fakes.workers import facts_of, sriov
from tests.pods.faults import FAULTS

_FACTS = plans.worker(plans.hosts(2)[0], 0, plans.MPIS["openmpi4"]).facts
assert _FACTS is not None
FACTS: PodFacts = _FACTS
DATA = tuple(row.reference for row in DATA_CHECKS)


def pod(worker: WorkerState | None = None, **flags: str) -> Pod:
    environ = {"PATH": flags.pop("path", "")}
    return Pod(resolve(flags, environ), environ, worker)


def shown(found: Iterable[Finding]) -> list[str]:
    """Level and sentence; what is not well has a hint."""
    listed = list(found)
    assert all(item.hint or item.level is Level.OK for item in listed)
    assert all(item.check in BY_REFERENCE for item in listed)
    return [f"{item.level.value}: {item.message}" for item in listed]


def test_every_check_has_one_judge_and_what_a_machine_can_show_a_broken_pod() -> None:
    names = [name for row in POD for name in row.references]
    assert len(set(names)) == len(names)
    assert set(DATA) <= set(names) <= set(BY_REFERENCE)
    of_doctor = {row.reference for row in CHECKS if row.code == FOUND}
    assert set(names) & of_doctor <= {fault.check for fault in FAULTS}


def test_a_role_has_its_checks() -> None:
    def listed(which: Role) -> set[str]:
        return {name for row in checks.chosen(which) for name in row.references}

    workers = {"shm-full", "rdma-port", "gpus"}
    assert listed(Role.WORKER) >= {"ssh-key", "memory-limit", *workers}
    assert listed(Role.LAUNCHER) >= {"ssh-key", "memory-limit", "shims"}
    assert not listed(Role.LAUNCHER) & workers
    assert listed(Role.NONE) == listed(Role.WORKER) | listed(Role.LAUNCHER)
    (row,) = checks.chosen(Role.NONE, checks.IMAGE)
    assert row.references == ("program-missing", "mpi-daemon", "shared-libraries")
    (row,) = checks.chosen(Role.WORKER, ("tmpdir",))
    assert row.references == ("tmpdir",)


def test_a_check_that_hangs_or_fails_leaves_the_others() -> None:
    never = threading.Event()

    def hangs(_: Pod) -> Iterator[Finding]:
        never.wait()
        yield from ()

    def bug(_: Pod) -> Iterator[Finding]:
        yield from dict[str, list[Finding]]()["bug"]

    def denied(_: Pod) -> Iterator[Finding]:
        raise PermissionError(13, "Permission denied")

    def wrong(_: Pod) -> Iterator[Finding]:
        raise error("usage", "no such thing")

    def good(_: Pod) -> Iterator[Finding]:
        yield checks.ok("gpus", "8 GPUs")

    judges = (hangs, bug, denied, wrong, good)
    found = list(checks.run([PodCheck(("shm",), judge) for judge in judges], pod(), 2.0))
    never.set()
    assert [item.message for item in found] == [
        "not known: no answer within 2s",
        "not known: internal error: KeyError: 'bug'",
        "not known: Permission denied",
        "no such thing",
        "8 GPUs",
    ]
    levels = [Level.UNKNOWN] * 3 + [Level.FAIL, Level.OK]
    assert [item.level for item in found] == levels


def test_a_pod_that_may_start_no_thread_is_checked_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = Mock(side_effect=RuntimeError("can't start new thread"))
    monkeypatch.setattr(threading.Thread, "start", full)
    (found,) = checks.run(checks.chosen(Role.WORKER, ("shm-full",)), pod(), 2.0)
    assert re.fullmatch(r"\S+ \S+ of \S+ \S+ in /dev/shm in use", found.message)


def test_an_image(tmp_path: Path) -> None:
    def found(path: str) -> list[str]:
        return shown(checks.image(pod(path=path)))

    first, *_ = checks.image(pod(path=str(tmp_path)))
    none = ("no mpirun or mpiexec on PATH", (f"PATH={tmp_path}",))
    assert (first.message, first.evidence) == none
    mpirun, bins = tmp_path / "mpirun", f"{tmp_path}:/usr/bin:/bin"
    program(tmp_path, "mpirun", "echo 'prterun (Open MPI) 5.0.7'")
    assert f"fail: {mpirun} has no prted beside it or on PATH" in found(str(tmp_path))
    program(tmp_path, "mpirun", "echo 'mpirun (Open MPI) 4.1.6'")
    program(tmp_path, "orted", "")
    program(tmp_path, "ldd", f'[ $1 != {mpirun} ] || echo " libhwloc.so.15 => not found"')
    first, second, third = checks.image(pod(path=bins))
    assert first.message == f"mpirun is {mpirun}, mpirun (Open MPI) 4.1.6"
    assert second.message == f"orted is {tmp_path}/orted"
    assert third.message == f"{mpirun} does not find all of its shared libraries"
    assert third.evidence == ("libhwloc.so.15 => not found",)
    program(tmp_path, "ldd", "")
    assert re.match("ok: shared libraries: all are found for mpirun, .*orted$", found(bins)[2])
    program(tmp_path, "mpirun", "echo 'unknown MPI'")
    assert not [line for line in found(bins) if "beside it" in line]


def test_the_folder_is_made_and_goes_with_those_of_runs_that_were_killed(tmp_path: Path) -> None:
    given = pod(runtime_dir=str(tmp_path / "run"))
    (seen,) = checks.folder(given)
    (made,) = tmp_path.rglob(checks.role_name())
    assert (seen.level, seen.message) == (Level.OK, f"the private folder is {made}")
    nobody = int(Path("/proc/sys/kernel/pid_max").read_text()) + 1
    others = ["doctor-1", "launcher"]  # the first process is always there
    for name in (f"doctor-{nobody}", *others):
        (made.parent / name).mkdir()
        (made.parent / name / "id").touch()
    checks.remove_folder(given.resolved.settings, {})
    assert sorted(path.name for path in made.parent.iterdir()) == sorted(others)


@pytest.mark.skipif(not HAVE_SSH, reason="no ssh-keygen")
def test_a_key_is_seen_with_type_mode_and_owner(tmp_path: Path) -> None:
    path = make_key(tmp_path / "id_rsa", "-t", "ecdsa")
    path.chmod(0o644)
    given = pod(ssh_key=str(path))
    (seen,) = checks.key(given)
    assert re.fullmatch(
        rf"the key is {path}, ecdsa-sha2-nistp256 SHA256:\S+, mode 0644 of uid {os.getuid()}",
        seen.message,
    )
    path.write_text("no key")
    rows = checks.chosen(Role.NONE, ("ssh-key",))
    (wrong,) = checks.run(rows, given, 30.0)
    assert (wrong.check, wrong.level) == ("ssh-key", Level.FAIL)
    path.unlink()
    assert shown(checks.run(rows, given, 30.0)) == [f"fail: no private SSH key in {path}"]


def test_an_mpirun_that_passed_mpiboot_by_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shims, "passed_by", lambda: "passed by")
    assert shown(checks.shims(pod())) == ["warn: passed by"]


def test_a_session_has_the_limits_of_its_process() -> None:
    rows = dict(re.findall("\nMax (.*?)  +([^ ]+)", Path("/proc/self/limits").read_text()))
    own = {name: rows[name] for name in checks.LIMITS}
    assert checks.session() == {"uid": str(os.getuid()), **own}


@pytest.mark.parametrize(
    ("kills", "messages"),
    [
        (0, ["ok: the kernel killed no process here for want of memory"]),
        (2, ["warn: out of memory: the kernel killed 2 processes here"]),
        (None, ["unknown: memory kills: no control group of this container can be read"]),
    ],
)
def test_memory(monkeypatch: pytest.MonkeyPatch, kills: int | None, messages: list[str]) -> None:
    monkeypatch.setattr(processes, "memory_kills", lambda: kills)
    assert shown(checks.memory(pod())) == messages


# Rules that compare workers find nothing at one.
SMALL = replace(FACTS, shm=64 << 20, gpus=Gpus(2))


@pytest.mark.parametrize(
    ("judge", "expected"),
    [
        (
            lambda: checks.data_network(SMALL, Settings()),
            [
                "warn: /dev/shm has 64 MiB for 2 ranks",
                "ok: no usable RDMA port; data goes over TCP",
            ],
        ),
        (
            lambda: checks.data_network(facts_of(sriov(0)), Settings()),
            ["ok: 1 RoCE port: mlx5_3:1"],
        ),
        (lambda: checks.gpus(FACTS), []),
        (lambda: checks.gpus(replace(FACTS, gpus=Gpus(8))), ["ok: 8 GPUs"]),
    ],
)
def test_facts(judge: Callable[[], Iterable[Finding]], expected: list[str]) -> None:
    assert shown(judge()) == expected


def test_unknown_rdma_is_not_called_none() -> None:
    facts = replace(FACTS, fabric=Fabric(refused="EPERM"))
    (found,) = checks.data_network(facts, Settings())
    assert found.check == "data-facts"
