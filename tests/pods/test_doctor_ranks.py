"""`mpiboot doctor ranks` names the rank that keeps a real job from going on, and why."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests import pages
from tests.pods import images
from tests.pods.jobs import RING, kill, rank_processes
from tests.pods.operator import mpijob
from tests.pods.volumes import HostPath
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pods.cluster import Cluster
    from tests.pods.operator import Job
    from tests.pods.pod import Pod

EACH = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) for name in (*images.NAMES, "mpich-5.0")]
)
EXCHANGE = ("mpirun", RING, "--bytes", "100000000")
WRAPPER = '[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 3 ] && sleep 1000; exec ' + RING


def job_of(cluster: Cluster, name: str, *program: str, **details: Any) -> Job:  # noqa: ANN401
    """Four ranks on two workers, unless the details say otherwise."""
    mpi = "MPICH" if name.startswith("mpich") else "OpenMPI"
    given = {"workers": 2, "slots": 2, "mpi": mpi, **details}
    return mpijob(cluster, images.image(name), launcher_args=program, **given).start()


def doctor_ranks(pod: Pod) -> dict[str, Any]:
    """What it says as JSON; the exit code tells whether anything is odd."""
    done = pod.exec("mpiboot", "doctor", "ranks", "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["version"] == 1
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
    message = f"(pid {victim.pid}) is stopped by a signal; the other 3 are busy"
    found = named(job, "rank-stopped", message)
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
    shown, hint = pages.named("odd-rank").splitlines()
    first_line, its_hint = answer.stdout.splitlines()[:2]
    assert first_line.partition(") ")[2] == shown.partition(") ")[2].replace(" 7 ", " 3 ")
    assert its_hint == hint.replace("123", str(victim.pid))
    assert not doctor_ranks(job.workers[0])["findings"]


def test_the_rank_that_is_stopped_is_named(cluster: Cluster, rig: None) -> None:
    stopped(job_of(cluster, "openmpi-4.1", *EXCHANGE))


@pytest.mark.full
@pytest.mark.parametrize("name", ["openmpi-5.0", "mpich-5.0"])
def test_the_stopped_rank_of_other_mpis(cluster: Cluster, rig: None, name: str) -> None:
    stopped(job_of(cluster, name, *EXCHANGE))


@EACH
def test_a_read_that_never_ends(cluster: Cluster, rig: None, name: str, tmp_path: Path) -> None:
    """A FIFO to which nobody writes stands for a file system that does not answer."""
    tmp_path.chmod(0o777)
    os.mkfifo(tmp_path / "data")
    held = os.open(tmp_path / "data", os.O_RDWR)  # or its opening would wait, not its reading
    volume = {"volumes": [HostPath("/ckpt", tmp_path, writable=True)]}
    program = ("mpirun", RING, "--read", "/ckpt/data", "--rank", "3")
    message = "waits in read of /ckpt/data; the other 3 are busy"
    job = job_of(cluster, name, *program, worker=volume)
    first = named(job, "rank-in-file", message)["findings"][0]
    assert first["message"].startswith("rank 3 on pi-worker-1")
    os.close(held)


@EACH
def test_the_rank_that_does_not_take_part(cluster: Cluster, rig: None, name: str) -> None:
    job = job_of(cluster, name, "mpirun", RING, "--apart", "1000", "--rank", "3")
    found = named(job, "rank-apart", "sleeps (clock_nanosleep); the other 3 are busy")
    assert found["findings"][0]["message"].startswith("rank 3 on pi-worker-1")
    assert {rank["stage"] for host in found["hosts"] for rank in host["ranks"]} == {"in MPI"}


@EACH
@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            ("mpirun", RING, "--before", "1000", "--rank", "3"),
            "has not reached MPI_Init: it sleeps",
        ),
        (
            ("mpirun", "sh", "-c", WRAPPER),
            "runs sleep, not ring; it has not reached MPI_Init: it sleeps",
        ),
    ],
    ids=["program", "wrapper"],
)
def test_the_rank_that_never_reached_mpi_init(
    cluster: Cluster, rig: None, name: str, program: tuple[str, ...], message: str
) -> None:
    job = job_of(cluster, name, *program)
    first = named(job, "rank-before-mpi", message)["findings"][0]
    assert first["message"].startswith("rank 3 on pi-worker-1")


@EACH
@pytest.mark.parametrize("silent", [True, False])
def test_a_link_cut_in_the_middle(cluster: Cluster, rig: None, name: str, silent: bool) -> None:  # noqa: FBT001
    """The data link of one worker, whose name mpirun's own connections do not use."""
    env = {"MPIBOOT_MPI_NETWORK": "data"}
    job = job_of(cluster, name, *EXCHANGE, slots=1, data_link="net1", env=env)
    until(lambda: job.launcher.stdout().count("rank ") == 2)
    job.workers[1].link_down("net1", silent=silent)
    first = named(job, "data-unanswered" if silent else "link-down")["findings"][0]
    assert "pi-worker-1" in first["message"] + " ".join(first["evidence"])
