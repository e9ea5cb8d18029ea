"""One process has the sessions of all agents, over the connections that the gate has opened."""

from __future__ import annotations

import signal

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, PROMISED, RING, alive
from tests.pods.marks import ONE_IMAGE
from tests.pods.operator import Job, mpijob
from tests.pods.volumes import Files
from tests.waiting import until


def carried_by_one_process(job: Job) -> None:
    """Each agent is a shell that waits, with no process below it."""
    words = [word for item in job.launcher.processes() for word in item.args]
    assert sum(word.endswith("libexec/agent") for word in words) == len(job.workers)
    assert not [word for word in words if word.rpartition("/")[2] == "ssh"]


@pytest.mark.full
def test_a_signal_while_daemons_are_launched(cluster: Cluster, image: Image) -> None:
    """Each session runs something that never becomes a daemon."""
    slow = Files("/opt/slow", {"daemon": "#!/bin/sh\nexec sleep 1000\n"}, 0o755)
    new = "5.0" in image.name
    name = "PRTE_MCA_prte_launch_agent" if new else "OMPI_MCA_orte_launch_agent"
    job = mpijob(
        cluster, image, launcher={"env": {name: "/opt/slow/daemon"}}, worker={"volumes": [slow]}
    ).start()
    until(lambda: all(alive(worker, "sleep") for worker in job.workers))
    job.launcher.signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == 143
    assert job.launcher.termination_log().startswith("signal: ")
    until(lambda: not [item for worker in job.workers for item in alive(worker, "sleep")], PROMISED)


@ONE_IMAGE
def test_output_in_a_file_needs_no_process_of_an_agents_own(cluster: Cluster, image: Image) -> None:
    """As in a script; each agent is a shell that waits, with no process below it."""
    script = f"(echo first; mpiboot mpirun {RING} --sleep 1000) > /tmp/log 2> /tmp/errors"
    job = mpijob(cluster, image, launcher_command=["sh", "-c", script]).start()
    until(lambda: job.launcher.shell("cat /tmp/log || :").count("rank ") == 2)
    carried_by_one_process(job)
    assert job.launcher.shell("cat /tmp/log").startswith("first\n")


@pytest.mark.full
@pytest.mark.parametrize("supervise", ["on", "off"])
def test_ranks_add_a_host_as_with_plain_mpirun(cluster: Cluster, rig: None, supervise: str) -> None:
    """Which ends with 1, as 4.1 has no slot there."""
    job = mpijob(
        cluster,
        images.image("openmpi-4.1"),
        hostfile="pi-worker-0.pi.default.svc slots=1\n",
        launcher_args=["mpirun", "/opt/programs/uneven", "add", "pi-worker-1.pi.default.svc"],
        launcher={"env": {"MPIBOOT_SUPERVISE": supervise}},
    ).start()
    job.workers[1].publish()
    assert job.wait(PATIENCE) == 1
    assert "MPI_Comm_spawn" in job.launcher.stderr()
    assert "255" not in job.launcher.stderr()
