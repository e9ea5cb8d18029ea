"""Ranks get the grace period to save before they end: signals to launchers, workers and both."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, PROMISED, RING, alive, end_line, left, running
from tests.pods.marks import NEW, OLD, OLD_IMAGE, ONE_IMAGE
from tests.pods.operator import Job
from tests.pods.volumes import HostPath
from tests.waiting import until

TERM = f"signal {signal.SIGTERM.value}, once"
# Longer than either MPI lets a rank live once it is signalled itself, or has seen one die.
SAVE = ("--save", "5")
LONG = {"MPIBOOT_GRACE": "60"}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """What ranks save outlives their pods."""
    tmp_path.chmod(0o777)
    return tmp_path


def saving(cluster: Cluster, image: Image, kept: Path, *program: str, **env: str) -> Job:
    """Four ranks on two workers, each past MPI_Init."""
    argv = ("mpirun", RING, "--sleep", "1000", *program)
    volumes = [HostPath("/ckpt", kept, writable=True)]
    job = running(
        cluster,
        image,
        *argv,
        slots=2,
        env={**LONG, **env},
        worker={"env": {**LONG, **env}, "volumes": volumes},
    )
    until(lambda: job.launcher.stdout().count("rank ") == 4)
    return job


def saved(kept: Path) -> dict[int, str]:
    """What each rank has saved."""
    return {
        int(path.name.partition("-")[2]): path.read_text().strip() for path in kept.glob("saved-*")
    }


def told_to_end(job: Job) -> None:
    job.launcher.signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == 143
    assert "SIGTERM" in end_line(job.launcher.stderr())
    until(lambda: not left(job.workers), PROMISED)


def test_every_rank_saves_and_finishes(cluster: Cluster, image: Image, kept: Path) -> None:
    """MPI_Finalize needs mpirun, which is stopped, and continued for that."""
    job = saving(cluster, image, kept, *SAVE)
    told_to_end(job)
    assert saved(kept) == dict.fromkeys(range(4), TERM)
    message = job.launcher.stderr()
    assert "sent SIGTERM to 4 ranks; waiting up to 1m" in message
    assert "did not end in time" not in message


@pytest.mark.parametrize(
    ("image", "rank", "server"),
    [
        (OLD, 1, "embedded"),
        (NEW, 3, "auto"),
    ],
    indirect=["image"],
)
def test_a_drained_worker_lets_each_rank_of_the_job_save(
    cluster: Cluster, image: Image, kept: Path, rank: int, server: str
) -> None:
    """Its own ranks and those of other workers; all but one die at once."""
    program = (*SAVE, "--rank", str(rank), "--no-finalize")
    job = saving(cluster, image, kept, *program, MPIBOOT_SSHD=server)
    job.workers[0].signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == 69
    assert saved(kept) == {rank: TERM}
    assert job.workers[0].wait(PATIENCE) == 0
    message = job.launcher.termination_log()
    assert "pi-worker-0" in message.splitlines()[0]
    assert "its pod is being terminated" in message
    until(lambda: not left(job.workers), PROMISED)


@ONE_IMAGE
def test_a_suspended_job_saves_once(cluster: Cluster, image: Image, kept: Path) -> None:
    job = saving(cluster, image, kept, *SAVE)
    for pod in job.workers:
        pod.signal(signal.SIGTERM)
    time.sleep(0.5)  # up to a second may lie between
    told_to_end(job)
    message = job.launcher.termination_log()
    assert message.startswith("signal: ")
    assert "pi-worker" not in message.splitlines()[0]
    assert [worker.wait(PATIENCE) for worker in job.workers] == [0, 0]
    assert saved(kept) == dict.fromkeys(range(4), TERM)


@pytest.mark.full
@pytest.mark.parametrize("start", ["a script", "ranks beside mpirun"])
def test_ranks_of_a_script_and_those_beside_mpirun_save_too(
    cluster: Cluster, image: Image, kept: Path, start: str
) -> None:
    line = f"mpirun {RING} --sleep 1000 {' '.join(SAVE)}"
    beside = start == "ranks beside mpirun"
    script = ["sh", "-c", f"{line}; exit $?"]
    pods = {"env": LONG, "volumes": [HostPath("/ckpt", kept, writable=True)]}
    job = running(
        cluster,
        image,
        *(line.split() if beside else script),
        as_worker=beside,
        launcher=pods,
        worker=pods,
    )
    count = 2 + beside
    until(lambda: job.launcher.stdout().count("rank ") == count)
    told_to_end(job)
    assert saved(kept) == dict.fromkeys(range(count), TERM)


@OLD_IMAGE
@pytest.mark.full
def test_a_program_that_saves_on_another_signal(cluster: Cluster, image: Image, kept: Path) -> None:
    job = saving(cluster, image, kept, *SAVE, "--no-finalize", MPIBOOT_STOP_SIGNAL="USR1")
    told_to_end(job)
    assert saved(kept) == dict.fromkeys(range(4), TERM.replace("15", str(signal.SIGUSR1.value)))


@ONE_IMAGE
def test_a_rank_that_ignores_the_signal(cluster: Cluster, image: Image, kept: Path) -> None:
    job = saving(cluster, image, kept, "--ignore-term", MPIBOOT_GRACE="12")
    told_to_end(job)
    assert "4 ranks did not end in time: mpirun ends what is left" in job.launcher.stderr()


@pytest.mark.full
def test_a_grace_longer_than_the_pods(cluster: Cluster, image: Image, kept: Path) -> None:
    """The kubelet's SIGKILL comes first: nobody can wait for that, and nothing is left."""
    job = saving(cluster, image, kept, "--save", "60", "--no-finalize")
    assert job.launcher.stop(grace=10) == 137
    until(lambda: not left(job.workers), PROMISED)
    assert "waiting up to 1m" in job.launcher.stderr()
    assert all(worker.running for worker in job.workers)


@pytest.mark.full
def test_what_ranks_have_forked_ends_with_them(cluster: Cluster, image: Image, kept: Path) -> None:
    """Each in a session of its own and deaf to SIGTERM, as a program's helpers may be."""
    helper = '(trap \'\' TERM; exec setsid sleep 1000) & exec "$0" "$@"'
    job = running(
        cluster,
        image,
        *("mpirun", "sh", "-c", helper, RING, "--sleep", "1000", *SAVE),
        worker={"volumes": [HostPath("/ckpt", kept, writable=True)]},
        env={"MPIBOOT_GRACE": "12"},
    )
    until(lambda: job.launcher.stdout().count("rank ") == 2)
    told_to_end(job)
    assert set(saved(kept)) == {0, 1}
    until(lambda: not [item for worker in job.workers for item in alive(worker, "sleep")])
