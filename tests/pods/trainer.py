"""The pods of a TrainJob with Trainer's MPI policy, with its names, variables, modes and fsGroup.

As kubeflow/trainer v2.3.0 makes them (pkg/runtime/framework/plugins/mpi): a JobSet of a launcher
and nodes. With runLauncherAsNode the launcher is one of `numNodes`, and the hostfile's first line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.fields import NotPlayedError, left_out, needed, only
from tests.pods.images import Image
from tests.pods.manifest import Without, play_pod
from tests.pods.oci import PodSpec
from tests.pods.operator import KeyPair
from tests.pods.pod import Pod
from tests.pods.volumes import Files

# Kubeflow Trainer's deepspeed-runtime: mpiuser, and the configuration of mpioperator/base.
_SSHD = (
    "PidFile /home/mpiuser/sshd.pid\nHostKey /home/mpiuser/.ssh/id_rsa\nStrictModes no\nPort 2222\n"
)
TRAINER_MOUNT = "/home/mpiuser/.ssh"


def trainer_image(name: str) -> Image:
    """An image with Trainer's configuration of sshd."""
    return images.image(name).with_files({"/home/mpiuser/.sshd_config": _SSHD})


def trainjob(
    cluster: Cluster, image: Image, *, as_node: bool, launcher: PodSpec, node: PodSpec
) -> tuple[Pod, list[Pod]]:
    """Two nodes of two slots and a launcher, started."""
    specs = (
        replace(pod, env={"MPIBOOT_LOG_LEVEL": "debug", **pod.env}) for pod in (launcher, node)
    )
    made = _pods(cluster, image, "train", *specs, nodes=2, as_node=as_node)
    for pod in (*made.workers, made.launcher):
        pod.start()
        pod.publish()
    return made.launcher, made.workers


def play_trainjob(cluster: Cluster, image: Image, manifests: Sequence[dict[str, Any]]) -> Without:
    """The pods of a TrainJob and the ClusterTrainingRuntime beside it."""
    by_kind = {made["kind"]: left_out(made)[0] for made in manifests}
    only(by_kind, "ClusterTrainingRuntime", "TrainJob")
    runtime, job = (needed(by_kind, kind) for kind in ("ClusterTrainingRuntime", "TrainJob"))
    if needed(job, "spec", "runtimeRef", "name") != runtime["metadata"]["name"]:
        raise NotPlayedError("TrainJob: its runtime is not the one in this file")
    trainer = only(
        needed(job, "spec", "trainer"), "image", "command", "args", "numNodes", "numProcPerNode"
    )
    policy = only(
        needed(runtime, "spec", "mlPolicy", "mpi"),
        *("numProcPerNode", "mpiImplementation", "sshAuthMountPath", "runLauncherAsNode"),
    )
    spec = only(runtime["spec"], "mlPolicy", "template")
    as_node = policy.get("runLauncherAsNode", False)
    pods = {
        replicated["name"]: play_pod(replicated["template"]["spec"]["template"]["spec"])
        for replicated in spec["template"]["spec"]["replicatedJobs"]
    }
    own: dict[str, Any] = {name: trainer[name] for name in ("command", "args") if name in trainer}
    launcher, node = (
        PodSpec(name="", image=image, **fields) for fields in (pods["launcher"] | own, pods["node"])
    )
    return _pods(
        cluster,
        image,
        job["metadata"]["name"],
        launcher,
        node,
        nodes=trainer.get("numNodes", spec["mlPolicy"].get("numNodes", 1)) - as_node,
        slots={**policy, **trainer}["numProcPerNode"],
        mount=policy["sshAuthMountPath"],
        as_node=as_node,
    )


def _pods(
    cluster: Cluster,
    image: Image,
    job: str,
    launcher: PodSpec,
    node: PodSpec,
    *,
    nodes: int,
    as_node: bool,
    slots: int = 2,
    mount: str = TRAINER_MOUNT,
) -> Without:
    keys = KeyPair.make()
    secret = {"id_rsa": 0o640, "id_rsa.pub": 0o644, "authorized_keys": 0o644}
    names = [f"{job}-node-0-{index}" for index in range(nodes)]
    first = f"{job}-launcher-0-0"
    listed = [first, *names] if as_node else names
    hostfile = "".join(f"{host}.{job} slots={slots}\n" for host in listed)
    own = {"HOME": str(PurePath(mount).parent)}

    def made(spec: PodSpec, name: str, env: Mapping[str, str], *more: Files) -> Pod:
        volumes = [Files(mount, keys.files(), modes=secret, fs_group=1000), *more, *spec.volumes]
        env = {**own, "JOB_COMPLETION_INDEX": name[-1], **spec.env, **env}
        common = replace(spec, image=image, subdomain=job, user=1000, groups=[1000])
        return cluster.pod(replace(common, name=name, hostname=name, env=env, volumes=volumes))

    env = {
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_set_default_slots": str(slots),
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    }
    workers = [made(node, name, {}) for name in names]
    hosts = Files("/etc/mpi", {"hostfile": hostfile}, 0o444)
    return Without(workers, made(launcher, first, env, hosts))
