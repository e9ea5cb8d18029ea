"""The pods of a TrainJob with Trainer's MPI policy, with its names, variables, modes and fsGroup.

As kubeflow/trainer v2.3.0 makes them (pkg/runtime/framework/plugins/mpi): a JobSet of a launcher
and nodes. With runLauncherAsNode the launcher is one of `numNodes`, and the hostfile's first line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from tests.pods.cluster import Cluster
from tests.pods.fields import NotPlayedError, left_out, needed, only
from tests.pods.images import Image
from tests.pods.manifest import Without, play_pod
from tests.pods.oci import PodSpec
from tests.pods.operator import KeyPair
from tests.pods.pod import Pod
from tests.pods.volumes import Files


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
    name, mount = job["metadata"]["name"], policy["sshAuthMountPath"]
    slots = {**policy, **trainer}["numProcPerNode"]
    nodes = trainer.get("numNodes", spec["mlPolicy"].get("numNodes", 1)) - as_node
    names = [f"{name}-node-0-{index}" for index in range(nodes)]
    first = f"{name}-launcher-0-0"
    listed = [first, *names] if as_node else names
    hostfile = "".join(f"{host}.{name} slots={slots}\n" for host in listed)
    keys = KeyPair.make().files()
    modes = {"id_rsa": 0o640, "id_rsa.pub": 0o644, "authorized_keys": 0o644}

    def made(fields: dict[str, Any], host: str, env: Mapping[str, str], *more: Files) -> Pod:
        home = {"HOME": str(PurePath(mount).parent), "JOB_COMPLETION_INDEX": host[-1]}
        spec = PodSpec(name=host, image=image, hostname=host, subdomain=name, **fields)
        volumes = [Files(mount, keys, modes=modes, fs_group=1000), *more, *spec.volumes]
        spec = replace(spec, user=1000, groups=[1000], volumes=volumes)
        return cluster.pod(replace(spec, env={**home, **spec.env, **env}))

    env = {
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_set_default_slots": str(slots),
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    }
    workers = [made(pods["node"], host, {}) for host in names]
    hosts = Files("/etc/mpi", {"hostfile": hostfile}, 0o444)
    return Without(workers, made(pods["launcher"] | own, first, env, hosts))
