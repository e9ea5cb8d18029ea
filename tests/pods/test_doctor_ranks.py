"""`mpiboot doctor ranks` names the rank that keeps a real job from going on, and why."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests import pages
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.jobs import RING, kill, rank_processes
from tests.pods.operator import Job, mpijob
from tests.pods.pod import Pod
from tests.waiting import until

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
