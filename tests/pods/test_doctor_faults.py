"""Broken pods, one fault each: doctor names that fault and no other."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mpiboot.core.checks import BY_REFERENCE
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.fault import Fault
from tests.pods.faults import JOBS, PODS
from tests.pods.faults_job import JobFault
from tests.pods.oci import PodSpec
from tests.pods.operator import KeyPair, mpijob
from tests.pods.pod import Pod
from tests.pods.volumes import Files
from tests.waiting import until

Found = list[dict[str, Any]]

DOCTOR = ("mpiboot", "doctor", "--json")
HEALTHY = Fault(what="nothing", check="", level="ok", message="")
# A guard against a hang only, many times what it takes.
PATIENCE = 60


@pytest.fixture(scope="module")
def hospital(rig: None) -> Iterator[Cluster]:
    """One cluster for all rows: a pod each, none of which needs another."""
    with Cluster() as made:
        yield made


def broken(cluster: Cluster, fault: Fault) -> Pod:
    """The pod of a row, as the row says, not yet started."""
    image = images.image("openmpi-4.1")
    script = "; ".join(filter(None, (fault.before, "exec " + shlex.join(DOCTOR))))
    details = dict(fault.pod)
    volumes = list(details.pop("volumes", ()))
    if fault.key is not None:
        files = {**KeyPair.make().files(), **fault.key}
        volumes.append(Files(fault.key_path, files, fault.key_mode))
    spec = PodSpec(
        name=f"p{len(cluster.pods)}",
        image=image.without(*fault.without) if fault.without else image,
        command=fault.runs or ("sh", "-ec", script),
        volumes=volumes,
    )
    pod = cluster.pod(replace(spec, **details))
    for line in fault.network:
        if line.startswith("down "):
            pod.link_down(line.removeprefix("down "))
        else:
            pod.network.run(*line.split())
    return pod


def diagnosed(pod: Pod, fault: Fault) -> tuple[int, Found]:
    """Doctor's exit code, and what it found."""
    pod.start()
    if fault.runs:
        until(lambda: fault.until in pod.stderr() or not pod.running, PATIENCE, fault.until)
        assert pod.running, pod.stderr()
        done = pod.exec(*DOCTOR)
        code, text, message = done.returncode, done.stdout, done.stderr
    else:
        code = pod.wait(PATIENCE)
        text, message = pod.stdout(), pod.stderr()
    assert "Traceback" not in message
    found: Found = json.loads(text)["findings"]
    return code, found


def fits(text: str, expected: str) -> bool:
    """Whether a sentence is as the table has it; `...` stands for anything."""
    return bool(re.fullmatch(".*".join(map(re.escape, expected.split("..."))), text, re.DOTALL))


@pytest.mark.parametrize(
    "healthy",
    [
        pytest.param(HEALTHY, id="alone"),
        pytest.param(
            replace(HEALTHY, runs=("mpiboot", "worker"), until="listens on"),
            id="worker",
            marks=pytest.mark.full,
        ),
    ],
)
def test_of_a_healthy_pod_nothing_is_said(hospital: Cluster, healthy: Fault) -> None:
    code, found = diagnosed(broken(hospital, healthy), healthy)
    assert [item for item in found if item["level"] != "ok"] == []
    assert code == 0
    assert len(found) > 8


@pytest.mark.parametrize(
    "fault",
    [pytest.param(row, id=row.name, marks=() if row.quick else pytest.mark.full) for row in PODS],
)
def test_doctor_names_this_fault_alone(hospital: Cluster, fault: Fault) -> None:
    pod = broken(hospital, fault)
    try:
        code, found = diagnosed(pod, fault)
    finally:
        if pod.running:
            pod.kill()
    named_alone(fault, code, found)


def named_alone(fault: Fault | JobFault, code: int, found: Found) -> dict[str, Any]:
    """The one finding that is not well, which is the row's."""
    bad = [item for item in found if item["level"] != "ok"]
    (item,) = bad
    assert item["check"] == fault.check
    assert item["level"] == fault.level
    assert fits(item["message"], fault.message), item["message"]
    assert fits(item["hint"], fault.hint or BY_REFERENCE[fault.check].hint), item["hint"]
    assert code == (1 if fault.level == "fail" else 0)
    return item


@pytest.mark.full
@pytest.mark.parametrize("fault", [pytest.param(row, id=row.name) for row in JOBS])
def test_doctor_in_a_launcher_names_this_fault_alone(cluster: Cluster, fault: JobFault) -> None:
    details = {"workers": 2, "launcher_command": ["sleep", "1000"], **fault.job()}
    job = mpijob(cluster, images.image("openmpi-4.1"), **details).start(publish=False)
    for index, worker in enumerate(job.workers):
        if index not in fault.unpublished:
            worker.publish()
    if fault.ready:
        until(lambda: fault.ready in job.workers[1].stderr(), PATIENCE, fault.ready)
    for worker in job.workers[:1] if fault.ready else job.workers:
        worker.shell("until [ -e /run/mpiboot/*/worker/facts.json ]; do sleep 0.1; done")
    if fault.network:
        fault.network(job)
    done = job.launcher.exec(*DOCTOR)
    assert "Traceback" not in done.stderr
    item = named_alone(fault, done.returncode, json.loads(done.stdout)["findings"])
    host = item["host"].partition(".")[0]
    assert host == fault.host or (not fault.host and host in ("", job.launcher.hostname)), item
