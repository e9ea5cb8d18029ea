"""The pods of jobs of other controllers than the MPI Operator, with what each of them adds.

As Volcano v1.15.1 does (pkg/controllers/job/plugins: svc/svc.go, ssh/ssh.go and
distributed-framework/mpi/mpi.go, which turns the other two on). As in KEP-2214 (Kubernetes'
pkg/controller/job/indexed_job_utils.go): the index as a variable, and in the host name. As JobSet
v0.12.0 does (pkg/controllers/jobset_controller.go, and the defaults of
pkg/webhooks/jobset_webhook.go): Jobs are called JOBSET-REPLICATED_JOB-INDEX, are indexed, and their
pods' subdomain is the JobSet's name. As kubeflow/trainer v2.3.0 does
(pkg/runtime/framework/plugins/mpi): a JobSet of a launcher and nodes; with runLauncherAsNode the
launcher is one of `numNodes`, and the hostfile's first line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.manifest import (
    Fields,
    NotPlayedError,
    Objects,
    Without,
    headless,
    left_out,
    needed,
    only,
    play_pod,
)
from tests.pods.oci import PodSpec
from tests.pods.operator import KeyPair
from tests.pods.pod import Pod
from tests.pods.volumes import Files, SubPath


def play_volcano(cluster: Cluster, image: Image, manifests: list[Fields], _: Objects) -> Without:
    """The pods of a master task and of the others."""
    manifest = left_out(manifests[0])[0]
    job = manifest["metadata"]["name"]
    spec = only(manifest["spec"], "minAvailable", "schedulerName", "plugins", "tasks")
    needed(manifest, "spec", "tasks")
    plugins = only(needed(manifest, "spec", "plugins"), "mpi", "svc", "ssh")
    by_mpi = "mpi" in plugins
    if by_mpi and plugins["mpi"] != ["--master=master", "--worker=worker"]:
        raise NotPlayedError(
            "Job: of the mpi plugin only --master=master, --worker=worker is played"
        )
    options = dict(word.partition("=")[::2] for word in plugins.get("ssh", ()))
    only(options, "--ssh-key-file-path", "--ssh-port")
    folder = options.get("--ssh-key-file-path", "/root/.ssh")
    tasks = {task["name"]: task for task in spec["tasks"]}
    pods = {
        name: [f"{job}-{name}-{index}" for index in range(task["replicas"])]
        for name, task in tasks.items()
    }
    hosts = {name: [f"{pod}.{job}" for pod in listed] for name, listed in pods.items()}
    added = {
        name: text
        for task, listed in hosts.items()
        for name, text in (
            (f"VC_{task.upper()}_HOSTS", ",".join(listed)),
            (f"VC_{task.upper()}_NUM", str(len(listed))),
        )
    }
    files = {f"{task}.host": "\n".join(listed) for task, listed in hosts.items()}
    keys = {**KeyPair.make().files(), "config": _config(hosts, options.get("--ssh-port", "22"))}
    made = {}
    for name, task in tasks.items():
        only(task, "name", "replicas", "template")
        fields = play_pod(task["template"]["spec"])
        group = task["template"]["spec"].get("securityContext", {}).get("fsGroup")
        is_master = by_mpi and name == "master"
        master = {"MPI_HOST": ",".join(needed(hosts, "worker"))} if is_master else {}
        fields["env"] = {**fields.get("env", {}), **added, **master}
        fields["volumes"] = [
            *fields["volumes"],
            Files("/etc/volcano", {**files, **added}),
            # The folder is mounted by subPath: its files are plain ones.
            *(SubPath(f"{folder}/{file}", text, 0o600, group) for file, text in keys.items()),
        ]
        made[name] = [
            cluster.pod(PodSpec(name=pod, image=image, subdomain=job, **fields))
            for pod in pods[name]
        ]
    (launcher,) = needed(made, "master")
    del made["master"]
    return Without(launcher, [pod for listed in made.values() for pod in listed])


def _config(hosts: Mapping[str, list[str]], port: str) -> str:
    """What generateSSHConfig writes."""
    text = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n"
    for host in (host for listed in hosts.values() for host in listed):
        text += f"Host {host.partition('.')[0]}\n  HostName {host}\n  Port {port}\n"
    return text


def play_indexed_job(
    cluster: Cluster, image: Image, manifests: Sequence[Fields], objects: Objects, **more: Any
) -> list[Pod]:
    """The pods of a headless Service and one Job; `more` is for all of them."""
    by_kind = {made["kind"]: left_out(made)[0] for made in manifests}
    only(by_kind, "Service", "Job")
    service, job = (needed(by_kind, kind) for kind in ("Service", "Job"))
    name = job["metadata"]["name"]
    if job["spec"].get("completionMode") != "Indexed":
        raise NotPlayedError(
            "Job: completionMode: Indexed is missing: its pods would have no names"
        )
    headless(service, needed(job, "spec", "template", "spec", "subdomain"), {"job-name": name})
    return _pods(cluster, image, name, job["spec"], objects, **more)


def play_jobset(
    cluster: Cluster, image: Image, manifests: Sequence[Fields], objects: Objects
) -> Without:
    manifest = left_out(manifests[0])[0]
    name = manifest["metadata"]["name"]
    needed(manifest, "spec", "replicatedJobs")
    spec = only(manifest["spec"], "network", "successPolicy", "replicatedJobs")
    made = {}
    for replicated in spec["replicatedJobs"]:
        only(replicated, "name", "template")
        own = only(replicated["template"], "metadata", "spec")["spec"]
        own["template"]["spec"]["subdomain"] = name
        job = f"{name}-{replicated['name']}-0"
        made[replicated["name"]] = _pods(cluster, image, job, own, objects)
    (launcher,) = needed(made, "launcher")
    return Without(launcher, needed(made, "worker"))


def _pods(
    cluster: Cluster, image: Image, name: str, job: Fields, objects: Objects, **more: Any
) -> list[Pod]:
    only(job, "completionMode", "completions", "parallelism", "template")
    if needed(job, "completions") != job.get("parallelism"):
        raise NotPlayedError("Job: completions and parallelism differ: not all pods would be there")
    pod = dict(only(job["template"], "metadata", "spec")["spec"])
    subdomain = pod.pop("subdomain")
    fields = play_pod(pod, objects)
    env = fields.pop("env", {})
    return [
        cluster.pod(
            PodSpec(
                name=f"{name}-{index}-x7k2p",
                hostname=f"{name}-{index}",
                subdomain=subdomain,
                image=image,
                env={**env, "JOB_COMPLETION_INDEX": str(index)},
                **{**fields, **more},
            )
        )
        for index in range(job["completions"])
    ]


def play_trainjob(cluster: Cluster, image: Image, manifests: list[Fields], _: Objects) -> Without:
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
    own = {name: trainer[name] for name in ("command", "args") if name in trainer}
    name, mount = job["metadata"]["name"], policy["sshAuthMountPath"]
    slots = {**policy, **trainer}["numProcPerNode"]
    nodes = trainer.get("numNodes", spec["mlPolicy"].get("numNodes", 1)) - as_node
    names = [f"{name}-node-0-{index}" for index in range(nodes)]
    first = f"{name}-launcher-0-0"
    listed = [first, *names] if as_node else names
    hostfile = "".join(f"{host}.{name} slots={slots}\n" for host in listed)
    keys = KeyPair.make().files()
    modes = {"id_rsa": 0o640, "id_rsa.pub": 0o644, "authorized_keys": 0o644}

    def made(fields: Fields, host: str, env: Mapping[str, str], *more: Files) -> Pod:
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
    return Without(made(pods["launcher"] | own, first, env, hosts), workers)
