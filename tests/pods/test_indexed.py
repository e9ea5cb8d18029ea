"""One indexed Job whose pod 0 is launcher and host, and a JobSet: as their page has them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.manifests import examples
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.indexed import play_indexed_job
from tests.pods.jobs import PATIENCE, RING, ranks
from tests.pods.network import Link
from tests.pods.operator import KeyPair
from tests.pods.pod import Pod
from tests.pods.test_docs import enough, my_image, running
from tests.waiting import until

QUICK = "openmpi-4.1"


def job(cluster: Cluster, image: Image, **env: str) -> list[Pod]:
    """The example's Job, started; `env` replaces variables of all pods."""
    manifests = examples.read("jobs/indexed-job.yaml")
    objects = {"train-ssh": KeyPair.make().files()}
    made = play_indexed_job(cluster, image, manifests, objects)
    for pod in made:
        pod.spec = replace(pod.spec, env={**pod.spec.env, **env})
        pod.start()
        pod.publish()
    return made


@pytest.mark.full
def test_workers_of_an_indexed_job_stay_for_the_next_launcher(cluster: Cluster, rig: None) -> None:
    """A launcher whose program failed is started again, and the worker is still there."""
    fails = f"#!/bin/sh\n[ $(hostname) = train-0 ] || [ -e /tmp/enough ] || exit 7\nexec {RING}\n"
    launcher, worker = job(cluster, images.image(QUICK).with_files({"/train": fails}, 0o755))
    assert launcher.wait(PATIENCE) == 7
    enough([worker])
    launcher.start()
    assert [pod.wait(PATIENCE) for pod in (launcher, worker)] == [0, 0]
    assert "attempt 2; the last one" in " ".join(launcher.stderr().split())


@pytest.mark.full
def test_pod_0_of_a_stateful_set_goes_by_its_name(cluster: Cluster, rig: None) -> None:
    """Its pods have no variable with their number; a worker that ended would be started again."""
    launcher, worker = job(cluster, my_image(QUICK), JOB_COMPLETION_INDEX="")
    running([launcher, worker])
    enough([launcher, worker])
    assert launcher.wait(PATIENCE) == 0
    assert ranks(launcher.stdout()) == [(n, 4, f"train-{n // 2}") for n in range(4)]
    assert "role launcher (MPIBOOT_ROLE: pod 0, by the host name train-0)" in launcher.stderr()
    assert worker.running


# What torchrun does with its endpoint: pod 0 listens there, the others connect.
TORCHRUN = """#!/opt/mpiboot/bin/python3
import os, socket, sys, time
at = sys.argv[sys.argv.index("--rdzv-endpoint") + 1].partition(":")
place, index = (at[0], int(at[2])), int(os.environ["JOB_COMPLETION_INDEX"])
if index:
    while True:
        try:
            meeting = socket.create_connection(place, timeout=60)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    meeting.sendall(f"{index} {os.environ['NCCL_SOCKET_IFNAME']}".encode())
else:
    server = socket.create_server(("", place[1]))
    server.settimeout(60)
    print(server.accept()[0].makefile().read(), os.environ["GLOO_SOCKET_IFNAME"])
sys.exit(7 * index)
"""


def test_torchrun_waits_for_the_name_of_pod_0(cluster: Cluster, rig: None) -> None:
    """It then has this pod's own links; the pod's own variable stays, and so does the status."""
    image = images.image(QUICK).with_files({"/usr/local/bin/torchrun": TORCHRUN}, 0o755)
    first, second = play_indexed_job(
        cluster,
        image,
        examples.read("jobs/torchrun.yaml"),
        {},
        links=(Link(), Link("net1", "br-data")),
    )
    second.start()
    until(lambda: "waiting for DNS for train-0.train (NXDOMAIN)" in second.stderr())
    first.start()
    first.publish()
    assert [pod.wait(PATIENCE) for pod in (first, second)] == [0, 7]
    assert first.stdout() == "1 =net1 net1\n"
    assert "train-0.train (--rdzv-endpoint) is 10." in second.stderr()
