"""Images whose Open MPI has files of parameters of its own."""

from __future__ import annotations

import pytest

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import RING, ended, ranks, spanned
from tests.pods.marks import OLD_IMAGE, ONE_IMAGE

ETC = "/etc/openmpi/openmpi-mca-params.conf"
# Horovod's image writes these (its Dockerfile.test.cpu), TensorFlow's of the MPI Operator too.
HOROVOD = "hwloc_base_binding_policy = none\nrmaps_base_mapping_policy = slot\n"
HOROVOD += "btl_tcp_if_exclude = lo,docker0\n"


@ONE_IMAGE
def test_links_that_the_images_file_leaves_out_end_no_job(cluster: Cluster, image: Image) -> None:
    image = image.with_files({ETC: HOROVOD})
    job = spanned(cluster, image, data_link="net1")
    assert "mutually exclusive" not in job.launcher.stderr()
    message = f"not set: OMPI_MCA_btl_tcp_if_exclude is (set in {ETC}), and both can't be"
    assert message in job.launcher.stderr()


@OLD_IMAGE
def test_links_that_a_workers_own_file_leaves_out_end_no_job(
    cluster: Cluster, image: Image
) -> None:
    """Each rank reads the file of its own pod: the workers' image is another one."""
    there = {"image": image.with_files({ETC: HOROVOD})}
    job = spanned(cluster, image, worker=there)
    assert f"(set in {ETC} of pi-worker-0.pi.default.svc)" in job.launcher.stderr()


@ONE_IMAGE
@pytest.mark.full
def test_the_mapping_of_the_users_file_stands(cluster: Cluster, image: Image) -> None:
    names = {"/root/.openmpi/mca-params.conf": "rmaps_base_mapping_policy = node\n"}
    names |= {"/root/.prte/mca-params.conf": "rmaps_default_mapping_policy = node\n"}
    job = ended(cluster, image.with_files(names), "mpirun", "-n", "2", RING, slots=2)
    hosts = [host for _, _, host in ranks(job.launcher.stdout())]
    assert hosts == ["pi-worker-0", "pi-worker-1"]
