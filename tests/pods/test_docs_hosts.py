"""The manifests of the pages of platforms, and of jobs without a hostfile, played."""

from __future__ import annotations

import pytest

from tests import pages
from tests.manifests import examples
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.jobs import PATIENCE, ranks
from tests.pods.manifest import play_statefulset
from tests.pods.operator import KeyPair
from tests.pods.test_docs import enough, my_image, run, running
from tests.pods.trainer import play_trainjob
from tests.pods.volcano import play_volcano


@pytest.mark.full
@pytest.mark.parametrize("name", images.NAMES)
def test_the_volcano_job_of_its_page(cluster: Cluster, rig: None, name: str) -> None:
    """With another port of the ssh plugin's (--ssh-port): workers that are told none take it."""
    (manifest,) = examples.read("volcano/job.yaml")
    (worker,) = manifest["spec"]["tasks"][1]["template"]["spec"]["containers"]
    del worker["env"]
    job = play_volcano(cluster, my_image(name), manifest, ssh_port=2206)
    message = run(job)
    assert "role launcher (MPI_HOST, which volcano sets" in message
    assert "4 ranks on 2 hosts of /etc/volcano/worker.host" in message
    assert "not forwarded to ranks: MPI_HOST" not in message
    assert ":2206 as mpiuser" in job.workers[0].stderr()


@pytest.mark.full
@pytest.mark.parametrize("name", images.NAMES)
def test_a_stateful_set_without_a_hostfile(cluster: Cluster, rig: None, name: str) -> None:
    manifests = examples.read("statefulset/configmap.yaml")
    (launcher,) = pages.manifests("without-configmap")
    manifests[-1]["spec"]["template"]["spec"] = launcher
    job = play_statefulset(
        cluster, my_image(name), manifests, {"train-ssh": KeyPair.make().files()}
    )
    assert "4 ranks on 2 hosts of train-worker-[0-1].train" in run(job)


@pytest.mark.full
@pytest.mark.parametrize("name", images.NAMES)
def test_the_trainjob_of_its_page(cluster: Cluster, rig: None, name: str) -> None:
    played = play_trainjob(cluster, my_image(name), examples.read("trainer/trainjob.yaml"))
    played.start()
    hosts = [played.launcher, *played.workers]
    running(hosts)
    enough(hosts)
    assert played.launcher.wait(PATIENCE) == 0
    assert ranks(played.launcher.stdout()) == [
        (rank, 6, hosts[rank // 2].hostname) for rank in range(6)
    ]
    assert ":2222 as mpiuser" in played.workers[0].stderr()
