"""Broken pods, one fault each: doctor names that fault and no other."""

from __future__ import annotations

import json
import re
import shlex
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mpiboot.core.checks import BY_REFERENCE
from tests import pages
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.faults import JOBS, PODS, Fault, JobFault
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, RING, kill, rank_processes
from tests.pods.network import Link
from tests.pods.oci import NO_CAPABILITIES, PodSpec
from tests.pods.operator import Job, KeyPair, mpijob
from tests.pods.pod import Pod
from tests.pods.test_job import mpiboot
from tests.pods.volumes import Files
from tests.waiting import until

Found = list[dict[str, Any]]

DOCTOR = ("mpiboot", "doctor", "--json")
HEALTHY = Fault(what="nothing", check="", level="ok", message="")


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
    [pytest.param(row, id=row.what, marks=() if row.quick else pytest.mark.full) for row in PODS],
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
@pytest.mark.parametrize("fault", [pytest.param(row, id=row.what) for row in JOBS])
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


STAY = ["sleep", "1000"]
# What a NetworkPolicy does that lets SSH out of the launcher's pod, and nothing into it.
NOTHING_IN = """
table inet nothing_in {
    chain input {
        type filter hook input priority 0;
        ct state established,related accept
        ip saddr { %s } drop
    }
}
"""
PATH = "/other:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OTHER_MPI = '#!/bin/sh\necho "mpirun (Open MPI) 4.0.3"\n'


def with_facts(job: Job, *without: int) -> Job:
    """The job, once every worker but these has its facts."""
    for number, worker in enumerate(job.workers):
        if number not in without:
            worker.shell("until [ -e /run/mpiboot/*/worker/facts.json ]; do sleep 0.1; done")
    return job


def trouble(text: str) -> list[tuple[str, str, str]]:
    """What is not well: level, check and the last digit of each host that it is about."""
    found: list[dict[str, Any]] = json.loads(text)["findings"]
    return sorted(
        (
            item["level"],
            item["check"],
            ",".join(name.partition(".")[0][-1] for name in item["hosts"] or [item["host"] or "?"]),
        )
        for item in found
        if item["level"] != "ok"
    )


def test_several_faults_are_reported_for_the_right_hosts(cluster: Cluster, one: Image) -> None:
    job = mpijob(
        cluster,
        one,
        workers=3,
        launcher_command=STAY,
        data_link="net1",
        each_worker={
            1: {"rlimits": {"RLIMIT_NOFILE": (4096, 4096)}},
            2: {
                "env": {"PATH": PATH},
                "volumes": [Files("/other", {"mpirun": OTHER_MPI}, 0o555)],
            },
        },
    ).start()
    with_facts(job)
    job.launcher.network.run("nft", "-f", "-", stdin=NOTHING_IN % job.workers[0].address)
    code, text = mpiboot(job, "doctor", "--json")
    assert code == 1
    # What a busy machine was too slow to look at is unknown, and no fault.
    assert [item for item in trouble(text) if item[0] != "unknown"] == [
        ("fail", "worker-pairs", "r"),
        ("warn", "hosts-differ", "1"),
        ("warn", "mpi-versions", "2"),
    ], text


# The brackets keep the search from finding itself.
RUNS = "cat /proc/[0-9]*/cmdline 2> /dev/null | tr '\\0' '\\n' | grep -c 'import prob[e]'"


def measuring(job: Job) -> int:
    """On how many workers the program that measures runs."""
    counts = [worker.exec("sh", "-c", RUNS).stdout.strip() for worker in job.workers]
    return sum(count != "0" for count in counts)


SITE = "/opt/mpiboot/lib/python3.11/site-packages"


def doctor(cluster: Cluster, image: Image, *words: str, **details: object) -> tuple[int, str]:
    """The exit code and all that is written by doctor as the program of a container."""
    command = ["mpiboot", "doctor", *words]
    name = f"p{len(cluster.pods)}"
    pod = cluster.pod(PodSpec(name=name, image=image, command=command, **details)).start()  # type: ignore[arg-type]
    code = pod.wait(PATIENCE)
    text = pod.stdout() + pod.stderr()
    assert "Traceback" not in text
    return code, " ".join(text.split())


def test_a_build_ends_over_an_image_that_lacks_something(cluster: Cluster, one: Image) -> None:
    code, text = doctor(cluster, one.without("/usr/bin/orted"), "--image")
    assert code == 1
    assert "/usr/bin/mpirun has no orted beside it or on PATH" in text
    # Without this one there is no command line at all, and no table of checks.
    code, text = doctor(cluster, one.without(f"{SITE}/click"), "--image")
    assert code == 127
    assert "[python-modules] Python 3.11.2 does not find click" in text


def test_in_a_plain_container_outside_a_cluster(cluster: Cluster, one: Image) -> None:
    """A uid that nobody knows, without capabilities, without a network, nothing to write to."""
    code, text = doctor(
        cluster,
        one,
        user=4711,
        capabilities=NO_CAPABILITIES,
        no_new_privileges=True,
        seccomp=True,
        read_only_root=True,
        links=(Link(ipv4=False),),
        cluster_dns=False,
        env={"HOME": "/nonexistent"},
    )
    assert code == 1
    assert "uid 4711 has no passwd entry" in text
    assert "FAIL this pod ssh-key no private SSH key in" in text
    assert "no link of its own has the control address" in text
    assert " 1 failed, " in text


@pytest.mark.full
def test_with_half_of_the_workers_gone_the_others_are_told(cluster: Cluster, one: Image) -> None:
    job = mpijob(cluster, one, workers=4, launcher_command=["sleep", "1000"]).start()
    assert job.launcher.exec("mpiboot", "wait").returncode == 0
    before = job.launcher.shell("ls -AR /run /tmp /dev/shm /root 2>/dev/null")
    job.workers[1].delete()  # its name too
    job.workers[3].kill()
    done = job.launcher.exec("mpiboot", "doctor", "--json", "--timeout", "5")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    found = json.loads(done.stdout)["findings"]
    bad = {
        (item["host"].partition(".")[0], item["check"])
        for item in found
        if item["level"] == "fail" and item["host"].startswith("pi-worker")
    }
    assert {("pi-worker-1", "names-unresolved"), ("pi-worker-3", "workers-unreachable")} <= bad
    assert {host for host, _ in bad} == {"pi-worker-1", "pi-worker-3"}
    good = {item["host"].partition(".")[0] for item in found if item["level"] == "ok"}
    assert {"pi-worker-0", "pi-worker-2"} <= good
    assert job.launcher.shell("ls -AR /run /tmp /dev/shm /root 2>/dev/null") == before


EXCHANGE = ("mpirun", RING, "--bytes", "100000000")
PYTHON = "/opt/mpiboot/bin/python"
VFORK = "import ctypes, time; ctypes.CDLL(None).vfork() or time.sleep(1000)"
# Without MPI a rank may end while the others go on.
ENDS = f"""case $OMPI_COMM_WORLD_RANK in
2) ;;
3) exec {PYTHON} -c '{VFORK}' ;;
*) exec sleep 1000 ;;
esac"""


def job_of(cluster: Cluster, name: str, *program: str, **details: Any) -> Job:
    """Four ranks on two workers, unless the details say otherwise."""
    given = {"slots": 2, **details}
    return mpijob(cluster, images.image(name), launcher_args=program, **given).start()


def doctor_ranks(pod: Pod) -> dict[str, Any]:
    """Its JSON; the exit code is 1 where anything is wrong."""
    done = pod.exec("mpiboot", "doctor", "ranks", "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["version"] == 2
    assert done.returncode == int(any(item["level"] != "unknown" for item in found["findings"]))
    return found


def named(job: Job, check: str, message: str = "") -> dict[str, Any]:
    """The answer that begins with this finding; the job may need a moment to come there."""
    found: dict[str, Any] = {}

    def is_first() -> bool:
        assert job.launcher.running, job.launcher.stderr()[-3000:]
        found.clear()
        found.update(doctor_ranks(job.launcher))
        first = next(iter(found["findings"]), {"check": "", "message": ""})
        print(first)  # noqa: T201 - what it was instead, where the guard ends this
        return first["check"] == check and message in first["message"]

    until(is_first)
    return found


def stopped(job: Job) -> None:
    until(lambda: job.launcher.stdout().count("rank ") == 4)
    victim = rank_processes(job.workers[1])[0]
    kill([victim], signal.SIGSTOP)
    found = named(job, "rank-stopped", f"(pid {victim.pid}) is stopped by a signal")
    first, *others = found["findings"]
    assert first["host"].startswith("pi-worker-1")
    assert f"kill -CONT {victim.pid}" in first["hint"]
    assert not [item for item in others if item["level"] == "fail"]
    assert len(found["hosts"]) == 2
    there = [rank["number"] for host in found["hosts"] for rank in host["ranks"]]
    assert sorted(there) == [0, 1, 2, 3]
    # The pod itself knows its own, and a person reads the same line first.
    own = doctor_ranks(job.workers[1])["findings"][0]
    assert own["check"] == "rank-stopped"
    answer = job.launcher.exec(*pages.named("ranks").partition(" -- ")[2].split())
    assert answer.returncode == 1
    shown, hint, _, head, row, *_ = pages.named("stopped-rank").splitlines()
    lines = answer.stdout.splitlines()
    message = shown.replace("123", str(victim.pid)).split()[2:]
    assert lines[0].split()[2:4] == message[:2]
    assert " ".join(message[3:]) in lines[0]
    assert lines[1].split() == hint.replace("123", str(victim.pid)).split()
    assert lines[3].split() == head.split()
    assert lines[4].split()[3:5] == row.split()[3:5] == ["stopped", "(T)"]
    assert not doctor_ranks(job.workers[0])["findings"]


def test_the_rank_that_is_stopped_is_named(cluster: Cluster, rig: None) -> None:
    stopped(job_of(cluster, "openmpi-4.1", *EXCHANGE))


@pytest.mark.full
@pytest.mark.parametrize("name", ["openmpi-5.0", "mpich-5.0"])
def test_the_stopped_rank_of_other_mpis(cluster: Cluster, rig: None, name: str) -> None:
    stopped(job_of(cluster, name, *EXCHANGE))


def test_a_manager_that_sleeps_is_healthy(cluster: Cluster, rig: None) -> None:
    job = job_of(cluster, "openmpi-4.1", "mpirun", RING, "--apart", "1000", "--rank", "0")
    apart = ["running"] * 3 + ["sleeping"]
    until(lambda: sorted(states(doctor_ranks(job.launcher))) == apart)
    assert doctor_ranks(job.launcher)["findings"] == []  # its code is 0


def states(found: dict[str, Any]) -> list[str]:
    return [rank["state"] for host in found["hosts"] for rank in host["ranks"]]


def test_a_rank_in_uninterruptible_sleep_and_a_missing_one(cluster: Cluster, rig: None) -> None:
    """A parent of vfork(2) stands for a file system that does not answer."""
    job = job_of(cluster, "openmpi-4.1", "mpirun", "sh", "-c", ENDS)
    found = named(job, "rank-in-kernel", "is in uninterruptible sleep (D)")
    first, second = found["findings"]
    assert first["message"].startswith("rank 3 ")
    assert first["host"].startswith("pi-worker-1")
    assert (second["check"], second["level"]) == ("rank-missing", "warn")
    assert second["message"] == "rank 2 of 4 is on none of the hosts that answered"
