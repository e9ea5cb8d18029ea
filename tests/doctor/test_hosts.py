"""What doctor finds at a worker's own server, and on a launcher's hosts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpiboot.doctor import hosts
from mpiboot.errors import error
from mpiboot.gates.gate import GateResult
from mpiboot.launcher import look
from mpiboot.launcher.observation import Observation
from mpiboot.launcher.setup import LauncherPod
from mpiboot.model import Finding, Level
from mpiboot.network.worker_pairs import Dialled, Reached
from mpiboot.setting_sources import resolve
from mpiboot.system.keys import JobKey
from tests.fakes import plans
from tests.fakes.cli import mpiboot
from tests.fakes.worker import HAVE_SSH, Worker

Found = list[tuple[str, Level, str]]


def short(found: list[Finding]) -> Found:
    return [(item.check, item.level, item.said) for item in found]


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
    told = {item["check"]: item for item in json.loads(done.stdout)["findings"]}
    server = told["workers-unreachable"]
    assert server["level"] == "ok", done.stdout
    assert server["said"].startswith("embedded lets ")
    assert server["said"].endswith(f" in at 127.0.0.1 port {worker.port}")
    assert told["other-ssh-server"]["said"].startswith(f"port {worker.port} is mpiboot's, process ")
    assert told["session-limits"]["level"] in ("ok", "warn")
    told = {item["check"]: item for item in json.loads(none.stdout)["findings"]}
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
    return list(hosts.of_job(resolve({}, plans.POD), plans.POD))


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
