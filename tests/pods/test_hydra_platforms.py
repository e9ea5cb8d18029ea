"""MPICH and Intel MPI on the other platforms: Trainer, Volcano, StatefulSet, indexed Job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.manifests import examples
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.indexed import play_indexed_job
from tests.pods.jobs import PATIENCE, end_line
from tests.pods.manifest import play_statefulset
from tests.pods.oci import PodSpec
from tests.pods.operator import KeyPair
from tests.pods.pod import Pod
from tests.pods.trainer import trainer_image, trainjob
from tests.pods.volcano import play_volcano
from tests.waiting import until

# The launcher, and the hosts in the order of their ranks.
Played = tuple[Pod, list[Pod]]
Play = Callable[[Cluster, str, Sequence[str]], Played]

# What the launcher's pod sets, for all ranks or for itself; and what each host's own pod sets.
LAUNCHER = {"NCCL_X": "all", "BOTH": "launcher", "MPIBOOT_LOG_LEVEL": "debug"}
HOST = {"NCCL_X": "host", "BOTH": "host", "OWN": "host"}


def _with_env(pod: Pod, env: Mapping[str, str]) -> Pod:
    pod.spec = replace(pod.spec, env={**pod.spec.env, **env})
    return pod


def _start(launcher: Pod, hosts: list[Pod]) -> Played:
    for pod in dict.fromkeys([launcher, *hosts]):
        _with_env(pod, {**(HOST if pod in hosts else {}), **(LAUNCHER if pod is launcher else {})})
        pod.start()
        pod.publish()
    return launcher, hosts


def trainer(cluster: Cluster, name: str, program: Sequence[str]) -> Played:
    """The launcher is a node too; two slots each."""
    image = trainer_image(name)
    launcher, workers = trainjob(
        cluster,
        image,
        as_node=True,
        launcher=PodSpec(name="", image=image, args=program, env={**HOST, **LAUNCHER}),
        node=PodSpec(name="", image=image, args=["worker"], env=HOST),
    )
    return launcher, [launcher, *workers]


def volcano(cluster: Cluster, name: str, program: Sequence[str]) -> Played:
    """Of the example."""
    (manifest,) = examples.read("volcano/job.yaml")
    (master,) = manifest["spec"]["tasks"][0]["template"]["spec"]["containers"]
    master["args"] = program
    job = play_volcano(cluster, images.image(name), manifest)
    return _start(job.launcher, job.workers)


def stateful_set(cluster: Cluster, name: str, program: Sequence[str]) -> Played:
    """Of the example, with short names that need the launcher's search list."""
    manifests = examples.read("statefulset/configmap.yaml")
    pod: dict[str, Any] = manifests[-1]["spec"]["template"]["spec"]
    del pod["initContainers"]
    pod["dnsConfig"] = {"searches": ["train.default.svc.cluster.local"]}
    pod["containers"][0]["args"] = program
    hosts = {"hostfile": "train-worker-0 slots=2\ntrain-worker-1 slots=2\n"}
    objects = {"train-ssh": KeyPair.make().files(), "train-hosts": hosts}
    job = play_statefulset(cluster, images.image(name), manifests, objects)
    return _start(job.launcher, job.workers)


def indexed_job(cluster: Cluster, name: str, program: Sequence[str]) -> Played:
    """Of the example: pod 0 is the launcher and a host too."""
    manifests = examples.read("jobs/indexed-job.yaml")
    (container,) = manifests[1]["spec"]["template"]["spec"]["containers"]
    container["args"] = program
    objects = {"train-ssh": KeyPair.make().files()}
    pods = play_indexed_job(cluster, images.image(name), manifests, objects)
    return _start(pods[0], pods)


TELL = (
    'echo "$PMI_RANK $(hostname) $HOSTNAME own=$OWN both=$BOTH nccl=$NCCL_X home=$HOME"; '
    'if [ "$PMI_RANK" != 0 ]; then echo $$ > "/tmp/rank-$PMI_RANK"; exit; fi; '
    "until [ -e /tmp/end ]; do sleep 0.1; done; exit 3"
)
# Rank 0 fails when the others have ended: Hydra kills those that have not, and mixes the codes.
# Intel MPI leaves them as zombies until then.
OTHERS = (
    'for f in /tmp/rank-*; do [ ! -s "$f" ] || while grep -q "^State:.[^Z]" '
    '"/proc/$(cat "$f")/status" 2> /dev/null; do sleep 0.1; done; done'
)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "play"),
    [
        *(("intel-mpi", play) for play in (trainer, volcano, stateful_set, indexed_job)),
        ("mpich-4.0", trainer),
        ("mpich-5.0", indexed_job),
    ],
)
def test_ranks_on_every_host_each_with_its_own_environment(
    cluster: Cluster, rig: None, name: str, play: Play
) -> None:
    """Also those in the launcher's own pod; the user's value for all wins, and the exit status."""
    launcher, hosts = play(cluster, name, ["mpirun", "sh", "-c", TELL])
    until(lambda: launcher.stdout().count("own=") == 2 * len(hosts) or not launcher.running)
    lines = sorted(launcher.stdout().splitlines())
    assert lines == [
        f"{rank} {pod.hostname} {pod.hostname} own=host "
        f"both={'launcher' if pod is launcher else 'host'} nccl=all home=/home/mpiuser"
        for rank, pod in enumerate(pod for pod in hosts for _ in range(2))
    ]
    for pod in hosts:
        pod.shell(OTHERS)
    hosts[0].shell("touch /tmp/end")
    assert launcher.wait(PATIENCE) == 3
    assert "exited with code 3" in end_line(launcher.stderr())
