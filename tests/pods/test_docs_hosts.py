"""The manifests of the pages of platforms, and of jobs without a hostfile, played."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import pages
from tests.pods import images
from tests.pods.manifest import play_statefulset
from tests.pods.oci import PodSpec
from tests.pods.operator import KeyPair
from tests.pods.test_docs import TRAIN, enough, my_image, run, running
from tests.pods.test_foreign import TRAINER_MOUNT, trainer_image, trainjob
from tests.pods.test_job import PATIENCE, ranks
from tests.pods.volcano import play_volcano

if TYPE_CHECKING:
    from tests.pods.cluster import Cluster


@pytest.mark.full
@pytest.mark.parametrize("name", images.NAMES)
def test_the_volcano_job_of_its_page(cluster: Cluster, rig: None, name: str) -> None:
    (manifest,) = pages.manifests("volcano")
    master = manifest["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    master["env"] = [{"name": "MPIBOOT_SLOTS", "value": "1"}]
    job = play_volcano(cluster, my_image(name), manifest, workers=2, ssh_port=2206)
    said = run(job)
    assert "role launcher (MPI_HOST, which Volcano's mpi plugin sets" in said
    assert "2 ranks on 2 hosts of /etc/volcano/worker.host" in said
    assert "stay here: MPI_HOST" not in said
    assert ":2206 as root" in job.workers[0].stderr()


@pytest.mark.full
@pytest.mark.parametrize("name", images.NAMES)
def test_a_stateful_set_without_a_hostfile(cluster: Cluster, rig: None, name: str) -> None:
    manifests = pages.manifests("statefulset")
    (launcher,) = pages.manifests("without-configmap")
    (container,) = launcher["containers"]
    # The page's job is four workers of eight slots; the test's two of one.
    smaller = {"4": "2", "8": "1"}
    container["args"] = [smaller.get(word, word) for word in container["args"]]
    manifests[-1]["spec"]["template"]["spec"].update(launcher)
    job = play_statefulset(
        cluster, my_image(name), manifests, {"train-ssh": KeyPair.make().files()}
    )
    assert "2 ranks on 2 hosts of train-worker-[0-1].train" in run(job)


@pytest.mark.full
@pytest.mark.parametrize("name", images.NAMES)
def test_the_trainjob_of_its_page(cluster: Cluster, rig: None, name: str) -> None:
    runtime, job = pages.manifests("trainjob")
    policy = runtime["spec"]["mlPolicy"]["mpi"]
    assert (policy["sshAuthMountPath"], policy["runLauncherAsNode"]) == (TRAINER_MOUNT, True)
    pods = {
        made["name"]: made["template"]["spec"]["template"]["spec"]
        for made in runtime["spec"]["template"]["spec"]["replicatedJobs"]
    }
    assert [pod["securityContext"]["fsGroup"] for pod in pods.values()] == [1000, 1000]
    (worker,) = pods["node"]["containers"]
    image = trainer_image(name).with_files({"/train": TRAIN}, 0o755)
    launcher, workers = trainjob(
        cluster,
        image,
        as_node=True,
        launcher=PodSpec(name="", image=image, args=job["spec"]["trainer"]["args"]),
        node=PodSpec(name="", image=image, args=worker["args"]),
    )
    running([launcher, *workers])
    enough([launcher, *workers])
    assert launcher.wait(PATIENCE) == 0
    assert len(ranks(launcher.stdout())) == 6
    assert f":{worker['readinessProbe']['tcpSocket']['port']} as mpiuser" in workers[0].stderr()
