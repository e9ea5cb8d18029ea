"""How jobs end: the exit code and the sentence for what really happened, with a real MPI."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.pods.ends import (
    DAEMONS,
    FOREVER,
    PATIENCE,
    PROMISED,
    RING,
    agents,
    alive,
    end_line,
    kill,
    launches,
    left,
    ranks,
    running,
    until,
)
from tests.pods.operator import mpijob
from tests.pods.volumes import Files

if TYPE_CHECKING:
    from tests.pods.cluster import Cluster
    from tests.pods.images import Image
    from tests.pods.operator import Job


ENDS = [
    ([RING, "--exit", "3"], 3, "the program ended with 3"),
    ([RING, "--kill"], 137, "a rank was ended by SIGKILL"),
    ([RING], 0, "the program ended well"),
]
MORE = [
    ([RING, "--exit", "3", "--no-finalize"], 3, "the program ended with"),
    ([RING, "--exit", "255"], 255, "the program ended with 255"),
    ([RING, "--exit", "255", "--no-finalize"], 255, "the program ended with"),
    ([RING, "--segv"], 139, "a rank was ended by SIGSEGV"),
    ([RING, "--abort", "7"], 7, "the program ended with 7"),
    ([RING], 0, "the program ended well"),
]


@pytest.mark.parametrize(
    "rows", [ENDS, pytest.param(MORE, marks=pytest.mark.full)], ids=["some", "more"]
)
def test_what_the_program_ends_with_is_what_the_job_ends_with(
    cluster: Cluster, image: Image, rows: list[tuple[list[str], int, str]]
) -> None:
    """One launch after another on the same workers, each with an end of its own."""
    ended = launches(cluster, image, [line for line, _, _ in rows])
    for (line, code, sentence), (got, said) in zip(rows, ended, strict=True):
        # 4.1 returns 1 for the ranks that end with 0 and without MPI_Finalize.
        assert got in ({code, 1} if "--no-finalize" in line else {code})
        assert end_line(said).partition(f"exit {got}: ")[2].startswith(sentence)


def test_a_program_that_one_worker_lacks(cluster: Cluster, image: Image) -> None:
    script = "#!/bin/sh\nexit 0\n"
    job = mpijob(
        cluster,
        image,
        workers=2,
        launcher_args=["/opt/only/here"],
        each_worker={0: {"volumes": [Files("/opt/only", {"here": script}, 0o755)]}},
        launcher={"volumes": [Files("/opt/only", {"here": script}, 0o755)]},
    ).start()
    code = job.wait(PATIENCE)
    assert code not in (0, 69)
    assert "/opt/only/here" in job.launcher.stderr()


def lost(job: Job, host: int = 1) -> None:
    """The job ended because that worker was lost, and everybody is told."""
    assert job.wait(PATIENCE) == 69
    said = job.launcher.termination_log()
    assert said.startswith("host-lost: ")
    assert f"pi-worker-{host}" in said.splitlines()[0]
    assert f"pi-worker-{1 - host}" not in said.splitlines()[0]
    assert "exit 69" in end_line(job.launcher.stderr())
    until(lambda: not left(job.workers), PROMISED)


def test_a_worker_pod_that_is_deleted(cluster: Cluster, image: Image) -> None:
    job = running(cluster, image)
    job.workers[1].delete()
    lost(job)


def test_a_worker_whose_container_is_killed(cluster: Cluster, image: Image) -> None:
    job = running(cluster, image)
    job.workers[1].kill()
    lost(job)


def test_a_daemon_that_is_killed_takes_its_rank_along(cluster: Cluster, image: Image) -> None:
    """Open MPI 5 by itself returns 0 and leaves the rank running."""
    job = running(cluster, image)
    kill(alive(job.workers[1], *DAEMONS))
    lost(job)


def test_an_agent_that_is_killed(cluster: Cluster, image: Image) -> None:
    job = running(cluster, image)
    kill(agents(job.launcher, "pi-worker-1"))
    lost(job)


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("event", ["pod", "daemon"])
def test_a_lost_worker_is_never_a_success(cluster: Cluster, image: Image, event: str) -> None:
    """What Open MPI 5 returns then is random by itself."""
    for _ in range(20):
        job = running(cluster, image)
        if event == "pod":
            job.workers[1].kill()
        else:
            kill(alive(job.workers[1], *DAEMONS))
        lost(job)
        for pod in job.pods:
            pod.delete()


def test_a_link_that_is_cut_for_good(cluster: Cluster, image: Image) -> None:
    """Nobody gets a FIN; the keep-alives of both sides find out."""
    job = running(cluster, image, env={"MPIBOOT_SSH_KEEPALIVE": "3"})
    job.workers[1].link_down(silent=True)
    lost(job)


@pytest.mark.full
def test_a_link_that_comes_back_in_time(cluster: Cluster, image: Image) -> None:
    job = running(cluster, image, RING, "--sleep", "8", env={"MPIBOOT_SSH_KEEPALIVE": "30"})
    job.workers[1].link_down(silent=True)
    time.sleep(5)
    job.workers[1].link_up()
    assert job.wait(PATIENCE) == 0
    assert "the program ended well" in end_line(job.launcher.stderr())


def test_names_that_vanish_while_the_job_runs(cluster: Cluster, image: Image) -> None:
    job = running(cluster, image, RING, "--sleep", "2")
    for pod in job.pods:
        pod.unpublish()
    assert job.wait(PATIENCE) == 0


def with_agent(cluster: Cluster, image: Image, script: str, **env: str) -> Job:
    """A job whose own launch agent, which mpiboot keeps, is a script."""
    five = "5.0" in image.name
    name = "PRTE_MCA_plm_ssh_agent" if five else "OMPI_MCA_plm_rsh_agent"
    return mpijob(
        cluster,
        image,
        workers=2,
        launcher_args=list(FOREVER),
        launcher={
            "volumes": [Files("/opt/agent", {"agent": f"#!/bin/sh\n{script}\n"}, 0o755)],
            "env": {name: "/opt/agent/agent", "MPIBOOT_LAUNCH_TIMEOUT": "3", **env},
        },
    ).start()


@pytest.mark.full
def test_an_agent_that_hangs(cluster: Cluster, image: Image) -> None:
    job = with_agent(cluster, image, "exec sleep 1000")
    assert job.wait(PATIENCE) == 69
    said = job.launcher.termination_log()
    assert said.startswith("launch-timeout: ")
    assert "pi-worker-0" in said
    assert "pi-worker-1" in said


@pytest.mark.full
def test_an_agent_that_lies(cluster: Cluster, image: Image) -> None:
    """It ends well and has started nothing."""
    job = with_agent(cluster, image, "exit 0")
    assert job.wait(PATIENCE) == 69
    said = job.launcher.termination_log()
    assert said.startswith("launch-timeout: ")
    assert "ended with 0" in said


def test_a_rank_is_left_nowhere_when_another_one_fails(cluster: Cluster, image: Image) -> None:
    job = running(cluster, image, workers=2)
    kill(ranks(job.workers[0]))
    code = job.wait(PATIENCE)
    assert code in (137, 14)
    until(lambda: not left(job.workers), PROMISED)
