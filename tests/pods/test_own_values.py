"""What users, images and workers set themselves: links, files of parameters, search paths."""

from __future__ import annotations

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, RING, ended, ranks, spanned
from tests.pods.marks import MOMENT, OLD_IMAGE, ONE_IMAGE, crossed
from tests.pods.operator import mpijob

OLD = images.NAMES[0]
BOTH = "pi-worker-0.pi.default.svc, pi-worker-1.pi.default.svc has no such link"


@OLD_IMAGE
def test_a_link_that_no_worker_has_is_said_before_the_start(cluster: Cluster, image: Image) -> None:
    """MPI itself ends with "unable to reach" then, far from the cause."""
    line = ["mpirun", "--mca", "btl_tcp_if_include", "ens5", RING]
    job = mpijob(cluster, image, launcher_args=line).start()
    assert job.wait(PATIENCE) != 0
    before, starting, _ = job.launcher.stderr().partition("mpiboot: starting mpirun")
    assert starting
    message = f"OMPI_MCA_btl_tcp_if_include=ens5: {BOTH} (there are lo, eth0)"
    assert message in before


@ONE_IMAGE
@pytest.mark.full
def test_a_link_of_the_daemons_that_the_launcher_lacks(cluster: Cluster, image: Image) -> None:
    name = "oob_tcp_if_include" if image.name == OLD else "prte_if_include"
    prefix = "OMPI_MCA_" if image.name == OLD else "PRTE_MCA_"
    job = ended(
        cluster, image, "mpirun", RING, code=72, launcher={"env": {f"{prefix}{name}": "ens5"}}
    )
    message = f"{prefix}{name}=ens5: no such link in the launcher's pod (there are lo, eth0)"
    assert message in job.launcher.stderr()
    assert "starting mpirun" not in job.launcher.stderr()


ETC = "/etc/openmpi/openmpi-mca-params.conf"
# Horovod's image writes these (its Dockerfile.test.cpu), TensorFlow's of the MPI Operator too.
HOROVOD = "hwloc_base_binding_policy = none\nrmaps_base_mapping_policy = slot\n"
HOROVOD += "btl_tcp_if_exclude = lo,docker0\n"


@crossed("of", ["the image", "a worker"])
def test_links_excluded_by_an_mpi_file(cluster: Cluster, image: Image, of: str) -> None:
    """Each rank reads the file of its own pod, whose image may be another one."""
    there = image.with_files({ETC: HOROVOD})
    workers_own = of == "a worker"
    worker = {"image": there} if workers_own else {}
    chosen = image if workers_own else there
    job = spanned(cluster, chosen, data_link="net1", worker=worker)
    assert "mutually exclusive" not in job.launcher.stderr()
    where = f"set in {ETC}{' of pi-worker-0.pi.default.svc' if workers_own else ''})"
    assert f"not set: OMPI_MCA_btl_tcp_if_exclude is {where}" in job.launcher.stderr()


@ONE_IMAGE
@pytest.mark.full
def test_the_mapping_of_the_users_file_stands(cluster: Cluster, image: Image) -> None:
    names = {"/root/.openmpi/mca-params.conf": "rmaps_base_mapping_policy = node\n"}
    names |= {"/root/.prte/mca-params.conf": "rmaps_default_mapping_policy = node\n"}
    job = ended(cluster, image.with_files(names), "mpirun", "-n", "2", RING, slots=2)
    hosts = [host for _, _, host in ranks(job.launcher.stdout())]
    assert hosts == ["pi-worker-0", "pi-worker-1"]


USUAL = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
THEIRS = {"PATH": f"/opt/conda/bin:{USUAL}", "LD_LIBRARY_PATH": "/opt/conda/lib"}
# A name that only the folder of the workers' own image has.
FILES = {"/opt/conda/bin/where": f"#!/bin/sh\n{MOMENT}echo theirs $LD_LIBRARY_PATH\n"}


@crossed("words", [(), ("-x", "LD_LIBRARY_PATH")], ["own", "-x"])
def test_workers_of_another_image_find_their_own_programs(
    cluster: Cluster, image: Image, words: tuple[str, ...]
) -> None:
    job = ended(
        cluster,
        image,
        "mpirun",
        *words,
        "where",
        launcher={"env": {"LD_LIBRARY_PATH": "/opt/launcher/lib"}},
        worker={"env": THEIRS, "image": image.with_files(FILES, mode=0o755)},
    )
    paths = [line.split()[1] for line in job.launcher.stdout().splitlines()]
    found = "/opt/launcher/lib" if words else "/opt/conda/lib"
    assert [found in path for path in paths] == [True] * 2
    assert "has another one of its own" in job.launcher.stderr()
