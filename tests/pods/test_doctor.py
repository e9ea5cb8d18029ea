"""`mpiboot doctor` names the one fault of a broken pod or job, and the rank that keeps a job."""

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
from tests.pods import images, jobs
from tests.pods.cluster import Cluster
from tests.pods.faults import JOBS, PODS, Fault, JobFault
from tests.pods.images import PYTHON, Image
from tests.pods.jobs import PATIENCE, RING
from tests.pods.network import Link
from tests.pods.oci import NO_CAPABILITIES, PodSpec
from tests.pods.operator import Job, KeyPair, mpijob
from tests.pods.pod import Pod
from tests.pods.volumes import Files
from tests.waiting import until

FULL = pytest.mark.full
DOCTOR = ("mpiboot", "doctor", "--json")
STAY = ["sleep", "1000"]


@pytest.fixture(scope="module")
def hospital(rig: None) -> Iterator[Cluster]:
    """One cluster for all rows: a pod each, none of which needs another."""
    with Cluster() as made:
        yield made


def broken(cluster: Cluster, fault: Fault) -> Pod:
    image = images.image("openmpi-4.1")
    script = "; ".join(filter(None, (fault.before, "exec " + shlex.join(DOCTOR))))
    details = dict(fault.pod)
    volumes = list(details.pop("volumes", ()))
    volumes.append(Files(fault.key_path, KeyPair.make().files(), fault.key_mode))
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


def diagnosed(pod: Pod, fault: Fault) -> tuple[int, str]:
    pod.start()
    if not fault.runs:
        code, text, message = pod.wait(), pod.stdout(), pod.stderr()
    else:
        until(lambda: fault.until in pod.stderr() or not pod.running, PATIENCE, fault.until)
        assert pod.running, pod.stderr()
        done = pod.exec(*DOCTOR)
        code, text, message = done.returncode, done.stdout, done.stderr
        pod.kill()
    assert "Traceback" not in message
    return code, text


def named_alone(fault: Fault | JobFault, code: int, text: str) -> dict[str, Any]:
    """The one finding that is not well, which is the row's; `...` in it stands for anything."""

    def fits(sentence: str, expected: str) -> bool:
        pattern = ".*".join(map(re.escape, expected.split("...")))
        return bool(re.fullmatch(pattern, sentence, re.DOTALL))

    (item,) = [item for item in json.loads(text)["findings"] if item["level"] != "ok"]
    assert (item["check"], item["level"]) == (fault.check, fault.level)
    assert fits(item["message"], fault.message), item["message"]
    assert fits(item["hint"], fault.hint or BY_REFERENCE[fault.check].hint), item["hint"]
    assert code == (1 if fault.level == "fail" else 0)
    return dict(item)


HEALTHY = Fault("nothing", "", "ok", message="")
SERVES = replace(HEALTHY, runs=("mpiboot", "worker"), until="listens on")


@pytest.mark.parametrize("healthy", [HEALTHY, pytest.param(SERVES, marks=FULL)], ids=["", "worker"])
def test_of_a_healthy_pod_nothing_is_said(hospital: Cluster, healthy: Fault) -> None:
    code, text = diagnosed(broken(hospital, healthy), healthy)
    found = json.loads(text)["findings"]
    assert [item for item in found if item["level"] != "ok"] == []
    assert code == 0
    assert len(found) > 7


@pytest.mark.parametrize(
    "fault", [pytest.param(row, id=row.what, marks=[FULL] * (not row.quick)) for row in PODS]
)
def test_doctor_names_this_fault_alone(hospital: Cluster, fault: Fault) -> None:
    named_alone(fault, *diagnosed(broken(hospital, fault), fault))


@FULL
@pytest.mark.parametrize("fault", [pytest.param(row, id=row.what) for row in JOBS])
def test_doctor_in_a_launcher_names_this_fault_alone(cluster: Cluster, fault: JobFault) -> None:
    details = {"launcher_command": STAY, **fault.job()}
    job = mpijob(cluster, images.image("openmpi-4.1"), **details).start(publish=False)
    for index, worker in enumerate(job.workers):
        if index not in fault.unpublished:
            worker.publish()
    if fault.ready:
        job.workers[1].logs(fault.ready)
    jobs.with_facts(job, *job.workers[: 1 if fault.ready else 2])
    done = job.launcher.exec(*DOCTOR)
    assert "Traceback" not in done.stderr
    host = named_alone(fault, done.returncode, done.stdout)["host"].partition(".")[0]
    assert host == fault.host or (not fault.host and host in ("", job.launcher.hostname))


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
OTHER_MPI = {"mpirun": '#!/bin/sh\necho "mpirun (Open MPI) 4.0.3"\n'}
FILES = "ls -AR /run /tmp /dev/shm /root 2>/dev/null"


def test_several_faults_are_reported_for_the_right_hosts(cluster: Cluster, one: Image) -> None:
    each_worker = {
        1: {"rlimits": {"RLIMIT_NOFILE": (4096, 4096)}},
        2: {"env": {"PATH": PATH}, "volumes": [Files("/other", OTHER_MPI, 0o555)]},
    }
    details: dict[str, Any] = {"workers": 3, "data_link": "net1", "each_worker": each_worker}
    job = jobs.with_facts(mpijob(cluster, one, launcher_command=STAY, **details).start())
    assert jobs.mpiboot(job, "wait")[0] == 0  # /run/mpiboot stays, as after each command
    job.launcher.network.run("nft", "-f", "-", stdin=NOTHING_IN % job.workers[0].address)
    before = job.launcher.shell(FILES)
    code, text = jobs.mpiboot(job, "doctor", "--json")
    assert code == 1
    assert job.launcher.shell(FILES) == before
    bad = []
    for item in json.loads(text)["findings"]:
        hosts = item["hosts"] or [item["host"] or "?"]
        # What a busy machine was too slow to look at is unknown, and no fault.
        if item["level"] not in ("ok", "unknown"):
            last_letters = [host.partition(".")[0][-1] for host in hosts]
            bad.append((item["level"], item["check"], last_letters))
    assert sorted(bad) == [
        ("fail", "worker-pairs", ["r"]),
        ("warn", "hosts-differ", ["1"]),
        ("warn", "mpi-versions", ["2"]),
    ], text


def doctor(cluster: Cluster, image: Image, *words: str, **details: Any) -> tuple[int, str]:
    """The exit code and all that is written by doctor as the program of a container."""
    command = ["mpiboot", "doctor", *words]
    name = f"p{len(cluster.pods)}"
    pod = cluster.pod(PodSpec(name=name, image=image, command=command, **details)).start()
    code, text = pod.wait(), pod.stdout() + pod.stderr()
    assert "Traceback" not in text
    return code, " ".join(text.split())


def test_a_build_ends_over_an_image_that_lacks_something(cluster: Cluster, one: Image) -> None:
    code, text = doctor(cluster, one.without("/usr/bin/orted"), "--image")
    assert code == 1
    assert "/usr/bin/mpirun has no orted beside it or on PATH" in text
    # Without this one there is no command line at all, and no table of checks.
    click = one.without("/opt/mpiboot/lib/python3.11/site-packages/click")
    code, text = doctor(cluster, click, "--image")
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
    assert "FAIL this pod ssh-key no private SSH key in" in text
    assert "no link of its own has the control address" in text
    assert " 1 failed, " in text


def four_ranks(cluster: Cluster, image: Image, *program: str) -> Job:
    return mpijob(cluster, image, launcher_args=["mpirun", *program], slots=2).start()


def doctor_ranks(pod: Pod) -> dict[str, Any]:
    """Its JSON; the exit code is 1 where anything is wrong."""
    done = pod.exec("mpiboot", "doctor", "ranks", "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["version"] == 3
    assert done.returncode == int(any(item["level"] != "unknown" for item in found["findings"]))
    return found


def named(job: Job, check: str, message: str = "") -> dict[str, Any]:
    """The answer that begins with this finding; the job may need a moment to come there."""
    found: dict[str, Any] = {}

    def is_first() -> bool:
        assert job.launcher.running, job.log[-3000:]
        found.update(doctor_ranks(job.launcher))
        first = next(iter(found["findings"]), {"check": "", "message": ""})
        print(first)  # noqa: T201 - what it was instead, where the guard ends this
        return first["check"] == check and message in first["message"]

    until(is_first)
    return found


@jobs.each("openmpi-4.1", "openmpi-5.0", "mpich-5.0")
def test_the_rank_that_is_stopped_is_named(cluster: Cluster, image: Image) -> None:
    job = four_ranks(cluster, image, RING, "--bytes", "100000000")
    until(lambda: job.output.count("rank ") == 4)
    victim = jobs.rank_processes(job.workers[1])[0]
    jobs.kill([victim], signal.SIGSTOP)
    found = named(job, "rank-stopped", " is stopped by a signal")
    first, *others = found["findings"]
    assert first["host"].startswith("pi-worker-1")
    assert f": pid {victim.pid}, in " in first["evidence"][0]
    assert not [item for item in others if item["level"] == "fail"]
    assert len(found["hosts"]) == 2
    there = [rank["number"] for host in found["hosts"] for rank in host["ranks"]]
    assert sorted(there) == [0, 1, 2, 3]
    # The pod itself knows its own, and a person reads the same line first.
    assert doctor_ranks(job.workers[1])["findings"][0]["check"] == "rank-stopped"
    answer = job.launcher.exec(*pages.named("ranks").partition(" -- ")[2].split())
    assert answer.returncode == 1
    shown = pages.named("stopped-rank").replace("123", str(victim.pid)).splitlines()
    page, lines = ([line.split() for line in text] for text in (shown, answer.stdout.splitlines()))
    assert lines[0][2:4] == page[0][2:4]
    assert " ".join(page[0][5:]) in " ".join(lines[0])
    assert [lines[2], lines[4]] == [page[2], page[4]]
    assert lines[5][3:5] == page[5][3:5] == ["stopped", "(T)"]
    assert not doctor_ranks(job.workers[0])["findings"]


VFORK = "import ctypes, time; ctypes.CDLL(None).vfork() or time.sleep(1000)"
# Without MPI a rank may end while the others go on.
ENDS = f"""case $OMPI_COMM_WORLD_RANK in
2) ;;
3) exec {PYTHON} -c '{VFORK}' ;;
*) exec sleep 1000 ;;
esac"""


def test_a_rank_in_uninterruptible_sleep_and_a_missing_one(cluster: Cluster, one: Image) -> None:
    """A parent of vfork(2) stands for a file system that does not answer."""
    job = four_ranks(cluster, one, "sh", "-c", ENDS)
    found = named(job, "rank-in-kernel", "is in uninterruptible sleep (D)")
    first, second = found["findings"]
    assert first["message"].startswith("rank 3 ")
    assert first["host"].startswith("pi-worker-1")
    assert (second["check"], second["level"]) == ("rank-missing", "warn")
    assert second["message"] == "rank 2 of 4 is on none of the hosts that answered"
