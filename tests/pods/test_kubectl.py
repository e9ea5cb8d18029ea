"""Jobs whose pods are entered by ``kubectl exec``: no sshd, no key, no DNS record.

kubectl and the API server are FAKES of the tests (``api_server``); pods, processes and MPI are
real.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpiboot.hosts import remote_commands
from tests.manifests import examples
from tests.pods import images
from tests.pods.api_server import ApiServer
from tests.pods.cluster import Cluster
from tests.pods.jobs import FOREVER, RING, end_line, rank_processes, ranks
from tests.pods.manifest import play_pod
from tests.pods.oci import PodSpec
from tests.pods.operator import hostfile_of
from tests.pods.pod import Pod, Process
from tests.pods.volumes import Files
from tests.waiting import until

# The first process reaps orphans and exits at once on SIGTERM.
IDLE = ("sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done")
OTHERS = ("openmpi-4.1", "mpich-4.0", "intel-mpi")
NAMES = ("openmpi-5.0", *(pytest.param(name, marks=pytest.mark.full) for name in OTHERS))
each = pytest.mark.parametrize("name", NAMES)
IDLES = ("sleep", "1000")
API = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def server(cluster: Cluster, tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(cluster, tmp_path) as made:
        yield made


def launcher(
    cluster: Cluster, server: ApiServer, name: str, *words: str, pod: str = "launcher", **more: Any
) -> Pod:
    """The pod of a Job with kubectl and a service account; `env` is added."""
    hosts = ("w-0.w.default.svc", "w-1.w.default.svc")
    text = hostfile_of("MPICH" if name in OTHERS[1:] else "OpenMPI", hosts, 1)
    env = {
        "MPIBOOT_ROLE": "launcher",
        "MPIBOOT_LOG_LEVEL": "debug",
        "MPIBOOT_HOSTFILE": "/etc/mpi/hostfile",
        "MPIBOOT_LAUNCH_AGENT": "kubectl",
        **API,
        **more.get("env", {}),
    }
    volumes = [Files("/etc/mpi", {"hostfile": text}), *server.volumes()]
    image = images.image(name)
    return cluster.pod(PodSpec(name=pod, image=image, args=words, env=env, volumes=volumes)).start()


def started(
    cluster: Cluster, server: ApiServer, name: str, *words: str, stale: str = "", **more: Any
) -> tuple[Pod, list[Pod]]:
    """A job of two workers of a StatefulSet without sshd, whose processes are no root's.

    On the first of them a process with a mark may be left.
    """
    image = images.image(name if name == "intel-mpi" else f"{name}-nosshd")
    common = PodSpec(name="w", image=image, command=IDLE, user=1000)
    pods = [
        cluster.pod(replace(common, name=host, env={"OWN": host})).start()
        for host in ("w-0", "w-1")
    ]
    if stale:
        pods[0].shell(f"MPIBOOT_LAUNCH_ID={stale} sleep 99999 < /dev/null > /dev/null 2>&1 &")
    return launcher(cluster, server, name, *words, **more), pods


def others(pods: Sequence[Pod]) -> list[Process]:
    """What is in workers beside their first process: nothing is to be left there."""
    return [
        item
        for pod in pods
        for item in pod.processes()
        if item.pid != 1 and item.args[:2] != IDLES and item.state != "Z"
    ]


# Each rank says where it is and as whom; the last one's status is the job's.
TELL = (
    "rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; "
    'echo "rank $rank on $(hostname) as $(id -u) own=$OWN"; '
    "[ $rank = 0 ] || { until [ -e /tmp/end ]; do sleep 0.1; done; exit 3; }"
)


@each
def test_a_job_without_sshd_key_and_names(cluster: Cluster, server: ApiServer, name: str) -> None:
    """Its program's status, and a signal: nothing is left, of an earlier launcher either."""
    env = {"MPIBOOT_LAUNCH_AGENT": "auto"}
    old = f"{remote_commands.job_id('namespace default')}-{'0' * 16}@old@2026-01-02T03:04:05Z"
    job, pods = started(cluster, server, name, "mpirun", "sh", "-c", TELL, env=env, stale=old)
    until(lambda: job.stdout().count("rank ") == 2 or not job.running)
    pods[1].shell("touch /tmp/end")
    assert job.wait() == 3, job.stderr()
    message = sorted(line for line in job.stdout().splitlines() if line.startswith("rank "))
    assert message == [f"rank {n} on w-{n} as 1000 own=w-{n}" for n in (0, 1)]
    assert "w-0.w.default.svc: ended 1 process left by an earlier launcher" in job.stderr()
    assert "the job has no SSH key, but kubectl" in job.stderr()
    again = launcher(cluster, server, name, *FOREVER, env=env, pod="again")
    until(lambda: "ranks run on" in again.stderr() and all(map(rank_processes, pods)))
    again.signal(signal.SIGTERM)
    assert again.wait() == 143
    until(lambda: not others(pods))


@pytest.mark.full
@pytest.mark.parametrize("name", ["openmpi-4.1", "openmpi-5.0", "mpich-4.0"])
@pytest.mark.parametrize("what", ["launcher", "worker"])
def test_a_pod_that_is_killed(cluster: Cluster, server: ApiServer, name: str, what: str) -> None:
    """Kubectl ends nothing in a pod: the session there sees that its standard input is closed."""
    job, pods = started(cluster, server, name, *FOREVER)
    until(lambda: "ranks run on" in job.stderr() and all(map(rank_processes, pods)))
    (job if what == "launcher" else pods[1]).kill()
    code = job.wait()
    if what == "worker":
        assert code == 69
        lost = "w-1.w.default.svc: its kubectl session was lost while the job ran"
        assert lost in end_line(job.stderr())
    until(lambda: not others(pods if what == "launcher" else pods[:1]))


@pytest.mark.full
def test_the_manifest_of_the_page(cluster: Cluster, server: ApiServer) -> None:
    """Its pods, with the rig's images and program in place of the page's."""
    account, _, _, statefulset, job = examples.read("kubectl/statefulset.yaml")
    owner = job["spec"]["template"]["spec"]
    assert owner["serviceAccountName"] == account["metadata"]["name"]
    image = images.image("openmpi-5.0-nosshd").without("/opt/mpiboot")
    fields = play_pod(statefulset["spec"]["template"]["spec"])
    for n in range(statefulset["spec"]["replicas"]):
        name = f"{statefulset['metadata']['name']}-{n}"
        cluster.pod(PodSpec(name=name, image=image, **fields)).start()
    fields = play_pod(owner) | {"args": ["mpirun", RING]}
    fields["env"] |= API
    fields["volumes"] += server.volumes()
    made = cluster.pod(PodSpec(name="train", image=images.image("openmpi-5.0"), **fields)).start()
    assert made.wait() == 0, made.stderr()
    assert ranks(made.stdout()) == [(n, 2, f"train-worker-{n}") for n in (0, 1)]
