"""What doctor finds at a worker's own server, and on a launcher's hosts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mpiboot.core.checks import error
from mpiboot.core.model import Finding, Level
from mpiboot.core.settings import resolve
from mpiboot.doctor import job
from mpiboot.hosts.gate import GateResult
from mpiboot.launcher import look
from mpiboot.launcher.prepare import Observation
from mpiboot.launcher.setup import LauncherPod
from mpiboot.network.worker_pairs import Dial, Reached
from mpiboot.system.keys import JobKey
from tests.fakes import plans


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What a look at the hosts returns; a test changes it."""
    observed = plans.observed(listed=plans.hosts(2, 2, 1), local=plans.hosts(2, 2, 1)[:1])
    made = SimpleNamespace(observed=observed, findings=(), dialled=(), raises=None)

    def looked(*_: object) -> tuple[Observation, LauncherPod]:
        if made.raises:
            raise made.raises
        seen = made.observed
        passed = GateResult(seen.workers, seen.local, {}, {}, made.findings)
        pod = LauncherPod(
            *(resolve({}, {}), {}, plans.ROOT, tmp_path, 0.0),
            key=JobKey(tmp_path, "ssh-ed25519 AAAA"),
        )
        return Observation(seen, passed, cast("Any", None), made.dialled), pod

    monkeypatch.setattr(look, "look", looked)
    return made


def found_of_job() -> list[Finding]:
    return list(job.of_job(resolve({}, plans.POD), plans.POD))


def test_every_host_that_is_well_is_told_with_its_server_and_mpi(seen: SimpleNamespace) -> None:
    first, second = seen.observed.workers
    bare = replace(second, facts=None, mpi=plans.MPIS["openmpi5"])
    facts = replace(first.facts, sshd="embedded", mpi=None)
    workers = (replace(first, facts=facts), bare)
    seen.observed = replace(seen.observed, workers=workers)
    found = {
        (item.check, item.host): item.message
        for item in found_of_job()
        if item.level is Level.OK and item.check != "hosts-differ"
    }
    assert found == {
        ("hostfile-missing", ""): "the hostfile is /etc/mpi/hostfile, named by default",
        ("hostfile-invalid", ""): "3 hosts, 5 slots",
        ("names-unresolved", "w-0.job.ns.svc"): "this pod itself",
        ("workers-unreachable", "w-1.job.ns.svc"): "10.244.0.11 port 22, embedded, no mpirun",
        ("workers-unreachable", "w-2.job.ns.svc"): (
            "10.244.0.12 port 22, sshd, mpirun (Open MPI) 5.0.7"
        ),
    }


def test_what_the_gate_and_the_plan_find_is_told(seen: SimpleNamespace) -> None:
    late = Finding("worker-facts", Level.FAIL, "late", "w-1")
    seen.findings = (late,)
    first, second = seen.observed.workers
    seen.observed = replace(seen.observed, workers=(first, replace(second, address=first.address)))
    found = found_of_job()
    assert late in found
    assert "settings-conflict" in [item.check for item in found if item.level is Level.FAIL]


def test_workers_that_reach_each_other_are_told_where_it_was_tried(seen: SimpleNamespace) -> None:
    one, other = (worker.host.name for worker in seen.observed.workers)

    def messages(*reached: Reached) -> list[str]:
        here = ("10.244.0.11", "10.244.0.11", 22)
        seen.dialled = tuple(
            Dial(one, other, "10.244.0.12", 4000, 2.0, item, *here, item) for item in reached
        )
        return [item.message for item in found_of_job() if item.check == "worker-pairs"]

    good = "workers reach each other and the launcher: 1 connection tried"
    assert messages() == []
    assert messages(Reached.ANSWERED) == [good]
    bad = messages(Reached.ANSWERED, Reached.SILENT)
    assert bad
    assert not [message for message in bad if "reach each other and" in message]


def test_a_look_that_fails_is_what_is_found(seen: SimpleNamespace) -> None:
    seen.raises = error("hostfile-missing", "there is none")
    assert found_of_job() == [seen.raises.finding]


def test_a_workers_own_checks_are_told_but_for_what_the_plan_says_of_it(
    seen: SimpleNamespace,
) -> None:
    one, other = seen.observed.workers
    first, second = one.host.name, other.host.name
    assert other.facts is not None
    other = replace(other, facts=replace(other.facts, mpi=plans.MPIS["openmpi5"]))
    item = {"level": "warn", "message": "x", "evidence": [], "hint": "mend"}
    found = [{**item, "check": "shm-full"}, {**item, "check": "mpi-versions"}]
    output = json.dumps({"mpiboot": "1", "findings": found})
    workers = tuple(replace(worker, doctor=output) for worker in (one, other))
    seen.observed = replace(seen.observed, workers=workers)
    listed = [
        (item.check, " ".join(item.hosts) or item.host, item.message) for item in found_of_job()
    ]
    assert ("shm-full", f"{first} {second}", "x") in listed
    differ = "/usr/bin/mpirun: mpirun (Open MPI) 5.0.7; the launcher: mpirun (Open MPI) 4.1.4"
    assert [item for item in listed if item[0] == "mpi-versions"] == [
        ("mpi-versions", first, "x"),
        ("mpi-versions", second, differ),
    ]


def test_of_very_many_hosts_that_were_reached_their_names_are_enough(seen: SimpleNamespace) -> None:
    seen.observed = plans.observed(listed=plans.hosts(*[1] * 17))
    reached = [item for item in found_of_job() if item.check == "workers-unreachable"]
    assert [(item.level, item.message, len(item.hosts)) for item in reached] == [
        (Level.OK, "every worker answers over SSH", 17)
    ]
