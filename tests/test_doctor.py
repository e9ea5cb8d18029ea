"""`mpiboot doctor`: what it finds in this pod, at its own server, and on a launcher's hosts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpiboot import doctor, shims
from mpiboot.errors import ShownError, error
from mpiboot.gates.gate import GateResult
from mpiboot.launcher import look
from mpiboot.launcher.observation import Observation
from mpiboot.launcher.setup import LauncherPod
from mpiboot.model import Finding, Level, Mesh, Role
from mpiboot.network.worker_pairs import Dialled, Reached
from mpiboot.observe import service_mesh
from mpiboot.setting_sources import resolve
from mpiboot.system.keys import JobKey
from tests.fakes import plans
from tests.fakes.cli import mpiboot
from tests.fakes.worker import HAVE_SSH, Worker

Found = list[tuple[str, Level, str]]


def short(found: list[Finding]) -> Found:
    return [(item.check, item.level, item.said) for item in found]


# -- this pod --------------------------------------------------------------------------------------


def own(folder: Path, environ: Mapping[str, str]) -> dict[str, list[Finding]]:
    flags = {"runtime_dir": str(folder / "run"), "ssh_key": str(folder / "none")}
    told: dict[str, list[Finding]] = {}
    for item in doctor._own(resolve(flags, environ), environ):
        told.setdefault(item.check, []).append(item)
    return told


def program(folder: Path, name: str, text: str = "#!/bin/sh\n") -> str:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return str(folder / name)


def test_what_this_pod_has_is_told_with_its_place(tmp_path: Path) -> None:
    ssh = program(tmp_path, "ssh")
    mpirun = program(tmp_path, "mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.6'\n")
    told = own(tmp_path, {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert [item.said for item in told["program-missing"]] == [
        f"mpirun is {mpirun}, mpirun (Open MPI) 4.1.6",
        f"ssh is {ssh}",
    ]
    (folder,) = told["runtime-folder"]
    assert folder.level is Level.OK
    made = Path(folder.said.removeprefix("the private folder is "))
    assert made.is_dir()
    assert (made.is_relative_to(tmp_path / "run"), made.name) == (True, "doctor")
    assert told["ssh-key"][0].level is Level.FAIL


def test_what_this_pod_lacks_is_told_and_a_worker_needs_no_ssh(tmp_path: Path) -> None:
    mpi, ssh = own(tmp_path, {"PATH": str(tmp_path)})["program-missing"]
    assert (mpi.level, mpi.said) == (Level.FAIL, "no mpirun or mpiexec in a folder of PATH")
    assert (ssh.level, ssh.said) == (Level.OK, "no ssh on PATH; only a launcher needs one")


@pytest.mark.parametrize(
    ("effects", "passed_by", "told"),
    [
        (("", ""), "", []),
        (("mpirun is mpiboot", ""), "", [(Level.OK, "mpirun is mpiboot")]),
        (
            ("mpirun is mpiboot", "mpiexec is not"),
            "called by its path",
            [
                (Level.OK, "mpirun is mpiboot"),
                (Level.WARN, "mpiexec is not"),
                (Level.WARN, "called by its path"),
            ],
        ),
    ],
)
def test_of_shims_it_is_told_which_work_and_what_went_past_them(
    monkeypatch: pytest.MonkeyPatch,
    effects: tuple[str, str],
    passed_by: str,
    told: list[tuple[Level, str]],
) -> None:
    monkeypatch.setattr(shims, "effects", lambda _: effects)
    monkeypatch.setattr(shims, "passed_by", lambda: passed_by)
    found = doctor._shims({})
    assert [(item.level, item.said) for item in found] == told
    assert all(bool(item.hint) == (item.level is Level.WARN) for item in found)


def test_where_no_shim_can_lead_to_mpiboot_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def effects(_: object) -> tuple[str, str]:
        raise error("program-missing", "it was not installed")

    monkeypatch.setattr(shims, "effects", effects)
    monkeypatch.setattr(shims, "passed_by", lambda: "")
    assert doctor._shims({}) == []


@pytest.mark.parametrize(
    ("flags", "mounted", "role"),
    [
        ({"role": "worker"}, False, Role.WORKER),
        ({"role": "launcher"}, False, Role.LAUNCHER),
        ({}, True, Role.LAUNCHER),
        ({}, False, Role.NONE),
    ],
)
def test_a_hostfile_is_reason_enough_to_look_at_its_hosts(
    tmp_path: Path,
    flags: dict[str, str],
    mounted: bool,  # noqa: FBT001 - a row of the table
    role: Role,
) -> None:
    hostfile = tmp_path / "hostfile"
    if mounted:
        hostfile.touch()
    assert doctor._role(resolve({**flags, "hostfile": str(hostfile)}, {}), {}) is role


@pytest.mark.parametrize(("name", "role"), [("train-0", Role.LAUNCHER), ("train-1", Role.WORKER)])
def test_a_pod_whose_role_goes_by_its_number_is_known_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, role: Role
) -> None:
    uname = os.uname_result(("Linux", name, "", "", ""))
    monkeypatch.setattr(os, "uname", lambda: uname)
    flags = {"role": "by-index", "hostfile": str(tmp_path / "none")}
    assert doctor._role(resolve(flags, {}), {}) is role


@pytest.mark.parametrize(
    ("role", "looked"), [("worker", True), ("none", True), ("launcher", False)]
)
def test_a_proxy_in_front_of_this_pod_is_told_but_by_a_launchers_plan(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    role: str,
    looked: bool,  # noqa: FBT001 - a row of the table
) -> None:
    monkeypatch.setattr(service_mesh, "look", lambda: Mesh("Istio", ("its proxy runs",)))
    monkeypatch.setattr(doctor, "_server", lambda *_: "it lets me in")
    monkeypatch.setattr(doctor, "_job", lambda *_: [Finding("slots", Level.OK, "of the job")])
    flags = {"role": role, "runtime_dir": str(tmp_path / "run"), "ssh_key": str(tmp_path / "none")}
    environ = {"PATH": str(tmp_path)}
    found = short(doctor._look(resolve(flags, environ), environ))
    assert bool([item for item in found if item[0] == "service-mesh"]) == looked
    assert (("slots", Level.OK, "of the job") in found) == (role == "launcher")
    server = ("workers-unreachable", Level.OK, "it lets me in")
    assert (server in found) == (role == "worker")


# -- a worker's own server -------------------------------------------------------------------------


@pytest.mark.skipif(not HAVE_SSH, reason="no ssh-keygen")
def test_a_workers_own_server_is_logged_in_to(tmp_path: Path) -> None:
    worker = Worker(tmp_path / "worker", "embedded").start().listens()
    environ = {
        "MPIBOOT_ROLE": "worker",
        "MPIBOOT_SSH_KEY": str(worker.mount),
        "MPIBOOT_WORKER_DIR": str(worker.runtime),
        "MPIBOOT_CONTROL_IFNAME": "127.0.0.1",
    }
    try:
        done = mpiboot(tmp_path, "doctor", "--json", env=environ)
        none = mpiboot(
            tmp_path, "doctor", "--json", env={**environ, "MPIBOOT_WORKER_DIR": str(tmp_path)}
        )
    finally:
        worker.stop()
    told = {item["check"]: item for item in json.loads(done.stdout)}
    server = told["workers-unreachable"]
    assert server["level"] == "ok", done.stdout
    assert server["said"].startswith("embedded lets ")
    assert server["said"].endswith(f" in at 127.0.0.1 port {worker.port}")
    told = {item["check"]: item for item in json.loads(none.stdout)}
    assert told["workers-unreachable"]["level"] == "fail"
    said = f"no SSH server of mpiboot's runs in this pod: nothing is in {tmp_path}"
    assert told["workers-unreachable"]["said"] == said


# -- a launcher's hosts ----------------------------------------------------------------------------


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a look at the hosts returns; a test changes it."""
    observed = plans.observed(listed=plans.hosts(2, 2, 1), local=plans.hosts(2, 2, 1)[:1])
    found: dict[str, Any] = {"observed": observed, "findings": (), "dialled": (), "raises": None}

    def looked(*_: object) -> tuple[Observation, LauncherPod]:
        if found["raises"]:
            raise found["raises"]
        observed = found["observed"]
        passed = GateResult(observed.workers, observed.local, {}, {}, found["findings"])
        pod = LauncherPod(
            resolve({}, {}), {}, plans.ROOT, tmp_path, JobKey(tmp_path, "ssh-ed25519 A"), 0.0, 1
        )
        return Observation(observed, passed, (), dialled=found["dialled"]), pod

    monkeypatch.setattr(look, "look", looked)
    return found


def job() -> list[Finding]:
    return doctor._job(resolve({}, plans.POD), plans.POD)


def test_every_host_that_is_well_is_told_with_its_server_and_mpi(seen: dict[str, Any]) -> None:
    first, second = seen["observed"].workers
    bare = replace(second, facts=None, mpi=plans.MPIS["openmpi5"])
    facts = replace(first.facts, sshd="embedded", mpi=None)
    workers = (replace(first, facts=facts), bare)
    seen["observed"] = replace(seen["observed"], workers=workers)
    found = {(item.check, item.host): item.said for item in job() if item.level is Level.OK}
    assert found == {
        ("hostfile-missing", ""): "the hostfile is /etc/mpi/hostfile, named by default",
        ("hostfile-invalid", ""): "3 hosts, 5 slots",
        ("names-unresolved", "w-0.job.ns.svc"): "this pod itself",
        ("workers-unreachable", "w-1.job.ns.svc"): "10.244.0.11 port 22, embedded, no mpirun",
        ("workers-unreachable", "w-2.job.ns.svc"): (
            "10.244.0.12 port 22, sshd, mpirun (Open MPI) 5.0.7"
        ),
    }


def test_what_the_gate_and_the_plan_find_is_told(seen: dict[str, Any]) -> None:
    late = Finding("worker-facts", Level.FAIL, "late", "w-1")
    seen["findings"] = (late,)
    first, second = seen["observed"].workers
    seen["observed"] = replace(
        seen["observed"], workers=(first, replace(second, address=first.address))
    )
    found = job()
    assert late in found
    assert "settings-conflict" in [item.check for item in found if item.level is Level.FAIL]


@pytest.mark.parametrize(
    ("reached", "told"),
    [
        ((), None),
        ((Reached.ANSWERED,), "workers reach each other: 1 connection tried"),
        ((Reached.ANSWERED, Reached.SILENT), None),
    ],
)
def test_workers_that_reach_each_other_are_told_where_it_was_tried(
    seen: dict[str, Any], reached: tuple[Reached, ...], told: str | None
) -> None:
    one, other = (worker.host.name for worker in seen["observed"].workers)
    seen["dialled"] = tuple(
        Dialled(one, other, "10.244.0.12", 4000, 2.0, item, "10.244.0.11", "10.244.0.11", 22, item)
        for item in reached
    )
    said = [item.said for item in job() if item.check == "worker-pairs"]
    good = [item for item in said if "reach each other:" in item]
    assert good == ([told] if told else [])
    assert bool(said) == bool(reached)


def test_a_look_that_fails_is_what_is_found(seen: dict[str, Any]) -> None:
    seen["raises"] = error("hostfile-missing", "there is none")
    assert short(job()) == [("hostfile-missing", Level.FAIL, "there is none")]


# -- how it is told --------------------------------------------------------------------------------


def test_the_first_failure_is_its_end_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = [
        Finding("slots", Level.OK, "fine"),
        Finding("slots", Level.WARN, "odd"),
        Finding("ssh-key", Level.FAIL, "no key"),
        Finding("slots", Level.FAIL, "too few"),
    ]
    monkeypatch.setattr(doctor, "_look", lambda *_: found)
    flags = {"runtime_dir": str(tmp_path)}
    with pytest.raises(ShownError) as caught:
        doctor.run(resolve(flags, {}), {}, as_json=False)
    assert caught.value.finding == found[2]
    assert capsys.readouterr().out.endswith("\n\n4 checks: 2 failed, 1 warning\n")
    del found[2:]
    doctor.run(resolve(flags, {}), {}, as_json=True)
    assert [item["said"] for item in json.loads(capsys.readouterr().out)] == ["fine", "odd"]
