"""Healthy jobs that look stuck from outside: each ends as it would without mpiboot."""

from __future__ import annotations

import signal

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import RING, held, kill, let_go, slow_to_launch
from tests.pods.operator import Job
from tests.pods.test_hydra import INTEL, MPICH4, started

pytestmark = pytest.mark.full
UNEVEN = "/opt/programs/uneven"
# A guard against a hang alone: the jobs take two minutes.
PATIENCE = 600


@pytest.fixture
def image(rig: None, request: pytest.FixtureRequest) -> Image:
    """The image that a test names; in one of them PyPI's MPICH 4.0.3, whose default is ch4:ofi."""
    name: str = request.param
    if name == "mpich-4.0.3":
        return images.image("mpich-5.0").with_wheel("/opt/mpi", "mpich==4.0.3")
    return images.image(name)


def ended_well(job: Job) -> str:
    """Wait for exit code 0; the launcher's log."""
    code, message = job.wait(PATIENCE), job.launcher.stderr()
    assert code == 0, message
    assert "the program succeeded" in message
    return message


@pytest.mark.parametrize("image", ["mpich-4.0.3"], indirect=True)
def test_ranks_compute_while_one_has_finalized(cluster: Cluster, image: Image) -> None:
    """MPI_Finalize waits for nobody there."""
    job = started(cluster, image, "mpirun", UNEVEN, "early", "70")
    ended_well(job)
    assert job.launcher.stdout().count("4.0.3") == 2


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("image", ["mpich-4.0.3"], indirect=True)
def test_children_end_before_their_parents(cluster: Cluster, image: Image, ranks: int) -> None:
    """By MPI_Comm_spawn; with one parent a host has nobody but a child."""
    job = started(cluster, image, "mpirun", "-n", str(ranks), UNEVEN, "spawn", "70")
    ended_well(job)
    children = [line for line in job.launcher.stdout().splitlines() if line.startswith("child ")]
    assert len(children) == ranks + 1
    assert {line.split()[-1] for line in children} == {"pi-worker-0", "pi-worker-1"}


@pytest.mark.parametrize("image", [MPICH4, "mpich-5.0", INTEL], indirect=True)
def test_a_rank_writes_results_after_mpi_finalize(cluster: Cluster, image: Image) -> None:
    job = started(
        cluster, image, "mpirun", RING, "--rank", "0", "--after", "90", workers=1, as_worker=True
    )
    ended_well(job)


@pytest.mark.parametrize("image", images.NAMES, indirect=True)
def test_an_ssh_session_ends_long_after_its_job(cluster: Cluster, image: Image) -> None:
    """As on a node under pressure: mpirun has reported success by then."""
    job = held(cluster, image)
    worker = job.workers[1]
    names = ("sshd: root", "sshd-session: root")
    sessions = [item for item in worker.processes() if item.args[0].startswith(names)]
    kill(sessions, signal.SIGSTOP)
    let_go(job)
    assert "its session was still open 5 s after mpirun ended" in ended_well(job)
    kill(sessions, signal.SIGCONT)


@pytest.mark.parametrize("image", images.NAMES, indirect=True)
def test_daemons_join_one_long_after_the_other(cluster: Cluster, image: Image) -> None:
    """As where images are loaded lazily: nobody but the user knows how long is too long."""
    late = 'case "$*" in *worker-0*) sleep 40 ;; *) sleep 130 ;; esac'
    job = slow_to_launch(cluster, image, late, "mpirun", RING)
    assert "the job goes on" in ended_well(job)
